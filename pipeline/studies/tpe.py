"""Optuna's TPE sampler chooses the next trial from the results of those before it. Optuna is an optional package."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.base.errors import UserError
from pipeline.studies import ranges
from pipeline.studies.ranges import Range, Sweep, Trial

FIRST = 5  # trials that are drawn as search: random draws them, before there is something to learn from
Seen = Sequence[tuple[Mapping[str, Any], float]]  # the values of each finished trial, and its validation accuracy


def check() -> None:
    """Raise UserError if Optuna is not installed."""
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise UserError(
            "search: tpe needs Optuna, which is not installed; pip install optuna==5.0.0, or search: random"
        ) from None


def proposed(sweep: Sweep, number: int, seen: Seen) -> Trial:
    """The trial with this number. It follows from the sweep's seed, the number and the results, and from nothing else.

    The study is made anew each time, so nothing but the results of the experiments has to be kept.
    """
    if number <= FIRST or not seen:
        return ranges.random(sweep, number)[-1]
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    spaces = {key: _space(axis) for key, axis in sweep.axes.items()}
    seed = int(ranges.share(f"{sweep.seed}:{number}") * 2**32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=1)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for values, accuracy in seen:
            stored = {key: _stored(sweep.axes[key], value) for key, value in values.items()}
            study.add_trial(optuna.trial.create_trial(params=stored, distributions=spaces, value=accuracy))
        asked = study.ask(spaces).params
    return Trial(number, {key: _value(axis, asked[key]) for key, axis in sweep.axes.items()})


def _space(axis: ranges.Axis) -> Any:
    """The distribution of Optuna; of listed values their numbers, because Optuna knows no lists as values."""
    import optuna

    if not isinstance(axis, Range):
        return optuna.distributions.CategoricalDistribution(range(len(axis)))
    log = axis.scale == "log"
    if axis.is_whole:
        return optuna.distributions.IntDistribution(int(axis.start), int(axis.to), log=log)
    return optuna.distributions.FloatDistribution(axis.start, axis.to, log=log)


def _stored(axis: ranges.Axis, value: Any) -> Any:
    return value if isinstance(axis, Range) else axis.index(value)


def _value(axis: ranges.Axis, found: Any) -> Any:
    return axis.rounded(found) if isinstance(axis, Range) else axis[found]
