"""The format of a file, where it changes what happens: by its first bytes a decoder, or by its ending no image.

data/decoders.py selects the decoder. A file of another format is left out under the ending of its name.
"""

HEAD = 256  # the number of first bytes by which a format is known

RAW = "camera raw"
CONVERT = "convert it to PNG or TIFF with the program of the camera, darktable or RawTherapee"
RARE_TIFF = "TIFF of a rare kind, or damaged"  # such as with 32 bits per colour, five channels, or a sensor's pixels
CONVERT_TIFF = (
    "convert it to 8 bits per channel, or to grey of 16 bits (ImageMagick: magick photo.tif photo.png; raw files: "
    "darktable)"
)
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

COMPANIONS = {  # the endings of files that people have beside photos → what they are
    **dict.fromkeys((".mov", ".mp4", ".m4v", ".3gp", ".avi", ".mkv", ".webm", ".mpg", ".mpeg"), "video"),
    ".aae": "property list (AAE)", ".xmp": "XMP", ".json": "JSON",
}  # fmt: skip


def decodable_format(head: bytes) -> str:
    """AVIF, HEIC or JPEG 2000, if the file begins so; else empty. Pillow recognizes the other formats."""
    if head.startswith((b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51")):
        return JPEG_2000
    brands = _brands(head)
    return next((name for name, format_brands in ISO_IMAGES.items() if format_brands & brands), "")


def is_cr3(head: bytes) -> bool:
    """Whether it is a raw file of Canon (CR3). Its container is that of videos."""
    return b"crx " in _brands(head)


def remedy(name: str) -> str:
    """What to do with images of a format that is not decoded; empty for another name."""
    return {HEIC: INSTALL_HEIC, RAW: CONVERT, RARE_TIFF: CONVERT_TIFF}.get(name, "")


def _brands(head: bytes) -> set[bytes]:
    """The brands of an ISO 14496-12 container: the major brand and the compatible ones; empty for another file."""
    if head[4:8] != b"ftyp":
        return set()
    box = head[8 : int.from_bytes(head[:4])]
    return {box[:4], *(box[start : start + 4] for start in range(8, len(box), 4))}
