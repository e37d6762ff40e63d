"""Photos that are forgotten leave with their near duplicates, and the next model is one that never had them."""

import shutil
from pathlib import Path

import pytest

from pipeline.commands import forget
from pipeline.config import params
from pipeline.data import corrections
from pipeline.dataset import packed, split_table
from pipeline.dataset.split_table import ImageRow
from pipeline.sources.originals import Originals
from pipeline.stages import prepare, split
from tests.conftest import on_cpu, read_params
from tests.helpers.datasets import noise_image, settings, two_classes
from tests.helpers.refusals import refuses

CONFIG = params.parse(on_cpu(read_params()))
HEADER = "path,label,reason,who\n"


def do_split(seed: int = 3) -> None:
    """The stages split and prepare of the images in data/images."""
    source = Originals(Path("data/images"), {})
    result = split.split(source, settings(seed, val=0.2, test=0.2), 2, corrections.read())
    split_table.write(result.rows, Path("data/split.csv"), Path("data/kept.csv"))
    prepare.prepare(
        source, Path("data/kept.csv"), Path("data/packed"), CONFIG.prepare.model_copy(update={"size": 32}), 2
    )


@pytest.fixture
def project(here: Path) -> Path:
    """Twenty images in two classes, a near duplicate of the first, a copy of the second, and a correction."""
    folder = two_classes(here / "data/images")
    near = noise_image(0)
    near.putpixel((0, 0), (1, 2, 3))
    near.save(folder / "cat/near.png")
    shutil.copy(folder / "cat/1.png", folder / "cat/1 again.png")
    corrections.FILE.write_text(f"{HEADER}cat/2.png,dog,it barks,me\n")
    do_split()
    return folder


def table() -> list[str]:
    return corrections.FILE.read_text().splitlines()[1:]


@pytest.mark.parametrize(
    ("words", "gone"),
    [
        (("cat/3.png",), ["cat/3.png"]), (("data/images/cat/4.png",), ["cat/4.png"]),
        (("cat/0.png", "cat/4.png"), ["cat/0.png", "cat/4.png", "cat/near.png"]),
        (("1 again",), ["cat/1 again.png", "cat/1.png"]),
    ],
)  # fmt: skip
def test_an_image_leaves_with_those_that_are_alike(project: Path, words: tuple[str, ...], gone: list[str]) -> None:
    """A part of a path is enough if it names one image. Other lines and columns of the table stay."""
    assert [row.path for row in forget.forget(CONFIG, words)] == gone
    assert table() == ["cat/2.png,dog,it barks,me", *(f"{path},exclude,forgotten," for path in gone)]


def test_what_is_trained_next_is_what_a_set_without_them_gives(project: Path, tmp_path: Path) -> None:
    """The packed images, and the split of every image that stays, are those of a folder that never had the files."""
    gone = [row.path for row in forget.forget(CONFIG, ("cat/0.png", "dog/104.png"))]
    assert len(gone) == 3
    do_split()
    after = packed.load(Path("data/packed"), Path("data/split.csv"))
    for path in gone:
        (project / path).unlink()
    corrections.FILE.write_text(f"{HEADER}cat/2.png,dog,it barks,me\n")
    do_split()
    never = packed.load(Path("data/packed"), Path("data/split.csv"))
    assert after.digest == never.digest
    assert (after.paths, after.splits.tolist()) == (never.paths, never.splits.tolist())
    assert not {*gone} & {*never.paths}


@pytest.mark.parametrize(
    ("words", "key"),
    [(("cat/99.png",), "PHOTO:1"), (("cat/2.png", "nothing"), "PHOTO:2"), (("cat/3.png",), "PHOTO")],
)
def test_a_refusal_changes_nothing(project: Path, words: tuple[str, ...], key: str) -> None:
    """No such image; one that is forgotten already. The next run refuses a class with nearly none left."""
    forget.forget(CONFIG, ("cat/3.png",))
    corrections.FILE.write_text(corrections.FILE.read_text().replace("cat/3.png", "3"))  # an image may be named so
    before = corrections.FILE.read_bytes()
    with refuses((key, "value")):
        forget.forget(CONFIG, words)
    assert corrections.FILE.read_bytes() == before
    forget.forget(CONFIG, [f"dog/{number}.png" for number in range(100, 109)])
    with refuses(("classes", "missing")):
        do_split()


def test_groups_and_pixels_are_followed_to_the_end() -> None:
    """A copy of a near duplicate of a near duplicate belongs to them; an image without pixels to nothing."""
    cells = [("a", "1", "g"), ("b", "2", "g"), ("c", "2", ""), ("d", "3", "h"), ("e", "", ""), ("f", "", "")]
    rows = [ImageRow(path, pixels=pixels, group=group) for path, pixels, group in cells]
    assert [row.path for row in forget.together(rows, ["c"])] == ["a", "b", "c"]
    assert [row.path for row in forget.together(rows, ["e"])] == ["e"]
