"""`params.yaml` as typed, frozen values. The only reader of YAML, and the only module that says what a setting may be.

    python -m pipeline.config.params        prints the params as they are understood, or every fault at once

YAML is read with ruamel, as DVC reads it (`lr: 1e-4` is a number). Values are never converted: `"3"` is not 3.
What depends on two settings, or on the machine, is checked in `validity.py`.
"""

import difflib
import json
import reprlib
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML

from pipeline.base.errors import UserError, exit_status

Precision = Literal["fp32", "tf32", "bf16", "fp16", "O0", "O1", "O2", "O3"]
Parallel = Literal["single", "dp", "ddp", "apex_ddp", "elastic"]
Launcher = Literal["torchrun", "spawn", "slurm"]
Device = Literal["cuda", "cpu"]

# A whole number has a most, far above what serves anybody: a slip of the finger is refused, and not begun.
Epochs = Annotated[int, Field(ge=1, le=100_000)]
Batch = Annotated[int, Field(ge=1, le=2**20)]  # of the smallest crops, 3 GB
Parts = Annotated[int, Field(ge=1, le=4096)]
Processes = Annotated[int, Field(ge=1, le=10_000)]  # on the CPU of one machine: see validity.py
Threads = Annotated[int, Field(ge=1, le=1024)]  # more than the cores of any machine; each takes a stack
Workers = Annotated[int, Field(ge=0, le=1024)]
Seconds = Annotated[int, Field(ge=1, le=1_000_000)]  # 11 days
Count = Annotated[int, Field(ge=1, le=10**9)]
Natural = Annotated[int, Field(ge=0, le=10**9)]
Share = Annotated[float, Field(ge=0, le=1)]
# Rates, decays and the like are multiplied in 32 bits: what is beyond these leads to infinity, not to a model.
Factor = Annotated[float, Field(gt=0, le=1000)]
Decay = Annotated[float, Field(ge=0, le=1000)]
Alpha = Annotated[float, Field(ge=0, le=100)]
Norm = Annotated[float, Field(ge=0, le=1e6)]
Ratio = Annotated[float, Field(ge=0.01, le=100)]
Scale = Annotated[float, Field(ge=1e-6, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Side = Annotated[int, Field(ge=16, le=1024)]
# With the project's folder before it, and what a stage puts before and behind it, a path has to stay below the system's
# limits: 255 bytes a name, 4,096 in all.
LONGEST_NAME, LONGEST_PATH, LONGEST_URL = 200, 1000, 2000
NAME = rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{LONGEST_NAME - 1}}}"
RELATIVE_PATH = rf"^{NAME}(/{NAME})*$"
RelativePath = Annotated[str, Field(pattern=RELATIVE_PATH, max_length=LONGEST_PATH)]
URL = r"^(https|file)://\S+$"
SHA256 = r"^[0-9a-f]{64}$"
WEIGHTS = rf"^(none|imagenet)$|{RELATIVE_PATH}"
HOST_PORT = r"^\S{1,255}:(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[0-5]?[0-9]{1,4})$"
IN_WORDS = {
    RELATIVE_PATH: (
        f"a path inside the project, of letters, digits, '.', '_', '-' and '/', with names of at most {LONGEST_NAME}"
    ),
    URL: "an https:// or file:// address",
    WEIGHTS: "none, imagenet, or the path of a .pth or .safetensors file inside the project",
    HOST_PORT: "host:port, with a port from 0 to 65535",
    SHA256: "64 lower-case hexadecimal digits (sha256sum prints them)",
}


# The file that comes with the project has 8,000 bytes and 110 values in 3 levels.
MOST_BYTES, MOST_VALUES, DEEPEST = 100_000, 1_000, 10
LONGEST_SHOWN = 200  # of a value in a message
REPR = reprlib.Repr()
REPR.maxdict = REPR.maxlist = REPR.maxset = REPR.maxtuple = 3


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
    phash_distance: Annotated[int, Field(ge=0, le=16)]
    min_side: Annotated[int, Field(ge=1, le=65_535)]  # the longest side of a JPEG
    max_pixels: Count
    max_unreadable: Natural


class Prepare(Section):
    size: Side


class Train(Section):
    seed: Seed
    deterministic: bool
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
    label_smoothing: Annotated[float, Field(ge=0, lt=1)]
    export: Literal["last", "best", "ema"]


class Evaluate(Section):
    batch_size: Batch
    bins: Annotated[int, Field(ge=1, le=10_000)]
    mistakes: Annotated[int, Field(ge=1, le=200)]


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
    max_restarts: Annotated[int, Field(ge=0, le=1000)]
    min_processes: Natural
    timeout_seconds: Seconds


class Params(Section):
    paths: Paths
    data: Data
    split: Split
    prepare: Prepare
    train: Train
    evaluate: Evaluate
    run: Run


def load(path: Path = Path("params.yaml")) -> Params:
    """Read and check the params. Raises UserError: one line a fault, each with its path, value and what is allowed."""
    content = _content(path)
    try:
        raw = YAML(typ="safe", pure=True).load(content)
    except RecursionError:
        raise UserError(
            f"{path}: more than {DEEPEST} levels; allowed: tables in tables, as params.yaml has them"
        ) from None
    except Exception as error:  # for a value that it cannot make, such as the 99th of May, the parser raises anything
        reason = _short(" ".join(str(error).split()), str)
        raise UserError(f"{path}: not readable as YAML: {reason}; git diff {path.name} shows what changed") from None
    return parse(raw)


def _content(path: Path) -> bytes:
    """The bytes of the params file. Raises UserError if it is no plain file, or far too long to be meant."""
    remedy = f"restore it: git checkout {path.name}"
    try:
        if path.exists() and not path.is_file():
            raise UserError(f"{path}: not a plain file; {remedy}")
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise UserError(f"{path}: not found; run from the project's folder, where {path.name} lies") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; give read access to it, or {remedy}") from None
    if len(content) > MOST_BYTES:
        raise UserError(f"{path}: more than {MOST_BYTES:,} bytes; allowed: up to that, ten times what it has; {remedy}")
    return content


def parse(raw: Any) -> Params:
    """Check a params document. Raises UserError as `load` does."""
    if not isinstance(raw, dict):
        raise UserError(
            f"params.yaml: {_short(raw)} is not a table of sections; allowed: {', '.join(Params.model_fields)}"
        )
    _check_plain_values(raw)
    try:  # JSON has no tuples: its strict mode takes a list for one, and still takes no text for a number
        return Params.model_validate_json(json.dumps(raw))
    except ValidationError as error:
        raise UserError("\n".join(_sentence(fault) for fault in error.errors(include_url=False))) from None


def _check_plain_values(raw: dict[Any, Any]) -> None:
    """Raise UserError for what YAML can say and a table of settings cannot: see `_odd`; and for too much of it.

    What is named again (`*name`) counts again: so an end is found to what holds itself, too.
    """
    waiting: deque[tuple[tuple[str, ...], Any]] = deque([((), raw)])
    seen = 0
    while waiting:
        where, value = waiting.popleft()
        seen += 1
        if len(where) > DEEPEST or seen > MOST_VALUES:
            raise UserError(
                f"{_name(where[:3])}: more than {DEEPEST} levels or {MOST_VALUES:,} values, what is named again (*) "
                f"counted again; allowed: tables in tables, as params.yaml has them"
            )
        if allowed := _odd(value):
            raise UserError(f"{_name(where)}: {_short(value)} is not allowed; allowed: {allowed}")
        if isinstance(value, dict):
            for key, inner in value.items():
                if not isinstance(key, str) or _odd(key):
                    raise UserError(f"{_name(where)}: the key {_short(key)} is not allowed; allowed: a word; quote it")
                waiting.append(((*where, key), inner))
        elif isinstance(value, list):
            waiting.extend(((*where, str(index)), inner) for index, inner in enumerate(value))


def _odd(value: Any) -> str:
    """What is allowed instead of a value that no setting can have; empty if one can."""
    if isinstance(value, str):
        return "" if value.isprintable() else "text without control characters, in one line"
    if isinstance(value, int):
        return "" if abs(value) < 2**63 else "a whole number of less than 64 bits"
    plain = value is None or isinstance(value, float | dict | list)
    return "" if plain else "text, numbers, true, false, lists and tables; put text into quotes"


def _name(where: Sequence[str]) -> str:
    """A position in the params, dotted."""
    return ".".join(_short(part, str) for part in where) or "params.yaml"


def _short(value: Any, text: Callable[[Any], str] = repr) -> str:
    """A value as a line of a message has it: cut if it is long, and never followed into what holds itself."""
    if isinstance(value, int) and abs(value) >= 2**63:
        return f"a number of {value.bit_length():,} bits"
    said = text(value) if isinstance(value, str | float | int) else REPR.repr(value)
    said = "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in " ".join(said.split()))
    return said if len(said) <= LONGEST_SHOWN else f"{said[:LONGEST_SHOWN]}… ({len(said):,} characters)"


def _sentence(fault: ErrorDetails) -> str:
    """One fault as `path: value is not allowed; allowed: …`."""
    location = [str(part) for part in fault["loc"]]
    path, value = _name(location), _short(fault["input"])
    if fault["type"] == "extra_forbidden":
        known = list(_section(location[:-1]).model_fields)
        near = difflib.get_close_matches(location[-1], known, n=1)
        guess = f"; did you mean {near[0]!r}?" if near else ""
        return f"{path}: unknown key (value {value}){guess}; allowed: {', '.join(known)}"
    if fault["type"] == "missing":
        return f"{path}: missing; restore the line (git diff params.yaml shows what changed)"
    if fault["type"] == "literal_error":
        allowed = fault["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
    elif fault["type"] == "string_pattern_mismatch":
        allowed = IN_WORDS[fault["ctx"]["pattern"]]
    elif fault["type"] == "too_long":
        allowed = f"a list of {fault['ctx']['max_length']}"
    elif fault["type"] == "string_too_long":
        allowed = f"at most {fault['ctx']['max_length']} characters"
    else:
        allowed = fault["msg"].removeprefix("Input should be ").replace("a valid integer", "a whole number")
        allowed = allowed.replace("a valid ", "a ")
    return f"{path}: {value} is not allowed; allowed: {allowed}"


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

    return exit_status("params", shown)


if __name__ == "__main__":
    sys.exit(main())
