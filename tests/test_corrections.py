"""data/corrections.csv: labels that a person corrects, and images that a person leaves out."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.workspace import STAGE_TABLES
from pipeline.base import files
from pipeline.config import params
from pipeline.data import corrections
from pipeline.dataset import packed
from pipeline.sources.layout import ImageFile, Layout
from pipeline.sources.originals import Originals
from pipeline.sources.user_table import Table
from pipeline.stages import prepare, split
from tests.conftest import PROJECT, on_cpu
from tests.helpers.datasets import reasons, settings, splits_by_path
from tests.helpers.refusals import refuses

LAYOUT = Layout(
    [ImageFile(path, path.split("/")[0], "") for path in ("cat/1.png", "cat/2, b.png", "dog/3.png", "dog/é.png")],
    ["cat", "dog"],
    "class folders",
)


def read(content: str) -> Table:
    files.write_text(corrections.FILE, content)
    return corrections.read()


def do_split(folder: Path, *lines: str, **changes: Any) -> split.Result:
    table = read("\n".join(["path,label,reason", *lines, ""]))
    return split.split(Originals(folder, {}), settings(**changes), 2, table)


# ---- the table ----


@pytest.mark.usefixtures("here")
def test_a_table_is_read() -> None:
    """In every form that test_labels.py has."""
    content = '\ufeffpath;label;reason\r\nCAT/1;dog;"is a; \u200cdog"\r\n;;\r\ncat/2, b.png;exclude;\r\n'
    corrected = corrections.apply(read(content), LAYOUT)
    assert [file.label for file in corrected.layout.image_files] == ["dog", "cat", "dog", "dog"]
    assert corrected.reasons == {"cat/2, b.png": "excluded by hand"}
    assert corrected.counts == {"relabelled": 1, "excluded": 1, "unchanged": 0}


def test_the_table_of_the_project_has_no_correction() -> None:
    """The committed file changes nothing, and a split without corrections says nothing of them. Split depends on it."""
    assert str(corrections.FILE) in STAGE_TABLES["split"]["deps"]
    assert (PROJECT / corrections.FILE).read_text() == corrections.EMPTY
    corrected = corrections.apply(corrections.read(PROJECT / corrections.FILE), LAYOUT)
    assert (corrected.layout, corrected.reasons, corrected.counts) == (LAYOUT, {}, {})


@pytest.mark.usefixtures("here")
def test_what_changes_nothing_or_is_not_read_is_said() -> None:
    """A label that is right already, and columns with other names."""
    corrected = corrections.apply(read("path,label,by\ndog/é.png,dog,me\n"), LAYOUT)
    assert corrected.counts == {"relabelled": 0, "excluded": 0, "unchanged": 1}
    unchanged, columns = corrected.layout.notes[1:]
    assert unchanged.endswith(": 1 (first: dog/é.png)")
    assert columns.endswith(": by")


# ---- what split makes of it ----


def test_a_corrected_image_keeps_its_split_and_has_the_new_label(small: Path) -> None:
    """The split follows from the content. No other image moves, with a label corrected or an image left out."""
    plain, corrected = do_split(small), do_split(small, "cat/3.png,dog,is a dog", "dog/104.png,exclude,no animal")
    after, before = splits_by_path(corrected.rows), splits_by_path(plain.rows)
    assert [(row.path, row.label) for row in corrected.rows] == [
        (row.path, "dog" if row.path == "cat/3.png" else row.label) for row in plain.rows
    ]
    assert after == before | {"dog/104.png": ""}
    assert reasons(corrected.rows) == {"dog/104.png": "excluded by hand: no animal"}
    assert corrected.counts["corrections"] == {"relabelled": 1, "excluded": 1, "unchanged": 0}
    assert "corrections" not in plain.counts
    assert {label: sum(of.values()) for label, of in corrected.counts["classes"].items()} == {"cat": 9, "dog": 11}


def test_a_correction_resolves_conflicting_labels(small: Path) -> None:
    """Equal images of two classes are both left out; with one of them corrected or excluded, one is used. Of two equal
    images of one class, only one of which gets another label, both are left out.
    """
    shutil.copy(small / "cat/2.png", small / "dog/same.png")
    assert set(reasons(do_split(small).rows).values()) == {"conflicting labels"}
    relabelled = do_split(small, "dog/same.png,cat,")
    assert reasons(relabelled.rows) == {"dog/same.png": "duplicate of cat/2.png"}
    assert (relabelled.counts["conflicts"], relabelled.counts["exact_duplicate_pairs"]) == (0, 1)
    excluded = do_split(small, "cat/2.png,exclude,is a dog")
    assert reasons(excluded.rows) == {"cat/2.png": "excluded by hand: is a dog"}
    assert excluded.counts["conflicts"] == 0
    (small / "dog/same.png").rename(small / "cat/same.png")
    assert set(reasons(do_split(small, "cat/same.png,dog,").rows)) == {"cat/2.png", "cat/same.png"}
    with refuses(("classes", "missing")):  # as any class with too few images is
        do_split(small, *(f"cat/{number}.png,dog," for number in range(10)), "cat/same.png,dog,")


def test_an_excluded_file_may_be_broken(small: Path) -> None:
    """It does not count for split.max_unreadable; its reason is the person's."""
    (small / "cat/cut.png").write_bytes((small / "cat/1.png").read_bytes()[:60])
    with refuses(("split.max_unreadable", "damaged")):
        do_split(small, max_unreadable=0)
    result = do_split(small, "cat/cut.png,exclude,broken", max_unreadable=0)
    assert reasons(result.rows) == {"cat/cut.png": "excluded by hand: broken"}


@pytest.mark.usefixtures("small")
def test_the_new_label_reaches_the_tables_and_the_packed_images(
    raw: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """split.csv, images.csv, excluded.csv, findings.csv, the packed labels, and the lines on the terminal."""
    read("path,label,reason\ncat/3.png,dog,\ncat/4.png,exclude,blurred\ncat/5.png,exclude,a mouse\n")
    config = params.parse(on_cpu(raw, split__min_side=16, prepare__size=16))
    split.run(config)
    prepare.run(config)
    data = packed.load(Path(config.paths.packed), Path(config.paths.split))
    assert data.classes[data.labels[data.paths.index("cat/3.png")]] == "dog"
    assert "cat/4.png" not in data.paths
    of = {row["class"]: row for row in files.read_csv(Path("metrics/images.csv"))}
    assert [sum(int(of[label][part]) for part in ("train", "val", "test")) for label in ("cat", "dog")] == [7, 11]
    assert files.read_csv(Path("metrics/excluded.csv")) == [
        {"reason": "excluded by hand", "images": "2", "first": "cat/4.png"}
    ]
    counts = {row["finding"]: row["number"] for row in files.read_csv(Path("metrics/findings.csv"))}
    assert (counts["corrections.relabelled"], counts["corrections.excluded"]) == ("1", "2")
    assert "2 excluded by hand (first: cat/4.png)\n" in capsys.readouterr().out
