"""Trains what the commit claims with several seeds on this machine, and records or judges their test accuracies.

Each seed has a work copy of the commit in FOLDER. The result of a finished seed stays there, with the hashes of its
outputs. A training that was interrupted continues from its checkpoint. Both belong to the code, params, data, versions
and hardware that made them, by a digest.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.base import errors, files, locks, schema
from pipeline.base.errors import Fault, UserError
from pipeline.config import machine, params, validity
from pipeline.config.params import Params
from pipeline.engine.world import World
from pipeline.evaluation import figures
from pipeline.evaluation.figures import EvalFigures
from pipeline.reruns import comparison, folder, repetition, runner, seeds, workcopy
from pipeline.reruns.runner import Slot
from pipeline.reruns.seeds import STAGES
from pipeline.training import checkpoint, identity, provenance, runs
from pipeline.versioning import dvc_lock, integrity
from pipeline.versioning.dvc_lock import Claims, Hashes

FOLDER = workcopy.FOLDER / "seeds"
RESULT = "result.json"  # in the work copy of a seed
REMEDY = "dvc pull brings it, perennial repro prepare weights makes it again"
DIFFERENT = 3  # exit status


@dataclass(frozen=True)
class Result:
    """What a finished seed gave: its test accuracy, and the hash of every output."""

    __pydantic_config__ = schema.STRICT

    accuracy: float
    outs: Hashes


@dataclass(frozen=True)
class Claim:
    """The commit's params and dvc.lock, and the test accuracy that it claims."""

    config: Params
    claims: Claims
    accuracy: float

    def seeds(self, count: int) -> list[int]:
        """The committed seed, and those that follow."""
        return [(self.config.train.seed + k) % 2**32 for k in range(count)]


def accuracy(config: Params, top: Path) -> float:
    """The test accuracy in the eval.json of a project's folder."""
    return figures.read(top / config.paths.metrics, EvalFigures).accuracy


def claimed() -> Claim:
    """What the params, dvc.lock and eval.json of this folder say. Raises UserError if a training is not among it."""
    config, claims = params.load(), dvc_lock.read()
    for name in STAGES:
        if name not in claims:
            value, remedy = f"no stage {name}, so it claims no accuracy", "perennial repro, then commit"
            raise UserError(Fault(str(dvc_lock.LOCK), value, "missing", remedy=remedy))
    return Claim(config, claims, accuracy(config, Path()))


def check(claim: Claim) -> None:
    """Raise UserError if the code, the params or the inputs here are not as committed, or cannot run on this machine.

    The outputs of training and evaluation, and of stages that read them, may be missing, except eval.json.
    """
    config, claims = claim.config, claim.claims
    errors.raise_if_any([*folder.outside(claims), *folder.foreign_commands(STAGES)])
    of_both = comparison.outputs(claims, STAGES)
    readers = [name for name, stage in claims.items() if of_both.keys() & stage["deps"].keys()]
    missing = {*of_both, *comparison.outputs(claims, readers)} - {f"{config.paths.metrics}/eval.json"}
    unneeded = missing | {config.paths.inbox, config.paths.pretrained}
    errors.raise_if_any(folder.unclean(config, claims, unneeded, REMEDY))
    needed = {
        name: {**stage, "outs": {path: md5 for path, md5 in stage["outs"].items() if path not in missing}}
        for name, stage in claims.items()
    }
    errors.raise_if_any(integrity.damage(needed))
    errors.raise_if_any(validity.faults(config, machine.read()))


def place(claim: Claim) -> Path:
    """The folder for the results of this code, these params and these data on this machine."""
    config, world = claim.config, World.from_env({}, claim.config.train.device)
    parts: dict[str, Any] = {
        "deps": {name: claim.claims[name]["deps"] for name in STAGES},
        "params": seeds.decisive(config),
        "versions": provenance.versions(),
        "hardware": provenance.hardware(world, config.train.threads, config.train.arithmetic),
    }
    return FOLDER / identity.digest(parts)[:16]


def trained(claim: Claim, numbers: Sequence[int], slots: Sequence[Slot]) -> dict[int, Result]:
    """Seed → its result. The seeds that have none yet are trained, one in each slot at a time.

    Raises UserError if a stage fails.
    """
    top = place(claim)
    missing = [seed for seed in numbers if not (top / str(seed) / RESULT).is_file()]
    if missing:
        print(f"verify: training seeds: {', '.join(map(str, missing))}; work copies in {top}/", flush=True)
        train(claim, missing, slots)
    paths = {seed: top / str(seed) / RESULT for seed in numbers}
    results = {seed: schema.json_of(path, Result, f"remove it: rm {path}") for seed, path in paths.items()}
    for seed, result in results.items():
        before = "" if seed in missing else "; trained before"
        print(f"verify: seed {seed}: test accuracy {result.accuracy:.4f}{before}", flush=True)
    return results


def train(claim: Claim, numbers: Sequence[int], slots: Sequence[Slot]) -> None:
    """Train and test each seed in a work copy, with the inputs of the first one, and write its result there."""
    config, top = claim.config, place(claim)
    copies = [repetition.make(top / str(seed), config, {"train.seed": seed}, kept(config)) for seed in numbers]
    inputs = repetition.bring_inputs(copies[0], claim.claims, STAGES)
    for copy in copies[1:]:
        for path in inputs:
            files.link(copy.folder / path, copies[0].folder / path)
    jobs = [
        repetition.job(f"seed {seed}", copy, STAGES, "--single-item")
        for seed, copy in zip(numbers, copies, strict=True)
    ]
    with closing(runner.run_all(jobs, slots, "verify")) as runs_of_seeds:
        for ended in runs_of_seeds:
            if ended.failures:
                raise UserError(*ended.failures)
            there = ended.job.folder
            outs = comparison.outputs(dvc_lock.read(there / dvc_lock.LOCK), STAGES)
            files.write_json(there / RESULT, {"accuracy": accuracy(config, there), "outs": outs})
            for run in (there / config.paths.runs).glob("*/"):
                checkpoint.remove(run / runs.CHECKPOINT)


def kept(config: Params) -> set[str]:
    """What stays in the work copy of a seed: its result, and its runs."""
    return {RESULT, Path(config.paths.runs).parts[0]}


def tidy(claim: Claim) -> None:
    """Remove everything else from the work copies."""
    for copy in place(claim).glob("[0-9]*"):
        workcopy.clear(copy, kept(claim.config))


def record(count: int, jobs: int) -> int:
    """Train the seeds that follow the committed one, and write the accuracies of all `count` seeds into a file; 0.

    `jobs`: so many at the same time.
    """
    check_count("--record-seeds", count)
    claim = claimed()
    slots = runner.slots(claim.config, jobs)
    errors.raise_if_any(folder.uncommitted(claim.claims, f"{claim.config.paths.metrics}/eval.json"))
    check(claim)
    first, *others = claim.seeds(count)
    with locks.hold(place(claim), "trains these seeds"):
        results = trained(claim, others, slots)
        tidy(claim)
    found = {first: claim.accuracy} | {seed: result.accuracy for seed, result in results.items()}
    file = seeds.path(claim.config)
    seeds.write(file, claim.config, claim.claims, found)
    summary = seeds.sample([*found.values()])
    print(
        f"\nwritten: {file}: test accuracy {summary}",
        f"as many seeds elsewhere show a drop of {seeds.visible_drop(summary, summary):.4f} in 4 of 5 cases",
        f"for Git: git add {file}",
        sep="\n",
    )
    return 0


def judge(count: int | None, jobs: int) -> int:
    """Train the committed seeds here, and compare: the same bytes, as good as the committed ones, or different.

    Returns 0, or DIFFERENT. `count` seeds are trained; by default as many as were recorded. The first one is trained
    alone, the others `jobs` at the same time.
    """
    check_count("--seeds", seeds.FEWEST if count is None else count)
    claim = claimed()
    config, claims, file = claim.config, claim.claims, seeds.path(claim.config)
    slots = runner.slots(config, jobs)
    errors.raise_if_any(folder.uncommitted(claims, f"{config.paths.metrics}/eval.json", str(file)))
    known = seeds.recorded(config, claims, claim.accuracy)
    check(claim)
    (first, *others), top = claim.seeds(count or len(known.seeds)), place(claim)
    with locks.hold(top, "trains these seeds"):
        results = trained(claim, [first], runner.slots(config, 1))
        different = comparison.compare(claims, results[first].outs, STAGES)
        comparison.print_tensor_differences(different, top / str(first))
        comparison.print_provenance(Path(config.paths.runs), top / str(first) / config.paths.runs)
        if different:
            results |= trained(claim, others, slots)
        tidy(claim)
    if not different:
        print(f"\nverify: the same bytes: seed {first} gives every output of {' and '.join(STAGES)} as in dvc.lock")
        return 0
    lower, sentence = seeds.verdict(
        seeds.sample([result.accuracy for result in results.values()]),
        seeds.sample([seed.accuracy for seed in known.seeds]),
    )
    print(f"\nverify: {sentence}")
    return DIFFERENT if lower else 0


def check_count(option: str, count: int) -> None:
    """Raise UserError for a number of seeds that has no spread."""
    if count < seeds.FEWEST:
        raise UserError(Fault(option, str(count), "value", allowed=f"{seeds.FEWEST} or more"))
