"""Estimates the time of a run, from a short measurement of the training and a sample of the user's images."""

import json
import math
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.base import linux, threads
from pipeline.checks import machine
from pipeline.config.params import Params
from pipeline.data import images
from pipeline.evaluation import acceptance
from pipeline.loader import sampler
from pipeline.planning.survey import Survey
from pipeline.running import frame, launch, launchers, variables
from pipeline.running.terminal import bold

TRIAL, TIMES = "trial.json", "times.json"  # what `planning.trial` reads and writes
SAMPLE, LONGEST_SAMPLE = 48, 2.0  # images, seconds
STARTS = 6  # the stages and DVC take as long as this many starts of a process that trains [measured]


@dataclass(frozen=True)
class Times:
    """The times of a training on this machine, in seconds."""

    start: float  # from the start of a process to its first step
    first_step: float  # it also compiles and allocates
    step: float  # a later one
    validation: float  # per image and process


@dataclass(frozen=True)
class Part:
    """A part of a run, its seconds (0: not known), and what they consist of."""

    name: str
    seconds: float
    reason: str


def measure_times(config: Params, classes: int) -> Times:
    """The times of a few batches with these params, in as many processes as they set for one node.

    Raises UserError if a process fails; the process has printed the reason. Raises KeyboardInterrupt after a signal.
    """
    train = config.train.model_copy(
        update={
            "weights": "none",  # the file may be missing yet, and changes no time
            "crop_from": 0,  # all steps with the full crop, which takes longest
        }
    )
    run = launch.on_this_node(config.run).model_copy(update={"launcher": "torchrun", "max_restarts": 0})
    trial_config = config.model_copy(update={"train": train, "run": run})
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as name:
        folder, trial_input = Path(name), {"params": trial_config.model_dump(mode="json"), "classes": classes}
        (folder / TRIAL).write_text(json.dumps(trial_input))
        frame.tell("measures how long a few batches take: about ten seconds")
        try:
            variables.set_variables(train, train.arithmetic)
            launch.with_restarts(("pipeline", "rank", "trial", name), run, folder)
        finally:
            os.environ.clear()
            os.environ.update(before)
            if launchers.SIGNAL_TIMES:
                raise KeyboardInterrupt
        return Times(**json.loads((folder / TIMES).read_text()))


def reading_seconds(config: Params, survey: Survey) -> float:
    """The seconds that `split` and `prepare` take together for one image, from a sample; 0 if none is here yet."""
    if not survey.files:
        return 0.0
    settings, packing = config.split, config.prepare

    def read(path: Path) -> None:
        info = images.inspect_image(path, settings.min_side, settings.max_pixels)
        if not info.reason:
            images.square_and_size(path, packing.size, packing.grey, fit=packing.fit)

    sample = survey.files[:: max(1, len(survey.files) // SAMPLE)]
    workers = config.run.decoding_threads
    start = time.perf_counter()
    images_read = 0
    for _ in threads.ordered_map(read, sample, workers, "a few images"):
        images_read += 1
        if time.perf_counter() - start > LONGEST_SAMPLE:
            break
    return (time.perf_counter() - start) / images_read


def parts(config: Params, survey: Survey, times: Times, reading: float) -> Iterator[Part]:
    """The parts of a run with these params. `reading` is `reading_seconds`."""
    train = config.train
    count = survey.parts(config.split)
    steps = sampler.steps(train.epochs, count["train"], train.batch_size)
    validation = _computed_images(count["val"], config) * times.validation
    if train.head == "solved":  # its features
        features = _computed_images(survey.images, config) * times.validation
        yield Part("features", features, f"images: {survey.images:,} of {short(1000 * times.validation)} ms")
    if train.has_steps:
        yield Part(
            "train",
            times.first_step + steps * times.step + train.epochs * validation,
            f"steps: {steps:,} of {times.step:.3g} s; epochs: {train.epochs:,}, each with {short(validation)} s of "
            "validation",
        )
    if reading:
        yield Part(
            "split and prepare",
            survey.images * reading,
            f"images: {survey.images:,} of {short(1000 * reading)} ms",
        )
    else:
        yield Part("split and prepare", 0.0, "not known before the images are here")
    answered = count["test"] + min(count["val"], acceptance.MOST_IMAGES)
    yield Part(
        "everything else",
        STARTS * times.start + _computed_images(answered, config) * times.validation,
        f"DVC and the starts of the stages ({short(times.start)} s for one process); images of evaluate: {answered:,}",
    )


def short(number: float) -> str:
    """A number with two digits, and no exponent."""
    return f"{float(f'{number:.2g}'):g}"


def _computed_images(count: int, config: Params) -> int:
    """How many images a process computes to evaluate `count` images: its batches are full."""
    size = config.evaluate.batch_size
    return math.ceil(count / (size * config.run.processes)) * size


def measure_parts(config: Params, survey: Survey) -> list[Part]:
    """The parts of a run with these params on this machine; empty if they cannot be measured.

    `describe_total` has the reason then. Takes some seconds. Raises UserError as `measure_times` does.
    """
    if not survey.images or _gpus_are_elsewhere(config):
        return []
    times = measure_times(config, survey.classes)
    return list(parts(config, survey, times, reading_seconds(config, survey)))


def describe_total(config: Params, run_parts: Sequence[Part]) -> str:
    """The length of a run in words, and where it runs."""
    if not run_parts:
        elsewhere = "not known here: this machine has no GPU, the nodes of run.launcher: slurm have them"
        return elsewhere if _gpus_are_elsewhere(config) else "not known before the images are here"
    # It may end early (patience), or begin with faster steps (crop_from).
    longest = "at most " if config.train.patience or config.train.crop_from else ""
    rest = "" if all(part.seconds for part in run_parts) else ", without download, split and prepare"
    return f"{longest}{time_in_words(sum(part.seconds for part in run_parts))} {_where(config)}{rest}"


def report_lines(config: Params, survey: Survey) -> Iterator[str]:
    """Lines with the time of a run and of its parts, and the reasons. Raises UserError as `measure_times` does."""
    yield "Measuring how long a few batches take …"
    load, cores = os.getloadavg()[0], linux.usable_cores()
    run_parts = measure_parts(config, survey)
    yield f"Time of a run: {bold(describe_total(config, run_parts))}"
    for part in run_parts:
        yield f"  {part.name:<18} {time_in_words(part.seconds) if part.seconds else 'not known':<18} {part.reason}"
    if load > cores and config.train.device == "cpu" and "OMP_WAIT_POLICY" not in os.environ:
        remedy = "export OMP_WAIT_POLICY=passive makes that faster (docs/performance.md)"
        yield f"note: other programs use these cores (load {load:.1f} on {cores}), so it takes longer; {remedy}"


def _gpus_are_elsewhere(config: Params) -> bool:
    """Whether valid params need GPUs that this machine lacks: it is a login node of Slurm."""
    return config.train.device == "cuda" and not machine.read().cuda_devices


def _where(config: Params) -> str:
    """The devices of a run, in words."""
    gpus, cores = config.run.processes, linux.usable_cores()
    if config.train.device == "cuda":
        return f"on {gpus} GPUs" if gpus > 1 else "on one GPU"
    return f"on {cores} cores" if cores > 1 else "on one core"


def time_in_words(seconds: float) -> str:
    """A time in words: `about 40 seconds`, `about 9 minutes`, `about 3.5 hours`."""
    if seconds < 90:
        return f"about {max(5, round(seconds / 5) * 5)} seconds"
    if seconds < 90 * 60:
        return f"about {max(2, round(seconds / 60))} minutes"
    return f"about {seconds / 3600:.1f} hours"
