"""The pipeline under real DVC, in temporary copies of the project."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks.harness.workspace import STAGES
from pipeline.base import files
from pipeline.data import synthetic
from pipeline.training.runs import Run
from tests.conftest import change, read_params, write_params
from tests.helpers.projects import call, create_project


def data(folder: Path, name: str) -> Any:
    return json.loads((folder / "metrics" / name).read_text())


def table(folder: Path, name: str) -> list[dict[str, str]]:
    return files.read_csv(folder / f"metrics/{name}.csv")


def splits(folder: Path) -> dict[str, str]:
    with (folder / "data/split.csv").open(newline="") as rows:
        return {row["path"]: row["split"] or row["reason"] for row in csv.DictReader(rows)}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, archive: Path) -> Path:
    """A finished `dvc repro` on the forty real photos."""
    folder = create_project(
        tmp_path_factory.mktemp("real"),
        data__url=f"file://{archive}", data__sha256=files.sha256(archive), train__parallel="ddp", run__processes=2,
    )  # fmt: skip
    call(folder, "dvc", "repro")
    return folder


@pytest.mark.slow("a whole pipeline on real photos under DVC; make test has one on drawn images")
def test_real_photos_become_a_measured_model(real: Path) -> None:
    """From an archive of real photos to counts, a model and its figures; the counts add up to all images."""
    counts = {row["finding"]: int(row["number"]) for row in table(real, "findings")}
    assert counts["images"] == 40
    assert counts["exact_duplicate_pairs"] == 3
    assert counts["conflicts"] == 1
    classes, excluded = table(real, "images"), table(real, "excluded")
    images = {name: sum(int(row[name]) for row in classes) for name in ("train", "val", "test", "excluded")}
    assert images["excluded"] == sum(int(row["images"]) for row in excluded) == 40 - counts["kept"]
    assert sum(images.values()) == 40
    assert sum(int(row["images"]) for row in table(real, "per_class")) == images["test"]
    assert (real / "models/model.safetensors").stat().st_size > 1_000_000
    page = (real / "reports/index.html").read_text()
    assert "CC-BY by " in page
    assert "<h4>duplicate: 2 files</h4>" in page
    assert len(page) < 1_500_000


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory, finished: Path) -> Path:
    """A copy of the finished project on drawn flowers."""
    return shutil.copytree(finished, tmp_path_factory.mktemp("drawn") / "project", symlinks=True)


def test_nothing_changed_runs_nothing(drawn: Path) -> None:
    """A second `dvc repro` runs no stage and does not change dvc.lock; `dvc status` reports no change."""
    before = (drawn / "dvc.lock").read_bytes()
    again = call(drawn, "dvc", "repro")
    assert "Running stage" not in again.stdout
    assert "up to date" in again.stdout
    assert (drawn / "dvc.lock").read_bytes() == before
    assert "up to date" in call(drawn, "dvc", "status").stdout


def test_dvc_shows_the_run(drawn: Path) -> None:
    """DVC's own commands can read the outputs."""
    assert "evaluate" in call(drawn, "dvc", "dag").stdout
    shown = json.loads(call(drawn, "dvc", "metrics", "show", "--json").stdout)[""]["data"]
    assert {name: of["data"] for name, of in shown.items()} == {
        f"metrics/{name}": data(drawn, name) for name in ("eval.json", "train.json")
    }
    call(drawn, "dvc", "plots", "show")
    page = (drawn / "dvc_plots/index.html").read_text()
    assert all(name in page for name in ("Loss", "Accuracy", "Confusion", "Calibration", "val_loss"))


def test_the_lock_and_the_outputs_hold_no_place_and_no_time(drawn: Path) -> None:
    """dvc.lock and all outputs that are text contain no path of this machine."""
    for path in [
        drawn / "dvc.lock",
        drawn / "data/split.csv",
        *(drawn / "metrics").iterdir(),
        *(drawn / "models" / name for name in ("model.json", "config.json", "README.md")),
        drawn / "reports/index.html",
    ]:
        assert str(drawn) not in path.read_text()
        assert "file://" not in path.read_text()


@pytest.mark.slow("a whole pipeline on real photos under DVC; make test has one on drawn images")
def test_forced_again_gives_the_same_bytes(real: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forced second run of prepare, train, evaluate and report really trains, and writes the same dvc.lock.

    The next start of a training removes the checkpoint of the finished run, because dvc.lock records its model.
    """
    before = (real / "dvc.lock").read_bytes()
    stages = STAGES[STAGES.index("train") :]
    forced = call(real, "dvc", "repro", "--force", "--single-item", "prepare", *stages)
    assert "epoch 1/1" in forced.stderr
    assert (real / "dvc.lock").read_bytes() == before
    monkeypatch.chdir(real)
    Run(Path("runs/another"), "another").begin()
    assert list(real.glob("runs/*/provenance.json"))
    assert not list(real.glob("runs/*/*checkpoint.pt"))


@pytest.mark.slow("a training under DVC; make test compares the launchers' bytes without it")
def test_spawn_writes_what_torchrun_wrote(real: Path) -> None:
    """Another launcher is no tracked change; a forced run with it writes the same bytes."""
    before, params = (real / "dvc.lock").read_bytes(), (real / "params.yaml").read_bytes()
    try:
        write_params(real / "params.yaml", change(read_params(real / "params.yaml"), run__launcher="spawn"))
        assert "up to date" in call(real, "dvc", "status").stdout
        call(real, "dvc", "repro", "--force", "--single-item", "train")
        assert (real / "dvc.lock").read_bytes() == before
    finally:
        (real / "params.yaml").write_bytes(params)


@pytest.mark.slow("a whole pipeline on real photos under DVC; make test has one on drawn images")
def test_going_back_to_old_params_trains_nothing(real: Path) -> None:
    """Params A, then B, then A again: the third run takes all stages from the run cache, with the same dvc.lock."""
    before, params = (real / "dvc.lock").read_bytes(), (real / "params.yaml").read_bytes()
    write_params(real / "params.yaml", change(read_params(real / "params.yaml"), train__lr=0.0123))
    call(real, "dvc", "repro")
    assert (real / "dvc.lock").read_bytes() != before
    (real / "params.yaml").write_bytes(params)
    back = call(real, "dvc", "repro")
    assert "Running stage" not in back.stdout
    assert "is cached - skipping run" in back.stdout
    assert (real / "dvc.lock").read_bytes() == before


@pytest.mark.slow("needs the pipeline on real photos; make test compares what dvc.yaml tracks")
def test_the_number_of_processes_is_tracked_unless_the_way_is_elastic(real: Path) -> None:
    """A change of run.processes is a change for DVC with ddp, and none with elastic."""
    params, statuses = (real / "params.yaml").read_bytes(), {}
    try:
        for parallel in ("ddp", "elastic"):
            for count in (2, 3):
                changes = {"train__parallel": parallel, "run__processes": count}
                write_params(real / "params.yaml", change(read_params(real / "params.yaml"), **changes))
                statuses[parallel, count] = call(real, "dvc", "status", "train", "--json").stdout
    finally:
        (real / "params.yaml").write_bytes(params)
    assert json.loads(statuses["ddp", 2]) == {}
    assert "run.processes" in statuses["ddp", 3]
    assert "pipeline/tracked/elastic.yaml" in statuses["elastic", 2]  # it contains no number of processes
    assert statuses["elastic", 2] == statuses["elastic", 3]


@pytest.mark.slow("six runs of DVC; make test has the rule that no tracked table holds a key called size")
def test_changing_a_size_brings_no_old_data_back(tmp_path: Path) -> None:
    """Sizes A, B, A, B with a warm run cache: the drawn and the packed images always have the requested size."""
    small, large = (32, 40), (48, 40)  # prepare.size, data.synthetic.size
    drawn = {"count": 50}
    folder = create_project(tmp_path / "sizes", data__source="synthetic", split__phash_distance=0)
    for packed, side in (small, large, small, large, (48, 80), small):
        changes = {"prepare__size": packed, "data__synthetic": {**drawn, "size": side}}
        write_params(folder / "params.yaml", change(read_params(folder / "params.yaml"), **changes))
        output = call(folder, "dvc", "repro", "prepare").stdout
        assert np.load(folder / "data/packed/images.npy", mmap_mode="r").shape[1:] == (packed, packed, 3), output
        with Image.open(next((folder / "data/images").rglob("*.png"))) as opened:
            assert all(0.7 * side < length < 1.3 * side for length in opened.size), output
    assert output.count("is cached - skipping run") == 3


@pytest.mark.slow("a whole pipeline; make test adds a photo in a clone: test_own_photos.py")
def test_a_photo_in_the_inbox_moves_no_other(tmp_path: Path) -> None:
    """A photo added to data/inbox runs the stages and moves no other photo; a corrupt one is excluded and counted."""
    folder = create_project(tmp_path / "inbox", data__source="inbox", split__folds=1, split__phash_distance=0)
    synthetic.draw(folder / "data/inbox", count=80, size=48, seed=0, workers=2)
    added = sorted((folder / "data/inbox").glob("*/*.png"))[7]
    broken = str(added.with_name('broken ,"é".JPG').relative_to(folder / "data/inbox"))
    content = added.read_bytes()
    added.unlink()
    call(folder, "dvc", "repro", "evaluate")
    before = splits(folder)
    assert len(before) == 79
    added.write_bytes(content)
    (folder / "data/inbox" / broken).write_bytes(content[:2000])
    call(folder, "dvc", "repro", "evaluate")
    after = splits(folder)
    assert {path: after[path] for path in before} == before
    assert after[f"{added.parent.name}/{added.name}"] in ("train", "val", "test")
    assert after[broken] == "truncated"
    assert [tuple(row.values()) for row in table(folder, "excluded")] == [("truncated", "1", broken)]


def test_a_refused_run_writes_nothing(tmp_path: Path) -> None:
    """The first stage refuses params that this machine cannot run, before anything is downloaded or written."""
    folder = create_project(tmp_path / "refused", train__device="cuda", run__processes=64)
    refused = call(folder, "dvc", "repro", check=False)
    assert refused.returncode != 0
    assert "download: train.device: " in refused.stderr or "download: run.processes: " in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (folder / "dvc.lock").exists()
    assert not (folder / "data/images").exists()
