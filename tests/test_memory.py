"""Images that are decoded at the same time share one budget of memory, and few results of threads wait."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pipeline.base import threads
from pipeline.data import decoders, images, memory
from pipeline.data.memory import MemoryBudget
from tests.helpers.datasets import decode, needs_heif, png_with_size
from tests.helpers.refusals import refuses

MARGIN = 12_000_000  # bytes: strips, and what Python takes in between

# Prints, for every (folder, budget, threads), the most memory that inspecting the folder took, and its pixel hashes.
PEAKS = """
import json, sys
import scipy.fftpack  # which the first perceptual hash imports
from pathlib import Path
from pipeline.base import linux, threads
from pipeline.data import images
from pipeline.data.memory import MemoryBudget

def status(field):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(field))

def peak(folder, budget, workers):
    images.BUDGET, before = MemoryBudget(budget), status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    look = lambda path: images.inspect_image(path, 1, 10**8)
    infos = list(threads.ordered_map(look, sorted(Path(folder).iterdir()), workers))
    return status("VmHWM") - before, [info.pixels for info in infos]

linux.keep_freed_memory()
linux.share_freed_memory()
print(json.dumps([peak(*case) for case in json.loads(sys.argv[1])]))
"""


def peaks(*cases: tuple[Path, int, int]) -> list[tuple[int, list[str]]]:
    """For every (folder, budget, threads): the most bytes that inspecting its images took, and their pixel hashes."""
    cases_as_json = json.dumps([(str(folder), budget, threads) for folder, budget, threads in cases])
    done = subprocess.run([sys.executable, "-c", PEAKS, cases_as_json], capture_output=True, text=True, check=True)
    return [(peak, pixels) for peak, pixels in json.loads(done.stdout)]


def test_never_more_is_reserved_than_there_is() -> None:
    """Threads together never hold more than the budget; one that wants more holds all of it alone."""
    budget, guard, sums = MemoryBudget(100), threading.Lock(), [0]
    alone: list[int] = []

    def take(size: int) -> None:
        with budget.reserve(size):
            with guard:
                sums.append(sums[-1] + min(size, 100))
                alone.extend(sums[-1:] if size > 100 else [])
            time.sleep(0.001)
            with guard:
                sums.append(sums[-1] - min(size, 100))

    list(threads.ordered_map(take, [30, 1, 1000, 60, 100, 45, 7] * 10, 8))
    assert max(sums) == 100
    assert set(alone) == {100}


def test_a_thread_that_holds_memory_never_waits_for_more() -> None:
    """`grow` returns at once, so two threads that want everything cannot wait for each other."""
    budget = MemoryBudget(100)
    with budget.reserve(40) as first:
        with budget.reserve(50) as second:
            assert first(50)
            assert not first(51)
            assert second(20)  # it keeps what it has
        assert first(100)
        assert first(1000)  # the whole budget is enough


def test_a_budget_bounds_the_memory_and_changes_no_result(tmp_path: Path) -> None:
    """16 images, 8 threads and a budget for one image: the peak is that of one image, and the results are the same."""
    for number, colour in enumerate(np.random.default_rng(0).integers(0, 256, (16, 3)).tolist()):
        image = Image.new("RGB", (1600, 1250), tuple(colour))
        for folder, size in (("large", (1600, 1250)), ("small", (64, 50))):
            (tmp_path / folder).mkdir(exist_ok=True)
            path = tmp_path / folder / f"{number}.jpg"
            image.resize(size).save(path, quality=50, progressive=True, subsampling=0)
    one, large = 13 * 2_000_000, tmp_path / "large"
    # The small ones come first: so the threads, and what the allocator takes for them, are not counted.
    _, (bounded, first), (free, second) = peaks((tmp_path / "small", one, 8), (large, one, 8), (large, 16 * one, 8))
    assert first == second
    assert len(set(first)) == 16
    assert bounded < one + MARGIN
    assert free > 2 * bounded


@pytest.mark.slow("decodes large images in processes; make test has the budget that bounds them")
@pytest.mark.parametrize("of_heic", [False, pytest.param(True, marks=needs_heif)], ids=["Pillow's", "HEIC"])
def test_no_image_takes_more_than_its_estimate(tmp_path: Path, of_heic: bool) -> None:
    """For every kind of file, the peak of inspecting it is below the estimate from its header."""
    plain, exif = Image.new("RGB", (2000, 1500), "teal"), Image.Exif()
    exif[0x0112] = 6
    grey16 = Image.fromarray(np.full((1500, 2000), 30000, np.uint16))
    kinds: list[tuple[str, Image.Image, dict[str, Any]]] = [
        ("plain.jpg", plain, {}),
        ("progressive.jpg", plain, {"progressive": True, "subsampling": 0, "exif": exif}),
        ("inks.jpg", plain.convert("CMYK"), {"progressive": True, "exif": exif}),
        ("plain.webp", plain, {"exif": exif}),
        ("clear.webp", plain.convert("RGBA"), {"lossless": True, "exif": exif}),
        ("clear.png", plain.convert("RGBA"), {"exif": exif}),
        ("grey.png", grey16, {"transparency": 5, "exif": exif}),
        ("palette.gif", plain.convert("P"), {"transparency": 0}),
        ("strip.tiff", plain.convert("RGBA"), {"compression": "tiff_lzw", "tiffinfo": {278: 1500}}),
        ("grey.pgm", grey16, {}),
        ("clear.avif", plain.convert("RGBA"), {"exif": exif, "subsampling": "4:4:4", "speed": 9}),
        ("clear.jp2", plain.convert("RGBA"), {}),
    ]
    if of_heic:
        decoders._heif()  # Pillow can save HEIC then
        kinds = [
            ("clear.heic", plain.convert("RGBA"), {"exif": exif.tobytes(), "chroma": 444}),
            ("deep.heic", grey16, {}),
        ]
    estimates = []
    for name, picture, options in kinds:
        path = tmp_path / name.replace(".", "_") / name
        path.parent.mkdir()
        picture.save(path, **options)
        with Image.open(path) as image, path.open("rb") as content:
            estimates.append(memory.opening_bytes(content, is_copied=False) + decoders.decoding_bytes(image, 0))
    results = peaks(*((tmp_path / name.replace(".", "_"), 2**31, 1) for name, _, _ in kinds))
    for (name, _, _), most, (peak, _) in zip(kinds, estimates, results, strict=True):
        assert peak < most + MARGIN, name


SLOW_ENCODER = pytest.mark.nightly("x265 takes 20 seconds to write it; make test has AVIF and JPEG 2000")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("clear.jp2", {}),
        ("clear.avif", {"speed": 10, "subsampling": "4:4:4"}),
        pytest.param("clear.heic", {"chroma": 444}, marks=[needs_heif, SLOW_ENCODER]),
    ],
)
def test_the_estimate_does_not_need_the_margin_for_comments(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    """In a process of its own, the peak of a costly image is below the estimate without the 64 MB for comments."""
    if name.endswith(".heic"):
        decoders._heif()
    noise = np.random.default_rng(0).integers(0, 256, (375, 500, 4), np.uint8)
    Image.fromarray(noise).resize((2000, 1500)).save(tmp_path / name, **options)
    with Image.open(tmp_path / name) as image, (tmp_path / name).open("rb") as content:
        estimate = memory.opening_bytes(content, is_copied=False) - memory.HEADER + decoders.decoding_bytes(image, 0)
    assert peaks((tmp_path, 2**31, 1))[0][0] < estimate + MARGIN


def test_the_estimate_of_a_long_image_includes_its_lines(tmp_path: Path) -> None:
    """An image of one pixel width takes far more memory than its pixels."""
    with Image.new("RGB", (1, 100_000)) as image:
        assert decoders.decoding_bytes(image, 0) > 5 * memory.PIXEL * 100_000


# ---- what is not an image or not a file ----


def test_a_file_far_longer_than_its_image_could_be_is_not_read(tmp_path: Path) -> None:
    """A sparse file of 1 GB, or a header with 900 megapixels, is too large for 100 megapixels; it is not decoded."""
    with (tmp_path / "a.webp").open("wb") as file:
        file.write(b"RIFF\xff\xff\xff\x7fWEBPVP8 ")
        file.truncate(10**9)
    assert images.inspect_image(tmp_path / "a.webp", 1, 10**8) == images.ImageInfo("too large")
    with refuses((tmp_path / "a.webp", "value")) as refused:
        decode(tmp_path / "a.webp", 10**8)
    assert "0 × 0" not in str(refused.value)
    (tmp_path / "bomb.png").write_bytes(png_with_size(30_000, 30_000))
    with refuses((tmp_path / "bomb.png", "value")):
        decode(tmp_path / "bomb.png", 10**8)


# ---- threads ----


def test_results_come_in_order_from_any_number_of_threads() -> None:
    """Each item's result once, in order; the first error is passed on."""
    for workers in (1, 2, 5):
        assert list(threads.ordered_map(lambda n: n * n, range(100), workers)) == [n * n for n in range(100)]
    assert list(threads.ordered_map(str, [], 2)) == []
    with pytest.raises(ZeroDivisionError):
        list(threads.ordered_map(lambda n: 1 // (n - 50), range(100), 2))


@pytest.mark.parametrize(("workers", "result_bytes", "most"), [(2, 1, 9), (64, 2**26, 6)])
def test_the_work_waits_for_the_reader(workers: int, result_bytes: int, most: int) -> None:
    """Few results wait, and of large ones no more than fit into 256 MiB, so memory does not grow."""
    begun: list[int] = []
    results = threads.ordered_map(begun.append, range(1000), workers, result_bytes=result_bytes)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert 1 <= len(begun) <= most
