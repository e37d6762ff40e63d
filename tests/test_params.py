"""Params are typed, frozen values; every fault is named with its path, its value and what is allowed."""

import json
import re
from argparse import Namespace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
from dvc.utils.hydra import apply_overrides
from pydantic import ValidationError

from pipeline.base.text import did_you_mean
from pipeline.commands import params as command
from pipeline.config import document, params
from tests.conftest import PROJECT, change, read_params
from tests.helpers.refusals import refuses


def test_params_are_written_as_dvc_writes_them(tmp_path: Path) -> None:
    """`dvc exp run -S` writes the whole file again. It changes the lines of the values that it sets, and no other."""
    path, text = tmp_path / "params.yaml", (PROJECT / "params.yaml").read_text()
    path.write_text(text)
    apply_overrides(path, ["train.lr=0.05", "train.crop_scale=[0.2,0.9]", "train.epochs=7", "split.fractions.val=0.2"])
    new = path.read_text()
    assert params.load(path).train.crop_scale == (0.2, 0.9)
    assert len(set(new.splitlines()) - set(text.splitlines())) == 5
    apply_overrides(path, ["train.lr=0.1", "train.crop_scale=[0.08,1.0]", "train.epochs=30", "split.fractions.val=0.1"])
    assert path.read_text() == text


def test_a_missing_setting_has_its_default_value(raw: dict[str, Any]) -> None:
    """A setting, a table and a section that params.yaml lacks have their default values. They can be written."""
    assert document.updated_text("run:\n", {"run.processes": 2}) == "run:\n  processes: 2\n"
    whole = params.parse(raw)
    for lacking in (
        {**raw, "train": {key: value for key, value in raw["train"].items() if key != "lr"}},
        {**raw, "data": {key: value for key, value in raw["data"].items() if key != "synthetic"}},
        {key: value for key, value in raw.items() if key != "run"},
        {**raw, "run": None, "evaluate": {}},
        {**raw, "split": {**raw["split"], "fractions": {"train": 0.8}}},
    ):
        assert params.parse(lacking) == whole


def test_the_params_are_printed_with_their_defaults(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A setting that the file lacks has its default value, and is named; of many, the first ones are."""
    (here / "params.yaml").write_text("train:\n  lr: 0.5\n")
    assert command.main(Namespace()) == 0
    out, err = capsys.readouterr()
    assert params.parse(json.loads(out)) == params.with_values(params.Params(), {"train.lr": 0.5})
    assert "paths.inbox, data.source, " in err
    assert re.search(r" and \d+ more; the default values are used", err)
    assert " train.lr," not in err


@pytest.mark.parametrize("path", sorted((PROJECT / "results").glob("*/params.yaml")), ids=lambda path: path.parent.name)
def test_recorded_params_can_be_run(path: Path) -> None:
    """With defaults for settings that came later. The demo has all, and each file those that dvc.yaml names: DVC knows
    no default."""
    assert isinstance(params.load(path), params.Params)
    assert path.parent.name != "demo" or params.missing_settings(path) == ""
    text = (PROJECT / "dvc.yaml").read_text()
    names = re.findall(r"^ +- ([a-z_]+\.[a-z0-9_.]+)$", text, re.MULTILINE) + re.findall(r"\$\{([a-z_.]+)\}", text)
    assert {"data.sha256", "prepare.size", "paths.inbox", "train.parallel"} <= set(names)
    raw = read_params(path)
    for name in names:
        reduce(getitem, name.split("."), raw)


def test_params_are_frozen_numbers(tmp_path: Path) -> None:
    """`lr: 1e-4` is a number, as for DVC's parser, and not text, as for PyYAML. A port has 16 bits."""
    for port in (0, 65535):
        (tmp_path / "params.yaml").write_text(f"train:\n  lr: 1e-4\nrun:\n  rendezvous: node0:{port}\n")
        config = params.load(tmp_path / "params.yaml")
        assert (config.train.lr, config.run.rendezvous) == (1e-4, f"node0:{port}")
    with pytest.raises(ValidationError):
        config.train.lr = 1.0


def test_all_faults_are_named_at_once(raw: dict[str, Any]) -> None:
    """Several wrong values and a typo are reported together."""
    with refuses(("train.lr", "value"), ("train.devices", "unknown"), ("run.launcher", "value")) as error:
        params.parse(change(raw, train__lr=-1, train__devices="cpu", run__launcher="mpirun"))
    assert error.value.faults[0].value == "-1"
    assert error.value.faults[2].allowed == "torchrun, spawn, slurm"


@pytest.mark.parametrize(
    ("key", "keys"),
    [
        ("train.devices", ["train.device"]), ("learning_rate", ["train.lr"]), ("train.learning_rate", ["train.lr"]),
        ("epochs", ["train.epochs"]), ("data.num_epochs", ["train.epochs"]), ("split.sed", ["split.seed"]),
        ("train.bs", ["train.batch_size"]), ("batchsize", ["train.batch_size", "evaluate.batch_size"]),
        ("train.processes", ["run.processes"]), ("trian", ["train"]), ("zzz", []), ("", []),
    ],
)  # fmt: skip
def test_an_unknown_key_is_refused_with_the_nearest(raw: dict[str, Any], key: str, keys: list[str]) -> None:
    """A key that is misplaced, abbreviated or written out is found in every section; a typo first in its own."""
    assert document.nearest(key.split("."), params.Params) == keys
    with refuses((key or "''", "unknown")) as error:
        params.parse(change(raw, **{key.replace(".", "__"): 1}))
    assert error.value.faults[0].remedy == did_you_mean(keys)


def test_a_password_in_an_address_is_not_shown(raw: dict[str, Any]) -> None:
    with refuses(("data.url", "value")) as error:
        params.parse(change(raw, data__url="http://me:secret@c.de/f?token=secret"))
    assert "secret" not in str(error.value)


def test_the_params_file_of_the_project_is_the_defaults(raw: dict[str, Any]) -> None:
    """params.yaml as it is committed has every setting, with the default value of the code, in the same order."""
    defaults = params.Params().model_dump(mode="json")
    assert raw == defaults
    assert params.parse(defaults) == params.Params()  # so every default value is allowed
    assert [name for name, _ in document.leaves(raw)] == [name for name, _ in document.leaves(defaults)]
