"""Files of ranges: what is refused, before any trial runs."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.base.errors import Kind
from pipeline.config import machine, params
from pipeline.reruns import ranges, search, trials
from pipeline.reruns.ranges import Sweep
from tests.conftest import PROJECT, on_cpu, read_params, write_params
from tests.helpers.refusals import refuses

LR, MIXUP = "train.lr", "train.mixup"
FILE: dict[str, Any] = {"search": "random", "trials": 4, "params": {LR: {"from": 0.01, "to": 0.1}, MIXUP: [0.0, 0.2]}}


def of(**changes: Any) -> dict[str, Any]:
    """The content of a file with these changes; None takes a line out."""
    return {key: value for key, value in (FILE | changes).items() if value is not None}


def read(folder: Path, content: Any) -> Sweep:
    """The sweep of a file with this content."""
    write_params(folder / "my sweep.yaml", content)
    return ranges.read(folder / "my sweep.yaml")


FAULTS: dict[str, tuple[Any, str, Kind]] = {
    "search": (of(search="best"), "search", "value"),
    "no search": (of(search=None), "search", "missing"),
    "key": (of(jobs=2), "jobs", "unknown"),
    "no trials": (of(trials=None), "trials", "missing"),
    "too many": (of(params={MIXUP: [0.0, 0.2]}), "trials", "value"),
    "grid": (of(search="grid", trials=None), LR, "pair"),
    "grid of so many": (of(search="grid", params={LR: [0.1]}), "trials", "pair"),
    "large grid": ({"search": "grid", "params": {LR: [*range(1, 40)], MIXUP: [*range(40)]}}, "params", "value"),
    "no params": (of(params={}), "params", "value"),
    "name": (of(params={"train.mixupp": [0.1]}), "params", "unknown"),
    "section": (of(params={"lr": [0.1]}), "params", "unknown"),
    **{key: (of(params={key: [0, 1]}), "params", "value") for key in ("data.source", "split.seed", "train.seed")},
    "order": (of(params={LR: {"from": 0.2, "to": 0.1}}), LR, "value"),
    "log": (of(params={LR: {"from": 0, "to": 0.1, "scale": "log"}}), LR, "pair"),
    "scale": (of(params={LR: {"from": 0.1, "to": 0.2, "scale": "ln"}}), f"{LR}.scale", "value"),
    "range": (of(params={LR: {"from": 0.1, "to": 1, "step": 1}}), f"{LR}.step", "unknown"),
    "value": (of(params={LR: 0.1}), LR, "value"),
    "twice": (of(params={LR: [0.1, 0.1]}), LR, "value"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_file_with_a_fault_is_refused(tmp_path: Path, case: str) -> None:
    """The fault names the file and the key in it. A file that is no table, and a missing one, are refused, too."""
    content, key, kind = FAULTS[case]
    with refuses((f"{tmp_path}/my sweep.yaml: {key}", kind)):
        read(tmp_path, content)
    with refuses((tmp_path / "my sweep.yaml", "damaged")):
        read(tmp_path, [1])
    with refuses((tmp_path / "nowhere.yaml", "missing")):
        ranges.read(tmp_path / "nowhere.yaml")


def test_a_trial_that_cannot_run_is_refused_before_any_runs() -> None:
    """With its values."""
    config, here = params.parse(on_cpu(read_params())), machine.read()
    trials.check(config, [{LR: 0.1, "train.crop_scale": [0.5, 1.0]}], here)
    with refuses((LR, "value")):
        trials.check(config, [{LR: 0.1}, {LR: -1}], here)
    with refuses(("train.precision", "pair")) as error:
        trials.check(config, [{LR: 0.5, "train.precision": "tf32"}], here)
    assert "train.lr=0.5 train.precision=tf32" in error.value.faults[0].reason
    several: list[tuple[object, Kind]] = [("train.precision", "pair")] * 8
    with refuses(*several):
        trials.check(config, [{LR: number, "train.precision": "tf32"} for number in range(1, 9)], here)


def test_the_example_can_run_with_the_params_of_a_cpu() -> None:
    """Every trial of docs/sweep.yaml is accepted."""
    example = ranges.read(PROJECT / "docs/sweep.yaml")
    config = params.parse(on_cpu(read_params()))
    first = search.present_values(example, config)
    trials.check(config, [trial.values for trial in search.random(example, first, example.trials)], machine.read())
