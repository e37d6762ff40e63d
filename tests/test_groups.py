"""Images of one patient or video, as the user names them, are in one split."""

from pathlib import Path

import pytest

from pipeline.data import folders, groups
from pipeline.sources.layout import ImageFile, Layout
from tests.helpers.datasets import do_split, put, splits_by_path
from tests.helpers.refusals import refuses


def layout(*paths: str, depth: int | None = 0) -> Layout:
    return Layout([ImageFile(path, "a", "") for path in paths], ["a"], "labels.csv", (), depth)


@pytest.mark.parametrize(
    ("names", "others", "number"),
    [
        (["img1_jpg.rf.0a.jpg", "img1_jpg.rf.0b.jpg"], ["img1_jpg.rf.1.jpg", "img2_jpg.rf.1.jpg"], 1),
        (["7.png", "7_flip.png"], ["7_AUG-2.png", "7_rot90_crop.png"], 1),
        (["1.png", "1_flip.png"], ["2.png", "2_crop.png", "11.png"], 0),
        (["IMG_1.jpg", "apple_rotten1.jpg", "x.jpg"], ["IMG_2.jpg", "apple_rotten2.jpg", "y/x.jpg"], 0),
    ],
)
def test_copies_by_their_names_in_two_parts_are_named(names: list[str], others: list[str], number: int) -> None:
    """What tools add to the name of an image. The value of split.group in the note keeps the copies together."""
    files = [ImageFile(f"a/{name}", "a", "") for name in (*names, *others)]
    splits = ["train"] * len(names) + ["test"] * len(others)
    assert groups.copies_across_splits([*files, ImageFile("b/7.png", "b", "")], [*splits, "val"])[0] == number
    for note in groups.copies_across_splits(files, splits)[1]:
        setting = note.partition("split.group: '")[2][:-1]
        found = groups.named_groups(layout(*(file.path for file in files)), setting)
        assert found[0] == found[1] == found[2] != ()


@pytest.mark.parametrize(
    ("setting", "paths", "names"),
    [
        ("none", ["a/p7/none.png"], [""]),
        ("folder", ["a/p7/1.png", "a/p7/x/2.png", "b/p7/3.png", "a/4.png"], ["p7", "p7", "p7", ""]),
        (r"patient(\d+)", ["a/patient12_3.png", "b/x patient12/1.png", "a/other.png"], ["12", "12", ""]),
        (r"patient(\d+)?", ["a/patient.png"], [""]),
        (r"(?s)^a/(.*)é", ['a/\n "ü\u2028é.png'], ['\n "ü\u2028']),
    ],
)
def test_a_path_names_a_group(setting: str, paths: list[str], names: list[str]) -> None:
    """The folder below the class folder, or the capture group; without it an image is alone. A column is another."""
    expected = [(f"path {name}",) if name else () for name in names]
    assert groups.named_groups(layout(*paths), setting) == expected
    with_column = Layout([ImageFile(path, "a", "", "7") for path in paths], ["a"], "labels.csv", (), 0)
    assert groups.named_groups(with_column, setting) == [("column 7", *of_path) for of_path in expected]


def test_the_folder_is_below_the_class_folder_at_any_depth() -> None:
    """Below split folders, and below one folder that holds all others. labels.csv has no class folder."""
    names = [f"set/{top}/{label}/p{top}/1.png" for top in ("train", "val") for label in ("a", "b")]
    images = folders.interpret("images", names, lambda _: b"")
    assert images.class_depth == 2
    assert groups.named_groups(images, "folder") == [("path ptrain",)] * 2 + [("path pval",)] * 2
    with refuses(("split.group", "pair")):
        groups.named_groups(layout("1.png", depth=None), "folder")


def patients(folder: Path, number: int = 12) -> Path:
    """Two classes, each with so many patients with three images each; patient 0 has images of both."""
    for label, first in (("cat", 0), ("dog", 100)):
        for patient in range(number):
            for image in range(3):
                name = "both" if patient == 0 else f"{label}{patient}"
                put(folder / f"{label}/{name}/{image}.png", first + 3 * patient + image)
    return folder


def test_a_patient_is_in_one_split(tmp_path: Path) -> None:
    """In every fold and with every way to name it. A photo added to a group moves nothing: its split is its name's."""
    folder = patients(tmp_path / "images")
    put(folder / "cat/lone.png", 900)
    for fold in range(2):
        rows, counts = do_split(folder, group="folder", fold=fold)
        splits = splits_by_path(rows)
        of_patients = {(path.split("/")[1], name) for path, name in splits.items()}
        assert len(of_patients) == len({patient for patient, _ in of_patients}) == 24
        assert counts["groups"] == {"named": 23, "images_without": 1, "across_splits": 0}
        assert (counts["near_duplicate_groups"], counts["largest_group"]) == (0, 6)
        by_expression, _ = do_split(folder, group=r"^[^/]*/([^/]*)/", fold=fold)
        assert splits_by_path(by_expression) == splits
    for seed in range(8):
        put(folder / f"cat/cat1/new{seed}.png", 700 + seed)
    after = splits_by_path(do_split(folder, group="folder", fold=fold)[0])
    assert {path: after[path] for path in splits} == splits
    assert {after[f"cat/cat1/new{seed}.png"] for seed in range(8)} == {splits["cat/cat1/0.png"]}
    put(folder / "cat/cat2/near.png", 3, side=48)  # the same image, larger, is cat1's: so the two are together
    rows, _ = do_split(folder, group="folder")
    assert len({row.group for row in rows if row.path.startswith(("cat/cat1/", "cat/cat2/"))}) == 1


def test_a_group_on_two_sides_of_a_given_split_is_counted_and_not_moved(tmp_path: Path) -> None:
    """It is named, and its images in train stay in train when test is cut."""
    patients(tmp_path / "train")
    for label, first in (("cat", 500), ("dog", 600)):
        for image in range(2):
            put(tmp_path / f"val/{label}/{label}1/{image}.png", first + image)
    rows, counts = do_split(tmp_path, group="folder")
    assert (counts["groups"]["across_splits"], sum(row.split == "val" for row in rows)) == (2, 4)
    assert {row.split for row in rows if row.path.startswith(("train/cat/cat1/", "train/dog/dog1/"))} == {"train"}
