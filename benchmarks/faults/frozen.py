"""Stops processes of a real training or evaluation (SIGSTOP): each run ends in time, and says who was silent.

    python -m benchmarks frozen --timeout 20 --out benchmarks/results/frozen.json

What the stages need is copied to a temporary folder, and the data are prepared there (a small ResNet-18 on CPU
processes). Each case starts `python -m pipeline.launch`, as DVC does, in a copy of that, waits for the first epoch (in
evaluate, for the processes), stops the processes it names, and in some cases sends TERM to the launcher. It counts

    seconds    from the stop to the end of the launcher; wanted: run.timeout_seconds and 30 at most
    named      whether what was said names every process that was stopped, and says so
    lie        the launcher ended with 0, for which DVC records a stage, though the outputs are not those of a whole run
    left       processes that still work in the copy
    same       the next start ends well, with the outputs of a run that was left alone

The exit status is 1 if a case breaks one of these. Some cases run at a time, for most of a case is waiting.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.faults.plan import PARAMS
from benchmarks.faults.watched_run import left_in
from benchmarks.harness.measuring import machine
from benchmarks.harness.workspace import Changes, call, environment, must, prepared, set_params
from pipeline.base import files

MORE_SECONDS = 30  # beyond the timeout
MOST_SECONDS = 400  # a case that has not ended by then has failed
AT_A_TIME = 4
TWO: Changes = PARAMS
CHANGES: dict[str, Changes] = {
    "one": {"train": {"parallel": "single"}, "run": {"processes": 1}},
    "spawn": {"run": {"launcher": "spawn"}},
}
SAVED = r"train: stopped by process \d: {}.*saved at step \d+ of \d+; run again to go on"


@dataclass(frozen=True)
class Case:
    """Who is stopped, in what, what is sent to the launcher then, and what is said in the end."""

    name: str
    stopped: tuple[str, ...]  # "launcher", or the number of a process
    said: str  # a pattern
    params: tuple[str, ...] = ()  # of CHANGES
    terms: int = 0  # how often TERM is sent to the launcher
    stage: str = "train"
    status: tuple[int, ...] = (1,)  # of the launcher

    @property
    def start(self) -> str:
        """What of its params is tracked: cases that have it in common start from one state."""
        return "-".join(name for name in self.params if name != "spawn") or "plain"


SILENT = r"process {0} of {1} \(pid \d+\).* (was silent for|was stopped).*\(state T\)"
# A training of a few seconds ends well meanwhile; a longer one saves and leaves: see tests/test_watchdog.py.
LAUNCHER_SAVED = SAVED.format(r"its launcher \(pid \d+\) was silent for \d+ s: stopped")
LAUNCHER = rf"the launcher \(pid \d+\) was silent for \d+ s|{LAUNCHER_SAVED}"
CASES = (
    Case("torchrun, process 0", ("0",), SILENT.format(0, 2)),
    Case("torchrun, process 1", ("1",), SILENT.format(1, 2)),
    Case("spawn, process 0", ("0",), SILENT.format(0, 2), ("spawn",)),
    Case("spawn, process 1", ("1",), SILENT.format(1, 2), ("spawn",)),
    Case("torchrun, the launcher", ("launcher",), LAUNCHER, status=(0, 75)),
    Case("spawn, the launcher", ("launcher",), LAUNCHER, ("spawn",), status=(0, 75)),
    Case("one process", ("0",), SILENT.format(0, 1), ("one",)),
    Case("all processes", ("0", "1"), f"(?s){SILENT.format(0, 2)}.*{SILENT.format(1, 2)}"),
    Case("all processes, then TERM", ("0", "1"), f"(?s){SILENT.format(0, 2)}.*{SAVED.format('SIGTERM;')}", (), 1,
         status=(75,)),
    Case("one process, then TERM", ("0",), f"(?s){SILENT.format(0, 1)}.*{SAVED.format('SIGTERM;')}", ("one",), 1,
         status=(75,)),
    Case("evaluate, process 0", ("0",), SILENT.format(0, 2), stage="evaluate"),
    Case("evaluate, the launcher", ("launcher",), LAUNCHER, stage="evaluate", status=(0,)),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What came of a case."""

    case: Case
    status: int
    seconds: float
    named: bool
    lie: bool
    left: int
    same: bool
    words: str

    def broken(self, timeout: int) -> bool:
        """Whether something was not as wanted."""
        late = self.seconds > timeout + MORE_SECONDS
        return (
            late or not self.named or self.lie or self.left > 0 or not self.same or self.status not in self.case.status
        )


def launcher_in(folder: Path) -> psutil.Process | None:
    """The launcher of a stage that works in the folder, if it is there already."""
    for process in psutil.process_iter():
        try:
            if "pipeline.launch" in process.cmdline() and Path(process.cwd()) == folder:
                return process
        except (psutil.Error, OSError):
            continue
    return None


def ranks(launcher: psutil.Process) -> list[psutil.Process]:
    """The processes that a launcher has started, by number."""
    started = [child for child in launcher.children() if "resource_tracker" not in " ".join(child.cmdline())]
    return sorted(started, key=lambda child: (child.create_time(), child.pid))


def strike(folder: Path, case: Case, command: list[str], limit: float = MOST_SECONDS) -> tuple[int, float, str]:
    """Start the command in the folder and stop the processes; its exit status, after how long, and what it said.

    What has not ended within the limit is killed; the status is then that of SIGKILL.
    """
    said, environ = folder / "said", environment(folder.parent)
    with said.open("w") as file:
        started = subprocess.Popen(
            command, cwd=folder, env=environ, stdout=file, stderr=file, text=True, start_new_session=True
        )
    launcher, processes = None, list[psutil.Process]()
    wanted = int(case.params[:1] != ("one",)) + 1
    while started.poll() is None and (
        len(processes) < wanted or (case.stage == "train" and "epoch 1/" not in said.read_text())
    ):
        time.sleep(0.02)
        launcher = launcher_in(folder)
        processes = ranks(launcher) if launcher else []
    if launcher is None:
        raise RuntimeError(f"{case.name}: came too late, or it failed:\n{said.read_text()}")
    named = {"launcher": launcher, **{str(rank): process for rank, process in enumerate(processes)}}
    for name in case.stopped:
        named[name].suspend()
    began = time.monotonic()
    for _ in range(case.terms):
        launcher.send_signal(signal.SIGTERM)
        time.sleep(1)
    try:
        started.wait(limit)
    except subprocess.TimeoutExpired:
        for process in (*processes, launcher, psutil.Process(started.pid)):
            process.kill()
        started.wait()
    return started.returncode, time.monotonic() - began, said.read_text()


def command(stage: str) -> list[str]:
    """As DVC starts a stage."""
    return [sys.executable, "-m", "pipeline.launch", stage]


def outputs(folder: Path) -> dict[str, str]:
    """The outputs of training and evaluation, those that are there, by their SHA-256."""
    found = (path for top in ("models", "metrics", "reports") for path in (folder / top).rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): files.sha256(path) for path in sorted(found)}


def attempt(base: Path, case: Case, whole: dict[str, dict[str, str]]) -> Outcome:
    """One case, and the run that goes on from it."""
    folder = base / re.sub(r"\W+", "-", case.name)
    shutil.copytree(base / f"{case.stage}-{case.start}", folder, symlinks=True)
    for name in case.params:
        set_params(folder, CHANGES[name])
    status, seconds, words = strike(folder, case, command(case.stage))
    left = left_in(folder)
    for process in left:
        process.kill()
    wanted = whole[f"{case.stage}-{case.start}"]
    lie = status == 0 and outputs(folder) != wanted
    again = call(folder, *command(case.stage))
    return Outcome(
        case=case,
        status=status,
        seconds=round(seconds, 1),
        named=re.search(case.said, words) is not None,
        lie=lie,
        left=len(left),
        same=again.returncode == 0 and outputs(folder) == wanted,
        words="\n".join(line for line in words.splitlines() if re.match(r"(train|evaluate|launch|the launcher)", line)),
    )


def prepare(base: Path, timeout: int, cases: list[Case]) -> dict[str, dict[str, str]]:
    """What each stage starts from; returns the outputs of runs that were left alone."""
    whole = {}
    for start in sorted({case.start for case in cases}):
        train, evaluate, end = (base / f"{name}-{start}" for name in ("train", "evaluate", "whole"))
        prepared(train, TWO, {"run": {"timeout_seconds": timeout}}, CHANGES.get(start, {}))
        shutil.copytree(train, evaluate, symlinks=True)
        must(evaluate, *command("train"))
        whole[f"train-{start}"] = outputs(evaluate)
        shutil.copytree(evaluate, end, symlinks=True)
        must(end, *command("evaluate"))
        whole[f"evaluate-{start}"] = outputs(end)
    return whole


def outcomes(timeout: int, cases: list[Case]) -> Iterator[Outcome]:
    """Run the cases, some at a time."""
    with tempfile.TemporaryDirectory(prefix="frozen-") as temporary, ThreadPoolExecutor(AT_A_TIME) as pool:
        base = Path(temporary).resolve()
        whole = prepare(base, timeout, cases)
        yield from pool.map(lambda case: attempt(base, case, whole), cases)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks frozen", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--timeout", type=int, default=20, help="run.timeout_seconds")
    parser.add_argument("--only", default="", help="cases with this in their names")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures, written anew after every case")
    options = parser.parse_args()
    done: list[Outcome] = []
    for outcome in outcomes(options.timeout, [case for case in CASES if options.only in case.name]):
        done.append(outcome)
        verdict = "BROKEN" if outcome.broken(options.timeout) else "ok"
        print(f"{verdict:7}{outcome.seconds:7.1f} s  {outcome.case.name}\n{outcome.words}\n", flush=True)
        if options.out:
            files.write_json(options.out, report(done, options.timeout))
    return int(not done or any(outcome.broken(options.timeout) for outcome in done))


def report(done: list[Outcome], timeout: int) -> dict[str, Any]:
    """The figures; what was said stands there without the ids of processes and the name of the machine."""
    host = os.uname().nodename
    rows = [
        {
            **{key: value for key, value in asdict(outcome).items() if key != "case"},
            "case": outcome.case.name,
            "words": re.sub(r"pid \d+", "pid N", outcome.words).replace(host, "HOST").splitlines(),
        }
        for outcome in done
    ]
    return {
        "timeout_seconds": timeout,
        "machine": machine(),
        "summary": {
            "cases": len(done),
            "broken": sum(outcome.broken(timeout) for outcome in done),
            "most_seconds": max(outcome.seconds for outcome in done),
            "recorded_as_success": sum(outcome.lie for outcome in done),
            "processes_left": sum(outcome.left for outcome in done),
            "differing_outputs": sum(not outcome.same for outcome in done),
        },
        "cases": rows,
    }


if __name__ == "__main__":
    sys.exit(main())
