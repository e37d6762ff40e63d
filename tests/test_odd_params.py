"""Any content of params.yaml is either accepted, or refused with the key, the value and what is allowed."""

import subprocess
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from pipeline.base.errors import UserError
from pipeline.base.text import visible
from pipeline.checks import validity
from pipeline.checks.machine import Machine
from pipeline.config import params
from pipeline.config.params import Params
from tests.conftest import PROJECT

HERE = Machine(cuda_devices=0, apex="missing", compiler=True, cores=2, project="/home/me/project")


def test_the_projects_own_files_are_known() -> None:
    """validity.RESERVED has the outputs of stages, and every name that Git tracks at the top, except data."""
    assert {"data/corrections.csv", "data/images", "models"} <= validity.RESERVED
    names = subprocess.run(["git", "ls-files"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    tops = {name.split("/")[0] for name in names.splitlines()}
    if not tops:
        pytest.skip("this copy of the project is in no Git repository")
    assert {top for top in tops if not top.startswith(".")} - {"data"} <= validity.RESERVED


# ---- whatever anybody can write ----

ODD = (
    "", "~", "null", "yes", ".nan", "-.inf", "1e999", "-1e308", "1_000", "0x" + "f" * 40, "9" * 60, "-0", "0o17",
    "2024-05-01", "2024-05-01T10:00:00Z", "2024-99-99", "12:30:45", "!!binary aGVsbG8=", "!!int a", "!!set {a, b}",
    "!x y", "*a", "&a 1", "<<", "'", '"', '"\\ud800"', '"\\x7f"', '"a\\nb"', "a" * 300, "é", "\u2028", "\ufeff",
    "{", "[", "]", "[]", "{}", "[1, [2, {a: 3}]]", "? [a, b]", "{? [a]: 1}", "{[a]: 1}", "{<<: {b: 1}}", "{<<: 1}", "%",
    "@", "`", "|", ">-", "---", "...", "- 1", "\t", "a: b: c",
    '"\\0"', "0x" + "f" * 5000,
)  # fmt: skip
KEYS = (
    "train", "paths", "run", "lr", "inbox", "<<", "1", "~", "? [a]", "2024-05-01", "!!binary aGk=", "é", "",
    '"\\0"', '"\\ud800"',
)  # fmt: skip
scalars = st.sampled_from(ODD) | st.text(max_size=6) | st.integers().map(str) | st.floats().map(repr)
documents = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.lists(st.tuples(st.sampled_from(KEYS), inner), max_size=3).map(
            lambda items: f"{{{', '.join(f'{key}: {value}' for key, value in items)}}}"
        )
    ),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("odd") / "params.yaml"


SETTINGS = [(name, key) for name, section in Params.model_fields.items() for key in section.annotation.model_fields]  # type: ignore[union-attr]


@hypothesis.given(st.sampled_from(SETTINGS), documents)
@hypothesis.settings(max_examples=100)
def test_any_value_of_any_setting_gives_params_or_a_refusal(file: Path, setting: tuple[str, str], text: str) -> None:
    """One value of a valid file is replaced: the result is refused, or validity.faults can check it."""
    section, key = setting
    lines = (PROJECT / "params.yaml").read_text().splitlines()
    start = lines.index(next(line for line in lines if line.startswith(f"{section}:")))
    row = next(row for row in range(start, len(lines)) if lines[row].startswith(f"  {key}:"))
    end = next((row for row in range(row + 1, len(lines)) if not lines[row].startswith(("    ", "  -"))), len(lines))
    check_any(file, [*lines[:row], f"  {key}: {text}", *lines[end:]])


@hypothesis.given(st.lists(st.tuples(st.sampled_from(KEYS), documents), max_size=4))
@hypothesis.settings(max_examples=60)
def test_any_document_gives_params_or_a_refusal(file: Path, items: list[tuple[str, str]]) -> None:
    """Its keys at the top may be anything, too."""
    check_any(file, [f"{key}: {text}" for key, text in items])


def check_any(file: Path, lines: list[str]) -> None:
    """Read and check these lines. No character of a refusal acts on a terminal; any other exception is raised."""
    file.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    try:
        faults = validity.faults(params.load(file), HERE)
    except UserError as error:
        faults = list(error.faults)
    told = [str(fault) for fault in faults]
    assert told == [visible(line) for line in told]
