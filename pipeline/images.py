"""Pictures: bytes on disk → upright 8-bit RGB. The one owner of Pillow.

Used by `split` (`judge`), `prepare` and whatever shows or classifies a picture (`decode`).
Of an animation or a file of several pages the first picture counts. Colour profiles are not applied, as in
torchvision. Metadata (EXIF, text chunks) can turn a picture, but never make one fail that can be decoded.
"""

import errno
import hashlib
import io
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
from PIL import ExifTags, Image, PngImagePlugin, UnidentifiedImageError
from tqdm import tqdm

from pipeline.errors import Refusal

# Decoded in this process by Pillow's own plugins; others (such as EPS) would start a program found on the machine.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")

EMPTY = "empty"
NOT_AN_IMAGE = "not an image"
TRUNCATED = "truncated"
TOO_LARGE = "too large"
TOO_SMALL = "too small"
NOT_DECODABLE = "not decodable"
REASONS = (EMPTY, NOT_AN_IMAGE, TRUNCATED, TOO_LARGE, TOO_SMALL, NOT_DECODABLE)

Image.MAX_IMAGE_PIXELS = None  # `judge` compares the header's size with the user's own limit before anything is decoded
PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY  # a long comment in a PNG is no reason to refuse it
warnings.filterwarnings("ignore", module="PIL")  # odd metadata; what matters about a picture stands in its verdict

# EXIF 2.3, tag 0x0112: how the stored picture has to be turned to stand upright.
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

RGB = Image.Image  # a decoded picture: upright, 8 bits, three channels

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Verdict:
    """What is known of one file: kept (`reason` is empty) or excluded, with one of REASONS."""

    reason: str
    width: int = 0  # pixels, upright; of a picture that was not decoded as its header has it, 0 if it has no header
    height: int = 0
    pixels: str = ""  # SHA-256 of the size and the upright RGB bytes; empty if not decoded
    phash: int = 0  # 64-bit perceptual hash; 0 if not decoded


def decode(path: Path, draft: int = 0) -> RGB:
    """The picture as upright 8-bit RGB. Raises Refusal if it is none, OSError if the file cannot be read.

    With a draft, a JPEG of which a half, a quarter or an eighth still has sides of `draft` pixels or more is decoded at
    that scale, which is cheaper.
    """
    content = io.BytesIO(path.read_bytes())  # read at once, which is faster than what the decoder asks for
    try:
        image = _open(content)
        if draft:
            image.draft(None, (draft, draft))
        return _upright(image)
    except Exception as error:
        allowed = f"a whole picture as {', '.join(FORMATS)}"
        raise Refusal(f"{path}: {_reason(error)}; allowed: {allowed}; convert it, or leave it out") from None


def judge(path: Path, min_side: int, max_pixels: int, fingerprint: Callable[[RGB], int]) -> Verdict:
    """Decode one file and say whether it is kept. `fingerprint` gives the perceptual hash of the upright RGB picture.

    Raises OSError if the file cannot be read: the disk's fault is not the picture's.
    """
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return Verdict(EMPTY)
        width = height = 0
        try:
            image = _open(file)
            width, height = image.size
            if width * height > max_pixels:
                return Verdict(TOO_LARGE, width, height)
            if min(width, height) < min_side:
                return Verdict(TOO_SMALL, width, height)
            picture = _upright(image)
        except Exception as error:  # a broken file makes Pillow raise nearly anything
            return Verdict(_reason(error), width, height)
    pixels = hashlib.sha256(f"{picture.width}x{picture.height} RGB\n".encode() + picture.tobytes())
    return Verdict("", picture.width, picture.height, pixels.hexdigest(), fingerprint(picture))


def in_order(
    work: Callable[[Item], Result], items: Sequence[Item], workers: int, title: str = "pictures"
) -> Iterator[Result]:
    """`work` of each item, in the order of the items, done in threads, with a progress bar on a terminal.

    Threads are enough (Pillow and hashlib release the interpreter's lock) and leave no orphans when the process is
    killed. Only a window of a few items a worker is under way, so memory does not grow with their number.
    """
    pool, ahead = ThreadPoolExecutor(workers), iter(items)
    try:
        window: deque[Future[Result]] = deque(pool.submit(work, item) for item in islice(ahead, 4 * workers))
        with tqdm(total=len(items), desc=title, unit=" pictures", disable=None) as bar:
            while window:
                yield window.popleft().result()
                window.extend(pool.submit(work, item) for item in islice(ahead, 1))
                bar.update()
    finally:
        pool.shutdown(cancel_futures=True)


def _open(file: BinaryIO) -> Image.Image:
    """Read the header. Raises UnidentifiedImageError for what is none of FORMATS."""
    return Image.open(file, formats=FORMATS)


def _reason(error: Exception) -> str:
    """Why Pillow could not read a picture. Raises the error again if it is the machine's fault: disk or memory."""
    of_the_picture = (None, errno.EINVAL)  # Pillow's own OSErrors have no number; EINVAL: an absurd offset in the file
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno not in of_the_picture):
        raise error
    if isinstance(error, UnidentifiedImageError):
        return NOT_AN_IMAGE
    if isinstance(error, EOFError) or "truncated" in str(error).lower():  # only its words tell
        return TRUNCATED
    return NOT_DECODABLE


def _upright(image: Image.Image) -> RGB:
    """Decode an opened picture: 8-bit RGB, turned as its EXIF orientation says."""
    image.load()
    orientation = _orientation(image)
    rgb = _rgb(image)
    return rgb.transpose(UPRIGHT[orientation]) if orientation in UPRIGHT else rgb


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation of a decoded picture; 1, upright, if there is none or it cannot be read."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # metadata that anybody can write, read by several parsers: any error may come
        return 1


def _rgb(image: Image.Image) -> RGB:
    """Any mode as 8-bit RGB: transparency over white, 16-bit grey scaled. Raises ValueError if white is not defined."""
    if image.mode.startswith(("I", "F")):
        image = _eight_bits(image)
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return image if image.mode == "RGB" else image.convert("RGB")  # which would copy it


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit grey as 8-bit grey, rounded (Pillow's own conversion clips at 255)."""
    grey = np.asarray(image).astype(np.int64)
    if image.mode == "F" or grey.min() < 0 or grey.max() > 65535:
        raise ValueError("fractions, or grey values beyond 16 bits: no value is known to be white")
    if (clear := image.info.get("transparency")) is not None:
        grey[grey == clear] = 65535  # the one transparent value of a PNG, over white
    return Image.fromarray(((grey + 128) // 257).astype(np.uint8))
