"""Opens image files with the decoder of their format, or gives the reason why a file cannot be used. Decodes no pixels.

HEIC is opened by libheif (pillow-heif, an optional package), all other formats by Pillow.
"""

import errno
import re
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import BinaryIO

from PIL import AvifImagePlugin, Image, JpegImagePlugin, PngImagePlugin, TiffImagePlugin, UnidentifiedImageError

from pipeline.base.errors import Fault, UserError
from pipeline.data import formats, memory
from pipeline.sources.layout import looks_like_image

# Pillow decodes these itself. For others, such as EPS, it would start a program of the machine.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "AVIF", "JPEG2000")
NAMES = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", formats.AVIF, formats.JPEG_2000, formats.HEIC)

EMPTY = "empty"
UNKNOWN = "unknown format"  # maybe followed by the ending of the name
UNSUPPORTED = "unsupported format"  # followed by its name
COMPANION = "video or sidecar"  # followed by its name; it is no image, so none is lost
NO_HEIF = f"{UNSUPPORTED}: {formats.HEIC}"  # where its decoder is not installed
TRUNCATED = "truncated"
TOO_LARGE = "too large"
TOO_SMALL = "too small"
NOT_DECODABLE = "not decodable"
REASONS = (EMPTY, UNKNOWN, UNSUPPORTED, COMPANION, TRUNCATED, TOO_LARGE, TOO_SMALL, NOT_DECODABLE)
PLAIN_ENDING = re.compile(r"\.[A-Za-z0-9]{1,8}")

DNG_VERSION, NEW_SUBFILE_TYPE = 0xC612, 0xFE  # tags of TIFF; a type of 1 is a preview of another image in the file
# Pillow reads this kind of pixels, grey of 16 bits with white = 0, only with the lowest byte first.
TiffImagePlugin.OPEN_INFO[TiffImagePlugin.MM, 0, (1,), 1, (16,), ()] = ("I;16B", "I;16B")

# No limit of Pillow's own: the size in the header is compared with the user's limit before anything is decoded.
Image.MAX_IMAGE_PIXELS = None
# A long comment is no reason to exclude a PNG. Unpacked and as text it takes up to 15 times this size.
PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY = 2**22
AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # images are decoded side by side
warnings.filterwarnings("ignore", module="PIL")  # about odd metadata


class Unusable(Exception):
    """A file that cannot be used as an image: one of REASONS, maybe with a name, and the size in its header."""

    def __init__(self, reason: str, size: tuple[int, int] = (0, 0)) -> None:
        self.reason, self.size = reason, size


def open_image(content: BinaryIO, min_side: int, max_pixels: int) -> Image.Image:
    """The opened image, not decoded. Raises Unusable for what its header says."""
    head = _head(content)
    decoder = _heif() if formats.decodable_format(head) == formats.HEIC else FORMATS
    with errors_as_unusable(content):
        image = Image.open(content, formats=decoder)
    if _is_raw(image, head):
        raise Unusable(f"{UNSUPPORTED}: {formats.RAW}")
    if image.width * image.height > max_pixels:
        raise Unusable(TOO_LARGE, image.size)
    if min(image.size) < min_side:
        raise Unusable(TOO_SMALL, image.size)
    return image


def _head(content: BinaryIO) -> bytes:
    """The first bytes, by which a format is known. The file is at its start then."""
    content.seek(0)
    head = content.read(formats.HEAD)
    content.seek(0)
    return head


@cache
def _heif() -> tuple[str, ...]:
    """Pillow's names of HEIC. Its decoder is loaded with the first such file, because that takes 25 ms.

    Raises Unusable if the decoder is not installed.
    """
    try:
        import pillow_heif
    except ModuleNotFoundError:
        raise Unusable(NO_HEIF) from None
    pillow_heif.register_heif_opener(decode_threads=1, thumbnails=False, depth_images=False, aux_images=False)
    return ("HEIF",)


def _is_raw(image: Image.Image, head: bytes) -> bool:
    """Whether the image is only the preview in a camera's raw file, which is a TIFF with more inside."""
    if not isinstance(image, TiffImagePlugin.TiffImageFile):
        return False
    if head[8:10] == b"CR":  # CR2
        return True
    try:
        tags = image.tag_v2
        is_preview = tags.get(NEW_SUBFILE_TYPE) == 1 and TiffImagePlugin.SUBIFD in tags  # NEF, ARW, PEF
        return DNG_VERSION in tags or is_preview
    except Exception:  # broken tags; any error is possible
        return False


def has_more(image: Image.Image) -> bool:
    """Whether a decoded image is the first of several, such as pages or frames. Previews in a JPEG do not count."""
    try:
        return bool(getattr(image, "is_animated", False)) and not isinstance(image, JpegImagePlugin.JpegImageFile)
    except Exception:  # Pillow reads the second frame, which may be broken
        return False


def is_white_zero(image: Image.Image) -> bool:
    """Whether an opened image is a TIFF whose tag says that white is 0. Pillow inverts those of up to 8 bits itself."""
    photometric = TiffImagePlugin.PHOTOMETRIC_INTERPRETATION
    return isinstance(image, TiffImagePlugin.TiffImageFile) and image.tag_v2.get(photometric) == 0


def decoding_bytes(image: Image.Image, draft: int) -> int:
    """The most bytes that decoding takes. Sets the reduced scale of a JPEG, if there is a draft."""
    full_size = image.size
    if not isinstance(image, JpegImagePlugin.JpegImageFile):
        return memory.decoding_bytes(image.format or "", full_size, full_size)
    if draft:
        image.draft(None, (draft, draft))
    return memory.decoding_bytes("JPEG", full_size, image.size)


# ---- why a file cannot be used ----


@contextmanager
def errors_as_unusable(content: BinaryIO, size: tuple[int, int] = (0, 0)) -> Iterator[None]:
    """A block in which any error is raised as Unusable: for a broken file a decoder raises nearly any error."""
    try:
        yield
    except Unusable:
        raise
    except Exception as error:
        raise Unusable(_reason(error, content), size) from None


def _reason(error: Exception, content: BinaryIO) -> str:
    """Why an image could not be read. Raises the error again if the disk or the memory is at fault."""
    image_errnos = (None, errno.EINVAL)  # Pillow's own OSErrors have no number; EINVAL: a wrong position in the file
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno not in image_errnos):
        raise error
    head = _head(content)
    # KeyError: of a TIFF with a compression that Pillow does not know
    if head.startswith(formats.TIFF) and isinstance(error, UnidentifiedImageError | KeyError):
        return f"{UNSUPPORTED}: {formats.RARE_TIFF}"
    if isinstance(error, UnidentifiedImageError):
        unknown = f"{UNSUPPORTED}: {formats.RAW}" if formats.is_cr3(head) else UNKNOWN
        return NOT_DECODABLE if formats.decodable_format(head) else unknown
    if isinstance(error, EOFError) or "truncated" in str(error).lower():  # Pillow has no class for it
        return TRUNCATED
    return NOT_DECODABLE


def kind(reason: str) -> str:
    """The entry of REASONS, without the name of the format or the ending."""
    return reason.partition(": ")[0]


def reason_of(path: Path, error: Unusable) -> str:
    """The reason; with the ending of the file's name, if it is a plain one, where that alone says what the file is."""
    if error.reason in (UNKNOWN, TOO_LARGE) and (companion := formats.COMPANIONS.get(path.suffix.lower())):
        return f"{COMPANION}: {companion}"
    is_named = error.reason == UNKNOWN and PLAIN_ENDING.fullmatch(path.suffix)
    return f"{UNKNOWN}: {path.suffix.lower()}" if is_named else error.reason


class Refused(UserError):
    """A file that cannot be used as an image."""


class NotDecoded(Refused):
    """A file that is no whole image of a format that is read."""

    def __init__(self, path: Path, reason: str) -> None:
        name = reason.removeprefix(f"{UNSUPPORTED}: ")
        allowed = f"a whole image as {', '.join(other for other in NAMES if other != name)}"
        remedy = f"{formats.remedy(name) or 'convert it'}, or leave it out"
        super().__init__(Fault(str(path), reason, "damaged", allowed=allowed, remedy=remedy))
        # Neither its name nor its content is that of an image: no image is lost without it.
        self.is_other = kind(reason) in (UNKNOWN, COMPANION) and not looks_like_image(path.name)


def refusal(path: Path, error: Unusable, max_pixels: int, min_side: int) -> Refused:
    """The UserError for an unusable file, with what is allowed and the remedy."""
    reason = reason_of(path, error)
    if reason == TOO_SMALL:
        size, allowed = f"{error.size[0]} × {error.size[1]} pixels", f"sides of {min_side:,} pixels or more"
        remedy = "give the original; to get an answer all the same: predict --min-side 1"
        return Refused(Fault(str(path), "too small", "value", size, f"{allowed} (split.min_side)", remedy))
    if reason == TOO_LARGE:
        pixels = f"{error.size[0]} × {error.size[1]} pixels, " if any(error.size) else ""  # else its header is not read
        size = f"{pixels}{path.stat().st_size:,} bytes"
        allowed = (
            f"up to {max_pixels:,} pixels (split.max_pixels, or predict --max-pixels) in "
            f"{memory.largest_file(max_pixels):,} bytes"
        )
        return Refused(Fault(str(path), "too large", "value", size, allowed, "make it smaller"))
    return NotDecoded(path, reason)


def file_size(path: Path) -> int:
    """The number of bytes of a file. Raises UserError if it is no file: reading a pipe may never end."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        remedy = "remove it, or put the image there"
        raise UserError(Fault(str(path), "not a file", "value", allowed="a file", remedy=remedy))
    return status.st_size
