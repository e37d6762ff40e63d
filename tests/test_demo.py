"""The demo's record: its dvc.lock, and the figures that belong to it."""

from pathlib import Path

import pytest

from benchmarks.harness import workspace
from pipeline.base import files
from pipeline.commands import demo
from pipeline.config import params
from pipeline.reruns import record
from pipeline.versioning import dvc_lock
from tests.conftest import PROJECT

RESULTS = PROJECT / record.DEMO
RECORDED = demo.outputs(PROJECT / demo.LOCK)


def test_the_record_has_every_output_of_every_stage() -> None:
    """results/demo/dvc.lock names exactly what dvc.yaml declares as outputs and metrics."""
    declared = {name for stage in workspace.STAGES for name in workspace.declared(stage)}
    assert set(RECORDED) == declared


def test_the_record_names_no_place_of_its_machine() -> None:
    """Every path in the dvc.lock is of a file in the project."""
    for stage in dvc_lock.read(PROJECT / demo.LOCK).values():
        for path in (*stage["deps"], *stage["outs"]):
            assert not Path(path).is_absolute()
            assert ".." not in Path(path).parts


@pytest.mark.parametrize("name", [name for name in demo.COPIED if name.startswith("metrics/")])
def test_a_committed_figure_is_of_the_recorded_run(name: str) -> None:
    """The metrics beside the dvc.lock have the hashes that it says."""
    assert files.md5(RESULTS / name) == RECORDED[name]


def test_an_output_that_differs_is_named_with_both_hashes() -> None:
    """One sentence per output that differs, is new, or is missing; none for equal ones."""
    committed = {"a": "1", "b": "2", "c": "3"}
    assert demo.compare(committed, committed) == []
    assert demo.compare({"a": "1", "b": "9", "d": "4"}, committed) == [
        "b: 9, committed 2",
        "c: none, committed 3",
        "d: 4, committed none",
    ]


def test_the_cause_of_a_difference_is_named() -> None:
    """An older CPU, or one of another architecture; elsewhere it can only be a change."""
    assert "only other code, params or packages (perennial doctor) can be the cause" in demo.cause(())
    expected = "they are for x86-64 CPUs with AVX2 and FMA, and this CPU lacks AVX2 and FMA"
    assert demo.cause(("AVX2", "FMA")) == expected


def test_on_an_older_cpu_the_demo_is_native(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its params differ from the committed ones in this one value. Otherwise they are the committed ones."""
    monkeypatch.chdir(PROJECT)
    demo.create_copy(tmp_path / "portable")
    demo.create_copy(tmp_path / "native", "native")
    assert (tmp_path / "portable/params.yaml").read_bytes() == (RESULTS / "params.yaml").read_bytes()
    ours, theirs = (params.load(tmp_path / name / "params.yaml") for name in ("portable", "native"))
    assert (ours.train.arithmetic, theirs.train.arithmetic) == ("portable", "native")
    assert ours.train.model_copy(update={"arithmetic": "native"}) == theirs.train


def test_the_outputs_of_a_lock_are_those_of_all_its_stages(tmp_path: Path) -> None:
    """Every `outs` entry with its hash, without dependencies, so a comment in the code changes nothing."""
    entry = "    cmd: x\n    deps:\n    - path: code.py\n      md5: {}\n    outs:\n    - path: {}\n      md5: {}\n"
    text = "schema: '2.0'\nstages:\n"
    text += "  one:\n" + entry.format("c0", "a", "a1") + "  two:\n" + entry.format("c0", "b", "b2")
    (tmp_path / "dvc.lock").write_text(text)
    assert demo.outputs(tmp_path / "dvc.lock") == {"a": "a1", "b": "b2"}
