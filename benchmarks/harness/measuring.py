"""What the benchmarks share: the machine, turns in processes of their own, watched programs, and reports.

A benchmark is `python -m benchmarks <name> [--device cpu|cuda] [--out FOLDER] [--archive file:///…tgz --sha256 …]`. It
prints a table and writes FOLDER/<name>_<device>.json, with machine, versions and commit, after every row. Contenders
take turns, so that what else the machine does hits all of them; figures are medians of the turns, and ratios are taken
within one run. With --resume the rows of an earlier start are kept; with --tiny all of it runs and nothing is measured.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from pipeline.base import files
from pipeline.base.errors import UserError
from pipeline.config import machine as here

RESULTS = Path("benchmarks/results")
LIBRARIES = ("torch", "torchvision", "numpy", "numba", "pillow", "dvc", "psutil")
SAMPLE_SECONDS = 0.05
QUIET_SECONDS, QUIET_AT_MOST = 0.1, 10.0
Row = dict[str, Any]


# ---------------------------------------------------------------- where, and with what


def machine() -> Row:
    """Where, and with what, it is measured."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": names[0].partition(":")[2].strip() if names else platform.processor(),
        "cores": cores(),
        "gpus": _gpus(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in LIBRARIES},
        "commit": commit(),
    }


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def _gpus() -> list[str]:
    if here.read().cuda_devices == 0:
        return []
    import torch

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def commit() -> str:
    """The commit, and whether the code differs from it; nothing where there is no git or no repository.

    What the benchmarks themselves write is no code.
    """
    written = [f":(exclude,top){path}" for path in (RESULTS, "README.md")]
    try:
        head, changed = (
            subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()
            for words in (
                ["rev-parse", "HEAD"],
                ["status", "--porcelain", "--untracked-files=no", "--", ":/", *written],
            )
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{head}-dirty" if changed else head


# ---------------------------------------------------------------- turns


class Worker:
    """A process of its own that takes a turn whenever it is asked: contenders share no cache, thread or patch."""

    def __init__(self, module: str, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        """Start `python -m module worker arguments`, which calls `serve`."""
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 (as long as the process)
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, "worker", *arguments], env={**os.environ, **(env or {})},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True,
        )  # fmt: skip

    def ask(self, **case: Any) -> Row:
        """One turn; its figures, and the CPU seconds of the process and all below it. Raises RuntimeError.

        Those of what is still made ahead after the turn's end count, as those of what had been made before it do not;
        and they are not spent in the turn of another.
        """
        before = cpu_seconds(self._process.pid)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            print(json.dumps(case), file=self._process.stdin, flush=True)
        if not (line := self._process.stdout.readline()):
            self._process.wait()
            self._said.seek(0)
            raise RuntimeError(self._said.read().strip() or f"exit status {self._process.returncode}, nothing said")
        return {**json.loads(line), "cpu_seconds": self._when_quiet() - before}

    def _when_quiet(self) -> float:
        """Wait until the process and all below it do nothing. Returns the CPU seconds they have used."""
        used, until = -1.0, time.monotonic() + QUIET_AT_MOST
        while (now := cpu_seconds(self._process.pid)) > used and time.monotonic() < until:
            used = now
            time.sleep(QUIET_SECONDS)
        return now

    def close(self) -> None:
        """End the process, and wait for its end."""
        with suppress(BrokenPipeError):
            self._process.communicate()
        self._said.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(turn: Callable[..., Row]) -> None:
    """Be the process of a Worker: a line of JSON in is a turn's arguments, a line out its figures."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    for line in sys.stdin:
        print(json.dumps(turn(**json.loads(line))), file=answers, flush=True)


def cpu_seconds(pid: int) -> float:
    """CPU seconds that a process, those below it and those of them that have ended have used."""
    root, total = psutil.Process(pid), 0.0
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])  # user and system, its own and its ended children's
    return total


def medians(turns: Sequence[Row]) -> Row:
    """The median of every figure over the turns."""
    return {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}


# ---------------------------------------------------------------- watched programs


@dataclass
class Seen:
    """A process of a watched program."""

    words: list[str]
    parent: int
    first: float  # seconds since the program's start
    last: float
    peak_mb: float  # the most memory it had resident


@dataclass
class Watch:
    """A program that has ended, with every process it had."""

    seconds: float
    began: float  # time.time()
    status: int
    said: str
    seen: dict[int, Seen] = field(default_factory=dict)

    def below(self, pid: int) -> list[int]:
        """A process and all below it."""
        return [pid, *(found for other, one in self.seen.items() if one.parent == pid for found in self.below(other))]

    def peak_mb(self, pids: Iterable[int] | None = None) -> float:
        """The sum of the processes' own peaks: at least what all of them had at any one time."""
        return sum(self.seen[pid].peak_mb for pid in (self.seen if pids is None else pids))


def watched(command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> Watch:
    """Run a program to its end, looking at its processes all the while. Raises RuntimeError if it fails."""
    with tempfile.TemporaryFile("w+") as said:
        began, start = time.time(), time.perf_counter()
        process = subprocess.Popen(command, cwd=cwd, env=env, stdout=said, stderr=said)
        seen: dict[int, Seen] = {}
        try:
            while process.poll() is None:
                look(process.pid, time.perf_counter() - start, seen)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(SAMPLE_SECONDS)
        finally:  # an interrupt ends the program, too
            process.terminate()
            process.wait()
        seconds = time.perf_counter() - start
        said.seek(0)
        text = said.read()
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{text}")
    return Watch(seconds, began, process.returncode, text, seen)


def look(pid: int, now: float, seen: dict[int, Seen]) -> None:
    """Note a process and all below it."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with suppress(psutil.Error, OSError):
                if not (words := process.cmdline()):
                    continue  # it has ended, and waits for its parent
                one = seen.setdefault(process.pid, Seen(words, process.ppid(), now, now, 0.0))
                if one.words != words:  # it has become another program (exec)
                    one.words, one.first, one.peak_mb = words, now, 0.0
                one.last, one.peak_mb = now, max(one.peak_mb, _peak_mb(process.pid))


def _peak_mb(pid: int) -> float:
    """The most memory that a process has had resident: the kernel's own mark, so no peak is missed between looks."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1e3
    return 0.0  # it has just ended


# ---------------------------------------------------------------- reports


def parser(doc: str | None, name: str, *, photos: bool = True) -> argparse.ArgumentParser:
    """The options that every benchmark has; those of the archive only if it measures on photos."""
    found = argparse.ArgumentParser(prog=f"python -m benchmarks {name}", description=(doc or "").split("\n")[0])
    found.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    found.add_argument("--out", type=Path, default=RESULTS, help="folder of the report (default: %(default)s)")
    if photos:
        found.add_argument("--archive", default="", help="file:// address of an archive of photos; else drawn flowers")
        found.add_argument("--sha256", default="", help="of the archive")
    found.add_argument("--resume", action="store_true", help="keep the rows that are already in the report")
    found.add_argument("--tiny", action="store_true", help="a few images and steps: that it runs, not how fast")
    return found


def form(options: argparse.Namespace) -> str:
    """Which size of the benchmark is asked for: tiny, cpu or cuda."""
    return "tiny" if options.tiny else str(options.device)


class Report:
    """Rows by their names, printed as they come and written after every one."""

    def __init__(self, name: str, options: argparse.Namespace, **about: Any) -> None:
        """`about`: what else the figures are valid for, such as the photos. Raises UserError for another's rows."""
        self._path = Path(options.out) / f"{name}_{options.device}.json"
        of = json.loads(json.dumps({**machine(), "form": form(options), **about}))
        self._content: Row = {"of": of, "rows": {}, "left_out": {}, "figures": {}}
        if options.resume and self._path.exists():
            earlier = json.loads(self._path.read_text())
            if earlier["of"] != of:
                raise UserError(
                    f"{self._path}: of another machine, environment, commit or data; remove it, or choose another --out"
                )
            self._content = earlier
        self._printed = ""
        print(f"{name}: {', '.join(f'{key} {value}' for key, value in about.items())}", flush=True)
        for title, row in self.rows.items():
            self._print(title, row)

    @property
    def rows(self) -> dict[str, Row]:
        """The rows so far."""
        return dict(self._content["rows"])

    def missing(self, names: Iterable[str]) -> list[str]:
        """Those of the names that have no row yet."""
        return [name for name in names if name not in self._content["rows"]]

    def add(self, name: str, row: Row) -> None:
        """Print a row and write the report."""
        self._content["rows"][name] = row
        self._print(name, row)
        self._write()

    def leave_out(self, name: str, reason: str) -> None:
        """Say that something was not measured, and why."""
        self._content["left_out"][name] = reason
        print(f"{name:<30} left out: {reason}", flush=True)
        self._write()

    def conclude(self, **figures: Any) -> None:
        """Print and write the figures that the benchmark is for."""
        self._content["figures"] = figures
        for name, value in figures.items():
            each = {f"{name}, {key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
            for title, part in each.items():
                print(f"{title}: {shown(part)}")
        print(f"→ {self._path}", flush=True)
        self._write()

    def _print(self, name: str, row: Row) -> None:
        head = f"{'':<30} " + " ".join(f"{key:>{max(9, len(key))}}" for key in row)
        if head != self._printed:
            print(head)
            self._printed = head
        print(f"{name:<30} " + " ".join(f"{shown(row[key]):>{max(9, len(key))}}" for key in row), flush=True)

    def _write(self) -> None:
        files.write_json(self._path, self._content)


def shown(value: Any) -> str:
    """A figure as a table has it."""
    return f"{value:.4g}" if isinstance(value, float) else "–" if value is None else str(value)


@contextmanager
def refusals(name: str) -> Iterator[None]:
    """Inside the block a UserError ends the program in one line."""
    try:
        yield
    except UserError as refusal:
        sys.exit(f"{name}: {refusal}")
