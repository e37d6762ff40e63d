"""The page of `predict --html`: every image with its answer; how many are right, where the images have labels.

Like classify.py, it imports no library at its top.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from pipeline.answers.answer import Answer
from pipeline.answers.classify import Request
from pipeline.config.params import Params

MOST = 500  # images of each kind on the page


def shares(answers: Sequence[Answer], used: Collection[str], request: Request) -> Iterator[str]:
    """How many of the images with a label get the right class, and how many of all were `used` in training."""
    where = f"of split {request.split}" if request.split else "in folders that are named like a class"
    labelled = [one for one in answers if one.label]
    if labelled:
        yield f"{where}, {_right(labelled)}"
    if used:
        count = f"{sum(one.file in used for one in answers):,} of {len(answers):,} images were used in training"
        yield f"{count}; the share of right answers is too high" if labelled else count
    if used and (others := [one for one in labelled if one.file not in used]):
        yield f"of the images that were not used in training, {_right(others)}"


def _right(answers: Sequence[Answer]) -> str:
    from pipeline.evaluation import metrics

    right = metrics.share(sum(one.is_right for one in answers), len(answers))
    count = f"{right.count:,} of {right.images:,} images get the right class"
    return f"{count} (95 % interval: {right.low:.3f} to {right.high:.3f})"


def page(answers: Sequence[Answer], config: Params, request: Request, used: Collection[str]) -> str:
    """The page as HTML. `used`: files that the model was trained on. Raises UserError if an image is gone."""
    from pipeline.reporting import rendering, thumbnails
    from pipeline.reporting.gallery import Album, HeatMaps
    from pipeline.sources.originals import Originals

    labelled, sentences = [one for one in answers if one.label], list(shares(answers, used, request))
    if used and (others := [one for one in labelled if one.file not in used]):  # their share is not too high
        labelled, sentences = others, [sentences[-1], *sentences[:-1]]
    parts = {"To label next, in this order": answers} if request.next else _kinds(answers)
    kinds = [(title, part[:MOST], len(part)) for title, part in parts.items() if part]
    shown = [one for _, part, _ in kinds for one in part]
    paths = {one.file: False for one in shown}
    pictures = thumbnails.pictures(
        Originals(Path(), {}), paths, config.prepare.grey, config.run.decoding_threads, "page"
    )
    maps = {one.path: thumbnails.of_picture(Path(request.below, one.heatmap)) for one in shown if one.heatmap}
    return rendering.page(
        "predict.html.jinja",
        images=len(answers),
        sentences=[f"{text[0].upper()}{text[1:]}." for text in sentences],
        accuracy=sum(one.is_right for one in labelled) / len(labelled) if labelled else None,
        is_known=bool(used or request.split),
        classes=_classes(answers),
        kinds=kinds,
        album=Album({one.path: pictures[one.file] for one in shown}, {}, HeatMaps(maps)),
    )


def _kinds(answers: Sequence[Answer]) -> dict[str, list[Answer]]:
    """Title → images: the most confident mistakes first; of the others the least sure ones first."""
    unsure = sorted(answers, key=lambda one: one.probability)
    return {
        "Another class than the label": [one for one in reversed(unsure) if one.label and not one.is_right],
        "None of the classes": [one for one in unsure if not (one.label or one.is_accepted)],
        "Answers": [one for one in unsure if one.is_accepted and not one.label],
        "The class of the label": [one for one in unsure if one.is_right],
    }


def _classes(answers: Sequence[Answer]) -> list[tuple[str, int, int, int]]:
    """Of each class the images that get the class, those with its label, and those of them that are right."""
    given = Counter(one.prediction for one in answers if one.is_accepted)
    labels, right = (Counter(one.label for one in part) for part in (answers, [one for one in answers if one.is_right]))
    return [(name, given[name], labels[name], right[name]) for name in sorted({*given, *labels} - {""})]
