"""Kills a real `dvc repro` many times: no process stays, dvc.lock records nothing false, the bytes are the same.

    python -m tests.faults.kill_sweep --trials 60 --seed 0 --out benchmarks/results/kill_sweep.json
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

import random
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from benchmarks.harness.measuring import machine
from benchmarks.harness.workspace import temporary_folder
from tests.faults import campaign
from tests.faults.campaign import Row
from tests.faults.plan import OTHERS, plan
from tests.faults.trial import Trial, prepare, run_trial


def sweep(trials: int, seed: int, elastic: bool = False) -> Iterator[Trial]:
    """Run the planned trials, one after another."""
    with temporary_folder("kill-sweep") as base:
        reference = prepare(base, elastic)
        for number, fault in enumerate(plan(trials, seed, () if elastic else OTHERS)):
            yield run_trial(base / fault.stage, reference, fault, random.Random(f"{seed}/{number}"))


def summary(done: list[Row]) -> dict[str, Any]:
    """The figures of a sweep."""
    lost = [row["lost"] for row in done if row["lost"] is not None]
    return {
        "trials": len(done),
        "missed": sum(row["missed"] for row in done),
        "orphans": sum(row["orphans"] for row in done),
        "recorded_as_success": sum(row["false_record"] for row in done),
        "differing_locks": sum(not row["same"] for row in done),
        "ended_by_the_signal": sum(row["status"] != 0 for row in done),
        "most_repros": max(row["repros"] for row in done),
        "repairs": sum(len(row["repairs"]) for row in done),
        "most_gone_seconds": max(row["gone_seconds"] for row in done),
        "most_lost_steps": max(lost, default=0),
        "mean_lost_steps": sum(lost) / max(1, len(lost)),
        "seconds": round(sum(row["seconds"] for row in done), 1),
    }


def main() -> int:
    parser = campaign.parser("kill_sweep", __doc__)
    parser.add_argument("--trials", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--elastic", action="store_true", help="with another number of processes at every start")
    options = parser.parse_args()
    rows = ({**asdict(trial), "lost": trial.lost} for trial in sweep(options.trials, options.seed, options.elastic))
    conditions = {"seed": options.seed, "elastic": options.elastic, "machine": machine()}
    done = campaign.run(rows, options.out, lambda done: {**conditions, "summary": summary(done), "trials": done})
    return int(any(row["orphans"] or row["false_record"] or not row["same"] for row in done))


if __name__ == "__main__":
    sys.exit(main())
