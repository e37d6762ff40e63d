"""Experiments of DVC at a commit, and its queue: what waits, what runs, and how to begin and end it.

A queued experiment runs in a temporary copy of the commit, started by a worker of DVC that outlives its caller. What
has finished is a Git reference, which a kill cannot damage. What is known of the queue is in .dvc/tmp/exps, in files
that a kill can cut.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from dvc.exceptions import DvcException
from dvc.repo import Repo
from kombu.exceptions import KombuError

from pipeline.base import files, killed_dvc, programs
from pipeline.base.errors import UserError

EPOCH = re.compile(r"^epoch \d+/\d+: .*$", re.MULTILINE)
# The launcher's last line says only which process ended; the line before it says why.
FAULT = re.compile(r"^(?:train|weights|evaluate): (?!process \d+ of \d+ ended)(.*)$", re.MULTILINE)
REFUSED = "exited with 1"  # DVC's words for a stage that ended with exit status 1
WORKER, EXECUTOR = "queue-worker", "exec-run"  # words of the commands of a worker, and of what runs an experiment
START = ("queue", "start")  # and of the process that started a worker and waits for its end
CHANGER = "pipeline.studies.queueing"  # the same, of what changes the files here
ATTEMPTS = 5  # to read the queue, a second apart
SECONDS = 20  # for a process to end by itself after a signal
EXPS = programs.TEMPORARY / "exps"
WRITTEN = ("run/*/*.run", "run/*/*.json", "celery/*.json", "celery/broker/*/*", "celery/result/*")  # by DVC, as JSON


@dataclass(frozen=True)
class Queue:
    """DVC's view of this project, with its queue, for the experiments of one commit."""

    repo: Repo
    commit: str


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


def finished(queue: Queue) -> dict[str, str]:
    """Name of each finished experiment that began at the queue's commit → its commit."""
    begun = f"refs/exps/{queue.commit[:2]}/{queue.commit[2:]}/"
    known = programs.output("git", "for-each-ref", "--format=%(refname) %(objectname)", begun)
    return {line.split()[0].rpartition("/")[2]: line.split()[1] for line in known.splitlines()}


def text_of(revision: str, path: Path) -> str:
    """The text of a file that Git has of a revision. Raises UserError if it has none."""
    return programs.output("git", "show", f"{revision}:{path.as_posix()}")


@contextmanager
def opened(commit: str) -> Iterator[Queue]:
    """The queue of this project."""
    with Repo() as repo:
        yield Queue(repo, commit)


def waiting(queue: Queue) -> Waiting:
    """What is in the queue. Raises UserError if its files are damaged; without a worker, `recover` mends them first."""
    for _ in range(ATTEMPTS):
        with suppress(DvcException, KombuError, ValueError):
            return _waiting(queue)
        time.sleep(1)  # a worker may be writing one of its files just now
    raise UserError("DVC's queue cannot be read; dvc queue stop --kill, then run again")


def _waiting(queue: Queue) -> Waiting:
    """In this order: what moves on in the meantime is seen twice, and not missed."""
    celery = queue.repo.experiments.celery_queue
    queued = frozenset(str(entry.name) for entry in celery.iter_queued())
    running = {str(entry.name): str(entry.stash_rev) for entry in celery.iter_active()}
    failed = {str(done.entry.name): str(done.entry.stash_rev) for done in celery.iter_failed()}
    return Waiting(queued, running, failed)


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
    return any(WORKER in words for _, words in _commands_here())


def others() -> list[int]:
    """The IDs of the DVC processes that work in this very folder, without those of the queue.

    A worker works in copies. Here it reads and writes nothing but the queue.
    """
    return [
        process.pid
        for process, words in _commands_here()
        if process.pid != os.getpid()
        and (CHANGER in words or killed_dvc.is_dvc(words))
        and not (WORKER in words or EXECUTOR in words or {*START} <= {*words})
    ]


def _commands_here() -> Iterator[tuple[psutil.Process, list[str]]]:
    """The processes that work in this very folder, with the words of their commands."""
    here = Path.cwd()
    for process, words in _commands():
        with suppress(psutil.Error, OSError):
            if Path(process.cwd()) == here:
                yield process, words


def _commands() -> Iterator[tuple[psutil.Process, list[str]]]:
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            yield process, process.cmdline()


def end_idle(queue: Queue) -> None:
    """End workers that have nothing to do, unless other experiments keep them busy.

    A worker ends by itself when it was idle for ten seconds. DVC loses what is queued while it ends.
    """
    asked = False
    for _ in range(SECONDS):
        if not has_workers():
            return
        state = waiting(queue)
        if not (asked or state.queued or state.running):
            queue.repo.experiments.celery_queue.shutdown()
            asked = True
        time.sleep(1)


def epochs(queue: Queue, revision: str) -> list[str]:
    """What a running or ended experiment has printed about its epochs."""
    return EPOCH.findall(_printed(queue, revision))


def reason(queue: Queue, revision: str) -> str:
    """The last sentence of the stages of an experiment that has failed; empty if no stage ended by itself."""
    printed = _printed(queue, revision)
    return "".join(FAULT.findall(printed)[-1:]) if REFUSED in printed else ""


def _printed(queue: Queue, revision: str) -> str:
    found = queue.repo.experiments.celery_queue.proc.get(revision)
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


def recover(queue: Queue, names: Iterable[str]) -> tuple[list[str], int, int]:
    """Mend what killed workers left. Returns those of `names` that ran, which are failed now, and how many copies of
    the project and how many files are removed. Only for a queue without a worker.
    """
    _end_orphans()
    cut = 0 if others() else _remove_cut(queue)
    lost = _give_up(queue, names)
    copies = [*EXPS.glob("tmp*")]
    for copy in copies:
        files.remove(copy)
    return lost, len(copies), cut


def _end_orphans() -> None:
    """End what runs experiments of this project. Nobody collects the results. Their stages end with them."""
    notes = str(EXPS.absolute())
    found = [
        process for process, words in _commands() if EXECUTOR in words and any(word.startswith(notes) for word in words)
    ]
    for process in found:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in psutil.wait_procs(found, SECONDS)[1]:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _remove_cut(queue: Queue) -> int:
    """Remove the files of the queue that are not whole, and a lock that nobody holds any more; how many.

    DVC writes these files in place. An experiment whose files are cut is then unknown, or as if it still ran.
    """
    cut = [path for pattern in WRITTEN for path in EXPS.glob(pattern) if path.is_file() and not _is_json(path)]
    lock = EXPS / "rwlock"
    if lock.is_file() and (not _is_json(lock) or any(json.loads(lock.read_bytes()).values())):
        cut.append(lock)
    for path in cut:
        files.remove(path)
    app, unknown = queue.repo.experiments.celery_queue.celery, {path.stem for path in cut if path.suffix == ".run"}
    for message in list(app.iter_processed()) if unknown else []:
        arguments, *_ = message.decode()
        if arguments[0]["stash_rev"] in unknown:  # DVC cannot read a queue with an ended experiment that has no .run
            with suppress(FileNotFoundError):
                app.AsyncResult(message.headers["id"]).forget()
    return len(cut)


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_bytes())
    except ValueError:
        return False
    return True


def _give_up(queue: Queue, names: Iterable[str]) -> list[str]:
    """Mark experiments as failed whose worker was killed. Their names.

    DVC itself would wait for them forever, and it sends its signals to their process IDs, which other processes may
    have by now.
    """
    celery = queue.repo.experiments.celery_queue
    lost = {name: revision for name, revision in waiting(queue).running.items() if name in names}
    for name, revision in lost.items():
        found = celery.proc.get(revision)
        if found and found.returncode is None:
            found.returncode = -1
            celery.proc[revision] = found
        celery.kill([name])
    return list(lost)
