"""Train and test on every fold: a figure over all images, each of a model that was not trained on it.

    perennial folds                     5 folds with these params; one test of every image
    perennial folds --folds 10 --seeds 3 --jobs 2
    perennial folds --recipe NAME       repeats results/recipes/NAME.json, and compares every byte
    perennial folds --leave-out-classes     trains once without each class, and asks about its images

One test split has few images, so its accuracy has a wide interval. Here split.folds is N, and the pipeline runs N times
with split.fold from 0 to N - 1: each image is a test image once. --seeds K repeats that with K seeds of the training.

--leave-out-classes asks what a model says of something that it never saw: of the class that its training left out. How
many of these images are none of the classes, and how many images of known classes are accepted?

Each run is in a work copy of the project (.dvc/tmp/reruns/folds/), with the project's DVC cache. Finished trainings are
not run again, and an interrupted one goes on from its checkpoint: if this command is killed, run it again. Your folder,
with its params.yaml and dvc.lock, stays as it is. Written: metrics/folds/ and reports/folds.html; with
--leave-out-classes metrics/unknown/ and reports/unknown.html.
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.base import errors
from pipeline.base.errors import DIFFERENT, Fault, UserError
from pipeline.config import params
from pipeline.config.params import Params, Paths
from pipeline.evaluation import acceptance
from pipeline.studies import answers, record, runner, store, study, unknown
from pipeline.studies.record import Record
from pipeline.studies.runner import Slot
from pipeline.studies.store import Training
from pipeline.studies.study import MOST_FOLDS

FOLDS, MOST_SEEDS = 5, 100


@dataclass(frozen=True)
class Plan:
    """The trainings of a study: params, folds, seeds, and what each may use."""

    values: Mapping[str, Any]  # dotted key → value: the changes of the params of this folder
    folds: int
    seeds: Sequence[int]
    slots: Sequence[Slot]  # one for each training at a time

    def changes(self, seed: int, fold: int) -> dict[str, Any]:
        """The params of one training that are not those of this folder."""
        return {**self.values, "split.folds": self.folds, "split.fold": fold, "train.seed": seed}

    def trainings(self) -> dict[tuple[int, int], Training]:
        """(seed, fold) → its training."""
        return {
            (seed, fold): Training(f"fold{fold}-seed{seed}", self.changes(seed, fold), f"seed {seed}, fold {fold}")
            for seed in self.seeds
            for fold in range(self.folds)
        }


def refuse_options(folds: int | None, seeds: int | None, reason: str) -> None:
    """Raise UserError if an option is given that the study decides."""
    for option, value in (("--folds", folds), ("--seeds", seeds)):
        if value is not None:
            raise UserError(Fault(option, str(value), "pair", reason, remedy=f"leave out {option}"))


def make_plan(
    config: Params, folds: int | None, seeds: int | None, jobs: int, recipe: Record | None, on: str = ""
) -> Plan:
    """The study that the options ask for. A recipe gives its own params, folds and seeds.

    Raises UserError for an option that is not allowed, and for params that cannot run on this machine.
    """
    if recipe:
        refuse_options(folds, seeds, "the recipe says both")
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
    last = params.with_values(config, {**values, "split.folds": folds, "split.fold": folds - 1})
    errors.raise_if_any(runner.faults(last, runner.machine_of(on)))
    return Plan(values, folds, numbers, runner.slots(last, jobs, on))


def compare_with_recipe(recipe: Record, result: Record, name: str) -> int:
    """Print whether a repeated recipe has the recorded bytes. Returns 0 if it has, else DIFFERENT."""
    if not (differences := list(record.differences(recipe, result))):
        print(f"\nfolds: {name}: the same bytes as recorded")
        return 0
    here, recorded = (
        "{accuracy:.4f} (95 % interval {accuracy_low:.4f} to {accuracy_high:.4f})".format(**each.figures)
        for each in (result, recipe)
    )
    print(f"\nfolds: {name}: accuracy {here}, recorded {recorded}")
    for sentence in differences:
        print(f"folds: {name}: {sentence}")
    of_here, of_record = (each.origin.hardware or "not known" for each in (result, recipe))
    print(f"folds: {name}: hardware here: {of_here}; of the record: {of_record}")
    return DIFFERENT


def read_recipe(name: str) -> Record:
    """The recipe of this name. Raises UserError if there is none, and for a damaged one."""
    paths = {path.stem: path for path in sorted(record.RECIPES.glob("*.json"))}
    if name not in paths:
        remedy = f"a copy of metrics/folds/summary.json in {record.RECIPES}/ is one"
        raise UserError(Fault("--recipe", name, "unknown", allowed=", ".join(paths), remedy=remedy))
    return record.read(paths[name])


def folds(arguments: Namespace) -> int:
    """Run the study that the arguments ask for. Returns the exit status."""
    config, recipe = params.load(), read_recipe(arguments.recipe) if arguments.recipe else None
    plan = make_plan(config, arguments.folds, arguments.seeds, arguments.jobs, recipe, arguments.on)
    repeat = f"--recipe {arguments.recipe}" if recipe else f"--folds {plan.folds} --seeds {len(plan.seeds)}"
    with store.study_folder("folds", "folds") as folder:
        outputs = (study.PREDICTIONS, f"{Paths.models}/{acceptance.FILE}")
        runs = store.of_project("folds", folder, plan.changes(plan.seeds[0], 0), plan.slots, *outputs)
        trainings = plan.trainings()
        answers.check(store.splits(runs, [trainings[plan.seeds[0], fold] for fold in range(plan.folds)]))
        results = dict(zip(trainings, store.results(runs, [*trainings.values()]), strict=True))
        result = answers.write(config, runs, results, answers.read(results), f"perennial folds {repeat}")
        return compare_with_recipe(recipe, result, arguments.recipe) if recipe else 0


def leave_out_classes(arguments: Namespace) -> int:
    """Train once without each class, and write what the models say of its images. Returns the exit status."""
    refuse_options(arguments.folds, arguments.seeds, "--leave-out-classes has a training per class")
    config = params.load()
    errors.raise_if_any(runner.faults(config, runner.machine_of(arguments.on)))
    with store.study_folder("unknown", "folds") as folder:
        unknown.run(folder, runner.slots(config, arguments.jobs, arguments.on))
    return 0


def main(arguments: Namespace) -> int:
    runner.stop_on_signals("what has ended is kept: run again to go on")
    return leave_out_classes(arguments) if arguments.leave_out_classes else folds(arguments)
