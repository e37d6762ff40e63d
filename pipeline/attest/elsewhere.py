"""Trains the committed params with several seeds on this machine, and records or compares their test accuracies.

Each seed has a work copy of the commit in FOLDER. The result of a finished seed stays there, with the hashes of its
outputs. A training that was interrupted continues from its checkpoint. Both belong to the code, params, data, versions
and hardware that made them, by a digest. With `--on slurm` any node of the cluster counts as the same hardware.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.attest import comparison, folder, repetition, seeds
from pipeline.attest.seeds import STAGES
from pipeline.base import errors, files, locks, schema
from pipeline.base.errors import DIFFERENT, Fault, UserError
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.evaluation import figures
from pipeline.evaluation.figures import EvalFigures
from pipeline.running import checkpoint, provenance, rendezvous, runs
from pipeline.studies import pooling, runner, slurm, workcopy
from pipeline.studies.runner import Job, Slot
from pipeline.studies.workcopy import WorkCopy
from pipeline.versioning import dvc_lock, identity, integrity
from pipeline.versioning.dvc_lock import Hashes, StageHashes

FOLDER = workcopy.FOLDER / "seeds"
RESULT = "result.json"  # in the work copy of a seed
REMEDY = "dvc pull brings it, perennial repro prepare weights makes it again"


@dataclass(frozen=True)
class Result:
    """The result of a seed: its test accuracy, and the hash of every output."""

    __pydantic_config__ = schema.STRICT

    accuracy: float
    outs: Hashes


@dataclass(frozen=True)
class Reference:
    """The params, the dvc.lock and the test accuracy of the commit; where its seeds are trained."""

    config: Params
    stage_hashes: StageHashes
    accuracy: float
    on: str  # a value of --on

    def seeds(self, count: int) -> list[int]:
        """So many seeds: the committed one, and those that follow."""
        return [(self.config.train.seed + k) % 2**32 for k in range(count)]


def eval_file(config: Params) -> str:
    """The path of eval.json, as dvc.lock has it."""
    return str(figures.path(config.paths.metrics, EvalFigures))


def accuracy(config: Params, top: Path) -> float:
    """The test accuracy in the eval.json of a project's folder."""
    return figures.read(top / config.paths.metrics, EvalFigures).accuracy


def read_reference(on: str) -> Reference:
    """The params, dvc.lock and test accuracy in this folder. Raises UserError if there is no training."""
    config, stage_hashes = params.load(), dvc_lock.read()
    for name in STAGES:
        if name not in stage_hashes:
            value, remedy = f"no stage {name}, so it has no accuracy", "perennial repro, then commit"
            raise UserError(Fault(str(dvc_lock.LOCK), value, "missing", remedy=remedy))
    return Reference(config, stage_hashes, accuracy(config, Path()), on)


def check(reference: Reference) -> None:
    """Raise UserError if the code, the params or the inputs here are not as committed, or cannot run where they should.

    The outputs of training and evaluation, and of stages that read them, may be missing, except eval.json.
    """
    config, stage_hashes = reference.config, reference.stage_hashes
    errors.raise_if_any([*folder.outputs_outside(stage_hashes), *folder.foreign_commands(STAGES)])
    of_both = dvc_lock.outputs(stage_hashes, STAGES)
    readers = [name for name, stage in stage_hashes.items() if of_both.keys() & stage["deps"].keys()]
    missing = {*of_both, *dvc_lock.outputs(stage_hashes, readers)} - {eval_file(config)}
    unneeded = missing | {config.paths.inbox, config.paths.pretrained}
    errors.raise_if_any(folder.lock_differences(config, stage_hashes, unneeded, REMEDY))
    needed = {
        name: {**stage, "outs": {path: md5 for path, md5 in stage["outs"].items() if path not in missing}}
        for name, stage in stage_hashes.items()
    }
    errors.raise_if_any(integrity.damage(needed))
    errors.raise_if_any(runner.faults(config, runner.machine_of(reference.on)))


def results_folder(reference: Reference) -> Path:
    """The folder for the results of this code, these params and these data on this machine, or on a cluster."""
    config = reference.config
    # Which nodes a cluster takes, nobody knows before; a longer time limit is no other place.
    hardware = {"on": slurm.NAME} if reference.on else hardware_here(config)
    parts = identity.parts(
        config,
        STAGES,
        seeds.inputs(reference.stage_hashes),
        identity.code(STAGES),
        seeds.VARIED,
        versions=provenance.versions(),
        hardware=hardware,
    )
    return FOLDER / identity.digest(parts)[:16]


def hardware_here(config: Params) -> dict[str, Any]:
    """What of this machine's hardware decides bits."""
    world = rendezvous.world_of({}, config.train.device)
    return provenance.hardware(world, config.train.threads, config.train.arithmetic)


def results_of(reference: Reference, numbers: Sequence[int], slots: Sequence[Slot]) -> dict[int, Result]:
    """Seed → its result. The seeds that have none yet are trained, one in each slot at a time.

    Each is trained and tested in a work copy, with the inputs of the first one. Raises UserError if a stage fails.
    """
    config, top = reference.config, results_folder(reference)
    missing = [seed for seed in numbers if not (top / str(seed) / RESULT).is_file()]
    if missing:
        workcopy.wait_for_workers(top)  # all read the inputs of the first copy, which is made anew
        print(f"verify: training seeds: {', '.join(map(str, missing))}; work copies in {top}/", flush=True)
        keep = names_to_keep(config)
        copies = [repetition.make_copy(top / str(seed), config, {"train.seed": seed}, keep) for seed in missing]
        workcopy.share(repetition.bring_inputs(copies[0], reference.stage_hashes, STAGES), copies)
        jobs = [repetition.job(f"seed {copy.folder.name}", copy, STAGES, "--single-item") for copy in copies]
        runner.run_or_raise(jobs, slots, "verify", partial(write_result, config))
    paths = {seed: top / str(seed) / RESULT for seed in numbers}
    results = {seed: schema.json_of(path, Result, f"remove it: rm {path}") for seed, path in paths.items()}
    for seed, result in results.items():
        before = "" if seed in missing else "; trained before"
        print(f"verify: seed {seed}: test accuracy {result.accuracy:.4f}{before}", flush=True)
    return results


def write_result(config: Params, job: Job) -> None:
    """Write the result of a seed into its work copy, and remove its checkpoints."""
    outs = dvc_lock.outputs(dvc_lock.read(job.folder / dvc_lock.LOCK), STAGES)
    files.write_json(job.folder / RESULT, {"accuracy": accuracy(config, job.folder), "outs": outs})
    for run in (job.folder / config.paths.runs).glob("*/"):
        checkpoint.remove(run / runs.CHECKPOINT)


def names_to_keep(config: Params) -> set[str]:
    """The names of what stays in the work copy of a seed: its result, and its runs."""
    return {RESULT, Path(config.paths.runs).parts[0]}


def clear_copies(reference: Reference) -> None:
    """Remove everything else from the work copies."""
    for copy in results_folder(reference).glob("[0-9]*"):
        workcopy.clear(copy, names_to_keep(reference.config))


def record(count: int, jobs: int, on: str) -> int:
    """Train the seeds that follow the committed one, and write the accuracies of all `count` seeds. Returns 0.

    `jobs`: so many at the same time; `on`: a value of --on.
    """
    check_count("record-seeds", count)
    reference = read_reference(on)
    config, slots = reference.config, runner.slots(reference.config, jobs, on)
    errors.raise_if_any(folder.commit_differences(reference.stage_hashes, eval_file(config)))
    check(reference)
    first, *others = reference.seeds(count)
    with locks.hold(results_folder(reference), "trains these seeds"):
        results = results_of(reference, others, slots)
        clear_copies(reference)
    accuracies = {first: reference.accuracy} | {seed: result.accuracy for seed, result in results.items()}
    file = seeds.path(config)
    seeds.write(file, config, reference.stage_hashes, accuracies)
    sample = pooling.spread([*accuracies.values()])
    print(
        f"\nwritten: {file}: test accuracy {seeds.in_words(sample)}",
        f"as many seeds elsewhere show a drop of {seeds.detectable_drop(sample, sample):.4f} in 4 of 5 cases",
        f"for Git: git add {file}",
        sep="\n",
    )
    return 0


def compare(count: int | None, jobs: int, on: str) -> int:
    """Train the recorded seeds here, and compare the bytes, then the accuracies. Returns 0, or DIFFERENT.

    `count` seeds are trained; by default as many as were recorded. The first one is trained
    alone, the others `jobs` at the same time. `on`: a value of --on.
    """
    check_count("--seeds", seeds.FEWEST if count is None else count)
    reference = read_reference(on)
    config, stage_hashes, slots = reference.config, reference.stage_hashes, runner.slots(reference.config, jobs, on)
    errors.raise_if_any(folder.commit_differences(stage_hashes, eval_file(config), str(seeds.path(config))))
    recorded_seeds = seeds.read(config, stage_hashes, reference.accuracy).seeds
    check(reference)
    (first, *others), top = reference.seeds(count or len(recorded_seeds)), results_folder(reference)
    with locks.hold(top, "trains these seeds"):
        results = results_of(reference, [first], runner.slots(config, 1, on))
        differing = comparison.compare(stage_hashes, results[first].outs, STAGES, WorkCopy(top / str(first), config))
        if differing:
            results |= results_of(reference, others, slots)
        clear_copies(reference)
    if not differing:
        print(f"\nverify: the same bytes: seed {first} gives every output of {' and '.join(STAGES)} as in dvc.lock")
        return 0
    is_lower, sentence = seeds.t_test(
        pooling.spread([result.accuracy for result in results.values()]),
        pooling.spread([seed.accuracy for seed in recorded_seeds]),
    )
    print(f"\nverify: {sentence}")
    return DIFFERENT if is_lower else 0


def check_count(option: str, count: int) -> None:
    """Raise UserError for a number of seeds that has no variance."""
    if count < seeds.FEWEST:
        raise UserError(Fault(option, str(count), "value", allowed=f"{seeds.FEWEST} or more"))
