"""The page that compares two runs: whether one is better, what differs, their curves, and where they disagree."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.reporting import charts, markup, page
from pipeline.reporting.markup import are, code, name, paragraph, path, percent, text

Table = Sequence[Mapping[str, str]]  # the rows of a CSV file
PARTS = (
    ("better", "result"), ("differs", "settings"), ("curves", "curves"), ("classes", "classes"), ("images", "images"),
)  # fmt: skip
MOST = 50  # images that only one model has right, of each model
FIGURES = (
    ("accuracy", "test accuracy"), ("balanced_accuracy", "balanced accuracy"), ("macro_f1", "macro F1"),
    ("nll", "negative log-likelihood"), ("ece", "calibration error"), ("val_accuracy", "validation accuracy"),
    ("val_loss", "validation loss"), ("exported_epoch", "exported epoch"),
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A run as the page shows it."""

    name: str
    figures: Mapping[str, float]  # of eval.json and train.json
    predictions: Table
    history: Table


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
    """The verdict, and the figures of both."""
    rows = [
        (shown, *(_figure(run.figures[key]) for run in (first, second)))
        for key, shown in FIGURES
        if key in first.figures and key in second.figures
    ]
    head = ("figure", name(first.name), name(second.name))
    return markup.section(
        "better", "Is one better?", paragraph(text(verdict)), markup.table("Figures of both", head, rows, "numbers")
    )


def differs(first: Run, second: Run, changed: Sequence[tuple[str, str, str]]) -> str:
    """The settings that differ."""
    rows = [(code(key), code(one), code(other)) for key, one, other in changed]
    head = ("setting", name(first.name), name(second.name))
    table = markup.table("Settings that differ", head, rows)
    return markup.section("differs", "What differs?", table if rows else paragraph("No setting differs."))


def curves(first: Run, second: Run) -> str:
    """Loss and accuracy of both."""
    drawn = [_chart(run, number, key) for key in ("loss", "accuracy") for number, run in enumerate((first, second))]
    return markup.section("curves", "How did they train?", f'<div class="charts">\n{"".join(drawn)}\n</div>')


def classes(first: Run, second: Run) -> str:
    """How many test images of each class each of them has right."""
    labels = [row["label"] for row in first.predictions]
    hits = [_hits(run) for run in (first, second)]
    rows = []
    for label in sorted(set(labels)):
        own = [k for k, other in enumerate(labels) if other == label]
        rows.append((name(label), f"{len(own):,}", *(percent(sum(hit[k] for k in own) / len(own)) for hit in hits)))
    head = ("class", "test images", name(first.name), name(second.name))
    table = markup.table("Share of right answers", head, rows, "numbers")
    return markup.section("classes", "Which classes does each recognize?", table)


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


def _chart(run: Run, number: int, key: str) -> str:
    values = {part: [float(row[f"{part}_{key}"]) for row in run.history] for part in ("train", "val")}
    drawn = [charts.Line("training", values["train"]), charts.Line("validation", values["val"])]
    title, epoch = f"{key.capitalize()} of {run.name}", int(run.figures["exported_epoch"])
    return charts.curves(f"{key}{number}", title, drawn, epoch, shares=key == "accuracy")


def _hits(run: Run) -> list[bool]:
    return [row["label"] == row["prediction"] for row in run.predictions]


def _figure(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
