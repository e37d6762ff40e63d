"""DVC's queue in a small repository: what is queued, which processes count, and what a kill leaves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.base.errors import UserError
from pipeline.studies import experiments, queueing
from tests.helpers.projects import call, commit

SLEEPING = (sys.executable, "-c", "import time; time.sleep(600)")  # and the words of a command


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a commit, in which the test works."""
    folder = tmp_path / "repository"
    folder.mkdir()
    call(folder, "git", "init", "--quiet")
    (folder / "a b.py").write_text("1\n")
    commit(folder)
    monkeypatch.chdir(folder)
    return folder


def test_no_trial_is_queued_at_another_commit(repository: Path) -> None:
    """DVC would take the last commit. The sentence has both ways to go on."""
    with pytest.raises(UserError, match=r"the last commit is now .* git checkout 000000000000 and run again; for"):
        queueing.queue("0" * 40, "s-1", {}, [], [])


def test_no_trial_is_queued_with_a_change_that_no_commit_has(repository: Path) -> None:
    """An edit while a sweep runs would be in the next trial, and not in its name."""
    (repository / "a b.py").write_text("2\n")
    with pytest.raises(UserError, match=r"^not committed: a b.py; a trial begins at a commit; git add -A && "):
        queueing.queue(experiments.head(), "s-1", {}, [], [])


def test_finished_experiments_are_those_of_one_commit(repository: Path) -> None:
    """A later commit takes none away."""
    commit_id = experiments.head()
    call(repository, "git", "update-ref", f"refs/exps/{commit_id[:2]}/{commit_id[2:]}/s-1", commit_id)
    (repository / "other").write_text("2\n")
    commit(repository)
    assert experiments.head() != commit_id
    assert experiments.finished(experiments.Queue(None, commit_id)) == {"s-1": commit_id}


def test_changed_files_are_named_as_they_are(repository: Path) -> None:
    """Renamed ones, and names with blanks and letters of any language."""
    assert queueing.uncommitted() == []
    call(repository, "git", "mv", "a b.py", "grün.py")
    (repository / "pipeline").mkdir()
    (repository / "pipeline/new one.py").touch()
    (repository / "notes.txt").touch()
    assert queueing.uncommitted() == ["a b.py", "grün.py", "pipeline/"]


def test_a_dvc_in_this_folder_is_waited_for_and_its_queue_is_not(repository: Path) -> None:
    """The workers of the queue work in copies."""
    commands = [["dvc", "repro"], ["dvc", "exp", "queue-worker", "1"], ["dvc", "queue", "start"], ["git"]]
    started = [subprocess.Popen([*SLEEPING, *words], cwd=repository) for words in commands]
    try:
        assert experiments.others() == [started[0].pid]
        assert experiments.has_workers()
        said = []

        def say(sentence: str) -> None:
            said.append(sentence)
            started[0].kill()
            started[0].wait()

        queueing.wait_for_others(say)
        assert said == [f"waiting for process {started[0].pid}, a DVC that works in this folder"]
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_a_lock_that_no_dvc_holds_is_removed(repository: Path) -> None:
    """Its process ID is of a living process, which is no DVC. While a DVC works here, nothing is removed."""
    call(repository, "dvc", "init", "--quiet")
    experiments.EXPS.mkdir()
    lock = experiments.EXPS / "rwlock"
    with experiments.opened(experiments.head()) as queue:
        lock.write_text(json.dumps({"write": {"workspace": {"pid": os.getpid(), "cmd": "dvc exp run"}}}))
        working = subprocess.Popen([*SLEEPING, "dvc", "repro"], cwd=repository)
        try:
            assert experiments.recover(queue, []) == ([], 0, 0)
        finally:
            working.kill()
            working.wait()
        assert experiments.recover(queue, []) == ([], 0, 1)
        assert not lock.exists()
        lock.write_text(json.dumps({"read": {}}))
        assert experiments.recover(queue, []) == ([], 0, 0)
        assert lock.exists()


def test_what_a_killed_command_left_is_put_back(repository: Path) -> None:
    """Also when the kill hit Git while it wrote its index. What lay there can be found again."""
    before = (repository / "a b.py").read_text()
    queueing.JOURNAL.parent.mkdir(parents=True)
    queueing.JOURNAL.write_text(json.dumps({"branch": "HEAD", "head": experiments.head()}))
    (repository / "a b.py").write_text("of a trial\n")
    (repository / ".git/index.lock").touch()
    said = queueing.repair()
    assert (repository / "a b.py").read_text() == before
    kept = said.partition("git stash apply ")[2].rstrip(")")
    assert call(repository, "git", "show", f"{kept}:a b.py").stdout == "of a trial\n"
    assert queueing.repair() == ""
