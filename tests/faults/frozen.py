"""Freezes processes of a real training or evaluation (SIGSTOP): each run ends in time and names the frozen process.

    python -m tests.faults.frozen --timeout 20

What the stages need is copied to a temporary folder, and the data are prepared there (a small ResNet-18 on CPU
processes). Each case starts `perennial train` in a copy of that folder, as DVC does. It waits for the first
epoch (in evaluate: for the processes), sends SIGSTOP to the processes that it names, and in some cases TERM to the
launcher. It counts

    seconds         from SIGSTOP to the end of the launcher; allowed: run.timeout_seconds and 30
    named           whether the output names each frozen process, with the reason
    false_record    the launcher ended with 0, so DVC records the stage, but the outputs are not the reference run's
    orphans         processes that still work in the copy
    same            the next start succeeds, with the outputs of the reference run

The exit status is 1 if a case breaks one of these. Several cases run at a time, because most of a case is waiting.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness.measuring import machine
from benchmarks.harness.workspace import (
    Changes,
    call,
    create_prepared,
    environment,
    run_stage,
    set_params,
    temporary_folder,
)
from tests.faults import campaign
from tests.faults.campaign import Row
from tests.faults.plan import PARAMS
from tests.faults.watched_run import left_in
from tests.helpers.trainings import digests, rank_processes

MORE_SECONDS = 30  # allowed after the timeout
MOST_SECONDS = 400  # a longer case is killed, and has failed
AT_A_TIME = 4
TWO: Changes = PARAMS
CHANGES: dict[str, Changes] = {
    "one": {"train": {"parallel": "single"}, "run": {"processes": 1}},
    "spawn": {"run": {"launcher": "spawn"}},
}
SAVED = r"train: stopped by process \d: {}.*saved at step \d+ of \d+; run again to go on"


@dataclass(frozen=True)
class Case:
    """The processes to freeze, the params, the signals to the launcher, and the expected output."""

    name: str
    frozen: tuple[str, ...]  # ranks of processes
    output: str  # a pattern
    params: tuple[str, ...] = ()  # of CHANGES
    terms: int = 0  # how often TERM is sent to the launcher
    stage: str = "train"
    status: tuple[int, ...] = (1,)  # of the launcher

    @property
    def start(self) -> str:
        """The name of the prepared state; cases with the same tracked params share one."""
        return "-".join(name for name in self.params if name != "spawn") or "plain"


SILENT = r"process {0} of {1} \(pid \d+\).* (was silent for|was stopped).*\(state T\)"
CASES = (
    Case("torchrun, process 0", ("0",), SILENT.format(0, 2)),
    Case("torchrun, process 1", ("1",), SILENT.format(1, 2)),
    Case("spawn, process 0", ("0",), SILENT.format(0, 2), ("spawn",)),
    Case("spawn, process 1", ("1",), SILENT.format(1, 2), ("spawn",)),
    Case("one process", ("0",), SILENT.format(0, 1), ("one",)),
    Case("all processes", ("0", "1"), f"(?s){SILENT.format(0, 2)}.*{SILENT.format(1, 2)}"),
    Case("all processes, then TERM", ("0", "1"), f"(?s){SILENT.format(0, 2)}.*{SAVED.format('SIGTERM;')}", (), 1,
         status=(75,)),
    Case("one process, then TERM", ("0",), f"(?s){SILENT.format(0, 1)}.*{SAVED.format('SIGTERM;')}", ("one",), 1,
         status=(75,)),
    Case("evaluate, process 0", ("0",), SILENT.format(0, 2), stage="evaluate"),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case."""

    case: Case
    status: int
    seconds: float
    named: bool
    false_record: bool
    orphans: int
    same: bool
    output: str

    def broken(self, timeout: int) -> bool:
        """Whether the case broke a promise."""
        is_late, is_right = self.seconds > timeout + MORE_SECONDS, self.named and self.same and self.orphans == 0
        return is_late or not is_right or self.false_record or self.status not in self.case.status


def freeze(folder: Path, case: Case, command: list[str], limit: float = MOST_SECONDS) -> tuple[int, float, str]:
    """Start a launcher in the folder and freeze processes. Returns exit status, seconds from then on, and output.

    After `limit` seconds the processes are killed; the status is then that of SIGKILL.
    """
    log, environ = folder / "log", environment(folder.parent)
    with log.open("w") as file:
        launcher = subprocess.Popen(
            command, cwd=folder, env=environ, stdout=file, stderr=file, text=True, start_new_session=True
        )
    processes, count = list[psutil.Process](), 1 if case.params[:1] == ("one",) else 2
    while len(processes) < count or (case.stage == "train" and "epoch 1/" not in log.read_text()):
        time.sleep(0.02)
        if launcher.poll() is not None:
            raise RuntimeError(f"{case.name}: the command ended too early:\n{log.read_text()}")
        processes = rank_processes(launcher)
    for rank in case.frozen:
        processes[int(rank)].suspend()
    began = time.monotonic()
    for _ in range(case.terms):
        launcher.send_signal(signal.SIGTERM)
        time.sleep(1)
    try:
        launcher.wait(limit)
    except subprocess.TimeoutExpired:
        for process in processes:
            process.kill()
        launcher.kill()
        launcher.wait()
    return launcher.returncode, time.monotonic() - began, log.read_text()


def command(stage: str) -> list[str]:
    """The command by which DVC starts a stage."""
    return [sys.executable, "-m", "pipeline", stage]


def outputs(folder: Path) -> dict[str, str]:
    """The SHA-256 of each output of training and evaluation that exists."""
    return digests(folder, "models", "metrics", "reports")


def run_case(base: Path, case: Case, reference: dict[str, dict[str, str]]) -> Outcome:
    """Run a case, and the stage once more after it."""
    folder = base / re.sub(r"\W+", "-", case.name)
    shutil.copytree(base / f"{case.stage}-{case.start}", folder, symlinks=True)
    for name in case.params:
        set_params(folder, CHANGES[name])
    status, seconds, output = freeze(folder, case, command(case.stage))
    orphans = left_in(folder)
    for process in orphans:
        process.kill()
    expected = reference[f"{case.stage}-{case.start}"]
    false_record = status == 0 and outputs(folder) != expected
    again = call(folder, *command(case.stage))
    same, is_named = again.returncode == 0 and outputs(folder) == expected, re.search(case.output, output) is not None
    lines = [line for line in output.splitlines() if re.match(r"(train|evaluate|launch|the launcher)", line)]
    return Outcome(case, status, round(seconds, 1), is_named, false_record, len(orphans), same, "\n".join(lines))


def prepare(base: Path, timeout: int, cases: list[Case]) -> dict[str, dict[str, str]]:
    """Make the folders from which the cases start; the digests of the reference runs' outputs, by stage and start."""
    reference = {}
    for start in sorted({case.start for case in cases}):
        train, evaluate, end = (base / f"{name}-{start}" for name in ("train", "evaluate", "reference"))
        create_prepared(train, TWO, {"run": {"timeout_seconds": timeout}}, CHANGES.get(start, {}))
        shutil.copytree(train, evaluate, symlinks=True)
        run_stage(evaluate, "train")
        reference[f"train-{start}"] = outputs(evaluate)
        shutil.copytree(evaluate, end, symlinks=True)
        run_stage(end, "evaluate")
        reference[f"evaluate-{start}"] = outputs(end)
    return reference


def outcomes(timeout: int, cases: list[Case]) -> Iterator[Outcome]:
    """Run the cases, several at a time."""
    with temporary_folder("frozen") as base, ThreadPoolExecutor(AT_A_TIME) as pool:
        reference = prepare(base, timeout, cases)
        yield from pool.map(lambda case: run_case(base, case, reference), cases)


def row(outcome: Outcome, timeout: int) -> Row:
    """An outcome for the report. PIDs and the name of the machine are replaced in the output."""
    lines = re.sub(r"pid \d+", "pid N", outcome.output).replace(os.uname().nodename, "HOST").splitlines()
    figures = {key: value for key, value in asdict(outcome).items() if key not in ("case", "output")}
    return {"case": outcome.case.name, "broken": outcome.broken(timeout), **figures, "output": lines}


def summary(done: list[Row]) -> dict[str, Any]:
    """The figures of all cases."""
    return {
        "cases": len(done),
        "broken": sum(row["broken"] for row in done),
        "most_seconds": max(row["seconds"] for row in done),
        "recorded_as_success": sum(row["false_record"] for row in done),
        "orphans": sum(row["orphans"] for row in done),
        "differing_outputs": sum(not row["same"] for row in done),
    }


def main() -> int:
    parser = campaign.parser("frozen", __doc__)
    parser.add_argument("--timeout", type=int, default=20, help="run.timeout_seconds")
    parser.add_argument("--only", default="", choices=[case.name for case in CASES], help="this case alone")
    options = parser.parse_args()
    cases = [case for case in CASES if options.only in ("", case.name)]
    rows = (row(outcome, options.timeout) for outcome in outcomes(options.timeout, cases))
    conditions = {"timeout_seconds": options.timeout, "machine": machine()}
    done = campaign.run(rows, options.out, lambda done: {**conditions, "summary": summary(done), "cases": done})
    return int(any(row["broken"] for row in done))


if __name__ == "__main__":
    sys.exit(main())
