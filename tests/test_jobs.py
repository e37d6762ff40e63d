"""Stages in working copies: how many run at once, and what becomes of the others when one fails."""

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.base import linux
from pipeline.studies import jobs
from pipeline.studies.jobs import Job
from tests.conftest import PROJECT

# Two jobs that are no DVC: one saves its state when it is asked to end; the other fails when the first one runs.
FAILING = """
import subprocess
from pathlib import Path
from pipeline.base.errors import UserError
from pipeline.studies import jobs
LONG = "trap 'touch saved; exit 0' TERM; touch runs; for k in $(seq 600); do sleep 0.2; done"
FAILS = "for k in $(seq 600); do test -e runs && exit 3; sleep 0.1; done"
jobs._start = lambda job: jobs._Running(job, subprocess.Popen(["sh", "-c", *job.stages], process_group=0))
work = [jobs.Job("long", Path(), (LONG,)), jobs.Job("bad", Path(), (FAILS,)), jobs.Job("later", Path(), ("touch l",))]
try:
    print([job.name for job in jobs.finished(work, 2, "folds")])
except UserError as error:
    print(error)
"""


class Looks:
    """A process that has ended at the third look."""

    def __init__(self) -> None:
        self.seen = 0

    def poll(self) -> int | None:
        self.seen += 1
        return None if self.seen < 3 else 0


@pytest.mark.parametrize("at_once", [1, 2, 9])
def test_no_more_run_at_once_than_asked_for(at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no fewer, while jobs wait. Each is given back once."""
    started, most, ended = list[str](), 0, list[str]()

    def start(job: Job) -> object:
        nonlocal most
        started.append(job.name)
        most = max(most, len(started) - len(ended))
        return jobs._Running(job, Looks())  # type: ignore[arg-type]

    monkeypatch.setattr(linux, "adopt_orphans", lambda: None)
    monkeypatch.setattr(jobs, "_start", start)
    monkeypatch.setattr(jobs, "LOOK", 0.0)
    for job in jobs.finished([Job(f"{k}", tmp_path, ()) for k in range(5)], at_once, "folds"):
        ended.append(job.name)
    assert most == min(at_once, 5)
    assert started == sorted(ended) == ["0", "1", "2", "3", "4"]


def test_a_failure_ends_the_others_which_save_their_state(tmp_path: Path) -> None:
    """The command ends when the last one has; what waits is not begun."""
    done = subprocess.run(
        [sys.executable, "-c", FAILING], cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(PROJECT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.startswith("bad: dvc repro ended with exit status 3; ")
    assert (tmp_path / "saved").exists()
    assert not (tmp_path / "l").exists()


def test_the_newest_line_of_progress_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the name of the job; not the lines of the start before, and each line once."""
    monkeypatch.setattr(jobs, "PAUSE", 0.0)
    log = tmp_path / jobs.LOG
    log.write_text("epoch 1/9: of the start before\n")
    running = jobs._Running(Job("seed 0, fold 1", tmp_path, ()), Looks(), len(log.read_text()))  # type: ignore[arg-type]
    jobs._show(running, "folds")
    assert capsys.readouterr().out == ""
    with log.open("a") as more:
        more.write("epoch 2/9: loss 1.5\nepoch 3/9: loss 1.2\nsomething else\n")
    jobs._show(running, "folds")
    jobs._show(running, "folds")
    assert capsys.readouterr().out == "folds: seed 0, fold 1: epoch 3/9: loss 1.2\n"
