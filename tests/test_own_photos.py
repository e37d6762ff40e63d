"""Own photos under real DVC: versioned, in a clone, with a photo added by a colleague."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.workspace import STAGES
from pipeline.base import files
from pipeline.sources import synthetic
from tests.conftest import PROJECT
from tests.helpers.projects import call, commit, create_project

SMALL: dict[str, Any] = {"train__epochs": 1, "split__phash_distance": 0}


def splits(folder: Path) -> dict[str, str]:
    return {row["path"]: row["split"] or row["reason"] for row in files.read_csv(folder / "data/split.csv")}


def ran(folder: Path, *command: str) -> list[str]:
    """The stages that a command of DVC ran."""
    lines = call(folder, *command).stdout.splitlines()
    return [line.split("'")[1] for line in lines if line.startswith("Running stage")]


def repro(folder: Path) -> list[str]:
    """What `perennial repro` and DVC print."""
    return call(folder, "python", "-m", "pipeline", "repro", "--verbose").stdout.splitlines()


def clone(folder: Path, target: Path) -> Path:
    """A Git clone with the DVC remote of the original."""
    call(folder.parent, "git", "clone", "--quiet", str(folder), str(target))
    return target


@pytest.mark.parametrize("name", ["data", "experiments", "operations"])
def test_the_line_that_adds_photos_can_be_typed_again(name: str, tmp_path: Path) -> None:
    """It names the folders of the inbox, and not the files of `dvc add` beside them, which DVC refuses."""
    for made in ("data/inbox/roses.dvc", "data/inbox/roses/1.jpg"):
        files.write_text(tmp_path / made, "")
    lines = re.findall(r"dvc add (data/inbox/\*[^ `]*)", (PROJECT / f"docs/{name}.md").read_text(encoding="utf-8"))
    assert [[*tmp_path.glob(line)] for line in lines] == [[tmp_path / "data/inbox/roses"]]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 drawn photos, and beside them others."""
    folder = tmp_path_factory.mktemp("photos")
    for seed, name in enumerate(("photos", "more")):
        (folder / name).mkdir()
        synthetic.draw(folder / name, count=60, size=48, seed=seed, workers=2)
    return folder


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    """The owner's project: photos in the inbox, versioned with `dvc add`, run, committed and pushed."""
    folder = create_project(tmp_path_factory.mktemp("owner") / "project", data__source="inbox", **SMALL)
    shutil.copytree(photos / "photos", folder / "data/inbox", dirs_exist_ok=True)
    call(folder, "dvc", "add", *(f"data/inbox/{path.name}" for path in (photos / "photos").iterdir()))
    call(folder, "dvc", "repro")
    push(folder)
    return folder


def push(folder: Path) -> None:
    """Commit, and push to a storage beside the project."""
    call(folder, "dvc", "remote", "add", "--default", "storage", str(folder.parent / "storage"))
    commit(folder)
    call(folder, "dvc", "push")


def add_photo(photos: Path, inbox: Path) -> str:
    """Put one new photo into a class folder of the inbox; its path."""
    source = next((photos / "more/poppy").iterdir())
    shutil.copy(source, inbox / "poppy/new.png")
    return "poppy/new.png"


@pytest.mark.nightly("two whole pipelines under DVC; make test splits a photo more, and repeats nothing that is done")
def test_a_clone_repeats_nothing_and_takes_a_new_photo(owner: Path, photos: Path, tmp_path: Path) -> None:
    """No other photo moves. `perennial repro` says which class got the photo, and the accuracy before."""
    folder = clone(owner, tmp_path / "clone")
    call(folder, "dvc", "pull")
    assert ran(folder, "dvc", "repro") == []
    assert call(folder, "git", "status", "--porcelain").stdout == ""
    name, before = add_photo(photos, folder / "data/inbox"), splits(folder)
    tested, lines = json.loads((folder / "metrics/eval.json").read_bytes())["accuracy"], repro(folder)
    assert {line.split("'")[1] for line in lines if line.startswith("Running stage")} == {*STAGES} - {"weights"}
    after = splits(folder)
    assert after.pop(name) in {"train", "val", "test"}
    assert after == before
    [accuracy] = [line for line in lines if line.startswith("earlier test accuracy ")]
    assert accuracy.split()[3] == f"{tested:.4f}"
    assert f", {[*before.values()].count('test')} images)" in accuracy
    assert "used images since then   1 added (poppy 1)" in lines
    assert not [line for line in repro(folder) if line.startswith(("earlier test accuracy ", "used images since "))]
    assert "data/inbox/poppy.dvc" in call(folder, "git", "status", "--porcelain").stdout


@pytest.mark.nightly("two trainings under DVC; make test-ci runs from a folder of photos to a model (test_start)")
def test_a_folder_is_read_where_it_is(photos: Path, tmp_path: Path) -> None:
    """A new photo is noticed and used. A clone without the folder trains on what `dvc pull` brings."""
    inbox = shutil.copytree(photos / "photos", tmp_path / "my photos")
    folder = create_project(tmp_path / "project", data__source="folder", paths__inbox=str(inbox), **SMALL)
    call(folder, "dvc", "repro")
    commit(folder)
    assert sorted(path.name for path in (folder / "data/images").iterdir()) == [".manifest.csv", "LICENSE.txt"]
    before = splits(folder)
    assert len(before) == 60
    name = add_photo(photos, inbox)
    assert set(ran(folder, "dvc", "repro")) == {*STAGES} - {"weights"}
    after = splits(folder)
    assert after.pop(name) in {"train", "val", "test"}
    assert after == before
    push(folder)
    elsewhere = clone(folder, tmp_path / "clone")
    shutil.move(inbox, tmp_path / "gone")
    call(elsewhere, "dvc", "pull")
    assert ran(elsewhere, "dvc", "repro", "--allow-missing") == []
    call(elsewhere, "dvc", "exp", "run", "--allow-missing", "evaluate", "-S", "train.lr=0.005")
    assert (elsewhere / "metrics/eval.json").read_bytes() != (folder / "metrics/eval.json").read_bytes()
