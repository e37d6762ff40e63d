"""A picture becomes a square by Pillow's own bits, whatever its shape, and in the memory of a strip."""

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from pipeline import images, squeeze
from tests.conftest import PROJECT

SIDES = st.integers(1, 90)


def pillows(picture: images.RGB, size: int) -> NDArray[np.uint8]:
    return np.asarray(picture.resize((size, size), Image.Resampling.BICUBIC))


def noise(width: int, height: int, seed: int, levels: int = 256) -> images.RGB:
    """A picture of `levels` equally distant values, at random. Of two levels, sums go far below 0 and above 255."""
    values = np.random.default_rng(seed).integers(0, levels, (height, width, 3)) * 255 // (levels - 1)
    return Image.fromarray(values.astype(np.uint8))


@settings(max_examples=1000)
@given(SIDES, SIDES, st.integers(1, 70), st.sampled_from([2, 3, 256]), st.integers(0, 2**32))
def test_it_is_pillows_resize_bit_for_bit(width: int, height: int, size: int, levels: int, seed: int) -> None:
    """Larger, smaller, one side each, or unchanged: uint8 [size, size, 3], every byte Pillow's."""
    picture = noise(width, height, seed, levels)
    square = squeeze.resize(picture, size)
    assert square.dtype == np.uint8
    assert square.shape == (size, size, 3)
    assert np.array_equal(square, pillows(picture, size))


@pytest.mark.parametrize("size", [1, 16, 61])
def test_which_pass_is_first_is_pillows_choice(size: int) -> None:
    """It shows in the rounding; for every shape around the limit the bytes are Pillow's."""
    for height in range(size - 1, 3 * size + 4):
        for width in range(max(1, (height + size) // 2 - 2), (height + size) // 2 + 3):
            picture = noise(width, max(1, height), seed=height, levels=2)
            assert np.array_equal(squeeze.resize(picture, size), pillows(picture, size)), (width, height)


@pytest.mark.parametrize("sides", [(1, 3000), (3000, 1), (squeeze.STRIP + 1, 3), (900, 700), (4000, 9)])
def test_strips_leave_no_seam(sides: tuple[int, int]) -> None:
    """A picture of many strips, or with lines longer than a strip, is resized as a whole."""
    picture = noise(*sides, seed=7)
    for size in (1, 32, 256):
        assert np.array_equal(squeeze.resize(picture, size), pillows(picture, size))


def test_real_photos_are_pillows_too(mini: Path, tmp_path: Path) -> None:
    """Read from their files, too small for a reduced scale, at the sizes of a training and of a toy."""
    path = tmp_path / "photo.jpg"
    with tarfile.open(mini) as archive:
        for member in [m for m in archive.getmembers() if m.name.endswith(".jpg")][::15]:
            content = archive.extractfile(member).read()  # type: ignore[union-attr]
            path.write_bytes(content)
            photo = Image.open(io.BytesIO(content)).convert("RGB")
            for size in (256, 100):
                assert np.array_equal(squeeze.to_square(path, size), pillows(photo, size))


def test_a_large_jpeg_is_squeezed_from_a_smaller_scale(tmp_path: Path) -> None:
    """With sides of eight times the square's and more it is decoded at a half, and looks like the whole."""
    path = tmp_path / "a.jpg"
    photo = noise(12, 9, seed=3).resize((640, 400), Image.Resampling.BICUBIC)
    photo.save(path, quality=95)
    square = squeeze.to_square(path, 50)
    assert np.array_equal(square, pillows(images.decode(path, draft=200), 50))
    whole = pillows(images.decode(path), 50).astype(int)
    assert 0 < abs(square - whole).max() <= 3


# Squeezes a drawn picture of the given sides, and prints by how many bytes that raised the most that was ever in use.
PEAK = """
import resource, sys
from PIL import Image
from pipeline import squeeze
def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for sides in ((400, 300), (300, 1400)):
    squeeze.resize(Image.new("RGB", sides), 64)
picture = Image.new("RGB", (int(sys.argv[1]), int(sys.argv[2])), "red")
before = peak()
squeeze.resize(picture, 64)
print(peak() - before)
"""


@pytest.mark.parametrize("sides", [(8000, 3000), (2000, 12000)], ids=["across first", "down first"])
def test_memory_does_not_grow_with_the_picture(sides: tuple[int, int]) -> None:
    """Twenty-four million pixels, which take 96 MB themselves, are squeezed in a few more, Pillow's memory included."""
    command = [sys.executable, "-c", PEAK, *map(str, sides)]
    found = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    assert int(found.stdout) < 12e6
