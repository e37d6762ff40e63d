"""The accuracy with a part of the training images: shares that contain each other, and the same test images.

The last step doubles the images. Its gain is measured on the same images, so its interval is that of a paired
difference [Agresti, Min 2005]: of n images, b are right only with all training images and c only with half of them, and
half an image is added to each of the four counts. The number of epochs is the same, so a smaller share also has fewer
steps; a head that is solved has none.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

from pipeline.base import files
from pipeline.base.errors import Fault, UserError
from pipeline.config.params import Params
from pipeline.evaluation import metrics
from pipeline.reporting import charts, rendering
from pipeline.studies import answers as answers_of_folds
from pipeline.studies import home, store, study
from pipeline.studies.runner import Slot
from pipeline.studies.store import Result, Training
from pipeline.studies.study import MOST_FOLDS

SHARES = (0.12, 0.25, 0.5, 1.0)
SUMMARY, PAGE = "summary.json", "curve.html"

Labels = Mapping[str, str]  # path of an image → class


@dataclass(frozen=True)
class Gain:
    """What the last doubling of the training images brought, in points; `low` and `high` are its 95 % interval."""

    points: float
    low: float
    high: float

    def sentence(self, before: int, after: int) -> str:
        """What more images would probably bring, after the step between these numbers of training images."""
        step = f"the last step, from {before:,} to {after:,} training images,"
        change = f"{self.points:+.1f} points (95 % interval {self.low:+.1f} to {self.high:+.1f})"
        if self.low > 0:
            return (
                f"{step.capitalize()} brought {change}. Most curves become flatter: the next will probably bring less."
            )
        if self.high < 0:
            return (
                f"{step.capitalize()} changed the accuracy by {change}: something else than more images decides here."
            )
        return (
            f"What more images would bring cannot be said: {step} changed the accuracy by {change}: it can be chance."
        )


@dataclass(frozen=True)
class ClassGain:
    """The recall of a class with half of the training images and with all of them."""

    name: str
    images: int  # test images
    half: float
    whole: float
    is_clear: bool  # whether the rise is more than chance explains, in any of so many classes


def run(config: Params, folds: int, folder: Path, slots: Sequence[Slot]) -> None:
    """Train with each share, and write the summary and the page. `folder`: that of the study.

    Raises UserError for a number of folds.
    """
    if not 1 <= folds <= MOST_FOLDS:
        raise UserError(Fault("--folds", str(folds), "value", allowed=f"1 to {MOST_FOLDS}"))
    cuts = [{"split.folds": folds, "split.fold": fold} for fold in range(folds)] if folds > 1 else [{}]  # {}: as here
    trainings = [
        Training(f"share{share}-fold{fold}", {"split.train_share": share, **cut}, f"{share:.0%}, fold {fold}")
        for share in SHARES
        for fold, cut in enumerate(cuts)
    ]
    runs = store.of_project("curve", folder, trainings[-1].values, slots, study.PREDICTIONS)
    print(f"curve: {len(trainings)} trainings, {len(slots)} at a time", flush=True)
    splits = store.splits(runs, trainings)
    if folds > 1:
        answers_of_folds.check(splits[-folds:])  # those of the whole training images
    config, results = runs.source.config, store.results(runs, trainings)
    counts, labels, answers = dict[float, int](), dict[str, str](), dict[float, Labels]()
    for number, share in enumerate(SHARES):
        of_share = results[number * folds : (number + 1) * folds]
        rows = [row for result in of_share for row in files.read_csv(result.folder / study.PREDICTIONS)]
        labels |= {row["path"]: row["label"] for row in rows}
        answers[share] = {row["path"]: row["prediction"] for row in rows}
        counts[share] = sum(map(training_images, of_share)) // folds
    write(config, counts, labels, answers, study.conditions(results[-folds].config, runs))


def training_images(result: Result) -> int:
    """The number of training images."""
    return sum(row.split == "train" for row in study.rows(result))


def gain(labels: Labels, half: Labels, whole: Labels, comparisons: int = 1) -> Gain:
    """What the last doubling brought, from the answers with half of the training images and with all.

    With several comparisons, all intervals hold together [Bonferroni].
    """
    b = sum(whole[path] == label != half[path] for path, label in labels.items())
    c = sum(half[path] == label != whole[path] for path, label in labels.items())
    n, middle = len(labels) + 2, (b - c) / (len(labels) + 2)
    z = NormalDist().inv_cdf(1 - (1 - NormalDist().cdf(metrics.Z)) / comparisons)
    error = z * math.sqrt(b + c + 1 - (b - c) ** 2 / n) / n
    return Gain(100 * (b - c) / len(labels), 100 * (middle - error), 100 * (middle + error))


def class_gains(labels: Labels, half: Labels, whole: Labels) -> list[ClassGain]:
    """The recall of each class, the one with the largest rise first."""
    gains, names = [], sorted(set(labels.values()))
    for name in names:
        own = {path: label for path, label in labels.items() if label == name}
        before, after = (sum(answers[path] == name for path in own) / len(own) for answers in (half, whole))
        gains.append(ClassGain(name, len(own), before, after, gain(own, half, whole, len(names)).low > 0))
    return sorted(gains, key=lambda row: row.half - row.whole)


def write(
    config: Params,
    counts: Mapping[float, int],
    labels: Labels,
    answers: Mapping[float, Labels],
    conditions: dict[str, Any],
) -> None:
    """Write the summary and the page into the folders of `config`, and print the curve.

    `counts` and `answers`: share → number of training images, and the answers for the test images. `labels`: of these.
    """
    accuracies = {
        share: metrics.share(sum(answers[share][path] == label for path, label in labels.items()), len(labels))
        for share in SHARES
    }
    points = [
        {"share": share, "training_images": counts[share], "accuracy": one.share, "low": one.low, "high": one.high}
        for share, one in accuracies.items()
    ]
    half, whole = answers[SHARES[-2]], answers[SHARES[-1]]
    last, classes = gain(labels, half, whole), class_gains(labels, half, whole)
    sentence = last.sentence(counts[SHARES[-2]], counts[SHARES[-1]])
    summary = {
        "images": len(labels),
        "points": points,
        "last_doubling": asdict(last),
        "classes": [asdict(row) for row in classes],
    }
    files.write_json(Path(config.paths.metrics) / "curve" / SUMMARY, summary | conditions)
    page = rendering.page(
        "curve.html.jinja", model=config.train.model, images=len(labels), points=points, sentence=sentence,
        classes=classes, has_epochs=config.train.head == "trained",
        chart=charts.growth("curve", "Accuracy by training images", "training images",
                            [(counts[share], one) for share, one in accuracies.items()]),
    )  # fmt: skip
    home.write_page(config, PAGE, page)
    for share, one in accuracies.items():
        print(
            f"{share:>5.0%} {counts[share]:>8,} training images   accuracy {one.share:.4f} "
            f"(95 % interval: {one.low:.4f} to {one.high:.4f})"
        )
    print(f"curve: {sentence}")
    print(f"curve: the page, for a browser: {config.paths.reports}/{PAGE}")
