"""The page that compares two runs: McNemar's test, figures, settings, curves, and images that one alone has right."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.evaluation import metrics
from pipeline.evaluation.metrics import Share
from pipeline.reporting import charts, rendering
from pipeline.reporting.charts import Chart
from pipeline.reporting.gallery import MOST_ANSWERS, Album

Answers = Mapping[str, str]  # a row of predictions.csv
Table = Sequence[Mapping[str, str]]  # the rows of a CSV file
FIGURES = (
    ("accuracy", "test accuracy"), *((name, title) for name, (title, _) in metrics.FIGURES.items()),
    ("val_accuracy", "validation accuracy"), ("val_loss", "validation loss"), ("exported_epoch", "exported epoch"),
    ("seconds", "seconds of training"), ("images_per_second", "images/s"),
)  # fmt: skip
IMAGES = {"accuracy": "test", "val_accuracy": "val"}  # a figure that is a share of images → the part that these are
WHOLE = ("exported_epoch", "seconds", "images_per_second")  # figures without decimals
CURVES = (
    ("val_loss", "Validation loss"), ("val_accuracy", "Validation accuracy"), ("train_loss", "Training loss"),
    ("train_accuracy", "Training accuracy"),
)  # fmt: skip
UNKNOWN = "–"


@dataclass(frozen=True)
class Run:
    """A run as the page shows it."""

    name: str
    figures: Mapping[str, float]  # of eval.json and train.json; the seconds and images/s, if they are known here
    images: Mapping[str, int]  # of each part; 0 if that is not known
    predictions: Table
    history: Table  # without rows if neither DVC's cache nor its remote has the table

    def share(self, key: str) -> Share | None:
        """A figure with its 95 % interval, if it is a share of images whose number is known."""
        images = self.images.get(IMAGES.get(key, ""))
        if key not in self.figures or not images:
            return None
        return metrics.share(round(self.figures[key] * images), images)

    @property
    def hits(self) -> list[bool]:
        """For each test image: is the answer right?"""
        return [row["label"] == row["prediction"] for row in self.predictions]


def alone(first: Run, second: Run) -> tuple[list[Answers], list[Answers]]:
    """The images that only the first run has right, and those that only the second one has, with the other's answer."""
    rows = list(zip(first.predictions, second.predictions, first.hits, second.hits, strict=True))
    return [theirs for _, theirs, a, b in rows if a and not b], [ours for ours, _, a, b in rows if b and not a]


def paths_on_page(first: Run, second: Run) -> list[str]:
    """The images that the page shows."""
    return [row["path"] for rows in alone(first, second) for row in rows[:MOST_ANSWERS]]


def page(
    first: Run, second: Run, verdict: tuple[str, str, str], changes: Sequence[tuple[str, str, str]], album: Album
) -> str:
    """The page as HTML. `verdict`: yes or no, the answer, and from which images it follows, in words.

    `changes`: a setting and its value in each run. `album`: the pictures of `paths_on_page`. The predictions of both
    runs are of the same test images, in the same order.
    """
    runs = (first, second)
    hits = list(zip(first.hits, second.hits, strict=True))
    known_shares = [(name, [share for run in runs if (share := run.share(key))]) for key, name in FIGURES]
    shares = [row for row in known_shares if len(row[1]) == len(runs)]  # those that both runs have
    return rendering.page(
        "compare.html.jinja",
        runs=runs,
        verdict=verdict,
        line_classes=charts.LINE_CLASSES,
        shares=charts.intervals("shares", "Accuracies, with their 95 % intervals", shares) if shares else None,
        figures=_figures(runs),
        is_timed=all("seconds" in run.figures for run in runs),
        changed=changes,
        curves=[_curve(runs, key, title) for key, title in CURVES if all(run.history for run in runs)],
        classes=_classes(runs),
        both_right=hits.count((True, True)),
        both_wrong=hits.count((False, False)),
        alone=alone(first, second),
        album=album,
        most=MOST_ANSWERS,
    )


def _figures(runs: Sequence[Run]) -> list[dict[str, object]]:
    """The rows of the table of figures: of each run the figure, and its interval if it has one."""
    return [
        {
            "name": name,
            "cells": [(_figure(run, key), run.share(key)) for run in runs],
            "difference": _difference(runs[0], runs[1], key),
        }
        for key, name in FIGURES
        if any(key in run.figures for run in runs)
    ]


def _figure(run: Run, key: str) -> str:
    return f"{run.figures[key]:,{_decimals(key)}}" if key in run.figures else UNKNOWN


def _difference(first: Run, second: Run, key: str) -> str:
    """The figure of the second run minus that of the first one."""
    if not (key in first.figures and key in second.figures):
        return UNKNOWN
    difference = second.figures[key] - first.figures[key]
    return f"{round(difference, 0 if key in WHOLE else 4) + 0.0:+,{_decimals(key)}}"  # + 0.0: no "-0"


def _decimals(key: str) -> str:
    return ".0f" if key in WHOLE else ".4f"


def _curve(runs: Sequence[Run], key: str, title: str) -> Chart:
    """A figure over the epochs, with a line for each run."""
    lines = [
        charts.Line(run.name, [float(row[key]) for row in run.history], int(run.figures["exported_epoch"]))
        for run in runs
    ]
    return charts.curves(key, title, lines, shares=key.endswith("accuracy"), legend=False)


def _classes(runs: Sequence[Run]) -> list[dict[str, object]]:
    """Of each class the test images, and the share of them that each run has right."""
    labels, rows = [row["label"] for row in runs[0].predictions], []
    for label in sorted(set(labels)):
        images = [k for k, other in enumerate(labels) if other == label]
        right = [sum(run.hits[k] for k in images) for run in runs]
        recalls = [metrics.share(count, len(images)) for count in right]
        points = 100 * (right[1] - right[0]) / len(images)
        rows.append({"name": label, "images": len(images), "recalls": recalls, "points": points})
    return rows
