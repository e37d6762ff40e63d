"""DVC in this process. All that this project changes in DVC, or takes from below its interface, is in this module.

It is written for DVC 3.67.1 (CHECKED): tests/test_in_process.py fails first if DVC is another one. Replaced are

    dvc.utils.serialize._common._dump_data   which writes dvc.lock, dvc.yaml and the run cache: atomic and synced
    dvc.utils.serialize._yaml.parse_yaml     which reads it, ten times in a run: the same text is parsed once
    dvc.rwlock._edit_rwlock                  which writes the locks on inputs and outputs: atomic, without dead holders
    dvc.stage.Stage.dump                     which records a stage in dvc.lock: first its outputs are on the disk
    dvc.stage.run._run                       which runs a command: with a process group, to which signals are forwarded
    dvc.stage.cache.StageCache               see run_cache.py
    tqdm.tqdm.display                        a bar is shown if it lasts longer than LONG, and none after its end
"""

import json
import logging
import math
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any

import dvc.rwlock
import dvc.stage.run
from dvc.cli import DvcParserError, parse_args
from dvc.commands.repro import CmdRepro
from dvc.dependency import ParamsDependency
from dvc.dvcfile import PROJECT_FILE
from dvc.exceptions import DvcException
from dvc.lock import LockError, make_lock
from dvc.logger import set_loggers_level
from dvc.repo import Repo, lock_repo
from dvc.repo.reproduce import _reproduce_stage, collect_stages, get_active_graph, plan_repro
from dvc.stage import Stage
from dvc.stage.exceptions import StageCmdFailedError
from dvc.stage.serialize import to_single_stage_lockfile
from dvc.utils import strictyaml
from dvc.utils.serialize import _common, _json, _yaml
from dvc_data.hashfile.hash_info import HashInfo
from dvc_data.hashfile.meta import Meta
from tqdm import tqdm
from voluptuous import Invalid

from pipeline.base import children, files, linux
from pipeline.base.errors import INTERRUPTED, STOPPED, UNKNOWN, Fault, UserError
from pipeline.versioning import cache_repair, dvc_lock, processes, programs, run_cache

CHECKED = "3.67.1"  # the version of DVC
SECONDS = programs.TEMPORARY / "seconds.json"  # stage → seconds of its last run; nothing depends on it
LONG = 1.0  # seconds
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
TOLD = (1, 2, STOPPED, 130)  # the exit statuses of this project's stages, which have said why
FAILED, MISUSED = 255, 254  # exit statuses of DVC


def dump_data(path: str, data: Any, dumper: Callable[..., Any], fs: Any = None, **options: Any) -> None:
    """In place of `_dump_data`, which cuts the file and writes it again."""
    with files.atomic_file(Path(path)) as partial, partial.open("w", encoding="utf-8") as stream:
        dumper(data, stream, **options)


def parse_yaml(text: str, path: str, typ: str = "safe") -> Any:
    """In place of `parse_yaml`. Of dvc.lock, no comments are kept for writing it again."""
    if typ == "safe" or Path(path).name == dvc_lock.LOCK.name:
        with suppress(Exception):  # DVC has a message for it
            return deepcopy(dvc_lock.parsed(text)) or {}
    return upstream_parse(text, path, typ)


@contextmanager
def edit_rwlock(lock_dir: str, fs: Any, hardlink: bool) -> Iterator[dict[str, Any]]:
    """In place of `_edit_rwlock`, which cuts the file, and takes any process with the PID of a holder for this one.

    Nobody writes the file while this process has the lock on it: one that cannot be read is of a killed DVC.
    """
    path = Path(lock_dir, dvc.rwlock.RWLOCK_FILE)
    with make_lock(os.path.join(lock_dir, dvc.rwlock.RWLOCK_LOCK), tmp_dir=lock_dir, hardlink_lock=hardlink):  # noqa: PTH118
        before, locks, fault = b"", dvc.rwlock.SCHEMA({}), ""
        with suppress(FileNotFoundError):
            before, modified = path.read_bytes(), path.stat().st_mtime
            try:
                locks = dvc.rwlock.SCHEMA(json.loads(before))
            except (ValueError, Invalid, RecursionError):
                fault = "unreadable"

        def live(holders: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return [each for each in holders if processes.lives(each["pid"], each["cmd"], modified)]

        read = {name: holders for name, group in locks["read"].items() if (holders := live(group))}
        write = {name: holder for name, holder in locks["write"].items() if live([holder])}
        if (read, write) != (locks["read"], locks["write"]):
            fault = "locked"
        if fault:
            print(f"repro: {os.path.relpath(path)} was left {fault} by a killed DVC: put right", file=sys.stderr)
        after = {"write": defaultdict(dict, write), "read": defaultdict(list, read)}
        yield after
        if (text := json.dumps(after).encode()) != before:
            partial = files.partial(path)
            partial.write_bytes(text)  # not synced: after a power cut no holder lives
            partial.replace(path)


def dump_synced(stage: Stage, **options: Any) -> None:
    """In place of `Stage.dump`: what dvc.lock names is on the disk before dvc.lock is."""
    cache_repair.sync(Path(stage.repo.cache.local_cache_dir))
    stage.dvcfile.dump(stage, **options)


def display_late(bar: Any, *arguments: Any, **options: Any) -> Any:
    """In place of `tqdm.display`."""
    bar.leave = False
    return time.time() - getattr(bar, "start_t", math.inf) > LONG and display(bar, *arguments, **options)


display, upstream_parse = tqdm.display, _yaml.parse_yaml
_yaml.parse_yaml = strictyaml.parse_yaml = parse_yaml
_common._dump_data = _yaml._dump_data = _json._dump_data = dump_data
dvc.rwlock._edit_rwlock = edit_rwlock
Stage.dump = dump_synced
tqdm.display = display_late  # type: ignore[method-assign, assignment]
run_cache.lock()


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
            with edit_rwlock(repo.tmp_dir, repo.fs, repo.config["core"].get("hardlink_lock", False)) as locks:
                holders = [*locks["write"].values(), *chain(*locks["read"].values())]
            if holders:
                raise busy(holders[0]["pid"])
            repo.lock._wait = True  # after a stage: a `dvc status` at that moment must not end a run of hours
            yield repo
        except DvcException as error:
            tell(error)
            sys.exit(FAILED)


def busy(pid: int) -> UserError:
    """The error for a folder in which a process with this ID runs stages."""
    remedy = f"wait for its end, or stop it (kill {pid}); then run again"
    return UserError(Fault("repro", f"a run is in progress here (process {pid})", "busy", remedy=remedy))


def stages(repo: Repo, arguments: Namespace) -> list[Stage]:
    """The stages that `dvc repro` with these arguments brings up to date, in order: as dvc.repo.reproduce does it."""
    whole = arguments.pipeline or arguments.all_pipelines
    targets = [] if arguments.all_pipelines else arguments.targets or [PROJECT_FILE]
    named: list[Stage] = collect_stages(repo, targets, recursive=arguments.recursive, glob=arguments.glob)
    if arguments.single_item and not whole:
        return named
    downstream = arguments.downstream and not whole
    graph = get_active_graph(repo.index.graph)
    ordered: list[Stage] = plan_repro(graph, named, pipeline=arguments.pipeline, downstream=downstream)
    return ordered


class Interrupted(BaseException):
    """A signal came. Not an Exception: DVC would go on with the next stage."""


@contextmanager
def asked() -> Iterator[Repo]:
    """DVC's repository, for questions: without DVC's lock, which a run needs after each stage."""
    os.environ.update(programs.environment())
    with Repo() as repo, set_loggers_level(logging.WARNING):
        yield repo


def is_params(dep: Any) -> bool:
    """Whether an input of a stage is a file of params."""
    return isinstance(dep, ParamsDependency)


def params_of(stage: Stage) -> tuple[dict[str, Any], dict[str, Any]]:
    """The params that a stage tracks, in dvc.lock and now: dotted name → value or table."""
    files = [dep for dep in stage.deps if is_params(dep)]
    old = {name: value for dep in files for name, value in (dep.hash_info.value or {}).items()}
    return old, {name: value for dep in files for name, value in dep.read_params().items()}


def cached_outputs(stage: Stage, inputs: dict[str, str], changed: bool) -> dict[str, str]:
    """The outputs (path → MD5) that DVC takes from its cache for a stage that does not run; empty if it has to run.

    As StageCache.restore finds them, but for the inputs (path → MD5) as they will be. If nothing but outputs has
    `changed`, they are those of dvc.lock.
    """
    cache = stage.repo.stage_cache
    if not changed and all(out.hash_info for out in stage.outs):
        entry = to_single_stage_lockfile(stage)
    else:
        for dep in stage.deps:
            value = dep.read_params() if is_params(dep) else inputs[dep.def_path]
            known = HashInfo(dep.hash_name, value) if value else None
            dep.meta, dep.hash_info, dep.get_hash = Meta(), known, lambda known=known: known
        entry = cache._load(stage) if all(dep.hash_info for dep in stage.deps) else None
    made = cache._create_stage(entry, wdir=stage.wdir) if entry else None
    return {out.def_path: out.hash_info.value for out in made.outs} if made and made.outs_cached() else {}


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
        if self.has_command:
            note_seconds(self.stage, time.monotonic() - begin)
        else:
            self.skipped.setdefault("taken from DVC's cache" if result else "unchanged", []).append(self.stage)
        return result

    def run_command(self, executable: str, command: str, **options: Any) -> None:
        """In place of `dvc.stage.run._run`. Ctrl-C reaches this process alone, which forwards it once."""
        self.show_skipped()
        self.has_command = self.is_starting = True
        others = children.pids()
        words = dvc.stage.run._make_cmd(executable, command)
        self.command = subprocess.Popen(words, process_group=0, **options)
        if self.signal:
            children.send(self.command, self.signal)
        status = self.command.wait()
        children.wait_for_all(others)  # a killed stage leaves processes that save their state
        self.command, self.is_starting = None, False
        if self.signal:
            if status not in TOLD:
                say(f"interrupted; {INTERRUPTED}", descriptor=2)
            raise Interrupted
        if status:
            self.failed[self.stage] = status
            raise StageCmdFailedError(command, status)

    def forward(self, number: int, _: FrameType | None) -> None:
        """Forward a signal to the command. Without a command, the first one ends this run."""
        is_first, self.signal = not self.signal, self.signal or number
        if self.command:
            children.send(self.command, number)
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
    command = CmdRepro.__new__(CmdRepro)
    command.args = arguments
    run = Run(is_silent=verbose or arguments.verbose or arguments.quiet)
    dvc.stage.run._run = run.run_command
    try:
        with run.handling_signals():
            repo.reproduce(repro_fn=run.reproduce_stage, **command._common_kwargs, **command._repro_kwargs)
    except Interrupted:
        return 128 + run.signal
    except DvcException:
        run.show_skipped()
        for stage, status in run.failed.items():
            if status < 0:
                remedy = f"if nobody did this, {UNKNOWN}; then run again"
                say(Fault(stage, f"ended by {signal.Signals(-status).name}", "failed", remedy=remedy), descriptor=2)
            elif status not in TOLD:
                fault = Fault(stage, f"exit status {status}", "failed", remedy="see above; then run again")
                say(fault, descriptor=2)
        if not run.failed:
            raise
        return FAILED
    run.show_skipped()
    return 0


def tell(error: DvcException) -> None:
    """Print an error of DVC as DVC does, and how to go on. An error of the system is raised: it has a remedy."""
    cause: BaseException = error
    while cause.__cause__:
        cause = cause.__cause__
    if isinstance(cause, OSError):
        raise cause
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


def note_seconds(stage: str, seconds: float) -> None:
    """Note in SECONDS how long a stage took that has succeeded, with what DVC did for it; `perennial plan` reads it."""
    with suppress(OSError):  # a disk that is full or read-only: the time stays unknown
        files.write_text(SECONDS, json.dumps(read_seconds() | {stage: round(seconds, 1)}))


def read_seconds() -> dict[str, float]:
    """The content of SECONDS; empty if the file is missing or damaged."""
    try:
        return {str(stage): float(seconds) for stage, seconds in json.loads(SECONDS.read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def say(text: object, descriptor: int = 1) -> None:
    """Print a line, at once, and in order with those of the stages."""
    with suppress(OSError):  # it is closed
        os.write(descriptor, f"repro: {text}\n".encode(errors="surrogateescape"))
