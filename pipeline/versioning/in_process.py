"""`dvc repro` in this process. What becomes of a stage is a value, not a line of a log.

What is changed in DVC is in changed_dvc.py. All that is used below DVC's interface is there, here, and in questions.py.
"""

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import dvc.rwlock
import dvc.stage.run
from dvc.cli import DvcParserError, parse_args
from dvc.commands.repro import CmdRepro
from dvc.exceptions import DvcException
from dvc.lock import LockError
from dvc.logger import set_loggers_level
from dvc.repo import Repo, lock_repo
from dvc.repo.reproduce import _reproduce_stage
from dvc.stage import Stage
from dvc.stage.exceptions import StageCmdFailedError

from pipeline.base import files, linux
from pipeline.base.errors import INTERRUPTED, STOPPED, UNKNOWN, Fault, UserError
from pipeline.versioning import changed_dvc, children, processes, programs, questions

# What `perennial plan` reads, and on which nothing depends.
SECONDS = programs.TEMPORARY / "seconds.json"  # stage → seconds of its last run
LISTINGS = programs.TEMPORARY / "listings.json"  # folder → its hash when a stage read it, and name → MD5
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
TOLD = (1, 2, STOPPED, 130)  # the exit statuses of this project's stages, which have said why
FAILED, MISUSED = 255, 254  # exit statuses of DVC


def parse(words: list[str]) -> Namespace:
    """The arguments of `dvc repro`. Raises SystemExit, after DVC has printed why, or its help."""
    try:
        arguments: Namespace = parse_args(["repro", *words])
    except DvcParserError:
        sys.exit(MISUSED)
    return arguments


@contextmanager
def session(arguments: Namespace, verbose: bool) -> Iterator[Repo]:
    """A block with DVC's repository, under DVC's lock. DVC prints its warnings and errors, with `verbose` all it says.

    A run gives the lock away while a stage runs, and holds a lock on the inputs and outputs of the stage all the time.
    Raises UserError if another process runs stages here, and SystemExit, after it is printed, for an error of DVC.
    """
    changed_dvc.apply()
    os.environ.update(programs.environment())
    with log(arguments, verbose), ExitStack() as stack:
        try:
            repo = stack.enter_context(Repo(_wait_for_lock=arguments.wait_for_lock))
            try:
                stack.enter_context(lock_repo(repo))
            except LockError:
                with suppress(OSError, ValueError):
                    raise busy(int(Path(repo.tmp_dir, "lock").read_text())) from None
                raise
            remove_locks(Path(os.path.relpath(repo.tmp_dir), dvc.rwlock.RWLOCK_FILE))
            repo.lock._wait = True  # after a stage: a `dvc status` at that moment must not end a run of hours
            yield repo
        except DvcException as error:
            tell(error)
            sys.exit(FAILED)


def remove_locks(path: Path) -> None:
    """Remove the locks on inputs and outputs, under DVC's lock. What a killed DVC has left is reported.

    DVC takes any process with the PID of a holder for the holder, and fails at a file that was cut. Raises UserError if
    a holder still works here.
    """
    if not path.is_file():
        return
    text, written = path.read_text(errors="replace"), path.stat().st_mtime
    for pid in map(int, re.findall(r'"pid": (\d{1,9})\b', text)):
        if processes.works_in(pid, Path.cwd(), written, of_others=True):
            raise busy(pid)
    path.unlink()
    if "{" not in text or {*re.findall(r"\w+", text)} - {"read", "write"}:
        say(f"{path} was left locked by a killed DVC: removed", descriptor=2)


def busy(pid: int) -> UserError:
    """The error for a folder in which a process with this ID runs stages."""
    remedy = f"wait for its end, or stop it (kill {pid}); then run again"
    return UserError(Fault("this folder", f"a run is in progress (process {pid})", "busy", remedy=remedy))


def stages(repo: Repo, arguments: Namespace) -> list[Stage]:
    """The stages that `dvc repro` with these arguments brings up to date, in order."""
    found: list[Stage] = []
    repo.reproduce(repro_fn=lambda stage, **_: found.append(stage), **options(arguments) | {"pull": False})
    return found


def options(arguments: Namespace) -> dict[str, Any]:
    """What DVC's command passes to `Repo.reproduce` for these arguments."""
    command = CmdRepro.__new__(CmdRepro)
    command.args = arguments
    return {**command._common_kwargs, **command._repro_kwargs}


def lost(stages: list[Stage]) -> list[Fault]:
    """The files of `dvc add` that these stages read and that are not here: no stage makes them."""
    outs = [out for stage in stages if stage.is_data_source and not stage.is_import for out in stage.outs]
    value, remedy = "not here, and dvc add has versioned it", "dvc pull; if no remote has it, put it there as it was"
    return [Fault(os.path.relpath(out.fs_path), value, "missing", remedy=remedy) for out in outs if not out.exists]


class Interrupted(BaseException):
    """A signal came. Not an Exception: DVC would go on with the next stage."""


@dataclass
class Run:
    """A `dvc repro`: what became of each stage, the command that runs, and the signal that came."""

    is_silent: bool  # about stages that do not run: DVC prints it, or nothing is to be printed
    skipped: dict[str, list[str]] = field(default_factory=dict)  # what is said of stages that did not run → stages
    failed: dict[str, int] = field(default_factory=dict)  # stage → exit status of its command, or the negative signal
    stage: str = ""  # that runs
    command: subprocess.Popen[Any] | None = None  # that runs
    has_command: bool = False  # of the stage, since it began
    is_starting: bool = False
    signal: int = 0  # that came first

    def reproduce_stage(self, stage: Stage, **options: Any) -> Stage | None:
        """Bring a stage up to date, and note what became of it. DVC calls this for each stage in turn."""
        begin, self.stage, self.has_command = time.monotonic(), stage.addressing, False
        result: Stage | None = _reproduce_stage(stage, **options)
        if result:
            note(LISTINGS, questions.listings(stage))
        if self.has_command:
            note(SECONDS, {self.stage: round(time.monotonic() - begin, 1)})
        else:
            self.skipped.setdefault("taken from DVC's cache" if result else "unchanged", []).append(self.stage)
        return result

    def run_command(self, executable: str, command: str, **options: Any) -> None:
        """In place of `dvc.stage.run._run`. Ctrl-C reaches this process alone, which forwards it once."""
        self.show_skipped()
        self.has_command = self.is_starting = True
        others = children.pids()
        words = dvc.stage.run._make_cmd(executable, command)
        options["env"][linux.PARENT] = str(os.getpid())
        self.command = subprocess.Popen(words, process_group=0, **options)
        if self.signal:
            children.send(self.command, self.signal)
        how = f"was stopped (state T); to go on: kill -CONT {self.command.pid}; to save and end: Ctrl-C"
        told = f"{self.stage}: process {self.command.pid} {how}"
        status = children.wait(self.command, lambda: say(told, descriptor=2))
        children.wait_for_all(others)  # a killed stage leaves processes that save their state
        self.command, self.is_starting = None, False
        if self.signal:
            if status not in TOLD:
                say(f"{self.stage}: {ending(status)}; {INTERRUPTED}", descriptor=2)
            raise Interrupted
        if status:
            self.failed[self.stage] = status
            raise StageCmdFailedError(command, status)

    def forward(self, number: int, _: FrameType | None) -> None:
        """Forward a signal to the command. Without a command, the first one ends this run."""
        is_first, self.signal = not self.signal, self.signal or number
        if self.command:
            children.send(self.command, number)
            children.send(self.command, signal.SIGCONT)  # one that is stopped could not save
        elif is_first and not self.is_starting:
            say(f"interrupted; {INTERRUPTED}", descriptor=2)
            raise Interrupted

    def pause(self, number: int, _: FrameType | None) -> None:
        """Stop the command and this process. Runs on after somebody has continued this process."""
        if self.command:
            children.send(self.command, number)
        os.kill(os.getpid(), signal.SIGSTOP)
        if self.command:
            children.send(self.command, signal.SIGCONT)

    @contextmanager
    def handling_signals(self) -> Iterator[None]:
        """A block in which signals are forwarded. One that this process ignores stays ignored, as nohup has it."""
        handlers = dict.fromkeys(FORWARDED, self.forward) | {signal.SIGTSTP: self.pause}
        ignored = [number for number in handlers if signal.getsignal(number) == signal.SIG_IGN]
        before = {number: signal.signal(number, handlers[number]) for number in handlers if number not in ignored}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def show_skipped(self) -> None:
        """Print which stages did not run since the last such line."""
        if self.skipped and not self.is_silent:
            say("; ".join(f"{what}: {', '.join(names)}" for what, names in self.skipped.items()))
        self.skipped.clear()


def reproduce(repo: Repo, arguments: Namespace, verbose: bool) -> int:
    """Bring the stages up to date, as `dvc repro` with these arguments. Returns the exit status."""
    linux.adopt_orphans()
    run = Run(is_silent=verbose or arguments.verbose or arguments.quiet)
    dvc.stage.run._run = run.run_command
    try:
        with run.handling_signals():
            repo.reproduce(repro_fn=run.reproduce_stage, **options(arguments))
    except Interrupted:
        return 128 + run.signal
    except DvcException:
        run.show_skipped()
        for stage, status in run.failed.items():
            if status not in TOLD:
                remedy = "see above" if status > 0 else f"if nobody did this, {UNKNOWN}"
                say(Fault(stage, ending(status), "failed", remedy=f"{remedy}; then run again"), descriptor=2)
        if not run.failed:
            raise
        return FAILED
    run.show_skipped()
    return 0


def ending(status: int) -> str:
    """An exit status in words."""
    return f"exit status {status}" if status >= 0 else f"ended by {signal.Signals(-status).name}"


def tell(error: DvcException) -> None:
    """Print an error of DVC as DVC does, and how to go on. An error of the system is raised: it has a remedy."""
    cause: BaseException = error
    while cause.__cause__:
        cause = cause.__cause__
    if isinstance(cause, OSError):
        raise cause from None  # its context is `error`, of which it is the cause
    logging.getLogger("dvc").error("", exc_info=error)
    remedy = "correct what DVC names above, then run again"
    say(Fault("dvc repro", f"exit status {FAILED}", "failed", remedy=remedy), descriptor=2)


@contextmanager
def log(arguments: Namespace, verbose: bool) -> Iterator[None]:
    """A block in which DVC prints warnings and errors, each warning once; with `verbose` its ordinary lines, too."""
    told = set[str]()

    def is_new(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        repeated = record.levelno == logging.WARNING and text in told  # each reader of an empty output warns of it
        told.add(text)
        return not repeated

    level = logging.INFO if verbose else logging.WARNING
    if arguments.quiet or arguments.verbose:
        level = logging.CRITICAL if arguments.quiet else logging.DEBUG
    handlers = logging.getLogger("dvc").handlers
    for handler in handlers:
        handler.addFilter(is_new)
    try:
        with set_loggers_level(level):
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(is_new)


def note(path: Path, entries: dict[str, Any]) -> None:
    """Add entries to one of the files that `perennial plan` reads."""
    with suppress(OSError):  # a disk that is full or read-only: the plan says less
        files.write_text(path, json.dumps(read_notes(path) | entries))


def read_notes(path: Path) -> dict[str, Any]:
    """The content of SECONDS or LISTINGS; empty if the file is missing or damaged."""
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}


def say(text: object, descriptor: int = 1) -> None:
    """Print a line, at once, and in order with those of the stages."""
    with suppress(OSError):  # it is closed
        os.write(descriptor, f"repro: {text}\n".encode(errors="surrogateescape"))
