"""Experiments of DVC at the last commit, and its queue: what waits, what runs, and how to begin and end it.

A queued experiment runs in a temporary copy of the commit, started by a worker of DVC that outlives its caller. What
has finished is a Git reference, which a kill cannot damage. What is known of the queue is in .dvc/tmp/exps.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import psutil
from dvc.repo import Repo
from dvc.repo.experiments.executor.base import ExecutorInfo

from pipeline.base import files, programs
from pipeline.base.errors import UserError

EPOCH = re.compile(r"^epoch \d+/\d+: .*$", re.MULTILINE)
# The launcher's last line says only which process ended; the line before it says why.
FAULT = re.compile(r"^(?:train|weights|evaluate): (?!process \d+ of \d+ ended)(.*)$", re.MULTILINE)
REFUSED = "exited with 1"  # DVC's words for a stage that ended with exit status 1
WORKER, EXECUTOR = "queue-worker", "exec-run"  # words of the commands of a worker, and of what runs an experiment
SECONDS = 20  # for a process to end by itself after a signal
JOURNAL = programs.TEMPORARY / "queueing.json"  # exists while DVC changes the files here: see `queue`
AUTHOR = ("-c", "user.name=perennial", "-c", "user.email=perennial@localhost")
Queue: TypeAlias = Repo  # DVC's view of this project, with its queue


@dataclass(frozen=True)
class Waiting:
    """The experiments that DVC's queue knows, by name."""

    queued: frozenset[str]
    running: Mapping[str, str]  # name → the stash commit, which names its files
    failed: Mapping[str, str]  # the same

    def __contains__(self, name: str) -> bool:
        """Whether the experiment is still to end."""
        return name in self.queued or name in self.running


def head() -> str:
    return programs.output("git", "rev-parse", "HEAD").strip()


def finished() -> dict[str, str]:
    """Name of each finished experiment that began at the last commit → its commit."""
    commit = head()
    known = programs.output(
        "git", "for-each-ref", "--format=%(refname) %(objectname)", f"refs/exps/{commit[:2]}/{commit[2:]}/"
    )
    return {line.split()[0].rpartition("/")[2]: line.split()[1] for line in known.splitlines()}


def text_of(revision: str, path: Path) -> str:
    """The text of a file that Git has of a revision. Raises UserError if it has none."""
    return programs.output("git", "show", f"{revision}:{path.as_posix()}")


@contextmanager
def opened() -> Iterator[Queue]:
    """DVC's view of this project."""
    with Repo() as repo:
        yield repo


def waiting(repo: Queue) -> Waiting:
    """What is in the queue. In this order: what moves on in the meantime is seen twice, and not missed."""
    queue = repo.experiments.celery_queue
    queued = frozenset(str(entry.name) for entry in queue.iter_queued())
    running = {str(entry.name): str(entry.stash_rev) for entry in queue.iter_active()}
    failed = {str(done.entry.name): str(done.entry.stash_rev) for done in queue.iter_failed()}
    return Waiting(queued, running, failed)


def uncommitted() -> list[str]:
    """Changes that no commit has, in the words of `git status`: of all files that Git tracks, and of new code."""
    tracked = programs.output("git", "status", "--porcelain", "--untracked-files=no").splitlines()
    new = programs.output("git", "status", "--porcelain", "--", "dvc.lock", "dvc.yaml", "params.yaml", "pipeline")
    return list(dict.fromkeys([*tracked, *new.splitlines()]))


def queue(name: str, values: Mapping[str, Any], targets: Sequence[str], copied: Sequence[str]) -> None:
    """Put an experiment into the queue that runs only these stages, with other values of params.yaml.

    `copied`: files in no commit that the copy needs. DVC writes the values into params.yaml, takes a snapshot, and puts
    everything back. A journal says where the work began, so that `repair` can put it back after a kill.
    """
    branch = programs.output("git", "rev-parse", "--abbrev-ref", "HEAD").strip()
    files.write_json(JOURNAL, {"branch": branch, "head": head()})
    words = ["exp", "run", "--quiet", "--queue", "--name", name, "--single-item"]
    words += [word for key, value in values.items() for word in ("--set-param", f"{key}={_override(value)}")]
    words += [word for path in copied for word in ("--copy-paths", path)]
    # In a process group of its own, Ctrl-C does not reach it: it would be interrupted while it puts files back.
    done = subprocess.run(
        [sys.executable, "-m", "dvc", *words, *targets],
        env=programs.environment(), capture_output=True, text=True, check=False, process_group=0,
    )  # fmt: skip
    if done.returncode >= 0:  # not killed: DVC has put everything back
        files.remove(JOURNAL)
    if done.returncode:
        message = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise UserError(f"{name}: dvc exp run --queue ended with exit status {done.returncode}: {message}")


def _override(value: Any) -> str:
    """A value in Hydra's words, as `dvc exp run -S` reads it."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_override, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return repr(value)


def repair() -> str:
    """Put back the files that a `dvc exp run --queue` which was killed has changed. Says what was done; or nothing.

    The work began without uncommitted changes, so the files of the commit are what was there. Changes since then are
    kept as a commit of `git stash create`.
    """
    if not JOURNAL.is_file():
        return ""
    began = json.loads(JOURNAL.read_text(encoding="utf-8"))
    if head() != began["head"]:  # somebody has gone on since then
        files.remove(JOURNAL)
        return ""
    kept = programs.output("git", *AUTHOR, "stash", "create").strip()
    programs.output("git", "reset", "--quiet", "--hard")
    if began["branch"] != "HEAD":
        programs.output("git", "symbolic-ref", "HEAD", f"refs/heads/{began['branch']}")
    files.remove(JOURNAL)
    where = f" (what lay there: git stash apply {kept[:12]})" if kept else ""
    return f"a killed dvc exp run --queue left its files here; the files of the commit are put back{where}"


def start(jobs: int) -> None:
    """Have so many workers, which run what is queued. A worker that already works stays."""
    command = [sys.executable, "-m", "dvc", "queue", "start", "--jobs", str(jobs)]
    nowhere = subprocess.DEVNULL  # a worker would hold a pipe, and its reader would wait for the worker
    done = subprocess.run(
        command, env=programs.environment(), stdout=nowhere, stderr=nowhere, check=False, process_group=0
    )
    if done.returncode:
        raise UserError(f"dvc queue start ended with exit status {done.returncode}; run it alone to see why")


def has_workers() -> bool:
    """Whether a worker of this project's queue lives.

    The system knows. DVC asks the workers, which answer too late on a busy machine. DVC then starts another one of the
    same name, and its note holds the process ID of that one.
    """
    return Path.cwd() in _folders_of(WORKER)


def _folders_of(word: str) -> set[Path]:
    """Where the processes work that have this word in their command."""
    found = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if word in process.cmdline():
                found.add(Path(process.cwd()))
    return found


def end_idle(repo: Queue) -> None:
    """End workers that have nothing to do, unless other experiments keep them busy.

    A worker ends by itself when it was idle for ten seconds. DVC loses what is queued while it ends.
    """
    asked = False
    for _ in range(SECONDS):
        if not has_workers():
            return
        state = waiting(repo)
        if not (asked or state.queued or state.running):
            repo.experiments.celery_queue.shutdown()
            asked = True
        time.sleep(1)


def _command(pid: int) -> list[str]:
    """The words of the command of a process; none if it has ended."""
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []


def epochs(repo: Queue, revision: str) -> list[str]:
    """What a running or ended experiment has printed about its epochs."""
    return EPOCH.findall(_printed(repo, revision))


def reason(repo: Queue, revision: str) -> str:
    """The last sentence of the stages of an experiment that has failed; empty if no stage ended by itself."""
    printed = _printed(repo, revision)
    return "".join(FAULT.findall(printed)[-1:]) if REFUSED in printed else ""


def _printed(repo: Queue, revision: str) -> str:
    found = repo.experiments.celery_queue.proc.get(revision)
    path = Path(found.stdout) if found and found.stdout else Path(os.devnull)
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def remove(names: Iterable[str]) -> None:
    """Take ended and waiting experiments out of the queue."""
    if listed := sorted(names):
        programs.dvc("queue", "remove", *listed)


def interrupt(names: Iterable[str]) -> None:
    """Have running experiments end. Their worker ends, too."""
    if listed := sorted(names):
        programs.dvc("queue", "kill", *listed)


def give_up(repo: Queue, names: Iterable[str]) -> list[str]:
    """Mark experiments as failed whose worker was killed, end what they left, and remove their copies. Their names.

    Only for a queue without a worker. DVC itself would wait for them forever, and it sends its signals to their process
    IDs, which other processes may have by now.
    """
    queue = repo.experiments.celery_queue
    lost = {name: revision for name, revision in waiting(repo).running.items() if name in names}
    for name, revision in lost.items():
        found = queue.proc.get(revision)
        if found and found.returncode is None:
            _end(found.pid, revision)
            found.returncode = -1
            queue.proc[revision] = found
        queue.kill([name])
        info = Path(queue.get_infofile_path(revision))
        if info.is_file():
            files.remove(Path(ExecutorInfo.load_json(str(info)).root_dir))
    return list(lost)


def remove_copies() -> int:
    """Remove the copies of the project that killed workers left; how many. Only for a queue without a worker."""
    used = _folders_of(EXECUTOR)
    copies = [path for path in (programs.TEMPORARY / "exps").glob("tmp*") if path.absolute() not in used]
    for copy in copies:
        files.remove(copy)
    return len(copies)


def _end(pid: int, revision: str) -> None:
    """End the process of an experiment, if the process with this ID is one. Its stages end with it."""
    words = _command(pid)
    if not (EXECUTOR in words and any(revision in word for word in words)):
        return
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        process.terminate()
        with suppress(psutil.TimeoutExpired):
            process.wait(SECONDS)
        process.kill()
