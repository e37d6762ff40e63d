"""The first half of the page: what was trained on what, how good it is, the curves, the confusion, the calibration."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.base.text import in_words
from pipeline.config.params import Params
from pipeline.data.split_table import SPLITS
from pipeline.evaluation import metrics
from pipeline.models.description import Description
from pipeline.reporting import charts, markup
from pipeline.reporting.audit import Audit
from pipeline.reporting.markup import are, code, isolated, name, paragraph, percent
from pipeline.reporting.outcome import Outcome

MOST_CLASSES = 100  # rows of the table of classes
WIDEST_MATRIX = 30  # classes; with more, only the most frequent confusions are shown
NARROW = 6  # classes whose matrix fills half of a page at most
SHARES_SHOWN = 12  # classes; with more, a cell of the matrix has room for one number
MOST_CONFUSIONS = 30
EXPORTS = {
    "last": "the last one",
    "best": "the best one by validation accuracy",
    "ema": "the moving average of the weights",
}
SOURCES = {
    "archive": "an archive (its SHA-256 is among the settings)",
    "inbox": "your own photos, in the inbox",
    "folder": "your own photos, in a folder",
    "synthetic": "drawn flowers",
}
MEANINGS = (  # figure of eval.json → its name, and what it means
    (
        "balanced_accuracy",
        "balanced accuracy",
        "the mean over classes: each counts the same, however many images it has",
    ),
    ("macro_f1", "macro F1", "the mean F1 of the classes"),
    ("nll", "negative log-likelihood", "punishes confident mistakes; 0 is perfect"),
    ("ece", "calibration error", "how far its probabilities are from how often it is right; 0 is perfect"),
)


def trained(config: Params, model: Description, audit: Audit, outcome: Outcome) -> str:
    """The model, the classes, the images and the epochs."""
    train, epochs = config.train, len(outcome.history["val_loss"])
    weights = {"none": "from scratch", "imagenet": "from weights pretrained on ImageNet"}
    numbers = {part: audit.total(part) for part in SPLITS}
    names = in_words([*map(name, model.classes)])
    facts = [
        ("Model", f"{code(model.model)}, {weights.get(train.weights, f'from {code(train.weights)}')}"),
        ("Task", f"tell {len(model.classes):,} classes apart: {names}"),
        ("Images", f"{numbers['train']:,} to learn from, {numbers['val']:,} to watch the training, "
                   f"{numbers['test']:,} to test at the end; no image is in two of these"),
        ("From", SOURCES[config.data.source]),
        ("It sees", f"{model.view.crop} × {model.view.crop} pixels of each image"),
        ("Training", f"{are(epochs, 'epoch', 'epochs')} with batches of {train.batch_size:,}; exported: epoch "
                     f"{model.epoch:,}, {EXPORTS[model.export]}"),
    ]  # fmt: skip
    rows = "\n".join(f"<dt>{term}</dt><dd>{fact}</dd>" for term, fact in facts)
    return markup.section("trained", "What was trained on what?", f'<dl class="facts">\n{rows}\n</dl>')


def quality(outcome: Outcome) -> str:
    """The accuracy with its interval, and the other figures."""
    counts, total, figures = outcome.counts, len(outcome.answers), outcome.figures
    right, largest = int(counts.trace()), int(counts.sum(1).max())
    low, high = figures.interval
    return markup.section(
        "quality",
        "How good is it?",
        f'<p class="hero"><b>{percent(figures.accuracy)}</b> <span>of the test images get the right class: '
        f"{right:,} of {total:,}. Chance alone can move this figure: its 95&nbsp;% interval is {percent(low)} to "
        f"{percent(high)}. The same answer for every image, the most frequent class, gets "
        f"{percent(largest / total)}.</span></p>",
        tiles([(f"{getattr(figures, key) + 0.0:.3f}", *said) for key, *said in MEANINGS]),
    )


def classes(outcome: Outcome) -> str:
    """The table of the classes."""
    table = class_table(outcome.classes, outcome.counts, "Each class on the test images")
    return markup.section("classes", "Which classes does it recognize?", table)


def tiles(figures: Iterable[Sequence[str]]) -> str:
    """Figures side by side: of each the figure, its name, and what it means."""
    body = "\n".join(
        f"<div><b>{figure}</b><span>{shown}</span><small>{meaning}</small></div>" for figure, shown, meaning in figures
    )
    return f'<div class="tiles">\n{body}\n</div>'


def class_table(
    classes: Sequence[str], counts: NDArray[np.int64], caption: str, whole: str = "; metrics/per_class.csv has all"
) -> str:
    """The table of the classes, in their order; of very many, those with the lowest F1. `whole`: where all are."""
    precision, recall, f1 = metrics.per_class(counts)
    images, right = counts.sum(1).tolist(), counts.diagonal().tolist()
    shown = sorted(sorted(range(len(classes)), key=lambda k: (f1[k], k))[:MOST_CLASSES])
    rows = []
    for k in shown:
        low, high = metrics.wilson(right[k], images[k]) if images[k] else (0.0, 1.0)
        interval = f"<small>{low:.3f} to {high:.3f}</small>" if images[k] else ""
        recalled, *others = (f"{figure[k]:.3f}" for figure in (recall, precision, f1))
        rows.append((name(classes[k]), f"{images[k]:,}", recalled + interval, *others))
    if len(shown) < len(classes):
        caption += f": the {MOST_CLASSES} with the lowest F1 of {len(classes):,}{whole}"
    head = ("class", "images", "recall", "precision", "F1")
    notes = (
        "Recall: the share of the class's images that are recognized, with its 95&nbsp;% interval. Precision: the "
        "share of the answers with this class that are right. F1: the harmonic mean of the two."
    )
    return markup.table(caption, head, rows, "numbers") + paragraph(notes, "note")


def training(model: Description, outcome: Outcome) -> str:
    """The curves of loss and accuracy."""
    history = outcome.history
    drawn = [
        charts.curves(
            key,
            title,
            [
                charts.Line("training", history[f"train_{key}"], model.epoch),
                charts.Line("validation", history[f"val_{key}"], model.epoch),
            ],
            shares=key == "accuracy",
        )
        for key, title in (("loss", "Loss (lower is better)"), ("accuracy", "Accuracy (higher is better)"))
    ]
    note = (
        "Training figures are of augmented crops and of the weights as they changed during the epoch, so they can be "
        "worse than those of validation. If the validation loss rises while the training loss falls, the model fits "
        "its training images too closely."
    )
    return markup.section(
        "curves", "How did the training go?", f'<div class="charts">\n{"".join(drawn)}\n</div>', paragraph(note, "note")
    )


@dataclass(frozen=True)
class Cell:
    """A cell of the confusion matrix; classes by number."""

    actual: int
    predicted: int
    images: int
    share: float  # of the row


def confusion(
    classes: Sequence[str],
    counts: NDArray[np.int64],
    shown: frozenset[tuple[int, int]],
    whole: str = "metrics/confusion.csv",
) -> str:
    """The confusion matrix of these counts, or the most frequent confusions. `shown`: the cells with an image in the
    gallery; `whole`: the table of all images.
    """
    totals = counts.sum(1).tolist()
    cells = [
        Cell(int(i), int(j), int(counts[i, j]), int(counts[i, j]) / totals[i])
        for i, j in zip(*counts.nonzero(), strict=True)
    ]
    found = {(cell.actual, cell.predicted): cell for cell in cells}
    explained = (
        "Each number is a number of images. The colour is its share of the row: blue for right answers, orange for "
        "mistakes. A click on a number shows these images only."
    )
    if len(classes) > WIDEST_MATRIX:
        return markup.section(
            "confusion",
            "What is taken for what?",
            _most_frequent(classes, cells, shown, whole),
            paragraph(explained, "note"),
        )
    head = "".join(f'<th scope="col"><span>{name(label)}</span></th>' for label in classes)
    body = "\n".join(
        f'<tr><th scope="row">{name(label)}</th>'
        + "".join(_cell(classes, found.get((row, column)), shown) for column in range(len(classes)))
        + f"<td>{totals[row]:,}</td></tr>"
        for row, label in enumerate(classes)
    )
    caption = "Rows: the true class. Columns: the model's answer."
    kind = "matrix" if len(classes) <= SHARES_SHOWN else "matrix dense"
    matrix = (
        f'<table class="{kind}">\n<caption>{caption}</caption>\n<thead><tr><td></td>{head}'
        f'<th scope="col"><span>images</span></th></tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>'
    )
    return markup.section(
        "confusion", "What is taken for what?", markup.wide("Confusion matrix", matrix), paragraph(explained, "note")
    )


def _cell(classes: Sequence[str], cell: Cell | None, shown: frozenset[tuple[int, int]]) -> str:
    if cell is None:
        return '<td class="none">0</td>'
    kind = "hit" if cell.actual == cell.predicted else "miss"
    return f'<td class="{kind}" style="--share:{cell.share:.3f}">{_link(classes, cell, shown)}</td>'


def _link(classes: Sequence[str], cell: Cell, shown: frozenset[tuple[int, int]]) -> str:
    """The number of a cell; it leads to its images. Without JavaScript it is a jump to the first of them."""
    pair = (cell.actual, cell.predicted)
    target = f"shot-{cell.actual}-{cell.predicted}" if pair in shown else "images"
    label = (
        f"{are(cell.images, 'image', 'images')} of {isolated(classes[cell.actual])}, recognized"
        if cell.actual == cell.predicted
        else f"{are(cell.images, 'image', 'images')} of {isolated(classes[cell.actual])}, taken for "
        f"{isolated(classes[cell.predicted])}"
    )
    return (
        f'<a class="cell" href="#{target}" data-pair="{cell.actual}-{cell.predicted}" aria-label="{label}">'
        f"{cell.images:,}<small>{100 * cell.share:.0f}&nbsp;%</small></a>"
    )


def _most_frequent(classes: Sequence[str], cells: Sequence[Cell], shown: frozenset[tuple[int, int]], whole: str) -> str:
    """A table of the most frequent confusions, for more classes than a matrix can show."""
    wrong = sorted((cell for cell in cells if cell.actual != cell.predicted), key=lambda cell: -cell.images)
    rows = [
        (name(classes[cell.actual]), name(classes[cell.predicted]), _link(classes, cell, shown))
        for cell in wrong[:MOST_CONFUSIONS]
    ]
    caption = (
        f"The {len(rows)} most frequent of {len(wrong):,} confusions. With more than {WIDEST_MATRIX} classes the whole "
        f"matrix is not shown; {whole} has every image."
    )
    return markup.table(caption, ("true class", "taken for", "images"), rows)


def calibration(outcome: Outcome) -> str:
    """The bars of the calibration, and how to read them."""
    drawn = charts.bars("calibrated", "Share of right answers, and number of images, by probability", outcome.bins)
    return markup.section(
        "calibration",
        "Can its probabilities be trusted?",
        markup.beside(drawn, paragraph("".join(_reading(outcome)), "note")),
    )


def _reading(outcome: Outcome) -> Iterator[str]:
    yield "A bar has the images whose answer got a probability in its range. It should end at the dashed line: "
    yield "of answers with 80&nbsp;%, 80&nbsp;% should be right. Below the line the model is too sure, above it not "
    yield "sure enough. Bars of few images say little."
