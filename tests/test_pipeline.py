"""The pipeline under real DVC, in temporary copies of the project: a run that is disturbed again and again, and others.

A disturbed run ends with the dvc.lock of a straight one, and says what has happened.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from PIL import Image

from benchmarks.harness import workspace
from benchmarks.harness.workspace import STAGES
from pipeline.base import files
from pipeline.base.errors import UserError
from pipeline.running.runs import Run
from pipeline.versioning import dvc_lock
from tests.conftest import set_params
from tests.helpers import in_process
from tests.helpers.damage import flip, overwrite
from tests.helpers.projects import call, create_project, object_of
from tests.helpers.trainings import gone, rank_processes, wait_for

REPRO, BY_HAND = (("-m", module, "repro", "train") for module in ("pipeline", "dvc"))
LINES: dict[str, Any] = {
    "data__source": "synthetic", "data__synthetic": {"count": 60, "size": 40}, "split__phash_distance": 0,
    "train__parallel": "elastic", "train__shards": 4, "train__model": "mobilenet_v3_small", "train__epochs": 6,
    "run__epoch_checkpoint_seconds": 0, "run__log_steps": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dvc.lock of an undisturbed run until `train`, on one process."""
    folder = create_project(tmp_path_factory.mktemp("straight") / "project", **LINES)
    in_process.run_forked(folder, "train")
    return folder / "dvc.lock"


@contextmanager
def started(folder: Path, command: tuple[str, ...]) -> Iterator[subprocess.Popen[bytes]]:
    """A run in a process group of its own, with another locale and umask. It writes to `said`. Nothing of it stays."""
    environ = workspace.environment(folder.parent) | {"LC_ALL": "C", "TMPDIR": str(folder.parent)}
    with (folder.parent / "said").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=folder, env=environ, stdout=said, stderr=said, start_new_session=True,
            umask=0o077,
        )  # fmt: skip
    yield process
    process.wait()
    wait_for(lambda: gone(folder), "a process outlives the run")


def said(folder: Path) -> str:
    return (folder.parent / "said").read_text()


def stage_of(run: subprocess.Popen[bytes], stage: str) -> psutil.Process | None:
    """The process that DVC has started for a stage; none before and after that."""
    with suppress(psutil.Error):
        children = psutil.Process(run.pid).children(recursive=True)
        return next((child for child in children if child.cmdline()[2:] == ["pipeline", stage]), None)
    return None


def entries(lock: Path) -> Mapping[str, Any]:
    """What a dvc.lock says of each stage; nothing if it is missing, or cut, which the next run repairs."""
    with suppress(UserError):
        return dvc_lock.entries(lock)
    return {}


def test_a_battered_run_ends_with_the_lock_of_a_straight_one(straight: Path, tmp_path: Path) -> None:
    """DVC is killed in `split`, a process of the training is asked to stop, a bit flips and an object is emptied."""
    folder = create_project(tmp_path / "another place", **LINES, run__processes=2)
    with started(folder, BY_HAND) as run:
        wait_for(lambda: stage_of(run, "split") or run.poll() is not None, "no split")
        run.kill()
    assert [*entries(folder / "dvc.lock")] == ["download"]
    with started(folder, REPRO) as run:
        wait_for(lambda: "epoch 1/" in said(folder) or run.poll() is not None, "no epoch")
        launcher = stage_of(run, "train")
        assert launcher, said(folder)
        rank_processes(launcher)[1].send_signal(signal.SIGTERM)
    log = said(folder)
    assert run.returncode != 0
    assert [*entries(folder / "dvc.lock")] == [*STAGES[: STAGES.index("train")]]
    flipped, emptied = object_of(folder, "data/packed", "images-00000.bin"), object_of(folder, "data/split.csv")
    content = flipped.read_bytes()
    flip(flipped)
    overwrite(emptied)
    set_params(folder, run__processes=1)
    with started(folder, REPRO):
        pass
    log += said(folder)
    assert (folder / "dvc.lock").read_bytes() == straight.read_bytes(), log
    for line in (
        "repro: .dvc/tmp/rwlock ",
        r"train: stopped by process \d: SIGTERM; saved at step \d+ of ",
        str(flipped.relative_to(folder)),
        str(emptied.relative_to(folder)),
        "going on from step ",
    ):
        assert len(re.findall(line, log)) == 1, f"{line}: {log}"
    assert len(list((folder / "runs").iterdir())) == 1
    assert flipped.read_bytes() == content


MOMENTS: dict[str, Callable[[Path, psutil.Process], bool]] = {
    "begins": lambda folder, stage: True,
    "writes": lambda folder, stage: any(any(folder.glob(f"{top}/.*.partial")) for top in ("data", "models", "runs/*")),
    "trains": lambda folder, stage: "epoch 2/" in said(folder),
    "has ended": lambda folder, stage: not stage.is_running(),  # DVC moves outputs to its cache, then writes dvc.lock
}


@pytest.mark.nightly(
    "sixteen runs that are killed at drawn moments: minutes; make test-ci has one that is killed twice"
)
@pytest.mark.parametrize("seed", range(2))
def test_killed_at_drawn_moments_it_goes_on_to_the_same_lock(straight: Path, tmp_path: Path, seed: int) -> None:
    """A drawn signal to a drawn process in each stage: no process stays, and nothing wrong is recorded."""
    draw = random.Random(seed).choice
    folder = create_project(tmp_path / "project", **LINES)
    for stage in (*STAGES[: STAGES.index("train") + 1], "train", "train"):
        set_params(folder, run__processes=draw((1, 2, 3)), run__launcher=draw(("torchrun", "spawn")))
        moment, target = draw([*MOMENTS]), draw(("run", "group", "stage", "rank"))
        number = signal.Signals[f"SIG{draw(('KILL', 'TERM', 'INT'))}"]
        with started(folder, draw((REPRO, BY_HAND))) as run:
            wait_for(lambda: stage_of(run, stage) or run.poll() is not None, f"no {stage}")  # noqa: B023
            if work := stage_of(run, stage):
                wait_for(lambda: MOMENTS[moment](folder, work) or run.poll() is not None, moment)  # noqa: B023
                with suppress(ProcessLookupError, psutil.Error):  # it has just ended
                    if target == "group":
                        os.killpg(run.pid, number)
                    elif target == "run":
                        run.send_signal(number)
                    else:
                        [work, *rank_processes(work)][-1 if target == "rank" else 0].send_signal(number)
        assert entries(folder / "dvc.lock").items() <= entries(straight).items(), said(folder)
    with started(folder, REPRO) as run:
        pass
    assert run.returncode == 0, said(folder)
    assert (folder / "dvc.lock").read_bytes() == straight.read_bytes(), said(folder)


def table(folder: Path, name: str) -> list[dict[str, str]]:
    return files.read_csv(folder / f"metrics/{name}.csv")


@pytest.mark.nightly("a whole pipeline on real photos under DVC, twice; make test-ci has one on drawn images")
def test_real_photos_become_a_measured_model(tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From an archive of real photos to counts, which add up to all images, a model and its figures."""
    url = {"data__url": f"file://{archive}", "data__sha256": files.sha256(archive)}
    real = create_project(tmp_path / "real", **url, train__parallel="ddp", run__processes=2)
    call(real, "dvc", "repro")
    counts = {row["finding"]: int(row["number"]) for row in table(real, "findings")}
    assert [counts[key] for key in ("images", "exact_duplicate_pairs", "conflicts")] == [40, 3, 1]
    names = ("train", "val", "test", "excluded")
    images = {name: sum(int(row[name]) for row in table(real, "images")) for name in names}
    assert images["excluded"] == sum(int(row["images"]) for row in table(real, "excluded")) == 40 - counts["kept"]
    assert sum(images.values()) == 40
    assert sum(int(row["images"]) for row in table(real, "per_class")) == images["test"]
    page = (real / "reports/index.html").read_text()
    assert "CC-BY by " in page
    assert len(page) < 1_500_000

    before = (real / "dvc.lock").read_bytes()
    forced = call(real, "dvc", "repro", "--force", "--single-item", "prepare", *STAGES[STAGES.index("train") :])
    assert "epoch 1/1" in forced.stderr
    assert (real / "dvc.lock").read_bytes() == before
    monkeypatch.chdir(real)
    Run(Path("runs/another"), "another").begin()  # it removes the checkpoint of the run that dvc.lock records
    assert not list(real.glob("runs/*/*checkpoint.pt"))
    set_params(real, run__processes=3)
    assert "run.processes" in call(real, "dvc", "status", "train", "--json").stdout


def test_dvc_shows_figures_and_no_output_holds_a_place(finished: Path) -> None:
    """`dvc metrics show` has the figures. dvc.lock and all outputs that are text contain no path of this machine."""
    metrics = json.loads(call(finished, "dvc", "metrics", "show", "--json").stdout)[""]["data"]
    for name in ("metrics/eval.json", "metrics/train.json"):
        assert metrics[name]["data"] == json.loads((finished / name).read_text())
    names = ("dvc.lock", "data/split.csv", "models/model.json", "models/config.json", "models/README.md")
    for path in (*map(finished.joinpath, (*names, "reports/index.html")), *(finished / "metrics").iterdir()):
        assert str(finished) not in path.read_text()
        assert "file://" not in path.read_text()


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
    """Nor do another seed, share of the training images, and class that is left out: `split` runs alone."""
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
