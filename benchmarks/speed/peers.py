"""Seconds per epoch of our train stage and of other training programs, on the same photos.

    python -m benchmarks peers --archive file:///…/flower_photos_mini.tgz

Ours is the real train stage. The others are plain loops, written after their documentation. `tutorial`: ImageFolder
and torchvision's first transforms. `torchvision`: its v2 transforms on tensors, and its own decoder. `timm`: its
dataset and its loader, which leaves out the last images of an epoch if they fill no batch. Lightning is no package of
this project, and is left out. Photos, model, batch, crop, optimizer, precision and number of threads are the same for
all. The others have one loader process per core besides, which stays between epochs.

An epoch is training with loading, and then validation. The first one of a start is not counted. Logs and checkpoints of
ours count; the others write none. Only ours is deterministic. Ours also reads every photo in `split` and in `prepare`,
once: a row has the seconds of each stage, and the conclusion the epoch from which ours takes less time in all. On a CPU
it needs idle cores: threads of one training that wait for each other stop it when another program takes a core.
"""

import importlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.harness import measuring, workspace
from benchmarks.harness.measuring import Report, Row, Worker
from pipeline.base import linux
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.dataset import split_table
from pipeline.learning.environment import required_variables

OURS, ONCE = "ours", ("split", "prepare")  # the stages that read every photo once


@dataclass(frozen=True)
class Preset:
    images: int
    side: int  # of the drawn images
    packed_size: int
    turns: int
    peers: tuple[str, ...]  # name, precision, and `graphs` or `compiled`
    train: dict[str, Any]


PLAIN = {  # the others have no more than this
    "label_smoothing": 0.0, "nesterov": False, "weight_decay": 1e-4, "decay_norm_and_bias": True, "lr": 0.01,
}  # fmt: skip
SMALL = {**PLAIN, "model": "resnet18", "batch_size": 32, "crop": 64, "eval_crop": 64, "eval_resize": 64, "epochs": 3}
LARGE = {**PLAIN, "model": "resnet34", "batch_size": 64, "crop": 224, "eval_crop": 224, "eval_resize": 256, "epochs": 4}
ON_CPU = ("ours fp32", "tutorial fp32", "torchvision fp32", "timm fp32")
ON_GPU = (
    "ours tf32", "tutorial tf32", "ours fp16", "torchvision fp16", "timm fp16", "ours bf16 graphs", "timm bf16",
    "timm bf16 compiled",
)  # fmt: skip
PRESETS = {
    "cuda": Preset(1500, 320, 256, 2, ON_GPU, LARGE),
    "cpu": Preset(400, 320, 128, 2, ON_CPU, SMALL),
    "tiny": Preset(50, 48, 32, 1, ON_CPU, {**SMALL, "crop": 32, "eval_crop": 32, "eval_resize": 32, "epochs": 2}),
}


# ---------------------------------------------------------------- the others


def link_photos(folder: Path) -> None:
    """Make photos/train/CLASS and photos/val/CLASS in a prepared copy, with links to the photos of these splits."""
    config = params.load(folder / "params.yaml")
    for number, row in enumerate(split_table.kept_rows(folder / config.paths.split)):
        original = folder / config.paths.images / row.path
        link = folder / "photos" / row.split / row.label / f"{number:07}{original.suffix}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(original)


def loader(name: str, config: Params, photos: Path, split: str) -> Any:
    """The batches of a split, an iterable for one epoch."""
    import torch
    from torchvision import transforms
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    from benchmarks.harness import contenders
    from pipeline.dataset.normalization import IMAGENET

    settings, training, root = config.train, split == "train", str(photos / split)
    cuda, side = settings.device == "cuda", settings.crop if training else settings.eval_crop
    if name == "timm":
        data: Any = importlib.import_module("timm.data")
        return data.create_loader(
            data.create_dataset("", root), (3, side, side), settings.batch_size, is_training=training,
            color_jitter=0.0, crop_pct=settings.eval_crop / settings.eval_resize, num_workers=linux.usable_cores(),
            device=torch.device(settings.device), use_prefetcher=cuda, pin_memory=cuda,
        )  # fmt: skip
    first: Any = name == "tutorial"
    made: Any = transforms if first else v2
    cut = [made.RandomResizedCrop(side), made.RandomHorizontalFlip()]
    steps = cut if training else [made.Resize(settings.eval_resize), made.CenterCrop(side)]
    convert = made.ToTensor() if first else made.ToDtype(torch.float32, scale=True)
    transform = made.Compose([*steps, convert, made.Normalize(IMAGENET.mean, IMAGENET.std)])
    dataset = ImageFolder(root, transform, loader=contenders.pillow if first else contenders.decoded)
    return torch.utils.data.DataLoader(
        dataset, settings.batch_size, shuffle=training, num_workers=linux.usable_cores(), pin_memory=cuda,
        persistent_workers=True,
    )  # fmt: skip


def train(name: str, folder: Path) -> Row:
    """Train and validate with the params of a prepared copy: the seconds of each epoch except the first."""
    import torch
    from torchvision import models

    config, photos = params.load(folder / "params.yaml"), folder / "photos"
    settings = config.train
    device, dtype = (
        torch.device(settings.device),
        {"fp16": torch.float16, "bf16": torch.bfloat16}.get(settings.precision),
    )
    layout: Any = torch.channels_last if settings.memory_format == "channels_last" else torch.contiguous_format
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = settings.precision == "tf32"
    model = models.get_model(settings.model, num_classes=len([*(photos / "train").iterdir()]))
    model = model.to(device, memory_format=layout)
    if settings.compile:
        model.compile()
    decay, criterion = settings.weight_decay, torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), settings.lr, settings.momentum, weight_decay=decay)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype is torch.float16)
    parts = {split: loader(name, config, photos, split) for split in ("train", "val")}
    read_every, ends = 50 if name == "timm" else 1, []  # steps between two readings of loss and accuracy
    for _ in range(settings.epochs):
        for split, batches in parts.items():
            model.train(split == "train")
            for number, (images, labels) in enumerate(batches):
                inputs = images.to(device, memory_format=layout, non_blocking=True)
                targets = labels.to(device, non_blocking=True)
                autocast = torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None)
                with torch.set_grad_enabled(model.training), autocast:
                    logits = model(inputs)
                    loss = criterion(logits, targets)
                if model.training:
                    optimizer.zero_grad()
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
                if number % read_every == 0:
                    torch.stack([loss.detach(), (logits.argmax(1) == targets).sum()]).tolist()
        if settings.device == "cuda":
            torch.cuda.synchronize()
        ends.append(time.perf_counter())
    return {"epochs": [after - end for end, after in pairwise(ends)]}


def worker(name: str, folder: str) -> None:
    """Be a process: a turn is a training."""
    measuring.serve(lambda: train(name, Path(folder)))


# ---------------------------------------------------------------- the race


def run(folder: Path, peer: str) -> list[float]:
    """Train once: the seconds of each epoch except the first."""
    name, precision, *options = peer.split()
    layout = "channels_last" if precision in ("fp16", "bf16") else "contiguous"
    ways = {"cuda_graphs": "graphs" in options, "compile": "compiled" in options}
    workspace.set_params(folder, {"train": {"precision": precision, "memory_format": layout, **ways}})
    if name != OURS:
        env = required_variables(params.load(folder / "params.yaml").train.threads, deterministic=False)
        with Worker("benchmarks.speed.peers", name, str(folder), env=env) as worker:
            return list(worker.ask()["epochs"])
    workspace.run_stage(folder, "train")
    ends = workspace.ends_of_epochs(folder)
    workspace.forget_runs(folder)
    return [after - end for end, after in pairwise(ends)]


def compared(rows: Mapping[str, Row]) -> Row:
    """Of each other program: its seconds relative to ours in the same precision; from which epoch ours takes less."""
    once, times, epochs = sum(rows[f"{stage}, once"]["seconds"] for stage in ONCE), {}, {}
    for name, row in rows.items():
        if "epoch_s" in row and not name.startswith(OURS):
            ours = min(rows[own]["epoch_s"] for own in rows if own.startswith(f"{OURS} {name.split()[1]}"))
            times[name] = row["epoch_s"] / ours
            epochs[name] = measuring.less_from(once, ours, row["epoch_s"])
    return {"once_s": once, "times_as_long": times, "less_from_epoch": epochs}


def main() -> None:
    parser, cores = measuring.parser(__doc__, "peers"), linux.usable_cores()
    parser.add_argument("--threads", type=int, help="of every training process (default: one per core; with a GPU 1)")
    options = parser.parse_args()
    preset = PRESETS[measuring.preset(options)]
    threads = options.threads or (1 if options.device == "cuda" or options.tiny else cores)
    training = {**preset.train, "threads": threads}
    with workspace.temporary_folder("peers") as base:
        photos, folder = workspace.photos(options, base, preset.images, preset.side), base / "copy"
        about = {**photos.facts, "packed_size": preset.packed_size, "loader_processes": cores}
        report = Report("peers", options, **about, **training)
        changes: workspace.Changes = {
            "prepare": {"size": preset.packed_size},
            "train": {**training, "device": options.device},
            "evaluate": {"batch_size": training["batch_size"]},
        }
        if todo := measuring.unfinished(report, preset.peers, preset.turns):
            workspace.create_prepared(folder, workspace.ONE_PROCESS, changes, photos.params, store=options.store)
            for stage in report.missing(f"{stage}, once" for stage in ONCE):  # again: the store may have the outputs
                began = time.perf_counter()
                workspace.run_stage(folder, stage.split(",")[0])
                report.add(stage, {"seconds": time.perf_counter() - began})
            link_photos(folder)
            measuring.take_turns(report, todo, preset.turns, lambda peer: run(folder, peer))
        report.conclude(**compared(report.rows))
