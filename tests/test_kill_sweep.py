"""Real kills of a real `dvc repro`, and how a dvc.lock is recognized that one has cut."""

import hashlib
import io
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from benchmarks.harness import workspace
from pipeline.versioning import dvc_lock
from tests.conftest import PROJECT
from tests.faults import kill_sweep


def entry(path: str, **nfiles: int) -> dict[str, Any]:
    """A file in a dvc.lock, or a folder of so many files."""
    md5 = hashlib.md5(path.encode()).hexdigest() + ".dir" * len(nfiles)
    return {"path": path, "hash": "md5", "md5": md5, "size": 4711, **nfiles}


# As DVC writes it.
LOCK = io.StringIO()
YAML().dump({"schema": "2.0", "stages": {
    "one": {"cmd": "python one.py", "deps": [entry("code", nfiles=12), entry("one.py")],
            "params": {"params.yaml": {"one.rate": 0.125, "one.names": ["a", "b"]}},
            "outs": [entry("data/one", nfiles=120)]},
    "two": {"cmd": "python two.py", "deps": [entry("data/one", nfiles=120)], "outs": [entry("two.csv")]},
}}, LOCK)  # fmt: skip


@pytest.mark.nightly("four minutes; make test-ci kills each stage, processes, launchers, and a study under DVC")
def test_killed_at_seeded_moments_it_goes_on_to_the_same_lock() -> None:
    """Five signals at five moments of train: no process stays, no false record, the usual dvc.lock."""
    done = list(kill_sweep.sweep(5, seed=4))
    assert len(done) == 5
    assert not [trial for trial in done if trial.orphans or trial.false_record or not trial.same]


def test_a_cut_lock_is_noticed_or_states_nothing_by_halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dvc.lock cut at any byte, or any other text, is noticed, or each output that is left is the same as before."""
    monkeypatch.chdir(tmp_path)

    def is_accepted(text: str) -> bool:
        dvc_lock.LOCK.write_text(text)
        return not dvc_lock.is_cut()

    lock = LOCK.getvalue()
    assert (is_accepted(lock), is_accepted("a line of text\n")) == (True, False)
    before = YAML(typ="safe", pure=True).load(lock)["stages"]
    accepted = [length for length in range(len(lock)) if is_accepted(lock[:length])]
    assert 0 < len(accepted) < 20
    for length in accepted:
        for stage, row in YAML(typ="safe", pure=True).load(lock[:length])["stages"].items():
            assert all(file in before[stage]["outs"] for file in row.get("outs", [])), lock[:length]


def test_a_lock_has_the_order_of_dvc_yaml(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ran first: the stages have their own bytes."""
    lock = (finished / "dvc.lock").read_text()
    head, *blocks = re.split(r"(?m)^(?=  \w)", lock)
    assert [block.partition(":")[0].strip() for block in blocks] == [*workspace.STAGES]
    monkeypatch.chdir(tmp_path)
    shutil.copy(PROJECT / "dvc.yaml", tmp_path)
    mixed = head + "".join(blocks[3:] + blocks[:3])
    for text in (mixed, lock):
        dvc_lock.LOCK.write_text(text)
        dvc_lock.put_in_order()
        assert dvc_lock.LOCK.read_text() == lock
