"""Training: the same samples and gradients for every number of processes, exact resume at the end of an epoch."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import safetensors.torch
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from pipeline.base import files
from pipeline.base.errors import Kind
from pipeline.config import params
from pipeline.learning import collectives, results, schedule, state, validation
from pipeline.learning.loop import Totals
from pipeline.learning.readout import Readout
from pipeline.learning.world import World
from pipeline.loader.storage import Dataset
from pipeline.models import network
from pipeline.running import failures
from pipeline.running import launch as launch_
from pipeline.running.job import Job, check_inputs
from pipeline.running.runs import Run
from tests.conftest import on_cpu, read_params
from tests.helpers.ranks import train
from tests.helpers.refusals import refuses
from tests.helpers.trainings import ALONE, CLASSES, launch, outputs, small_world


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on two processes."""
    lines: dict[str, Any] = {"train__parallel": "ddp", "run__processes": 2, "run__log_steps": 2}
    return train(small_world(tmp_path_factory.mktemp("trained"), **lines))


def test_a_run_leaves_what_it_promises(finished_run: Path) -> None:
    """Weights without metadata, their description, figures, one row per epoch, and provenance; no checkpoint."""
    with safetensors.safe_open(finished_run / "models/model.safetensors", "pt") as weights:
        assert weights.metadata() is None
        assert weights.get_tensor("fc.weight").shape == (3, 1024)
    description = json.loads((finished_run / "models/model.json").read_text())
    assert description["classes"] == list(CLASSES)
    assert description["view"] == {"packed_size": 40, "resize": 36, "crop": 32, "grey": "full", "fit": "none"}
    rows = files.read_csv(finished_run / "metrics/history.csv")
    assert [(row["epoch"], row["step"]) for row in rows] == [("1", "4"), ("2", "9")]
    figures = json.loads((finished_run / "metrics/train.json").read_text())
    assert {name: repr(value) for name, value in figures.items()} == {
        "exported_epoch": "2",
        **{name: rows[-1][name] for name in ("train_loss", "train_accuracy", "val_loss", "val_accuracy")},
    }
    (run,) = (finished_run / "runs").iterdir()
    events, *others = sorted(path.name for path in run.iterdir())
    assert events.startswith("events.out.tfevents.")
    assert others == ["fingerprint", "holder", "lock", "provenance.json"]
    digest = (run / "fingerprint").read_text().strip()
    assert (run.name, len(digest)) == (f"shufflenet_v2_x0_5-fp32-ddp-{digest[:8]}", 64)
    provenance = json.loads((run / "provenance.json").read_text())
    assert (provenance["processes"], provenance["launcher"], provenance["threads"]) == (2, "torchrun", 1)


def test_tensorboard_shows_the_run(finished_run: Path) -> None:
    """The scalars, the grid of training crops and the params can be read back."""
    (board,) = finished_run.glob("runs/*")
    events = EventAccumulator(str(board), size_guidance={"images": 0})
    events.Reload()
    for tag in ("loss/train", "loss/val", "accuracy/val", "learning_rate", "images_per_second", "gpu_memory"):
        assert len(events.Scalars(tag)) >= 2, tag
    assert [event.step for event in events.Scalars("loss/train")] == [2, 4, 6, 8, 9]
    rates = schedule.learning_rates(params.load(finished_run / "params.yaml").train, rows=36)
    shown = [rates[step - 1] for step in (2, 4, 6, 8, 9)]
    assert [event.value for event in events.Scalars("learning_rate")] == pytest.approx(shown)
    history = [float(row["val_accuracy"]) for row in files.read_csv(finished_run / "metrics/history.csv")]
    assert [event.value for event in events.Scalars("accuracy/val")] == pytest.approx(history)
    assert events.Tags()["images"] == ["crops"]
    figures = json.loads((finished_run / "metrics/train.json").read_text())
    for name in ("val_accuracy", "val_loss"):
        assert [event.value for event in events.Scalars(f"exported/{name}")] == pytest.approx([figures[name]])
    (text,) = events.Tensors("params/text_summary")
    assert (finished_run / "params.yaml").read_text() in text.tensor_proto.string_val[0].decode()


def test_a_training_says_what_it_will_do_and_exports_the_best_epoch(tmp_path: Path) -> None:
    """Before the first epoch: the model, the images, the steps, and what they run on. At its end: the accuracy."""
    folder = small_world(tmp_path, train__freeze_backbone=True, train__epochs=4, train__export="best", train__lr=0.02)
    done = launch(folder)
    first, _, later = done.stderr.partition("epoch 1/4: ")
    facts = {line.split()[1]: line for line in first.splitlines()[-5:]}
    assert list(facts) == ["model", "images", "steps", "device", "precision"]
    assert all(value in facts["model"] for value in ("shufflenet_v2_x0_5", "344,867", "3,075"))
    assert "36 train, 12 val, 12 test; 3 classes; 32 × 32" in facts["images"]
    assert "4.5 per epoch × 4 epochs = 18; 8 images" in facts["steps"]
    figures = json.loads((folder / "metrics/train.json").read_text())
    assert f"{figures['val_accuracy']:.4f}" in later.splitlines()[-1]
    accuracies = [float(row["val_accuracy"]) for row in files.read_csv(folder / "metrics/history.csv")]
    best = (accuracies.index(max(accuracies)) + 1, max(accuracies))
    assert (figures["exported_epoch"], figures["val_accuracy"]) == best


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    """The step is named, the exit status is not zero, and nothing is exported."""
    growing: dict[str, Any] = {"train__lr": 1000.0, "train__weight_decay": 1000.0}  # each step: times a million
    done = launch(small_world(tmp_path, **growing, run__log_steps=1), check=False)
    assert done.returncode == 1
    assert re.search(r"train: train\.lr: 1000\.0: .*step 2 ", done.stderr)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "models").exists()


def test_the_best_epoch_has_a_finite_validation_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch whose loss is nan is not exported, whatever its accuracy. If there is no other, the last is refused."""
    config = params.parse(on_cpu(read_params(), train__export="best"))
    job = Job(config, cast(Dataset, None), ALONE, Run(tmp_path, ""))
    learner = state.make_learner(config, state.make_model(config, ("a", "b"), ALONE), {"a": 1, "b": 1}, ALONE)
    totals, progress = Totals.zero(ALONE.device, 1), state.Progress()
    losses = iter([(math.nan, 0.9), (1.0, 0.5), (math.nan, 0.8), (2.0, 0.4)])
    monkeypatch.setattr(validation, "validate", lambda job, learner: next(losses))
    rows = []
    for epoch in range(1, 5):
        totals.sums.fill_(1.0)
        nn.init.constant_(network.head(learner.model).get_parameter("bias"), epoch)
        (reading,) = Readout(ALONE).read(epoch, totals, is_late=False, stop=0, at_once=True)
        validation.end_epoch(job, learner, totals, progress, 0.1, reading)
        biases = [value[0].item() for name, value in progress.best_weights.items() if name == "fc.bias"]
        rows.append((results.exported_row(config, progress)["epoch"], biases))
    assert rows == [(1, []), (2, [2.0]), (2, [2.0]), (2, [2.0])]
    with refuses(("train.lr", "value")):
        failures.check_exported(progress.history[0], config.train)


@pytest.mark.parametrize(("key", "value", "kind"), [("train.batch_size", 64, "pair"), ("prepare.size", 48, "differs")])
def test_what_does_not_fit_the_images_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: int, kind: Kind
) -> None:
    """A batch that would hold images twice, and another size than that of the packed images. No run is begun."""
    monkeypatch.chdir(small_world(tmp_path, **{key.replace(".", "__"): value}))
    with refuses((key, kind)):
        check_inputs(params.load(), ALONE, {})
    assert not Path("runs").exists()


@pytest.mark.slow("real starts of torchrun; make test starts its processes by perennial train")
def test_torchrun_typed_by_hand_trains_the_same(finished_run: Path, tmp_path: Path) -> None:
    """Each process becomes a rank. Copies of the checkpoint are for perennial train alone."""
    folder = small_world(tmp_path, train__parallel="ddp", run__processes=2)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "-m", "pipeline", "train"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert outputs(folder) == outputs(finished_run)
    run = params.load(folder / "params.yaml").run.model_copy(update={"checkpoint_copy": "copies"})
    with refuses(("run.checkpoint_copy", "pair")):
        launch_.become_rank("train", run)


def test_a_loss_that_one_process_sees_broken_is_refused_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """All read the same. Rank 0 alone asks for a checkpoint, and each one may ask to stop."""
    sent: list[torch.Tensor] = []

    def read(rank: int, broken_step: int, is_late: bool, stop: int) -> tuple[int, bool, int]:
        world, totals = World(rank, rank, 2, ALONE.device), Totals.zero(ALONE.device, 2)
        totals.broken_step.fill_(broken_step)
        (reading,) = Readout(world, is_delayed=False).read(8, totals, is_late, stop, at_once=False)
        return reading.broken_step, reading.is_late, reading.stop

    def all_reduce_max(flags: torch.Tensor) -> torch.Tensor:
        sent.append(flags)
        return torch.stack(sent).amax(0)

    monkeypatch.setattr(collectives, "all_reduce_max", all_reduce_max)
    cases = [(0, -1, False, 0), (1, 7, True, 1)]
    for case in cases:
        read(*case)
    assert [read(*case) for case in cases] == [(7, False, 1)] * 2
    with refuses(("train.lr", "value")) as error:
        failures.check_losses_finite(7, params.load().train)
    assert "step 7 " in error.value.faults[0].reason
