"""A working checkpoint that is damaged, or that another program wrote, is named in one line and never run as code."""

import hashlib
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from pipeline.base.errors import UserError
from pipeline.config import params
from pipeline.learning import state
from pipeline.learning.loop import Learner, Totals
from pipeline.loader.storage import Dataset
from pipeline.running import checkpoint, resume, runs
from pipeline.running.job import Job
from pipeline.running.runs import Run
from tests.conftest import change, on_cpu, read_params
from tests.helpers.pickles import Bomb
from tests.helpers.refusals import refuses
from tests.helpers.trainings import ALONE

STEPS = 4
OURS, OTHER = "1" * 64, "2" * 64  # fingerprints of runs


def learner() -> Learner:
    config = params.parse(on_cpu(read_params()))
    return state.make_learner(config, state.make_model(config, ("a", "b"), ALONE), {"a": 1, "b": 1}, ALONE)


def job(folder: Path) -> Job:
    """A job of STEPS steps for saving and resuming, which need no images and no store."""
    config: Any = params.parse(change(on_cpu(read_params()), train__epochs=STEPS, train__batch_size=2))
    packed = SimpleNamespace(rows=lambda split: range(2))
    return Job(config, cast(Dataset, SimpleNamespace(packed=packed)), ALONE, Run(folder, OURS))


@pytest.fixture(scope="module")
def content_of_run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The content of a checkpoint."""
    folder = tmp_path_factory.mktemp("run")
    about = job(folder)
    resume.save_state(about, learner(), Totals.zero(ALONE.device, 1), state.Progress(step=3), about.run.checkpoint)
    return checkpoint.load(folder / runs.CHECKPOINT)


def test_the_checkpoint_before_the_newest_is_kept(tmp_path: Path) -> None:
    """A state that stays (run.keep_states) has none."""
    about = job(tmp_path)
    for path in (about.run.checkpoint, tmp_path / "epoch-0001.pt"):
        for step in (3, 4):
            resume.save_state(about, learner(), Totals.zero(ALONE.device, 1), state.Progress(step=step), path)
    working = {runs.CHECKPOINT, f"previous-{runs.CHECKPOINT}"}
    assert {path.name for path in tmp_path.iterdir()} == {*working, "epoch-0001.pt"}


def resume_in(folder: Path) -> state.Progress:
    return resume.resume(job(folder), learner(), Totals.zero(ALONE.device, 1))


@pytest.mark.parametrize(
    "changes",
    [
        {"progress": {"step": 0}}, {"progress": {"step": STEPS}}, {"model": None}, {"model": 5}, {"model": {}},
        {"optimizer": [1]}, {"totals": torch.zeros(0)}, {"ema": [torch.zeros(1)]}, {"progress": {"step": "x"}},
        {"progress": {"step": 1, "never": 1}}, {"progress": {"step": STEPS + 1}}, {"progress": {"step": -5}},
        {"hardware": {}}, {"hardware": 7}, {"added": 1}, {"fingerprint": 7},
    ],
    ids=str,
)  # fmt: skip
def test_a_checkpoint_with_another_content_is_named(
    content_of_run: dict[str, Any], tmp_path: Path, changes: dict[str, Any]
) -> None:
    """With a correct digest and unexpected content it is refused. The first and the last step are in the run."""
    content = {key: value for key, value in {**content_of_run, **changes}.items() if value is not None}
    checkpoint.save(tmp_path / runs.CHECKPOINT, content)
    if changes in ({"progress": {"step": 0}}, {"progress": {"step": STEPS}}):
        assert resume_in(tmp_path).step == changes["progress"]["step"]
        return
    with pytest.raises(UserError) as refused:
        resume_in(tmp_path)
    faults = {(fault.key, fault.kind) for fault in refused.value.faults}
    assert faults in ({(str(tmp_path / runs.CHECKPOINT), "damaged")}, {(str(tmp_path), "differs")})  # of the hardware


def test_a_resume_on_other_hardware_is_refused(content_of_run: dict[str, Any], tmp_path: Path) -> None:
    """The checkpoint records what decides bits. A difference is named."""
    hardware = {**content_of_run["hardware"], "device": "Another CPU"}
    checkpoint.save(tmp_path / runs.CHECKPOINT, {**content_of_run, "hardware": hardware})
    with refuses((tmp_path, "differs")) as refused:
        resume_in(tmp_path)
    assert "'Another CPU'" in str(refused.value)


@pytest.mark.parametrize("path", [runs.CHECKPOINT, f"previous-{runs.CHECKPOINT}"])
def test_a_checkpoint_of_another_run_is_refused(content_of_run: dict[str, Any], tmp_path: Path, path: str) -> None:
    """Its seed or its learning rate may be another: nobody trains on in it, wherever its file was copied from."""
    checkpoint.save(tmp_path / path, {**content_of_run, "fingerprint": OTHER})
    with refuses((tmp_path / runs.CHECKPOINT, "differs")) as refused:
        resume_in(tmp_path)
    (fault,) = refused.value.faults
    assert [OTHER[:16] in fault.value, OURS[:16] in fault.reason] == [True, True]
    checkpoint.save(tmp_path / runs.CHECKPOINT, content_of_run)
    assert resume_in(tmp_path).step == 3


@pytest.mark.parametrize("content", [b"a folder", b"", b"x", b"PK\x03\x04", "list", "bomb"], ids=str)
def test_a_checkpoint_that_something_else_wrote_is_damaged(tmp_path: Path, content: bytes | str) -> None:
    """No code in it runs, and the earlier checkpoint is used, if there is one."""
    buffer = io.BytesIO()
    if isinstance(content, str):
        torch.save({"model": Bomb()} if content == "bomb" else [1, 2], buffer)
        content = buffer.getvalue()
    if content == b"a folder":  # it is not treated as a missing checkpoint
        (tmp_path / runs.CHECKPOINT).mkdir()
    else:
        (tmp_path / runs.CHECKPOINT).write_bytes(content + hashlib.sha256(content).digest())
    with refuses((tmp_path / runs.CHECKPOINT, "damaged")):
        resume.newest_checkpoint(tmp_path / runs.CHECKPOINT, "remove it")
    before = checkpoint.previous(tmp_path / runs.CHECKPOINT)
    (tmp_path / runs.CHECKPOINT).replace(before)
    (tmp_path / runs.CHECKPOINT).write_bytes(b"x" * 1000)
    with refuses((f"{tmp_path / runs.CHECKPOINT}, {before}", "damaged")):
        resume.newest_checkpoint(tmp_path / runs.CHECKPOINT, "remove it")
    (tmp_path / runs.CHECKPOINT).unlink()
    checkpoint.save(tmp_path / runs.CHECKPOINT, {"step": 1})
    assert resume.newest_checkpoint(tmp_path / runs.CHECKPOINT, "remove it") == {"step": 1}
    assert not list(tmp_path.glob("**/exploded"))
    assert not Path("exploded").exists()
