"""What decides the bytes is written once: a setting is in an identity exactly if an output can change with it."""

from typing import Any, get_args

import pytest
from pydantic import BaseModel

from benchmarks.harness.workspace import STAGES
from pipeline.config import document, params
from pipeline.config.params import Params
from pipeline.studies import record
from pipeline.versioning import identity
from tests.conftest import PROJECT
from tests.helpers.settings import LEAVES, tracked

TEXT = {  # another value of a setting that is text, without a list of its values
    "data.url": "file:///x.zip", "data.sha256": "0" * 64, "split.group": "folder", "train.model": "resnet50",
    "train.weights": "imagenet", "run.rendezvous": "localhost:1",
}  # fmt: skip
NUMBERS = {"evaluate.coverage": 0.9}  # half of its default is not allowed
VALUES: dict[str, Any] = dict(document.leaves(Params().model_dump(mode="json")))
STAGES_OF = [(stage,) for stage in STAGES] + [record.STAGES]


def other(leaf: str) -> Any:
    """Another value than the default one, which the setting may have."""
    section: type[BaseModel] = Params
    *sections, name = leaf.split(".")
    for key in sections:
        section = section.model_fields[key].annotation  # type: ignore[assignment]
    value, kinds = VALUES[leaf], get_args(section.model_fields[name].annotation)
    if isinstance(value, str):
        return next((kind for kind in kinds if kind != value), None) or TEXT.get(leaf, "elsewhere")
    if isinstance(value, bool):
        return not value
    if isinstance(value, list):
        return [value[0] / 2, value[1]]
    return value + 1 if isinstance(value, int) else NUMBERS.get(leaf, value / 2 or 0.5)


@pytest.mark.parametrize("parallel", ["ddp", "elastic"])
@pytest.mark.parametrize("stages", STAGES_OF, ids="+".join)
def test_a_setting_changes_an_identity_exactly_if_an_output_can_change(stages: tuple[str, ...], parallel: str) -> None:
    """test_tracked.py shows that no output depends on another one. Elastic: the number of processes changes none."""
    config = params.with_values(Params(), {"train.parallel": parallel})
    plain = identity.digest(identity.settings(config, stages))
    decisive = {
        leaf
        for leaf in LEAVES
        if identity.digest(identity.settings(params.with_values(config, {leaf: other(leaf)}), stages)) != plain
    }
    unused = {"run.processes"} if parallel == "elastic" else set()
    assert decisive == {leaf for stage in stages for leaf in tracked(stage)} - unused


@pytest.mark.parametrize("part", ["train.lr", "data", "code", "versions"])
def test_each_part_decides(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings, data, code, and what a caller adds. A setting that is varied does not."""
    monkeypatch.chdir(PROJECT)

    def digest(lr: float = 0.1, data: str = "", code: str = "", versions: str = "", varied: str = "") -> str:
        config = params.with_values(Params(), {"train.lr": lr})
        return identity.digest(
            identity.parts(config, identity.TRAIN, {"a": data}, {"b": code}, [varied], versions=versions)
        )

    other_value: dict[str, Any] = {"lr": 0.2} if part == "train.lr" else {part: "other"}
    assert digest(**other_value) != digest()
    assert digest(lr=0.2, varied="train.lr") == digest(varied="train.lr")
