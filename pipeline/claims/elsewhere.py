"""Trains what the commit claims with several seeds on this machine, and records or judges their test accuracies.

A finished seed stays in FOLDER, with the hashes of its outputs. A training that was interrupted continues from its
checkpoint there. Both belong to the code, params, data, versions and hardware that made them, by a digest.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.base import dvc_lock, files, integrity, programs, schema
from pipeline.base.dvc_lock import Claims, Hashes
from pipeline.base.errors import UserError
from pipeline.claims import clone, comparison, folder, seeds
from pipeline.claims.clone import Clone
from pipeline.claims.seeds import STAGES
from pipeline.config import document, machine, params, validity
from pipeline.config.params import Params
from pipeline.engine.world import World
from pipeline.evaluation import figures
from pipeline.evaluation.figures import EvalFigures
from pipeline.training import checkpoint, identity, provenance, runs

FOLDER = programs.TEMPORARY / "seeds"
REMEDY = "dvc pull brings it, python -m pipeline.repro prepare weights makes it again"
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
            raise UserError(f"{dvc_lock.LOCK}: no stage {name}, so it claims no accuracy; dvc repro, then commit")
    return Claim(config, claims, accuracy(config, Path()))


def check(claim: Claim) -> None:
    """Raise UserError if the code, the params or the inputs here are not as committed, or cannot run on this machine.

    The outputs of training and evaluation, and of stages that read them, may be missing, except eval.json.
    """
    config, claims = claim.config, claim.claims
    folder.raise_if_any([*folder.outside(claims), *folder.foreign_commands(STAGES)])
    of_both = comparison.outputs(claims, STAGES)
    readers = [name for name, stage in claims.items() if of_both.keys() & stage["deps"].keys()]
    missing = {*of_both, *comparison.outputs(claims, readers)} - {f"{config.paths.metrics}/eval.json"}
    unneeded = missing | {config.paths.inbox, config.paths.pretrained}
    folder.raise_if_any(folder.unclean(config, claims, unneeded, REMEDY))
    needed = {
        name: {**stage, "outs": {path: md5 for path, md5 in stage["outs"].items() if path not in missing}}
        for name, stage in claims.items()
    }
    folder.raise_if_any(integrity.damage(needed))
    folder.raise_if_any(validity.faults(config, machine.read()))


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


def finished(config: Params, seed: int, kept: Path, copy: Clone) -> Result:
    """The result of a seed, in the folder `kept`. It is trained in the clone, unless that has been done before.

    Raises UserError if a stage fails.
    """
    path, working = kept / "result.json", kept / "runs"
    if path.is_file():
        print(f"\nverify: seed {seed}: trained before, see {path}")
    else:
        print(f"\nverify: seed {seed}: training", flush=True)
        document.rewrite(copy.folder / params.FILE, {"train.seed": seed})
        working.mkdir(parents=True, exist_ok=True)
        files.link(copy.folder / config.paths.runs, working)
        clone.repeat(["--single-item", *STAGES], copy)
        outs = comparison.outputs(dvc_lock.read(copy.folder / dvc_lock.LOCK), STAGES)
        files.write_json(path, {"accuracy": accuracy(config, copy.folder), "outs": outs})
        for run in working.glob("*/"):
            checkpoint.remove(run / runs.CHECKPOINT)
    result = schema.json_of(path, Result, f"remove it: rm {path}")
    print(f"verify: seed {seed}: test accuracy {result.accuracy:.4f}", flush=True)
    return result


def record(count: int) -> int:
    """Train the seeds that follow the committed one, and write the accuracies of all `count` seeds into a file; 0."""
    check_count("--record-seeds", count)
    claim = claimed()
    folder.raise_if_any(folder.uncommitted(claim.claims, f"{claim.config.paths.metrics}/eval.json"))
    check(claim)
    (first, *others), kept = claim.seeds(count), place(claim)
    with clone.of_commit(claim.config, claim.claims, [*STAGES]) as copy:
        accuracies = [finished(claim.config, seed, kept / str(seed), copy).accuracy for seed in others]
    found = dict(zip([first, *others], [claim.accuracy, *accuracies], strict=True))
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


def judge(count: int | None) -> int:
    """Train the committed seeds here, and compare: the same bytes, as good as the committed ones, or different.

    Returns 0, or DIFFERENT. `count` seeds are trained; by default as many as were recorded.
    """
    check_count("--seeds", seeds.FEWEST if count is None else count)
    claim = claimed()
    config, claims, file = claim.config, claim.claims, seeds.path(claim.config)
    folder.raise_if_any(folder.uncommitted(claims, f"{config.paths.metrics}/eval.json", str(file)))
    known = seeds.recorded(config, claims, claim.accuracy)
    check(claim)
    (first, *others), kept = claim.seeds(count or len(known.seeds)), place(claim)
    with clone.of_commit(config, claims, [*STAGES]) as copy:
        result = finished(config, first, kept / str(first), copy)
        different = comparison.compare(claims, result.outs, STAGES)
        comparison.print_tensor_differences(different, copy.folder)
        comparison.print_provenance(Path(config.paths.runs), kept / str(first) / "runs")
        if not different:
            print(f"\nverify: the same bytes: seed {first} gives every output of {' and '.join(STAGES)} as in dvc.lock")
            return 0
        accuracies = [finished(config, seed, kept / str(seed), copy).accuracy for seed in others]
    lower, sentence = seeds.verdict(
        seeds.sample([result.accuracy, *accuracies]), seeds.sample([seed.accuracy for seed in known.seeds])
    )
    print(f"\nverify: {sentence}")
    return DIFFERENT if lower else 0


def check_count(option: str, count: int) -> None:
    """Raise UserError for a number of seeds that has no spread."""
    if count < seeds.FEWEST:
        raise UserError(f"{option}: {count} is not allowed; allowed: {seeds.FEWEST} or more")
