"""The report, a page about a run."""

from collections.abc import Mapping, Sequence

from pipeline.config.model_names import EXACT_MODELS
from pipeline.data import corrections, suspects
from pipeline.dataset.split_table import BY_HAND, ImageRow
from pipeline.reporting import charts, gallery, heat_maps, rendering, result
from pipeline.reporting.audit import PARTS
from pipeline.reporting.charts import Chart, Line
from pipeline.reporting.facts import Facts
from pipeline.reporting.gallery import MEASURES, NO_HEAT_MAPS, Album, HardAnswers, HeatMaps
from pipeline.reporting.thumbnails import Thumbnail

MOST_ROWS = 200  # classes in the table of counts


def page(
    facts: Facts,
    hard_answers: HardAnswers,
    pictures: Mapping[str, Thumbnail],
    maps: HeatMaps = NO_HEAT_MAPS,
    nearest: Mapping[str, Sequence[ImageRow]] = {},
    first_step: Sequence[Thumbnail] = (),
) -> str:
    """The HTML of the page: it needs no other file and no network. `pictures`: path of an image → its thumbnail.

    `nearest`: path of a mistake → the training photos beside it. `first_step`: images as the training gets them.
    """
    outcome = facts.outcome
    classes, counts = outcome.classes, outcome.counts
    frames = {
        one.path: heat_maps.frame(facts.model.view, pictures[one.path])
        for one in hard_answers.mistakes
        if one.path in pictures
    }
    return rendering.page(
        "report.html.jinja",
        **vars(facts),
        weights=facts.weights,
        right=int(counts.trace()),
        most_frequent=int(counts.sum(1).max()) / len(outcome.answers),
        loss=_curves(facts, "loss", "Loss (lower is better)"),
        accuracy=_curves(facts, "accuracy", "Accuracy (higher is better)"),
        class_table=result.class_table(classes, counts),
        confusion=result.confusion(classes, counts, hard_answers.cell_images),
        bars=charts.bars("calibrated", "Share of right answers, and number of images, by probability", outcome.bins),
        is_exact=facts.model.model in EXACT_MODELS,
        is_narrow=len(classes) <= result.MOST_IN_HALF,
        hard_answers=hard_answers,
        album=Album(pictures, facts.credits, maps, frames, nearest),
        parts=PARTS,
        by_hand=BY_HAND,
        largest_classes=facts.audit.largest_classes(MOST_ROWS),
        measures=MEASURES,
        first_step=first_step,
        choices=gallery.choices(classes),
        corrections=corrections,
        suspects=suspects,
    )


def _curves(facts: Facts, key: str, title: str) -> Chart:
    """The curves of a figure in training and validation."""
    history, epoch = facts.outcome.history, facts.model.epoch
    lines = [
        Line("training", history[f"train_{key}"], epoch),
        Line("validation", history[f"val_{key}"], epoch),
    ]
    return charts.curves(key, title, lines, shares=key == "accuracy")
