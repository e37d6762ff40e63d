"""Train a model on the packed pictures: one of the processes that `pipeline.launch` starts.

    python -m pipeline.launch train       starts run.processes of it, as params.yaml says

Writes models/model.safetensors, models/model.json, metrics/train.json and metrics/history.csv: the same bytes for the
same inputs. Beside them, `runs/<fingerprint>/` (see runs.py) lets an interrupted run go on from its last checkpoint.
"""

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from pipeline import augment, files, inference, model, monitor, packed, runs, sampling, schedule, stage, trained
from pipeline.engine import checkpoint, loop, world
from pipeline.engine.loop import Batch, Counts
from pipeline.engine.parallel import PARALLELS, unwrap
from pipeline.engine.precision import PRECISIONS, Precision
from pipeline.engine.world import World
from pipeline.errors import Refusal
from pipeline.inference import View
from pipeline.packed import Packed
from pipeline.params import Params, Train

CHECKPOINT = "checkpoint.pt"
HISTORY = ("epoch", "step", "learning_rate", "train_loss", "train_accuracy", "val_loss", "val_accuracy")


@dataclass
class Progress:
    """How far a run is: beside the weights, all that an exact resume needs."""

    step: int = 0  # steps taken
    history: list[dict[str, Any]] = field(default_factory=list)  # rows of HISTORY
    best_epoch: int = 0
    best_accuracy: float = -1.0
    best_weights: dict[str, Tensor] = field(default_factory=dict)


def view(config: Params) -> View:
    """What the model will see of a picture in validation, evaluation and prediction."""
    return View(square=config.prepare.size, resize=config.train.eval_resize, crop=config.train.eval_crop)


def make_optimizer(net: nn.Module, settings: Train) -> Optimizer:
    """SGD with momentum; the learning rate of every step comes from the schedule."""
    groups = model.parameter_groups(net, settings.weight_decay, settings.decay_norm_and_bias)
    return SGD(groups, lr=settings.lr, momentum=settings.momentum, nesterov=settings.nesterov)


def batches(settings: Train, data: Packed, first_step: int, place: World) -> Iterator[Batch]:
    """This process's part of every global batch from `first_step` to the last; before each, drop-out is seeded."""
    rows = data.rows("train")
    steps = sampling.steps(settings.epochs, len(rows), settings.batch_size)
    warmup = round(settings.warmup_epochs * len(rows) / settings.batch_size)
    square = data.images.shape[1]
    for step in range(first_step, steps):
        chosen = rows[sampling.batch_rows(settings.seed, step, settings.batch_size, len(rows))]
        boxes, flips = sampling.crop_boxes(
            settings.seed, step, data.sizes[chosen], square, settings.crop_scale, settings.crop_ratio, settings.flip
        )
        mine = sampling.part(chosen, place.rank, place.size)
        squares, corners, mirrored, labels = (
            torch.from_numpy(array).to(place.device)
            for array in (
                data.images[mine],
                sampling.part(boxes, place.rank, place.size),
                sampling.part(flips, place.rank, place.size),
                data.labels[mine],
            )
        )
        torch.manual_seed(sampling.dropout_seed(settings.seed, step, place.rank, place.size))
        rate = settings.lr * schedule.factor(settings.schedule, step, steps, warmup, settings.final_lr)
        yield Batch(step, augment.crops(squares, corners, mirrored, settings.crop), labels, rate)


def validate(net: nn.Module, data: Packed, config: Params, place: World, precision: Precision) -> tuple[float, float]:
    """Mean loss (without label smoothing) and accuracy over the whole validation split, in float64."""
    world.share_buffers(net)
    rows = data.rows("val")
    found = inference.logits(
        net, data.images, data.sizes, rows, view(config), config.evaluate.batch_size, place, precision
    ).double()
    labels = torch.from_numpy(data.labels[rows])
    loss = nn.functional.cross_entropy(found, labels, reduction="sum").item() / len(rows)
    return loss, int((found.argmax(1) == labels).sum()) / len(rows)


def end_of_epoch(step: int, rows: int, batch: int) -> int | None:
    """The epoch (from 1) that is over after `step` steps, if one is; the last, if several are."""
    epoch = step * batch // rows
    return next((e for e in (epoch + 1, epoch) if e > 0 and sampling.epoch_end(e - 1, rows, batch) == step), None)


def train(config: Params, data: Packed, place: World, folder: Path) -> tuple[dict[str, Tensor], Progress]:
    """Train from the working checkpoint in `folder`, or from the beginning.

    Returns the weights to export (see `model.export_state`) and the finished progress. Raises Refusal if a loss is not
    finite or the checkpoint was made on other hardware.
    """
    settings, rows = config.train, len(data.rows("train"))
    steps = sampling.steps(settings.epochs, rows, settings.batch_size)
    # The order matters: Apex wants its turn after the optimizer is made and before the model is wrapped.
    net = model.build(settings.model, len(data.classes), settings.seed).to(place.device)
    optimizer = make_optimizer(net, settings)
    precision = PRECISIONS[settings.precision](place.device.type)
    net, optimizer = precision.prepare(net, optimizer)
    progress = resume(folder, place, settings, net, optimizer, precision)
    net = PARALLELS[settings.parallel](net, place, settings.deterministic)
    criterion = nn.CrossEntropyLoss(label_smoothing=settings.label_smoothing)
    counts = Counts.zero(place.device)
    stream = batches(settings, data, progress.step, place)
    with monitor.opened(runs.attempt(folder), progress.step, steps, settings.batch_size, place.first) as shown:
        world.barrier()  # every process has read the checkpoint before the first may replace it
        for batch in loop.train(net, stream, criterion, precision, optimizer, counts):
            if batch.step == progress.step:
                shown.pictures(batch)
            epoch = epoch_over(batch.step + 1, rows, settings.batch_size)
            due = epoch > 0 or (batch.step + 1) % config.run.log_steps == 0
            if due:
                refuse_broken(counts, settings)
            shown.step(batch, counts, due)
            if epoch == 0:
                continue
            loss, right, pictures = world.total(counts.sums).tolist()
            val_loss, val_accuracy = validate(unwrap(net), data, config, place, precision)
            values = (
                epoch,
                batch.step + 1,
                batch.learning_rate,
                loss / pictures,
                right / pictures,
                val_loss,
                val_accuracy,
            )
            progress.history.append(dict(zip(HISTORY, values, strict=True)))
            progress.step = batch.step + 1
            if settings.export == "best" and val_accuracy > progress.best_accuracy:
                progress.best_epoch, progress.best_accuracy = epoch, val_accuracy
                progress.best_weights = model.export_state(unwrap(net))
            if place.first:
                keep(folder, place, settings, unwrap(net), optimizer, precision, progress)
            shown.epoch(progress.history[-1], settings.epochs)
            counts.sums.zero_()
    weights = progress.best_weights if settings.export == "best" else model.export_state(unwrap(net))
    return weights, progress


def epoch_over(step: int, rows: int, batch: int) -> int:
    """The epoch (from 1) that ends with the `step`-th step, or 0. Needs batch <= rows: no two end together."""
    epoch = -(-step * batch // rows)
    return next((e for e in (epoch, epoch + 1) if sampling.epoch_end(e - 1, rows, batch) == step), 0)


def refuse_broken(counts: Counts, settings: Train) -> None:
    """Raise Refusal if a loss was not finite. Reads one number back from the device."""
    if (step := int(counts.broken_step)) >= 0:
        raise Refusal(
            f"the loss of step {step} is not finite; nothing is exported; lower train.lr ({settings.lr}) "
            f"or lengthen train.warmup_epochs ({settings.warmup_epochs})"
        )


def keep(
    folder: Path,
    place: World,
    settings: Train,
    net: nn.Module,
    optimizer: Optimizer,
    precision: Precision,
    progress: Progress,
) -> None:
    """Save the working checkpoint. There is no sampler and no generator state to save, by design (see sampling.py)."""
    checkpoint.save(
        folder / CHECKPOINT,
        {
            "model": net.state_dict(),
            "optimizer": optimizer.state_dict(),
            "precision": precision.state_dict(),
            "progress": asdict(progress),
            "hardware": runs.hardware(place, settings.threads),
        },
    )


def resume(
    folder: Path, place: World, settings: Train, net: nn.Module, optimizer: Optimizer, precision: Precision
) -> Progress:
    """Load the working checkpoint, if there is one, into the model, the optimizer and the precision.

    Raises Refusal if the hardware that decides bits is not what it was.
    """
    saved = folder / CHECKPOINT
    if not saved.exists():
        return Progress()
    state, here = checkpoint.load(saved), runs.hardware(place, settings.threads)
    for name, was in state["hardware"].items():
        if here[name] != was:
            raise Refusal(
                f"{saved}: begun with {name} {was!r}, here it is {here[name]!r}, so the bytes could not be the same; "
                f"go on where it was begun, or begin anew: rm -r {folder}"
            )
    net.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    precision.load_state_dict(state["precision"])
    progress = Progress(**state["progress"])
    if place.first:
        print(f"train: going on from step {progress.step} ({saved})", file=sys.stderr)
    return progress


def write(config: Params, data: Packed, weights: dict[str, Tensor], progress: Progress) -> None:
    """Write the stage's outputs."""
    settings, metrics = config.train, Path(config.paths.metrics)
    last = progress.history[-1]
    epoch = progress.best_epoch if settings.export == "best" else last["epoch"]
    trained.save(
        Path(config.paths.models),
        weights,
        name=settings.model,
        classes=data.classes,
        view=view(config),
        export=settings.export,
        epoch=epoch,
    )
    exported = progress.history[epoch - 1]
    files.write_json(
        metrics / "train.json",
        {
            "epochs": last["epoch"],
            "steps": last["step"],
            "exported_epoch": epoch,
            "train": {"loss": exported["train_loss"], "accuracy": exported["train_accuracy"]},
            "val": {"loss": exported["val_loss"], "accuracy": exported["val_accuracy"]},
        },
    )
    files.write_csv(metrics / "history.csv", HISTORY, ([row[name] for name in HISTORY] for row in progress.history))


def run(config: Params) -> None:
    """Be one process of the training."""
    started, settings = time.time(), config.train
    data = packed.load(Path(config.paths.packed), Path(config.paths.split))
    rows = len(data.rows("train"))
    if settings.batch_size > rows:
        raise Refusal(
            f"train.batch_size: {settings.batch_size} is more than the training pictures ({rows}); allowed: 1 to {rows}"
        )
    world.fix_arithmetic(settings.threads, settings.deterministic)
    place = world.from_env(os.environ, settings.device)
    folder = Path(config.paths.runs) / runs.fingerprint(config, data.digest)
    with world.joined(place, config.run.timeout_seconds):
        weights, progress = train(config, data, place, folder)
        if place.first:
            write(config, data, weights, progress)
            runs.write_provenance(folder, config, place, started, progress.step * settings.batch_size)
            (folder / CHECKPOINT).unlink()  # so that a forced run truly trains again


def main() -> int:
    return stage.main("train", run)


if __name__ == "__main__":
    sys.exit(main())
