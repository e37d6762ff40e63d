"""Every file is judged once, duplicates stay on one side, and an image's part depends on itself alone."""

import hashlib
import itertools
import json
import shutil
import tarfile
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from pipeline import split
from pipeline.base import files, threads
from pipeline.base.errors import UserError
from pipeline.config import params
from pipeline.data.images import ImageInfo
from tests.conftest import change, on_cpu

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # pytest undoes the module's own filter

RULE = split.Rule(seed=0, val=0.1, test=0.1, folds=10, fold=0)
SETTINGS: dict[str, Any] = {
    "near_bits": 8,
    "min_side": 16,
    "max_pixels": 10**7,
    "max_unreadable": 20,
    "workers": 2,
}
Rows = list[split.Row]
Counts = dict[str, Any]


@pytest.fixture(scope="module")
def photos(mini: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The mini set, unpacked."""
    folder = tmp_path_factory.mktemp("mini")
    with tarfile.open(mini) as archive:
        archive.extractall(folder, filter="data")
    return folder / "flower_photos"


@pytest.fixture(scope="module")
def mini_split(photos: Path) -> tuple[Rows, Counts]:
    return do(photos)


def do(folder: Path, rule: split.Rule = RULE, **changes: Any) -> tuple[Rows, Counts]:
    return split.split(folder, rule, **(SETTINGS | changes))


def noise_image(seed: int, side: int = 24) -> Image.Image:
    """Coarse noise: images of two seeds are no near duplicates."""
    noise = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
    return Image.fromarray(noise).resize((side, side), Image.Resampling.NEAREST)


def put(path: Path, seed: int, side: int = 24) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise_image(seed, side).save(path, "PNG")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Two classes of ten images."""
    folder = tmp_path / "images"
    for label, first in (("cat", 0), ("dog", 100)):
        for seed in range(first, first + 10):
            put(folder / label / f"{seed}.png", seed)
    return folder


def parts(rows: Rows) -> dict[str, str]:
    return {row.image_file.path: row.part for row in rows}


def reasons(rows: Rows) -> dict[str, str]:
    return {row.image_file.path: row.reason for row in rows if row.reason}


# ---- real photos ----


def test_the_mini_set_has_three_exact_pairs_and_one_conflict(mini_split: tuple[Rows, Counts]) -> None:
    """Two pairs keep their first image, the pair in roses and tulips keeps none."""
    rows, counts = mini_split
    assert (counts["images"], counts["kept"]) == (735, 731)
    assert (counts["exact_duplicate_pairs"], counts["conflicts"]) == (3, 1)
    assert {reason: n for reason, n in counts["excluded"].items() if n} == {"duplicate": 2, "conflicting labels": 2}
    conflicting = [path for path, reason in reasons(rows).items() if reason == "conflicting labels"]
    assert conflicting == ["roses/15922772266_1167a06620.jpg", "tulips/15922772266_1167a06620.jpg"]


def test_no_two_near_photos_lie_on_different_sides(mini_split: tuple[Rows, Counts]) -> None:
    """Brute force over all pairs finds as many within the threshold as were counted, all in one part and group."""
    rows, counts = mini_split
    kept = [row for row in rows if row.part]
    hashes = np.array([row.info.phash for row in kept], np.uint64)
    pairs = near_by_brute_force(hashes, 8)
    assert len(pairs) == counts["near_duplicate_pairs"] > 0
    assert all((kept[a].part, kept[a].group) == (kept[b].part, kept[b].group) for a, b in pairs)


def test_the_counts_add_up(mini_split: tuple[Rows, Counts]) -> None:
    """data.json counts each image once: by class and part, by part, and by reason."""
    rows, counts = mini_split
    assert sum(sum(parts.values()) for parts in counts["classes"].values()) == counts["images"]
    assert sum(counts["splits"].values()) == counts["kept"]
    assert sum(counts["excluded"].values()) == counts["images"] - counts["kept"]
    assert counts["splits"] == {part: sum(row.part == part for row in rows) for part in ("train", "val", "test")}


def test_a_photo_added_moves_no_other(photos: Path, mini_split: tuple[Rows, Counts], tmp_path: Path) -> None:
    """Each real photo keeps its part when one is added and another, corrupt, too."""
    folder = tmp_path / "images"
    shutil.copytree(photos, folder)
    put(folder / "daisy/0 new.png", 7, side=200)
    (folder / "daisy/corrupt.jpg").write_bytes((folder / "daisy/10140303196_b88d3d6cec.jpg").read_bytes()[:9000])
    rows, counts = do(folder)
    after, before = parts(rows), parts(mini_split[0])
    assert {path: after[path] for path in before} == before
    assert after["daisy/0 new.png"] in split.SPLITS
    assert counts["excluded"]["truncated"] == 1


def test_ten_folds_test_every_photo_once(mini_split: tuple[Rows, Counts]) -> None:
    """Over the ten folds each group is in the test part exactly once, and no photo is moved to fill a part."""
    groups = {row.group: split.Group(row.group, {row.image_file.label: 1}) for row in mini_split[0] if row.part}
    tested: Counter[str] = Counter()
    for fold in range(10):
        rule = split.Rule(seed=3, val=0.1, test=0.1, folds=10, fold=fold)
        found, moved = split.assign(list(groups.values()), rule)
        assert moved == 0
        tested.update(key for key, part in found.items() if part == "test")
    assert tested == Counter(dict.fromkeys(groups, 1))


def test_the_number_of_workers_changes_nothing(small: Path) -> None:
    """One thread and five give the same rows."""
    assert do(small, workers=1) == do(small, workers=5)


# ---- near duplicates ----


def near_by_brute_force(hashes: NDArray[np.uint64], threshold: int) -> set[tuple[int, int]]:
    left, right = np.triu_indices(len(hashes), 1)
    near = np.bitwise_count(hashes[left] ^ hashes[right]) <= threshold
    return set(zip(left[near].tolist(), right[near].tolist(), strict=True))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sets(st.integers(0, 63), max_size=10)), min_size=1, max_size=60),
    st.integers(0, 16),
)
def test_near_pairs_are_those_of_brute_force(flips: list[tuple[int, set[int]]], threshold: int) -> None:
    """Multi-index hashing finds each pair of different hashes within the threshold once, and no other."""
    centres = np.random.default_rng(0).integers(0, 2**64, 4, dtype=np.uint64)
    hashes = np.array(sorted({int(centres[c]) ^ sum(1 << bit for bit in bits) for c, bits in flips}), np.uint64)
    found = [
        pair
        for left, right in split.near_pairs(hashes, threshold)
        for pair in zip(left.tolist(), right.tolist(), strict=True)
    ]
    assert len(found) == len(set(found))
    assert set(found) == near_by_brute_force(hashes, threshold)


@pytest.mark.parametrize("threshold", range(17))
def test_near_pairs_are_found_however_their_bits_are_spread(threshold: int) -> None:
    """A hash exactly at the threshold is found for each way to spread its bits over the four bands."""
    spread = [ways for ways in itertools.product(range(threshold + 1), repeat=4) if sum(ways) == threshold]
    low = [sum((2**bits - 1) << 16 * band for band, bits in enumerate(ways)) for ways in spread]
    hashes = np.array(sorted({0, *low}), np.uint64)
    pairs = [pair for left, right in split.near_pairs(hashes, threshold) for pair in zip(left, right, strict=True)]
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == near_by_brute_force(hashes, threshold)
    assert threshold == 0 or {(0, row) for row in range(1, len(hashes))} <= set(pairs)


def test_near_pairs_are_the_same_in_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many candidates are looked at in one go decides nothing."""
    draw = np.random.default_rng(1)
    hashes = np.unique(draw.integers(0, 2**12, 500, dtype=np.uint64))
    for size in (1, 7, 1000):
        monkeypatch.setattr(split, "CANDIDATES", size)
        found = [
            pair for chunk in split.near_pairs(hashes, 2) for pair in zip(*map(np.ndarray.tolist, chunk), strict=True)
        ]
        assert sorted(found) == sorted(near_by_brute_force(hashes, 2))


@given(st.lists(st.tuples(st.integers(0, 255), st.integers(0, 2)), min_size=1, max_size=40), st.integers(0, 3))
def test_components_and_counts_are_those_of_brute_force(drawn: list[tuple[int, int]], threshold: int) -> None:
    """Pairs, pairs across parts and connected components are right also where hashes are equal."""
    hashes = np.array([number * 0x0101 for number, _ in drawn], np.uint64)
    given_parts = np.array([part for _, part in drawn], np.int64)
    near = split.near_duplicates(hashes, given_parts, threshold)
    pairs = near_by_brute_force(hashes, threshold)
    assert near.pairs == len(pairs)
    assert near.pairs_across == sum(given_parts[a] != given_parts[b] for a, b in pairs)
    component = np.arange(len(hashes))
    for _ in hashes:  # labels spread along the pairs, at most one step a round
        for a, b in pairs:
            component[[a, b]] = component[[a, b]].min()
    same = component[:, None] == component
    assert ((near.component[:, None] == near.component) == same).all()


def test_many_equal_hashes_are_counted_and_not_enumerated() -> None:
    """100,000 blank pages are five thousand million pairs and one component."""
    near = split.near_duplicates(np.zeros(100_000, np.uint64), np.zeros(100_000, np.int64), 8)
    assert near.pairs == 100_000 * 99_999 // 2
    assert len(set(near.component.tolist())) == 1


def test_the_perceptual_hash_is_the_sign_of_the_lowest_frequencies() -> None:
    """pHash: 32 × 32 grey, cosine transform, the lowest 8 × 8 against their median, the first bit the highest."""
    grey = np.asarray(noise_image(7, 64).convert("L").resize((32, 32), Image.Resampling.LANCZOS)).astype(float)
    waves = np.cos(np.pi / 64 * np.arange(8)[:, None] * (2 * np.arange(32) + 1))
    lowest = (waves @ grey @ waves.T).ravel()
    bits = "".join("01"[int(high)] for high in lowest > np.median(lowest))
    assert split.perceptual_hash(noise_image(7, 64)) == int(bits, 2)


def test_the_threshold_of_near_duplicates_is_what_is_asked_for(small: Path) -> None:
    """Two images 6 bits apart are near at 6 and not at 5; the groups and the largest of them are counted."""
    other = Image.blend(noise_image(1, 64), noise_image(2, 64), 0.2)
    other.save(small / "cat/blend.png")
    put(small / "cat/larger.png", 1, side=64)
    assert (split.perceptual_hash(other) ^ split.perceptual_hash(noise_image(1, 64))).bit_count() == 6
    for seed in (100, 101):
        put(small / f"dog/larger {seed}.png", seed, side=48)
    names = ("near_duplicate_pairs", "near_duplicate_groups", "largest_group")
    counts = {bits: do(small, near_bits=bits)[1] for bits in (5, 6)}
    pairs = {bits: counts[bits]["near_duplicate_pairs"] for bits in (5, 6)}
    assert pairs[6] > pairs[5] >= 3
    assert [counts[5][name] for name in names[1:]] == [3, 2]
    assert [counts[6][name] for name in names[1:]] == [3, 3]


def test_what_is_moved_to_fill_is_counted(small: Path) -> None:
    """moved_to_fill is the number of images that lie in another part than the hash of their group says."""
    shutil.rmtree(small / "dog")
    for seed in range(3):
        put(small / f"dog/{seed}.png", 100 + seed)
    rows, counts = do(small)
    spans = split.intervals(RULE)
    moved = [
        row for row in rows if not spans[row.part][0] <= split.position(row.info.pixels, RULE) < spans[row.part][1]
    ]
    assert counts["moved_to_fill"] == len(moved) > 0


# ---- which part ----

keys = st.text("0123456789abcdef", min_size=8, max_size=8)
rules = st.builds(split.Rule, st.integers(0, 99), st.just(0.1), st.just(0.1), st.just(10), st.integers(0, 9))


@given(st.sets(keys, min_size=120, max_size=150), st.sets(keys, max_size=20), rules)
def test_groups_added_move_no_other(before: set[str], added: set[str], rule: split.Rule) -> None:
    """A group's part does not depend on the other groups, as long as no part is empty."""
    few, moved_few = split.assign([split.Group(key, {"a": 1}) for key in sorted(before)], rule)
    many, moved_many = split.assign([split.Group(key, {"a": 1}) for key in sorted(before | added)], rule)
    if moved_few == moved_many == 0:
        assert {key: many[key] for key in few} == few
    else:
        assert sum(many[key] != few[key] for key in few) <= moved_few + moved_many


@given(keys, st.integers(0, 99), st.integers(1, 60))
def test_every_position_is_tested_once_over_all_folds(key: str, seed: int, folds: int) -> None:
    """For any number of folds a group lies in the test interval of exactly one, and in one interval of each."""
    tested = 0
    for fold in range(folds):
        share = 1 / folds if folds > 1 else 0.3
        rule = split.Rule(seed, (1 - share) / 2, share, folds, fold)
        where = split.position(key, rule)
        inside = [part for part, (start, end) in split.intervals(rule).items() if start <= where < end]
        assert len(inside) == 1
        tested += inside == ["test"]
    assert tested == 1 or folds == 1


def test_the_fractions_hold_on_average() -> None:
    """Of 20,000 groups the parts get 0.7, 0.1 and 0.2, within four standard deviations."""
    rule = split.Rule(seed=1, val=0.1, test=0.2, folds=1, fold=0)
    found, _ = split.assign([split.Group(str(n), {"a": 1}) for n in range(20_000)], rule)
    counts = Counter(found.values())
    for part, share in (("train", 0.7), ("val", 0.1), ("test", 0.2)):
        assert abs(counts[part] / 20_000 - share) < 4 * (share * (1 - share) / 20_000) ** 0.5


def test_the_seed_deals_anew() -> None:
    """Another seed gives another split."""
    groups = [split.Group(str(n), {"a": 1}) for n in range(200)]
    first, second = (split.assign(groups, split.Rule(seed, 0.1, 0.1, 10, 0))[0] for seed in (0, 1))
    assert first != second


@given(
    st.lists(st.tuples(keys, st.integers(1, 4)), min_size=3, max_size=8, unique_by=lambda drawn: drawn[0]),
    rules,
)
def test_a_tiny_class_fills_every_part(drawn: list[tuple[str, int]], rule: split.Rule) -> None:
    """Three groups are enough for a class to have an image in each part; what was moved is counted."""
    groups = [split.Group(key, {"a": size}) for key, size in sorted(drawn)]
    found, moved = split.assign(groups, rule)
    assert set(found.values()) == set(split.SPLITS)
    by_chance = {
        group.key: next(
            part
            for part, (start, end) in split.intervals(rule).items()
            if start <= split.position(group.key, rule) < end
        )
        for group in groups
    }
    assert moved == sum(group.labels["a"] for group in groups if by_chance[group.key] != found[group.key])
    assert split.assign(groups, rule) == (found, moved)


def test_the_distance_to_an_interval_goes_round() -> None:
    """A place just below 1 is near the interval that begins at 0."""
    assert split._distance(Fraction(99, 100), (Fraction(0), Fraction(1, 10))) == Fraction(1, 100)
    assert split._distance(Fraction(3, 10), (Fraction(0), Fraction(1, 10))) == Fraction(2, 10)


Placed = dict[str, tuple[str, int]]  # key → place on the circle, images of class a


def filled(monkeypatch: pytest.MonkeyPatch, placed: Placed, *shared: str) -> tuple[dict[str, str], int]:
    """`assign` by RULE (test: 0 to 0.1, val: to 0.2, train: to 1), of groups that lie where the test says.

    Of those named in `shared` one image is of class b.
    """
    monkeypatch.setattr(split, "position", lambda key, _: Fraction(placed[key][0]) if key in placed else Fraction(1, 2))
    groups = [split.Group(key, {"a": size} | ({"b": 1} if key in shared else {})) for key, (_, size) in placed.items()]
    b = [split.Group(f"b{n}", {"b": 1}) for n in range(3)] if shared else []
    parts_, moved = split.assign([*groups, *b], split.Rule(seed=0, val=0.1, test=0.1, folds=1, fold=0))
    return {key: parts_[key] for key in placed}, moved - (2 if shared else 0)


def test_an_empty_part_takes_the_nearest_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """val is filled before test, each with the group that lies nearest to its interval, round the circle, too."""
    found = filled(monkeypatch, {"p": ("0.25", 3), "q": ("0.28", 2), "r": ("0.6", 9)})
    assert found == ({"p": "val", "q": "test", "r": "train"}, 5)
    found = filled(monkeypatch, {"p": ("0.25", 1), "q": ("0.28", 1), "r": ("0.95", 4)})
    assert found == ({"p": "val", "q": "train", "r": "test"}, 5)


def test_an_empty_part_takes_from_the_part_with_the_most_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearer groups of a smaller part stay where they are; with as many images, the distance decides."""
    placed = {"p": ("0.11", 1), "q": ("0.12", 2), "r": ("0.4", 2), "s": ("0.5", 3)}
    assert filled(monkeypatch, placed) == ({"p": "val", "q": "val", "r": "test", "s": "train"}, 2)
    placed = {"p": ("0.11", 1), "q": ("0.12", 2), "r": ("0.4", 1), "s": ("0.5", 2)}
    assert filled(monkeypatch, placed) == ({"p": "test", "q": "val", "r": "train", "s": "train"}, 1)


def test_filling_a_part_empties_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only group of a part stays there, however many images it has."""
    placed = {"p": ("0.15", 1), "q": ("0.12", 1), "r": ("0.5", 9)}
    assert filled(monkeypatch, placed) == ({"p": "val", "q": "test", "r": "train"}, 1)


def test_a_group_of_two_classes_fills_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would change the other class as well; a group of the class alone is moved instead, though it is farther."""
    placed = {"p": ("0.25", 1), "q": ("0.3", 1), "r": ("0.35", 1), "s": ("0.6", 1)}
    assert filled(monkeypatch, placed, "p") == ({"p": "train", "q": "val", "r": "test", "s": "train"}, 2)


def test_of_groups_equally_near_that_with_the_smallest_key_is_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the order in which groups are found decides nothing."""
    for keys_ in ("zyx", "xyz"):
        found, moved = filled(monkeypatch, dict.fromkeys(keys_, ("0.3", 1)))
        assert (found, moved) == ({"x": "val", "y": "test", "z": "train"}, 2)


def test_a_position_is_the_seeded_hash_turned_by_the_fold() -> None:
    """SHA-256 of "seed key", its first 8 bytes as a fraction of 2^64, less fold / folds; the shares end where meant."""
    first = Fraction(int(hashlib.sha256(b"5 abc").hexdigest()[:16], 16), 2**64)
    assert split.position("abc", split.Rule(5, 0.1, 0.1, 10, 0)) == first
    assert split.position("abc", split.Rule(5, 0.1, 0.25, 4, 3)) == (first + Fraction(1, 4)) % 1
    assert split.intervals(split.Rule(0, 0.1, 0.2, 5, 0)) == {
        "test": (0, Fraction(1, 5)), "val": (Fraction(1, 5), Fraction(3, 10)), "train": (Fraction(3, 10), 1),
    }  # fmt: skip


def test_near_duplicates_in_two_classes_are_moved_for_neither() -> None:
    """A class is filled with groups of its own; with fewer than three of them it is refused."""
    shared = [split.Group(str(n), {"a": 1, "b": 1}) for n in range(4)]
    own = [split.Group(f"{n} of b", {"b": 1}) for n in range(200)]
    lone = [group for group in shared if split.position(group.key, RULE) >= Fraction(2, 10)]
    assert lone
    with pytest.raises(UserError, match=r"class 'a' has \d images in 0 groups of its own"):
        split.assign([*lone, *own], RULE)


# ---- what is excluded ----


def test_each_broken_file_is_excluded_with_its_reason(small: Path) -> None:
    """Empty, truncated, too small, too large, not an image and a duplicate are listed, counted and kept out."""
    (small / "cat/empty.png").write_bytes(b"")
    (small / "cat/words.jpg").write_text("words")
    whole = (small / "cat/0.png").read_bytes()
    (small / "cat/cut.png").write_bytes(whole[: len(whole) // 2])
    put(small / "cat/tiny.png", 50, side=8)
    put(small / "cat/huge.png", 51, side=120)
    shutil.copy(small / "cat/3.png", small / "cat/z copy.png")
    rows, counts = do(small, max_pixels=10_000)
    assert reasons(rows) == {
        "cat/cut.png": "truncated",
        "cat/empty.png": "empty",
        "cat/huge.png": "too large",
        "cat/tiny.png": "too small",
        "cat/words.jpg": "not an image",
        "cat/z copy.png": "duplicate of cat/3.png",
    }
    assert counts["excluded"] == {
        "empty": 1, "not an image": 1, "truncated": 1, "too large": 1, "too small": 1, "not decodable": 0,
        "duplicate": 1, "conflicting labels": 0,
    }  # fmt: skip
    assert counts["classes"]["cat"]["excluded"] == 6
    assert all(not row.part and not row.group for row in rows if row.reason)


def test_a_duplicate_in_another_format_is_one(small: Path) -> None:
    """What counts is the decoded pixels: the same image as BMP is a duplicate."""
    noise_image(0).save(small / "cat/other.bmp")
    assert reasons(do(small)[0]) == {"cat/other.bmp": "duplicate of cat/0.png"}


def test_equal_images_in_two_classes_are_all_excluded(small: Path) -> None:
    """Three equal images of which one has another class are all excluded: three pairs, one conflict."""
    shutil.copy(small / "cat/0.png", small / "cat/0 again.png")
    shutil.copy(small / "cat/0.png", small / "dog/0.png")
    rows, counts = do(small)
    assert set(reasons(rows).values()) == {"conflicting labels"}
    assert (counts["excluded"]["conflicting labels"], counts["exact_duplicate_pairs"], counts["conflicts"]) == (3, 3, 1)


def test_too_many_broken_files_are_refused(small: Path) -> None:
    """One file more than split.max_unreadable ends the stage, naming five of them."""
    for n in range(6):
        (small / f"dog/{n} broken.jpg").write_text("words")
    assert do(small, max_unreadable=6)[1]["excluded"]["not an image"] == 6
    with pytest.raises(UserError) as refusal:
        do(small, max_unreadable=5)
    shown = ", ".join(f"dog/{n} broken.jpg (not an image)" for n in range(5))
    assert str(refusal.value) == (
        f"split.max_unreadable: 6 images of 26 cannot be used, allowed: 5; {shown}, …; "
        "mend or remove them, or raise split.max_unreadable"
    )


# ---- layouts and names ----


def test_names_of_every_kind_come_back(small: Path, tmp_path: Path) -> None:
    """Spaces, commas, quotes, newlines, other letters, upper-case extensions and nested folders survive split.csv."""
    odd = ["a b.PNG", "a,b.png", 'a"b.png', "a\nb.png", "ñandú 花.png", "deep/er/x.Png", "-x.png", "train/x.png"]
    for seed, name in enumerate(odd):
        put(small / "dog" / name, 200 + seed)
    rows, _ = do(small)
    files.write_csv(tmp_path / "split.csv", split.HEADER, map(split.line, rows))
    back = files.read_csv(tmp_path / "split.csv")
    paths = [row["path"] for row in back]
    assert {f"dog/{name}" for name in odd} <= set(paths)
    assert paths == sorted(paths, key=lambda path: path.encode())
    assert all(row["class"] == row["path"].split("/")[0] for row in back)
    assert [(row["split"], row["reason"]) for row in back] == [(row.part, row.reason) for row in rows]
    assert all(len(row["pixels"]) == 64 and len(row["phash"]) == len(row["group"]) == 16 for row in back)


def test_junk_and_files_beside_the_classes_are_no_images(small: Path) -> None:
    """Hidden files, __MACOSX, Thumbs.db and what lies at the top are ignored."""
    before = do(small)
    for name in (
        ".hidden/a.png",
        "__MACOSX/cat/a.png",
        "cat/.a.png",
        "cat/Thumbs.db",
        "LICENSE.txt",
        "README",
        "a.png",
    ):
        (small / name).parent.mkdir(parents=True, exist_ok=True)
        (small / name).write_text("junk")
    assert do(small) == before


def test_a_given_split_is_kept(tmp_path: Path) -> None:
    """Folders train, val and test with class folders are the split; near pairs across them are only counted."""
    folder = tmp_path / "images"
    for start, part in enumerate(split.SPLITS):
        for label, first in (("cat", 0), ("dog", 100)):
            for seed in range(first + 10 * start, first + 10 * start + 3):
                put(folder / part / label / "sub" / f"{seed}.png", seed)
    put(folder / "test/cat/near.png", 1, side=48)  # the same image, larger, lies in train
    rows, counts = do(folder)
    assert all(row.part == row.image_file.path.split("/")[0] for row in rows)
    assert all(row.image_file.label == row.image_file.path.split("/")[1] for row in rows)
    assert counts["splits"] == {"train": 6, "val": 6, "test": 7}
    assert (counts["near_duplicate_pairs"], counts["near_duplicates_across_splits"], counts["moved_to_fill"]) == (
        1,
        1,
        0,
    )


def test_a_given_split_keeps_a_duplicate_in_test_first(tmp_path: Path) -> None:
    """Of exact duplicates across given parts that in test is kept, before val, before train."""
    folder = tmp_path / "images"
    for start, part in enumerate(split.SPLITS):
        for label, first in (("cat", 0), ("dog", 100)):
            put(folder / part / label / "own.png", first + start)
        put(folder / part / "cat/everywhere.png", 50)
    for part in ("train", "val"):
        put(folder / part / "dog/twice.png", 51)
    assert reasons(do(folder)[0]) == {
        "train/cat/everywhere.png": "duplicate of test/cat/everywhere.png",
        "val/cat/everywhere.png": "duplicate of test/cat/everywhere.png",
        "train/dog/twice.png": "duplicate of val/dog/twice.png",
    }


def test_layouts_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    """No class, one class, a class of two, half a split, a class missing in a part: each is refused by name."""
    folder = tmp_path / "images"
    with pytest.raises(UserError, match="no such folder"):
        do(folder)
    folder.mkdir()
    put(folder / "a.png", 0)
    with pytest.raises(UserError, match="images: no class folder; needed: at least 2"):
        do(folder)
    for seed in range(3):
        put(folder / f"cat/{seed}.png", seed)
    with pytest.raises(UserError, match=r"only one class folder \('cat'\); needed: at least 2"):
        do(folder)
    for seed in range(2):
        put(folder / f"dog/{seed}.png", 100 + seed)
    with pytest.raises(UserError, match=r"class 'dog' has 2 images to use; needed: at least 3"):
        do(folder)
    put(folder / "dog/2.png", 102)
    assert set(parts(do(folder)[0]).values()) == set(split.SPLITS)
    (folder / "empty class").mkdir()
    with pytest.raises(UserError, match=r"class 'empty class' has 0 images to use"):
        do(folder)


def test_half_a_split_is_refused(tmp_path: Path) -> None:
    """Two of the folders train, val, test, or all three beside class folders, are refused."""
    folder = tmp_path / "images"
    for part in ("train", "test"):
        put(folder / part / "cat/0.png", 0)
    with pytest.raises(UserError, match=r"folders train and test, but no val; allowed: all of train, val, test"):
        do(folder)
    put(folder / "val/cat/0.png", 0)
    (folder / "cat").mkdir()
    with pytest.raises(UserError, match=r"train, val, test beside class folders cat; allowed: either alone"):
        do(folder)


def test_a_given_split_needs_each_class_in_each_part(tmp_path: Path) -> None:
    """A class without an image in a given part is refused."""
    folder = tmp_path / "images"
    for start, part in enumerate(split.SPLITS):
        put(folder / part / "cat/0.png", start)
    put(folder / "train/dog/0.png", 100)
    with pytest.raises(UserError, match=r"class 'dog' has no image to use in val, test; needed: at least 1 in each"):
        do(folder)


def test_names_that_cannot_be_written_are_refused(small: Path) -> None:
    """A name that is not UTF-8, one with a carriage return and a broken link are refused by name."""
    bad = Path(str(small / "cat").encode().decode() + "/caf\udce9.png")
    put(bad, 60)
    with pytest.raises(UserError, match=r"caf\\udce9\.png': the name is not UTF-8; rename it"):
        do(small)
    bad.rename(small / "cat/a\rb.png")
    with pytest.raises(UserError, match=r"a\\rb\.png': a carriage return in a name"):
        do(small)
    (small / "cat/a\rb.png").unlink()
    (small / "cat/link.png").symlink_to("absent.png")
    with pytest.raises(UserError, match=r"link\.png: neither a file nor a folder"):
        do(small)


def test_the_stage_writes_the_table_and_the_counts(
    small: Path, raw: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`run` writes split.csv, a line a file, and data.json; running again writes the same bytes."""
    monkeypatch.chdir(tmp_path)
    config = params.parse(on_cpu(raw, paths__images="images", split__min_side=16))
    split.run(config)
    table, counts = Path(config.paths.split), Path(config.paths.metrics) / "data.json"
    first = table.read_bytes(), counts.read_bytes()
    assert len(files.read_csv(table)) == json.loads(counts.read_text())["images"] == 20
    split.run(config)
    assert (table.read_bytes(), counts.read_bytes()) == first


def test_the_table_says_what_each_image_is(small: Path, raw: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells by their names: the size as it is decoded, the hash of the pixels, the perceptual hash, the group."""
    noise_image(77).resize((40, 24)).save(small / "dog/wide.png")
    put(small / "dog/z near.png", 101, side=48)
    (small / "dog/empty.png").write_bytes(b"")
    monkeypatch.chdir(small.parent)
    split.run(params.parse(on_cpu(raw, paths__images="images", split__min_side=16)))
    table = {row["path"]: row for row in files.read_csv(Path("data/split.csv"))}
    wide, near, empty = (table[f"dog/{name}.png"] for name in ("wide", "z near", "empty"))
    with Image.open(small / "dog/wide.png") as image:
        assert wide["phash"] == f"{split.perceptual_hash(image.convert('RGB')):016x}"
    assert (wide["class"], wide["reason"], wide["width"], wide["height"]) == ("dog", "", "40", "24")
    assert wide["group"] == wide["pixels"][:16]
    assert (empty["split"], empty["reason"], empty["phash"], empty["group"]) == ("", "empty", "", "")
    assert near["group"] == table["dog/101.png"]["group"] == min(near["pixels"], table["dog/101.png"]["pixels"])[:16]
    assert near["split"] == table["dog/101.png"]["split"] in split.SPLITS


def test_a_perceptual_hash_of_zero_is_a_hash() -> None:
    """A kept image has one, whatever its value; only what was not decoded has none."""
    decoded, not_decoded = ImageInfo("", 40, 24, "ab" * 32, phash=0), ImageInfo("truncated", 40, 24)
    cells = [
        dict(
            zip(split.HEADER, split.line(split.Row(split.ImageFile("a/b.png", "a", ""), "", "", seen, "")), strict=True)
        )
        for seen in (decoded, not_decoded)
    ]
    assert [row["phash"] for row in cells] == ["0" * 16, ""]


def test_the_progress_bar_is_called_as_the_stage_is(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks at the terminal sees which stage moves."""
    titles: list[object] = []
    ordered_map = threads.ordered_map

    def noted(work: Any, items: Any, workers: int, title: str = "", **others: Any) -> Any:
        titles.append(title)
        return ordered_map(work, items, workers, title, **others)

    monkeypatch.setattr(threads, "ordered_map", noted)
    do(small)
    assert titles == ["split"]


def test_the_stage_hands_every_setting_on(raw: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key of params.yaml's `split`, and run.workers, reaches what it is for."""
    taken: list[Any] = []

    def noted(*given: Any, **named: Any) -> None:
        taken.extend((given, named))
        raise UserError("seen")

    monkeypatch.setattr(split, "split", noted)
    changes = {
        "split__seed": 7, "split__fractions": {"train": 0.5, "val": 0.3, "test": 0.2}, "split__folds": 5,
        "split__fold": 3, "split__phash_distance": 4, "split__min_side": 21, "split__max_pixels": 22,
        "split__max_unreadable": 23, "run__workers": 6, "paths__images": "elsewhere",
    }  # fmt: skip
    with pytest.raises(UserError, match="seen"):
        split.run(params.parse(change(raw, **changes)))
    assert taken == [
        (Path("elsewhere"), split.Rule(seed=7, val=0.3, test=0.2, folds=5, fold=3)),
        {"near_bits": 4, "min_side": 21, "max_pixels": 22, "max_unreadable": 23, "workers": 6},
    ]
