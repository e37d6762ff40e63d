"""Train and test on every fold: a figure over all images, each of a model that was not trained on it.

    perennial folds                     5 folds with these params; one test of every image
    perennial folds --folds 10 --seeds 3 --jobs 2
    perennial folds --recipe NAME       repeats results/recipes/NAME.json, and compares every byte

One test split has few images, so its accuracy has a wide interval. Here split.folds is N, and the pipeline runs N times
with split.fold from 0 to N - 1: each image is a test image once. --seeds K repeats that with K seeds of the training.

Each run is in a work copy of the project (.dvc/tmp/reruns/folds/), with the project's DVC cache. A finished stage is
restored from the run cache, and an interrupted training goes on from its checkpoint: if this command is killed, run it
again. Your folder, with its params.yaml and dvc.lock, stays as it is. Written: metrics/folds/ and reports/folds.html.
"""

import math
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.base import files, locks
from pipeline.base.errors import Fault, UserError
from pipeline.base.text import in_words
from pipeline.config import machine, params, validity
from pipeline.config.params import Params
from pipeline.data import corrections
from pipeline.planning import estimate, survey
from pipeline.planning.survey import Survey
from pipeline.reruns import answers, record, runner, workcopy
from pipeline.reruns.record import Record
from pipeline.reruns.runner import Job, Slot
from pipeline.reruns.workcopy import WorkCopy
from pipeline.versioning import cache_repair, integrity, killed_dvc

FOLDER = workcopy.FOLDER / "folds"
FOLDS = 5
MOST_FOLDS, MOST_SEEDS = 100, 100
BEFORE, STAGES = ("download", "weights"), ("prepare", "train", "evaluate")
DIFFERENT = 3  # exit status


@dataclass(frozen=True)
class Study:
    """What is to be done."""

    values: Mapping[str, Any]  # dotted key → value: what the params of this folder are changed by
    folds: int
    seeds: Sequence[int]
    slots: Sequence[Slot]  # one for each training at a time

    def changes(self, seed: int, fold: int) -> dict[str, Any]:
        """The params of one training that are not those of this folder."""
        return {**self.values, "split.folds": self.folds, "split.fold": fold, "train.seed": seed}


def study(config: Params, folds: int | None, seeds: int | None, jobs: int, recipe: Record | None) -> Study:
    """The study that the options ask for. A recipe gives its own params, folds and seeds.

    Raises UserError for an option that is not allowed, and for params that cannot run on this machine.
    """
    if recipe:
        if options := [f"{name} {n}" for name, n in (("--folds", folds), ("--seeds", seeds)) if n is not None]:
            raise UserError(
                Fault(
                    "--recipe", " × ".join(options), "pair", "the recipe says both", remedy="leave out --folds, --seeds"
                )
            )
        values = {key: value for key, value in recipe.params.items() if value != "any"}  # elastic: processes as here
        folds, numbers = params.with_values(config, values).split.folds, recipe.seeds
        seeds = len(numbers)
    else:
        if folds is None:
            folds = config.split.folds if config.split.folds > 1 else FOLDS
        seeds = 1 if seeds is None else seeds
        values, numbers = {}, [(config.train.seed + k) % 2**32 for k in range(seeds)]
    for option, value, low, high in (("--folds", folds, 2, MOST_FOLDS), ("--seeds", seeds, 1, MOST_SEEDS)):
        if not low <= value <= high:
            raise UserError(Fault(option, str(value), "value", allowed=f"{low} to {high}"))
    changed = params.with_values(config, {**values, "split.folds": folds, "split.fold": folds - 1})
    if faults := validity.faults(changed, machine.read()):
        raise UserError(*faults)
    return Study(values, folds, numbers, runner.slots(changed, jobs))


def check_images(found: Survey, folds: int) -> None:
    """Raise UserError if not every image can be a test image once: known before an image is decoded."""
    if found.images and not found.in_all_folds:
        given = found.images - found.split_counts.get("", 0)
        raise UserError(
            Fault(
                "--folds",
                f"{given:,} of {found.images:,} images in {found.where} have a split already (folders, labels.csv)",
                "pair",
                allowed="none, because each image is a test image of one fold",
                remedy="remove that split",
            )
        )
    if few := [label for label, images in found.sizes.items() if images < folds]:
        sizes = in_words([f"class {label!r} has {found.sizes[label]} images" for label in sorted(few)])
        raise UserError(
            Fault(
                "--folds",
                f"{folds}, but {sizes}",
                "value",
                allowed=f"at least {folds} images in each class, a test image for each fold",
                remedy=f"take fewer folds (perennial folds --folds {min(found.sizes.values())}), add images, or remove "
                f"the class{'es' if len(few) > 1 else ''}",
            )
        )


def announce(config: Params, found: Survey, chosen: Study) -> None:
    """Print how long the study takes, from a few training steps on the cores that one training has. Takes seconds.

    Raises UserError if not every image can be a test image, or if a training step fails.
    """
    check_images(found, chosen.folds)
    trainings, parallel = chosen.folds * len(chosen.seeds), len(chosen.slots)
    with runner.using(chosen.slots[0]):
        one = estimate.measure_parts(params.with_values(config, chosen.changes(chosen.seeds[0], 0)), found)
    rounds = math.ceil(trainings / parallel)
    time = estimate.total(config, [replace(part, seconds=part.seconds * rounds) for part in one])
    print(f"folds: {trainings} trainings, {parallel} at a time: {time}", flush=True)


def copies_of(chosen: Study) -> dict[tuple[int, int], WorkCopy]:
    """A work copy of the project for each seed and fold, with the images and weights of the first one."""
    print(f"folds: {chosen.folds}, seeds: {len(chosen.seeds)}; work copies in {FOLDER}/", flush=True)
    copies = {
        (seed, fold): workcopy.of_project(FOLDER / f"seed{seed}-fold{fold}", chosen.changes(seed, fold))
        for seed in chosen.seeds
        for fold in range(chosen.folds)
    }
    first, *others = copies.values()
    runner.run_well([Job("images and weights", first.folder, BEFORE)], chosen.slots[:1], "folds")
    for other in others:
        for output in (first.config.paths.images, first.config.paths.weights):
            files.link(other.folder / output, first.folder / output)
    return copies


def repair(cache: Path) -> bool:
    """Remove what a power cut or a kill has damaged in DVC's cache, and say it. Whether there was something.

    While a DVC works here, nothing is changed: it may be writing these files. Outputs in this folder stay as they are.
    """
    done = [] if killed_dvc.works(Path.cwd()) else cache_repair.repair(cache, stages=())
    for sentence in done:
        print(f"folds: {sentence}", file=sys.stderr)
    return bool(done)


def judged(recipe: Record, found: Record, name: str) -> int:
    """Print whether a repeated recipe has the recorded bytes: 0 if it has, else DIFFERENT."""
    if not (different := list(record.differences(recipe, found))):
        print(f"\nfolds: {name}: the same bytes as recorded")
        return 0
    print(f"\nfolds: {name}: accuracy {found.figures['accuracy']:.4f}, recorded {recipe.figures['accuracy']:.4f}")
    for sentence in different:
        print(f"folds: {name}: {sentence}")
    return DIFFERENT


def folds(arguments: Namespace) -> int:
    """Run the study that the arguments ask for. Returns the exit status."""
    config, path = params.load(), arguments.recipe and record.RECIPES / f"{arguments.recipe}.json"
    recipe = record.read(path) if path else None
    chosen = study(config, arguments.folds, arguments.seeds, arguments.jobs, recipe)
    is_here = config.data.source != "archive"  # else paths.images may have images of another source
    repeat = f"--recipe {arguments.recipe}" if recipe else f"--folds {chosen.folds} --seeds {len(chosen.seeds)}"
    with locks.hold(FOLDER, "runs perennial folds"):
        workcopy.wait_for_workers(FOLDER)
        if is_here:
            announce(config, survey.survey(config), chosen)
        cache = integrity.cache_folder()
        repair(cache)
        copies = copies_of(chosen)
        if not is_here:
            images = next(iter(copies.values())).folder / config.paths.images
            announce(config, survey.survey_folder(images, corrections.read()), chosen)
        first = {fold: copy for (seed, fold), copy in copies.items() if seed == chosen.seeds[0]}
        splits = [Job(f"fold {fold}: split", copy.folder, ("split",)) for fold, copy in first.items()]
        runner.run_well(splits, chosen.slots, "folds")
        answers.check(first)
        named = [(f"seed {seed}, fold {fold}", copy.folder) for (seed, fold), copy in copies.items()]
        runner.run_well([Job(name, folder, ("split", *STAGES)) for name, folder in named], chosen.slots, "folds")
        if repair(cache):
            raise UserError(cache_repair.DURING)
        pooled = answers.read(copies)
        record_here = answers.write(config, copies, pooled, f"perennial folds {repeat}")
        status = judged(recipe, record_here, arguments.recipe) if recipe else 0
        files.remove(FOLDER)
    return status


def main(arguments: Namespace) -> int:
    runner.stop_on_signals("what has ended is kept: run again to go on")
    return folds(arguments)
