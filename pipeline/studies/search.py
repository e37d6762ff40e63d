"""The trials of a sweep: the present settings, and those that a grid, a random search or Optuna's TPE gives.

Each trial has a new sampler, with a seed that follows from the sweep's seed and the number of the trial. So trial k is
the same for every number of trials, and nothing but the results has to be stored. Optuna's own storage does not give
that: it stores the trials and not the state of the sampler, so after a kill a sampler with a seed draws the same again.
"""

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.base.errors import Fault, UserError
from pipeline.config import document
from pipeline.config.params import Params
from pipeline.studies.ranges import MOST, Axis, Range, Sweep, Trial

FIRST = 5  # trials of TPE that are drawn, before there is something to learn from
ATTEMPTS, TPE_ATTEMPTS = 1000, 20  # draws until a trial differs from all before it
Values = Mapping[str, Any]  # section.key → value


def present_values(sweep: Sweep, config: Params) -> dict[str, Any]:
    """The values that params.yaml has for the settings of the sweep."""
    values = dict(document.leaves(config.model_dump(mode="json")))
    return {key: values[key] for key in sweep.axes}


def plan(sweep: Sweep, first: Values) -> list[Trial]:
    """All trials of a grid or a random search; none of a search that chooses by results.

    `first`: see `present_values`.
    """
    if sweep.search == "grid":
        return grid(sweep, first)
    return random(sweep, first, sweep.trials) if sweep.search == "random" else []


def grid(sweep: Sweep, first: Values) -> list[Trial]:
    """Every combination, in the order of the file; the last setting changes first.

    If the present settings `first` are no combination, they are one more trial, the first one. This is no sampler of
    Optuna: its GridSampler takes the combinations in a random order.
    """
    lists = [axis for axis in sweep.axes.values() if isinstance(axis, tuple)]
    combinations = [dict(zip(sweep.axes, values, strict=True)) for values in itertools.product(*lists)]
    values = combinations if first in combinations else [first, *combinations]
    return [Trial(number, one) for number, one in enumerate(values, start=1)]


def random(sweep: Sweep, first: Values, trials: int) -> list[Trial]:
    """The present settings `first`, and draws, each different from all before it.

    Raises UserError if too few draws differ.
    """
    from optuna.samplers import RandomSampler

    values = [first]
    for number in range(2, trials + 1):
        draws = _draws(sweep, RandomSampler(seed=_seed(sweep, number)), [])
        new = next((draw for draw in itertools.islice(draws, ATTEMPTS) if draw not in values), None)
        if new is None:
            allowed = f"up to {len(values)} of these params"
            raise UserError(Fault("trials", str(trials), "value", "no other trial was drawn", allowed))
        values.append(new)
    return [Trial(number, one) for number, one in enumerate(values, start=1)]


def tpe(sweep: Sweep, first: Values, number: int, results: Sequence[tuple[Values, float]]) -> Trial:
    """The trial with this number, from the values and validation accuracies of those before it that have a result.

    It learns from trials inside the ranges alone; the present settings may lie outside.
    """
    inside = [(values, accuracy) for values, accuracy in results if _is_inside(sweep, values)]
    if number <= FIRST or not inside:
        return random(sweep, first, number)[-1]
    from optuna.samplers import TPESampler

    sampler = TPESampler(seed=_seed(sweep, number), n_startup_trials=1)
    draws = list(itertools.islice(_draws(sweep, sampler, inside), TPE_ATTEMPTS))
    earlier = [values for values, _ in results]
    return Trial(number, next((draw for draw in draws if draw not in earlier), draws[0]))


def corners(sweep: Sweep) -> Iterator[dict[str, Any]]:
    """Combinations of all listed values and both ends of each range, the first ones: what a search may choose."""
    ends = [axis if isinstance(axis, tuple) else (axis.start, axis.to) for axis in sweep.axes.values()]
    for values in itertools.islice(itertools.product(*ends), MOST):
        yield dict(zip(sweep.axes, values, strict=True))


def _seed(sweep: Sweep, number: int) -> int:
    """32 bits that follow from the sweep's seed and the number of a trial."""
    return int.from_bytes(hashlib.sha256(f"{sweep.seed}:{number}".encode()).digest()[:4])


def _draws(sweep: Sweep, sampler: Any, results: Sequence[tuple[Values, float]]) -> Iterator[dict[str, Any]]:
    """The values that a sampler of Optuna draws after these results, without end."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    spaces = {key: _space(axis) for key, axis in sweep.axes.items()}
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for values, accuracy in results:
        indexed = {
            key: values[key] if isinstance(axis, Range) else axis.index(values[key]) for key, axis in sweep.axes.items()
        }
        study.add_trial(optuna.trial.create_trial(params=indexed, distributions=spaces, value=accuracy))
    while True:
        draw = study.ask(spaces).params
        yield {
            key: axis.round_value(draw[key]) if isinstance(axis, Range) else axis[draw[key]]
            for key, axis in sweep.axes.items()
        }


def _space(axis: Axis) -> Any:
    """The distribution of Optuna; of listed values their numbers, because Optuna knows no lists as values."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not isinstance(axis, Range):
        return CategoricalDistribution(range(len(axis)))
    log = axis.scale == "log"
    if axis.is_whole:
        return IntDistribution(int(axis.start), int(axis.to), log=log)
    return FloatDistribution(axis.start, axis.to, log=log)


def _is_inside(sweep: Sweep, values: Values) -> bool:
    """Whether every value is one that the file allows."""
    return all(
        axis.start <= values[key] <= axis.to and not (axis.is_whole and values[key] % 1)
        if isinstance(axis, Range)
        else values[key] in axis
        for key, axis in sweep.axes.items()
    )
