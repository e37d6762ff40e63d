"""The page about all folds: every image has one prediction, of a model that was not trained on it."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.config.params import Params
from pipeline.data import corrections
from pipeline.evaluation import metrics
from pipeline.reporting import gallery, outcome, rendering, result, settings
from pipeline.reporting.gallery import Album, HardAnswers
from pipeline.reporting.reliance import Coverage
from pipeline.studies import label_errors, record
from pipeline.studies.label_errors import LabelError
from pipeline.studies.pooling import Figures, FoldPredictions
from pipeline.versioning import identity

MOST_ERRORS, MOST_DOUBTED = 100, 20  # probable label errors that are shown; of models too weak to judge labels
MOST_PARTS = 100  # rows of the table of folds


@dataclass(frozen=True)
class Content:
    """The content of the page, as the template names it."""

    config: Params
    predictions: FoldPredictions
    figures: Figures
    examples: HardAnswers
    errors: Sequence[LabelError]  # by rank
    album: Album
    command: str  # that makes the page again
    coverage: Coverage


def page(content: Content) -> str:
    """The page as HTML: it needs no other file and no network."""
    predictions, figures = content.predictions, content.figures
    counts = metrics.confusion(predictions.probabilities.argmax(1), predictions.labels, len(predictions.classes))
    return rendering.page(
        "folds.html.jinja",
        **vars(content),
        most_frequent=int(counts.sum(1).max()) / figures.images,
        parts=[(part, metrics.wilson(part.right, part.images)) for part in figures.parts[:MOST_PARTS]],
        class_table=result.class_table(predictions.classes, counts),
        confusion=result.confusion(predictions.classes, counts, content.examples.cell_images),
        doubt=label_errors.doubt(len(content.errors), len(predictions.paths)),
        suspects=shown(content.errors, len(predictions.paths)),
        choices=gallery.choices(predictions.classes),
        corrections=corrections,
        # The table of folds has what varies.
        settings=[
            row
            for row in settings.settings(content.config, identity.settings(content.config, ["report"]))
            if row.name not in record.VARIED
        ],
    )


def choose_examples(predictions: FoldPredictions) -> HardAnswers:
    """The predictions that the page shows; see `gallery.hard_answers`."""
    labels, probabilities = predictions.labels.tolist(), predictions.probabilities
    rows = zip(predictions.paths, labels, probabilities.argmax(1).tolist(), probabilities.tolist(), strict=True)
    return gallery.hard_answers([outcome.make_answer(*row) for row in rows])


def image_paths(examples: HardAnswers, errors: Sequence[LabelError]) -> list[str]:
    """The path of every image that the page shows."""
    answers = [answer.path for answer in (*examples.mistakes, *examples.right_answers)]
    return answers + [error.path for error in errors]


def shown(errors: Sequence[LabelError], images: int) -> Sequence[LabelError]:
    """The probable label errors that the page shows, of those of so many images."""
    return errors[: MOST_DOUBTED if label_errors.doubt(len(errors), images) else MOST_ERRORS]
