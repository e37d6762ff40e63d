"""Presets: values of `params.yaml` that suit a machine and a number of images. docs/presets.md describes them.

`changes` is a pure function, so the same machine and the same images give the same values. Every preset sets the same
keys, so no value of another preset remains.
"""

import math
from dataclasses import dataclass
from typing import Any

from pipeline.checks.machine import Machine

NAMES = ("quick", "good", "best", "scratch", "tutorial", "modern", "fast", "apex")
RECOMMENDED = "quick"
MOST_THREADS = 8  # more compute threads do not make such small models faster
BF16_CAPABILITY = (8, 0)  # Ampere, the oldest GPU with bf16
STEPS = 10  # the least of an epoch
SMALLEST = 8  # the least images in the batch of a process: BatchNorm needs several
MANY = 3000  # training images, if the number is not known
ENOUGH = 1500  # training images with which a head may be smoother

Values = dict[str, Any]  # dotted key → value

# What a preset sets if nothing below says otherwise.
RANDOM: Values = {
    "prepare.fit": "none",
    "train.weights": "none",
    "train.freeze_backbone": False,
    "train.freeze_norm": False,
    "train.head": "trained",
    "train.head_l2": 0.5,
    "train.temperature": "none",
    "train.crop_from": 0,
    "train.crop_scale": [0.35, 1.0],
    "train.mixup": 0.0,
    "train.cutmix": 0.0,
    "train.accumulation_steps": 1,
    "train.optimizer": "sgd",
    "train.reference_batch": 0,
    "train.schedule": "cosine",
    "train.weight_decay": 0.0005,
    "train.label_smoothing": 0.1,
    "train.ema_decay": 0.0,
    "train.export": "last",
    "train.warmup_epochs": 2,
    "train.final_lr": 0.0,
}
CALIBRATED = RANDOM | {"train.temperature": "fitted"}
# The view of the pretrained network: its pixels of the centre are not resized again.
WHOLE = CALIBRATED | {
    "prepare.fit": "crop", "prepare.size": 256, "train.eval_resize": 256, "train.eval_crop": 224,
    "train.memory_format": "channels_last", "train.weights": "imagenet", "train.head": "solved",
    "train.freeze_norm": True,
}  # fmt: skip
HEAD = WHOLE | {
    "train.freeze_backbone": True, "train.freeze_norm": False, "train.precision": "fp32", "train.cuda_graphs": False,
}  # fmt: skip
FURTHER = WHOLE | {  # the average of the weights is exported
    "train.optimizer": "adamw", "train.weight_decay": 0.05, "train.ema_decay": 0.99, "train.export": "ema",
    "train.warmup_epochs": 0.5,
}  # fmt: skip
AS_COMMITTED = RANDOM | {"train.crop_scale": [0.08, 1.0]}
AS_IN_TUTORIAL = AS_COMMITTED | {
    "train.weights": "imagenet", "train.warmup_epochs": 0, "train.final_lr": 0.1, "train.weight_decay": 0.005,
    "train.label_smoothing": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """A training, for batches of `batch` images."""

    model: str
    size: int  # side in pixels of the images that the model sees
    batch: int
    lr: float  # for `batch`; a smaller batch gets proportionally less
    steps: int  # with fewer images, an epoch has fewer steps, and there are more epochs
    epochs: tuple[int, int]  # fewest and most
    values: Values


LITE0 = "timm/tf_efficientnet_lite0"
CPU = {
    "quick": Recipe("exact/tf_efficientnet_lite0", 224, 16, 0.02, 0, (1, 1), HEAD),  # no steps
    "good": Recipe(LITE0, 192, 16, 0.0003, 0, (4, 4), FURTHER),
    "best": Recipe(LITE0, 224, 16, 0.0003, 0, (12, 12), FURTHER | {"train.mixup": 0.2}),
    "scratch": Recipe("resnet18", 64, 16, 0.02, 900, (6, 60), CALIBRATED),
    "tutorial": Recipe("resnet34", 224, 16, 0.001, 0, (30, 30), AS_IN_TUTORIAL),
}
GPU = CPU | {
    "scratch": Recipe("resnet18", 128, 64, 0.05, 1500, (8, 60), CALIBRATED),
    # The committed default.
    "apex": Recipe("resnet34", 224, 64, 0.1, 1400, (30, 120), AS_COMMITTED),
    # The same task as `apex`, with what torch and GPUs have now. docs/presets.md has the reason of each line.
    "modern": Recipe("resnet34", 224, 128, 0.05, 700, (30, 120), RANDOM | {"train.crop_scale": [0.25, 1.0]}),
    # A validation accuracy of 0.81 on flower_photos within 10 s on one GPU (docs/presets.md has what was measured).
    # `train.crop_from` is the side of the training crops in the first epochs.
    "fast": Recipe("resnet18", 160, 64, 0.05, 1375, (30, 120), RANDOM | {"train.crop_from": 96}),
}


def sizes(size: int) -> Values:
    """The four sizes of the images, in pixels, from the one that the model sees."""
    return {
        "prepare.size": size * 5 // 4,
        "train.crop": size,
        "train.eval_crop": size,
        "train.eval_resize": size * 9 // 8,
    }


def changes(name: str, machine: Machine, images: int) -> Values:
    """The params of the preset `name` for this number of training images; 0: not known, MANY are assumed."""
    on_gpu = name not in CPU or machine.cuda_devices > 0
    recipe, image_count = (GPU if on_gpu else CPU)[name], images or MANY
    # A CPU gets one process: with several, each would have too few images of a small batch for BatchNorm. So does
    # `fast`: its steps are so short that several processes would mostly wait for each other. Features need one.
    devices = 1 if name in ("quick", "fast") else max(1, machine.cuda_devices)
    batch, processes = _batch(recipe, image_count, devices)
    if name == "tutorial":  # its batch is that of each process
        processes = max(1, min(devices, image_count // (2 * SMALLEST)))
        batch = _batch(recipe, image_count // processes, 1)[0] * processes
    values = _training(recipe, image_count, batch)
    if name == "apex":
        ways = _ways("cuda", "O1", "apex_ddp", processes)
        return values | ways | recipe.values | {"train.eval_resize": 256, "prepare.size": 256}
    values |= (_gpu(machine, processes) if on_gpu else _cpu(machine)) | recipe.values
    if values["train.head"] == "solved" and image_count >= ENOUGH:
        values |= {"train.head_l2": 1.0}  # docs/presets.md has both
    if name == "tutorial" and processes > 1:
        values |= {"train.sync_bn": "torch"}
    if name == "modern":
        graphs = processes == 1 and not machine.compiler
        values |= {"train.precision": "bf16", "train.compile": machine.compiler, "train.cuda_graphs": graphs}
    return values


def obstacle(name: str, machine: Machine) -> str:
    """The reason why a preset cannot run on this machine; empty if it can."""
    if name not in CPU and not machine.cuda_devices:
        return "needs an NVIDIA GPU (found: none)"
    if name == "modern" and not _has_bf16(machine):
        return "needs GPUs with bf16 (Ampere or later)"
    return "needs Apex, which the container has" if name == "apex" and machine.apex != "usable" else ""


def choices(machine: Machine) -> tuple[str, ...]:
    """The presets that can run on this machine; apex perhaps only in the container."""
    return tuple(name for name in NAMES if not obstacle(name, machine) or (name == "apex" and machine.cuda_devices > 0))


def _has_bf16(machine: Machine) -> bool:
    return min(machine.compute_capabilities, default=BF16_CAPABILITY) >= BF16_CAPABILITY


def _batch(recipe: Recipe, images: int, devices: int) -> tuple[int, int]:
    """The batch size, and the number of processes that share it: at most `devices`, at least one.

    For few images the batch of the recipe is halved until an epoch has STEPS steps, or two steps of SMALLEST images.
    """
    options = [recipe.batch >> halvings for halvings in range(recipe.batch.bit_length())]
    enough = (size for size in options if images // size >= (STEPS if size > SMALLEST else 2))
    batch = next(enough, 1)
    processes = max(1, min(devices, batch // SMALLEST))
    return batch // processes * processes, processes


def _training(recipe: Recipe, images: int, batch: int) -> Values:
    """Model, sizes, batch and epochs. A smaller batch gets a smaller learning rate."""
    low, high = recipe.epochs
    return sizes(recipe.size) | {
        "train.model": recipe.model,
        "train.epochs": min(high, max(low, math.ceil(recipe.steps * batch / images))),
        "train.batch_size": batch,
        "train.lr": float(f"{recipe.lr * batch / recipe.batch:.2g}"),
    }


def _cpu(machine: Machine) -> Values:
    """One process, with one compute thread on each core: a second one on the same core (SMT) only waits."""
    return _ways("cpu", "fp32", "single", 1) | {"train.threads": min(machine.physical_cores, MOST_THREADS)}


def _gpu(machine: Machine, processes: int) -> Values:
    """Without graphs a GPU waits for the host [benchmarks/results/ceiling_cuda.json]."""
    precision = "bf16" if _has_bf16(machine) else "fp16"
    ways = _ways("cuda", precision, "ddp" if processes > 1 else "single", processes)
    return ways | {"train.memory_format": "channels_last", "train.cuda_graphs": processes == 1}


def _ways(device: str, precision: str, parallel: str, processes: int) -> Values:
    """The settings of devices and processes. Other settings are those of the committed params.yaml."""
    return {
        "train.device": device,
        "train.threads": 1,
        "train.precision": precision,
        "train.parallel": parallel,
        "train.sync_bn": "none",
        "train.memory_format": "contiguous",
        "train.compile": False,
        "train.cuda_graphs": False,
        # Every batch is filled up. On a CPU eight images take as long as eight times one [measured]: few are wasted.
        "evaluate.batch_size": 64 if device == "cuda" else 8,
        "run.launcher": "torchrun",
        "run.processes": processes,
        "run.nodes": 1,
        "run.min_processes": 0,
    }
