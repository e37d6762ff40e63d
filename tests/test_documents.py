"""The documents name what exists, and their generated parts are up to date."""

import ast
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from pipeline.checks import validity
from pipeline.checks.machine import Machine
from pipeline.command_line import COMMANDS, parse
from pipeline.config import params
from tests.conftest import PROJECT
from tests.documents import parts
from tests.documents.markdown import LINK, anchors, commands
from tests.helpers.settings import LEAVES

TOP = ("README.md", "README.zh.md", "CONTRIBUTING.md", "SECURITY.md")
DOCUMENTS = (*TOP, *(f"docs/{p.name}" for p in sorted(PROJECT.glob("docs/*.md"))))
FOLDERS = "pipeline|tests|benchmarks|docs|docker|requirements|results|.github"


@pytest.mark.parametrize("document", parts.generated())
def test_the_generated_parts_are_up_to_date(document: str) -> None:
    """`make docs` writes them."""
    assert parts.generated()[document]() == (PROJECT / document).read_text(), "run: make docs"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_names_files_and_headings_that_exist(document: str) -> None:
    """Every relative link, with its heading, and every path in code style is there."""
    path = PROJECT / document
    text = path.read_text()
    paths = re.findall(rf"`((?:{FOLDERS})/[\w./*-]*)`", text)
    assert [name for name in paths if not list(PROJECT.glob(name))] == []
    for link in LINK.findall(text):
        file, _, anchor = link.partition("#")
        if "://" in link or file.startswith("../../actions/"):
            continue
        target = path.parent / file if file else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), f"{document}: no heading {link}"


TARGETS = set(re.findall(r"^([\w-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
TEMPLATES = [str(path.relative_to(PROJECT)) for path in sorted((PROJECT / ".github").glob("**/*.md"))]


@pytest.mark.parametrize("document", [*DOCUMENTS, *TEMPLATES, "results/README.md", "params.yaml", "docs/sweep.yaml"])
def test_a_document_names_commands_that_exist(document: str) -> None:
    """Every target of make, and every command of the program with its options and arguments."""
    for line in commands((PROJECT / document).read_text()):
        for command in re.split(r"&&|;|\||\s>\s", line):
            if target := re.match(r"\s*(?:\w+=\S+ )*make ([\w-]+)", command):
                assert target[1] in TARGETS, command
            if call := re.search(r"(?:^|\s)perennial ([a-z].*)", command):
                check(shlex.split(call[1]))


def check(words: list[str]) -> None:
    """Fails if the program has no such command, or if the command does not take these arguments."""
    name, *rest = words
    assert name in COMMANDS, words
    assert "-m pipeline" not in words
    if rest:  # a command by its name alone may lack what it needs
        parse(name, [re.sub(r"^[A-Z]$", "1", word) for word in rest])


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if name != "CONTRIBUTING.md"])
def test_a_document_names_settings_that_exist(document: str) -> None:
    """Every `section.key`, and every `section.key: value`. The recipes of CONTRIBUTING.md add settings."""
    sections = "|".join({leaf.partition(".")[0] for leaf in LEAVES})
    named = re.findall(rf"`((?:{sections})\.[a-z0-9_.]+)(?:: [^`]*)?`", (PROJECT / document).read_text())
    tables = {leaf.rpartition(".")[0] for leaf in LEAVES}
    assert {name for name in named if not name.endswith((".md", ".csv"))} <= {*LEAVES, *tables}


def test_a_message_names_a_command_that_exists() -> None:
    """Every command of the program that a text in pipeline/ names."""
    for path in (PROJECT / "pipeline").rglob("*.py"):
        for name in re.findall(r"\bperennial ([a-z][a-z-]+)", path.read_text()):
            assert name in COMMANDS, f"{path}: {name}"


def names(file: Path) -> set[str]:
    """The names of all functions, classes, methods and constants that a Python file defines."""
    result = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            result.add(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            result |= {target.id for target in targets if isinstance(target, ast.Name)}
    return result


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_names_functions_and_tests_that_exist(document: str) -> None:
    """What follows a file (`file.py`: `one`, `two`) is defined there; a test is named by a part of its name."""
    for file, listed in re.findall(r"`([\w./]+\.py)`: (`[\w.]+`(?:, `[\w.]+`)*)", (PROJECT / document).read_text()):
        (path,) = [PROJECT / folder / file for folder in ("", "tests") if (PROJECT / folder / file).is_file()]
        tests = " ".join(name for name in names(path) if name.startswith("test_"))
        for name in re.findall(r"`([\w.]+)`", listed):
            assert names(path) >= set(name.split(".")) or name in tests, f"{document}: {file} has no {name}"


# docs/from-the-tutorials.md: every line of params.yaml in it is accepted on a machine that has what it needs.
PAGE = (PROJECT / "docs/from-the-tutorials.md").read_text()
GPUS = Machine(cuda_devices=8, apex="usable", compiler=True)
# What a row is added to: several processes, and no choice that excludes others.
BASE: dict[str, Any] = {"train.precision": "fp32", "train.parallel": "ddp", "run.processes": 8}
ROWS = re.findall(r"^\| (.+?) \| (`(?:data|paths|train|run)\..+?`) \|", PAGE, re.MULTILINE)


def test_every_row_is_read() -> None:
    """Two rows need no line."""
    assert len(ROWS) + 2 == PAGE.partition("|---|---|---|---|\n")[2].partition("\n\n")[0].count("\n| ") + 1


@pytest.mark.parametrize(("there", "here"), ROWS, ids=[there for there, _ in ROWS])
def test_the_lines_of_a_row_are_accepted(there: str, here: str) -> None:
    """On eight GPUs with Apex; a row of Apex needs the container, and no other one does."""
    lines = {key: YAML(typ="safe").load(value) for key, value in re.findall(r"`(\w+\.\w+): (.+?)`", here)}
    config = params.with_values(params.Params(), BASE | lines)
    assert validity.faults(config, GPUS) == []
    assert bool(validity.apex_choices(config.train)) is ("opt-level" in there or "apex" in there)
