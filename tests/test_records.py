"""A record can be repeated: its command sets its params, its figures add up, and its images have a digest."""

import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import workspace
from pipeline.base import files
from pipeline.commands import demo, folds
from pipeline.config import params
from pipeline.sources import originals
from pipeline.studies import record
from pipeline.versioning import children, dvc_lock
from tests.conftest import PROJECT, change
from tests.documents.markdown import BLOCK
from tests.helpers.projects import call, commit, create_project

RECIPES = sorted((PROJECT / record.RECIPES).glob("*.json"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_command_of_a_row_trains_what_its_record_says(path: Path, raw: dict[str, Any]) -> None:
    """`perennial folds --recipe NAME` sets every param, seed and fold of the record, whose figures add up."""
    recipe, config = record.read(path), params.parse(change(raw, train__lr=0.77))
    study = folds.make_plan(config, None, None, 1, recipe)
    trainings = [(seed, fold) for seed in study.seeds for fold in range(study.folds)]
    assert sorted((part.seed, part.fold) for part in recipe.parts) == trainings
    for seed, fold in trainings:
        training = params.with_values(config, study.changes(seed, fold))
        assert (training.train.seed, training.split.fold) == (seed, fold)
        assert record.decisive(training) == recipe.params
    images, right = (sum(getattr(part, name) for part in recipe.parts) for name in ("images", "right"))
    assert recipe.figures["images"] * len(recipe.seeds) == images
    assert recipe.figures["accuracy"] == pytest.approx(right / images, abs=1e-9)


def test_the_digest_is_that_of_the_command_in_the_document(tmp_path: Path) -> None:
    """For a copy of the images, and for a manifest of images that stay where they are. One byte changes it."""
    for name in ("b/2.jpg", "a/one 1.png", "a.txt", "LICENSE.txt", ".hidden"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(name)
    originals.write_manifest(tmp_path / "in", tmp_path / "manifest", 1)
    (text,) = [line for line in (PROJECT / "results/README.md").read_text().splitlines() if line.startswith("find . ")]
    stdout = subprocess.run(
        ["bash", "-c", text], cwd=tmp_path / "in", capture_output=True, text=True, check=True
    ).stdout
    digests = [record.digest(originals.locate(tmp_path / name, tmp_path / "in"), 2) for name in ("in", "manifest")]
    assert digests == [stdout.split()[0]] * 2
    (tmp_path / "in/a.txt").write_text("other")
    assert record.digest(originals.locate(tmp_path / "in", tmp_path), 2) != digests[0]


MINI = PROJECT.parent / "shared/data/flower_photos_mini.tgz"  # 735 original photos


@pytest.mark.skipif(not MINI.is_file(), reason=f"needs {MINI.name}, which the project does not contain")
def test_the_commands_in_the_document_make_the_folder_of_one_fifth(tmp_path: Path) -> None:
    """From an archive with more photos and credits, in another order: the digest is that of the record."""
    with tarfile.open(MINI) as tar:
        tar.extractall(tmp_path / "all", filter="data")
    folder = tmp_path / "all/flower_photos"
    shutil.copy(folder / "daisy/10140303196_b88d3d6cec.jpg", folder / "daisy/1.jpg")
    with (folder / "LICENSE.txt").open("a") as credits:
        credits.write("daisy/1.jpg CC-BY by nobody\n")
    with tarfile.open(tmp_path / "flower_photos.tgz", "w:gz", compresslevel=0) as tar:
        tar.add(folder, "flower_photos")
    (tmp_path / "results").symlink_to(PROJECT / "results")
    blocks = [text for _, text in BLOCK.findall((PROJECT / "results/README.md").read_text())]
    (commands,) = [text for text in blocks if "mini.txt" in text]
    subprocess.run(["bash", "-euo", "pipefail", "-c", commands], cwd=tmp_path, check=True)
    images = originals.locate(tmp_path / "mini/flower_photos", tmp_path)
    assert record.digest(images, 2) == record.read(PROJECT / record.RECIPES / "mini.json").origin.images


def test_the_origin_says_that_code_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a new file of code. Other params are no other code: a record has its params."""
    project = create_project(tmp_path / "project")
    monkeypatch.chdir(project)
    head = call(project, "git", "rev-parse", "HEAD").stdout.strip()
    (project / "params.yaml").write_text("")
    assert record.commit() == head
    (project / "pipeline/new.py").touch()
    assert record.commit() == f"{head}-dirty"
    commit(project)
    assert record.commit() not in (head, f"{head}-dirty")


# ---- the demo ----


RESULTS = PROJECT / record.DEMO
RECORDED = dvc_lock.outputs(dvc_lock.read(PROJECT / demo.LOCK))


def test_the_record_has_every_output_of_every_stage() -> None:
    """results/demo/dvc.lock names exactly what dvc.yaml declares as outputs and metrics; no path is of its machine."""
    outputs = {name for stage in workspace.STAGES for name in workspace.declared(stage)}
    assert set(RECORDED) == outputs
    for stage in dvc_lock.read(PROJECT / demo.LOCK).values():
        assert not [path for path in (*stage["deps"], *stage["outs"]) if path.startswith("/") or ".." in path]
    figures = [name for name in demo.COPIED if name.startswith("metrics/")]  # beside it: of the same run
    assert {name: files.md5(RESULTS / name) for name in figures} == {name: RECORDED[name] for name in figures}


def test_an_output_that_differs_is_named_with_both_hashes() -> None:
    """One sentence per output that differs, is new, or is missing; none for equal ones."""
    committed = {"a": "1", "b": "2", "c": "3"}
    assert demo.compare(committed, committed) == []
    lines = demo.compare({"a": "1", "b": "9", "d": "4"}, committed)
    assert [re.findall(r"\b\w\b|none", line) for line in lines] == [[*"b92"], ["c", "none", "3"], ["d", "4", "none"]]


def test_a_new_record_names_the_outputs_of_which_studies_have_hashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, if they are others: then the studies in results/ are stale. Another page makes no study stale."""
    shutil.copytree(RESULTS, tmp_path / record.DEMO)
    shutil.copytree(RESULTS, tmp_path / demo.FOLDER)
    monkeypatch.chdir(tmp_path)
    text = Path(demo.LOCK).read_text()
    for changed, expected in (("reports/index.html", []), ("metrics/predictions.csv", ["metrics/predictions.csv"])):
        text = text.replace(RECORDED[changed], "f" * 32)
        (demo.FOLDER / "dvc.lock").write_text(text)
        assert [demo.record_run(), demo.record_run()] == [expected, []]


def test_hooks_and_signatures_of_the_user_do_not_end_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are set for every repository, and would sign for `demo@localhost`, of whom nobody has a key."""
    (tmp_path / "pre-commit").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "pre-commit").chmod(0o755)
    settings = f"[commit]\ngpgsign = true\n[gpg]\nprogram = false\n[core]\nhooksPath = {tmp_path}\n"
    (tmp_path / "gitconfig").write_text(settings)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setattr(children, "run", lambda *_, **__: 0)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/a").touch()
    assert demo.run(tmp_path / "copy") == 0


def test_the_demo_has_its_own_params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the project has."""
    monkeypatch.chdir(PROJECT)
    demo.create_copy(tmp_path / "copy")
    assert (tmp_path / "copy/params.yaml").read_bytes() == (RESULTS / "params.yaml").read_bytes()
