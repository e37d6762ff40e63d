"""The demo's record: its dvc.lock, and the figures that belong to it."""

import re
from pathlib import Path

import pytest

from benchmarks.harness import workspace
from pipeline.base import files
from pipeline.commands import demo
from pipeline.studies import record
from pipeline.versioning import children, dvc_lock
from tests.conftest import PROJECT

RESULTS = PROJECT / record.DEMO
RECORDED = dvc_lock.outputs(dvc_lock.read(PROJECT / demo.LOCK))


def test_the_record_has_every_output_of_every_stage() -> None:
    """results/demo/dvc.lock names exactly what dvc.yaml declares as outputs and metrics; no path is of its machine."""
    outputs = {name for stage in workspace.STAGES for name in workspace.declared(stage)}
    assert set(RECORDED) == outputs
    for stage in dvc_lock.read(PROJECT / demo.LOCK).values():
        assert not [path for path in (*stage["deps"], *stage["outs"]) if path.startswith("/") or ".." in path]
    figures = [name for name in demo.COPIED if name.startswith("metrics/")]  # beside it: of the same run
    assert {name: files.md5(RESULTS / name) for name in figures} == {name: RECORDED[name] for name in figures}


def test_an_output_that_differs_is_named_with_both_hashes() -> None:
    """One sentence per output that differs, is new, or is missing; none for equal ones."""
    committed = {"a": "1", "b": "2", "c": "3"}
    assert demo.compare(committed, committed) == []
    lines = demo.compare({"a": "1", "b": "9", "d": "4"}, committed)
    assert [re.findall(r"\b\w\b|none", line) for line in lines] == [[*"b92"], ["c", "none", "3"], ["d", "4", "none"]]


def test_hooks_and_signatures_of_the_user_do_not_end_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are set for every repository, and would sign for `demo@localhost`, of whom nobody has a key."""
    (tmp_path / "pre-commit").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "pre-commit").chmod(0o755)
    settings = f"[commit]\ngpgsign = true\n[gpg]\nprogram = false\n[core]\nhooksPath = {tmp_path}\n"
    (tmp_path / "gitconfig").write_text(settings)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setattr(children, "run", lambda *_, **__: 0)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/a").touch()
    assert demo.run(tmp_path / "copy") == 0


def test_the_demo_has_its_own_params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the project has."""
    monkeypatch.chdir(PROJECT)
    demo.create_copy(tmp_path / "copy")
    assert (tmp_path / "copy/params.yaml").read_bytes() == (RESULTS / "params.yaml").read_bytes()
