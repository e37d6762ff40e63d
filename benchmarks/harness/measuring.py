"""Shared by the benchmarks: the machine, worker processes that take turns, watched programs, and reports.

A benchmark is `python -m benchmarks <name> [--device cpu|cuda] [--out FOLDER] [--archive file:///…tgz --sha256 …]`. It
prints a table and writes FOLDER/<name>_<device>.json, with machine, versions and commit, after every row. Contenders
take turns, so that other load on the machine affects all of them. Figures are medians of the turns. Ratios are taken
within one run. --resume keeps the rows of an earlier start. --tiny runs everything but measures nothing.
"""

import argparse
import hashlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from typing import Any

import psutil

from pipeline.base import files, linux
from pipeline.base.errors import Fault, UserError
from pipeline.checks import machine as here
from pipeline.versioning import programs

RESULTS = Path("benchmarks/results")
CODE = ("pipeline", "benchmarks", "tests/gpu")
# What decides a figure, as pathspecs from the top of the repository. A report is no code.
MEASURED = (
    *(f":/{path}" for path in ("pipeline", "benchmarks", "tests", "requirements", "docker", "dvc.yaml", "params.yaml")),
    f":(top,exclude){RESULTS}",
)
LIBRARIES = ("torch", "torchvision", "numpy", "numba", "pillow", "dvc", "psutil")
# A figure of a GPU depends on the versions in DECISIVE, and not on what is in LISTED; each of its rows names the rest.
DECISIVE = ("torch", "torchvision", "numpy", "cuda", "cudnn")
LISTED = ("cpu", "cores", "kernel", "python", "commit", "apex")
SAMPLE_SECONDS = 0.05
QUIET_SECONDS, QUIET_AT_MOST = 0.1, 10.0
Row = dict[str, Any]


# ---------------------------------------------------------------- the machine


def machine() -> Row:
    """The machine, the versions of the libraries, and the commit."""
    gpus, of_cuda = list[str](), dict[str, str]()
    if here.read().cuda_devices:
        import torch

        gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        of_cuda = {"cuda": torch.version.cuda or "", "cudnn": str(torch.backends.cudnn.version())}
    return {
        "cpu": here.cpu_name(),
        "cores": linux.usable_cores(),
        "gpus": gpus,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in LIBRARIES} | of_cuda,
        "commit": commit(),
        "code": code(),
    }


def comparable(conditions: Row) -> Row:
    """What must be equal for two rows of one report: on a GPU, neither its host nor other versions than DECISIVE."""
    if not conditions.get("gpus"):
        return conditions
    versions = {name: value for name, value in conditions["versions"].items() if name in DECISIVE}
    return {**{key: value for key, value in conditions.items() if key not in LISTED}, "versions": versions}


def listed(conditions: Row) -> Row:
    """The rest: what a row of a GPU only names."""
    compared = comparable(conditions)
    rest = {key: value for key, value in conditions.items() if key not in compared}
    versions = {name: value for name, value in conditions["versions"].items() if name not in compared["versions"]}
    return rest | ({"versions": versions} if versions else {})


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def code(top: Path = Path(__file__).parents[2]) -> str:
    """The SHA-256 of the pipeline's modules and params, of the benchmarks and GPU tests, as there may be no git."""
    sha = hashlib.sha256()
    modules = (path for folder in CODE for path in (top / folder).rglob("*.py"))
    for path in sorted([*modules, top / "params.yaml"]):
        sha.update(f"{path.relative_to(top)}\n".encode() + path.read_bytes())
    return sha.hexdigest()


def commit() -> str:
    """The value of the variable COMMIT; without it the commit here, with "-dirty" if the code differs from it.

    A machine that has only a copy of the code may have another repository around it, or no git.
    """
    if name := os.environ.get("COMMIT"):
        return name
    try:
        return programs.code_version(*MEASURED)
    except OSError:  # no git
        return ""


def check_commit(device: str) -> None:
    """Raise UserError for a figure of a GPU without a commit: nobody could say later what was measured."""
    if device == "cuda" and not commit():
        reason = "here is no repository of Git, and the variable names no commit"
        raise UserError(
            Fault("COMMIT", "not set", "missing", reason, "the commit of this code", "COMMIT=… python -m benchmarks …")
        )


# ---------------------------------------------------------------- turns


class Worker:
    """A process that takes one turn per request. Contenders in different workers share no cache, thread or patch."""

    def __init__(self, module: str, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        """Start a process that calls `worker(*arguments)` of the module, which calls `serve`."""
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as the process runs)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks", "worker", module, *arguments], env={**os.environ, **(env or {})},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, text=True,
        )  # fmt: skip

    def ask(self, **case: Any) -> Row:
        """The figures of one turn, and the CPU seconds of the process and its descendants in it. Raises RuntimeError.

        Waits until the process is idle. So work that it prefetches after the turn counts here, and not in the turn of
        another worker.
        """
        before = cpu_seconds(self._process.pid)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            print(json.dumps(case), file=self._process.stdin, flush=True)
        if not (line := self._process.stdout.readline()):
            self._process.wait()
            self._stderr.seek(0)
            raise RuntimeError(self._stderr.read().strip() or f"exit status {self._process.returncode}, no output")
        return {**json.loads(line), "cpu_seconds": self._cpu_seconds_when_idle() - before}

    def _cpu_seconds_when_idle(self) -> float:
        """The CPU seconds of the process and its descendants, after waiting until they are idle."""
        seconds_used, until = -1.0, time.monotonic() + QUIET_AT_MOST
        while (now := cpu_seconds(self._process.pid)) > seconds_used and time.monotonic() < until:
            seconds_used = now
            time.sleep(QUIET_SECONDS)
        return now

    def close(self) -> None:
        """End the process, and wait for its end."""
        with suppress(BrokenPipeError):
            self._process.communicate()
        self._stderr.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(turn: Callable[..., Row]) -> None:
    """Run the process of a Worker: reads the arguments of a turn as a line of JSON, writes its figures as a line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print; stdout is for the answers alone
    for line in sys.stdin:
        print(json.dumps(turn(**json.loads(line))), file=answers, flush=True)


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and its descendants, those that have ended included."""
    root, total = psutil.Process(pid), 0.0
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])  # user and system time, of itself and of its ended children
    return total


def medians(turns: Sequence[Row]) -> Row:
    """The median of each figure over the turns."""
    return {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}


# ---------------------------------------------------------------- watched programs


@dataclass
class ProcessRecord:
    """One process of a watched program."""

    command: list[str]
    parent: int
    first: float  # when it was first sampled: seconds since the program's start
    last: float
    peak_mb: float  # peak resident memory


@dataclass
class WatchedRun:
    """A program that has ended, and its processes by PID."""

    seconds: float
    began: float  # time.time()
    status: int
    output: str
    processes: dict[int, ProcessRecord] = field(default_factory=dict)

    def tree(self, pid: int) -> list[int]:
        """The PIDs of a process and its descendants."""
        children = [child for child, record in self.processes.items() if record.parent == pid]
        return [pid, *(descendant for child in children for descendant in self.tree(child))]

    def peak_mb(self, pids: Iterable[int] | None = None) -> float:
        """The sum of the peaks of the processes: an upper bound of their memory at any one time."""
        return sum(self.processes[pid].peak_mb for pid in (self.processes if pids is None else pids))


def run_watched(command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> WatchedRun:
    """Run a program to its end and sample its processes. Raises RuntimeError if it fails."""
    with tempfile.TemporaryFile("w+") as log:
        began, start = time.time(), time.perf_counter()
        process = subprocess.Popen(command, cwd=cwd, env=env, stdout=log, stderr=log)
        records: dict[int, ProcessRecord] = {}
        try:
            while process.poll() is None:
                sample(process.pid, time.perf_counter() - start, records)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(SAMPLE_SECONDS)
        finally:  # an interrupt ends the program, too
            process.terminate()
            process.wait()
        seconds = time.perf_counter() - start
        log.seek(0)
        output = log.read()
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{output}")
    return WatchedRun(seconds, began, process.returncode, output, records)


def sample(pid: int, now: float, records: dict[int, ProcessRecord]) -> None:
    """Update the records of a process and its descendants."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with suppress(psutil.Error, OSError):
                if not (command := process.cmdline()):
                    continue  # it has ended, and waits for its parent
                record = records.setdefault(process.pid, ProcessRecord(command, process.ppid(), now, now, 0.0))
                if record.command != command:  # it has become another program (exec)
                    record.command, record.first, record.peak_mb = command, now, 0.0
                record.last, record.peak_mb = now, max(record.peak_mb, _peak_mb(process.pid))


def _peak_mb(pid: int) -> float:
    """Peak resident memory of a process, from the kernel's own counter: no peak between samples is missed."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1e3
    return 0.0  # it has just ended


# ---------------------------------------------------------------- reports


def parser(doc: str | None, name: str, *, photos: bool = True) -> argparse.ArgumentParser:
    """The options that every benchmark has; those of the archive only if it measures on photos."""
    result = argparse.ArgumentParser(prog=f"python -m benchmarks {name}", description=(doc or "").split("\n")[0])
    result.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    result.add_argument("--out", type=Path, default=RESULTS, help="folder of the report (default: %(default)s)")
    if photos:
        result.add_argument("--archive", default="", help="file:// address of an archive of photos; else drawn flowers")
        result.add_argument("--sha256", default="", help="of the archive")
        result.add_argument("--store", type=Path, help="folder that keeps what the stages before training wrote")
    result.add_argument("--resume", action="store_true", help="keep the rows that are already in the report")
    result.add_argument("--tiny", action="store_true", help="a few images and steps: that it runs, not how fast")
    return result


def preset(options: argparse.Namespace) -> str:
    """The name of the preset that the options select: tiny, cpu or cuda."""
    return "tiny" if options.tiny else str(options.device)


class Report:
    """Rows by name. Each is printed and written to the JSON file at once; its lists are only written."""

    def __init__(self, name: str, options: argparse.Namespace, **about: Any) -> None:
        """`about`: other conditions of the figures, such as the photos.

        Raises UserError if --resume finds rows that were measured under other conditions, or on a GPU without a commit.
        """
        check_commit(options.device)
        self._path = Path(options.out) / f"{name}_{options.device}.json"
        conditions = json.loads(json.dumps({**machine(), "preset": preset(options), **about}))
        self._content: Row = {"conditions": conditions, "rows": {}, "left_out": {}, "figures": {}}
        self._listed = listed(conditions)
        if options.resume and self._path.exists():
            earlier = json.loads(self._path.read_text())
            if comparable(earlier.get("conditions", {})) != comparable(conditions):
                value = "measured with another machine, environment, code or data"
                raise UserError(Fault(str(self._path), value, "differs", remedy="remove it, or choose another --out"))
            self._content = earlier
        self._printed_head = ""
        print(f"{name}: {', '.join(f'{key} {value}' for key, value in about.items())}", flush=True)
        for title, row in self.rows.items():
            self._print(title, row)

    @property
    def rows(self) -> dict[str, Row]:
        """The rows so far."""
        return dict(self._content["rows"])

    def missing(self, names: Iterable[str]) -> list[str]:
        """The names that have no row yet."""
        return [name for name in names if name not in self._content["rows"]]

    def add(self, name: str, row: Row) -> None:
        """Print a row and write the report."""
        self._content["rows"][name] = row
        self._content["left_out"].pop(name, None)  # by an earlier call, without Apex
        if self._listed != listed(self._content["conditions"]):  # of another host than the first row
            self._content.setdefault("hosts", {})[name] = self._listed
        self._print(name, row)
        self._write()

    def leave_out(self, name: str, reason: str) -> None:
        """Record that something was not measured, and why."""
        self._content["left_out"][name] = reason
        print(f"{name:<30} left out: {reason}", flush=True)
        self._write()

    def conclude(self, **figures: Any) -> None:
        """Print and write the result of the benchmark."""
        self._content["figures"] = figures
        for name, value in figures.items():
            each = {f"{name}, {key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
            for title, part in each.items():
                print(f"{title}: {formatted(part)}")
        print(f"→ {self._path}", flush=True)
        self._write()

    def _print(self, name: str, row: Row) -> None:
        row = {key: value for key, value in row.items() if not isinstance(value, list)}
        head = f"{'':<30} " + " ".join(f"{key:>{max(9, len(key))}}" for key in row)
        if head != self._printed_head:
            print(head)
            self._printed_head = head
        print(f"{name:<30} " + " ".join(f"{formatted(row[key]):>{max(9, len(key))}}" for key in row), flush=True)

    def _write(self) -> None:
        files.write_json(self._path, self._content)


def formatted(value: Any) -> str:
    """A figure as text for a table."""
    return f"{value:.4g}" if isinstance(value, float) else "–" if value is None else str(value)


def unfinished(report: Report, names: Iterable[str], turns: int) -> list[str]:
    """The names that have not taken all their turns."""
    return [name for name in names if report.rows.get(name, {}).get("turns", 0) < turns]


def take_turns(report: Report, names: Sequence[str], turns: int, run: Callable[[str], list[float]]) -> None:
    """Add a row for each name after each of its turns: the median of the seconds per epoch that `run` measures.

    Turns that an earlier start has taken are not taken again.
    """
    for turn, name in product(range(turns), names):
        row = report.rows.get(name, {"turns": 0, "epochs": []})
        if row["turns"] == turn:
            epochs = row["epochs"] + run(name)
            report.add(name, {"epoch_s": statistics.median(epochs), "turns": turn + 1, "epochs": epochs})


def less_from(once: float, ours: float, other: float) -> int | None:
    """From which epoch on ours costs less in all: `once` and then `ours` per epoch, against `other` per epoch."""
    return int(once / (other - ours)) + 1 if other > ours else None
