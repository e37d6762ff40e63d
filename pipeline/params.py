"""`params.yaml` as typed, frozen values. The only reader of YAML, and the only place that says what a setting may be.

    python -m pipeline.params        prints the params as they are understood, or every fault at once

YAML is read with ruamel, as DVC reads it (`lr: 1e-4` is a number). Values are never converted: `"3"` is not 3.
What depends on two settings, or on the machine, is judged in `validity.py`.
"""

import difflib
import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.errors import Refusal, ending

Precision = Literal["fp32", "tf32", "bf16", "fp16", "O0", "O1", "O2", "O3"]
Parallel = Literal["single", "dp", "ddp", "apex_ddp", "elastic"]
Launcher = Literal["torchrun", "spawn", "slurm"]
Device = Literal["cuda", "cpu"]

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Side = Annotated[int, Field(ge=16, le=1024)]
RELATIVE_PATH = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*$"
RelativePath = Annotated[str, Field(pattern=RELATIVE_PATH)]
URL = r"^(https|file)://\S+$"
SHA256 = r"^[0-9a-f]{64}$"
WEIGHTS = rf"^(none|imagenet)$|{RELATIVE_PATH}"
HOST_PORT = r"^\S+:[0-9]{1,5}$"
IN_WORDS = {
    RELATIVE_PATH: "a path inside the project, of letters, digits, '.', '_', '-' and '/'",
    URL: "an https:// or file:// address",
    WEIGHTS: "none, imagenet, or the path of a .pth or .safetensors file inside the project",
    HOST_PORT: "host:port",
    SHA256: "64 lower-case hexadecimal digits (sha256sum prints them)",
}


class Section(BaseModel):
    """A frozen part of the params that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Paths(Section):
    inbox: RelativePath
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
    source: Literal["archive", "inbox", "synthetic"]
    url: Annotated[str, Field(pattern=URL)]
    sha256: Annotated[str, Field(pattern=SHA256)]
    max_files: Count
    max_bytes: Count
    synthetic: Synthetic


class Fractions(Section):
    train: Annotated[float, Field(gt=0, lt=1)]
    val: Annotated[float, Field(gt=0, lt=1)]
    test: Annotated[float, Field(gt=0, lt=1)]


class Split(Section):
    seed: Seed
    fractions: Fractions
    folds: Count
    fold: Natural
    near_duplicates: Annotated[int, Field(ge=0, le=16)]
    min_side: Count
    max_pixels: Count
    max_excluded: Natural


class Prepare(Section):
    size: Side


class Train(Section):
    seed: Seed
    deterministic: bool
    device: Device
    threads: Count
    precision: Precision
    parallel: Parallel
    model: str
    weights: Annotated[str, Field(pattern=WEIGHTS)]
    freeze_backbone: bool
    sync_bn: Literal["none", "torch", "apex"]
    memory_format: Literal["contiguous", "channels_last"]
    compile: bool
    cuda_graphs: bool
    gradient_checkpointing: bool
    crop: Side
    eval_crop: Side
    eval_resize: Side
    crop_scale: tuple[Annotated[float, Field(gt=0, le=1)], Annotated[float, Field(gt=0, le=1)]]
    crop_ratio: tuple[Positive, Positive]
    flip: Share
    color_jitter: Share
    erasing: Share
    mixup: NotNegative
    cutmix: NotNegative
    epochs: Count
    batch_size: Count
    accumulate: Count
    shards: Count
    optimizer: Literal["sgd", "adam", "adamw", "fused_sgd"]
    lr: Positive
    reference_batch: Natural
    head_lr_factor: Positive
    momentum: Annotated[float, Field(ge=0, lt=1)]
    nesterov: bool
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]]
    weight_decay: NotNegative
    decay_norm_and_bias: bool
    clip_norm: NotNegative
    ema_decay: Annotated[float, Field(ge=0, lt=1)]
    schedule: Literal["constant", "cosine", "step"]
    warmup_epochs: NotNegative
    final_lr: Share
    step_epochs: Count
    step_factor: Share
    label_smoothing: Annotated[float, Field(ge=0, lt=1)]
    export: Literal["last", "best", "ema"]


class Evaluate(Section):
    batch_size: Count
    bins: Count
    mistakes: Annotated[int, Field(ge=1, le=200)]


class Run(Section):
    launcher: Launcher
    processes: Count
    nodes: Count
    node_rank: Natural
    rendezvous: Annotated[str, Field(pattern=HOST_PORT)]
    keep_every: Natural
    workers: Natural
    residency: Literal["auto", "device", "host", "disk"]
    log_steps: Count
    checkpoint_seconds: Count
    max_restarts: Natural
    min_processes: Natural
    timeout_seconds: Count


class Params(Section):
    paths: Paths
    data: Data
    split: Split
    prepare: Prepare
    train: Train
    evaluate: Evaluate
    run: Run


def load(path: Path = Path("params.yaml")) -> Params:
    """Read and check the params. Raises Refusal: one line a fault, each with its path, value and what is allowed."""
    try:
        raw = YAML(typ="safe", pure=True).load(path)
    except FileNotFoundError:
        raise Refusal(f"{path}: not found; run from the project's folder, where {path.name} lies") from None
    except (YAMLError, UnicodeDecodeError) as error:
        raise Refusal(f"{path}: not readable as YAML: {' '.join(str(error).split())}") from None
    return parse(raw)


def parse(raw: Any) -> Params:
    """Check a params document. Raises Refusal as `load` does."""
    if not isinstance(raw, dict):
        raise Refusal(f"params.yaml: {raw!r} is not a table of sections; allowed: {', '.join(Params.model_fields)}")
    try:  # JSON has no tuples: its strict mode takes a list for one, and still takes no text for a number
        return Params.model_validate_json(json.dumps(raw, default=str))
    except ValidationError as error:
        raise Refusal("\n".join(_sentence(fault) for fault in error.errors(include_url=False))) from None


def _sentence(fault: ErrorDetails) -> str:
    """One fault as `path: value is not allowed; allowed: …`."""
    location = [str(part) for part in fault["loc"]]
    path, value = ".".join(location), fault["input"]
    if fault["type"] == "extra_forbidden":
        known = list(_section(location[:-1]).model_fields)
        near = difflib.get_close_matches(location[-1], known, n=1)
        guess = f"; did you mean {near[0]!r}?" if near else ""
        return f"{path}: unknown key (value {value!r}){guess}; allowed: {', '.join(known)}"
    if fault["type"] == "missing":
        return f"{path}: missing; restore the line (git diff params.yaml shows what changed)"
    if fault["type"] == "literal_error":
        allowed = fault["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
    elif fault["type"] == "string_pattern_mismatch":
        allowed = IN_WORDS[fault["ctx"]["pattern"]]
    elif fault["type"] == "too_long":
        allowed = f"a list of {fault['ctx']['max_length']}"
    else:
        allowed = fault["msg"].removeprefix("Input should be ").replace("a valid integer", "a whole number")
        allowed = allowed.replace("a valid ", "a ")
    return f"{path}: {value!r} is not allowed; allowed: {allowed}"


def _section(location: list[str]) -> type[BaseModel]:
    """The model of the section at a dotted location."""
    section: type[BaseModel] = Params
    for part in location:
        annotation = section.model_fields[part].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            break
        section = annotation
    return section


def main() -> int:
    def shown() -> int:
        print(load().model_dump_json(indent=2))
        return 0

    return ending("params", shown)


if __name__ == "__main__":
    sys.exit(main())
