"""The format of a file by its first bytes, where it changes what happens: a decoder, a camera's raw file, no image.

data/decoders.py selects the decoder. A file of another format is left out under the ending of its name.
"""

import io
import re
from typing import BinaryIO

HEAD = 1024  # the number of first bytes by which a format is known

RAW = "camera raw"
CONVERT = "convert it to PNG or TIFF with the program of the camera, darktable or RawTherapee"
RARE_TIFF = "TIFF of a rare kind"  # a whole one, such as with 32 bits per colour, or five channels
CONVERT_TIFF = "convert it to 8 bits per channel, or to grey of 16 bits (ImageMagick: magick photo.tif photo.png)"
TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # also BigTIFF

AVIF, HEIC, JPEG_2000 = "AVIF", "HEIC", "JPEG 2000"
# For a HEIC without its decoder, an optional package. A test compares the version with the lock.
INSTALL_HEIC = (
    "install its decoder: pip install pillow-heif==1.8.1 (GPL 2; docs/data.md has the container), or convert it"
)
ISO_IMAGES = {  # brands of ISO 14496-12 containers → the format; the first line that has a brand of the file counts
    AVIF: {b"avif", b"avis"},
    HEIC: {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"},
}

VIDEO = "video"
VIDEOS = (
    *((4, atom, VIDEO) for atom in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")),  # MP4, QuickTime
    (8, b"AVI LIST", VIDEO),
    (0, b"\x1aE\xdf\xa3", VIDEO),  # Matroska, WebM
    (0, b"\0\0\1\xba", VIDEO),  # MPEG
    (0, b"\0\0\1\xb3", VIDEO),
)
SIDECARS = (  # phones and photo programs write them beside a photo
    (0, b"bplist00", "property list (AAE)"),
    (0, b"<x:xmpmeta", "XMP"),
    (0, b"<?xpacket", "XMP"),
)
SIDECAR_TEXTS = (  # in text that may begin with a declaration
    (re.compile(rb"<!DOCTYPE plist|<plist[ >]"), "property list (AAE)"),
    (re.compile(rb'^\s*\{\s*"'), "JSON"),
)


def decodable_format(head: bytes) -> str:
    """AVIF, HEIC or JPEG 2000, if the file begins so; else empty. Pillow recognizes the other formats."""
    if head.startswith((b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51")):
        return JPEG_2000
    brands = _brands(head)
    return next((name for name, format_brands in ISO_IMAGES.items() if format_brands & brands), "")


def is_cr3(head: bytes) -> bool:
    """Whether it is a raw file of Canon (CR3). Its container is that of videos."""
    return b"crx " in _brands(head)


def companion_format(head: bytes) -> str:
    """The format of a video or a sidecar, which people have beside photos; empty if it is none of these."""
    listed = (kind for position, magic, kind in (*VIDEOS, *SIDECARS) if head[position:].startswith(magic))
    return next(listed, "") or _sidecar_text(head)


def remedy(name: str) -> str:
    """What to do with images of a format that is not decoded; empty for another name."""
    return {HEIC: INSTALL_HEIC, RAW: CONVERT, RARE_TIFF: CONVERT_TIFF}.get(name, "")


def is_cut(content: BinaryIO) -> bool:
    """Whether a container of boxes (AVIF, HEIC, JPEG 2000: length, name, content) ends before its last box does."""
    end, position = content.seek(0, io.SEEK_END), 0
    while position < end:
        content.seek(position)
        header = content.read(16)
        length = int.from_bytes(header[:4])
        if length == 0:  # up to the end of the file
            return False
        if length == 1:  # the length is in the next 8 bytes
            length = int.from_bytes(header[8:])
        if len(header) < 8 or length < 8:
            return True
        position += length
    return position > end


def _brands(head: bytes) -> set[bytes]:
    """The brands of an ISO 14496-12 container: the major brand and the compatible ones; empty for another file."""
    if head[4:8] != b"ftyp":
        return set()
    box = head[8 : int.from_bytes(head[:4])]
    return {box[:4], *(box[start : start + 4] for start in range(8, len(box), 4))}


def _sidecar_text(head: bytes) -> str:
    """The format of a sidecar that begins like XML or JSON; empty if it is none."""
    text = head.removeprefix(b"\xef\xbb\xbf")
    if not text.lstrip().startswith((b"<", b"{")):
        return ""
    return next((kind for pattern, kind in SIDECAR_TEXTS if pattern.search(text)), "")
