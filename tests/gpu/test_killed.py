"""The train stage, killed and started again: the same bytes."""

import os
import signal
from pathlib import Path

import pytest

from benchmarks.harness import workspace
from pipeline.base import files
from pipeline.learning.world import World
from tests.gpu.training import Figures, digest
from tests.helpers import trainings

SMALL = {
    "model": "resnet18", "epochs": 6, "batch_size": 16, "crop": 32, "eval_crop": 32, "eval_resize": 32, "lr": 0.01,
    "shards": 2,
}  # fmt: skip
OFTEN = {"log_steps": 1, "epoch_checkpoint_seconds": 0}


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("precision", "parallel", "optimizer"),
    [("fp16", "single", "sgd"), ("bf16", "elastic", "sgd"), ("O1", "apex_ddp", "fused_sgd")],
)
def test_killed(world: World, precision: str, parallel: str, optimizer: str) -> Figures:
    """`perennial train`, killed in its third epoch and started again, writes the bytes of one that was not killed."""
    way = {"device": world.device.type, "precision": precision, "parallel": parallel, "optimizer": optimizer}
    graphs = {"cuda_graphs": world.device.type == "cuda" and parallel == "elastic"}
    with workspace.temporary_folder("killed") as base:
        photos = workspace.draw_photos(base / "drawn.tar", 60, 48)
        changes: tuple[workspace.Changes, ...] = (
            {"prepare": {"size": 48}, "train": {**SMALL, **way, **graphs}, "run": OFTEN}, photos.params,
        )  # fmt: skip
        whole, killed = base / "whole", base / "killed"
        for folder in (whole, killed):
            workspace.create_prepared(folder, *changes, store=base / "store")
        workspace.run_stage(whole, "train")
        launcher = trainings.start(killed)
        trainings.wait_for_epoch(launcher, killed, 2)
        os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait()
        trainings.wait_for(lambda: not trainings.working_in(killed), "a process outlives its launcher")
        assert not (killed / "models").exists(), "it was killed before its end"
        workspace.run_stage(killed, "train")
        outputs = hashes(whole)
        assert hashes(killed) == outputs, "a training that was killed has other bytes"
    return {"digest": digest(outputs)[:16]}


def hashes(folder: Path) -> dict[str, str]:
    """The SHA-256 of each output of the train stage, by its name."""
    outputs = (folder / name for name in workspace.declared("train"))
    paths = (path for output in outputs for path in (output, *output.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): files.sha256(path) for path in paths}
