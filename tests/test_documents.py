"""The documents name what exists, and their generated parts are up to date."""

import ast
import re
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.documents import parts

DOCUMENTS = (
    "README.md",
    "README.zh.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    *(f"docs/{p.name}" for p in sorted(PROJECT.glob("docs/*.md"))),
)
FOLDERS = "pipeline|tests|benchmarks|docs|docker|requirements|results|.github"


@pytest.mark.parametrize("document", parts.DOCUMENTS)
def test_the_generated_parts_are_up_to_date(document: str) -> None:
    """The tables of results, figures, ways, and pairs of choices that do not work together."""
    assert parts.filled(document) == (PROJECT / document).read_text(), "run: make docs"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_names_files_that_exist(document: str) -> None:
    """Every relative link of a document, and every path in code style, is a file or a folder of the project."""
    path = PROJECT / document
    text = path.read_text()
    links = re.findall(r"\]\((?!https?://|\.\./\.\./actions/)([^)#]+)", text)
    paths = re.findall(rf"`((?:{FOLDERS})/[\w./*-]*)`", text)
    assert [link for link in links if not (path.parent / link).exists()] == []
    assert [name for name in paths if not list(PROJECT.glob(name))] == []


def names(file: Path) -> set[str]:
    """The names of all functions, classes, methods and constants that a Python file defines."""
    defined = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            defined |= {target.id for target in targets if isinstance(target, ast.Name)}
    return defined


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_names_functions_and_tests_that_exist(document: str) -> None:
    """What follows a file (`file.py`: `one`, `two`) is defined there; a test is named by a part of its name."""
    for file, listed in re.findall(r"`([\w./]+\.py)`: (`[\w.]+`(?:, `[\w.]+`)*)", (PROJECT / document).read_text()):
        (path,) = [PROJECT / folder / file for folder in ("", "tests") if (PROJECT / folder / file).is_file()]
        tests = " ".join(name for name in names(path) if name.startswith("test_"))
        for name in re.findall(r"`([\w.]+)`", listed):
            assert names(path) >= set(name.split(".")) or name in tests, f"{document}: {file} has no {name}"
