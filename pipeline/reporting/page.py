"""The page about a run: everything that a person asks after it."""

from collections.abc import Mapping

from pipeline.data import corrections, suspects
from pipeline.reporting import charts, rendering, result
from pipeline.reporting.audit import PARTS
from pipeline.reporting.charts import Chart, Line
from pipeline.reporting.facts import Facts
from pipeline.reporting.gallery import MEASURES, Album, HardAnswers
from pipeline.reporting.thumbnails import Thumbnail

MOST_ROWS = 200  # classes in the table of counts


def page(facts: Facts, hard_answers: HardAnswers, pictures: Mapping[str, Thumbnail]) -> str:
    """The whole page: it needs no other file and no network. `pictures`: by the path of the image."""
    outcome = facts.outcome
    classes, counts, epochs = outcome.classes, outcome.counts, outcome.history["val_loss"]
    return rendering.page(
        "report.html.jinja",
        model=facts.model,
        train=facts.config.train,
        source=facts.config.data.source,
        figures=outcome.figures,
        tested=len(outcome.answers),
        right=int(counts.trace()),
        most_frequent=int(counts.sum(1).max()) / len(outcome.answers),
        epochs=len(epochs),
        loss=_curves(facts, "loss", "Loss (lower is better)"),
        accuracy=_curves(facts, "accuracy", "Accuracy (higher is better)"),
        class_table=result.class_table(classes, counts),
        confusion=result.confusion(classes, counts, hard_answers.cell_images),
        bars=charts.bars("calibrated", "Share of right answers, and number of images, by probability", outcome.bins),
        is_narrow=len(classes) <= result.MOST_IN_HALF,
        hard_answers=hard_answers,
        album=Album(pictures, facts.credits),
        audit=facts.audit,
        parts=PARTS,
        largest_classes=facts.audit.largest_classes(MOST_ROWS),
        measures=MEASURES,
        corrections=corrections,
        suspects=suspects,
        settings=facts.settings,
        packages=facts.packages,
        hashes=facts.hashes,
        weights=facts.weights,
    )


def _curves(facts: Facts, key: str, title: str) -> Chart:
    """The curve of a figure in training and validation."""
    history, epoch = facts.outcome.history, facts.model.epoch
    lines = [
        Line("training", history[f"train_{key}"], epoch),
        Line("validation", history[f"val_{key}"], epoch),
    ]
    return charts.curves(key, title, lines, shares=key == "accuracy")
