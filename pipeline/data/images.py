"""Decodes image files to upright 8-bit RGB. `split` inspects images, `prepare` and `predict` resize them.

Of an animation or a file with several pages, the first image is decoded; of a HEIC, its primary image. Colour profiles
are not applied, as in torchvision. EXIF can turn an image, but damaged metadata excludes none. Grey with more than 8
bits per value is scaled (data/grey.py). Of 16 bits of colour, or of grey beside an alpha channel, the
upper 8 are used.

All threads of a process share one budget of memory for the images that they decode (data/memory.py). The memory of an
image is estimated from its header and reserved before decoding. An image that needs more than the whole budget is
decoded alone.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from pipeline.config.params import Fit, Grey
from pipeline.data import appearance, decoders, memory
from pipeline.data import grey as greys
from pipeline.data.appearance import NO_APPEARANCE, Appearance
from pipeline.data.decoders import Unusable
from pipeline.data.memory import BUDGET
from pipeline.dataset import squares
from pipeline.sources import originals

# EXIF 2.3, tag 0x0112 → how to turn the stored image upright.
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = (5, 6, 7, 8)  # width and height are exchanged

SMALL_FILE = 2**20  # bytes; such a file is read at once, which is faster than a decoder's many small reads
STRIP = 2**18  # pixels that are converted or hashed at once
NO_LIMIT = 2**62
DRAFT = 4  # sides of a square that a JPEG at a reduced scale has at least

RGB = Image.Image  # a decoded image: upright, 8 bits, three channels


@dataclass(frozen=True)
class ImageInfo:
    """The measures of one file, or the reason why it cannot be used."""

    reason: str  # one of decoders.REASONS, maybe with ": " and a name; empty if the file can be used
    width: int = 0  # pixels, upright; as in the header if the image was not decoded, 0 without a header
    height: int = 0
    pixels: str = ""  # SHA-256 of the size and the upright RGB bytes, or 16-bit grey values; empty if not decoded
    phash: int = 0  # 64-bit perceptual hash; 0 if not decoded
    has_more: bool = False  # the file has more images, such as pages or frames
    is_dark: bool = False  # 16-bit grey far below the full scale
    look: Appearance = NO_APPEARANCE


@dataclass(frozen=True)
class DecodedImage:
    """A decoded image."""

    image: RGB  # a JPEG may be decoded at a reduced scale
    size: tuple[int, int]  # width and height of the full image, upright
    exact: Image.Image  # for the pixel hash: 16-bit grey before it is scaled, else the same as `image`
    has_more: bool  # as in ImageInfo
    is_dark: bool


@contextmanager
def decode(
    path: Path, max_pixels: int = NO_LIMIT, draft: int = 0, grey: Grey = "full", sha256: str = "", min_side: int = 1
) -> Iterator[DecodedImage]:
    """The decoded image. Its memory is reserved until the block ends. `grey`: how 16-bit grey is scaled.

    With `draft`, a JPEG is decoded at a half, a quarter or an eighth of its scale if its sides keep at least `draft`
    pixels; that is faster. Raises UserError if the file cannot be used, has more than `max_pixels` or a side below
    `min_side`, OSError if it cannot be read. With `sha256`, exactly the bytes with this hash are decoded; Changed is
    raised for others.
    """
    try:
        with _decode(path, min_side, max_pixels, draft, grey, sha256) as result:
            yield result
    except Unusable as error:
        raise decoders.refusal(path, error, max_pixels, min_side) from None


def square_and_size(
    path: Path, size: int, grey: Grey = "full", sha256: str = "", fit: Fit = "none"
) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """The image as a square, uint8 [size, size, 3], and the width and height that it stands for.

    `prepare` packs this square, and a model sees it.

    Bicubic is nearest to torchvision's Resize(256) + CenterCrop(224) of the original. Mean absolute error of 50 photos,
    in grey levels of 255: box 3.73, bilinear 2.16, bicubic 2.01, Lanczos 2.20.
    A JPEG with sides of at least 8 times the square's is decoded at a reduced scale that leaves at least 4 times. At 32
    pixels (50 photos), against torchvision's Resize of the original, the error is then 2.58. From the full scale it is
    2.45, from a scale that leaves twice the side 3.00, once 4.34.
    """
    with decode(path, draft=DRAFT * size, grey=grey, sha256=sha256) as original:
        return as_square(original, size, fit)


def as_square(original: DecodedImage, size: int, fit: Fit) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """A decoded image as `square_and_size` gives it. Its draft was DRAFT times `size`."""
    return np.asarray(squares.SQUARES[fit](original.image, size)), squares.proportions(fit, original.size)


def inspect_image(path: Path, min_side: int, max_pixels: int, sha256: str = "") -> ImageInfo:
    """The measures of a file, or the reason why it cannot be used.

    For the perceptual hash and the appearance, 16-bit grey is scaled by `minmax`: they do not depend on prepare.grey.

    Raises OSError if the file cannot be read, because that is a fault of the disk and not of the image. Raises
    UserError if it is a folder, a pipe or a device, and Changed if its bytes have another hash than `sha256`.
    """
    try:
        with _decode(path, min_side, max_pixels, 0, "minmax", sha256) as result:
            image, exact = result.image, result.exact
            pixels = hashlib.sha256(f"{image.width}x{image.height} {exact.mode}\n".encode())
            for strip in _strips(exact):
                pixels.update(strip.tobytes())
            digest, grey_image = pixels.hexdigest(), image.convert("L")
            phash, look = appearance.perceptual_hash(grey_image), appearance.measure_appearance(image, grey_image)
            return ImageInfo("", image.width, image.height, digest, phash, result.has_more, result.is_dark, look)
    except Unusable as error:
        return ImageInfo(decoders.reason_of(path, error), *error.size)


@contextmanager
def _decode(path: Path, min_side: int, max_pixels: int, draft: int, grey: Grey, sha256: str) -> Iterator[DecodedImage]:
    """The decoded image, while its memory is reserved. Raises Unusable, OSError and UserError.

    A file whose hash is checked is copied into memory, because it may change meanwhile. An image that needs more than
    the reserved memory is closed, its memory is released, and it is opened again when enough is free.
    """
    length = decoders.file_size(path)
    with path.open("rb") as file:
        if length == 0 or length > memory.largest_file(max_pixels):
            originals.check_hash(file, path, sha256)
            raise Unusable(decoders.TOO_LARGE if length else decoders.EMPTY)
        is_copied = bool(sha256) or length <= SMALL_FILE
        opening_bytes = reserved_bytes = memory.opening_bytes(file, is_copied)
        while True:
            with BUDGET.reserve(reserved_bytes) as grow:
                source: BinaryIO = originals.copy(file, path, sha256) if is_copied else file
                image = decoders.open_image(source, min_side, max_pixels)
                stored_size = image.size
                with decoders.errors_as_unusable(source, stored_size):
                    reserved_bytes = opening_bytes + decoders.decoding_bytes(image, draft)
                    result = _upright(image, stored_size, grey) if grow(reserved_bytes) else None
                del source, image
                if result:
                    yield result
                    return


def _upright(image: Image.Image, stored_size: tuple[int, int], grey: Grey) -> DecodedImage:
    """Decode an opened image with `stored_size` width and height: 8-bit RGB, turned by its EXIF orientation."""
    image.load()
    orientation, has_more = _orientation(image), decoders.has_more(image)
    size = stored_size[::-1] if orientation in SIDEWAYS else stored_size
    if image.mode.startswith(("I", "F")):
        values, counts = _sixteen_bits(image)
        values = _turn(values, orientation)
        rgb = _scale(values, greys.lookup_table(counts, grey))
        return DecodedImage(rgb, size, values, has_more, greys.is_dark(counts))
    rgb = _turn(_rgb(image), orientation)
    return DecodedImage(rgb, size, rgb, has_more, is_dark=False)


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation of a decoded image; 1 (upright) if there is none or it cannot be read."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # several parsers read metadata that anybody can write: any error is possible
        return 1


def _turn(image: Image.Image, orientation: int) -> Image.Image:
    return image.transpose(UPRIGHT[orientation]) if orientation in UPRIGHT else image


def _rgb(image: Image.Image) -> RGB:
    """Any mode of 8 bits as RGB, transparency over white."""
    if image.mode == "RGB" and not image.has_transparency_data:
        return image
    return _by_strips("RGB", image, _strip_as_rgb)


def _by_strips(mode: str, image: Image.Image, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """The image in another mode, converted strip by strip, which takes little memory."""
    result, top = Image.new(mode, image.size), 0
    for strip in _strips(image):
        result.paste(convert(strip), (0, top))
        top += strip.height
    return result


def _strips(image: Image.Image) -> Iterator[Image.Image]:
    """An image in strips of some lines; in one strip if it is small."""
    lines = max(1, STRIP // image.width)
    if lines >= image.height:
        yield image
        return
    for top in range(0, image.height, lines):
        yield image.crop((0, top, image.width, min(top + lines, image.height)))


def _strip_as_rgb(image: Image.Image) -> RGB:
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return image.convert("RGB")


# ---- grey with more than 8 bits ----


def _sixteen_bits(image: Image.Image) -> tuple[Image.Image, greys.Counts]:
    """The image with 16-bit values (mode I;16), and the number of pixels of each value.

    Of a TIFF with white = 0 they are inverted. Transparent pixels are white and are not counted. Raises ValueError as
    `grey.count_values` does.
    """
    counts, transparent = np.zeros(greys.WHITE + 1, np.int64), image.info.get("transparency")
    is_negative = decoders.is_white_zero(image)

    def convert(strip: Image.Image) -> Image.Image:
        nonlocal counts
        values = np.asarray(strip)
        values = greys.WHITE - values if is_negative else values
        counts += greys.count_values(values)
        values = values.astype(np.uint16)
        if isinstance(transparent, int):  # the one transparent value of a PNG
            values[values == transparent] = greys.WHITE
        return Image.fromarray(values)

    result = _by_strips("I;16", image, convert)
    if isinstance(transparent, int):
        counts[transparent] = 0
    return result, counts


def _scale(image: Image.Image, table: NDArray[np.uint8]) -> RGB:
    """16-bit values as RGB, by a table of all values [65536]."""
    return _by_strips("RGB", image, lambda strip: Image.fromarray(table[np.asarray(strip)]).convert("RGB"))
