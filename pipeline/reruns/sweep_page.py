"""The page about a sweep: what the best trial is, how settings and results go together, and every trial."""

from collections.abc import Sequence

from pipeline.reporting import markup, page
from pipeline.reporting.markup import code, name, paragraph, text
from pipeline.reruns import coordinates, trials
from pipeline.reruns.coordinates import Scale
from pipeline.reruns.ranges import Range, Sweep
from pipeline.reruns.trials import Done

PARTS = (("best", "result"), ("coordinates", "settings and results"), ("trials", "trials"))
RESULT = "validation accuracy"


def written(sweep: Sweep, best_first: Sequence[Done], verdict: Sequence[str], command: str) -> str:
    """The whole page. `verdict`: sentences about the best trial; `command` takes it over."""
    body = "\n".join([best(verdict, command), drawing(sweep, best_first), table(best_first)])
    tried = ", ".join(key.removeprefix("train.") for key in sweep.axes)
    return page.frame(
        f"{sweep.name}: {tried}", f"{name(sweep.name)}: {len(best_first)} trials of {code(tried)}", PARTS, body
    )


def best(verdict: Sequence[str], command: str) -> str:
    """The sentences, and how to take the best one over."""
    return markup.section(
        "best",
        "Which trial is the best?",
        *(paragraph(text(sentence)) for sentence in verdict),
        paragraph(f"To take it over: {code(command)}."),
    )


def drawing(sweep: Sweep, best_first: Sequence[Done]) -> str:
    """One axis for each setting, and a line for each trial with a result."""
    shown = [done for done in best_first if done.results]
    accuracies = [done.results[0].val_accuracy for done in shown]
    scales = [_scale(sweep, key, shown) for key in sweep.axes]
    scales.append(coordinates.numbers(RESULT, min(accuracies), max(accuracies), accuracies, log=False))
    lines = [
        f"trial {done.trial.number}: {trials.described(done.trial.values)}: {accuracy:.4f}"
        for done, accuracy in zip(shown, accuracies, strict=True)
    ]
    title = "Settings and validation accuracy"
    return markup.section(
        "coordinates",
        "How do settings and results go together?",
        coordinates.for_every_screen("lines", title, scales, lines),
        paragraph(
            "Each line is a trial. The best one has its own colour; the others are fainter, the lower their result is. "
            "Point at a line to see its values.",
            "note",
        ),
    )


def _scale(sweep: Sweep, key: str, shown: Sequence[Done]) -> Scale:
    axis, values = sweep.axes[key], [done.trial.values[key] for done in shown]
    title = key.removeprefix("train.")
    if isinstance(axis, Range):
        log = axis.scale == "log" and min(values) > 0  # the present value may lie outside
        low, high = min(axis.start, *values), max(axis.to, *values)
        return coordinates.numbers(title, low, high, values, log=log)
    listed = [*axis, *(value for value in values if value not in axis)]  # at most one, the present value
    return coordinates.listed(
        title, [trials.shown(value) for value in listed], [listed.index(value) for value in values]
    )


def table(best_first: Sequence[Done]) -> str:
    """Every trial, the best first."""
    keys = list(best_first[0].trial.values)
    rows = [
        (rank or "–", f"{done.trial.number}", accuracy, *(code(trials.shown(done.trial.values[key])) for key in keys),
         loss, epoch, code(done.experiment))
        for rank, done in zip(trials.ranks(best_first), best_first, strict=True)
        for accuracy, loss, epoch in [trials.short(done)]
    ]  # fmt: skip
    head = ("rank", "trial", RESULT, *(code(key.removeprefix("train.")) for key in keys), "validation loss",
            "exported epoch", "experiment")  # fmt: skip
    return markup.section(
        "trials", "What did each trial give?",
        markup.table("The highest validation accuracy first", head, rows, "numbers"),
        paragraph("No test image was used for this order. Only the best trial was tested.", "note"),
    )  # fmt: skip
