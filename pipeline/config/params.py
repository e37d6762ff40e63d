"""`params.yaml` as typed, frozen values: every setting, its allowed values, and its default value.

    perennial params        prints the params as they are understood, or its first ten faults

A setting that is missing in params.yaml has its default value. `Params()` has all of them; they are the values of the
params.yaml that comes with the project. `validity.py` checks what depends on two settings, or on the machine.
"""

import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from pipeline.base import linux
from pipeline.base.errors import Fault, UserError
from pipeline.base.text import in_words
from pipeline.config import document

FILE = Path("params.yaml")

Precision = Literal["fp32", "tf32", "bf16", "fp16", "O0", "O1", "O2", "O3"]
Parallel = Literal["single", "dp", "ddp", "apex_ddp", "elastic"]
Backend = Literal["auto", "nccl", "gloo"]
Launcher = Literal["torchrun", "spawn", "slurm"]
Device = Literal["cuda", "cpu"]
Source = Literal[
    "archive", "inbox", "folder", "synthetic",
    "torchvision/MNIST", "torchvision/FashionMNIST", "torchvision/KMNIST", "torchvision/CIFAR10",
    "torchvision/CIFAR100", "torchvision/Flowers102", "torchvision/OxfordIIITPet",
]  # fmt: skip
Grey = Literal["full", "minmax", "percentile"]
Fit = Literal["none", "squash", "crop", "pad"]
WHOLE: tuple[Fit, ...] = ("squash", "pad")  # evaluation sees the whole image
Residency = Literal["auto", "device", "host", "disk", "stream"]
STREAM: Residency = "stream"
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
Coverage = Annotated[float, Field(ge=0.5, le=0.999)]  # more needs more than 1,000 validation images
# Learning rates, decays and such are multiplied in 32 bits. Beyond these limits the results become infinite.
Factor = Annotated[float, Field(gt=0, le=1000)]
Decay = Annotated[float, Field(ge=0, le=1000)]
Alpha = Annotated[float, Field(ge=0, le=100)]
Norm = Annotated[float, Field(ge=0, le=1e6)]
Scale = Annotated[float, Field(ge=1e-6, le=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Side = Annotated[int, Field(ge=16, le=1024)]
# The system allows 255 bytes a name and 4,096 a path. The project's folder comes first; stages lengthen the last name.
LONGEST_NAME, LONGEST_PATH, LONGEST_URL = 200, 1000, 2000
NAME = rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{LONGEST_NAME - 1}}}"
RELATIVE_PATH = rf"^{NAME}(/{NAME})*$"
ANY_FOLDER = rf"{RELATIVE_PATH}|^/.+$"
URL = r"^(https|file)://\S+$"
SHA256 = r"^[0-9a-f]{64}$"
PRETRAINED = "data/pretrained"
WEIGHTS = rf"^(none|imagenet|{PRETRAINED}(/{NAME})+)$"
COPIES = rf"{ANY_FOLDER}|^(s3|gs|gcs|az|abfs|abfss|adl|oss|hdfs|webhdfs|sftp|ssh|ftp|smb|webdav|webdavs)://\S+$"
HOST_PORT = r"^\S{1,255}:(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[0-5]?[0-9]{1,4})$"
PATTERNS = {  # the regular expressions, in words
    ANY_FOLDER: (
        "a path inside the project, of letters, digits, '.', '_', '-' and '/', or the path of any folder from / on, "
        "such as /home/me/photos"
    ),
    COPIES: "none, a folder as for paths.inbox, or an address of a storage that lasts, such as s3://bucket/runs",
    URL: "an https:// or file:// address",
    WEIGHTS: f"none, imagenet, or a .pth or .safetensors file in {PRETRAINED}/, which DVC tracks",
    HOST_PORT: "host:port, with a port from 0 to 65535",
    SHA256: "64 lower-case hexadecimal digits (sha256sum prints them)",
}


class Section(BaseModel):
    """A frozen part of the params that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _has_no_control_characters(cls, value: Any) -> Any:
        if isinstance(value, str) and any(unicodedata.category(letter) == "Cc" for letter in value):
            raise ValueError("text without control characters")
        return value


class Paths(Section):
    """Where everything is, relative to the project. Only the inbox is a setting; dvc.yaml names the others, too."""

    inbox: Annotated[str, Field(pattern=ANY_FOLDER, max_length=LONGEST_PATH)] = "data/inbox"
    pretrained: ClassVar[str] = PRETRAINED  # weights that the user puts there
    mine: ClassVar[str] = "data/mine"  # code of networks that the user writes there
    archives: ClassVar[str] = "data/archives"  # downloaded archives, named by their SHA-256; never versioned
    images: ClassVar[str] = "data/images"
    weights: ClassVar[str] = "data/weights"
    split: ClassVar[str] = "data/split.csv"
    kept: ClassVar[str] = "data/kept.csv"
    packed: ClassVar[str] = "data/packed"
    features: ClassVar[str] = "data/features"
    models: ClassVar[str] = "models"
    metrics: ClassVar[str] = "metrics"
    reports: ClassVar[str] = "reports"
    states: ClassVar[str] = "states"  # of run.keep_states; `dvc add states` hands them on
    runs: ClassVar[str] = "runs"  # working checkpoints, TensorBoard events, provenance; never versioned


class Synthetic(Section):
    count: Annotated[int, Field(ge=50, le=1_000_000)] = 600
    size: Annotated[int, Field(ge=32, le=1024)] = 96


class Data(Section):
    source: Source = "archive"
    url: Annotated[str, Field(pattern=URL, max_length=LONGEST_URL)] = (
        "https://storage.googleapis.com/download.tensorflow.org/example_images/flower_photos.tgz"
    )
    sha256: Annotated[str, Field(pattern=SHA256)] = "4c54ace7911aaffe13a365c34f650e71dd5bf1be0a58b464e5a7183e3e595d9c"
    synthetic: Synthetic = Synthetic()


class Fractions(Section):
    train: Annotated[float, Field(ge=1e-6, lt=1)] = 0.8  # splitting.py counts in millionths
    val: Annotated[float, Field(ge=1e-6, lt=1)] = 0.1
    test: Annotated[float, Field(ge=1e-6, lt=1)] = 0.1


class Split(Section):
    seed: Seed = 0
    fractions: Fractions = Fractions()
    folds: Annotated[int, Field(ge=1, le=1000)] = 1
    fold: Natural = 0
    duplicates: Duplicates = "together"
    phash_distance: Annotated[int, Field(ge=0, le=16)] = 8
    group: Annotated[str, Field(min_length=1, max_length=200)] = "none"
    stratify: bool = False
    leave_out: Annotated[str, Field(min_length=1, max_length=200)] = "none"
    train_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    min_side: Annotated[int, Field(ge=1, le=65_535)] = 32  # the longest side of a JPEG
    max_pixels: Count = 100_000_000
    max_unreadable: Natural = 20


class Prepare(Section):
    size: Side = 256
    grey: Grey = "full"
    fit: Fit = "none"


class Train(Section):
    model: Annotated[str, Field(max_length=100)] = "resnet34"
    weights: Annotated[str, Field(pattern=WEIGHTS, max_length=LONGEST_PATH)] = "none"
    freeze_backbone: bool = False
    freeze_norm: bool = False
    head: Literal["trained", "solved"] = "trained"
    head_l2: Annotated[float, Field(ge=1e-6, le=1000)] = 0.5  # far below, the solution is lost in rounding
    loss: Literal["cross_entropy", "focal"] = "cross_entropy"
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.1
    class_weights: Literal["none", "balanced"] = "none"
    temperature: Literal["none", "fitted"] = "none"
    export: Literal["last", "best", "ema"] = "last"
    ema_decay: Annotated[float, Field(ge=0, lt=1)] = 0.0
    seed: Seed = 0
    crop: Side = 224
    crop_from: Annotated[int, Field(ge=0, le=1024)] = 0
    eval_crop: Side = 224
    eval_resize: Side = 256
    crop_scale: tuple[Scale, Scale] = (0.08, 1.0)
    flip: Share = 0.5
    color_jitter: Share = 0.0
    erasing: Share = 0.0
    mixup: Alpha = 0.0
    cutmix: Alpha = 0.0
    batch_size: Batch = 64
    optimizer: Literal["sgd", "adam", "adamw", "fused_sgd"] = "sgd"
    lr: Factor = 0.1
    reference_batch: Annotated[int, Field(ge=0, le=2**20)] = 0
    head_lr_factor: Factor = 1.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    nesterov: bool = True
    weight_decay: Decay = 0.0005
    decay_norm_and_bias: bool = False
    clip_norm: Norm = 0.0
    epochs: Epochs = 30
    schedule: Literal["constant", "cosine", "step"] = "cosine"
    warmup_epochs: Annotated[float, Field(ge=0, le=100_000)] = 2.0
    final_lr: Share = 0.0
    step_epochs: Epochs = 10
    step_factor: Share = 0.1
    patience: Natural = 0
    hash_every_epochs: Natural = 1
    device: Device = "cuda"
    parallel: Parallel = "apex_ddp"
    backend: Backend = "auto"
    precision: Precision = "O1"
    sync_bn: Literal["none", "torch", "apex"] = "none"
    shards: Parts = 8
    accumulation_steps: Parts = 1
    deterministic: bool = True
    arithmetic: Arithmetic = "native"
    threads: Threads = 1
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    compile: bool = False
    cuda_graphs: bool = False
    gradient_checkpointing: bool = False

    @property
    def has_steps(self) -> bool:
        """Whether gradients train anything. A solved head on a frozen backbone is final."""
        return self.head == "trained" or not self.freeze_backbone


class Evaluate(Section):
    batch_size: Batch = 64
    coverage: Coverage = 0.95
    onnx: bool = True


class Run(Section):
    launcher: Launcher = "torchrun"
    processes: Processes = 1
    nodes: Processes = 1
    node_rank: Natural = 0
    rendezvous: Annotated[str, Field(pattern=HOST_PORT)] = "localhost:0"
    save_every_epochs: Natural = 0
    keep_states: Natural = 0
    workers: Workers = 0
    residency: Residency = "auto"
    stream_cache_gb: Annotated[float, Field(ge=0, le=1_000_000)] = 10
    log_steps: Count = 20
    checkpoint_seconds: Seconds = 300
    epoch_checkpoint_seconds: Annotated[int, Field(ge=0, le=1_000_000)] = 60
    checkpoint_copy: Annotated[str, Field(pattern=COPIES, max_length=LONGEST_URL)] = "none"
    max_restarts: Annotated[int, Field(ge=0, le=1000)] = 0
    min_processes: Natural = 0
    timeout_seconds: Seconds = 600

    @property
    def decoding_threads(self) -> int:
        """The number of threads that decode images: `workers`, or one per core."""
        return self.workers or linux.usable_cores()


class Params(Section):
    paths: Paths = Paths()
    data: Data = Data()
    split: Split = Split()
    prepare: Prepare = Prepare()
    train: Train = Train()
    evaluate: Evaluate = Evaluate()
    run: Run = Run()


def load(path: Path = FILE) -> Params:
    """Read and check the params. Raises UserError with every fault."""
    return parse(document.read(path))


def parse(raw: Any) -> Params:
    """Check a params document. Raises UserError as `load` does."""
    if not isinstance(raw, dict):
        allowed = f"a table of {', '.join(Params.model_fields)}"
        raise UserError(Fault(str(FILE), document.short_text(raw), "damaged", allowed=allowed))
    raw = document.with_defaults(raw, Params().model_dump(mode="json"))
    try:
        return Params.model_validate(document.with_tuples(raw))
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise UserError(*(document.fault(detail, Params, PATTERNS) for detail in details)) from None


def with_values(config: Params, values: Mapping[str, Any]) -> Params:
    """The params with other values (dotted key → value). Raises UserError for a value that is not allowed."""
    raw = config.model_dump(mode="json")
    for dotted, value in values.items():
        table, key = document.table_of(raw, dotted)  # `parse` refuses an unknown section by its name
        table[key] = value
    return parse(raw)


def missing_settings(path: Path = FILE) -> str:
    """A sentence that names the settings which the file lacks; empty if it has all. Raises UserError as `load`."""
    present = dict(document.leaves(document.read(path)))
    names = [name for name, _ in document.leaves(Params().model_dump(mode="json")) if name not in present]
    if not names:
        return ""
    remedy = "to see them: perennial params; the params.yaml of a new clone has their lines"
    return f"{path} lacks {in_words(names)}; the default values are used; {remedy}"
