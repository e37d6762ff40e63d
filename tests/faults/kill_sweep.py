"""Kills a real `dvc repro` many times: no process stays, dvc.lock records nothing false, the bytes are the same.

    python -m tests.faults.kill_sweep --trials 100 --seed 0 --out benchmarks/results/kill_sweep.json
    python -m tests.faults.kill_sweep --elastic --trials 30 --seed 0 --out benchmarks/results/kill_sweep_elastic.json

The project is copied to a temporary folder and run there once without interruption (a small ResNet-18 on two CPU
processes). Each trial starts from a copy of the state before one stage, without DVC's run cache, so nothing is restored
instead of run. The trial waits for its moment and sends one signal to one target. Then it runs `perennial
repro` until that succeeds: up to the interrupted stage, or to the end if that is train. A trial counts

    orphans         processes that still work in the copy half a minute after the run has ended
    false_record    dvc.lock has an entry of the stage after the interruption, and it differs from the reference run's
    same            dvc.lock in the end is that of the reference run, byte for byte
    lost            training steps that TensorBoard's events show before the signal, and that were computed again

The exit status is 1 if there is an orphan, a false record or another dvc.lock. The moment is recognized by watching.
A trial is `missed` if the run had ended before the signal. A trial takes about half a minute on two cores; trials run
one after another.

With --elastic only train is interrupted, with train.parallel: elastic, and every start has another number of processes.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.harness.measuring import machine
from pipeline.base import files
from tests.faults.plan import OTHERS, plan
from tests.faults.trial import Trial, prepare, run_trial


def sweep(trials: int, seed: int, elastic: bool = False) -> Iterator[Trial]:
    """Run the planned trials, one after another."""
    with tempfile.TemporaryDirectory(prefix="kill-sweep-") as temporary:
        base = Path(temporary).resolve()
        reference = prepare(base, elastic)
        for number, fault in enumerate(plan(trials, seed, () if elastic else OTHERS)):
            yield run_trial(base / fault.stage, reference, fault, random.Random(f"{seed}/{number}"))


ROW = "{:>4}  {:<9} {:<11} {:<5} {:<9} {:>6} {:>8} {:>7} {:>7} {:<5} {:<5} {:>5} {:>8}"
HEADER = (
    "", "stage", "moment", "sent", "to", "status", "orphans", "gone s", "repros", "false", "same", "lost", "seconds",
)  # fmt: skip


def row(number: int, trial: Trial) -> str:
    """A trial as a line of the table."""
    fault = trial.fault
    moment = f"{fault.moment}{' (missed)' * trial.missed}"
    false_record, same = "YES" if trial.false_record else "no", "yes" if trial.same else "NO"
    lost = "" if trial.lost is None else trial.lost
    return ROW.format(
        number, fault.stage, moment, fault.signal, fault.target, trial.status, trial.orphans, trial.gone_seconds,
        trial.repros, false_record, same, lost, trial.seconds,
    )  # fmt: skip


def summary(done: list[Trial]) -> dict[str, Any]:
    """The figures of a sweep."""
    lost = [trial.lost for trial in done if trial.lost is not None]
    return {
        "trials": len(done),
        "missed": sum(trial.missed for trial in done),
        "orphans": sum(trial.orphans for trial in done),
        "recorded_as_success": sum(trial.false_record for trial in done),
        "differing_locks": sum(not trial.same for trial in done),
        "ended_by_the_signal": sum(trial.status != 0 for trial in done),
        "most_repros": max(trial.repros for trial in done),
        "repairs": sum(len(trial.repairs) for trial in done),
        "most_gone_seconds": max(trial.gone_seconds for trial in done),
        "most_lost_steps": max(lost, default=0),
        "mean_lost_steps": sum(lost) / max(1, len(lost)),
        "seconds": round(sum(trial.seconds for trial in done), 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.kill_sweep", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--trials", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--elastic", action="store_true", help="with another number of processes at every start")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures, written anew after every trial")
    options = parser.parse_args()
    done: list[Trial] = []
    print(ROW.format(*HEADER), flush=True)
    for trial in sweep(options.trials, options.seed, options.elastic):
        done.append(trial)
        print(row(len(done), trial), flush=True)
        if options.out:
            rows = [{**asdict(trial), "lost": trial.lost} for trial in done]
            conditions = {"seed": options.seed, "elastic": options.elastic, "machine": machine()}
            files.write_json(options.out, {**conditions, "summary": summary(done), "trials": rows})
    print(*(f"{name:<32} {value}" for name, value in summary(done).items()), sep="\n")
    return int(any(trial.broken for trial in done))


if __name__ == "__main__":
    sys.exit(main())
