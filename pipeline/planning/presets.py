"""Presets: values of `params.yaml` that suit a machine and a number of images. docs/presets.md describes them.

`changes` is a pure function, so the same machine and the same images give the same values. Every preset sets the same
keys, so no value of another preset remains.
"""

import math
from dataclasses import dataclass
from typing import Any

from pipeline.config.machine import Machine

NAMES = ("quick", "scratch", "good", "best", "modern", "fast", "apex")
RECOMMENDED = "quick"
MOST_THREADS = 8  # more compute threads do not make such small models faster
BF16_CAPABILITY = (8, 0)  # Ampere, the oldest GPU with bf16
STEPS = 10  # the least of an epoch
SMALLEST = 8  # the least images in the batch of a process: BatchNorm needs several
MANY = 3000  # training images, if the number is not known

Values = dict[str, Any]  # dotted key → value


@dataclass(frozen=True)
class Recipe:
    """A training, for batches of `batch` images."""

    model: str
    size: int  # side in pixels of the images that the model sees
    batch: int
    lr: float  # for `batch`; a smaller batch gets proportionally less
    steps: int  # with fewer images, an epoch has fewer steps, and there are more epochs
    epochs: tuple[int, int]  # fewest and most
    mixup: float = 0.0
    crop_scale: tuple[float, float] = (0.35, 1.0)
    crop_from: int = 0  # side of the training crops in the first epochs; 0: `size` in all of them


FEATURES = Recipe("timm/tf_efficientnet_lite0", 224, 16, 0.02, 0, (1, 1))  # its head is solved: no steps
CPU = {
    "quick": FEATURES,
    "scratch": Recipe("resnet18", 64, 16, 0.02, 900, (6, 60)),
    "good": Recipe("resnet18", 96, 16, 0.02, 1800, (20, 120), mixup=0.2),
    "best": Recipe("resnet18", 128, 16, 0.02, 4500, (60, 300), mixup=0.2),
}
GPU = {
    "quick": FEATURES,
    "scratch": Recipe("resnet18", 128, 64, 0.05, 1500, (8, 60)),
    "good": Recipe("resnet34", 224, 64, 0.05, 6000, (30, 200), mixup=0.2),
    "best": Recipe("resnet50", 224, 64, 0.05, 20000, (90, 400), mixup=0.2),
    # The committed default.
    "apex": Recipe("resnet34", 224, 64, 0.1, 1400, (30, 120), crop_scale=(0.08, 1.0)),
    # The same task as `apex`, with what torch and GPUs have now. docs/presets.md has the reason of each line.
    "modern": Recipe("resnet34", 224, 128, 0.05, 700, (30, 120), crop_scale=(0.25, 1.0)),
    # A validation accuracy of 0.81 on flower_photos within 10 s on one GPU (docs/presets.md has what was measured).
    "fast": Recipe("resnet18", 160, 64, 0.05, 1375, (30, 120), crop_from=96),
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
    solved = recipe is FEATURES
    # A CPU gets one process: with several, each would have too few images of a small batch for BatchNorm. So does
    # `fast`: its steps are so short that several processes would mostly wait for each other. Features need one.
    batch, processes = _batch(recipe, image_count, 1 if name == "fast" or solved else machine.cuda_devices)
    values = _training(recipe, image_count, batch) | _start(solved)
    if name == "apex":
        return values | _ways("cuda", "O1", "apex_ddp", processes) | {"train.eval_resize": 256, "prepare.size": 256}
    values |= _gpu(machine, processes) if on_gpu else _cpu(machine)
    if solved:
        values |= {"train.precision": "fp32", "train.cuda_graphs": False, "train.memory_format": "channels_last"}
        values |= {"prepare.size": 256, "train.eval_resize": 256}  # the pixels of the centre are not resized again
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
    """Model, sizes, batches, epochs and augmentation. A smaller batch gets a smaller learning rate."""
    low, high = recipe.epochs
    return sizes(recipe.size) | {
        "train.model": recipe.model,
        "train.crop_from": recipe.crop_from,
        "train.crop_scale": list(recipe.crop_scale),
        "train.mixup": recipe.mixup,
        "train.cutmix": 0.0,
        "train.epochs": min(high, max(low, math.ceil(recipe.steps * batch / images))),
        "train.batch_size": batch,
        "train.accumulation_steps": 1,
        "train.optimizer": "sgd",
        "train.lr": float(f"{recipe.lr * batch / recipe.batch:.2g}"),
        "train.reference_batch": 0,
        "train.schedule": "cosine",
        "train.warmup_epochs": 2,
    }


def _start(solved: bool) -> Values:
    """Where a training starts: pretrained features and a head that is solved, or random weights."""
    return {
        "prepare.fit": "crop" if solved else "none",
        "train.weights": "imagenet" if solved else "none",
        "train.freeze_backbone": solved,
        "train.head": "solved" if solved else "trained",
    }


def _cpu(machine: Machine) -> Values:
    """One process. Most CPUs count each core twice (SMT); a second compute thread on a core only waits."""
    return _ways("cpu", "fp32", "single", 1) | {"train.threads": max(1, min(machine.cores // 2, MOST_THREADS))}


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
