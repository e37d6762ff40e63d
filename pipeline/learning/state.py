"""What a training changes: the learner, and the progress of the run."""

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from pipeline.config.model_names import weights_file
from pipeline.config.params import Params, Train
from pipeline.learning.choices import CLASS_WEIGHTS, LOSSES, OPTIMIZERS, PASSES, PRECISIONS, SYNC_BNS
from pipeline.learning.ema import Ema
from pipeline.learning.loop import Learner
from pipeline.learning.loss import criterion
from pipeline.learning.world import World
from pipeline.loader.batches import MEMORY_FORMATS
from pipeline.models import network, pretrained

STATE = "state_sha256"  # of the whole state after the epoch (chain.py); empty with another train.hash_every_epochs
HISTORY = ("epoch", "step", "learning_rate", "train_loss", "train_accuracy", "val_loss", "val_accuracy", STATE)


@dataclass
class Progress:
    """How far a run is. Together with the learner's state this is all that an exact resume needs."""

    step: int = 0  # steps taken
    history: list[dict[str, Any]] = field(default_factory=list)  # one row of HISTORY per epoch
    best_weights: dict[str, Tensor] = field(default_factory=dict)  # of `schedule.best_epoch`, with `export: best`


def make_learner(config: Params, model: nn.Module, counts: Mapping[str, int], world: World) -> Learner:
    """The model of `make_model`, its optimizer and the rest, made in the order that Apex needs.

    `counts`: the training images of every class.
    """
    settings = config.train
    weights = CLASS_WEIGHTS[settings.class_weights](counts)
    groups = network.parameter_groups(
        model, settings.weight_decay, settings.decay_norm_and_bias, settings.head_lr_factor
    )
    make_optimizer = OPTIMIZERS[settings.optimizer]
    optimizer = make_optimizer(groups, settings.lr, settings.momentum, settings.nesterov)
    precision = PRECISIONS[settings.precision](world.device.type)
    model, optimizer = precision.prepare(model, optimizer)
    if settings.compile:
        # "reduce-overhead" is torch's name for CUDA graphs of compiled code. Every shape is compiled by itself: none
        # depends on others.
        model.compile(mode="reduce-overhead" if settings.cuda_graphs else "default", dynamic=False)
    return Learner(
        model=model,
        criterion=criterion(LOSSES[settings.loss], weights, settings.label_smoothing).to(world.device),
        optimizer=optimizer,
        precision=precision,
        ema=Ema.create(model, settings.ema_decay),
        clip_norm=settings.clip_norm,
        passes=PASSES[settings.cuda_graphs and not settings.compile](),
    )


def make_model(config: Params, classes: tuple[str, ...], world: World) -> nn.Module:
    """The model on its device, with its pretrained weights, not yet wrapped."""
    settings = config.train
    model = network.build(settings.model, len(classes), settings.seed)
    if settings.weights != "none":
        weights = Path(config.paths.weights) / weights_file(settings.model)
        message = pretrained.load_into(model, weights, classes)
        if world.is_main:
            print(f"train: {message}", file=sys.stderr)
    if settings.freeze_backbone:
        network.freeze_backbone(model)
    if settings.freeze_norm:
        network.freeze_norm(model, settings.model)
    if settings.gradient_checkpointing:
        network.checkpoint_blocks(model, settings.model)
    memory_format = MEMORY_FORMATS[settings.memory_format]
    model = model.to(world.device).to(memory_format=memory_format)  # type: ignore[call-overload]
    return SYNC_BNS[settings.sync_bn](model)


def microbatch_count(settings: Train, world: World) -> int:
    """The number of equal microbatches of a global batch; each goes through the model by itself."""
    return settings.shards if settings.parallel == "elastic" else world.size * settings.accumulation_steps


def export_weights(learner: Learner, settings: Train) -> dict[str, Tensor]:
    """The weights as they would be exported now: the model's, or their moving average."""
    with learner.ema.swap() if settings.export == "ema" else nullcontext():
        return network.export_state(learner.model)
