"""Train a model on the packed images: one of the processes that `pipeline.launch` starts.

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

from pipeline import stage
from pipeline.base import errors, files, schema
from pipeline.base.errors import Stopped, UserError
from pipeline.config.params import Params, Train
from pipeline.data import packed
from pipeline.data.packed import Packed
from pipeline.engine import agreement, determinism, distributed, loop, rendezvous, stopping, watchdog
from pipeline.engine.agreement import Facts
from pipeline.engine.choices import OPTIMIZERS, PARALLELS, PRECISIONS, SYNC_BNS
from pipeline.engine.ema import Ema
from pipeline.engine.loop import Batch, Recipe, Totals
from pipeline.engine.precision import Precision
from pipeline.engine.rendezvous import Store
from pipeline.engine.stopping import Stopping
from pipeline.engine.world import World
from pipeline.evaluation import inference
from pipeline.loader import augment, sampler, storage
from pipeline.loader.sampler import AugmentParams, Mix
from pipeline.loader.storage import ImageStore
from pipeline.models import exported, network, pretrained
from pipeline.models.exported import View
from pipeline.training import checkpoint, monitor, runs, schedule

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

    __pydantic_config__ = schema.TENSORS

    model: Any  # these three are checked by who loads them
    precision: Any
    optimizer: Any
    ema: list[Tensor]
    totals: Tensor  # Totals.sums, of all processes
    progress: Progress
    hardware: dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What one process is to make of a global batch: all that is known before an image is touched."""

    step: int
    image_store: tuple[Tensor, Tensor]  # see ImageStore.collect
    labels: NDArray[np.int64]  # of these images
    draws: AugmentParams
    mix: Mix


@dataclass(frozen=True)
class Learner:
    """What training changes, and what an exact resume therefore loads and saves."""

    net: nn.Module  # not wrapped
    optimizer: Optimizer
    precision: Precision
    ema: Ema


def view(config: Params) -> View:
    """What the model will see of an image in validation, evaluation and prediction."""
    return View(packed_size=config.prepare.size, resize=config.train.eval_resize, crop=config.train.eval_crop)


def make_learner(config: Params, classes: int, world: World) -> Learner:
    """The model as it begins, and its optimizer, in the order that Apex needs."""
    settings = config.train
    net = network.build(settings.model, classes, settings.seed)
    if settings.weights != "none":
        said = pretrained.load_into(
            net, Path(config.paths.weights) / f"{settings.model}.safetensors", network.head(net)
        )
        if world.is_main:
            print(f"train: {said}", file=sys.stderr)
    if settings.freeze_backbone:
        network.freeze_backbone(net)
    if settings.gradient_checkpointing:
        network.checkpointed(net, settings.model)
    net = net.to(world.device).to(memory_format=MEMORY_FORMATS[settings.memory_format])  # type: ignore[call-overload]
    net = SYNC_BNS[settings.sync_bn](net)
    groups = network.parameter_groups(net, settings.weight_decay, settings.decay_norm_and_bias, settings.head_lr_factor)
    make = OPTIMIZERS[settings.optimizer]
    optimizer = make(groups, settings.lr, settings.momentum, settings.nesterov, settings.betas)
    precision = PRECISIONS[settings.precision](world.device.type)
    net, optimizer = precision.prepare(net, optimizer)
    if settings.compile:
        # torch's name for CUDA graphs; every shape gets code of its own, so that none depends on which came before.
        net.compile(mode="reduce-overhead" if settings.cuda_graphs else "default", dynamic=False)
    return Learner(net, optimizer, precision, Ema.of(net, settings.ema_decay))


def microbatch_count(settings: Train, world: World) -> int:
    """How many equal parts a global batch is cut into; each goes through the model by itself."""
    return settings.shards if settings.parallel == "elastic" else world.size * settings.accumulation_steps


def learning_rates(settings: Train, rows: int) -> list[float]:
    """The learning rate of every step."""
    batch, steps = settings.batch_size, sampler.steps(settings.epochs, rows, settings.batch_size)
    base = schedule.scaled(settings.lr, batch, settings.reference_batch)
    warmup = round(settings.warmup_epochs * rows / batch)
    ends = range(settings.step_epochs, settings.epochs, settings.step_epochs)
    drops = [sampler.epoch_end(epoch - 1, rows, batch) for epoch in ends]
    return [
        base
        * schedule.lr_factor(settings.schedule, step, steps, warmup, settings.final_lr, drops, settings.step_factor)
        for step in range(steps)
    ]


def plans(
    settings: Train, data: Packed, image_store: ImageStore, first_step: int, world: World, parts: int
) -> Iterator[Plan]:
    """This process's share of every global batch, of so many parts, from `first_step` to the last."""
    rows, seed, size, crop = data.rows("train"), settings.seed, settings.batch_size, settings.crop
    for step in range(first_step, sampler.steps(settings.epochs, len(rows), size)):
        chosen = rows[sampler.batch_rows(seed, step, size, len(rows))]
        draws = AugmentParams(
            *sampler.crop_boxes(
                seed,
                step,
                data.sizes[chosen],
                data.images.shape[1],
                settings.crop_scale,
                settings.crop_ratio,
                settings.flip,
            ),
            sampler.jitter_factors(seed, step, size, settings.color_jitter),
            sampler.erase_boxes(seed, step, size, crop, settings.erasing),
        )
        # Mixed images have partners among those of other processes: `needed` are the images this one has to cut.
        whole = sampler.mix(seed, step, size, crop, settings.mixup, settings.cutmix)
        needed, mix = sampler.local(whole, world.share(parts), parts)
        mine = chosen[needed]
        yield Plan(step, image_store.collect(mine), data.labels[mine], draws.at(needed), mix)


def batches(
    settings: Train,
    data: Packed,
    image_store: ImageStore,
    first_step: int,
    world: World,
    parts: int,
    precision: Precision,
    stop: Stopping,
) -> Iterator[Batch]:
    """This process's share of every global batch, of so many parts, from `first_step` on.

    Ends with the last step, or where all processes stop.
    """
    every_rate = learning_rates(settings, len(data.rows("train")))
    for plan in storage.ahead(plans(settings, data, image_store, first_step, world, parts), image_store.device):
        if stop.before(plan.step):
            return
        with precision.exact():
            cut = augment.training_crops(*image_store.send(plan.image_store), plan.draws, settings.crop)
            images = augment.mixed(cut, plan.mix)
            own = augment.to_device(plan.labels, world.device)
            labels, targets = augment.mixed_labels(own, plan.mix, len(data.classes))
        yield Batch(
            step=plan.step,
            images=images.contiguous(memory_format=MEMORY_FORMATS[settings.memory_format]),
            labels=labels,
            targets=targets,
            learning_rate=every_rate[plan.step],
            seed=sampler.dropout_seed(settings.seed, plan.step),
        )


def validate(
    learner: Learner, data: Packed, image_store: ImageStore, config: Params, world: World
) -> tuple[float, float]:
    """Mean loss (without label smoothing) and accuracy over the whole validation split, in float64.

    Of the weights that are to be exported: with `train.export: ema`, of their average.
    """
    rows, ema = data.rows("val"), config.train.export == "ema"
    with learner.ema.applied() if ema else nullcontext():
        distributed.broadcast_buffers(learner.net)
        found = inference.logits(
            learner.net,
            image_store,
            data.sizes,
            rows,
            view(config),
            config.evaluate.batch_size,
            world,
            learner.precision,
        ).double()
    learner.precision.weights_changed()
    labels = torch.from_numpy(data.labels[rows])
    loss = nn.functional.cross_entropy(found, labels, reduction="sum").item() / len(rows)
    return loss, int((found.argmax(1) == labels).sum()) / len(rows)


def export_weights(learner: Learner, settings: Train) -> dict[str, Tensor]:
    """The weights as they would be exported now: the model's, or their average."""
    with learner.ema.applied() if settings.export == "ema" else nullcontext():
        return network.export_state(learner.net)


def train(
    config: Params, data: Packed, world: World, store: Store, folder: Path
) -> tuple[dict[str, Tensor], Progress, int]:
    """Train from the working checkpoint in `folder`, or from the beginning.

    Returns the weights to export (see `network.export_state`), the finished progress, and the number of steps taken.
    Raises UserError if a loss is not finite or the checkpoint was made on other hardware, Stopped if all processes were
    asked to stop, and have saved.
    """
    settings, rows = config.train, len(data.rows("train"))
    steps = sampler.steps(settings.epochs, rows, settings.batch_size)
    image_store, where = storage.reside(
        data.images, config.run.residency, world.device, config.run.processes // config.run.nodes
    )
    if world.is_main:
        print(f"train: the packed images reside in: {where}", file=sys.stderr)
    learner = make_learner(config, len(data.classes), world)
    parts = microbatch_count(settings, world)
    totals = Totals.zero(world.device, parts)
    progress = resume(folder, world, settings, learner, totals)
    first_step, saved = progress.step, time.monotonic()
    parallel_model = PARALLELS[settings.parallel](learner.net, world, settings.deterministic, parts)
    recipe = Recipe(
        criterion=nn.CrossEntropyLoss(label_smoothing=settings.label_smoothing),
        precision=learner.precision,
        optimizer=learner.optimizer,
        ema=learner.ema,
        clip_norm=settings.clip_norm,
    )
    board = runs.tensorboard_folder(folder)
    distributed.barrier()  # every process has read the checkpoint before the first may replace it
    with (
        monitor.opened(board, first_step, steps, settings.batch_size, world.is_main) as shown,
        stopping.watching(store, world, config.run.timeout_seconds) as stop,
    ):
        # The batches end where all processes have agreed to stop; usually, with the last step.
        stream = batches(settings, data, image_store, first_step, world, parts, learner.precision, stop)
        for batch in loop.train(parallel_model, stream, recipe, totals):
            progress.step = batch.step + 1
            epoch = epoch_over(progress.step, rows, settings.batch_size)
            due = epoch > 0 or progress.step % config.run.log_steps == 0
            if batch.step == first_step:
                shown.images(batch)
            if due:
                check_losses_finite(totals, settings)
            shown.step(batch, totals, due)
            if epoch > 0:
                end_epoch(
                    epoch, batch.learning_rate, config, data, image_store, world, folder, learner, totals, progress
                )
                shown.epoch(progress.history[-1], settings.epochs)
            late = time.monotonic() - saved > config.run.checkpoint_seconds
            if epoch > 0 or (due and distributed.broadcast_flag(late, world.device)):
                save_checkpoint(folder, world, settings, learner, totals, progress)
                saved = time.monotonic()
        if progress.step < steps:
            check_losses_finite(totals, settings)
            save_checkpoint(folder, world, settings, learner, totals, progress)
            why = stop.reason
            stop.over()
            distributed.barrier()  # the store ends with rank 0: everybody must have read the reason
            raise Stopped(f"stopped by {why}; saved at step {progress.step} of {steps}; run again to go on")
    final = progress.best_weights if settings.export == "best" else export_weights(learner, settings)
    return final, progress, steps - first_step


def end_epoch(
    epoch: int,
    rate: float,
    config: Params,
    data: Packed,
    image_store: ImageStore,
    world: World,
    folder: Path,
    learner: Learner,
    totals: Totals,
    progress: Progress,
) -> None:
    """Validate, add the epoch's row to the history, remember the best weights, and begin to count anew."""
    settings = config.train
    # On the CPU: O1 adds up a GPU's float64 as float32.
    loss, right, images = distributed.all_reduce_sum(totals.sums.clone()).to("cpu").sum(0).tolist()
    val_loss, val_accuracy = validate(learner, data, image_store, config, world)
    row = (epoch, progress.step, rate, loss / images, right / images, val_loss, val_accuracy)
    progress.history.append(dict(zip(HISTORY, row, strict=True)))
    if settings.export == "best" and val_accuracy > progress.best_accuracy:
        progress.best_epoch, progress.best_accuracy = epoch, val_accuracy
        progress.best_weights = export_weights(learner, settings)
    if world.is_main and config.run.save_every_epochs and epoch % config.run.save_every_epochs == 0:
        exported.save_weights(folder / f"epoch-{epoch:04}.safetensors", export_weights(learner, settings))
    totals.sums.zero_()


def epoch_over(step: int, rows: int, batch: int) -> int:
    """The epoch (from 1) that ends with the `step`-th step, or 0. Needs batch <= rows: no two end together."""
    epoch = -(-step * batch // rows)
    return next((e for e in (epoch, epoch + 1) if sampler.epoch_end(e - 1, rows, batch) == step), 0)


@contextmanager
def explain_torch_errors(settings: Train) -> Iterator[None]:
    """Raise UserError with the names of the params for two errors of torch.

    These are an operator without a deterministic version, and BatchNorm over a single value.
    """
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise UserError(
            f"train.batch_size: {settings.batch_size}: a part of the batch is one image, of which the last layers of "
            f"{settings.model!r} see one value per channel at train.crop: {settings.crop}, and BatchNorm needs two; "
            f"raise train.batch_size or train.crop, or lower run.processes or train.accumulation_steps"
        ) from None
    except RuntimeError as error:
        if operator := determinism.nondeterministic_operator(error):
            raise UserError(
                f"train.deterministic: true × train.model: {settings.model!r}: {operator} has no deterministic version "
                f"on train.device: {settings.device!r}; allowed: false (the bytes are then not promised), another model"
            ) from None
        raise


def check_losses_finite(totals: Totals, settings: Train) -> None:
    """Raise UserError if a loss was not finite. To be called by all processes, for all are to raise it: one that left
    alone would let the others wait for its part of an exchange. Reads one number back from the device."""
    if (step := int(distributed.all_reduce_max(totals.broken_step.clone()))) >= 0:
        raise UserError(
            f"the loss of step {step} is not finite; nothing is exported; lower train.lr ({settings.lr}) "
            f"or lengthen train.warmup_epochs ({settings.warmup_epochs})"
        )


def save_checkpoint(
    folder: Path, world: World, settings: Train, learner: Learner, totals: Totals, progress: Progress
) -> None:
    """Save the working checkpoint. There is no sampler and no generator state to save, by design (see sampler.py)."""
    sums = distributed.all_reduce_sum(totals.sums.clone())
    if not world.is_main:
        return
    checkpoint.save(
        folder / runs.CHECKPOINT,
        {
            "model": learner.net.state_dict(),
            "precision": learner.precision.state_dict(learner.optimizer),
            "optimizer": learner.optimizer.state_dict(),
            "ema": learner.ema.averages,
            "totals": sums,
            "progress": asdict(progress),
            "hardware": runs.hardware(world, settings.threads),
        },
    )


def newest_checkpoint(saved: Path) -> dict[str, Any] | None:
    """The newest checkpoint that is whole, if there is one; a damaged one is reported.

    Raises UserError if there are checkpoints and none is whole.
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
        raise UserError(f"{', '.join(damaged)}: damaged, and there is no other; to begin anew: rm -r {saved.parent}")
    return None


def resume(folder: Path, world: World, settings: Train, learner: Learner, totals: Totals) -> Progress:
    """Load the working checkpoint, if there is one, into the learner and the counts.

    Raises UserError if the hardware that decides bits is not what it was.
    """
    # Rank 0 reads for all: on several nodes only the first has the checkpoint.
    state = distributed.broadcast_object(newest_checkpoint(folder / runs.CHECKPOINT) if world.is_main else None)
    if state is None:
        return Progress()
    try:
        return restore(schema.checked(state, Saved), folder, world, settings, learner, totals)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError) as error:
        if errors.describe_system_error(error):
            raise
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{folder / runs.CHECKPOINT}: not what this run saves ({reason}); to begin anew: rm -r {folder}"
        ) from None


def restore(saved: Saved, folder: Path, world: World, settings: Train, learner: Learner, totals: Totals) -> Progress:
    """Put what was saved into the learner and the counts. Raises UserError for other hardware, and nearly anything for
    what does not fit."""
    for name, was, here in agreement.differences(saved.hardware, runs.hardware(world, settings.threads)):
        raise UserError(
            f"{folder}: begun with {name} {was}, here it is {here}, so the bytes could not be the same; "
            f"go on where it was begun, or begin anew: rm -r {folder}"
        )
    network.load_state(learner.net, saved.model)
    learner.precision.load_state_dict(saved.precision, learner.optimizer)
    learner.optimizer.load_state_dict(saved.optimizer)
    for average, value in zip(learner.ema.averages, saved.ema, strict=True):
        average.copy_(value)
    mine = world.share(len(totals.sums))
    totals.sums[mine.start : mine.stop] = saved.totals[mine.start : mine.stop]
    progress = saved.progress
    if world.is_main:
        print(f"train: going on from step {progress.step} ({folder})", file=sys.stderr)
    return progress


def write(config: Params, data: Packed, final: dict[str, Tensor], progress: Progress) -> None:
    """Write the stage's outputs. Raises UserError, and writes nothing, if the exported weights' loss is not finite."""
    settings, metrics = config.train, Path(config.paths.metrics)
    last = progress.history[-1]
    epoch = progress.best_epoch if settings.export == "best" else last["epoch"]
    row = progress.history[epoch - 1]
    if not math.isfinite(row["val_loss"]):
        raise UserError(
            f"the validation loss of epoch {epoch} is {row['val_loss']}; nothing is exported; lower train.lr "
            f"({settings.lr}) or lengthen train.warmup_epochs ({settings.warmup_epochs})"
        )
    exported.save(
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


def ready(config: Params, world: World, facts: Facts) -> tuple[Packed, Path]:
    """The packed images, and the folder of this run; writes what all processes must have alike into `facts`.

    Raises UserError if this process cannot begin.
    """
    settings = config.train
    data = packed.load(Path(config.paths.packed), Path(config.paths.split))
    packed.check_packed_size(data, Path(config.paths.packed), config.prepare.size)
    rows = len(data.rows("train"))
    if settings.batch_size > rows:
        raise UserError(
            f"train.batch_size: {settings.batch_size} is more than the training images ({rows}); allowed: 1 to {rows}"
        )
    parts = runs.decisive(config, data.digest)
    facts |= runs.facts(config, parts, world)
    return data, Path(config.paths.runs) / runs.fingerprint(parts)


def run(config: Params) -> None:
    """Be one process of the training."""
    started, settings = time.monotonic(), config.train
    determinism.make_deterministic(settings.threads, settings.deterministic)
    world = World.from_env(os.environ, settings.device)
    met = rendezvous.connect_store(world, config.run.timeout_seconds)
    with ExitStack() as held:
        held.enter_context(watchdog.launcher_roused(config.run.timeout_seconds))
        held.enter_context(explain_torch_errors(settings))
        with agreement.agreed(met, world) as facts:
            data, folder = ready(config, world, facts)
            if world.is_main:
                held.enter_context(runs.locked(folder))
        store = held.enter_context(distributed.process_group(world, config.run.timeout_seconds, met))
        if world.is_main:
            runs.prepare_run(folder)
        final, progress, taken = train(config, data, world, store, folder)
        if world.is_main:
            write(config, data, final, progress)
            if taken or not (folder / runs.PROVENANCE).is_file():  # else who trained it is already written
                runs.write_provenance(folder, config, world, started, taken * settings.batch_size)
            runs.drop_finished_checkpoint(folder)


def main() -> int:
    return distributed.run_process(lambda: stage.main("train", run))


if __name__ == "__main__":
    sys.exit(main())
