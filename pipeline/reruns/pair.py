"""The page that compares two runs: whether one is better, what differs, their curves, and where they disagree."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.evaluation import metrics
from pipeline.reporting import charts, markup, page
from pipeline.reporting.charts import Share
from pipeline.reporting.markup import are, code, name, paragraph, path, percent, text

Table = Sequence[Mapping[str, str]]  # the rows of a CSV file
PARTS = (
    ("better", "result"), ("differs", "settings"), ("curves", "curves"), ("classes", "classes"), ("images", "images"),
)  # fmt: skip
MOST = 50  # images that only one model has right, of each model
FIGURES = (
    ("accuracy", "test accuracy"), ("balanced_accuracy", "balanced accuracy"), ("macro_f1", "macro F1"),
    ("nll", "negative log-likelihood"), ("ece", "calibration error"), ("val_accuracy", "validation accuracy"),
    ("val_loss", "validation loss"), ("exported_epoch", "exported epoch"), ("seconds", "seconds of training"),
    ("images_per_second", "images/s"),
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
    images: Mapping[str, int]  # of each part; empty if that is not known
    predictions: Table
    history: Table

    def share(self, key: str) -> Share | None:
        """A figure with its 95 % interval, if it is a share of images whose number is known."""
        images = self.images.get(IMAGES.get(key, ""))
        if key not in self.figures or not images:
            return None
        return Share(self.figures[key], *metrics.wilson(round(self.figures[key] * images), images))


def compared(first: Run, second: Run, verdict: str, changed: Sequence[tuple[str, str, str]]) -> str:
    """The whole page. `verdict`: a sentence about the difference; `changed`: a setting and its value in each run.

    Both runs have the same test images, in the same order.
    """
    body = "\n".join([
        better(first, second, verdict),
        differs(first, second, changed),
        curves(first, second),
        classes(first, second),
        images(first, second),
    ])  # fmt: skip
    return page.frame(f"{first.name} and {second.name}", f"{name(first.name)} and {name(second.name)}", PARTS, body)


def better(first: Run, second: Run, verdict: str) -> str:
    """The verdict, the accuracies with their intervals, and every figure of both with the difference."""
    both = (first, second)
    rows = [
        (shown, *(_figure(run, key) for run in both), _difference(first, second, key))
        for key, shown in FIGURES
        if any(key in run.figures for run in both)
    ]
    shares = [(shown, [share for run in both if (share := run.share(key))]) for key, shown in FIGURES]
    drawn = [row for row in shares if len(row[1]) == len(both)]
    head = ("figure", name(first.name), name(second.name), "difference")
    lacking = any("seconds" not in run.figures for run in both)
    note = (
        "The seconds and images/s are in runs/, of trainings in this folder; others are not known." if lacking else ""
    )
    return markup.section(
        "better",
        "Is one better?",
        paragraph(text(verdict)),
        legend(first, second) if drawn else "",
        '<div class="charts">',
        charts.intervals("shares", "Accuracies, with their 95 % intervals", drawn) if drawn else "",
        f"<div>{markup.table('Figures of both', head, rows, 'numbers')}{paragraph(note, 'note') if note else ''}</div>",
        "</div>",
    )


def legend(first: Run, second: Run) -> str:
    """Which line of the drawings is of which run."""
    return paragraph(" ".join(f"{charts.key(number)}{name(run.name)}" for number, run in enumerate((first, second))))


def differs(first: Run, second: Run, changed: Sequence[tuple[str, str, str]]) -> str:
    """The settings that differ."""
    rows = [(code(key), code(one), code(other)) for key, one, other in changed]
    head = ("setting", name(first.name), name(second.name))
    table = markup.table("Settings that differ", head, rows)
    return markup.section("differs", "What differs?", table if rows else paragraph("No setting differs."))


def curves(first: Run, second: Run) -> str:
    """One drawing for each figure, with a line for each run."""
    drawn = [
        charts.curves(
            key,
            title,
            [
                charts.Line(run.name, [float(row[key]) for row in run.history], int(run.figures["exported_epoch"]))
                for run in (first, second)
            ],
            shares=key.endswith("accuracy"),
            legend=False,
        )
        for key, title in CURVES
    ]
    epochs = " and ".join(f"{run.figures['exported_epoch']:,} of {name(run.name)}" for run in (first, second))
    return markup.section(
        "curves",
        "How did they train?",
        legend(first, second),
        f'<div class="charts">\n{"".join(drawn)}\n</div>',
        paragraph(f"A dot is the exported epoch: {epochs}.", "note"),
    )


def classes(first: Run, second: Run) -> str:
    """How many test images of each class each of them has right."""
    labels = [row["label"] for row in first.predictions]
    hits = [_hits(run) for run in (first, second)]
    rows = []
    for label in sorted(set(labels)):
        own = [k for k, other in enumerate(labels) if other == label]
        right = [sum(hit[k] for k in own) for hit in hits]
        points = f"{100 * (right[1] - right[0]) / len(own):+.1f}"
        rows.append((name(label), f"{len(own):,}", *(_recall(count, len(own)) for count in right), points))
    head = ("class", "test images", name(first.name), name(second.name), "difference in points")
    table = markup.table("Share of right answers, with its 95&nbsp;% interval", head, rows, "numbers")
    return markup.section("classes", "Which classes does each recognize?", table)


def _recall(right: int, images: int) -> str:
    low, high = metrics.wilson(right, images)
    return f"{percent(right / images)}<small>{percent(low)} to {percent(high)}</small>"


def images(first: Run, second: Run) -> str:
    """The images that only one of them has right."""
    one, other = _hits(first), _hits(second)
    both = sum(a and b for a, b in zip(one, other, strict=True))
    neither = sum(not (a or b) for a, b in zip(one, other, strict=True))
    return markup.section(
        "images",
        "Where do they disagree?",
        paragraph(f"Both have {are(both, 'image', 'images')} right, and both have {neither:,} wrong."),
        *_alone(first, second, [a and not b for a, b in zip(one, other, strict=True)]),
        *_alone(second, first, [b and not a for a, b in zip(one, other, strict=True)]),
    )


def _alone(right: Run, wrong: Run, chosen: Sequence[bool]) -> Iterator[str]:
    """The images that only the first of two runs has right."""
    rows = [
        (path(row["path"]), name(row["label"]), name(row["prediction"]))
        for row, is_chosen in zip(wrong.predictions, chosen, strict=True)
        if is_chosen
    ]
    cut = f": the first {MOST} of {len(rows):,}" if len(rows) > MOST else f": {len(rows):,}"
    caption = f"Images that only {name(right.name)} has right{cut}"
    head = ("image", "class", f"answer of {name(wrong.name)}")
    yield markup.table(caption, head, rows[:MOST]) if rows else paragraph(f"{caption}.")


def _hits(run: Run) -> list[bool]:
    return [row["label"] == row["prediction"] for row in run.predictions]


def _figure(run: Run, key: str) -> str:
    """A figure as a cell of the table, with its interval below it."""
    if key not in run.figures:
        return UNKNOWN
    share = run.share(key)
    interval = f"<small>{share.low:.3f} to {share.high:.3f}</small>" if share else ""
    return f"{run.figures[key]:,{_decimals(key)}}{interval}"


def _difference(first: Run, second: Run, key: str) -> str:
    """How much more the second one has."""
    if not (key in first.figures and key in second.figures):
        return UNKNOWN
    difference = second.figures[key] - first.figures[key]
    return f"{round(difference, 0 if key in WHOLE else 4) + 0.0:+,{_decimals(key)}}"  # + 0.0: no "-0"


def _decimals(key: str) -> str:
    return ".0f" if key in WHOLE else ".4f"
