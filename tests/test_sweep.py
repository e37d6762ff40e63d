"""`python -m pipeline.sweep` under real DVC: killed and started again, interrupted, with own photos."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.harness import workspace
from pipeline.base import files
from pipeline.base.errors import STOPPED
from pipeline.data import synthetic
from pipeline.studies import experiments, queueing
from tests.conftest import change, read_params, write_params
from tests.helpers.projects import call, commit, copy_project
from tests.helpers.trainings import wait_for

DRAWN: dict[str, Any] = {"data__source": "synthetic", "data__synthetic__count": 60, "data__synthetic__size": 40}
GRID = {"search": "grid", "params": {"train.lr": [0.01, 0.02, 0.03]}}
COMMAND = (sys.executable, "-m", "pipeline.sweep", "tried.yaml")
SLOW = "experiments in DVC's queue; make test has the ranges, the ranking and the page"


def project(folder: Path, ranges: Any, **changes: Any) -> Path:
    """A project with this file of ranges, with its data made ready and committed."""
    copy_project(folder, **(DRAWN | changes))
    write_params(folder / "tried.yaml", ranges)
    call(folder, sys.executable, "-m", "pipeline.repro", "prepare")
    commit(folder)
    return folder


def swept(folder: Path, *words: str) -> str:
    """What a sweep says that runs to its end. It leaves no change that Git sees, and the branch as it was."""
    done = call(folder, *COMMAND, *words)
    assert call(folder, "git", "status", "--porcelain", "--untracked-files=no").stdout == ""
    assert call(folder, "git", "symbolic-ref", "--short", "HEAD").stdout.strip() in ("master", "main")
    return done.stdout


def started(folder: Path) -> subprocess.Popen[bytes]:
    """A sweep that runs. What it says goes to the file `said` beside the project."""
    with (folder.parent / "said").open("w") as said:
        return subprocess.Popen(COMMAND, cwd=folder, env=workspace.environment(folder.parent), stdout=said, stderr=said)


def finished(folder: Path) -> dict[str, str]:
    """The name of each finished experiment → its commit."""
    of_commits = "refs/exps/[0-9a-f][0-9a-f]/**"  # the other ones are DVC's own
    lines = call(folder, "git", "for-each-ref", "--format=%(refname) %(objectname)", of_commits).stdout.splitlines()
    return {line.split()[0].split("/")[-1]: line.split()[1] for line in lines}


def of_queue(folder: Path) -> list[psutil.Process]:
    """The processes of DVC's queue in a project: its workers, what waits for the end of a worker, and what they run."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            words = {*process.cmdline()}
            if ({"queue-worker", "exec-run"} & words or {"queue", "start"} <= words) and Path(
                process.cwd()
            ).is_relative_to(folder):
                found.append(process)
    return found


def lives(process: psutil.Process) -> bool:
    """Whether a process has not ended. A zombie has."""
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def kill(running: subprocess.Popen[bytes], folder: Path) -> None:
    """Kill a sweep, what it started, and DVC's queue, as a power cut would. Returns when none of them lives."""
    started_by_it = []
    with suppress(psutil.NoSuchProcess):  # it has ended by itself
        started_by_it = psutil.Process(running.pid).children(recursive=True)
    running.kill()
    running.wait()
    while alive := [process for process in (*started_by_it, *of_queue(folder)) if lives(process)]:
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=1)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose sweep ran undisturbed."""
    folder = project(tmp_path_factory.mktemp("reference") / "project", GRID)
    swept(folder)
    return folder


@pytest.mark.slow(SLOW)
def test_the_best_by_validation_is_tested_and_no_other(reference: Path) -> None:
    """The table is in the order of the validation accuracy. Only one experiment has figures of the test images, and its
    model is the one of the best trial. `compare` gives no other trial a test accuracy.
    """
    rows, known = files.read_csv(reference / "metrics/sweep.csv"), finished(reference)
    assert sorted(row["trial"] for row in rows) == ["1", "2", "3"]
    assert sorted(rows, key=lambda row: (-float(row["val_accuracy"]), float(row["val_loss"]))) == rows
    (best,) = {*known} - {row["experiment"] for row in rows}
    has_test = [name for name in known if call(reference, "git", "ls-tree", known[name], "metrics/eval.json").stdout]
    assert has_test == [best]
    train = [
        call(reference, "git", "show", f"{known[name]}:metrics/train.json").stdout
        for name in (best, rows[0]["experiment"])
    ]
    assert train[0] == train[1]
    compared = call(reference, sys.executable, "-m", "pipeline.compare").stdout
    assert all(row["experiment"] in compared.partition("only trained, not tested: ")[2] for row in rows)
    again = swept(reference)
    assert "3 of 3 trials have finished before" in again
    assert "queued" not in again
    assert finished(reference) == known


@pytest.mark.slow(SLOW)
def test_a_killed_sweep_goes_on_and_has_the_same_table(reference: Path, tmp_path: Path) -> None:
    """Killed while DVC changes the files here, and again while a trial runs after the first one has finished: table and
    page have the same bytes, and the finished trial is not run again.
    """
    folder = killed(tmp_path / "project")
    assert_goes_on(folder, reference)


def killed(folder: Path, enough: Callable[[Path], object] = finished) -> Path:
    """A project whose sweep was killed while DVC changed the files there, and again when it had done enough."""
    project(folder, GRID)
    running = started(folder)
    wait_for((folder / queueing.JOURNAL).is_file, "nothing is queued")
    kill(running, folder)
    running = started(folder)
    wait_for(lambda: running.poll() is not None or enough(folder), "no trial has finished")
    assert running.poll() is None, "it ended before the kill"
    kill(running, folder)
    assert finished(folder)
    return folder


def assert_goes_on(folder: Path, reference: Path, *words: str) -> None:
    """A sweep in a folder where one was killed runs no finished trial again, ends as the reference, and leaves no copy
    of the project.
    """
    first = finished(folder)
    said = swept(folder, *words)
    assert f"{len(first)} of 3 trials have finished before" in said
    assert first.items() <= finished(folder).items()
    for name in ("metrics/sweep.csv", "reports/sweep.html"):
        assert (folder / name).read_bytes() == (reference / name).read_bytes()
    wait_for(lambda: not of_queue(folder), "the queue does not end")
    assert not list((folder / ".dvc/tmp/exps").glob("tmp*"))  # the copies, which hold the images


def cut(patterns: Sequence[str], share: float) -> list[Path]:
    """Cut these files of DVC's queue, as a kill does while DVC writes them; their paths."""
    found = [path for pattern in patterns for path in experiments.EXPS.glob(pattern) if path.is_file()]
    for path in found:
        path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    return found


@pytest.mark.slow(SLOW)
def test_files_of_the_queue_that_a_kill_has_cut_end_no_sweep(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each kind of file alone, empty or cut in the middle: afterwards the queue can be read, and none of the trials is
    in it, so each is queued again. All kinds together: a sweep of two trials at a time goes on to the same table.
    """
    notes = experiments.EXPS / "celery/result"
    folder = killed(tmp_path / "project", lambda folder: [*(folder / notes).glob("celery-task-meta-*")])
    monkeypatch.chdir(folder)
    for copy in experiments.EXPS.glob("tmp*"):
        files.remove(copy)
    saved = shutil.copytree(experiments.EXPS, tmp_path / "saved")
    for pattern in (*experiments.WRITTEN, "rwlock"):
        for share in (0, 0.5):
            files.remove(experiments.EXPS)
            shutil.copytree(saved, experiments.EXPS)
            damaged = cut([pattern], share)
            assert damaged, pattern
            with experiments.opened(experiments.head()) as queue:
                *_, removed = experiments.recover(queue, finished(folder))
                assert removed == len(damaged)
                state = experiments.waiting(queue)
            assert not {*state.running} & {*finished(folder)}
    assert len(cut([*experiments.WRITTEN, "rwlock"], 0)) > len(experiments.WRITTEN)
    assert_goes_on(folder, reference, "--jobs", "2")


@pytest.mark.slow(SLOW)
def test_a_sweep_killed_alone_leaves_the_edits_that_follow(tmp_path: Path) -> None:
    """What it was queueing goes on and puts everything back. The next start takes back no edit. It refuses it."""
    folder = project(tmp_path / "project", GRID)
    running = started(folder)
    wait_for((folder / queueing.JOURNAL).is_file, "nothing is queued")
    running.kill()
    running.wait()
    wait_for(lambda: not (folder / queueing.JOURNAL).is_file(), "DVC does not end")
    (folder / "README.md").write_text("mine\n")
    refused = call(folder, *COMMAND, check=False)
    assert refused.returncode == 1
    assert "not committed: README.md; " in refused.stderr
    assert "killed" not in refused.stdout + refused.stderr
    assert (folder / "README.md").read_text() == "mine\n"


@pytest.mark.slow(SLOW)
def test_a_commit_during_a_sweep_loses_no_trial(tmp_path: Path) -> None:
    """What runs has a result. What is still to be queued is refused, and the way back to the trials is named."""
    folder = project(tmp_path / "project", {"search": "grid", "params": {"train.lr": [0.01]}})
    before = call(folder, "git", "rev-parse", "HEAD").stdout.strip()
    running = started(folder)
    wait_for((folder / queueing.JOURNAL).is_file, "nothing is queued")
    wait_for(lambda: not (folder / queueing.JOURNAL).is_file(), "the trial is not queued")
    (folder / "README.md").write_text("mine\n")
    commit(folder)
    assert running.wait() == 1
    said = (folder.parent / "said").read_text()
    assert "trial 1 of 1 (train.lr=0.01): done" in said
    assert f"git checkout {before[:12]} and run again" in said
    call(folder, "git", "checkout", "--quiet", before[:12])
    again = call(folder, *COMMAND).stdout
    assert "1 of 1 trials have finished before" in again
    assert "Test accuracy, measured once" in again


@pytest.mark.slow(SLOW)
def test_trials_start_from_weights_in_no_commit(reference: Path, tmp_path: Path) -> None:
    """The user's own file, here a trained model of another sweep."""
    known = finished(reference)
    best = next(name for name in known if "best" in name)
    lock = call(reference, "git", "show", f"{known[best]}:dvc.lock").stdout
    md5 = lock.partition("- path: models/model.safetensors")[2].partition("md5: ")[2].split()[0]
    folder = tmp_path / "project"
    project(
        folder, {"search": "grid", "params": {"train.lr": [0.01]}}, train__weights="data/pretrained/own.safetensors"
    )
    refused = call(folder, *COMMAND, check=False)
    assert "train.weights: data/pretrained/own.safetensors not found; put the file there" in refused.stderr
    shutil.copy(reference / ".dvc/cache/files/md5" / md5[:2] / md5[2:], folder / "data/pretrained/own.safetensors")
    assert "Test accuracy, measured once" in swept(folder)
    (row,) = files.read_csv(folder / "metrics/sweep.csv")
    plain = next(one for one in files.read_csv(reference / "metrics/sweep.csv") if one["train.lr"] == "0.01")
    assert row["val_loss"] != plain["val_loss"]


@pytest.mark.slow(SLOW)
def test_ctrl_c_ends_what_runs_and_a_failed_trial_ends_nothing(tmp_path: Path) -> None:
    """After Ctrl-C nothing waits and nothing runs. The next start goes on. A trial whose loss becomes infinite is named
    with its reason, and is the last of the table.
    """
    folder = project(tmp_path / "project", {"search": "grid", "params": {"train.lr": [1000.0, 0.01]}}, train__epochs=3)
    running = started(folder)
    wait_for(lambda: running.poll() is not None or "epoch 1/3" in (folder.parent / "said").read_text(), "no epoch")
    running.send_signal(signal.SIGINT)
    assert running.wait() == STOPPED
    assert "run again to go on" in (folder.parent / "said").read_text()
    wait_for(lambda: not of_queue(folder), "the queue does not end")
    assert "Queued" not in call(folder, "dvc", "queue", "status").stdout
    said = swept(folder)
    assert "trial 1 of 2 (train.lr=1000.0): failed: the loss of step " in said
    assert "1 of 2 trials failed; the next start tries them again" in said
    rows = files.read_csv(folder / "metrics/sweep.csv")
    assert [(row["rank"], row["trial"], row["state"]) for row in rows] == [("1", "2", ""), ("", "1", "failed")]


@pytest.mark.slow(SLOW)
@pytest.mark.parametrize("source", ["inbox", "folder"])
def test_photos_in_no_commit_are_swept(source: str, tmp_path: Path) -> None:
    """Photos of the inbox, and of a folder outside the project. The search is one that learns."""
    folder = tmp_path / "project"
    copy_project(folder, data__source=source, split__phash_distance=0)
    photos = folder / "data/inbox" if source == "inbox" else tmp_path / "my photos"
    photos.mkdir(exist_ok=True)
    synthetic.draw(photos, count=60, size=48, seed=0, workers=2)
    write_params(
        folder / "tried.yaml", {"search": "tpe", "trials": 2, "params": {"train.lr": {"from": 0.01, "to": 0.1}}}
    )
    if source == "folder":
        params = folder / "params.yaml"
        write_params(params, change(read_params(params), paths__inbox=str(photos)))
    refused = call(folder, *COMMAND, check=False)
    assert refused.returncode == 1
    assert "not committed: dvc.lock" in refused.stderr
    assert "; a trial begins at a commit; git add -A && git commit -m 'Before the sweep', or take" in refused.stderr
    call(folder, "git", "add", "dvc.lock", "params.yaml", "tried.yaml")
    call(folder, "git", "-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "--quiet", "-m", "Data")
    assert "Test accuracy, measured once" in swept(folder)
    assert "data/inbox/poppy" not in call(folder, "git", "ls-files").stdout
