"""Equal images are excluded; near duplicates are those that comparing all pairs gives."""

import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from pipeline.data import appearance, duplicates
from pipeline.data.images import ImageInfo
from pipeline.dataset.split_table import SPLITS
from pipeline.sources.layout import ImageFile
from tests.helpers.datasets import do_split, left_out, near_by_brute_force, noise_image, put, reasons
from tests.helpers.refusals import refuses

# ---- equal pixels ----


@pytest.mark.parametrize(("copies", "rule"), [("pets/cat", "together"), ("all", "ignore")])
def test_a_folder_of_copies_of_another_class_is_named(small: Path, copies: str, rule: str) -> None:
    """Nested or flat. Nine of ten images are enough; of seven, the equal ones are only left out."""
    (small / copies).mkdir(parents=True)
    for seed in range(200, 210):
        put(small / copies / f"{seed}.png", seed)
    for number in range(7):
        shutil.copy(small / f"cat/{number}.png", small / copies)
    assert sum(left_out(do_split(small)[0]).values()) == 14
    for number in (7, 8):
        shutil.copy(small / f"cat/{number}.png", small / copies)
    with refuses(("classes", "value")) as error:
        do_split(small, duplicates=rule)
    assert repr(copies.partition("/")[0]) in error.value.faults[0].value


def test_broken_images_are_no_duplicates_of_one_another() -> None:
    """An image that was not decoded has no pixels to compare: it keeps its own reason."""
    infos = [ImageInfo("truncated", 40, 24), ImageInfo("empty"), ImageInfo("", 40, 24, "ab" * 32)]
    assert duplicates.exact_groups(infos) == []
    image_files = [ImageFile(f"cat/{number}.png", "cat", "") for number in range(3)]
    assert duplicates.exclusions(image_files, infos, "together") == ["truncated", "empty", ""]


def test_a_given_split_keeps_a_duplicate_in_test_first(tmp_path: Path) -> None:
    """Of exact duplicates in different given splits, the one in test is kept, else the one in val."""
    folder = tmp_path / "images"
    for start, name in enumerate(SPLITS):
        for label, first in (("cat", 0), ("dog", 100)):
            put(folder / name / label / "own.png", first + start)
        put(folder / name / "cat/everywhere.png", 50)
    for name in ("train", "val"):
        put(folder / name / "dog/twice.png", 51)
    assert reasons(do_split(folder)[0]) == {
        "train/cat/everywhere.png": "duplicate of test/cat/everywhere.png",
        "val/cat/everywhere.png": "duplicate of test/cat/everywhere.png",
        "train/dog/twice.png": "duplicate of val/dog/twice.png",
    }


# ---- near duplicates ----


def check_near_pairs(hashes: NDArray[np.uint64], threshold: int) -> set[tuple[int, int]]:
    """Fails unless each pair within the threshold is there once, and no other. Returns the pairs."""
    chunks = duplicates.near_pairs(hashes, threshold)
    pairs = [pair for left, right in chunks for pair in zip(left.tolist(), right.tolist(), strict=True)]
    assert sorted(pairs) == sorted(near_by_brute_force(hashes, threshold))
    return set(pairs)


@pytest.mark.parametrize("threshold", [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16])
def test_near_pairs_are_found_for_every_distribution_of_their_bits(threshold: int) -> None:
    """A hash exactly at the threshold is found for each way to distribute its bits over the four bands."""
    distributions = [ways for ways in itertools.product(range(threshold + 1), repeat=4) if sum(ways) == threshold]
    low = [sum((2**bits - 1) << 16 * band for band, bits in enumerate(ways)) for ways in distributions]
    hashes = np.array(sorted({0, *low}), np.uint64)
    pairs = check_near_pairs(hashes, threshold)
    assert threshold == 0 or {(0, row) for row in range(1, len(hashes))} <= pairs


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_near_pairs_are_the_same_in_small_chunks(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of pairs compared at once does not change the result."""
    monkeypatch.setattr(duplicates, "CANDIDATES", size)
    check_near_pairs(np.unique(np.random.default_rng(1).integers(0, 2**12, 200, dtype=np.uint64)), 2)


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 2)), min_size=1, max_size=40), st.integers(0, 3))
def test_components_and_counts_are_those_of_brute_force(images: list[tuple[int, int]], threshold: int) -> None:
    """Pairs, pairs in different splits and components are right, also for equal hashes."""
    hashes = np.array([number * 0x0101 for number, _ in images], np.uint64)
    given_splits = np.array([number for _, number in images], np.int64)
    near = duplicates.near_duplicates(hashes, given_splits, threshold)
    pairs = near_by_brute_force(hashes, threshold)
    assert (type(near.pairs), type(near.pairs_across)) == (int, int)  # JSON knows no numbers of numpy
    across = [given_splits[a] != given_splits[b] for a, b in pairs]
    assert (near.pairs, near.pairs_across) == (len(across), sum(across))
    component = np.arange(len(hashes))
    for _ in hashes:  # a component's smallest number reaches at least one more image per round
        for a, b in pairs:
            component[[a, b]] = component[[a, b]].min()
    same = component[:, None] == component
    assert ((near.component[:, None] == near.component) == same).all()


def test_pairs_of_equal_hashes_are_counted_and_not_listed() -> None:
    """100,000 blank pages are five thousand million pairs and one component."""
    near = duplicates.near_duplicates(np.zeros(100_000, np.uint64), np.zeros(100_000, np.int64), 8)
    assert near.pairs == 100_000 * 99_999 // 2
    assert len(set(near.component.tolist())) == 1


def test_the_perceptual_hash_is_the_sign_of_the_lowest_frequencies() -> None:
    """pHash: 32 × 32 grey, cosine transform, the lowest 8 × 8 against their median, the first bit the highest."""
    grey = np.asarray(noise_image(7, 64).convert("L").resize((32, 32), Image.Resampling.LANCZOS)).astype(float)
    waves = np.cos(np.pi / 64 * np.arange(8)[:, None] * (2 * np.arange(32) + 1))
    lowest = (waves @ grey @ waves.T).ravel()
    bits = "".join("01"[int(high)] for high in lowest > np.median(lowest))
    assert appearance.perceptual_hash(noise_image(7, 64)) == int(bits, 2)


def test_near_duplicates_are_those_within_the_threshold(small: Path) -> None:
    """Two images 6 bits apart are near at 6 and not at 5; the groups and the largest of them are counted."""
    other = Image.blend(noise_image(1, 64), noise_image(2, 64), 0.2)
    other.save(small / "cat/blend.png")
    put(small / "cat/larger.png", 1, side=64)
    assert (appearance.perceptual_hash(other) ^ appearance.perceptual_hash(noise_image(1, 64))).bit_count() == 6
    for bits, largest in ((5, 2), (6, 3)):
        counts = do_split(small, phash_distance=bits)[1]
        assert (counts["near_duplicate_groups"], counts["largest_group"]) == (1, largest)
