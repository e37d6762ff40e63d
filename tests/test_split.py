"""The stage split: every file is inspected once, and every image is in one split or has a reason."""

import re
import shutil
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from pipeline.base import files
from pipeline.config import params
from pipeline.data import appearance, splitting
from pipeline.data.duplicates import NearDuplicates
from pipeline.data.images import ImageInfo
from pipeline.data.splitting import Assignment
from pipeline.dataset import split_table
from pipeline.dataset.split_table import SPLITS
from pipeline.sources.layout import ImageFile
from pipeline.sources.originals import Originals
from pipeline.stages import split
from tests.conftest import on_cpu
from tests.helpers import datasets
from tests.helpers.datasets import Counts, Rows, do_split, left_out, put, reasons, settings, splits_by_path, two_classes

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # pytest undoes the module's own filter


WIDE = "\x1b[31mwide"  # the name of an image that a terminal would act on


@pytest.fixture(scope="module")
def photos_split(photos: Path) -> tuple[Rows, Counts]:
    """What the split makes of the forty real photos."""
    return do_split(photos)


def test_the_real_photos_have_three_exact_pairs_and_one_conflict(photos_split: tuple[Rows, Counts]) -> None:
    """Two pairs keep their first image, the pair in roses and tulips keeps none. Each image is counted once.

    Brute force over all pairs finds as many near ones as were counted, each in one split and group.
    """
    rows, counts = photos_split
    assert (counts["images"], counts["kept"]) == (40, 36)
    assert (counts["exact_duplicate_pairs"], counts["conflicts"]) == (3, 1)
    assert left_out(rows) == {"duplicate": 2, "conflicting labels": 2}
    conflicting = [path for path, reason in reasons(rows).items() if reason == "conflicting labels"]
    assert conflicting == ["roses/15922772266_1167a06620.jpg", "tulips/15922772266_1167a06620.jpg"]
    assert sum(sum(by_split.values()) for by_split in counts["classes"].values()) == 40
    used = [row for row in rows if row.split]
    for name in SPLITS:
        assert sum(images[name] for images in counts["classes"].values()) == sum(row.split == name for row in used)
    pairs = datasets.near_by_brute_force(np.array([int(row.phash, 16) for row in used], np.uint64), 8)
    assert len(pairs) == counts["near_duplicate_pairs"] > 0
    assert all((used[a].split, used[a].group) == (used[b].split, used[b].group) for a, b in pairs)


def test_a_photo_added_moves_no_other(photos: Path, photos_split: tuple[Rows, Counts], tmp_path: Path) -> None:
    """Each real photo keeps its split when a good and a corrupt photo are added, and with one thread."""
    assert do_split(photos, workers=1) == photos_split
    folder = shutil.copytree(photos, tmp_path / "images")
    put(folder / "daisy/0 new.png", 7, side=200)
    (folder / "daisy/corrupt.jpg").write_bytes((folder / "daisy/10140303196_b88d3d6cec.jpg").read_bytes()[:9000])
    rows, _ = do_split(folder)
    after, before = splits_by_path(rows), splits_by_path(photos_split[0])
    assert {path: after[path] for path in before} == before
    assert after["daisy/0 new.png"] in SPLITS
    assert left_out(rows)["truncated"] == 1


def test_names_of_every_kind_come_back(small: Path, tmp_path: Path) -> None:
    """Spaces, commas, quotes, newlines, other letters, upper-case extensions and nested folders survive split.csv."""
    odd = ["a b.PNG", "a,b.png", 'a"b.png', "a\nb.png", "ñandú 花.png", "deep/er/x.Png", "-x.png", "train/x.png"]
    for seed, name in enumerate(odd):
        put(small / "dog" / name, 200 + seed)
    rows, _ = do_split(small)
    split_table.write(rows, tmp_path / "split.csv", tmp_path / "kept.csv")
    assert split_table.all_rows(tmp_path / "split.csv") == rows
    paths = [row.path for row in rows]
    assert {f"dog/{name}" for name in odd} <= set(paths)
    assert paths == sorted(paths, key=lambda path: path.encode())
    assert all(row.label == row.path.split("/")[0] for row in rows)
    assert all(len(row.pixels) == 64 and len(row.phash) == len(row.group) == 16 for row in rows)


def test_the_stage_writes_the_table_and_the_counts(
    small: Path, raw: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """split.csv, one row per file, and the tables of counts, which the first line repeats; the same bytes again.

    A row has the size after decoding, the hash of the pixels, the perceptual hash, and the group.
    """
    page = datasets.noise_image(77).resize((40, 24))
    page.save(small / f"dog/{WIDE}.png", "TIFF", save_all=True, append_images=[page])
    put(small / "dog/z near.png", 101, side=48)
    (small / "dog/empty.png").write_bytes(b"")
    config = params.parse(on_cpu(raw, split__min_side=16))
    split.run(config)
    paths = sorted([Path(config.paths.split), *Path(config.paths.metrics).iterdir()])
    assert [path.stem for path in paths] == ["split", "excluded", "findings", "images", "suspects"]
    first = [path.read_bytes() for path in paths]
    rows, _, findings, classes, _ = (files.read_csv(path) for path in paths)
    assert len(rows) == sum(int(row[name]) for row in classes for name in (*SPLITS, "excluded")) == 23
    assert {row["finding"]: row["number"] for row in findings}["images"] == "23"
    of = Counter(row["split"] for row in rows)
    line, *others = capsys.readouterr().out.splitlines()
    assert re.findall(r"\d+", line) == ["23", *(str(of[name]) for name in SPLITS), "1"]
    assert any("1 empty" in line and "dog/empty.png" in line for line in others)
    assert any("several images in one file" in line and r"(first: dog/\x1b[31mwide.png)" in line for line in others)
    table = {row["path"]: row for row in rows}
    wide, near, empty, same = (table[f"dog/{name}.png"] for name in (WIDE, "z near", "empty", "101"))
    with Image.open(small / f"dog/{WIDE}.png") as image:
        assert wide["phash"] == f"{appearance.perceptual_hash(image.convert('RGB')):016x}"
    assert (wide["class"], wide["reason"], wide["width"], wide["height"]) == ("dog", "", "40", "24")
    assert wide["group"] == wide["pixels"][:16]
    assert (empty["split"], empty["reason"], empty["phash"], empty["group"]) == ("", "empty", "", "")
    assert near["group"] == same["group"] == min(near["pixels"], same["pixels"])[:16]
    assert near["split"] == same["split"] in SPLITS
    split.run(config)
    assert [path.read_bytes() for path in paths] == first


def test_each_count_and_each_hash_has_its_place(small: Path) -> None:
    """Another value for each count. A perceptual hash of zero is one; a cell is empty if nothing was decoded.

    Three equal images, one of them in another class, are all excluded: three pairs, one conflict.
    """
    for name in ("cat/0 again.png", "dog/0.png"):
        shutil.copy(small / "cat/0.png", small / name)
    rows, infos, *_ = split.split(Originals(small, {}), settings(), workers=2)
    assert left_out(rows) == {"conflicting labels": 3}
    near = NearDuplicates(np.array([0, 0, 0, 0, 0, 1, 1, 2]), 11, 13)  # the images of these groups
    counts = split.summary(["cat", "dog"], rows, infos, Assignment([], [*"aaaaabbc"], near, 17))
    assert {name: value for name, value in counts.items() if isinstance(value, int)} == {
        "images": 22, "kept": 19, "exact_duplicate_pairs": 3, "conflicts": 1, "near_duplicate_pairs": 11,
        "near_duplicate_groups": 2, "largest_group": 5, "near_duplicates_across_splits": 13, "moved_to_fill": 17,
        "files_of_several_images": 0, "dark_16_bit": 0,
    }  # fmt: skip
    for info, cell in ((ImageInfo("", 40, 24, "ab" * 32, phash=0), "0" * 16), (ImageInfo("truncated", 40, 24), "")):
        assert split.image_row(ImageFile("a/b.png", "a", ""), info, "", "", "", ()).phash == cell


@pytest.mark.parametrize("seed", range(2))
def test_a_part_cut_from_train_has_no_near_duplicate_in_a_given_part(tmp_path: Path, seed: int) -> None:
    """Train images that are near given ones stay in train; given images stay where they are; the rest is cut."""
    folder = tmp_path / "images"
    two_classes(folder / "train")
    for number in range(3):
        put(folder / f"val/cat/{number}.png", number, side=48)  # the same images, larger, are in train
        put(folder / f"val/dog/{number}.png", 500 + number)
    rows, counts = do_split(folder, seed=seed)
    splits = splits_by_path(rows)
    assert all(name == "val" for path, name in splits.items() if path.startswith("val/"))
    assert all(splits[f"train/cat/{number}.png"] == "train" for number in range(3))
    assert counts["near_duplicates_across_splits"] == 3
    assert counts["cut_from_train"] == {"test": list(splits.values()).count("test")}
    cut = {(row.label, row.path.split("/")[0]) for row in rows if row.split == "test"}
    assert cut == {("cat", "train"), ("dog", "train")}


@given(st.integers(2, 1000), st.integers(1, 80), st.integers(1, 19))
def test_of_several_folds_each_tests_one_part(folds: int, val: int, test: int) -> None:
    """Test has 1 / folds, whatever fractions.test is; train : val is as the fractions say; the sum is 1."""
    share = splitting.shares(settings(val=val / 100, test=test / 100, folds=folds))
    assert share["test"] == Fraction(1, folds)
    assert share["train"] * val == share["val"] * (100 - val - test)
    assert sum(share.values()) == 1
    # So fold 0 of 10 has the images of the default params.
    assert splitting.intervals(settings(folds=10)) == splitting.intervals(settings(folds=1))


@pytest.mark.parametrize(
    ("names", "shares"),
    [(SPLITS, ["71.1", "8.89", "20"]), (("train", "test"), ["80", "20"]), (("train", "val"), []), ((), [])],
)
def test_a_fold_has_the_shares_of_the_images_that_are_assigned(names: tuple[str, ...], shares: list[str]) -> None:
    """Without a share where the data set gives the test images: they are those of each fold."""
    line = split.fold_line(settings(folds=5, fold=2), splitting.Cut("", names))
    assert re.findall(r"([\d.]+) %", line) == shares
    assert "split.fold: 2, of 5 folds" in line


def test_ignored_duplicates_are_kept_and_every_other_image_stays(small: Path) -> None:
    """No copy is left out. An image without a near duplicate is in the same split under both rules."""
    shutil.copyfile(small / "cat/0.png", small / "cat/copy.png")
    shutil.copyfile(small / "cat/1.png", small / "dog/copy.png")
    together, _ = do_split(small, phash_distance=0)
    separate, counts = do_split(small, phash_distance=0, duplicates="ignore")
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
