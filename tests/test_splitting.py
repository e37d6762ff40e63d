"""The split of an image follows from itself alone, and every class is in every split."""

import hashlib
from fractions import Fraction

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config.params import Split
from pipeline.data import splitting
from pipeline.dataset.split_table import SPLITS
from pipeline.sources.layout import ImageFile
from tests.helpers.datasets import settings
from tests.helpers.refusals import refuses

Positions = dict[str, tuple[str, int]]  # key → position on the circle, images of class a

keys = st.text("0123456789abcdef", min_size=8, max_size=8)
any_settings = st.builds(settings, seed=st.integers(0, 99), fold=st.integers(0, 9))


def test_a_group_has_the_smallest_pixel_hash_as_its_key() -> None:
    """The key of each image, and the groups sorted by key with their images per class."""
    group_keys = splitting.group_keys([5, 2, 5, 2, 7], list("edcfb"))
    assert group_keys == list("cdcdb")
    groups = splitting.make_groups(group_keys, list("abbaa"))
    assert [group.key for group in groups] == list("bcd")
    assert [group.labels for group in groups] == [{"a": 1}, {"a": 1, "b": 1}, {"a": 1, "b": 1}]


@hypothesis.settings(max_examples=20)
@given(st.sets(keys, min_size=120, max_size=150), st.sets(keys, max_size=20), any_settings)
def test_groups_added_move_no_other(before: set[str], added: set[str], config: Split) -> None:
    """A group's split does not depend on the other groups, if no split is empty."""
    few, moved_few = splitting.assign([splitting.Group(key, {"a": 1}) for key in sorted(before)], config)
    many, moved_many = splitting.assign([splitting.Group(key, {"a": 1}) for key in sorted(before | added)], config)
    if moved_few == moved_many == 0:
        assert {key: many[key] for key in few} == few
    else:
        assert sum(many[key] != few[key] for key in few) <= moved_few + moved_many


@given(keys, st.integers(0, 99), st.integers(2, 60))
def test_every_position_is_tested_once_over_all_folds(key: str, seed: int, folds: int) -> None:
    """For any number of folds, a group is in one interval per fold, and in the test interval of exactly one fold."""
    places = []
    for fold in range(folds):
        config = settings(seed, (1 - 1 / folds) / 2, 1 / folds, folds, fold)
        intervals = splitting.intervals(config)
        places.append([name for name in SPLITS if has_position(intervals[name], key, config)])
    assert {len(names) for names in places} == {1}
    assert places.count(["test"]) == 1


@given(st.dictionaries(keys, st.integers(1, 4), min_size=3, max_size=8), any_settings, st.booleans())
def test_a_tiny_class_is_in_every_split(sizes_by_key: dict[str, int], config: Split, has_both: bool) -> None:
    """Three groups of a class, or of two classes, are enough for an image in each split; moved images are counted."""
    both = {"b": 2} if has_both else {}
    groups = [splitting.Group(key, {"a": size} | both) for key, size in sorted(sizes_by_key.items())]
    for stratify in {has_both, True}:  # groups of two classes need it
        config = config.model_copy(update={"stratify": stratify})
        splits, moved = splitting.assign(groups, config)
        assert set(splits.values()) == set(SPLITS)
        assert splitting.assign(groups[::-1], config) == (splits, moved)
        if not stratify:
            of = splitting.intervals(config)
            outside = [group for group in groups if not has_position(of[splits[group.key]], group.key, config)]
            assert moved == sum(sum(group.labels.values()) for group in outside)


def has_position(interval: tuple[Fraction, Fraction], key: str, config: Split) -> bool:
    return interval[0] <= splitting.position(key, config) < interval[1]


FILLED: dict[str, tuple[Positions, str, dict[str, str], int]] = {
    # groups (position, images of class a), those with one image of class b → splits, images that are moved
    "val before test, each with the nearest group": (
        {"p": ("0.25", 3), "q": ("0.28", 2), "r": ("0.6", 9)}, "", {"p": "val", "q": "test", "r": "train"}, 5),
    "the nearest on the circle": (
        {"p": ("0.25", 1), "q": ("0.28", 1), "r": ("0.95", 4)}, "", {"p": "val", "q": "train", "r": "test"}, 5),
    "from the split with the most images": (
        {"p": ("0.11", 1), "q": ("0.12", 2), "r": ("0.4", 2), "s": ("0.5", 3)}, "",
        {"p": "val", "q": "val", "r": "test", "s": "train"}, 2),
    "of splits with equally many images, the nearest": (
        {"p": ("0.11", 1), "q": ("0.12", 2), "r": ("0.4", 1), "s": ("0.5", 2)}, "",
        {"p": "test", "q": "val", "r": "train", "s": "train"}, 1),
    "the only group of a split stays": (
        {"p": ("0.15", 1), "q": ("0.12", 1), "r": ("0.5", 9)}, "", {"p": "val", "q": "test", "r": "train"}, 1),
    "a group of two classes stays, a farther one is moved": (
        {"p": ("0.25", 1), "q": ("0.3", 1), "r": ("0.35", 1), "s": ("0.6", 1)}, "p",
        {"p": "train", "q": "val", "r": "test", "s": "train"}, 2),
    "of equally near groups the smallest key": (
        dict.fromkeys("zyx", ("0.3", 1)), "", {"x": "val", "y": "test", "z": "train"}, 2),
}  # fmt: skip


@pytest.mark.parametrize("case", FILLED)
def test_an_empty_split_is_filled(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With test from 0 to 0.1, val to 0.2 and train to 1. The order of the groups does not matter."""
    positions, shared, expected, number = FILLED[case]
    monkeypatch.setattr(
        splitting, "position", lambda key, _: Fraction(positions[key][0]) if key in positions else Fraction(1, 2)
    )
    groups = [
        splitting.Group(key, {"a": size} | ({"b": 1} if key in shared else {})) for key, (_, size) in positions.items()
    ]
    b = [splitting.Group(f"b{n}", {"b": 1}) for n in range(3)] if shared else []  # two of them fill the splits of b
    for listed in (groups, groups[::-1]):
        splits, moved = splitting.assign([*listed, *b], settings(folds=1))
        assert ({key: splits[key] for key in positions}, moved) == (expected, number + (2 if shared else 0))


def test_a_position_is_the_seeded_hash_turned_by_the_fold() -> None:
    """The first 8 bytes of the SHA-256 of "seed key" over 2^64, minus fold / folds; the intervals have exact ends."""
    first = Fraction(int(hashlib.sha256(b"5 abc").hexdigest()[:16], 16), 2**64)
    assert splitting.position("abc", settings(seed=5)) == first
    assert splitting.position("abc", settings(5, 0.1, 0.25, 4, 3)) == (first + Fraction(1, 4)) % 1
    assert splitting.intervals(settings(0, 0.1, 0.2, 5, 0)) == {
        "test": (0, Fraction(1, 5)), "val": (Fraction(1, 5), Fraction(3, 10)), "train": (Fraction(3, 10), 1),
    }  # fmt: skip
    six_digits = splitting.intervals(settings(val=0.234569, test=0.123457, folds=1))
    assert six_digits["val"] == (Fraction(123457, 10**6), Fraction(358026, 10**6))


@pytest.mark.parametrize(("missing", "given_split"), [("test", "val"), ("val", "test")])
def test_a_missing_split_takes_its_fraction_of_train(missing: str, given_split: str) -> None:
    """The interval of a given split belongs to train; the groups in the other intervals are assigned as ever."""
    groups = [splitting.Group(str(n), {"a": 1}) for n in range(300)]
    everything, _ = splitting.assign(groups, settings())
    splits = {key: "train" if name == given_split else name for key, name in everything.items()}
    assert splitting.assign(groups, settings(), ("train", missing)) == (splits, 0)


@pytest.mark.parametrize(
    ("given_splits", "cut"),
    [
        (["", ""], ("", SPLITS)), (["train", "val", "test"], ("train", ())), (["train"], ("train", SPLITS)),
        (["train", "val"], ("train", ("train", "test"))), (["", "test"], ("", ("train", "val"))),
        (["", "train", "val", "test"], ("", ("train",))),
    ],
)  # fmt: skip
def test_what_is_not_given_is_cut(given_splits: list[str], cut: tuple[str, tuple[str, ...]]) -> None:
    """Images without a split are assigned to train and to what no image is given for; else train is cut."""
    assert splitting.find_cut([ImageFile("a", "a", name) for name in given_splits]) == splitting.Cut(*cut)


def test_a_group_with_a_given_image_is_not_cut() -> None:
    """A near duplicate of a given val or test image stays in train; without a split it goes to the given image's."""
    of_folders = [ImageFile("", "a", name) for name in ("train", "val", "train", "train")]
    assert splitting.fixed_splits(list("ppqr"), of_folders, splitting.find_cut(of_folders)) == {"p": "train"}
    of_table = [ImageFile("", "a", name) for name in ("", "val", "", "test", "val", "", "train", "")]
    assert splitting.fixed_splits(list("ppqqqrrs"), of_table, splitting.find_cut(of_table)) == {
        "p": "val", "q": "test", "r": "train",
    }  # fmt: skip


def test_a_fixed_group_is_not_moved_to_fill_a_split() -> None:
    """It counts as an image of the class in its split; another group fills the empty one."""
    groups = [splitting.Group(key, {"a": 1}) for key in "pqr"]
    for key in "pqr":
        splits, _ = splitting.assign(groups, settings(), ("train", "test"), {key: "train"})
        assert (splits[key], "test" in splits.values()) == ("train", True)
    with refuses(("classes", "missing")):
        splitting.assign(groups, settings(), ("train", "test"), dict.fromkeys("pqr", "train"))


Classes = dict[str, list[int]]  # class → the sizes of its groups

sizes = st.integers(1, 6).flatmap(lambda most: st.lists(st.integers(1, most), min_size=30, max_size=60))
classes = st.dictionaries(st.sampled_from("abc"), sizes, min_size=1)


def groups_of(sizes_of_groups: Classes) -> list[splitting.Group]:
    """Groups of one class each, with keys that say which they are."""
    return [
        splitting.Group(f"{label}{number}", {label: size})
        for label, of_class in sizes_of_groups.items()
        for number, size in enumerate(of_class)
    ]


@hypothesis.settings(max_examples=50)
@given(classes, any_settings)
def test_stratified_classes_have_the_fractions(sizes_of_groups: Classes, config: Split) -> None:
    """Up to the size of the largest group of the class; with single images the number is rounded down or up."""
    groups = groups_of(sizes_of_groups)
    config = config.model_copy(update={"stratify": True})
    splits, moved = splitting.assign(groups, config)
    assert splits == splitting.assign(groups[::-1], config)[0]
    for label, of_class in sizes_of_groups.items():
        for name, fraction in config.fractions.model_dump().items():
            images = sum(group.labels.get(label, 0) for group in groups if splits[group.key] == name)
            most = max(of_class) if max(of_class) > 1 else 1
            assert abs(images - fraction * sum(of_class)) <= most + moved


@hypothesis.settings(max_examples=50)
@given(st.integers(30, 200), st.integers(30, 200), any_settings)
def test_an_image_added_to_a_stratified_class_moves_few(number: int, others: int, config: Split) -> None:
    """At most two at each border of a part, all of this class; without `stratify` none."""
    config = config.model_copy(update={"stratify": True})
    before = groups_of({"a": [1] * number, "b": [1] * others})
    first, _ = splitting.assign(before, config)
    then, _ = splitting.assign([*before, splitting.Group("added", {"a": 1})], config)
    moved = [key for key in first if first[key] != then[key]]
    assert len(moved) <= 6
    assert all(key.startswith("a") for key in moved)


def test_a_stratified_group_of_two_classes_counts_for_the_larger() -> None:
    """It is placed among the groups of the class of most of its images; of equal ones, the first name."""
    groups = [splitting.Group(str(n), {"b": 3, "a": 1} if n % 2 else {"b": 1, "a": 1}) for n in range(40)]
    positions = splitting.stratified_positions(groups, settings(folds=1))
    assert set(positions) == {group.key for group in groups}
    in_test = [key for key, where in positions.items() if where < Fraction(1, 10)]
    assert sorted(int(key) % 2 for key in in_test) == [0, 0, 1, 1]


def test_stratified_positions_are_those_of_the_formula() -> None:
    """The images of a class divide the circle, in the order of hashes, from where the class's hash says."""
    config = settings(seed=5)
    first, second = sorted([("x", 1), ("y", 3)], key=lambda group: splitting.position(group[0], config))
    groups = [splitting.Group(key, {"a": size}) for key, size in (second, first)]
    start = splitting.position("class a", config)
    assert splitting.stratified_positions(groups, settings(seed=5, fold=2)) == {
        first[0]: ((start + Fraction(first[1], 2)) / 4 - Fraction(2, 10)) % 1,
        second[0]: ((start + first[1] + Fraction(second[1], 2)) / 4 - Fraction(2, 10)) % 1,
    }


def test_a_group_of_one_class_is_moved_before_one_of_several() -> None:
    """Also with `stratify`; a group that is the last of one of its classes in a split stays."""
    mixed = [splitting.Group(f"m{n}", {"a": 9, "b": 9}) for n in range(3)]
    single = [splitting.Group(f"a{n}", {"a": 1}) for n in range(3)]
    for seed in range(30):
        config = settings(seed).model_copy(update={"stratify": True})
        splits, _ = splitting.assign([*mixed, *single], config)
        assert {splits[group.key] for group in mixed} == set(SPLITS)  # for class b, which has no others
        pairs = [splitting.Group(f"p{n}", dict.fromkeys(pair, 1)) for n, pair in enumerate(2 * ["ab", "bc", "ca"])]
        splits, _ = splitting.assign(pairs, config)
        for label in "abc":
            assert {splits[group.key] for group in pairs if label in group.labels} == set(SPLITS)
