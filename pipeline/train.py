"""Train a model on the packed pictures: one of the processes that `pipeline.launch` starts.

    python -m pipeline.launch train       starts run.processes of it, as params.yaml says

Writes models/model.safetensors, models/model.json, metrics/train.json and metrics/history.csv: the same bytes for the
same inputs. Beside them, `runs/<fingerprint>/` (see runs.py) lets an interrupted run go on from its last checkpoint.
"""

import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from pipeline import (
    augment,
    errors,
    files,
    inference,
    model,
    monitor,
    packed,
    reading,
    residency,
    runs,
    sampling,
    schedule,
    stage,
    trained,
    weights,
)
from pipeline.engine import agreement, checkpoint, frozen, loop, stopping, world
from pipeline.engine.agreement import Facts
from pipeline.engine.ema import Ema
from pipeline.engine.loop import Batch, Counts, Recipe
from pipeline.engine.optimizers import OPTIMIZERS
from pipeline.engine.parallel import PARALLELS, SYNC_BNS
from pipeline.engine.precision import PRECISIONS, Precision
from pipeline.engine.stopping import Stopping
from pipeline.engine.world import Store, World
from pipeline.errors import Refusal, Stopped
from pipeline.inference import View
from pipeline.packed import Packed
from pipeline.params import Params, Train
from pipeline.residency import Squares
from pipeline.sampling import Draws, Mix

MEMORY_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
HISTORY = ("epoch", "step", "learning_rate", "train_loss", "train_accuracy", "val_loss", "val_accuracy")


@dataclass
class Progress:
    """How far a run is: beside the weights, all that an exact resume needs."""

    step: int = 0  # steps taken
    history: list[dict[str, Any]] = field(default_factory=list)  # rows of HISTORY
    best_epoch: int = 0
    best_accuracy: float = -1.0
    best_weights: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Saved:
    """The content of a working checkpoint."""

    __pydantic_config__ = reading.TENSORS

    model: Any  # these three are judged by who loads them
    precision: Any
    optimizer: Any
    ema: list[Tensor]
    counts: Tensor  # Counts.sums, of all processes
    progress: Progress
    hardware: dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What one process is to make of a global batch: all that is known before a picture is touched."""

    step: int
    squares: tuple[Tensor, Tensor]  # see Squares.collect
    labels: NDArray[np.int64]  # of these pictures
    draws: Draws
    mix: Mix


@dataclass(frozen=True)
class Learner:
    """What training changes, and what an exact resume therefore loads and saves."""

    net: nn.Module  # not wrapped
    optimizer: Optimizer
    precision: Precision
    ema: Ema


def view(config: Params) -> View:
    """What the model will see of a picture in validation, evaluation and prediction."""
    return View(square=config.prepare.size, resize=config.train.eval_resize, crop=config.train.eval_crop)


def make_learner(config: Params, classes: int, place: World) -> Learner:
    """The model as it begins, and its optimizer, in the order that Apex needs."""
    settings = config.train
    net = model.build(settings.model, classes, settings.seed)
    if settings.weights != "none":
        said = weights.load_into(net, Path(config.paths.weights) / f"{settings.model}.safetensors", model.head(net))
        if place.first:
            print(f"train: {said}", file=sys.stderr)
    if settings.freeze_backbone:
        model.freeze_backbone(net)
    if settings.gradient_checkpointing:
        model.checkpointed(net, settings.model)
    net = net.to(place.device).to(memory_format=MEMORY_FORMATS[settings.memory_format])  # type: ignore[call-overload]
    net = SYNC_BNS[settings.sync_bn](net)
    groups = model.parameter_groups(net, settings.weight_decay, settings.decay_norm_and_bias, settings.head_lr_factor)
    make = OPTIMIZERS[settings.optimizer]
    optimizer = make(groups, settings.lr, settings.momentum, settings.nesterov, settings.betas)
    precision = PRECISIONS[settings.precision](place.device.type)
    net, optimizer = precision.prepare(net, optimizer)
    if settings.compile:
        # torch's name for CUDA graphs; every shape gets code of its own, so that none depends on which came before.
        net.compile(mode="reduce-overhead" if settings.cuda_graphs else "default", dynamic=False)
    return Learner(net, optimizer, precision, Ema.of(net, settings.ema_decay))


def parts_of_a_batch(settings: Train, place: World) -> int:
    """How many equal parts a global batch is cut into; each goes through the model by itself."""
    return settings.shards if settings.parallel == "elastic" else place.size * settings.accumulate


def rates(settings: Train, rows: int) -> list[float]:
    """The learning rate of every step."""
    batch, steps = settings.batch_size, sampling.steps(settings.epochs, rows, settings.batch_size)
    base = schedule.scaled(settings.lr, batch, settings.reference_batch)
    warmup = round(settings.warmup_epochs * rows / batch)
    ends = range(settings.step_epochs, settings.epochs, settings.step_epochs)
    drops = [sampling.epoch_end(epoch - 1, rows, batch) for epoch in ends]
    return [
        base * schedule.factor(settings.schedule, step, steps, warmup, settings.final_lr, drops, settings.step_factor)
        for step in range(steps)
    ]


def plans(settings: Train, data: Packed, squares: Squares, first_step: int, place: World, parts: int) -> Iterator[Plan]:
    """This process's share of every global batch, of so many parts, from `first_step` to the last."""
    rows, seed, size, crop = data.rows("train"), settings.seed, settings.batch_size, settings.crop
    for step in range(first_step, sampling.steps(settings.epochs, len(rows), size)):
        chosen = rows[sampling.batch_rows(seed, step, size, len(rows))]
        draws = Draws(
            *sampling.crop_boxes(
                seed,
                step,
                data.sizes[chosen],
                data.images.shape[1],
                settings.crop_scale,
                settings.crop_ratio,
                settings.flip,
            ),
            sampling.jitter_factors(seed, step, size, settings.color_jitter),
            sampling.erase_boxes(seed, step, size, crop, settings.erasing),
        )
        # Mixed pictures have partners among those of other processes: `needed` are the pictures this one has to cut.
        whole = sampling.mix(seed, step, size, crop, settings.mixup, settings.cutmix)
        needed, mix = sampling.local(whole, place.share(parts), parts)
        mine = chosen[needed]
        yield Plan(step, squares.collect(mine), data.labels[mine], draws.at(needed), mix)


def batches(
    settings: Train,
    data: Packed,
    squares: Squares,
    first_step: int,
    place: World,
    parts: int,
    precision: Precision,
    stop: Stopping,
) -> Iterator[Batch]:
    """This process's share of every global batch, of so many parts, from `first_step` on.

    Ends with the last step, or where all processes stop.
    """
    every_rate = rates(settings, len(data.rows("train")))
    for plan in residency.ahead(plans(settings, data, squares, first_step, place, parts), squares.device):
        if stop.before(plan.step):
            return
        with precision.exact():
            cut = augment.training_crops(*squares.send(plan.squares), plan.draws, settings.crop)
            images = augment.mixed(cut, plan.mix)
            own = augment.to_device(plan.labels, place.device)
            labels, targets = augment.mixed_labels(own, plan.mix, len(data.classes))
        yield Batch(
            step=plan.step,
            images=images.contiguous(memory_format=MEMORY_FORMATS[settings.memory_format]),
            labels=labels,
            targets=targets,
            learning_rate=every_rate[plan.step],
            seed=sampling.dropout_seed(settings.seed, plan.step),
        )


def validate(learner: Learner, data: Packed, squares: Squares, config: Params, place: World) -> tuple[float, float]:
    """Mean loss (without label smoothing) and accuracy over the whole validation split, in float64.

    Of the weights that are to be exported: with `train.export: ema`, of their average.
    """
    rows, ema = data.rows("val"), config.train.export == "ema"
    with learner.ema.applied() if ema else nullcontext():
        world.share_buffers(learner.net)
        found = inference.logits(
            learner.net,
            squares,
            data.sizes,
            rows,
            view(config),
            config.evaluate.batch_size,
            place,
            learner.precision,
        ).double()
    learner.precision.weights_changed()
    labels = torch.from_numpy(data.labels[rows])
    loss = nn.functional.cross_entropy(found, labels, reduction="sum").item() / len(rows)
    return loss, int((found.argmax(1) == labels).sum()) / len(rows)


def exported(learner: Learner, settings: Train) -> dict[str, Tensor]:
    """The weights as they would be exported now: the model's, or their average."""
    with learner.ema.applied() if settings.export == "ema" else nullcontext():
        return model.export_state(learner.net)


def train(
    config: Params, data: Packed, place: World, store: Store, folder: Path
) -> tuple[dict[str, Tensor], Progress, int]:
    """Train from the working checkpoint in `folder`, or from the beginning.

    Returns the weights to export (see `model.export_state`), the finished progress, and how many steps were taken now.
    Raises Refusal if a loss is not finite or the checkpoint was made on other hardware, Stopped if all processes were
    asked to stop, and have saved.
    """
    settings, rows = config.train, len(data.rows("train"))
    steps = sampling.steps(settings.epochs, rows, settings.batch_size)
    squares, where = residency.reside(
        data.images, config.run.residency, place.device, config.run.processes // config.run.nodes
    )
    if place.first:
        print(f"train: the packed squares reside in: {where}", file=sys.stderr)
    learner = make_learner(config, len(data.classes), place)
    parts = parts_of_a_batch(settings, place)
    counts = Counts.zero(place.device, parts)
    progress = resume(folder, place, settings, learner, counts)
    first_step, saved = progress.step, time.monotonic()
    spread = PARALLELS[settings.parallel](learner.net, place, settings.deterministic, parts)
    recipe = Recipe(
        criterion=nn.CrossEntropyLoss(label_smoothing=settings.label_smoothing),
        precision=learner.precision,
        optimizer=learner.optimizer,
        ema=learner.ema,
        clip_norm=settings.clip_norm,
    )
    board = runs.attempt(folder)
    world.barrier()  # every process has read the checkpoint before the first may replace it
    with (
        monitor.opened(board, first_step, steps, settings.batch_size, place.first) as shown,
        stopping.watching(store, place, config.run.timeout_seconds) as stop,
    ):
        # The batches end where all processes have agreed to stop; usually, with the last step.
        stream = batches(settings, data, squares, first_step, place, parts, learner.precision, stop)
        for batch in loop.train(spread, stream, recipe, counts):
            progress.step = batch.step + 1
            epoch = epoch_over(progress.step, rows, settings.batch_size)
            due = epoch > 0 or progress.step % config.run.log_steps == 0
            if batch.step == first_step:
                shown.pictures(batch)
            if due:
                refuse_broken(counts, settings)
            shown.step(batch, counts, due)
            if epoch > 0:
                end_epoch(epoch, batch.learning_rate, config, data, squares, place, folder, learner, counts, progress)
                shown.epoch(progress.history[-1], settings.epochs)
            late = time.monotonic() - saved > config.run.checkpoint_seconds
            if epoch > 0 or (due and world.first_says(late, place.device)):
                keep(folder, place, settings, learner, counts, progress)
                saved = time.monotonic()
        if progress.step < steps:
            refuse_broken(counts, settings)
            keep(folder, place, settings, learner, counts, progress)
            why = stop.reason
            stop.over()
            world.barrier()  # the store ends with rank 0: everybody must have read the reason
            raise Stopped(f"stopped by {why}; saved at step {progress.step} of {steps}; run again to go on")
    final = progress.best_weights if settings.export == "best" else exported(learner, settings)
    return final, progress, steps - first_step


def end_epoch(
    epoch: int,
    rate: float,
    config: Params,
    data: Packed,
    squares: Squares,
    place: World,
    folder: Path,
    learner: Learner,
    counts: Counts,
    progress: Progress,
) -> None:
    """Validate, add the epoch's row to the history, remember the best weights, and begin to count anew."""
    settings = config.train
    # On the CPU: O1 adds up a GPU's float64 as float32.
    loss, right, pictures = world.total(counts.sums.clone()).to("cpu").sum(0).tolist()
    val_loss, val_accuracy = validate(learner, data, squares, config, place)
    row = (epoch, progress.step, rate, loss / pictures, right / pictures, val_loss, val_accuracy)
    progress.history.append(dict(zip(HISTORY, row, strict=True)))
    if settings.export == "best" and val_accuracy > progress.best_accuracy:
        progress.best_epoch, progress.best_accuracy = epoch, val_accuracy
        progress.best_weights = exported(learner, settings)
    if place.first and config.run.keep_every and epoch % config.run.keep_every == 0:
        trained.save_weights(folder / f"epoch-{epoch:04}.safetensors", exported(learner, settings))
    counts.sums.zero_()


def epoch_over(step: int, rows: int, batch: int) -> int:
    """The epoch (from 1) that ends with the `step`-th step, or 0. Needs batch <= rows: no two end together."""
    epoch = -(-step * batch // rows)
    return next((e for e in (epoch, epoch + 1) if sampling.epoch_end(e - 1, rows, batch) == step), 0)


@contextmanager
def vouched_for(settings: Train) -> Iterator[None]:
    """Turn what torch refuses because of the params into a Refusal that names them: an operator without a deterministic
    version, and BatchNorm over a single value."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise Refusal(
            f"train.batch_size: {settings.batch_size}: a part of the batch is one image, of which the last layers of "
            f"{settings.model!r} see one value per channel at train.crop: {settings.crop}, and BatchNorm needs two; "
            f"raise train.batch_size or train.crop, or lower run.processes or train.accumulate"
        ) from None
    except RuntimeError as error:
        if operator := world.undetermined(error):
            raise Refusal(
                f"train.deterministic: true × train.model: {settings.model!r}: {operator} has no deterministic version "
                f"on train.device: {settings.device!r}; allowed: false (the bytes are then not promised), another model"
            ) from None
        raise


def refuse_broken(counts: Counts, settings: Train) -> None:
    """Raise Refusal if a loss was not finite. To be called by all processes, for all are to raise it: one that left
    alone would let the others wait for its part of an exchange. Reads one number back from the device."""
    if (step := int(world.most(counts.broken_step.clone()))) >= 0:
        raise Refusal(
            f"the loss of step {step} is not finite; nothing is exported; lower train.lr ({settings.lr}) "
            f"or lengthen train.warmup_epochs ({settings.warmup_epochs})"
        )


def keep(folder: Path, place: World, settings: Train, learner: Learner, counts: Counts, progress: Progress) -> None:
    """Save the working checkpoint. There is no sampler and no generator state to save, by design (see sampling.py)."""
    sums = world.total(counts.sums.clone())
    if not place.first:
        return
    checkpoint.save(
        folder / runs.CHECKPOINT,
        {
            "model": learner.net.state_dict(),
            "precision": learner.precision.state_dict(learner.optimizer),
            "optimizer": learner.optimizer.state_dict(),
            "ema": learner.ema.averages,
            "counts": sums,
            "progress": asdict(progress),
            "hardware": runs.hardware(place, settings.threads),
        },
    )


def newest(saved: Path) -> dict[str, Any] | None:
    """The newest checkpoint that is whole, if there is one; a damaged one is reported.

    Raises Refusal if there are checkpoints and none is whole.
    """
    damaged = []
    for path in (saved, checkpoint.previous(saved)):
        try:
            return checkpoint.load(path)
        except FileNotFoundError:
            continue
        except checkpoint.Damaged:
            damaged.append(str(path))
            print(f"train: {path} is damaged; the one before it is used", file=sys.stderr)
    if damaged:
        raise Refusal(f"{', '.join(damaged)}: damaged, and there is no other; to begin anew: rm -r {saved.parent}")
    return None


def resume(folder: Path, place: World, settings: Train, learner: Learner, counts: Counts) -> Progress:
    """Load the working checkpoint, if there is one, into the learner and the counts.

    Raises Refusal if the hardware that decides bits is not what it was.
    """
    # Rank 0 reads for all: on several nodes only the first has the checkpoint.
    state = world.of_first(newest(folder / runs.CHECKPOINT) if place.first else None)
    if state is None:
        return Progress()
    try:
        return take_over(reading.checked(state, Saved), folder, place, settings, learner, counts)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError) as error:
        if errors.of_the_system(error):
            raise
        reason = " ".join(str(error).split())[:200]
        raise Refusal(
            f"{folder / runs.CHECKPOINT}: not what this run saves ({reason}); to begin anew: rm -r {folder}"
        ) from None


def take_over(saved: Saved, folder: Path, place: World, settings: Train, learner: Learner, counts: Counts) -> Progress:
    """Put what was saved into the learner and the counts. Raises Refusal for other hardware, and nearly anything for
    what does not fit."""
    for name, was, here in agreement.differences(saved.hardware, runs.hardware(place, settings.threads)):
        raise Refusal(
            f"{folder}: begun with {name} {was}, here it is {here}, so the bytes could not be the same; "
            f"go on where it was begun, or begin anew: rm -r {folder}"
        )
    model.load_state(learner.net, saved.model)
    learner.precision.load_state_dict(saved.precision, learner.optimizer)
    learner.optimizer.load_state_dict(saved.optimizer)
    for average, value in zip(learner.ema.averages, saved.ema, strict=True):
        average.copy_(value)
    mine = place.share(len(counts.sums))
    counts.sums[mine.start : mine.stop] = saved.counts[mine.start : mine.stop]
    progress = saved.progress
    if place.first:
        print(f"train: going on from step {progress.step} ({folder})", file=sys.stderr)
    return progress


def write(config: Params, data: Packed, final: dict[str, Tensor], progress: Progress) -> None:
    """Write the stage's outputs. Raises Refusal, and writes nothing, if the exported weights' loss is not finite."""
    settings, metrics = config.train, Path(config.paths.metrics)
    last = progress.history[-1]
    epoch = progress.best_epoch if settings.export == "best" else last["epoch"]
    row = progress.history[epoch - 1]
    if not math.isfinite(row["val_loss"]):
        raise Refusal(
            f"the validation loss of epoch {epoch} is {row['val_loss']}; nothing is exported; lower train.lr "
            f"({settings.lr}) or lengthen train.warmup_epochs ({settings.warmup_epochs})"
        )
    trained.save(
        Path(config.paths.models),
        final,
        name=settings.model,
        classes=data.classes,
        view=view(config),
        export=settings.export,
        epoch=epoch,
    )
    files.write_json(
        metrics / "train.json",
        {
            "epochs": last["epoch"],
            "steps": last["step"],
            "exported_epoch": epoch,
            "train": {"loss": row["train_loss"], "accuracy": row["train_accuracy"]},
            "val": {"loss": row["val_loss"], "accuracy": row["val_accuracy"]},
        },
    )
    files.write_csv(metrics / "history.csv", HISTORY, ([row[name] for name in HISTORY] for row in progress.history))


def ready(config: Params, place: World, facts: Facts) -> tuple[Packed, Path]:
    """The packed pictures, and the folder of this run; writes what all processes must have alike into `facts`.

    Raises Refusal if this process cannot begin.
    """
    settings = config.train
    data = packed.load(Path(config.paths.packed), Path(config.paths.split))
    packed.refuse_other_size(data, Path(config.paths.packed), config.prepare.size)
    rows = len(data.rows("train"))
    if settings.batch_size > rows:
        raise Refusal(
            f"train.batch_size: {settings.batch_size} is more than the training pictures ({rows}); allowed: 1 to {rows}"
        )
    parts = runs.decisive(config, data.digest)
    facts |= runs.facts(config, parts, place)
    return data, Path(config.paths.runs) / runs.fingerprint(parts)


def run(config: Params) -> None:
    """Be one process of the training."""
    started, settings = time.monotonic(), config.train
    world.fix_arithmetic(settings.threads, settings.deterministic)
    place = world.from_env(os.environ, settings.device)
    met = world.meet(place, config.run.timeout_seconds)
    with ExitStack() as held:
        held.enter_context(frozen.launcher_roused(config.run.timeout_seconds))
        held.enter_context(vouched_for(settings))
        with agreement.agreed(met, place) as facts:
            data, folder = ready(config, place, facts)
            if place.first:
                held.enter_context(runs.locked(folder))
        store = held.enter_context(world.exchanging(place, config.run.timeout_seconds, met))
        if place.first:
            runs.begin(folder)
        final, progress, taken = train(config, data, place, store, folder)
        if place.first:
            write(config, data, final, progress)
            if taken or not (folder / runs.PROVENANCE).is_file():  # else who trained it is already written
                runs.write_provenance(folder, config, place, started, taken * settings.batch_size)
            runs.settle(folder)


def main() -> int:
    return world.ended(lambda: stage.main("train", run))


if __name__ == "__main__":
    sys.exit(main())
