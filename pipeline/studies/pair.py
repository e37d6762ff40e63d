"""The page that compares two runs: McNemar's test, figures, settings, curves, and images that one alone has right."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.evaluation import metrics
from pipeline.reporting import charts, rendering
from pipeline.reporting.charts import Chart
from pipeline.reporting.gallery import MOST_ANSWERS, Album
from pipeline.studies.revisions import Revision, Table

FIGURES = {  # key of a figure → its title and its form
    "accuracy": ("test accuracy", ".4f"),
    **{name: (title, ".4f") for name, (title, _) in metrics.FIGURES.items()},
    "val_accuracy": ("validation accuracy", ".4f"),
    "val_loss": ("validation loss", ".4f"),
    "exported_epoch": ("exported epoch", ",.0f"),
    "seconds": ("seconds of training", ",.0f"),
    "images_per_second": ("images/s", ",.0f"),
}
CURVES = (
    ("val_loss", "Validation loss"), ("val_accuracy", "Validation accuracy"), ("train_loss", "Training loss"),
    ("train_accuracy", "Training accuracy"),
)  # fmt: skip
UNKNOWN = "–"


@dataclass(frozen=True)
class Run(Revision):
    """A revision with its tables, as the page shows it."""

    predictions: Table = field(default_factory=list)
    history: Table = field(default_factory=list)  # empty if neither DVC's cache nor its remote has it

    @property
    def hits(self) -> list[bool]:
        """For each test image: is the answer right?"""
        return [row["label"] == row["prediction"] for row in self.predictions]


def alone(first: Run, second: Run) -> tuple[Table, Table]:
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
    known_shares = [
        (title, [share for run in runs if (share := run.share(key))]) for key, (title, _) in FIGURES.items()
    ]
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
    """The rows of the table of figures: of each run the figure and its interval, if it has them."""
    return [
        {
            "name": title,
            "cells": [
                (f"{run.figures[key]:{form}}" if key in run.figures else UNKNOWN, run.share(key)) for run in runs
            ],
            "difference": _difference([run.figures[key] for run in runs if key in run.figures], form),
        }
        for key, (title, form) in FIGURES.items()
        if any(key in run.figures for run in runs)
    ]


def _difference(known: Sequence[float], form: str) -> str:
    """The second figure minus the first one, if both are known."""
    return f"{known[1] - known[0]:+z{form}}" if len(known) > 1 else UNKNOWN  # z: no "-0"


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
