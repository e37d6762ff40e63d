"""Tables of docs/ that are made of the presets, and of single reports in benchmarks/results."""

import json
import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.harness.measuring import RESULTS
from benchmarks.harness.workspace import STAGES
from benchmarks.speed import elastic
from pipeline.planning import presets
from pipeline.planning.presets import Recipe
from tests.conftest import PROJECT
from tests.helpers.launches import OF_A_BATCH, OF_A_STEP

OF_CPU = presets.CPU
OF_GPU = presets.GPU
BATCH = elastic.PHOTOS["train"]["batch_size"]
SHARDS = elastic.SHARDS
MODELS = {
    "resnet18 64 px": "ResNet-18, 32 of 64 pixels",
    "resnet34 64 px": "ResNet-34, 32 of 64 pixels",
    "resnet18 224 px": "ResNet-18, 16 of 224 pixels",
    "resnet34 224 px": "ResNet-34, 16 of 224 pixels",
    "mobilenet_v3_small 224 px": "MobileNetV3-small, 16 of 224 pixels",
    "vit_b_32 224 px": "ViT-B/32, 8 of 224 pixels",
}


def table(titles: str, rows: Iterable[Iterable[object]]) -> str:
    """A table of Markdown: the titles as one line, and the cells of each row."""
    head = [f"| {titles} |", f"|{'---|' * (titles.count('|') + 1)}"]
    return "\n".join([*head, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def report(name: str, part: str = "rows") -> Any:
    return json.loads((PROJECT / RESULTS / f"{name}.json").read_text())[part]


def recipes(of: Mapping[str, Recipe]) -> str:
    """The values of each preset."""
    titles = "preset | model | pixels | batch | learning rate | training steps, about | epochs | mixup"
    rows = []
    for name, recipe in of.items():
        sides = range(recipe.crop_from, recipe.size + 1, 32) if recipe.crop_from else [recipe.size]
        rows.append(
            (
                f"`{name}`", recipe.model, ", ".join(map(str, sides)), *(
                    (recipe.batch, recipe.lr, f"{recipe.steps:,}", f"{recipe.epochs[0]} to {recipe.epochs[1]}")
                    if recipe.steps else ("–", "–", "none: the head is solved", "–")
                    if recipe.start["train.freeze_backbone"] else (recipe.batch, recipe.lr, "–", recipe.epochs[0])
                ), recipe.mixup or "–",
            )
        )  # fmt: skip
    return table(titles, rows)


def arithmetic() -> str:
    """Seconds of a step in native and in portable arithmetic; also with channels_last, where the report has it."""
    rows, titles = report("arithmetic_cpu"), {
        "native_seconds": "native", "portable_seconds": "portable", "ratio": "ratio",
        "channels_last_seconds": "portable, channels_last", "channels_last_ratio": "ratio",
    }  # fmt: skip
    figures = [name for name in titles if all(name in row for row in rows.values())]
    cells = [
        (title, *(f"{rows[name][figure]:.{3 if 'seconds' in figure else 2}f}" for figure in figures))
        for name, title in MODELS.items()
    ]
    return table(" | ".join(["model, images", *(titles[name] for name in figures)]), cells)


def state() -> str:
    """What the hash of the whole state costs, against the steps of an epoch."""
    rows = [
        (title, f"{row['megabytes']:.0f}", f"{row['hash_seconds']:.2f}", f"{row['epoch_seconds']:.1f}",
         f"{row['share']:.2%}")
        for title, row in report("state_cpu").items()
    ]  # fmt: skip
    return table("model, pixels, images of an epoch | MB | hash, s | epoch, s | share", rows)


def scale() -> str:
    """Time and memory of the stages, by the number of images."""
    rows = [
        (*name.split(), row["seconds"], 1e3 * row["cpu_s"] / int(name.split()[1].replace(",", "")), row["peak_mb"])
        for name, row in report("scale_cpu").items()
    ]
    rows.sort(key=lambda row: (STAGES.index(row[0]), len(row[1])))
    cells = [
        (stage, images, f"{seconds:,.0f} s", f"{each:.2f} ms", f"{peak:,.0f} MB")
        for stage, images, seconds, each, peak in rows
    ]
    return table("stage | images | time | CPU time per image | memory, at most", cells)


def steps() -> str:
    """Speed and memory of a training step on a GPU, for each precision and for FusedSGD."""
    rows, times = report("steps_cuda"), report("steps_cuda", "figures")["times_fp32"]
    cells = [
        (*(f"`{word}`" for word in name.split()), f"{row['images_per_s']:,.0f}", f"{times[name]:.2f}",
         f"{row['gpu_memory_mb']:,.0f} MB")
        for name, row in rows.items()
    ]  # fmt: skip
    return table("`train.precision` | `train.optimizer` | images/s | relative to fp32 | most memory", cells)


def elastic_cost() -> str:
    """Seconds per step with ddp and with elastic."""
    figures = ("ddp_seconds", "elastic_seconds", "ratio", "bytes_moved")
    rows = [
        (row["processes"], row["shards"], *(f"{row[name]:.2f}" for name in figures)) for row in report("elastic_cost")
    ]
    return table("processes | shards | ddp | elastic | ratio | bytes sent", rows)


def lack(seeds: Iterable[Mapping[str, float]], way: str, part: str) -> tuple[float, float]:
    """What a way lacks to the accuracy of ddp, over the seeds: the mean, and its standard error."""
    less = [seed[f"ddp_{part}"] - seed[f"{way}_{part}"] for seed in seeds]
    return statistics.mean(less), statistics.stdev(less) / math.sqrt(len(less))


def elastic_accuracy() -> str:
    """The mean accuracies of the seeds, and what they lack to those of ddp with the standard error."""
    seeds = report("elastic_accuracy")

    def cells(way: str) -> Iterable[str]:
        for part in ("val", "test"):
            yield f"{statistics.mean(seed[f'{way}_{part}'] for seed in seeds):.3f}"
            less, error = lack(seeds, way, part)
            yield "–" if way == "ddp" else f"{less:.3f} ({error:.3f})"

    measured = [shards for shards in SHARDS if f"elastic_{shards}_val" in seeds[0]]
    rows = [(f"elastic, {shards} shards", BATCH // shards, *cells(f"elastic_{shards}")) for shards in measured]
    titles = "mean of five seeds | images per BatchNorm | 79 validation images | less than ddp (standard error)"
    ddp = ("ddp on 2 processes", BATCH // 2, *cells("ddp"))
    return table(f"{titles} | 61 test images | less than ddp (standard error)", [ddp, *rows])


def elastic_price() -> str:
    """What the shards cost: the time of a step on one process, and the accuracy on test images."""
    alone = [row for row in report("elastic_cost") if row["processes"] == 1]
    rows = [
        (
            f"{row['shards']} of {row['batch'] // row['shards']} images, ResNet-34",
            f"a step of `ddp` on one process, with {row['batch']} images at once",
            f"{row['ratio']:.2f} times the time",
        )
        for row in alone
    ]
    seeds = report("elastic_accuracy")
    for shards in (shards for shards in SHARDS if f"elastic_{shards}_test" in seeds[0]):
        less, error = (f"{100 * value:.1f}" for value in lack(seeds, f"elastic_{shards}", "test"))
        rows.append(
            (
                f"{shards} of {BATCH // shards} images, ResNet-18 from scratch",
                f"`ddp` on 2 processes, so BatchNorm over {BATCH // 2} images",
                f"{less} points less accuracy on test images (standard error {error})",
            )
        )
    return table("shards | compared with | result", rows)


def launches() -> str:
    """The table of the launches of a step, as tests/test_launches.py holds them."""
    of_parallel = {"single": "", "elastic": " with `elastic`, 8 shards on one process"}
    models = {"resnet18": "ResNet-18", "resnet34": "ResNet-34"}
    rows = [
        f"| {models[model]}{words} | {eager:,} | {graphs} |"
        for parallel, words in of_parallel.items()
        for model, (eager, graphs) in OF_A_STEP[parallel].items()
    ]
    head = ["| step | at most | with CUDA graphs, at most |", "|---|---|---|"]
    return "\n".join([*head, f"| cutting a batch | {OF_A_BATCH} | {OF_A_BATCH} |", *rows])
