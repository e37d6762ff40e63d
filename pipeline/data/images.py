"""Image files → upright 8-bit RGB. The one module that decodes images with Pillow.

`split` inspects images, `prepare` and `predict` resize them. Of an animation or a file with several pages, the first
image counts. Colour profiles are not applied, as in torchvision. Metadata (EXIF, text) can turn an image, but damaged
metadata is no reason to exclude it.

All threads of a process share one budget of memory for the images that they decode (data/memory.py). The memory of an
image is estimated from its header and reserved before decoding. An image that needs more than the whole budget is
decoded alone.
"""

import errno
import hashlib
import io
import stat
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, JpegImagePlugin, PngImagePlugin, UnidentifiedImageError

from pipeline.base.errors import UserError
from pipeline.data import memory
from pipeline.data.memory import BUDGET, MemoryBudget

# Pillow decodes these itself. For others, such as EPS, it would start a program of the machine.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")

EMPTY = "empty"
NOT_AN_IMAGE = "not an image"
TRUNCATED = "truncated"
TOO_LARGE = "too large"
TOO_SMALL = "too small"
NOT_DECODABLE = "not decodable"
REASONS = (EMPTY, NOT_AN_IMAGE, TRUNCATED, TOO_LARGE, TOO_SMALL, NOT_DECODABLE)

# No limit of Pillow's own: the size in the header is compared with the user's limit before anything is decoded.
Image.MAX_IMAGE_PIXELS = None
# A long comment is no reason to exclude a PNG. Unpacked and as text it takes up to 15 times this size.
PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY = 2**22
warnings.filterwarnings("ignore", module="PIL")  # about odd metadata

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
SIDEWAYS = (5, 6, 7, 8)  # width and height change places

SMALL_FILE = 2**20  # bytes; such a file is read at once, which is faster than a decoder's many small reads
STRIP = 2**18  # pixels that are converted or hashed at once
NO_LIMIT = 2**62

RGB = Image.Image  # a decoded image: upright, 8 bits, three channels


@dataclass(frozen=True)
class ImageInfo:
    """What `inspect_image` found out about one file."""

    reason: str  # one of REASONS if it cannot be used; empty if it can
    width: int = 0  # pixels, upright; as in the header if the image was not decoded, 0 without a header
    height: int = 0
    pixels: str = ""  # SHA-256 of the size and the upright RGB bytes; empty if not decoded
    phash: int = 0  # 64-bit perceptual hash; 0 if not decoded


@dataclass(frozen=True)
class Decoded:
    """A decoded image."""

    image: RGB  # a JPEG may be decoded at a reduced scale
    size: tuple[int, int]  # width and height of the full image, upright


class _Unusable(Exception):
    """A file that cannot be used as an image: one of REASONS, and the size in its header."""

    def __init__(self, reason: str, size: tuple[int, int] = (0, 0)) -> None:
        self.reason, self.size = reason, size


@contextmanager
def decoded(path: Path, max_pixels: int = NO_LIMIT, draft: int = 0, budget: MemoryBudget = BUDGET) -> Iterator[Decoded]:
    """The decoded image. Its memory is reserved until the block ends.

    With `draft`, a JPEG is decoded at a half, a quarter or an eighth of its scale if its sides keep at least `draft`
    pixels; that is faster. Raises UserError if the file cannot be used or has more than `max_pixels`, OSError if it
    cannot be read.
    """
    try:
        with _decoded(path, 1, max_pixels, draft, budget) as result:
            yield result
    except _Unusable as error:
        raise UserError(_refusal(path, error, max_pixels)) from None


def resize_to_square(path: Path, size: int, max_pixels: int = NO_LIMIT) -> NDArray[np.uint8]:
    """The image resized to a square: uint8 [size, size, 3]. Its shape does not matter. Raises as `decoded` does."""
    return square_and_size(path, size, max_pixels)[0]


def square_and_size(path: Path, size: int, max_pixels: int = NO_LIMIT) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """The image resized to a square, uint8 [size, size, 3], and the width and height of the original, upright.

    `prepare` packs this square, and a model sees it. Pillow's bicubic resize is antialiased and computes in integers:
    its bits are the same on every CPU.

    Why bicubic: 50 photos of flower_photos (seeded choice) were resized to 256, then the centre box of evaluation was
    resampled to 224 with a triangle filter. Mean absolute error in grey levels of 255, against torchvision's
    Resize(256) + CenterCrop(224) of the original: box 3.73, bilinear 2.16, bicubic 2.01, Lanczos 2.20.
    A JPEG with sides of at least 8 times the square's is decoded at a reduced scale that leaves at least 4 times. At 32
    pixels (50 photos), against torchvision's Resize of the original, the error is then 2.58. From the full scale it is
    2.45, from a scale that leaves twice the side 3.00, once 4.34.
    """
    with decoded(path, max_pixels, draft=4 * size) as original:
        square = original.image.resize((size, size), Image.Resampling.BICUBIC)
        return np.asarray(square), original.size


def inspect_image(
    path: Path, min_side: int, max_pixels: int, fingerprint: Callable[[RGB], int], budget: MemoryBudget = BUDGET
) -> ImageInfo:
    """Decode one file: its measures, or why it cannot be used. `fingerprint` gives the perceptual hash of an image.

    Raises OSError if the file cannot be read, because that is a fault of the disk and not of the image. Raises
    UserError if it is a folder, a pipe or a device.
    """
    try:
        with _decoded(path, min_side, max_pixels, 0, budget) as result:
            image = result.image
            pixels = hashlib.sha256(f"{image.width}x{image.height} RGB\n".encode())
            for strip in _strips(image):
                pixels.update(strip.tobytes())
            return ImageInfo("", image.width, image.height, pixels.hexdigest(), fingerprint(image))
    except _Unusable as error:
        return ImageInfo(error.reason, *error.size)


@contextmanager
def _decoded(path: Path, min_side: int, max_pixels: int, draft: int, budget: MemoryBudget) -> Iterator[Decoded]:
    """The decoded image, while its memory is reserved. Raises _Unusable, OSError and UserError.

    If there is not enough memory to decode an opened image, it is closed, its memory is given back, and it is opened
    again when there is enough.
    """
    length = _file_size(path)
    if length == 0:
        raise _Unusable(EMPTY)
    if length > memory.largest_file(max_pixels):
        raise _Unusable(TOO_LARGE)
    with io.BytesIO(path.read_bytes()) if length <= SMALL_FILE else path.open("rb") as content:
        opening = needed = memory.opening_bytes(content)
        while True:
            with budget.reserve(needed) as grow:
                image = _opened(content, min_side, max_pixels)
                stored = image.size
                with _reasons(stored):
                    needed = opening + _decoding_bytes(image, draft)
                    result = _upright(image, stored) if grow(needed) else None
                del image
                if result:
                    yield result
                    return


@contextmanager
def _reasons(size: tuple[int, int] = (0, 0)) -> Iterator[None]:
    """Raise any error inside the block as _Unusable: a broken file makes Pillow raise nearly anything."""
    try:
        yield
    except _Unusable:
        raise
    except Exception as error:
        raise _Unusable(_reason(error), size) from None


def _reason(error: Exception) -> str:
    """Why Pillow could not read an image. Raises the error again if the disk or the memory is at fault."""
    of_image = (None, errno.EINVAL)  # Pillow's own OSErrors have no number; EINVAL: a wrong position in the file
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno not in of_image):
        raise error
    if isinstance(error, UnidentifiedImageError):
        return NOT_AN_IMAGE
    if isinstance(error, EOFError) or "truncated" in str(error).lower():  # Pillow has no class for it
        return TRUNCATED
    return NOT_DECODABLE


def _refusal(path: Path, error: _Unusable, max_pixels: int) -> str:
    if error.reason == TOO_LARGE:
        return (
            f"{path}: too large ({error.size[0]} × {error.size[1]} pixels, {path.stat().st_size:,} bytes); allowed: up "
            f"to {max_pixels:,} pixels (split.max_pixels) in {memory.largest_file(max_pixels):,} bytes; make it smaller"
        )
    return f"{path}: {error.reason}; allowed: a whole image as {', '.join(FORMATS)}; convert it, or leave it out"


def _file_size(path: Path) -> int:
    """The bytes of a file. Raises UserError if it is something else: a pipe could be waited for without end."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{path}: {_kind(status.st_mode)}; allowed: a file; remove it, or put the image there")
    return status.st_size


def _kind(mode: int) -> str:
    """What there is instead of a file, in words, from its mode (stat)."""
    kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
    return next((words for is_kind, words in kinds if is_kind(mode)), "a device")


def _opened(content: BinaryIO, min_side: int, max_pixels: int) -> Image.Image:
    """The opened image, not decoded. Raises _Unusable for what its header says."""
    content.seek(0)
    with _reasons():
        image = Image.open(content, formats=FORMATS)
    if image.width * image.height > max_pixels:
        raise _Unusable(TOO_LARGE, image.size)
    if min(image.size) < min_side:
        raise _Unusable(TOO_SMALL, image.size)
    return image


def _decoding_bytes(image: Image.Image, draft: int) -> int:
    """The most bytes that decoding takes. Sets the reduced scale of a JPEG, if there is a draft."""
    stored = image.size
    if not isinstance(image, JpegImagePlugin.JpegImageFile):
        return memory.decoding_bytes(image.format or "", stored, stored)
    if draft:
        image.draft(None, (draft, draft))
    return memory.decoding_bytes("JPEG", stored, image.size)


def _upright(image: Image.Image, stored: tuple[int, int]) -> Decoded:
    """Decode an opened image with `stored` width and height: 8-bit RGB, turned by its EXIF orientation."""
    image.load()
    orientation = _orientation(image)
    rgb = _rgb(image)
    if orientation in UPRIGHT:
        rgb = rgb.transpose(UPRIGHT[orientation])
    return Decoded(rgb, stored[::-1] if orientation in SIDEWAYS else stored)


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation of a decoded image; 1 (upright) if there is none or it cannot be read."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # several parsers read metadata that anybody can write: any error is possible
        return 1


def _rgb(image: Image.Image) -> RGB:
    """Any mode as 8-bit RGB: transparency over white, 16-bit grey scaled. Raises ValueError if white is not defined."""
    if image.mode == "RGB" and not image.has_transparency_data:
        return image
    rgb, top = Image.new("RGB", image.size), 0
    for strip in _strips(image):
        rgb.paste(_strip_as_rgb(strip), (0, top))
        top += strip.height
    return rgb


def _strips(image: Image.Image) -> Iterator[Image.Image]:
    """An image in strips of some lines; in one strip if it is small."""
    lines = max(1, STRIP // image.width)
    if lines >= image.height:
        yield image
        return
    for top in range(0, image.height, lines):
        yield image.crop((0, top, image.width, min(top + lines, image.height)))


def _strip_as_rgb(image: Image.Image) -> RGB:
    if image.mode.startswith(("I", "F")):
        image = _eight_bits(image)
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return image.convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit grey as 8-bit grey, rounded (Pillow's own conversion clips at 255)."""
    grey = np.asarray(image).astype(np.int64)
    if image.mode == "F" or grey.min() < 0 or grey.max() > 65535:
        raise ValueError("fractions, or grey values beyond 16 bits: no value is known to be white")
    if (transparent := image.info.get("transparency")) is not None:
        grey[grey == transparent] = 65535  # the one transparent value of a PNG, over white
    return Image.fromarray(((grey + 128) // 257).astype(np.uint8))
