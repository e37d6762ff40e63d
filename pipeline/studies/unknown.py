"""What models say of images of a class that they never saw: one training without each class (split.leave_out).

The limit of each model comes from its own validation images (evaluation/acceptance.py). Its test images are of known
classes, and the images of the class that was left out are of something else. The score of an image is its highest
probability. It is good if images of something else have a lower one: the AUROC is the probability of that, for a random
image of each kind. Every answer is that of `predict` (answers/classify.py).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path

import numpy as np

from pipeline.answers import classify
from pipeline.answers.classify import Request
from pipeline.base import files
from pipeline.base.errors import Fault, UserError, raise_if_any
from pipeline.base.text import visible
from pipeline.config.params import Paths
from pipeline.dataset import split_table
from pipeline.dataset.split_table import LEAVE_OUT
from pipeline.evaluation import acceptance, metrics
from pipeline.evaluation.metrics import Share
from pipeline.reporting import rendering
from pipeline.sources.originals import Originals
from pipeline.studies import home, store, study
from pipeline.studies.runner import Slot
from pipeline.studies.store import Study, Training

ONE_SPLIT = {"split.folds": 1, "split.fold": 0}
MOST_SHOTS = 12  # images of each kind on the page
SUMMARY, TABLE, PAGE = "summary.json", "answers.csv", "unknown.html"


@dataclass(frozen=True)
class Answer:
    """What the model without the class `without` says of an image."""

    without: str
    path: str
    label: str  # the class of the image; it is `without` for something else
    prediction: str
    probability: float  # of the prediction
    accepted: bool

    @property
    def is_known(self) -> bool:
        """Whether the image is of a class that the model knows."""
        return self.label != self.without


@dataclass(frozen=True)
class Result:
    """The result of the training without one class; of all trainings together if `without` is empty."""

    without: str
    validation_images: int  # that give the limit; of all trainings: the fewest
    accepted: Share  # of the test images of known classes
    recognized: Share  # of the images of the class that was left out: those that are none of the classes
    auroc: float  # of the highest probability; of all trainings: the mean


def run(folder: Path, slots: Sequence[Slot]) -> None:
    """Train without each class, and write the table, the summary and the page. `folder`: that of the study.

    Raises UserError if it is impossible.
    """
    outputs = [f"{Paths.models}/{name}" for name in ("model.safetensors", "model.json", acceptance.FILE)]
    runs = store.of_project("folds", folder, {**ONE_SPLIT, "split.leave_out": "none"}, slots, *outputs)
    classes = sorted({row.label for row in split_table.kept_rows(runs.source.folder / Paths.split)})
    if "none" in classes:
        reason, remedy = "split.leave_out: none leaves out nothing", "rename the class"
        raise UserError(Fault("classes", "none", "pair", reason, remedy=remedy))
    trainings = [
        Training(f"without{number}", {"split.leave_out": label}, f"without {visible(label)}")
        for number, label in enumerate(classes)
    ]
    print(f"folds: {len(trainings)} trainings, each without a class; {len(slots)} at a time", flush=True)
    for split in store.splits(runs, trainings):
        check_validation_images(split, len(classes) - 1)
    results, originals = store.results(runs, trainings), study.images(runs.source)
    write(runs, [ask(*pair, originals) for pair in zip(classes, results, strict=True)])
    for result in results:  # models are large, and DVC's run cache has them
        files.remove(result.folder)


def check_validation_images(split: store.Result, classes: int) -> None:
    """Raise UserError if there are too few validation images for a limit: known before a training."""
    count = min(sum(row.split == "val" for row in study.rows(split)), acceptance.MOST_IMAGES)
    if shortage := acceptance.shortage(count, classes, split.config.evaluate.coverage):
        reason, _, remedy = shortage.partition("; ")
        value = str(split.config.split.fractions.val)
        raise UserError(Fault("split.fractions.val", value, "value", reason, remedy=remedy))


def ask(label: str, trained: store.Result, originals: Originals) -> tuple[int, list[Answer]]:
    """What the model without this class says of its test images, and of those of the class.

    With the number of validation images that give its limit. Raises UserError without a limit, and for a lost image.
    """
    rows = split_table.all_rows(trained.folder / Paths.split)
    asked = {str(originals.file(row.path)[0]): row for row in rows if row.split == "test" or row.reason == LEAVE_OUT}
    print(f"folds: the model without {visible(label)} classifies {len(asked):,} images", flush=True)
    limit = acceptance.limit_of(trained.folder / Paths.models)
    if limit.reason:
        raise UserError(Fault(f"without {label}", "no limit", "failed", limit.reason, remedy="run again"))
    weights, refusals = trained.folder / Paths.models / "model.safetensors", list[UserError]()
    request = Request(tuple(map(Path, asked)), weights, trained.config.train.device)
    answers = [
        Answer(label, asked[one.file].path, asked[one.file].label, one.prediction, one.probability, one.is_accepted)
        for one in classify.answers(request, trained.config, refusals)
    ]
    raise_if_any(fault for refusal in refusals for fault in refusal.faults)
    return limit.images, answers


def summarize(label: str, validation_images: int, answers: Sequence[Answer], auroc: float) -> Result:
    """The result of these answers. An image that several models answered for counts once, with the mean of answers."""
    known = [answer for answer in answers if answer.is_known]
    others = [answer for answer in answers if not answer.is_known]
    repeats = Counter(answer.path for answer in known)
    accepted = sum(answer.accepted / repeats[answer.path] for answer in known)
    recognized = sum(not answer.accepted for answer in others)
    shares = metrics.share(accepted, len(repeats)), metrics.share(recognized, len(others))
    return Result(label, validation_images, *shares, auroc)


def area(answers: Sequence[Answer]) -> float:
    """The AUROC of the highest probability, of the answers of one model."""
    return metrics.auroc(*(np.array([getattr(one, name) for one in answers]) for name in ("probability", "is_known")))


def write(runs: Study, parts: Sequence[tuple[int, Sequence[Answer]]]) -> None:
    """Write the summary, the table and the page into the project's folders, and print the figures.

    `parts`: of each model, as `ask` returns them.
    """
    config = runs.source.config
    folder = Path(config.paths.metrics) / "unknown"
    results = [summarize(part[0].without, images, part, area(part)) for images, part in parts]
    answers = [answer for _, part in parts for answer in part]
    auroc = sum(result.auroc for result in results) / len(results)
    total = summarize("", min(images for images, _ in parts), answers, auroc)
    files.write_csv(folder / TABLE, [field.name for field in fields(Answer)], map(astuple, answers))
    kinds = kinds_of_answers(answers)
    summary = {"total": asdict(total), "classes": [asdict(result) for result in results]}
    files.write_json(folder / SUMMARY, summary | study.conditions(config, runs))
    page = rendering.page(
        "unknown.html.jinja", results=results, total=total, kinds=kinds, model=config.train.model,
        album=study.album(runs.source, [answer.path for _, part, _ in kinds for answer in part]),
        coverage=config.evaluate.coverage,
    )  # fmt: skip
    home.write_page(config, PAGE, page)
    for result in (*results, total):
        print(describe(result))
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
        order = sorted(part, key=lambda answer: answer.probability, reverse=not is_known)
        kinds.append((title, order[:MOST_SHOTS], len(part)))
    return kinds


def describe(result: Result) -> str:
    """A result as a line of a terminal."""
    recognized, accepted = result.recognized, result.accepted
    return (
        f"{'without ' + visible(result.without) if result.without else 'all together':<24} "
        f"recognized as none: {recognized.share:.3f} ({recognized.low:.3f} to {recognized.high:.3f}, "
        f"{recognized.images:,} images); known classes accepted: {accepted.share:.3f} ({accepted.low:.3f} to "
        f"{accepted.high:.3f}, {accepted.images:,} images); "
        f"AUROC {result.auroc:.3f}"
    )
