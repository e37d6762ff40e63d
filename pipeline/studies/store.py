"""Trainings in work copies, and the store of their results: a folder for each, named by what decides the result.

A study (sweep, folds, curve, classes that are left out) is a list of trainings, and a function of their results.
If a study is killed, the same command goes on: results stay, and an interrupted training goes on from its checkpoint.
A work copy is there only while its training runs. It reads the outputs of other stages where its source has them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from pipeline.base import files, locks, schema
from pipeline.base.errors import Fault, UserError, raise_if_any
from pipeline.config import params
from pipeline.config.params import Params, Paths
from pipeline.sources import originals
from pipeline.studies import record, runner, workcopy
from pipeline.studies.runner import Job, Slot
from pipeline.studies.workcopy import WorkCopy
from pipeline.versioning import cache_repair, dvc_lock, identity, integrity
from pipeline.versioning.dvc_lock import Hashes

RESULTS = workcopy.FOLDER / "results"  # of all studies
HASHES = "hashes.json"  # in such a folder: the MD5 of every output of the training, and of RECORD
RECORD = (params.FILE.name, dvc_lock.LOCK.name)  # what a result has besides outputs
SOURCE, RUNS = "source", "runs"  # in the folder of a study: see Study
# In the source of a study of the project. `prepare` packs the images of kept.csv: those of every split of a study.
FIRST = ("download", "weights", "split", "prepare", "features")
STAGES = ("split", "train", "evaluate")
LETTERS = 8  # hexadecimal digits of the digest in a name


@dataclass(frozen=True)
class Training:
    """A training of a study."""

    name: str  # begins the names of its work copy and of the folder of its run
    values: Mapping[str, Any]  # dotted key → value: the params that are not those of the source
    title: str  # for messages
    noun: str = "trainings"  # of several, for messages


@dataclass(frozen=True)
class Study:
    """What the trainings of a study share."""

    command: str  # begins the messages
    source: WorkCopy  # the work copy which those of the trainings are copies of
    runs: Path  # the folder of their runs, with their checkpoints
    slots: Sequence[Slot]  # one for each training at a time
    stages: tuple[str, ...]  # of a training; the stages before them have run in the source
    outputs: tuple[str, ...]  # those that a result has
    others: Mapping[str, Any] = field(default_factory=dict)  # what else decides a result, such as weights
    commit: str = ""  # that of the code of the source, as an Origin has it; of a study of the project alone

    @cached_property
    def inputs(self) -> Hashes:
        """The hashes of the outputs in the source that trainings read."""
        with chdir(self.source.folder):
            return identity.inputs(dvc_lock.read(), self.stages)

    @cached_property
    def code(self) -> Hashes:
        """The hashes of the source's code of these stages."""
        with chdir(self.source.folder):
            return identity.code(self.stages)

    def digest(self, training: Training) -> str:
        """The identity of a training: a hash of its settings, code, locked packages and data."""
        config = params.with_values(self.source.config, training.values)
        inputs, code = self.inputs, self.code
        with chdir(self.source.folder):  # its dvc.yaml says which settings decide
            return identity.digest(identity.parts(config, self.stages, inputs, code, **self.others))

    def result(self, training: Training) -> Path:
        """The folder of the result, in the layout of the project: params.yaml, dvc.lock, the outputs, provenance.

        It has only the log if the training failed.
        """
        return RESULTS / self.digest(training)

    def hashes(self, training: Training) -> Hashes:
        """The hashes of all outputs of a training; empty if it has no result, or if a file of the result is damaged."""
        folder = self.result(training)
        with suppress(UserError, OSError):
            hashes = schema.json_of(folder / HASHES, Hashes, "run again")
            if all(files.md5(folder / name) == hashes.get(name) for name in (*RECORD, *self.outputs)):
                return hashes
        return {}

    def experiment(self, training: Training) -> str:
        """The name of a training with the first digits of its digest: that of its work copy, and part of its run's."""
        return f"{training.name}-{self.digest(training)[:LETTERS]}"


@dataclass(frozen=True)
class Result:
    """The result of a training: its folder, its params, and the hash of every output."""

    folder: Path
    config: Params
    hashes: Hashes


@contextmanager
def study_folder(name: str, command: str) -> Iterator[Path]:
    """A block with a folder for the work copies of a study. From an earlier start it has only the checkpoints.

    DVC's cache is repaired before the block. After a block without an error the folder is removed. `command` begins the
    messages. Raises UserError if another process works in the folder.
    """
    folder = workcopy.FOLDER / name
    with locks.hold(folder, f"runs perennial {command}"):
        workcopy.wait_for_workers(folder)
        for path in folder.glob("*/"):
            if path.name != RUNS:
                files.remove(path)
        workcopy.repair_cache(command)
        yield folder
        files.remove(folder)


def of_project(
    command: str,
    folder: Path,
    values: Mapping[str, Any],
    slots: Sequence[Slot],
    *outputs: str,
    first: tuple[str, ...] = FIRST,
) -> Study:
    """A study of the project in the current folder, from its images to the tests of the models.

    `folder`: that of the study; `values`: the params of its first training. What all trainings read is made in the
    source, by the stages `first`. `outputs`: what a result has besides the split.
    Raises UserError without the images, or if a stage fails.
    """
    commit, source = record.commit(), workcopy.copy_project(folder / SOURCE, values)
    inbox = Path(source.config.paths.inbox)
    if source.config.data.source == "folder" and not (source.folder / inbox).is_dir():
        raise originals.no_inbox(inbox, "set it to the folder with your images: each training of a study reads them")
    runner.run_or_raise([Job("data", source.folder, first)], [runner.here()], command)
    study = Study(command, source, folder / RUNS, slots, STAGES, (Paths.split, *outputs), commit=commit)
    inputs = study.inputs
    with chdir(source.folder):  # so no training reads the packed images once more, to compare them
        integrity.save_memory(integrity.inspect_outputs(inputs, {})[1])
    return study


def splits(study: Study, trainings: Sequence[Training]) -> list[Result]:
    """The split of each training, made before anything is trained: what a study needs of it can be checked.

    Raises UserError if a split keeps other images than the source, whose packed images all trainings read.
    """
    only = replace(study, stages=("split",), outputs=(Paths.split, Paths.kept))
    made = results(only, [replace(one, title=f"{one.title}: split", noun="splits") for one in trainings])
    for split in made:
        if split.hashes[Paths.kept] != files.md5(study.source.folder / Paths.kept):
            value, remedy = f"other images than in {study.source.folder}", "run again"
            raise UserError(Fault(str(split.folder / Paths.kept), value, "differs", remedy=remedy))
    return made


def results(study: Study, trainings: Sequence[Training]) -> list[Result]:
    """The result of each of these trainings. Those that have none are run, one in each slot at a time.

    Raises UserError if a training fails, or if DVC's cache was damaged meanwhile. Then the others are ended.
    """
    new = []
    for _, result, failures in run(study, trainings):
        raise_if_any(failures)
        new.append(result)
    if new and workcopy.repair_cache(study.command):
        for result in new:
            files.remove(result)
        raise UserError(cache_repair.DURING)
    return [
        Result(folder := study.result(training), params.load(folder / params.FILE), study.hashes(training))
        for training in trainings
    ]


def run(study: Study, trainings: Sequence[Training]) -> Iterator[tuple[Training, Path, list[Fault]]]:
    """Run those of these trainings that have no result. Yields each at its end, when its result or its log is kept.

    With the folder of its result, and with the faults why it has failed.
    """
    finished = [training for training in trainings if study.hashes(training)]
    waiting = [training for training in trainings if training not in finished]
    for training in finished:
        _remove_checkpoints(study, training)  # a study that is killed may have kept both
    if count := len(finished):
        print(f"{study.command}: {count} of {len(trainings)} {finished[0].noun} have finished before", flush=True)
    by_copy = {study.source.folder.with_name(study.experiment(training)): training for training in waiting}
    jobs = [
        Job(
            training.title, copy, study.stages, environ={"DVC_EXP_NAME": copy.name},
            prepare=partial(_make_copy, study, copy, training.values),
        )
        for copy, training in by_copy.items()
    ]  # fmt: skip
    with closing(runner.run_all(jobs, study.slots, study.command)) as ends:
        for job, failures in ends:
            copy, training = job.folder, by_copy[job.folder]
            result = study.result(training)
            with locks.exclusive(RESULTS), files.atomic_folder(result) as new:  # two studies may have one training
                if failures:
                    workcopy.copy_files([Path(runner.LOG)], copy, new)
                else:
                    _keep(study, copy, new)
            if not failures:
                _remove_checkpoints(study, training)
                files.remove(copy)
            yield training, result, failures


def _remove_checkpoints(study: Study, training: Training) -> None:
    """Remove the checkpoints of a training that has a result."""
    for checkpoint in study.runs.glob(f"*-{study.experiment(training)}-*/*checkpoint.pt"):
        files.remove(checkpoint)


def _make_copy(study: Study, copy: Path, values: Mapping[str, Any]) -> None:
    """Make the work copy of a training: that of the source, with links to what it reads there, and to the runs."""
    workcopy.copy_again(study.source.folder, copy, values, study.inputs)
    study.runs.mkdir(parents=True, exist_ok=True)
    files.link(copy / Paths.runs, study.runs)


def _keep(study: Study, copy: Path, result: Path) -> None:
    """Fill the folder of a result from the work copy."""
    provenance = copy.glob(f"{Paths.runs}/*-{copy.name}-*/provenance.json")
    names = [Path(name) for name in (*RECORD, *study.outputs)]
    workcopy.copy_files([*names, *(path.relative_to(copy) for path in provenance)], copy, result)
    hashes = dvc_lock.outputs(dvc_lock.read(copy / dvc_lock.LOCK), study.stages)
    files.write_json(result / HASHES, hashes | {name: files.md5(result / name) for name in RECORD})
