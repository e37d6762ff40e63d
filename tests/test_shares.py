"""`split.folds` alone sets the shares of the splits, and `split.duplicates: ignore` lets duplicates be apart."""

import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.base import files
from pipeline.config import params
from pipeline.data import corrections, splitting
from pipeline.stages import split
from tests.conftest import on_cpu
from tests.helpers.datasets import do_split, left_out, put, settings, splits_by_path, two_classes


@given(st.integers(2, 1000), st.integers(1, 80), st.integers(1, 19))
def test_of_several_folds_each_tests_one_part(folds: int, val: int, test: int) -> None:
    """Test has 1 / folds, whatever fractions.test is; train : val is as the fractions say; the sum is 1."""
    config = settings(val=val / 100, test=test / 100, folds=folds)
    share = splitting.shares(config)
    assert share["test"] == Fraction(1, folds)
    assert share["train"] * val == share["val"] * (100 - val - test)
    assert sum(share.values()) == 1


def test_ten_folds_are_the_default_fractions() -> None:
    """So fold 0 of 10 has the images of the default params."""
    assert splitting.intervals(settings(folds=10)) == splitting.intervals(settings(folds=1))
    assert splitting.shares(settings(folds=1)) == {
        "train": Fraction(8, 10), "val": Fraction(1, 10), "test": Fraction(1, 10),
    }  # fmt: skip


@pytest.fixture
def with_copies(tmp_path: Path) -> Path:
    """Two classes of ten images; one has a copy in its class, and one in the other class."""
    folder = two_classes(tmp_path / "data/images")
    first, second = sorted((folder / "cat").iterdir())[:2]
    shutil.copyfile(first, folder / "cat/copy.png")
    shutil.copyfile(second, folder / "dog/copy.png")
    return folder


def test_ignored_duplicates_are_kept_and_every_other_image_stays(with_copies: Path) -> None:
    """No copy is left out. An image without a near duplicate is in the same split under both rules."""
    together, _ = do_split(with_copies, phash_distance=0)
    separate, counts = do_split(with_copies, phash_distance=0, duplicates="ignore")
    assert left_out(together) == {"conflicting labels": 2, "duplicate": 1}
    assert left_out(separate) == {}
    assert counts["exact_duplicate_pairs"] == 2
    assert counts["largest_group"] == 1
    before, after = splits_by_path(together), splits_by_path(separate)
    assert {path: after[path] for path, name in before.items() if name} == {p: n for p, n in before.items() if n}


def test_ignored_duplicates_in_different_splits_are_counted(tmp_path: Path) -> None:
    """Of twelve copies of one image some are in other splits than the rest, and that number of pairs is told."""
    folder = two_classes(tmp_path / "images")
    for number in range(12):
        put(folder / f"cat/same {number:02}.png", 99)
    rows, counts = do_split(folder, phash_distance=0, duplicates="ignore")
    of_same = [name for path, name in splits_by_path(rows).items() if "same" in path]
    apart = sum(a != b for n, a in enumerate(of_same) for b in of_same[:n])
    assert counts["near_duplicates_across_splits"] == apart > 0


def test_split_says_which_fold_it_is(
    with_copies: Path, raw: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only with several folds."""
    monkeypatch.chdir(with_copies.parents[1])
    files.write_text(corrections.FILE, corrections.EMPTY)
    for folds in (1, 2):
        split.run(params.parse(on_cpu(raw, split__folds=folds, split__min_side=16)))
        assert ("split.fold: 0, of 2 folds" in capsys.readouterr().out) == (folds == 2)
