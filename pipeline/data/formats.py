"""The format of a file by its first bytes: an image that is decoded, one that is not, or a video or sidecar.

The names of formats are for people. data/decoders.py selects the decoder.
"""

import io
import re
from typing import BinaryIO

HEAD = 1024  # the number of first bytes by which a format is known

JPEG_XL, RAW = "JPEG XL", "camera raw"
CONVERT = "convert it to PNG; docs/data.md has a program for each format"

AVIF, HEIC, JPEG_2000 = "AVIF", "HEIC", "JPEG 2000"
# For a HEIC without its decoder, an optional package. A test compares the version with the lock.
INSTALL_HEIC = (
    "install its decoder: pip install pillow-heif==1.8.1 (GPL 2; docs/data.md has the container), or convert it"
)
ISO_IMAGES = {  # brands of ISO 14496-12 containers → the format; the first line that has a brand of the file counts
    AVIF: {b"avif", b"avis"},
    HEIC: {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"},
}

# Images that are not decoded: position, bytes there, format.
UNSUPPORTED = (
    (0, b"\xff\x0a", JPEG_XL),
    (0, b"\0\0\0\x0cJXL \r\n\x87\n", JPEG_XL),
    (128, b"DICM", "DICOM"),
    (0, b"%PDF-", "PDF"),
    (0, b"%!PS", "PostScript"),
    (0, b"8BPS", "Photoshop"),
    (0, b"gimp xcf", "GIMP"),
    (0, b"\0\0\1\0", "Windows icon"),
    (0, b"II\xbc\1", "JPEG XR"),
    (0, b"v/1\1", "OpenEXR"),
    (0, b"#?RADIANCE", "Radiance HDR"),
    (0, b"qoif", "QOI"),
    (0, b"DDS ", "DirectDraw surface"),
    (0, b"SIMPLE  =", "FITS"),
    (344, b"n+1\0", "NIfTI"),
    (0, b"FUJIFILMCCD-RAW", RAW),
    (0, b"IIU\0", RAW),
    (0, b"IIRO", RAW),
    (0, b"IIRS", RAW),
    (0, b"FOVb", RAW),
)
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
SVG = (re.compile(rb"<svg[\s>]|<!DOCTYPE svg"), "SVG")


def decodable_format(head: bytes) -> str:
    """AVIF, HEIC or JPEG 2000, if the file begins so; else empty. Pillow recognizes the other formats."""
    if head.startswith((b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51")):
        return JPEG_2000
    brands = _brands(head)
    return next((name for name, format_brands in ISO_IMAGES.items() if format_brands & brands), "")


def unsupported_format(head: bytes) -> str:
    """The format of an image that is not decoded; empty if it is none of these."""
    if b"crx " in _brands(head):  # CR3
        return RAW
    return _magic_format(head, UNSUPPORTED, _text_format(head, (SVG,)))


def companion_format(head: bytes) -> str:
    """The format of a video or a sidecar, which people have beside photos; empty if it is none of these."""
    return _magic_format(head, (*VIDEOS, *SIDECARS), _text_format(head, SIDECAR_TEXTS))


def remedy(name: str) -> str:
    """What to do with images of a format that is not decoded; empty for another name."""
    if name == HEIC:
        return INSTALL_HEIC
    return CONVERT if name in {SVG[1], *(kind for _, _, kind in UNSUPPORTED)} else ""


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


def _magic_format(head: bytes, table: tuple[tuple[int, bytes, str], ...], otherwise: str) -> str:
    """The format of the first entry of the table that the first bytes match; `otherwise` if none does."""
    return next((kind for position, magic, kind in table if head[position:].startswith(magic)), otherwise)


def _text_format(head: bytes, table: tuple[tuple[re.Pattern[bytes], str], ...]) -> str:
    """The format of a text that begins like XML or JSON; empty if it is none of the table."""
    text = head.removeprefix(b"\xef\xbb\xbf")
    if not text.lstrip().startswith((b"<", b"{")):
        return ""
    return next((kind for pattern, kind in table if pattern.search(text)), "")
