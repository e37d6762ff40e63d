"""The recipes of CONTRIBUTING.md, followed to the letter in a copy of the project."""

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.harness import workspace
from pipeline.reruns import workcopy
from tests.conftest import PROJECT

HERE = r"\g<0>"
NAMES = r'"\w+"(?:,\s+"\w+")*'  # of a Literal


@dataclass(frozen=True)
class Edit:
    """A step of a recipe: a place in a file, what it becomes, and the test that fails without the step.

    The place does not depend on how many choices a key has: whoever adds one changes nothing here.
    """

    file: str
    place: str  # an expression that is once in the file
    new: str  # instead of it; HERE is what was there
    noticed: str

    @property
    def said(self) -> str:
        """What the recipe says about it, word for word."""
        return self.new.replace(HERE, "").strip(" ,\n")


ORDER = "tests/test_params.py::test_the_params_file_of_the_project_is_the_defaults"
DOCS = "tests/test_documents.py::test_the_generated_parts_are_up_to_date"
TABLES = "tests/test_ways.py::test_the_tables_have_a_member_for_every_choice"
FLOOR = "  lr_floor: 0.0               # every step has at least this fraction of lr: 0 to 1"

# Heading → its steps. A block of Python in the recipe is a test, which is added to tests/test_schedule.py.
RECIPES: dict[str, tuple[Edit, ...]] = {
    "How to add a choice to an option": (
        Edit("pipeline/training/schedule.py", r'^            "constant": ',
             f'            "linear": 1 - (1 - self.final) * progress,\n{HERE}',
             "tests/test_schedule.py::test_a_line_falls_to_its_end"),
        Edit("pipeline/config/params.py", rf"    schedule: Literal\[{NAMES}", f'{HERE}, "linear"',
             "tests/test_schedule.py::test_a_line_falls_to_its_end"),
    ),
    "How to add a param": (
        Edit("params.yaml", "  final_lr: ", f"{FLOOR}\n{HERE}", ORDER),
        Edit("results/demo/params.yaml", "  final_lr: ", f"{FLOOR}\n{HERE}",
             "tests/test_params.py::test_the_demo_names_every_setting"),
        Edit("pipeline/config/params.py", "    final_lr:", f"    lr_floor: Share = 0.0\n{HERE}", ORDER),
        Edit("pipeline/training/schedule.py", r"base \* schedule\.lr_factor\(step\)",
             "base * max(settings.lr_floor, schedule.lr_factor(step))",
             "tests/test_tracked.py::test_a_stage_uses_every_setting_that_it_tracks[train]"),
    ),
    "How to add a loss": (
        Edit("tests/test_loss.py", '^    "cross_entropy": lambda p:',
             f'    "poly": lambda p: -np.log(p) + 1 - p,\n{HERE}', "tests/test_loss.py"),
        Edit("pipeline/engine/choices.py", '^    "cross_entropy": ',
             f'    "poly": lambda logits: loss.cross_entropies(logits) + 1 - logits.softmax(1),\n{HERE}', TABLES),
        Edit("pipeline/config/params.py", rf"    loss: Literal\[{NAMES}", f'{HERE}, "poly"', TABLES),
    ),
}  # fmt: skip


def section(heading: str) -> str:
    """The text of a recipe."""
    (text,) = re.findall(rf"^## {heading}\n(.*?)(?=^## )", (PROJECT / "CONTRIBUTING.md").read_text(), re.M | re.S)
    return str(text)


def copied(folder: Path) -> Path:
    """A copy of the project as it is now, with numba's compiled code."""
    workcopy.copy_files(workcopy.project_files(PROJECT), PROJECT, folder)
    return folder


def follow(folder: Path, heading: str, forgotten: int = 0) -> None:
    """Write the recipe's test into a copy of the project, and do its steps, but for one (from 1)."""
    for test in re.findall(r"```python\n(.*?)```", section(heading), re.S):
        with (folder / "tests/test_schedule.py").open("a") as file:
            file.write("\n\n" + re.sub(r"^   ", "", test, flags=re.M).rstrip() + "\n")
    for number, edit in enumerate(RECIPES[heading], 1):
        text = (folder / edit.file).read_text()
        assert edit.said not in text, f"{edit.file} has {edit.said} now: give the recipe and this test another example"
        assert len(re.findall(edit.place, text, re.M)) == 1, edit
        if number != forgotten:
            (folder / edit.file).write_text(re.sub(edit.place, edit.new, text, flags=re.M))


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return workspace.call(folder, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments)


@pytest.mark.parametrize("heading", RECIPES)
def test_a_recipe_names_every_file_and_line(heading: str) -> None:
    """A step that the tests below do has its file and its line, word for word, in the recipe."""
    text = section(heading)
    for edit in RECIPES[heading]:
        line = rf"^\d\. .*`{edit.file}`(: the same line|.*{re.escape(edit.said)})"
        assert re.search(line, text, re.M), edit


@pytest.mark.slow("runs the tests that the recipes name at their ends, and the linters of Python: three minutes")
def test_the_recipes_end_green(tmp_path: Path) -> None:
    """Whoever does the steps of all recipes and `make docs`, and no more, passes the tests that they name."""
    folder = copied(tmp_path / "project")
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


@pytest.mark.slow("starts pytest in a copy of the project for each step of each recipe: a minute together")
@pytest.mark.parametrize(
    ("heading", "number"),
    [(heading, number) for heading in RECIPES for number in range(1, len(RECIPES[heading]) + 1)],
)
def test_a_forgotten_step_is_noticed(heading: str, number: int, tmp_path: Path) -> None:
    """Each step is needed: without it one of the tests that the recipe names fails."""
    noticed = RECIPES[heading][number - 1].noticed
    assert noticed.partition("::")[0] in section(heading)
    follow(folder := copied(tmp_path / "project"), heading, forgotten=number)
    done = run(folder, noticed)
    assert done.returncode == 1, done.stdout + done.stderr
