"""Images: bytes on disk → upright 8-bit RGB. The one owner of Pillow.

Used by `split` (`inspect_image`), `prepare` and whatever shows or classifies an image (`decoded`).
Of an animation or a file of several pages the first image counts. Colour profiles are not applied, as in
torchvision. Metadata (EXIF, text chunks) can turn an image, but never make one fail that can be decoded.

All threads of a process share MEMORY for the images that they decode. What one takes is reckoned from its header and
lent to it before it is decoded; one that takes more than all of it is decoded alone. It decides no result.
"""

import errno
import hashlib
import io
import stat
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, JpegImagePlugin, PngImagePlugin, UnidentifiedImageError

from pipeline.base.errors import UserError

# Decoded in this process by Pillow's own plugins; others (such as EPS) would start a program found on the machine.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")

EMPTY = "empty"
NOT_AN_IMAGE = "not an image"
TRUNCATED = "truncated"
TOO_LARGE = "too large"
TOO_SMALL = "too small"
NOT_DECODABLE = "not decodable"
REASONS = (EMPTY, NOT_AN_IMAGE, TRUNCATED, TOO_LARGE, TOO_SMALL, NOT_DECODABLE)

Image.MAX_IMAGE_PIXELS = (
    None  # `inspect_image` compares the header's size with the user's own limit before anything is decoded
)
# A long comment in a PNG is no reason to refuse it; unpacked and as text it takes up to 15 times this.
PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY = 2**22
warnings.filterwarnings("ignore", module="PIL")  # odd metadata; what matters about an image stands in its verdict

# EXIF 2.3, tag 0x0112: how the stored image has to be turned to stand upright.
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# Bytes that an image takes while it is opened, decoded, made RGB, turned and hashed, all measured (benchmarks.memory):
# of a JPEG its coefficients, which a draft does not lessen, and the image; a WebP has canvases besides.
JPEG_STORED, JPEG_PIXEL, WEBP_PIXEL, PIXEL = 8, 5, 21, 14
LINE = 5  # pixels that keeping account of a line of them is worth
FILE = 3  # times its size
HEADER = 2**26  # of what is no JPEG: the most that comments of a PNG take as text
AT_ONCE = 2**20  # bytes of a file that are read in one go
STRIP = 2**18  # pixels that are made RGB or hashed in one go
NO_LIMIT = 2**62

RGB = Image.Image  # a decoded image: upright, 8 bits, three channels


@dataclass(frozen=True)
class ImageInfo:
    """What is known of one file: kept (`reason` is empty) or excluded, with one of REASONS."""

    reason: str
    width: int = 0  # pixels, upright; of an image that was not decoded as its header has it, 0 if it has no header
    height: int = 0
    pixels: str = ""  # SHA-256 of the size and the upright RGB bytes; empty if not decoded
    phash: int = 0  # 64-bit perceptual hash; 0 if not decoded


class Memory:
    """A number of bytes that threads lend from, and wait for."""

    def __init__(self, most: int) -> None:
        self._most = self._free = most
        self._changed = threading.Condition()

    @contextmanager
    def lent(self, wanted: int) -> Iterator[Callable[[int], bool]]:
        """Wait until so many bytes are free, and hold them inside the block; all there are, if more are wanted.

        Yields a function that raises what is held to a larger number, at once or not at all, and says whether it did:
        who held something and waited for more, as others do, would wait for ever.
        """
        held = 0

        def raised(to: int) -> bool:
            nonlocal held
            more = max(min(to, self._most) - held, 0)
            if more > self._free:
                return False
            self._free -= more
            held += more
            return True

        def at_once(to: int) -> bool:
            with self._changed:
                return raised(to)

        with self._changed:
            self._changed.wait_for(lambda: raised(wanted))
        try:
            yield at_once
        finally:
            with self._changed:
                self._free += held
                self._changed.notify_all()


MEMORY = Memory(2**31)


class _Excluded(Exception):
    """A file that is no image to be decoded. Its text is one of REASONS."""


@contextmanager
def decoded(path: Path, max_pixels: int = NO_LIMIT, draft: int = 0, memory: Memory = MEMORY) -> Iterator[RGB]:
    """The image as upright 8-bit RGB; what it takes is lent from `memory` until the block ends.

    With a draft, a JPEG of which a half, a quarter or an eighth still has sides of `draft` pixels or more is decoded at
    that scale, which is cheaper. Raises UserError if it is no image, or one of more than `max_pixels`; OSError if the
    file cannot be read.
    """
    length, seen = _length(path), [(0, 0)]
    with ExitStack() as stack:
        try:
            image = stack.enter_context(_decoded(path, length, 1, max_pixels, draft, memory, seen))
        except Exception as error:
            raise UserError(_refused(path, error, seen[-1], max_pixels)) from None
        yield image


def resize_to_square(path: Path, size: int, max_pixels: int = NO_LIMIT) -> NDArray[np.uint8]:
    """The image resized to a square, whatever its shape: uint8 [size, size, 3]. Raises as `decoded` does.

    What `prepare` packs, and what the model is shown. Pillow's bicubic resize is antialiased, and computes in whole
    numbers: its bits are the same on every CPU.

    Why bicubic: measured on 50 photos of flower_photos (seeded choice), resized to 256, then the centre box of
    evaluation resampled to 224 with a triangle filter, against torchvision's Resize(256) + CenterCrop(224) of the
    original; mean absolute error in grey levels of 255: box 3.73, bilinear 2.16, bicubic 2.01, Lanczos 2.20.
    A JPEG of at least eight times the square's side is decoded at a reduced scale that leaves at least four times. At
    32 pixels (50 photos), against torchvision's Resize of the original, the error then is 2.58, from the full scale
    2.45; where only twice the side is left 3.00, and where once, 4.34.
    """
    with decoded(path, max_pixels, draft=4 * size) as image:
        return np.asarray(image.resize((size, size), Image.Resampling.BICUBIC))


def decode(path: Path, max_pixels: int = NO_LIMIT, draft: int = 0) -> RGB:
    """The image as `decoded` gives it, to keep: nobody counts what it takes any longer."""
    with decoded(path, max_pixels, draft) as image:
        return image


def _refused(path: Path, error: Exception, size: tuple[int, int], max_pixels: int) -> str:
    reason = _reason(error)
    if reason == TOO_LARGE:
        return (
            f"{path}: too large ({size[0]} × {size[1]} pixels, {path.stat().st_size:,} bytes); allowed: up to "
            f"{max_pixels:,} pixels (split.max_pixels) in {_most_bytes(max_pixels):,} bytes; make it smaller"
        )
    return f"{path}: {reason}; allowed: a whole image as {', '.join(FORMATS)}; convert it, or leave it out"


def inspect_image(
    path: Path, min_side: int, max_pixels: int, fingerprint: Callable[[RGB], int], memory: Memory = MEMORY
) -> ImageInfo:
    """Decode one file and say whether it is kept. `fingerprint` gives the perceptual hash of the upright RGB image.

    Raises OSError if the file cannot be read: the disk's fault is not the image's. Raises UserError if it is no file.
    """
    length, seen = _length(path), [(0, 0)]
    with ExitStack() as stack:
        try:
            image = stack.enter_context(_decoded(path, length, min_side, max_pixels, 0, memory, seen))
        except Exception as error:  # a broken file makes Pillow raise nearly anything
            return ImageInfo(_reason(error), *seen[-1])
        pixels = hashlib.sha256(f"{image.width}x{image.height} RGB\n".encode())
        for strip in _strips(image):
            pixels.update(strip.tobytes())
        return ImageInfo("", image.width, image.height, pixels.hexdigest(), fingerprint(image))


@contextmanager
def _decoded(
    path: Path,
    length: int,
    min_side: int,
    max_pixels: int,
    draft: int,
    memory: Memory,
    seen: list[tuple[int, int]],
) -> Iterator[RGB]:
    """The image, while what it takes is lent. Its stored size is added to `seen` as soon as it is known.

    Raises _Excluded, or what Pillow raises. Who has to wait for memory gives back what opening took, and opens again.
    """
    if length == 0:
        raise _Excluded(EMPTY)
    if length > _most_bytes(max_pixels):
        raise _Excluded(TOO_LARGE)
    # Read at once if it is small, which is faster than what a decoder asks for.
    with io.BytesIO(path.read_bytes()) if length <= AT_ONCE else path.open("rb") as content:
        opening = needed = _opening(content)
        while True:
            with memory.lent(needed) as raised:
                content.seek(0)
                image = Image.open(content, formats=FORMATS)
                seen.append(image.size)
                if image.width * image.height > max_pixels:
                    raise _Excluded(TOO_LARGE)
                if min(image.size) < min_side:
                    raise _Excluded(TOO_SMALL)
                needed = opening + _decoding(image, draft)
                if raised(needed):
                    upright = _upright(image)
                    del image
                    yield upright
                    return
                del image


def _length(path: Path) -> int:
    """The bytes of an image's file. Raises UserError if it is no file, which might be waited for without end."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"{path}: {kind(found.st_mode)}; allowed: a file; take it out, or put the image there")
    return found.st_size


def kind(mode: int) -> str:
    """What there is instead of a file, in words, from its mode (stat)."""
    kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
    return next((words for is_one, words in kinds if is_one(mode)), "a device")


def _most_bytes(max_pixels: int) -> int:
    """How long a file may be: nothing stores a pixel in more than 8 bytes, and the rest needs no more than HEADER."""
    return HEADER + 8 * max_pixels


def _opening(content: BinaryIO) -> int:
    """The most bytes that a file takes while it is opened."""
    jpeg = content.read(2) == b"\xff\xd8"
    return FILE * content.seek(0, io.SEEK_END) + (0 if jpeg else HEADER)


def _decoding(image: Image.Image, draft: int) -> int:
    """The most bytes that an image takes besides; a draft is taken in the same go."""
    stored = _weight(image)
    if not isinstance(image, JpegImagePlugin.JpegImageFile):
        return (WEBP_PIXEL if image.format == "WEBP" else PIXEL) * stored
    if draft:
        image.draft(None, (draft, draft))
    return JPEG_STORED * stored + JPEG_PIXEL * _weight(image)


def _weight(image: Image.Image) -> int:
    """The pixels of an image, with what the lines of a long one cost, whichever way it is turned."""
    return image.width * image.height + LINE * max(image.size)


def _strips(image: Image.Image) -> Iterator[Image.Image]:
    """An image in strips of some lines; in one, if it is small."""
    lines = max(1, STRIP // image.width)
    if lines >= image.height:
        yield image
        return
    for top in range(0, image.height, lines):
        yield image.crop((0, top, image.width, min(top + lines, image.height)))


def _reason(error: Exception) -> str:
    """Why Pillow could not read an image. Raises the error again if it is the machine's fault: disk or memory."""
    of_the_image = (None, errno.EINVAL)  # Pillow's own OSErrors have no number; EINVAL: an absurd offset in the file
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno not in of_the_image):
        raise error
    if isinstance(error, _Excluded):
        return str(error)
    if isinstance(error, UnidentifiedImageError):
        return NOT_AN_IMAGE
    if isinstance(error, EOFError) or "truncated" in str(error).lower():  # only its words tell
        return TRUNCATED
    return NOT_DECODABLE


def _upright(image: Image.Image) -> RGB:
    """Decode an opened image: 8-bit RGB, turned as its EXIF orientation says."""
    image.load()
    orientation = _orientation(image)
    rgb = _rgb(image)
    return rgb.transpose(UPRIGHT[orientation]) if orientation in UPRIGHT else rgb


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation of a decoded image; 1, upright, if there is none or it cannot be read."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # metadata that anybody can write, read by several parsers: any error may come
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
    if (clear := image.info.get("transparency")) is not None:
        grey[grey == clear] = 65535  # the one transparent value of a PNG, over white
    return Image.fromarray(((grey + 128) // 257).astype(np.uint8))
