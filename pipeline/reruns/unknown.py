"""What models say of images of a class that they never saw: one training without each class (split.leave_out).

The limit of each model comes from its own validation images (models/acceptance.py). Its test images are of known
classes, and the images of the class that was left out are of something else. A score is good if images of something
else have a lower one: the AUROC is the probability of that, for a random image of each kind. Three simple scores are
compared; the limit is on the first one, the highest probability.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.base import files, threads
from pipeline.base.errors import Fault, UserError
from pipeline.config.params import Params
from pipeline.data import corrections, credits, images, originals, split_table
from pipeline.data.split_table import BY_HAND
from pipeline.engine import determinism
from pipeline.engine.choices import PRECISIONS
from pipeline.engine.world import World
from pipeline.evaluation import inference, metrics
from pipeline.loader.storage import ImageStore
from pipeline.models import acceptance, exported
from pipeline.models.acceptance import MIN_IMAGES, Limits
from pipeline.reporting import rendering, thumbnails
from pipeline.reporting.gallery import Album
from pipeline.reruns import record, runner, workcopy
from pipeline.reruns.runner import Job, Slot
from pipeline.reruns.workcopy import WorkCopy

BASE = "all"  # the work copy that leaves out nothing: it gets the images, and says which classes there are
SCORES = ("highest_probability", "highest_logit", "energy")
MOST_SHOTS = 12  # images of each kind on the page
SUMMARY, TABLE, PAGE = "summary.json", "answers.csv", "unknown.html"
REASON = f"{BY_HAND}: {corrections.LEFT_OUT}"


@dataclass(frozen=True)
class Answer:
    """What the model without the class `left_out` says of an image."""

    left_out: str
    path: str
    label: str  # the class of the image; it is `left_out` for something else
    prediction: str
    probability: float  # of the prediction
    accepted: bool

    @property
    def is_known(self) -> bool:
        return self.label != self.left_out


@dataclass(frozen=True)
class Share:
    """A number of images, how many of them have a property, and the 95 % interval of this share."""

    images: int
    count: int
    low: float
    high: float


@dataclass(frozen=True)
class Result:
    """The result of the training without one class; of all trainings together if `left_out` is empty."""

    left_out: str
    validation_images: int  # that give the limit
    accepted: Share  # of the test images of known classes
    recognized: Share  # of the images of the class that was left out: those that are none of the classes
    auroc: dict[str, float]  # score → AUROC; of all trainings: the mean


def study(config: Params, slots: Sequence[Slot], folder: Path) -> None:
    """Train without each class, and write the table, the summary and the page. Raises UserError if it is impossible."""
    code = record.commit()
    base = workcopy.copy_project(folder / BASE, {"split.leave_out": "none", "split.folds": 1, "split.fold": 0})
    runner.run_or_raise([Job("images and weights", base.folder, ("download", "weights", "split"))], slots[:1], "folds")
    classes = sorted({row["class"] for row in split_table.kept_rows(base.folder / base.config.paths.split)})
    if len(classes) < 3:
        raise UserError(Fault("classes", str(len(classes)), "value", "a model needs two others", "3 or more"))
    copies = {
        label: workcopy.copy_project(
            folder / f"without{number}", {"split.leave_out": label, "split.folds": 1, "split.fold": 0}
        )
        for number, label in enumerate(classes)
    }
    workcopy.share((base.config.paths.images, base.config.paths.weights), [base, *copies.values()])
    runner.run_or_raise(
        [Job(f"without {c}: split", copy.folder, ("split",)) for c, copy in copies.items()], slots, "folds"
    )
    for copy in copies.values():
        check_validation_images(copy, len(classes) - 1)
    stages = ("split", "prepare", "train", "evaluate")
    runner.run_or_raise([Job(f"without {c}", copy.folder, stages) for c, copy in copies.items()], slots, "folds")
    measured = [ask(label, copy) for label, copy in copies.items()]
    answers = [answer for _, part in measured for answer in part]
    write(base, [result for result, _ in measured], answers, code)


def check_validation_images(copy: WorkCopy, classes: int) -> None:
    """Raise UserError if there are too few validation images for a limit: known before a training."""
    rows = split_table.kept_rows(copy.folder / copy.config.paths.split)
    count, needed = sum(row["split"] == "val" for row in rows), MIN_IMAGES * classes
    if count < needed:
        value, remedy = f"{count:,} validation images", "raise it, or add images"
        raise UserError(
            Fault("split.fractions.val", value, "value", "they give the limit", f"{needed:,} or more", remedy)
        )


def ask(label: str, copy: WorkCopy) -> tuple[Result, list[Answer]]:
    """The answers of the model without this class, for its test images and for all images of the class."""
    rows = split_table.all_rows(copy.folder / copy.config.paths.split)
    asked = [row for row in rows if row["split"] == "test" or (row["class"] == label and row["reason"] == REASON)]
    limits = acceptance.limits_of(copy.folder / copy.config.paths.models)
    values, classes = logits(copy, [row["path"] for row in asked])
    probabilities = torch.softmax(values, 1)
    best, guesses = probabilities.max(1)
    answers = [
        Answer(label, row["path"], row["class"], classes[guess], chance, _accepted(chance, limits))
        for row, guess, chance in zip(asked, guesses.tolist(), best.tolist(), strict=True)
    ]
    is_known = np.array([answer.is_known for answer in answers])
    scores = dict(zip(SCORES, (best, values.max(1).values, torch.logsumexp(values, 1)), strict=True))
    areas = {name: metrics.auroc(score.numpy(), is_known) for name, score in scores.items()}
    return _result(label, limits.images, answers, areas), answers


def _accepted(probability: float, limits: Limits) -> bool:
    return round(probability, acceptance.DIGITS) >= limits.highest


def logits(copy: WorkCopy, paths: Sequence[str]) -> tuple[torch.Tensor, tuple[str, ...]]:
    """The logits float64 [n, classes] of the copy's model for these originals, and its classes."""
    config, view_of = copy.config, copy.folder
    determinism.make_deterministic(config.train.threads, config.train.deterministic)
    model = exported.load(view_of / config.paths.models)
    source = originals.locate(view_of / config.paths.images, view_of / config.paths.inbox)
    view, limit = model.view, config.split.max_pixels

    def load(path: str) -> tuple[NDArray[np.uint8], tuple[int, int]]:
        file, sha256 = source.file(path)
        return images.square_and_size(file, view.packed_size, limit, view.grey, sha256, view.fit)

    loaded = list(threads.ordered_map(load, paths, config.run.decoding_threads, "folds"))
    world = World(rank=0, local_rank=0, size=1, device=torch.device(config.train.device))
    store = ImageStore(torch.from_numpy(np.stack([pixels for pixels, _ in loaded])), world.device)
    sizes = np.array([size for _, size in loaded], np.int32)
    crops = exported.center_crops(view, sizes, np.arange(len(paths)))
    precision = PRECISIONS["fp32"](world.device.type)
    outputs = inference.logits(model.net.to(world.device), store, crops, config.evaluate.batch_size, world, precision)
    return outputs.double(), model.classes


def _share(count: int, total: int) -> Share:
    return Share(total, count, *metrics.wilson(count, total))


def _result(label: str, validation_images: int, answers: Sequence[Answer], areas: dict[str, float]) -> Result:
    known = [answer for answer in answers if answer.is_known]
    others = [answer for answer in answers if not answer.is_known]
    accepted, refused = sum(answer.accepted for answer in known), sum(not answer.accepted for answer in others)
    return Result(label, validation_images, _share(accepted, len(known)), _share(refused, len(others)), areas)


def write(base: WorkCopy, results: Sequence[Result], answers: Sequence[Answer], code: str) -> None:
    """Write the summary, the table and the page into the project's folders, and print the figures.

    `code`: the commit of the work copies.
    """
    config = base.config
    folder = Path(config.paths.metrics) / "unknown"
    means = {name: sum(result.auroc[name] for result in results) / len(results) for name in SCORES}
    total = _result("", sum(result.validation_images for result in results), answers, means)
    columns = ("left_out", "path", "label", "prediction", "probability", "accepted")
    rows = ([getattr(answer, name) for name in columns] for answer in answers)
    files.write_csv(folder / TABLE, columns, rows)
    kinds = kinds_of_answers(answers)
    paths = dict.fromkeys((answer.path for _, part, _ in kinds for answer in part), True)
    photos = base.folder / base.config.paths.images
    source = originals.locate(photos, base.folder / base.config.paths.inbox)
    summary = {"total": asdict(total), "classes": [asdict(result) for result in results]}
    files.write_json(folder / SUMMARY, summary | record.made_of(config, source, code))
    pictures = thumbnails.pictures(source, paths, config.prepare.grey, config.run.decoding_threads, "folds")
    album = Album(pictures, credits.credits(photos / originals.LICENSE))
    page = rendering.page(
        "unknown.html.jinja", results=results, total=total, kinds=kinds, album=album,
        model=config.train.model, coverage=config.evaluate.coverage, scores=SCORES,
    )  # fmt: skip
    files.write_text(Path(config.paths.reports) / PAGE, page)
    for result in (*results, total):
        print(f"{line(result)}")
    print(f"folds: all answers: {folder / TABLE}; the page, for a browser: {config.paths.reports}/{PAGE}")


def kinds_of_answers(answers: Sequence[Answer]) -> list[tuple[str, list[Answer], int]]:
    """Title, answers for the page and number of all answers, for each of the four kinds; the worst answers first."""
    titles = {
        (False, True): "Something else, accepted: the mistakes that matter",
        (False, False): "Something else, recognized as none of the classes",
        (True, False): "Known classes, refused",
        (True, True): "Known classes, accepted",
    }
    kinds = []
    for (is_known, accepted), title in titles.items():
        part = [answer for answer in answers if (answer.is_known, answer.accepted) == (is_known, accepted)]
        order = sorted(part, key=lambda answer: -answer.probability if not is_known else answer.probability)
        kinds.append((title, order[:MOST_SHOTS], len(part)))
    return kinds


def line(result: Result) -> str:
    """A result as a line of a terminal."""
    recognized, accepted = result.recognized, result.accepted
    return (
        f"{'without ' + result.left_out if result.left_out else 'all together':<24} "
        f"recognized as none: {recognized.count:,} of {recognized.images:,} "
        f"({recognized.low:.3f} to {recognized.high:.3f}); known classes accepted: {accepted.count:,} of "
        f"{accepted.images:,} ({accepted.low:.3f} to {accepted.high:.3f}); "
        f"AUROC {', '.join(f'{name} {area:.3f}' for name, area in result.auroc.items())}"
    )
