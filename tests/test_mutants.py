"""The tool that tries wrong changes: which it tries, and which it leaves out."""

import subprocess
import sys
from pathlib import Path

from tests import mutants
from tests.conftest import PROJECT
from tests.equivalent_mutants import EQUIVALENT


def modules() -> list[str]:
    """Every module below pipeline/, as the tool names it."""
    paths = [path.relative_to(PROJECT / "pipeline") for path in (PROJECT / "pipeline").rglob("[!_]*.py")]
    return sorted(".".join(Path(path).with_suffix("").parts) for path in paths)


def test_each_equivalent_change_is_still_in_the_code() -> None:
    """An entry whose statement has changed is removed or written anew: else it hides nothing, or too much."""
    everything = [change for module in modules() for change in mutants.changes(module)]
    statements = {(change.function, mutants.source(change.statement)) for change in everything}
    for one in EQUIVALENT:
        assert any(function == one.function and text.startswith(one.statement) for function, text in statements), one


def test_the_same_seed_selects_the_same_changes_without_equivalent_ones() -> None:
    """Another seed selects others; no selected change is listed as equivalent."""
    chosen = [list(map(str, mutants.select(["training.schedule", "data.duplicates"], 60, seed))) for seed in (0, 0, 1)]
    assert chosen[0] == chosen[1] != chosen[2]
    everything = mutants.select(["data.duplicates"], 10**6, 0)
    assert len(everything) < len(mutants.changes("data.duplicates"))
    assert not any(map(mutants.is_equivalent, everything))


def test_a_module_without_a_test_file_is_refused() -> None:
    """With one line that names the file; else pytest would run all tests."""
    command = [sys.executable, "-m", "tests.mutants", "engine.nothing"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.endswith("engine.nothing: has no test file; needed: tests/test_engine_nothing.py\n")
