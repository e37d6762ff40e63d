"""The recipes of CONTRIBUTING.md, followed to the letter in a copy of the project."""

import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.harness import workspace
from pipeline.studies import workcopy
from tests.conftest import PROJECT

HERE = r"\g<0>"
NAMES = r'"\w+"(?:,\s+"\w+")*'  # of a Literal


@dataclass(frozen=True)
class Edit:
    """A step of a recipe: a place in a file, which does not depend on the number of choices, and what it becomes."""

    file: str
    place: str  # an expression that is once in the file
    new: str  # instead of it; HERE is what was there

    @property
    def line(self) -> str:
        """What the recipe says about it, word for word."""
        return self.new.replace(HERE, "").strip(" ,\n")


DOCS = "tests/test_documents.py::test_the_generated_parts_are_up_to_date"
FLOOR = "  lr_floor: 0.0               # every step has at least this fraction of lr: 0 to 1"

# Heading → its steps. A block of Python in the recipe is a test, which is added to tests/test_schedule.py.
RECIPES: dict[str, tuple[Edit, ...]] = {
    "How to add a choice to an option": (
        Edit("pipeline/learning/schedule.py", r'^            "constant": ',
             f'            "linear": 1 - (1 - self.final) * progress,\n{HERE}'),
        Edit("pipeline/config/params.py", rf"    schedule: Literal\[{NAMES}", f'{HERE}, "linear"'),
    ),
    "How to add a param": (
        Edit("params.yaml", "  final_lr: ", f"{FLOOR}\n{HERE}"),
        Edit("results/demo/params.yaml", "  final_lr: ", f"{FLOOR}\n{HERE}"),
        Edit("pipeline/config/params.py", "    final_lr:", f"    lr_floor: Share = 0.0\n{HERE}"),
        Edit("pipeline/learning/schedule.py", r"base \* schedule\.lr_factor\(step\)",
             "base * max(settings.lr_floor, schedule.lr_factor(step))"),
    ),
    "How to add a loss": (
        Edit("tests/test_loss.py", '^    "cross_entropy": lambda p:',
             f'    "poly": lambda p: -np.log(p) + 1 - p,\n{HERE}'),
        Edit("pipeline/learning/choices.py", '^    "cross_entropy": ',
             f'    "poly": lambda logits: loss.cross_entropies(logits) + 1 - logits.softmax(1),\n{HERE}'),
        Edit("pipeline/config/params.py", rf"    loss: Literal\[{NAMES}", f'{HERE}, "poly"'),
    ),
}  # fmt: skip


def section(heading: str) -> str:
    """The text of a recipe."""
    (text,) = re.findall(rf"^## {heading}\n(.*?)(?=^## )", (PROJECT / "CONTRIBUTING.md").read_text(), re.M | re.S)
    return str(text)


def follow(folder: Path, heading: str) -> None:
    """Write the recipe's test into a copy of the project, and do its steps. It has file and line of each of them."""
    recipe = section(heading)
    for test in re.findall(r"```python\n(.*?)```", recipe, re.S):
        with (folder / "tests/test_schedule.py").open("a") as file:
            file.write("\n\n" + re.sub(r"^   ", "", test, flags=re.M).rstrip() + "\n")
    for edit in RECIPES[heading]:
        text = (folder / edit.file).read_text()
        assert edit.line not in text, f"{edit.file} has {edit.line} now: give the recipe and this test another example"
        assert len(re.findall(edit.place, text, re.M)) == 1, edit
        assert re.search(rf"^\d\. .*`{edit.file}`(: the same line|.*{re.escape(edit.line)})", recipe, re.M), edit
        (folder / edit.file).write_text(re.sub(edit.place, edit.new, text, flags=re.M))


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return workspace.call(folder, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments)


@pytest.mark.nightly("runs the tests that the recipes name at their ends, and the linters of Python: three minutes")
def test_the_recipes_end_green(tmp_path: Path) -> None:
    """Whoever does the steps of all recipes and `make docs`, and no more, passes the tests that they name."""
    folder = tmp_path / "project"
    workcopy.copy_files(workcopy.project_files(PROJECT), PROJECT, folder)
    if (PROJECT / ".mypy_cache").is_dir():  # of `make lint`: then mypy reads again what the recipes change
        shutil.copytree(PROJECT / ".mypy_cache", folder / ".mypy_cache")
    tests = dict[str, None]()
    for heading in RECIPES:
        follow(folder, heading)
        (command,) = re.findall(r"Check: `python -m pytest ([^`]+) -m \"not slow\"`", section(heading))
        tests |= dict.fromkeys(shlex.split(command))
    assert run(folder, DOCS).returncode == 1
    done = workspace.call(folder, sys.executable, "-m", "tests.documents")
    assert done.returncode == 0, done.stderr
    done = run(folder, *tests, "-m", "not slow")
    assert done.returncode == 0, done.stdout
    for linter in (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]):
        done = workspace.call(folder, sys.executable, "-m", *linter)
        assert done.returncode == 0, done.stdout
