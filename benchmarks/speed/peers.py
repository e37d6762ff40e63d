"""3. Training with loading: images per second of ours and of other training programs, on the same photos.

    python -m benchmarks peers --device cuda --archive file:///…/flower_photos_240.tgz

Images per second and seconds per epoch of the same model, batch size and crop. `tutorial`: Pillow in a DataLoader on
all cores; the loss is read back in each step, for the progress bar. `torchvision`: the settings of its reference script
with Pillow; its metrics are read back in each step. `timm`: timm's loader, optimizer and scaler; left out if it is not
installed. The others run with torch's defaults, so their fp32 has convolutions in TF32. Only ours is deterministic. A
turn is one epoch; the first turn is not counted. Ours reads the images that `prepare` packed once. In half precision
ours and timm use the channels-last format.
"""

import importlib
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.harness import measuring, workspace
from benchmarks.harness.measuring import Report, Row, Worker
from pipeline.config import machine, params, validity
from pipeline.engine.environment import required_variables

PEERS = (
    "ours fp32",
    "ours tf32",
    "ours fp16",
    "ours bf16",
    "ours O1",
    "tutorial fp32",
    "tutorial fp16",
    "torchvision fp32",
    "torchvision fp16",
    "timm fp16",
    "timm bf16",
)


@dataclass(frozen=True)
class Preset:
    images: int
    side: int  # of the drawn images
    packed_size: int
    model: str
    batch: int
    crop: int
    turns: int
    peers: tuple[str, ...]


PRESETS = {
    "cuda": Preset(1500, 320, 256, "resnet34", 64, 224, 3, PEERS),
    "cpu": Preset(
        200, 320, 128, "resnet18", 32, 64, 3, ("ours fp32", "tutorial fp32", "torchvision fp32", "timm bf16")
    ),
    "tiny": Preset(60, 48, 48, "resnet18", 16, 32, 1, ("ours fp32", "tutorial fp32", "timm bf16")),
}
EPOCHS = 30  # the tutorial's


# ---------------------------------------------------------------- a peer


def worker(name: str, folder: Path, device: str) -> None:
    """The process of a peer. A turn is one epoch."""
    import torch

    from benchmarks.speed import ours

    kind, precision = name.split()
    with ours.ready(folder, device=device, deterministic=kind == "ours") as ready:
        settings = ready.config.train
        steps = ready.rows // settings.batch_size
        if kind == "ours":
            layout = "channels_last" if precision in ("fp16", "bf16") else "contiguous"
            ready = ready.having(precision=precision, memory_format=layout)  # noqa: PLW2901
            trainer = ours.Trainer.of(ready)
            training: Iterator[Any] = trainer.steps(ready.batches())
        else:
            training = STEPS[kind](ready, torch.device(device), precision)

        def turn() -> Row:
            began = time.perf_counter()
            deque(islice(training, steps), maxlen=0)
            if device == "cuda":
                torch.cuda.synchronize()
            return {"images": steps * settings.batch_size, "seconds": time.perf_counter() - began}

        measuring.serve(turn)


def photos_of(ready: Any) -> list[tuple[str, int]]:
    """Path and label of each training photo."""
    images, data = Path(ready.config.paths.images).resolve(), ready.dataset.packed
    return [(str(images / data.paths[row]), int(data.labels[row])) for row in data.rows("train")]


def autocast_step(model: Any, criterion: Any, optimizer: Any, device: Any, precision: str) -> Callable[..., Any]:
    """A training step as in torch's documentation. It returns loss and logits."""
    import torch

    half = {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    scaler = torch.amp.GradScaler(device.type, enabled=half is torch.float16)

    def step(images: Any, labels: Any) -> Any:
        with torch.autocast(device.type, dtype=half, enabled=half is not None):
            logits = model(images)
            loss = criterion(logits, labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss, logits

    return step


def reference(ready: Any, device: Any, precision: str, lr: float) -> tuple[Any, Any]:
    """torchvision's model in a plain training: its step and its batches, as both reference loops have them."""
    import torch
    from torchvision import models

    from benchmarks.harness import contenders

    settings = ready.config.train
    batches = contenders.tutorial(photos_of(ready), settings.crop, settings.batch_size, device.type == "cuda")
    model = models.get_model(settings.model, num_classes=len(ready.dataset.packed.classes)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)
    return autocast_step(model, torch.nn.CrossEntropyLoss(), optimizer, device, precision), forever(batches)


def tutorial(ready: Any, device: Any, precision: str) -> Iterator[None]:
    """The tutorial's loop."""
    step, batches = reference(ready, device, precision, lr=0.001)
    for images, labels in batches:
        loss, _ = step(images.to(device), labels.to(device))
        loss.item()
        yield


def torchvision(ready: Any, device: Any, precision: str) -> Iterator[None]:
    """The loop of torchvision's reference script: cuDNN benchmark mode; loss, top-1 and top-5 are read in each step."""
    import torch

    torch.backends.cudnn.benchmark = True
    step, batches = reference(ready, device, precision, lr=0.1)
    for images, labels in batches:
        labels = labels.to(device, non_blocking=True)  # noqa: PLW2901
        loss, logits = step(images.to(device, non_blocking=True), labels)
        best = logits.topk(5, 1).indices == labels[:, None]
        for value in (loss, best[:, :1].sum(), best.sum()):
            value.item()
        yield


def timm(ready: Any, device: Any, precision: str) -> Iterator[None]:
    """timm's loader, model, optimizer and step, channels last; the loss is read back every 50 steps."""
    import torch

    data, models, optim = (importlib.import_module(f"timm.{name}") for name in ("data", "models", "optim"))
    from benchmarks.harness import contenders

    torch.backends.cudnn.benchmark = True
    settings = ready.config.train
    dataset = contenders.Files(photos_of(ready), contenders.pillow)
    side, cuda = settings.crop, device.type == "cuda"
    batches = data.create_loader(
        dataset, (3, side, side), settings.batch_size, is_training=True, num_workers=measuring.cores(),
        device=device, use_prefetcher=cuda, pin_memory=cuda, persistent_workers=True,
    )  # fmt: skip
    model = models.create_model(settings.model, num_classes=len(ready.dataset.packed.classes))
    model = model.to(device=device, memory_format=torch.channels_last)
    optimizer = optim.create_optimizer_v2(model, opt="sgd", lr=0.05, momentum=0.9, weight_decay=1e-4)
    step = autocast_step(model, torch.nn.CrossEntropyLoss(), optimizer, device, precision)
    for number, (images, labels) in enumerate(forever(batches)):
        loss, _ = step(images.contiguous(memory_format=torch.channels_last), labels)
        if number % 50 == 0:
            loss.item()
        yield


STEPS = {"tutorial": tutorial, "torchvision": torchvision, "timm": timm}


def forever(batches: Iterable[Any]) -> Iterator[Any]:
    """Epoch after epoch."""
    while True:
        yield from batches


# ---------------------------------------------------------------- the race


def lacks(name: str) -> str:
    """Why a peer cannot run here; empty if it can."""
    from benchmarks.harness.contenders import missing

    if name.startswith("timm"):
        return missing("timm")
    apex = machine.read().apex
    return f"needs {validity.NO_APEX[apex]}" if name.endswith(params.APEX_LEVELS) and apex != "usable" else ""


def main() -> int:
    options = measuring.parser(__doc__, "peers").parse_args()
    preset = PRESETS[measuring.preset(options)]
    with measuring.exit_on_user_error("peers"), tempfile.TemporaryDirectory(prefix="peers-") as temporary:
        base = Path(temporary).resolve()
        photos = workspace.photos(options, base, preset.images, preset.side)
        same = {"model": preset.model, "batch": preset.batch, "crop": preset.crop}
        report = Report("peers", options, **photos.facts, **same)
        taking_part = []
        for name in preset.peers:
            if reason := lacks(name):
                report.leave_out(name, reason)
            else:
                taking_part.append(name)
        if report.missing(taking_part):
            train = {
                "model": preset.model,
                "batch_size": preset.batch,
                "crop": preset.crop,
                "epochs": 1000,
                "lr": 0.001,
            }
            workspace.create_prepared(
                base / "copy",
                workspace.ONE_PROCESS,
                {"train": train, "prepare": {"size": preset.packed_size}},
                photos.params,
            )
            race(taking_part, base / "copy", options.device, preset, report)
        rows = report.rows
        fastest = {
            kind: max((row["images_per_s"] for name, row in rows.items() if name.startswith(kind)), default=None)
            for kind in ("ours", *STEPS)
        }
        report.conclude(
            times_faster={kind: fastest["ours"] / rate for kind, rate in fastest.items() if rate and kind != "ours"},
            same_precision={
                name: rows[f"ours {name.split()[1]}"]["images_per_s"] / row["images_per_s"]
                for name, row in rows.items()
                if not name.startswith("ours") and f"ours {name.split()[1]}" in rows
            },
            epochs=EPOCHS,
            epochs_s={name: EPOCHS * row["epoch_s"] for name, row in rows.items()},
        )
    return 0


def race(names: list[str], folder: Path, device: str, preset: Preset, report: Report) -> None:
    """Add a row for each peer; they take turns."""
    turns: dict[str, list[Row]] = {name: [] for name in names}
    with ExitStack() as stack:
        workers = {}
        for name in names:
            env = required_variables(1, name.startswith("ours"))
            workers[name] = stack.enter_context(Worker("benchmarks.speed.peers", name, str(folder), device, env=env))
        for peer in workers.values():
            peer.ask()
        for name, peer in list(workers.items()) * preset.turns:
            turn = peer.ask()
            turns[name].append({"images_per_s": turn["images"] / turn["seconds"], "epoch_s": turn["seconds"]})
    for name in names:
        report.add(name, measuring.medians(turns[name]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(sys.argv[2], Path(sys.argv[3]), sys.argv[4])
    else:
        sys.exit(main())
