"""Trains the committed params with several seeds on this machine, and records or compares their test accuracies.

A result belongs to the code, params, data, versions and hardware that made it, by its digest. With `--on slurm` any
node of the cluster counts as the same hardware.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.attest import comparison, folder, repetition, seeds
from pipeline.attest.seeds import STAGES
from pipeline.base import errors
from pipeline.base.errors import DIFFERENT, Fault, UserError
from pipeline.config import params
from pipeline.config.params import Params, Paths
from pipeline.evaluation import figures
from pipeline.evaluation.figures import EvalFigures
from pipeline.running import provenance, rendezvous
from pipeline.studies import pooling, runner, slurm, store
from pipeline.studies.runner import Slot
from pipeline.studies.store import Result, Study, Training
from pipeline.versioning import dvc_lock, integrity
from pipeline.versioning.dvc_lock import StageHashes

REMEDY = "dvc pull brings it, perennial repro prepare weights makes it again"


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


def accuracy(folder: Path) -> float:
    """The test accuracy in the eval.json of a folder in the layout of the project."""
    return figures.read(folder / Paths.metrics, EvalFigures).accuracy


def read_reference(on: str) -> Reference:
    """The params, dvc.lock and test accuracy in this folder. Raises UserError if there is no training."""
    config, stage_hashes = params.load(), dvc_lock.read()
    for name in STAGES:
        if name not in stage_hashes:
            value, remedy = f"no stage {name}, so it has no accuracy", "perennial repro, then commit"
            raise UserError(Fault(str(dvc_lock.LOCK), value, "missing", remedy=remedy))
    return Reference(config, stage_hashes, accuracy(Path()), on)


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


def hardware_here(config: Params) -> dict[str, Any]:
    """What of this machine's hardware decides bits."""
    world = rendezvous.world_of({}, config.train.device)
    return provenance.hardware(world, config.train.threads, config.train.arithmetic)


def make_study(reference: Reference, copies: Path, slots: Sequence[Slot]) -> Study:
    """The study of the seeds. Its source is a work copy of the commit, without inputs.

    `copies`: the folder of the study.
    """
    config = reference.config
    # Which nodes a cluster takes, nobody knows before; a longer time limit is no other place.
    hardware = {"on": slurm.NAME} if reference.on else hardware_here(config)
    source = repetition.make_copy(copies / store.SOURCE, config, {})
    return Study(
        "verify", source, copies / store.RUNS, slots, STAGES, (eval_file(config),),
        (*repetition.BY_FORCE, "--single-item"), {"versions": provenance.versions(), "hardware": hardware},
    )  # fmt: skip


def results_of(study: Study, reference: Reference, numbers: Sequence[int]) -> dict[int, Result]:
    """Seed → its result. The seeds that have none yet are trained and tested. Raises UserError if a stage fails."""
    trainings = [Training(f"seed{seed}", {"train.seed": seed}, f"seed {seed}") for seed in numbers]
    missing = [seed for seed, training in zip(numbers, trainings, strict=True) if not study.hashes(training)]
    if missing:
        print(f"verify: training seeds: {', '.join(map(str, missing))}; in {study.source.folder.parent}/", flush=True)
        repetition.bring_inputs(study.source, reference.stage_hashes, STAGES)
    results = dict(zip(numbers, store.results(study, trainings), strict=True))
    for seed, result in results.items():
        before = "" if seed in missing else "; trained before"
        print(f"verify: seed {seed}: test accuracy {accuracy(result.folder):.4f}{before}", flush=True)
    return results


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
    with store.study_folder("seeds", "verify") as copies:
        results = results_of(make_study(reference, copies, slots), reference, others)
    accuracies = {first: reference.accuracy} | {seed: accuracy(result.folder) for seed, result in results.items()}
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
    first, *others = reference.seeds(count or len(recorded_seeds))
    with store.study_folder("seeds", "verify") as copies:
        study = make_study(reference, copies, runner.slots(config, 1, on))
        results = results_of(study, reference, [first])
        differing = comparison.compare(stage_hashes, results[first].hashes, STAGES)
        if differing:
            results |= results_of(replace(study, slots=slots), reference, others)
    if not differing:
        print(f"\nverify: the same bytes: seed {first} gives every output of {' and '.join(STAGES)} as in dvc.lock")
        return 0
    is_lower, sentence = seeds.t_test(
        pooling.spread([accuracy(result.folder) for result in results.values()]),
        pooling.spread([seed.accuracy for seed in recorded_seeds]),
    )
    print(f"\nverify: {sentence}")
    return DIFFERENT if is_lower else 0


def check_count(option: str, count: int) -> None:
    """Raise UserError for a number of seeds that has no variance."""
    if count < seeds.FEWEST:
        raise UserError(Fault(option, str(count), "value", allowed=f"{seeds.FEWEST} or more"))
