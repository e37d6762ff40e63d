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


@pytest.mark.nightly("a whole pipeline on real photos under DVC, twice; make test-ci has one on drawn images")
def test_real_photos_become_a_measured_model(tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From an archive of real photos to a page with their credits. Forced, each stage writes the same bytes again."""
    url = {"data__url": f"file://{archive}", "data__sha256": files.sha256(archive)}
    real = create_project(tmp_path / "real", **url, train__parallel="ddp", run__processes=2)
    call(real, "dvc", "repro")
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
