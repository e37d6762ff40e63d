"""The page about all folds: every image is answered once, by a model that was not trained on it."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.config.params import Params
from pipeline.data import corrections
from pipeline.evaluation import label_errors, metrics
from pipeline.evaluation.label_errors import LabelError
from pipeline.evaluation.pooled import Figures, Pooled, Spread
from pipeline.reporting import gallery, markup, outcome, result
from pipeline.reporting.gallery import Album, Chosen
from pipeline.reporting.markup import are, code, name, paragraph, percent, text
from pipeline.reporting.page import SCRIPT as FILTER
from pipeline.reporting.page import frame
from pipeline.reporting.page import settings as settings_section
from pipeline.reporting.settings import Setting
from pipeline.reruns import record

CHOICES = Path(__file__).with_name("choices.js")
PARTS = (
    ("quality", "accuracy"), ("folds", "folds"), ("classes", "classes"), ("confusion", "confusion"),
    ("images", "images"), ("labels", "labels"), ("settings", "settings"), ("repeat", "repeat"),
)  # fmt: skip
PREDICTIONS, LABEL_ERRORS = "metrics/folds/predictions.csv", "metrics/folds/label_errors.csv"
MOST_ERRORS = 100  # probable label errors that are shown
MOST_PARTS = 100  # rows of the table of folds
MOST_CHOICES = 30  # classes to choose from for an image; of more, only the given and the suggested one


@dataclass(frozen=True)
class Content:
    """Everything that the page shows."""

    config: Params
    pooled: Pooled
    figures: Figures
    chosen: Chosen
    found: Sequence[LabelError]  # by rank
    album: Album
    settings: Sequence[Setting]
    command: str  # that makes the page again


def page(content: Content) -> str:
    """The whole page: it needs no other file and no network."""
    pooled, figures = content.pooled, content.figures
    guesses = pooled.probabilities.argmax(1)
    counts = metrics.confusion(guesses, pooled.labels, len(pooled.classes))
    settings = [one for one in content.settings if one.name not in record.VARIED]  # the table of folds has these
    body = "\n".join([
        quality(content.config, pooled, figures, counts),
        folds(figures),
        classes(pooled, counts),
        result.confusion(pooled.classes, counts, content.chosen.pairs, PREDICTIONS),
        gallery.images(content.chosen, pooled.classes, content.album, PREDICTIONS),
        labels(pooled, content.found, content.album),
        settings_section(settings),
        repeat(content.command),
    ])  # fmt: skip
    title = f"All {are(figures.images, 'image', 'images')} tested"
    script = "".join(path.read_text(encoding="utf-8") for path in (FILTER, CHOICES))
    return frame(title, title, PARTS, body, script)


def chosen(pooled: Pooled) -> Chosen:
    """The answers that the page shows; see `gallery.choose`."""
    numbers = pooled.labels.tolist()
    answers = [
        outcome.answer(path, actual, predicted, chances)
        for path, actual, predicted, chances in zip(
            pooled.paths, numbers, pooled.probabilities.argmax(1).tolist(), pooled.probabilities.tolist(), strict=True
        )
    ]
    return gallery.choose(answers)


def wanted(chosen: Chosen, pooled: Pooled, found: Sequence[LabelError]) -> dict[str, bool]:
    """The path of every image that the page shows, as `thumbnails.pictures` needs them."""
    paths = [answer.path for answer in (*chosen.mistakes, *chosen.unsure)]
    return dict.fromkeys([*paths, *(pooled.paths[one.row] for one in found[:MOST_ERRORS])], True)


# ---- how good ----


def quality(config: Params, pooled: Pooled, figures: Figures, counts: NDArray[np.int64]) -> str:
    """The accuracy over all images with its interval, and the other figures."""
    trainings, seeds = len(figures.parts), len(pooled.seeds)
    largest = int(counts.sum(1).max()) / figures.images
    models = f"{code(config.train.model)}, {are(trainings, 'training', 'trainings')}"
    mean = f" This is the mean of {seeds} seeds." if seeds > 1 else ""
    return markup.section(
        "quality",
        "How good is the recipe?",
        f'<p class="hero"><b>{percent(figures.accuracy)}</b> <span>of the {figures.images:,} images get the right '
        f"class, each from a model that was not trained on it ({models}).{mean} Chance alone can move this figure: its "
        f"95&nbsp;% interval is {percent(figures.accuracy_low)} to {percent(figures.accuracy_high)}. The same answer "
        f"for every image, the most frequent class, gets {percent(largest)}.</span></p>",
        result.tiles(_tiles(figures)),
        paragraph(
            "Every image is a test image once, so this is a figure of the recipe on the whole data set, not of one "
            "model. Each model learned from less than all images.", "note",
        ),
    )  # fmt: skip


def _tiles(figures: Figures) -> Iterator[Sequence[str]]:
    over_folds, over_seeds = figures.over_folds, figures.over_seeds
    trainings = are(over_folds.count, "training", "trainings")
    yield _spread(over_folds), "over folds", f"mean ± standard deviation of the accuracies of {trainings}"
    if over_seeds.count > 1:
        meant = f"mean ± standard deviation of the accuracies of {over_seeds.count} seeds, each over all images"
        yield _spread(over_seeds), "over seeds", meant
        meant = "of the class with the highest mean probability over seeds: several models answer together"
        yield f"{figures.accuracy_of_mean:.3f}", "seeds together", meant
    for key, *said in result.MEANINGS:
        yield f"{getattr(figures, key) + 0.0:.3f}", *said


def _spread(found: Spread) -> str:
    return f"{found.mean:.3f} ± {found.deviation:.3f}" if found.count > 1 else f"{found.mean:.3f}"


def folds(figures: Figures) -> str:
    """The table of the trainings."""
    rows = []
    for part in figures.parts[:MOST_PARTS]:
        low, high = metrics.wilson(part.right, part.images)
        accuracy = f"{part.accuracy:.3f}<small>{low:.3f} to {high:.3f}</small>"
        rows.append((f"{part.fold}", f"{part.seed}", f"{part.images:,}", f"{part.right:,}", accuracy))
    more = f": the first {MOST_PARTS} of {len(figures.parts):,}" if len(figures.parts) > MOST_PARTS else ""
    head = ("fold", "seed", "test images", "right answers", "accuracy")
    note = "A fold is a part of the images. They are the test images of a model that was trained on the other folds."
    return markup.section(
        "folds",
        "Do the folds agree?",
        markup.table(f"Each training on its test images, with the 95&nbsp;% interval{more}", head, rows, "numbers"),
        paragraph(note, "note"),
    )


def classes(pooled: Pooled, counts: NDArray[np.int64]) -> str:
    """The table of the classes, from one answer per image."""
    several = " from the mean of its probabilities over seeds" if len(pooled.seeds) > 1 else ""
    note = paragraph(
        f"Here and below there is one answer per image{several}. {PREDICTIONS} has all answers.", "note"
    )  # fmt: skip
    table = result.class_table(pooled.classes, counts, "Each class on all images", "")
    return markup.section("classes", "Which classes does it recognize?", table, note)


# ---- which labels are wrong ----


def labels(pooled: Pooled, found: Sequence[LabelError], album: Album) -> str:
    """The contact sheet of the probable label errors, and how to correct them."""
    images, shown = len(pooled.paths), found[:MOST_ERRORS]
    if not found:
        return markup.section("labels", "Which labels are wrong?", paragraph("No label is suspected."))
    rest = f" The first {len(shown)} are shown; {LABEL_ERRORS} has all." if len(shown) < len(found) else ""
    choices = pooled.classes if len(pooled.classes) <= MOST_CHOICES else ()
    shots = [_suspect(pooled, one, rank, album) for rank, one in enumerate(shown, start=1)]
    return markup.section(
        "labels",
        "Which labels are wrong?",
        paragraph(
            f"{are(len(found), 'label', 'labels')} of {images:,} ({percent(len(found) / images)}) may be wrong: a "
            f"model that was not trained on the image is sure of another class. The most suspicious come first.{rest} "
            f"The model can be wrong, too: look at each image."
        ),
        paragraph(
            f"To correct labels: put a line for each wrong one into {code(corrections.FILE)} (path, label, reason; the "
            f"label {code('exclude')} leaves an image out), commit the file, and run again. No label changes by itself."
        ),
        f'<div id="sheet" data-classes="{text(json.dumps(choices, ensure_ascii=False))}">\n'
        f"{gallery.shots(shots)}\n</div>",
        f'<div id="chosen" hidden><h3>Your choices, as lines of {code(corrections.FILE)}</h3>\n'
        f'<pre tabindex="0"></pre>\n'
        f"{paragraph('The page forgets them when it is closed.', 'note')}</div>",
        markup.folded("These suggestions as lines of this file", markup.preformatted(*_lines(pooled, shown))),
    )


def _suspect(pooled: Pooled, one: LabelError, rank: int, album: Album) -> str:
    given, suggested, path = pooled.classes[one.given], pooled.classes[one.suggested], pooled.paths[one.row]
    lines = [
        f"{rank}. label <b>{name(given)}</b> {percent(one.p_given)}",
        f"suggested: <b>{name(suggested)}</b> {percent(one.p_suggested)}",
    ]
    data = {"path": path, "given": given, "suggested": suggested,
            "reason": label_errors.reason(rank, one, pooled.classes)}  # fmt: skip
    return gallery.shot(path, lines, album, "".join(f' data-{key}="{text(value)}"' for key, value in data.items()))


def _lines(pooled: Pooled, found: Sequence[LabelError]) -> list[str]:
    """Suggestions, as lines of the table of corrections."""
    content = io.StringIO(newline="")
    csv.writer(content, lineterminator="\n").writerows(label_errors.corrections(found, pooled.paths, pooled.classes))
    return content.getvalue().removesuffix("\n").split("\n")


def repeat(command: str) -> str:
    """The command that gives the same bytes again."""
    return markup.section(
        "repeat", "How to repeat it?", markup.preformatted(command),
        paragraph("A command of a clone of the project. docs/folds.md says what it does.", "note"),
    )  # fmt: skip
