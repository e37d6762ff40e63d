"""What train.parallel: elastic gives, and what it costs against ddp: bytes, time, and accuracy.

    python -m benchmarks elastic hashes      the model's SHA-256 for every launcher × processes × precision × optimizer
    python -m benchmarks elastic cost        seconds a step of ddp and of elastic by processes and shards, same batch
    python -m benchmarks elastic accuracy --archive file:///…/flower_photos_mini.tgz --sha256 …    over 5 seeds

Each prints a table and writes benchmarks/results/elastic_<part>.json, with the machine. Contenders take turns in the
same processes; a ratio is that of medians. Hashes and accuracy are of real runs of the stages in a copy of the project.
"""

import argparse
import itertools
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.harness.measuring import RESULTS, formatted, machine, medians
from benchmarks.harness.workspace import create_prepared, forget_runs, run_stage, set_params, temporary_folder
from pipeline.base import files, linux
from pipeline.evaluation import figures
from pipeline.evaluation.figures import EvalFigures, TrainFigures
from pipeline.learning import collectives, determinism, elastic, loop
from pipeline.learning.choices import OPTIMIZERS, PARALLELS, PRECISIONS
from pipeline.learning.ema import Ema
from pipeline.learning.loop import Learner, Totals
from pipeline.learning.world import World, share
from pipeline.loader.batches import Batch
from pipeline.models import network
from pipeline.running import group, rendezvous

SHARDS = (2, 4, 8)
MOST = max(SHARDS)
SMALL: dict[str, dict[str, Any]] = {  # for hashes: drawn flowers, a few steps
    "data": {"source": "synthetic", "synthetic": {"count": 120, "size": 48}},
    "split": {"phash_distance": 0},
    "prepare": {"size": 64},
    "train": {
        "device": "cpu", "precision": "fp32", "parallel": "elastic", "model": "shufflenet_v2_x0_5", "batch_size": 16,
        "epochs": 2, "crop": 32, "eval_crop": 64, "eval_resize": 64, "lr": 0.01, "warmup_epochs": 0, "shards": MOST,
    },
    "run": {"log_steps": 100},
}  # fmt: skip
PHOTOS: dict[str, dict[str, Any]] = {  # for accuracy: real photos, ResNet-18 at 64 pixels from scratch
    "prepare": {"size": 80},
    "train": {
        "device": "cpu", "precision": "fp32", "parallel": "ddp", "model": "resnet18", "batch_size": 64, "epochs": 15,
        "crop": 64, "eval_crop": 64, "eval_resize": 72, "lr": 0.04,
    },
    "run": {"processes": 2, "log_steps": 100},
}  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "ddp": {"parallel": "ddp"},
    **{f"elastic_{shards}": {"parallel": "elastic", "shards": shards} for shards in SHARDS},
}


def train(folder: Path, params: dict[str, dict[str, Any]]) -> None:
    """Train in the folder with these changes. Raises RuntimeError if it fails."""
    set_params(folder, params)
    run_stage(folder, "train")


# ---------------------------------------------------------------- hashes


def hashes() -> Iterator[dict[str, Any]]:
    """A row for every way of running."""
    with temporary_folder("elastic") as base:
        folder = base / "copy"
        create_prepared(folder, SMALL)
        for precision, optimizer, launcher, processes in itertools.product(
            ("fp32", "bf16"), ("sgd", "adamw"), ("torchrun", "spawn"), (1, 2, 3, 8)
        ):
            if launcher == "spawn" and processes != 3:
                continue
            changes = {"precision": precision, "optimizer": optimizer, "lr": 0.01 if optimizer == "sgd" else 0.001}
            train(folder, {"train": changes, "run": {"launcher": launcher, "processes": processes}})
            yield {
                "precision": precision, "optimizer": optimizer, "launcher": launcher, "processes": processes,
                "sha256": files.sha256(folder / "models/model.safetensors"),
            }  # fmt: skip
            forget_runs(folder)


# ---------------------------------------------------------------- cost


def moved(processes: int, shards: int) -> dict[str, float]:
    """Bytes that the busiest process sends in a step, as a multiple of the gradients' bytes; a ring's beside it."""
    others = (processes - 1) / processes
    most = max(len(elastic.subtrees(share(shards, rank, processes))) for rank in range(processes))
    return {"elastic": most * others + others, "ring": 2 * others}


def steps_of(microbatches: int, name: str, world: World, batch: int, side: int, kind: str) -> Iterator[None]:
    """Endless training steps of a ResNet-34 on noise, spread as `name` says, in the precision `kind`."""
    net = network.build("resnet34", 5, 0).to(world.device)
    precision = PRECISIONS[kind](world.device.type)
    groups = network.parameter_groups(net, 5e-4, False)
    net, optimizer = precision.prepare(net, OPTIMIZERS["sgd"](groups, 0.1, 0.9, True))
    parallel_model = PARALLELS[name](net, world, True, microbatches)
    rows = parallel_model.share.take(torch.arange(batch).numpy())
    images = torch.randn(len(rows), 3, side, side, device=world.device)
    labels = torch.zeros(len(rows), dtype=torch.int64, device=world.device)
    learner = Learner(net, nn.CrossEntropyLoss(), optimizer, precision, Ema.create(net, 0.0), 0.0)
    endless = itertools.repeat(Batch(0, images, labels, labels, 0))
    for _ in loop.train(learner, parallel_model, endless, [1e-3], Totals.zero(world.device, microbatches)):
        yield


def measure(steps: Iterator[None], count: int, world: World) -> float:
    """Seconds a step of the slowest process."""
    collectives.barrier()
    began = time.perf_counter()
    for _ in range(count):
        next(steps)
    if world.device.type == "cuda":
        torch.cuda.synchronize()
    return float(max(collectives.all_gather_object((time.perf_counter() - began) / count)))


def worker(*arguments: str) -> None:
    """Be one process of a race between ddp and elastic with few and many shards, which take turns.

    `arguments`: the images of a batch, their side in pixels, the turns, the steps of a turn, and the precision. The
    first process prints the seconds as JSON.
    """
    batch, side, rounds, count = map(int, arguments[:4])
    precision = arguments[4]
    linux.keep_freed_memory()  # these two as a stage does
    determinism.make_deterministic(1, True)
    world = rendezvous.world_of(os.environ, "cuda" if torch.cuda.is_available() else "cpu")
    with group.join(world, 600):
        contenders = {"ddp": world.size, **{f"elastic {shards}": shards for shards in SHARDS if shards >= world.size}}
        runners = {
            name: steps_of(parts, name.split()[0], world, batch, side, precision) for name, parts in contenders.items()
        }
        for steps in runners.values():
            measure(steps, 2, world)  # the first steps choose algorithms and fill caches
        seconds = [{name: measure(steps, count, world) for name, steps in runners.items()} for _ in range(rounds)]
        runners.clear()  # a wrapped model that outlives the process group can hang the process
    if world.is_main:
        print(json.dumps(seconds))


def cost() -> Iterator[dict[str, Any]]:
    """A row for every number of processes and of shards."""
    gpus = torch.cuda.device_count()
    sizes = [size for size in (1, 2, 4, 8) if size <= gpus] if gpus else [1, 2, 4]
    batch, side, rounds, count = (256, 224, 7, 20) if gpus else (32, 64, 5, 3)
    for size, precision in itertools.product(sizes, ("fp32", "bf16") if gpus else ("fp32",)):
        torchrun = ["torchrun", "--standalone", f"--nproc-per-node={size}", "-m", "benchmarks", "worker"]
        command = [*torchrun, "benchmarks.speed.elastic", *map(str, (batch, side, rounds, count, precision))]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        seconds = medians(json.loads(done.stdout.splitlines()[-1]))
        for shards in SHARDS:
            if ours := seconds.get(f"elastic {shards}"):
                yield {
                    "processes": size, "precision": precision, "batch": batch, "side": side, "shards": shards,
                    "ddp_seconds": seconds["ddp"], "elastic_seconds": ours, "ratio": ours / seconds["ddp"],
                    "bytes_moved": moved(size, shards)["elastic"], "ring_bytes_moved": moved(size, shards)["ring"],
                }  # fmt: skip


# ---------------------------------------------------------------- accuracy


def accuracy(archive: str, sha256: str) -> Iterator[dict[str, Any]]:
    """A row for every seed: validation and test accuracy of ddp and of elastic, on the same photos and draws."""
    with temporary_folder("elastic") as base:
        folder = base / "copy"
        create_prepared(folder, {**PHOTOS, "data": {"url": archive, "sha256": sha256}})
        for seed in range(5):
            row: dict[str, Any] = {"seed": seed}
            for name, way in WAYS.items():
                train(folder, {"train": {"seed": seed, **way}})
                run_stage(folder, "evaluate")
                row[f"{name}_val"] = figures.read(folder / "metrics", TrainFigures).val_accuracy
                row[f"{name}_test"] = figures.read(folder / "metrics", EvalFigures).accuracy
            yield row


def report(name: str, rows: Iterator[dict[str, Any]]) -> None:
    """Print the rows as they come, and write them all."""
    done: list[dict[str, Any]] = []
    for row in rows:
        if not done:
            print("  ".join(row))
        print("  ".join(map(formatted, row.values())), flush=True)
        done.append(row)
        files.write_json(RESULTS / f"elastic_{name}.json", {"machine": machine(), "rows": done})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks elastic", description=(__doc__ or "").split("\n")[0])
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("hashes")
    parts.add_parser("cost")
    photos = parts.add_parser("accuracy")
    photos.add_argument("--archive", required=True)
    photos.add_argument("--sha256", required=True)
    options = parser.parse_args()
    if options.part == "accuracy":
        report("accuracy", accuracy(options.archive, options.sha256))
    else:
        report(options.part, hashes() if options.part == "hashes" else cost())
