"""Params are typed, frozen values; every fault is named with its path, its value and what is allowed."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dvc.utils.hydra import apply_overrides
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pipeline.base.errors import UserError
from pipeline.config import document, params, upgrade
from tests.conftest import PROJECT, change, read_params


def refusal(raw: Any) -> list[str]:
    with pytest.raises(UserError) as caught:
        params.parse(raw)
    return str(caught.value).splitlines()


def test_params_are_written_as_dvc_writes_them(tmp_path: Path) -> None:
    """`dvc exp run -S` writes the whole file again. It changes the lines of the values that it sets, and no other."""
    path, text = tmp_path / "params.yaml", (PROJECT / "params.yaml").read_text()
    path.write_text(text)
    apply_overrides(path, ["train.lr=0.05", "train.betas=[0.8,0.99]", "train.epochs=7", "split.fractions.val=0.2"])
    changed = path.read_text()
    assert params.load(path).train.betas == (0.8, 0.99)
    assert len(set(changed.splitlines()) - set(text.splitlines())) == 5
    apply_overrides(path, ["train.lr=0.1", "train.betas=[0.9,0.999]", "train.epochs=30", "split.fractions.val=0.1"])
    assert path.read_text() == text


def test_lint_accepts_what_dvc_writes(tmp_path: Path) -> None:
    """Even a text so long that DVC puts it on a line of its own."""
    path = tmp_path / "params.yaml"
    path.write_text((PROJECT / "params.yaml").read_text())
    long = "a" * 90
    apply_overrides(path, [f"data.url=https://{long}", f"train.weights=data/{long}.pth", "train.crop_scale=[0.2,1.0]"])
    lint = [sys.executable, "-m", "yamllint", "--strict", "--config-file", str(PROJECT / ".github/yamllint.yaml"), "."]
    done = subprocess.run(lint, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_default_params_are_the_cards() -> None:
    """The committed params train ResNet-34 at 224 pixels for 30 epochs with Apex O1 and Apex DDP."""
    train = params.load(PROJECT / "params.yaml").train
    assert (train.model, train.crop, train.epochs) == ("resnet34", 224, 30)
    assert (train.device, train.precision, train.parallel, train.memory_format) == (
        "cuda",
        "O1",
        "apex_ddp",
        "contiguous",
    )


def test_a_missing_setting_has_its_default_value(raw: dict[str, Any]) -> None:
    """A setting, a table and a section that params.yaml lacks have the values of defaults.yaml."""
    whole = params.parse(raw)
    for lacking in (
        {**raw, "train": {key: value for key, value in raw["train"].items() if key != "lr"}},
        {**raw, "data": {key: value for key, value in raw["data"].items() if key != "synthetic"}},
        {key: value for key, value in raw.items() if key != "run"},
        {**raw, "split": {**raw["split"], "fractions": {"train": 0.8}}},
    ):
        assert params.parse(lacking) == whole


def test_the_defaults_are_the_params_that_come_with_the_project() -> None:
    """defaults.yaml has the same settings, comments and order as params.yaml. Copy params.yaml to it after a change."""

    def without_values(path: Path) -> list[str]:
        return [re.sub(r": .*?(?=  #|$)", ":", line) for line in path.read_text().splitlines()]

    assert without_values(upgrade.DEFAULTS) == without_values(PROJECT / "params.yaml")


def test_a_default_value_in_the_code_is_that_of_the_file() -> None:
    """A section that code builds by itself has the same value as a params.yaml that lacks the setting."""
    values = document.read(upgrade.DEFAULTS)
    found = {
        (section, name): field.default
        for section, table in params.Params.model_fields.items()
        for name, field in (table.annotation.model_fields if table.annotation else {}).items()
        if not field.is_required()
    }
    assert found == {(section, name): values[section][name] for section, name in found}


@given(st.sets(st.integers(0, 200), max_size=12))
def test_an_upgrade_writes_the_missing_lines_where_they_belong(dropped: set[int]) -> None:
    """Any lines of settings are removed. The upgrade adds them, with their comments, and gives the same file."""
    lines = upgrade.DEFAULTS.read_text().splitlines(keepends=True)
    settings = [number for number, line in enumerate(lines) if re.match(r"  (?!size)\w+: [^ >]", line)]
    removed = {settings[number % len(settings)] for number in dropped}
    text = "".join(line for number, line in enumerate(lines) if number not in removed)
    assert upgrade.with_missing_lines(text) == "".join(lines)


def test_an_upgrade_says_what_it_added(tmp_path: Path) -> None:
    """The added settings are named, other lines stay as they are, and a second upgrade changes nothing."""
    path = tmp_path / "params.yaml"
    path.write_text("train:\n  epochs: 7  # mine\n  lr: 0.5\n")
    note = upgrade.upgrade(path)
    assert note.startswith(f"{path}: added with the default values: paths, data, split, prepare, train.seed, ")
    assert {"  epochs: 7  # mine", "  lr: 0.5"} <= set(path.read_text().splitlines())
    config = params.load(path)
    assert (config.train.epochs, config.train.lr, config.train.momentum) == (7, 0.5, 0.9)
    text = path.read_text()
    assert upgrade.upgrade(path) == f"{path}: every setting is there"
    assert path.read_text() == text


def test_a_section_without_a_line_can_be_written() -> None:
    """`run:` alone is a table without settings, as for reading. Writing a setting gives it its first line."""
    assert document.rewritten("run:\n", {"run.processes": 2}) == "run:\n  processes: 2\n"


@pytest.mark.parametrize("arguments", [[], ["--upgrade"]])
def test_a_file_that_is_no_table_is_refused(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty params.yaml has no setting, so nothing says that every setting is there."""
    (tmp_path / "params.yaml").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="not a table of sections"):
        params.print_params(arguments)


def test_an_upgrade_refuses_tables_in_braces() -> None:
    """Such a table has no place for a line; the refusal names the file to copy the lines from."""
    with pytest.raises(
        UserError, match=r"params.yaml: .* cannot be added here; .* from pipeline/config/defaults.yaml by hand"
    ):
        upgrade.with_missing_lines("train: {epochs: 7}\n")


@pytest.mark.parametrize(
    "folder", sorted((PROJECT / "results").glob("*/params.yaml")), ids=lambda path: path.parent.name
)
def test_recorded_params_can_be_run(folder: Path) -> None:
    """The params of each recorded result are accepted, with defaults for settings that came later.

    DVC knows no default. The settings that dvc.yaml names one by one, or inserts into a path, are in each of the files.
    """
    assert isinstance(params.load(folder), params.Params)
    text = (PROJECT / "dvc.yaml").read_text()
    named = re.findall(r"^ +- ([a-z_]+\.[a-z0-9_.]+)$", text, re.MULTILINE) + re.findall(r"\$\{([a-z_.]+)\}", text)
    assert {"data.sha256", "prepare.size", "paths.inbox", "train.parallel"} <= set(named)
    raw = read_params(folder)
    for name in named:
        section, *keys = name.split(".")
        value = raw[section]
        for key in keys:
            value = value[key]


def test_params_are_frozen() -> None:
    """A value cannot be changed after reading."""
    config = params.load(PROJECT / "params.yaml")
    with pytest.raises(ValidationError):
        config.train.lr = 1.0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"train__parallel": "ddpp"},
         "train.parallel: 'ddpp' is not allowed; allowed: single, dp, ddp, apex_ddp, elastic"),
        ({"train__lr": "0.1"}, "train.lr: '0.1' is not allowed; allowed: a number"),
        ({"train__lr": 0}, "train.lr: 0 is not allowed; allowed: greater than 0"),
        ({"train__lr": float("nan")}, "train.lr: nan is not allowed; allowed: a finite number"),
        ({"train__epochs": 1.5}, "train.epochs: 1.5 is not allowed; allowed: a whole number"),
        ({"train__epochs": True}, "train.epochs: True is not allowed; allowed: a whole number"),
        ({"train__nesterov": "yes"}, "train.nesterov: 'yes' is not allowed; allowed: a boolean"),
        ({"train__crop_scale": [0.1, 0.2, 0.3]},
         "train.crop_scale: [0.1, 0.2, 0.3] is not allowed; allowed: a list of 2"),
        ({"run__processes": 0}, "run.processes: 0 is not allowed; allowed: greater than or equal to 1"),
        ({"paths__images": "/tmp/images"},
         "paths.images: '/tmp/images' is not allowed; "
         "allowed: a path inside the project, of letters, digits, '.', '_', '-' and '/', with names of at most 200"),
        ({"paths__images": "a/../../b"},
         "paths.images: 'a/../../b' is not allowed; "
         "allowed: a path inside the project, of letters, digits, '.', '_', '-' and '/', with names of at most 200"),
        ({"data__url": "ftp://x/y"}, "data.url: 'ftp://x/y' is not allowed; allowed: an https:// or file:// address"),
        ({"split__sed": 1},
         "split.sed: unknown key (value 1); did you mean 'seed'?; "
         "allowed: seed, fractions, folds, fold, duplicates, phash_distance, group, stratify, min_side, max_pixels, "
         "max_unreadable"),
        ({"nonsense": {}},
         "nonsense: unknown key (value {}); allowed: paths, data, split, prepare, train, evaluate, run"),
    ],
)  # fmt: skip
def test_a_fault_is_named(raw: dict[str, Any], changes: dict[str, Any], sentence: str) -> None:
    """One wrong value gives one line: its path, the value, what is allowed."""
    assert refusal(change(raw, **changes)) == [sentence]


def test_all_faults_are_named_at_once(raw: dict[str, Any]) -> None:
    """Several wrong values and a typo are reported together."""
    lines = refusal(change(raw, train__lr=-1, train__devices="cpu", run__launcher="mpirun"))
    assert lines == [
        "train.lr: -1 is not allowed; allowed: greater than 0",
        next(
            line
            for line in lines
            if line.startswith("train.devices: unknown key (value 'cpu'); did you mean 'device'?")
        ),
        "run.launcher: 'mpirun' is not allowed; allowed: torchrun, spawn, slurm",
    ]


def test_numbers_are_read_as_dvc_reads_them(tmp_path: Path) -> None:
    """`lr: 1e-4` is a number, as for DVC's parser, and not text, as for PyYAML."""
    path = tmp_path / "params.yaml"
    text = (PROJECT / "params.yaml").read_text()
    path.write_text(text.replace("lr: 0.1 ", "lr: 1e-4 ").replace("  lr: 0.1\n", "  lr: 1e-4\n"))
    assert params.load(path).train.lr == 1e-4


@pytest.mark.parametrize("text", ["", "- 1", "train: {", "a: 1\na: 2", "\xff\xfe"])
def test_a_broken_file_is_one_line(tmp_path: Path, text: str) -> None:
    """A file that is not a table, not YAML, or has a key twice is refused in one line that names the file."""
    path = tmp_path / "params.yaml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError) as caught:
        params.load(path)
    assert str(caught.value).startswith(("params.yaml: ", f"{path}: "))
    assert "\n" not in str(caught.value)


def test_choices_stand_beside_their_keys() -> None:
    """Every key with choices lists exactly them in its comment in params.yaml."""
    comments = {
        line.split(":")[0].strip(): line.split("#", 1)[1]
        for line in (PROJECT / "params.yaml").read_text().splitlines()
        if ":" in line and "#" in line and not line.startswith("#")
    }
    choices = params.Params.model_json_schema()["$defs"]
    listed = {
        key: field["enum"]
        for section in choices.values()
        for key, field in section["properties"].items()
        if "enum" in field
    }
    assert len(listed) >= 8
    for key, allowed in listed.items():
        said = re.split(r"[(;]", comments[key])[0]
        assert [word.strip() for word in said.split("|")] == allowed, key


def test_the_params_file_of_the_project_has_every_key(raw: dict[str, Any]) -> None:
    """params.yaml has every key, because the code has no defaults."""
    assert params.parse(raw).model_dump(mode="json") == {**read_params()} | params.parse(raw).model_dump(mode="json")
    assert set(raw) == set(params.Params.model_fields)
