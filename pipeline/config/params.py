"""`params.yaml` as typed, frozen values: every setting, and what each may be.

    python -m pipeline.config.params                  prints the params as they are understood, or every fault at once
    python -m pipeline.config.params --upgrade        writes settings that params.yaml lacks, with their comments

A setting that is missing in params.yaml has its value of defaults.yaml. `validity.py` checks what depends on two
settings, or on the machine.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.base import linux
from pipeline.base.errors import UserError, exit_status
from pipeline.config import document, upgrade

FILE = Path("params.yaml")

Precision = Literal["fp32", "tf32", "bf16", "fp16", "O0", "O1", "O2", "O3"]
Parallel = Literal["single", "dp", "ddp", "apex_ddp", "elastic"]
Launcher = Literal["torchrun", "spawn", "slurm"]
Device = Literal["cuda", "cpu"]
Grey = Literal["full", "minmax", "percentile"]
Duplicates = Literal["together", "ignore"]
Arithmetic = Literal["native", "portable"]
APEX_LEVELS = ("O0", "O1", "O2", "O3")  # the precisions that Apex provides

# Every whole number has an upper limit far above any useful value, so that a typing error is refused at once.
Epochs = Annotated[int, Field(ge=1, le=100_000)]
Batch = Annotated[int, Field(ge=1, le=2**20)]  # 3 GB of the smallest crops
Parts = Annotated[int, Field(ge=1, le=4096)]
Processes = Annotated[int, Field(ge=1, le=10_000)]  # validity.py has a lower limit for one machine
Threads = Annotated[int, Field(ge=1, le=1024)]  # above the cores of any machine; each needs memory for its stack
Workers = Annotated[int, Field(ge=0, le=1024)]
Seconds = Annotated[int, Field(ge=1, le=1_000_000)]  # 11 days
Count = Annotated[int, Field(ge=1, le=10**9)]
Natural = Annotated[int, Field(ge=0, le=10**9)]
Share = Annotated[float, Field(ge=0, le=1)]
# Learning rates, decays and such are multiplied in 32 bits. Beyond these limits the results become infinite.
Factor = Annotated[float, Field(gt=0, le=1000)]
Decay = Annotated[float, Field(ge=0, le=1000)]
Alpha = Annotated[float, Field(ge=0, le=100)]
Norm = Annotated[float, Field(ge=0, le=1e6)]
Ratio = Annotated[float, Field(ge=0.01, le=100)]
Scale = Annotated[float, Field(ge=1e-6, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Side = Annotated[int, Field(ge=16, le=1024)]
# The system allows 255 bytes per name and 4,096 bytes per path. The project's folder comes before a path, and stages
# lengthen its last name.
LONGEST_NAME, LONGEST_PATH, LONGEST_URL = 200, 1000, 2000
NAME = rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{LONGEST_NAME - 1}}}"
RELATIVE_PATH = rf"^{NAME}(/{NAME})*$"
RelativePath = Annotated[str, Field(pattern=RELATIVE_PATH, max_length=LONGEST_PATH)]
ANY_FOLDER = rf"{RELATIVE_PATH}|^/.+$"
URL = r"^(https|file)://\S+$"
SHA256 = r"^[0-9a-f]{64}$"
WEIGHTS = rf"^(none|imagenet)$|{RELATIVE_PATH}"
HOST_PORT = r"^\S{1,255}:(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[0-5]?[0-9]{1,4})$"
PATTERNS = {  # the regular expressions, in words
    RELATIVE_PATH: (
        f"a path inside the project, of letters, digits, '.', '_', '-' and '/', with names of at most {LONGEST_NAME}"
    ),
    ANY_FOLDER: (
        "a path inside the project, of letters, digits, '.', '_', '-' and '/', or the path of any folder from / on, "
        "such as /home/me/photos"
    ),
    URL: "an https:// or file:// address",
    WEIGHTS: "none, imagenet, or the path of a .pth or .safetensors file inside the project",
    HOST_PORT: "host:port, with a port from 0 to 65535",
    SHA256: "64 lower-case hexadecimal digits (sha256sum prints them)",
}


class Section(BaseModel):
    """A frozen part of the params that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Paths(Section):
    inbox: Annotated[str, Field(pattern=ANY_FOLDER, max_length=LONGEST_PATH)]
    pretrained: RelativePath
    archives: RelativePath
    images: RelativePath
    weights: RelativePath
    split: RelativePath
    packed: RelativePath
    models: RelativePath
    metrics: RelativePath
    reports: RelativePath
    runs: RelativePath


class Synthetic(Section):
    count: Annotated[int, Field(ge=50, le=1_000_000)]
    size: Annotated[int, Field(ge=32, le=1024)]
    seed: Seed


class Data(Section):
    source: Literal["archive", "inbox", "folder", "synthetic"]
    url: Annotated[str, Field(pattern=URL, max_length=LONGEST_URL)]
    sha256: Annotated[str, Field(pattern=SHA256)]
    max_files: Count
    max_bytes: Annotated[int, Field(ge=1, le=10**15)]
    synthetic: Synthetic


class Fractions(Section):
    train: Annotated[float, Field(gt=0, lt=1)]
    val: Annotated[float, Field(gt=0, lt=1)]
    test: Annotated[float, Field(gt=0, lt=1)]


class Split(Section):
    seed: Seed
    fractions: Fractions
    folds: Annotated[int, Field(ge=1, le=1000)]
    fold: Natural
    duplicates: Duplicates = "together"
    phash_distance: Annotated[int, Field(ge=0, le=16)]
    group: Annotated[str, Field(min_length=1, max_length=200)] = "none"
    stratify: bool = False
    min_side: Annotated[int, Field(ge=1, le=65_535)]  # the longest side of a JPEG
    max_pixels: Count
    max_unreadable: Natural


class Prepare(Section):
    size: Side
    grey: Grey = "full"


class Train(Section):
    seed: Seed
    deterministic: bool
    arithmetic: Arithmetic = "native"
    device: Device
    threads: Threads
    precision: Precision
    parallel: Parallel
    model: Annotated[str, Field(max_length=100)]
    weights: Annotated[str, Field(pattern=WEIGHTS, max_length=LONGEST_PATH)]
    freeze_backbone: bool
    sync_bn: Literal["none", "torch", "apex"]
    memory_format: Literal["contiguous", "channels_last"]
    compile: bool
    cuda_graphs: bool
    gradient_checkpointing: bool
    crop: Side
    crop_from: Annotated[int, Field(ge=0, le=1024)] = 0
    crop_step: Annotated[int, Field(ge=8, le=1024)] = 32
    eval_crop: Side
    eval_resize: Side
    crop_scale: tuple[Scale, Scale]
    crop_ratio: tuple[Ratio, Ratio]
    flip: Share
    color_jitter: Share
    erasing: Share
    mixup: Alpha
    cutmix: Alpha
    epochs: Epochs
    batch_size: Batch
    accumulation_steps: Parts
    shards: Parts
    optimizer: Literal["sgd", "adam", "adamw", "fused_sgd"]
    lr: Factor
    reference_batch: Annotated[int, Field(ge=0, le=2**20)]
    head_lr_factor: Factor
    momentum: Annotated[float, Field(ge=0, lt=1)]
    nesterov: bool
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]]
    weight_decay: Decay
    decay_norm_and_bias: bool
    clip_norm: Norm
    ema_decay: Annotated[float, Field(ge=0, lt=1)]
    schedule: Literal["constant", "cosine", "step"]
    warmup_epochs: Annotated[float, Field(ge=0, le=100_000)]
    final_lr: Share
    step_epochs: Epochs
    step_factor: Share
    patience: Natural = 0
    label_smoothing: Annotated[float, Field(ge=0, lt=1)]
    class_weights: Literal["none", "balanced"] = "none"
    export: Literal["last", "best", "ema"]


class Evaluate(Section):
    batch_size: Batch
    bins: Annotated[int, Field(ge=1, le=10_000)]
    mistakes: Annotated[int, Field(ge=1, le=200)]
    onnx: bool = True


class Run(Section):
    launcher: Launcher
    processes: Processes
    nodes: Processes
    node_rank: Natural
    rendezvous: Annotated[str, Field(pattern=HOST_PORT)]
    save_every_epochs: Natural
    workers: Workers
    residency: Literal["auto", "device", "host", "disk"]
    log_steps: Count
    checkpoint_seconds: Seconds
    epoch_checkpoint_seconds: Annotated[int, Field(ge=0, le=1_000_000)]
    max_restarts: Annotated[int, Field(ge=0, le=1000)]
    min_processes: Natural
    timeout_seconds: Seconds

    @property
    def decoding_threads(self) -> int:
        """The number of threads that decode images: `workers`, or one per core."""
        return self.workers or linux.usable_cores()


class Params(Section):
    paths: Paths
    data: Data
    split: Split
    prepare: Prepare
    train: Train
    evaluate: Evaluate
    run: Run


def load(path: Path = FILE) -> Params:
    """Read and check the params. Raises UserError: one line per fault, with its path, its value and what is allowed."""
    return parse(document.read(path))


def parse(raw: Any) -> Params:
    """Check a params document. Raises UserError as `load` does."""
    if not isinstance(raw, dict):
        raise UserError(
            f"{FILE}: {document.shortened(raw)} is not a table of sections; allowed: {', '.join(Params.model_fields)}"
        )
    document.check_plain_values(raw)
    raw = upgrade.completed(raw, document.read(upgrade.DEFAULTS))
    try:  # JSON has no tuples: its strict mode takes a list for a tuple, and still takes no text for a number
        return Params.model_validate_json(json.dumps(raw))
    except ValidationError as error:
        faults = error.errors(include_url=False)
        raise UserError("\n".join(document.sentence(fault, Params, PATTERNS) for fault in faults)) from None


def changed(config: Params, values: Mapping[str, Any]) -> Params:
    """The params with other values (dotted key → value). Raises UserError for a value that is not allowed."""
    raw = config.model_dump(mode="json")
    for dotted, value in values.items():
        *sections, key = dotted.split(".")
        table = raw
        for section in sections:
            if not isinstance(table.get(section), dict):  # `parse` refuses this section by its name
                table[section] = {}
            table = table[section]
        table[key] = value
    return parse(raw)


def missing(path: Path = FILE) -> str:
    """A sentence that names the settings which the file lacks; empty if it has all. Raises UserError as `load`."""
    names = upgrade.missing(document.read(path), document.read(upgrade.DEFAULTS))
    if not names:
        return ""
    return (
        f"{path} lacks {', '.join(names)}; the default values are used; to write them there: "
        "python -m pipeline.config.params --upgrade"
    )


def print_params(arguments: Sequence[str]) -> int:
    """Print the params of this folder as JSON, or write what they lack; 0. Raises UserError for params with faults."""
    config = load()
    if arguments == ["--upgrade"]:
        print(upgrade.upgrade(FILE))
        return 0
    if arguments:
        raise UserError(f"{' '.join(arguments)!r} is not allowed; allowed: --upgrade, or nothing")
    if note := missing():
        print(f"params: {note}", file=sys.stderr)
    print(config.model_dump_json(indent=2))
    return 0


def main() -> int:
    return exit_status("params", lambda: print_params(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
