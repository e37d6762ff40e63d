"""Images of every kind become upright 8-bit RGB; for any other file there is a reason."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin

from pipeline.data import appearance, images
from tests.helpers.datasets import decode, png_with_size

# pytest makes warnings errors again; the module itself ignores Pillow's warnings about odd metadata
pytestmark = pytest.mark.filterwarnings("ignore")

WIDTH, HEIGHT = 60, 40


def scene() -> Image.Image:
    """A smooth image that no turn leaves the same: red grows to the right, green downwards, blue is in one corner."""
    x, y = np.meshgrid(np.linspace(0, 1, WIDTH), np.linspace(0, 1, HEIGHT))
    return Image.fromarray(np.round(255 * np.stack([x, y, (1 - x) * (1 - y)], axis=-1)).astype(np.uint8))


def pixels(image: Image.Image) -> NDArray[np.int64]:
    return np.asarray(image).astype(np.int64)


def inspect_image(path: Path, min_side: int = 8, max_pixels: int = 10**6) -> images.ImageInfo:
    return images.inspect_image(path, min_side, max_pixels)


def save(path: Path, image: Image.Image, **options: Any) -> Path:
    image.save(path, **options)
    return path


def test_alpha_lies_over_white(tmp_path: Path) -> None:
    """A transparent pixel becomes white, a half transparent one half white, also in a palette and as one colour."""
    rgba = Image.new("RGBA", (16, 16), (0, 0, 200, 0))
    rgba.paste((0, 0, 200, 128), (0, 0, 16, 8))
    half = pixels(decode(save(tmp_path / "a.png", rgba)))
    assert half[[0, -1], 0].tolist() == [[127, 127, 227], [255, 255, 255]]
    palette, colour = Image.new("P", (16, 16), 1), Image.new("RGB", (16, 16), (1, 2, 3))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    for image, name, transparent in ((palette, "p.png", 1), (palette, "p.gif", 1), (colour, "c.png", (1, 2, 3))):
        assert pixels(decode(save(tmp_path / name, image, transparency=transparent)))[0, 0].tolist() == [255] * 3


ODD_EXIF = (  # the last has an orientation that is text
    b"MM\0*\0\0\0\x08\xff\xff\xff\xff", b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0", b"rubbish", b"",
    b"II*\0\x08\0\0\0\x01\0\x12\x01\x02\0\x04\0\0\0abc\0\0\0\0\0",
)  # fmt: skip


@pytest.mark.parametrize("exif", [b"Exif\0\0" + content for content in ODD_EXIF])
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
def test_odd_metadata_is_no_reason_to_exclude(tmp_path: Path, exif: bytes, suffix: str) -> None:
    """An image with broken EXIF data, or a PNG with a comment of 3 MB, as generators write it, is decoded as it is."""
    text = PngImagePlugin.PngInfo()
    text.add_text("comment", "x" * 3_000_000, zip=True)
    path = save(tmp_path / f"a.{suffix}", scene(), exif=exif, **({"pnginfo": text} if suffix == "png" else {}))
    assert inspect_image(path).reason == ""
    assert decode(path).size == (WIDTH, HEIGHT)


def test_a_good_image_has_size_hash_and_fingerprint(tmp_path: Path) -> None:
    """The hash of the pixels does not depend on the format, but on their values and on the sides of the image."""
    png, bmp = (inspect_image(save(tmp_path / f"a.{suffix}", scene())) for suffix in ("png", "bmp"))
    phash = appearance.perceptual_hash(scene().convert("L"))
    assert (png.reason, png.width, png.height, png.phash) == ("", WIDTH, HEIGHT, phash)
    assert png == bmp
    upside_down = inspect_image(save(tmp_path / "b.png", scene().rotate(180)))
    assert upside_down.pixels != png.pixels
    wide, tall = (
        inspect_image(save(tmp_path / f"{w}.png", Image.new("RGB", (w, h), "red"))) for w, h in ((20, 10), (10, 20))
    )
    assert wide.pixels != tall.pixels


def test_a_size_beyond_the_limits_is_read_from_the_header(tmp_path: Path) -> None:
    """Too large and too small images are not decoded, nor is a whole PNG with broken pixels; it has their size."""
    (tmp_path / "bomb.png").write_bytes(png_with_size(60_000, 60_000))
    assert inspect_image(tmp_path / "bomb.png") == images.ImageInfo("too large", 60_000, 60_000)
    (tmp_path / "a.png").write_bytes(png_with_size(64, 64, b"nothing that zlib knows"))
    assert inspect_image(tmp_path / "a.png") == images.ImageInfo("not decodable", 64, 64)
    path = save(tmp_path / "a.png", scene())
    assert inspect_image(path, min_side=HEIGHT + 1) == images.ImageInfo("too small", WIDTH, HEIGHT)
    assert inspect_image(path, max_pixels=WIDTH * HEIGHT - 1) == images.ImageInfo("too large", WIDTH, HEIGHT)
    assert inspect_image(path, min_side=HEIGHT, max_pixels=WIDTH * HEIGHT).reason == ""


@pytest.mark.parametrize("read", [inspect_image, decode])
def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, read: Callable[[Path], object]) -> None:
    """A fault of the disk is raised, and is no reason to exclude the image."""
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "absent.jpg")
