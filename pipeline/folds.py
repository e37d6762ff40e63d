"""Train and test on every fold: a figure over all images, each of a model that was not trained on it.

    python -m pipeline.folds                     5 folds with these params; what `make folds` runs
    python -m pipeline.folds --folds 10 --seeds 3 --jobs 2
    python -m pipeline.folds --recipe NAME       repeats results/recipes/NAME.json, and compares every byte

One test split has few images, so its accuracy has a wide interval. Here split.folds is N, and the pipeline runs N times
with split.fold from 0 to N - 1: each image is a test image once. --seeds K repeats that with K seeds of the training.

Each run is in a working copy of the project (.dvc/tmp/folds/), with the project's DVC cache. A finished stage is
restored from the run cache, and an interrupted training goes on from its checkpoint: if this command is killed, run it
again. Your folder, with its params.yaml and dvc.lock, stays as it is. Written: metrics/folds/ and reports/folds.html.
"""

import argparse
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.base import cache_repair, files, killed_dvc, locks, programs
from pipeline.base.errors import UserError, exit_status
from pipeline.config import machine, params, validity
from pipeline.config.params import Params
from pipeline.data import layout
from pipeline.planning import survey
from pipeline.planning.survey import Survey
from pipeline.studies import answers, copies, jobs, record
from pipeline.studies.copies import Copy, Project
from pipeline.studies.jobs import Job
from pipeline.studies.record import Record

FOLDER = programs.TEMPORARY / "folds"
FOLDS = 5
MOST_FOLDS, MOST_SEEDS, MOST_JOBS = 100, 100, 64
BEFORE, STAGES = ("download", "weights"), ("prepare", "train", "evaluate")
DIFFERENT = 3  # exit status


@dataclass(frozen=True)
class Study:
    """What is to be done."""

    values: Mapping[str, Any]  # dotted key → value: what the params of this folder are changed by
    folds: int
    seeds: Sequence[int]
    at_once: int  # trainings

    def changes(self, seed: int, fold: int) -> dict[str, Any]:
        """The params of one training that are not those of this folder."""
        return {**self.values, "split.folds": self.folds, "split.fold": fold, "train.seed": seed}


def study(config: Params, folds: int | None, seeds: int | None, at_once: int, recipe: Record | None) -> Study:
    """The study that the options ask for. A recipe gives its own params, folds and seeds.

    Raises UserError for an option that is not allowed, and for params that cannot run on this machine.
    """
    if recipe:
        if folds or seeds:
            raise UserError("--recipe: it says how many folds and seeds; leave out --folds and --seeds")
        chosen = Study(recipe.params, params.changed(config, recipe.params).split.folds, recipe.seeds, at_once)
    else:
        folds = folds or (config.split.folds if config.split.folds > 1 else FOLDS)
        chosen = Study({}, folds, [(config.train.seed + k) % 2**32 for k in range(seeds or 1)], at_once)
    for option, value, low, high in (
        ("--folds", chosen.folds, 2, MOST_FOLDS),
        ("--seeds", len(chosen.seeds), 1, MOST_SEEDS),
        ("--jobs", at_once, 1, MOST_JOBS),
    ):
        if not low <= value <= high:
            raise UserError(f"{option}: {value}; allowed: {low} to {high}")
    changed = params.changed(config, chosen.changes(chosen.seeds[0], chosen.folds - 1))
    if faults := validity.faults(changed, machine.read()):
        raise UserError("\n".join(faults))
    return chosen


def check_images(found: Survey, folds: int) -> None:
    """Raise UserError if not every image can be a test image once: known before any stage runs, from the folders."""
    if found.images and not found.in_all_folds:
        given = found.images - found.given.get("", 0)
        raise UserError(
            f"--folds: {given:,} of {found.images:,} images in {found.where} have a split already (folders, "
            f"labels.csv); allowed: none, because each image is a test image of one fold; remove that split"
        )
    if few := [label for label, images in found.sizes.items() if images < folds]:
        sizes = layout.named([f"class {label!r} has {found.sizes[label]} images" for label in sorted(few)])
        raise UserError(
            f"--folds: {folds}, but {sizes}; needed: at least {folds}, a test image for each fold; take fewer folds "
            f"(make folds FOLDS={min(found.sizes.values())}), add images, or remove the class"
            f"{'es' if len(few) > 1 else ''}"
        )


def copies_of(chosen: Study, project: Project) -> dict[tuple[int, int], Copy]:
    """A working copy of the project for each seed and fold, with the images and weights of the first one."""
    print(f"folds: {chosen.folds}, seeds: {len(chosen.seeds)}; working copies in {FOLDER}/", flush=True)
    made = {
        (seed, fold): copies.make(project, FOLDER / f"seed{seed}-fold{fold}", chosen.changes(seed, fold))
        for seed in chosen.seeds
        for fold in range(chosen.folds)
    }
    first, *others = made.values()
    do([Job("images and weights", first.folder, BEFORE)], 1)
    for other in others:
        for output in (first.config.paths.images, first.config.paths.weights):
            files.link(other.folder / output, first.folder / output)
    return made


def do(work: Sequence[Job], at_once: int) -> None:
    """Run jobs, and print how far they are."""
    began = time.monotonic()
    for number, job in enumerate(jobs.finished(work, at_once, "folds"), start=1):
        left = (time.monotonic() - began) / number * (len(work) - number)
        about = f"; about {left / 60:.0f} min to go" if left > 60 else ""
        print(f"folds: {job.name}: done ({number} of {len(work)}){about}", flush=True)


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


def folds(arguments: argparse.Namespace) -> int:
    """Run the study that the arguments ask for. Returns the exit status."""
    config, path = params.load(), arguments.recipe and record.RECIPES / f"{arguments.recipe}.json"
    recipe = record.read(path) if path else None
    chosen = study(config, arguments.folds, arguments.seeds, arguments.jobs, recipe)
    if config.data.source != "archive":  # before the stage download, paths.images may have those of another source
        check_images(survey.survey(config), chosen.folds)
    repeat = f"RECIPE={arguments.recipe}" if recipe else f"FOLDS={chosen.folds} SEEDS={len(chosen.seeds)}"
    with locks.held(FOLDER, "runs make folds"):
        project = copies.project()
        repair(project.cache)
        made = copies_of(chosen, project)
        first = {fold: copy for (seed, fold), copy in made.items() if seed == chosen.seeds[0]}
        do([Job(f"fold {fold}: split", copy.folder, ("split",)) for fold, copy in first.items()], chosen.at_once)
        answers.check(first)
        named = [(f"seed {seed}, fold {fold}", copy.folder) for (seed, fold), copy in made.items()]
        do([Job(name, folder, ("split", *STAGES)) for name, folder in named], chosen.at_once)
        if repair(project.cache):
            raise UserError(cache_repair.DURING)
        pooled = answers.read(made)
        found = answers.write(config, made, pooled, f"make folds {repeat}")
        status = judged(recipe, found, arguments.recipe) if recipe else 0
        files.remove(FOLDER)
    return status


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.folds", description="Train and test on every fold, and pool the answers."
    )
    parser.add_argument("--folds", type=int, metavar="N", help=f"number of folds (default: split.folds, else {FOLDS})")
    parser.add_argument("--seeds", type=int, metavar="K", help="number of seeds, from train.seed on (default: 1)")
    parser.add_argument("--jobs", type=int, metavar="J", default=1, help="trainings at the same time (default: 1)")
    parser.add_argument("--recipe", metavar="NAME", help=f"repeat {record.RECIPES}/NAME.json")
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    return exit_status("folds", lambda: folds(arguments), interrupted="run again to go on")


if __name__ == "__main__":
    sys.exit(main())
