"""The page about a sweep: its best trial, a drawing of the results, and a table of all trials."""

from collections.abc import Sequence

from pipeline.evaluation import metrics
from pipeline.evaluation.metrics import Share
from pipeline.reporting import charts, rendering
from pipeline.studies import trials
from pipeline.studies.ranges import SECTION, Sweep
from pipeline.studies.trials import TrialResult

MOST_DOTS = 24  # trials
MOST_LETTERS = 42  # of the settings of a trial


def page(sweep: Sweep, best_first: Sequence[TrialResult], images: int, conclusion: Sequence[str], command: str) -> str:
    """The page as HTML. `images`: of the validation. `conclusion`: on the best trial; `command` takes it over."""
    return rendering.page(
        "sweep.html.jinja",
        sweep=sweep,
        keys=[key.removeprefix(SECTION) for key in sweep.axes],
        conclusion=conclusion,
        command=command,
        dots=charts.intervals("dots", "Validation accuracy with its 95\u00a0% interval", _dots(best_first, images)),
        most_dots=MOST_DOTS,
        trials=trials.text_table(best_first),
    )


def _dots(best_first: Sequence[TrialResult], images: int) -> list[tuple[str, list[Share]]]:
    """The settings and the validation accuracy of the best trials, in the order of their numbers."""
    shown = [result for result in best_first if result.figures][:MOST_DOTS]
    rows = []
    for result in sorted(shown, key=lambda result: result.trial.number):
        name = trials.describe({key.removeprefix(SECTION): value for key, value in result.trial.values.items()})
        short = name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…"
        rows.append((short, [metrics.share(round(result.figures[0].val_accuracy * images), images)]))
    return rows
