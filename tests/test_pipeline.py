"""The pipeline under real DVC, in temporary copies of the project."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks.harness.workspace import STAGES
from pipeline.base import files
from pipeline.running.runs import Run
from pipeline.versioning import dvc_lock
from tests.conftest import set_params
from tests.helpers.projects import call, create_project


def table(folder: Path, name: str) -> list[dict[str, str]]:
    return files.read_csv(folder / f"metrics/{name}.csv")


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
    """From an archive of real photos to counts, which add up to all images, a model and its figures."""
    counts = {row["finding"]: int(row["number"]) for row in table(real, "findings")}
    assert [counts[key] for key in ("images", "exact_duplicate_pairs", "conflicts")] == [40, 3, 1]
    names = ("train", "val", "test", "excluded")
    images = {name: sum(int(row[name]) for row in table(real, "images")) for name in names}
    assert images["excluded"] == sum(int(row["images"]) for row in table(real, "excluded")) == 40 - counts["kept"]
    assert sum(images.values()) == 40
    assert sum(int(row["images"]) for row in table(real, "per_class")) == images["test"]
    assert (real / "models/model.safetensors").stat().st_size > 1_000_000
    page = (real / "reports/index.html").read_text()
    assert "CC-BY by " in page
    assert len(page) < 1_500_000


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, finished: Path) -> Path:
    """A copy of the finished project on drawn flowers."""
    return shutil.copytree(finished, tmp_path_factory.mktemp("drawn") / "project", symlinks=True)


def test_dvc_shows_the_run(project: Path) -> None:
    """The figures are those that `dvc metrics show` reads."""
    metrics = json.loads(call(project, "dvc", "metrics", "show", "--json").stdout)[""]["data"]
    for name in ("metrics/eval.json", "metrics/train.json"):
        assert metrics[name]["data"] == json.loads((project / name).read_text())


def test_the_lock_and_the_outputs_hold_no_place_and_no_time(project: Path) -> None:
    """dvc.lock and all outputs that are text contain no path of this machine."""
    for path in [
        project / "dvc.lock",
        project / "data/split.csv",
        *(project / "metrics").iterdir(),
        *(project / "models" / name for name in ("model.json", "config.json", "README.md")),
        project / "reports/index.html",
    ]:
        assert str(project) not in path.read_text()
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


@pytest.mark.slow("needs the pipeline on real photos; make test compares what dvc.yaml tracks")
def test_the_number_of_processes_is_tracked_unless_the_way_is_elastic(real: Path) -> None:
    """A change of run.processes is a change for DVC with ddp, and none with elastic."""
    params, statuses = (real / "params.yaml").read_bytes(), {}
    try:
        for parallel in ("ddp", "elastic"):
            for count in (2, 3):
                changes = {"train__parallel": parallel, "run__processes": count}
                set_params(real, **changes)
                statuses[parallel, count] = call(real, "dvc", "status", "train", "--json").stdout
    finally:
        (real / "params.yaml").write_bytes(params)
    assert json.loads(statuses["ddp", 2]) == {}
    assert "run.processes" in statuses["ddp", 3]
    assert "pipeline/tracked/elastic.yaml" in statuses["elastic", 2]  # it contains no number of processes
    assert statuses["elastic", 2] == statuses["elastic", 3]


@pytest.mark.nightly("six runs of DVC; make test has the rule that no tracked table holds a key called size")
def test_changing_a_size_brings_no_old_data_back(tmp_path: Path) -> None:
    """Sizes A, B, A, B with a warm run cache: the drawn and the packed images always have the requested size."""
    small, large = (32, 40), (48, 40)  # prepare.size, data.synthetic.size
    folder = create_project(tmp_path / "sizes", data__source="synthetic", split__phash_distance=0)
    for packed, side in (small, large, small, large, (48, 80), small):
        changes = {"prepare__size": packed, "data__synthetic": {"count": 50, "size": side}}
        set_params(folder, **changes)
        output = call(folder, "dvc", "repro", "prepare").stdout
        assert json.loads((folder / "data/packed/digest.json").read_text())["size"] == packed, output
        with Image.open(next((folder / "data/images").rglob("*.png"))) as image:
            assert all(0.7 * side < length < 1.3 * side for length in image.size), output
    assert output.count("is cached - skipping run") == 3


@pytest.mark.nightly("three more runs under DVC; make test-ci has a study, which refuses a split of other images")
def test_another_fold_packs_no_image_again(tmp_path: Path) -> None:
    """Nor do another seed, share of the training images and class that is left out: `split` runs, `prepare` does not.

    A run that packs replaces the folder.
    """
    drawn = {"data__source": "synthetic", "data__synthetic": {"count": 60, "size": 40}, "split__phash_distance": 0}
    folder = create_project(tmp_path / "folds", **drawn, split__folds=3)
    call(folder, "dvc", "repro", "prepare")

    def made(changes: dict[str, Any]) -> tuple[str, tuple[Any, int]]:
        """The hash of split.csv; what dvc.lock says of `prepare`, and which folder is there."""
        set_params(folder, **changes)
        call(folder, "dvc", "repro", "prepare")
        lock = dvc_lock.read(folder / "dvc.lock")
        return lock["split"]["outs"]["data/split.csv"], (lock["prepare"], (folder / "data/packed").stat().st_ino)

    table, packed = made({})
    label = min(path.name for path in (folder / "data/images").iterdir() if path.is_dir())
    others: list[dict[str, Any]] = [
        {"split__fold": 1},
        {"split__seed": 7},
        {"split__train_share": 0.5},
        {"split__leave_out": label},
    ]
    results = [made(changes) for changes in others]
    assert len({table, *(other for other, _ in results)}) == len(results) + 1
    assert [other for _, other in results] == [packed] * len(results)
    assert made({"prepare__size": 48})[1] != packed


def test_a_refused_run_writes_nothing(tmp_path: Path) -> None:
    """The first stage refuses params that this machine cannot run, before anything is downloaded or written."""
    folder = create_project(tmp_path / "refused", train__device="cuda", run__processes=64)
    refusal = call(folder, "dvc", "repro", check=False)
    assert refusal.returncode != 0
    assert "download: train.device: " in refusal.stderr or "download: run.processes: " in refusal.stderr
    assert "Traceback" not in refusal.stderr
    assert not (folder / "dvc.lock").exists()
    assert not (folder / "data/images").exists()
