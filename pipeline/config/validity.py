"""Which params can run on which machine. `faults` is a pure function, and every stage calls it before any work."""

import difflib
import math
import posixpath
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from pipeline.base.errors import Fault
from pipeline.config import combinations, resolution
from pipeline.config.machine import Machine
from pipeline.config.model_names import INSTALL_TIMM, MODELS, TIMM
from pipeline.config.params import APEX_LEVELS, Params, Paths, Run, Split, Train

CPU_PRECISIONS = ("fp32", "bf16", "fp16")
START = "make start writes params that suit this machine"
INSTEAD_OF_APEX = "without it: fp16 for O1 to O3, fp32 for O0, ddp for apex_ddp, torch for apex, sgd for fused_sgd"
# On a GPU the backward pass of their adaptive_avg_pool2d is not deterministic. A test finds them by tracing all models.
NONDETERMINISTIC_MODELS = ("alexnet", "vgg")
MOST_ON_A_CORE = 8  # processes per core: more of them only wait for each other, and each takes 0.4 GB
TAKEN = frozenset({  # where the project's own files are, and what the stages write; a test compares them
    "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "README.zh.md",
    "SECURITY.md", "benchmarks", "docker", "docs", "dvc.lock", "dvc.yaml", "params.yaml", "pipeline", "pyproject.toml",
    "requirements", "results", "tests", "models", "metrics", "reports", "runs", "data/archives", "data/corrections.csv",
    "data/images", "data/packed", "data/pretrained", "data/split.csv", "data/weights",
})  # fmt: skip
LOWEST_CAPABILITY = (7, 5)  # Turing, the oldest GPU that the locked torch has code for; a test asks torch
NO_APEX = {
    "missing": "Apex, which is not installed",
    "without amp": "apex.amp and apex.parallel, which the installed Apex no longer has",
    "without extensions": "Apex's extensions amp_C, apex_C and syncbn, which the installed Apex was built without",
}


def faults(params: Params, machine: Machine) -> list[str]:
    """Every reason why these params cannot run on this machine, one sentence each; empty if they can."""
    rules = (
        _image(machine),
        _hardware(params.train, params.run, machine),
        _apex(params.train, machine),
        combinations.pairs(params.train),
        combinations.half_precision(params.train),
        combinations.portable(params.train),
        _processes(params.train, params.run, machine),
        combinations.elastic(params.train, params.run),
        _model(params.train, machine),
        resolution.faults(params.train),
        _ranges(params.train),
        _inbox(params.paths.inbox, machine.project),
        _weights(params.train, params.paths),
        _split(params.split),
    )
    return [str(fault) for rule in rules for fault in rule]


def _image(machine: Machine) -> Iterator[str]:
    if machine.stale:
        yield (
            f"{', '.join(machine.stale)}: not the file that this container's image was built from; allowed: the same "
            f"file; build the image again: make image"
        )


def _elsewhere(run: Run, machine: Machine) -> bool:
    """Whether this process may be on a Slurm login node, where no GPU needs to be."""
    return run.launcher == "slurm" and not machine.slurm_step


def _hardware(train: Train, run: Run, machine: Machine) -> Iterator[str]:
    if train.device == "cuda" and machine.cuda_devices == 0 and not _elsewhere(run, machine):
        yield f"train.device: 'cuda' needs an NVIDIA GPU and its driver (found: none); {START}; allowed here: cpu"
    if train.device == "cuda" and machine.cuda_devices and machine.cuda_driver < machine.cuda_of_torch:
        yield (
            f"train.device: 'cuda': the NVIDIA driver knows CUDA up to {machine.cuda_driver}, the installed torch "
            f"needs {machine.cuda_of_torch}; install a newer driver; allowed here: cpu"
        )
    too_old = sorted({name for name in machine.compute_capabilities if name < LOWEST_CAPABILITY})
    if train.device == "cuda" and too_old:
        versions = ", ".join(f"{major}.{minor}" for major, minor in too_old)
        lowest = ".".join(map(str, LOWEST_CAPABILITY))
        yield (
            f"train.device: 'cuda': a GPU of compute capability {versions} is visible, the installed torch has code "
            f"for {lowest} and later; hide it (CUDA_VISIBLE_DEVICES), or take another GPU; allowed here: cpu"
        )
    if train.device == "cuda" and train.deterministic and train.model.startswith(NONDETERMINISTIC_MODELS):
        yield (
            f"train.model: {train.model!r} × train.deterministic: true on a GPU: its adaptive_avg_pool2d has no "
            f"deterministic backward pass; allowed: another model, or train.deterministic: false"
        )
    if train.arithmetic == "portable" and machine.cpu_lacks:
        yield (
            f"train.arithmetic: 'portable' needs an x86-64 CPU with AVX2 and FMA (this one lacks "
            f"{' and '.join(machine.cpu_lacks)}); allowed here: native"
        )
    if train.device == "cpu" and train.precision == "tf32":
        yield f"train.precision: 'tf32' needs train.device: cuda; allowed on the CPU: {', '.join(CPU_PRECISIONS)}"
    if train.device == "cpu" and train.parallel == "dp":
        yield "train.parallel: 'dp' needs train.device: cuda; allowed on the CPU: single, ddp, elastic"
    if train.device == "cpu" and train.sync_bn == "torch":
        yield "train.sync_bn: 'torch' needs train.device: cuda; allowed on the CPU: none"
    smallest = resolution.side_of_epoch(train, 0)
    if train.device == "cpu" and train.precision == "bf16" and train.deterministic and smallest < 32:
        yield (
            f"train.precision: 'bf16' × train.{resolution.key_of(train, smallest)}: {smallest} on the CPU: "
            f"convolutions of maps of one pixel are not the same every time; allowed: fp32, a crop of at least 32, or "
            f"train.deterministic: false"
        )
    if train.compile and not machine.compiler:
        yield "train.compile: true needs a C++ compiler (found: none); allowed here: false, or install g++"
    if train.cuda_graphs and train.device == "cpu":
        yield "train.cuda_graphs: true needs train.device: cuda; allowed on the CPU: false"


def apex_choices(train: Train) -> list[str]:
    """The settings of `train` that need Apex, as `train.key: value`."""
    choices = (
        ("precision", train.precision, train.precision in APEX_LEVELS),
        ("parallel", train.parallel, train.parallel == "apex_ddp"),
        ("sync_bn", train.sync_bn, train.sync_bn == "apex"),
        ("optimizer", train.optimizer, train.optimizer == "fused_sgd"),
    )
    return [f"train.{key}: {value!r}" for key, value, apex in choices if apex]


def _apex(train: Train, machine: Machine) -> Iterator[str]:
    for choice in apex_choices(train):
        if train.device == "cpu":
            yield f"{choice} needs train.device: cuda, because Apex does nothing on a CPU; {INSTEAD_OF_APEX}"
        if machine.apex != "usable":
            yield (
                f"{choice} needs {NO_APEX[machine.apex]}; {START}; or use the container (make image); {INSTEAD_OF_APEX}"
            )


def _processes(train: Train, run: Run, machine: Machine) -> Iterator[str]:
    if train.parallel in ("single", "dp") and run.processes > 1:
        yield (
            f"run.processes: {run.processes} × train.parallel: {train.parallel!r} would train that many models; "
            f"allowed: 1; for several processes: train.parallel: ddp"
        )
    if train.sync_bn != "none" and train.parallel not in ("single", "dp") and run.processes == 1:
        yield (
            f"train.sync_bn: {train.sync_bn!r} × run.processes: 1: there is nothing to synchronize; "
            f"allowed: none, or more processes"
        )
    if run.processes % run.nodes:
        yield (
            f"run.processes: {run.processes} does not divide by run.nodes ({run.nodes}); "
            f"allowed: a multiple of {run.nodes}"
        )
    if run.node_rank >= run.nodes:
        yield f"run.node_rank: {run.node_rank} is not one of {run.nodes} nodes; allowed: 0 to {run.nodes - 1}"
    if run.nodes > 1 and run.launcher == "spawn":
        yield (
            f"run.nodes: {run.nodes} × run.launcher: 'spawn', which starts processes on one node; "
            f"allowed: 1, or torchrun or slurm"
        )
    if run.nodes > 1 and run.launcher == "torchrun" and run.rendezvous.endswith(":0"):
        yield (
            f"run.rendezvous: {run.rendezvous!r} × run.nodes: {run.nodes}: every node needs the address of node 0; "
            f"allowed: host:port of node 0, such as node0:29400"
        )
    here = run.processes // run.nodes
    if train.device == "cuda" and 0 < machine.cuda_devices < here and not _elsewhere(run, machine):
        remedy = "CUDA_VISIBLE_DEVICES chooses them"
        if run.launcher == "slurm":
            remedy = "ask for GPUs by node (--gres=gpu:4, not --gpus-per-task), or add --gpu-bind=none"
        yield (
            f"run.processes: {here} on a node is more than the GPUs visible here ({machine.cuda_devices}); "
            f"allowed: 1 to {machine.cuda_devices}; {remedy}"
        )
    if train.device == "cpu" and here > MOST_ON_A_CORE * machine.cores:
        yield (
            f"run.processes: {here} on a node are more than {MOST_ON_A_CORE} for each core here ({machine.cores}); "
            f"allowed: 1 to {MOST_ON_A_CORE * machine.cores}; more than {machine.cores} are not faster"
        )
    parts = run.processes * train.accumulation_steps
    if train.parallel != "elastic" and train.batch_size % parts:
        near = train.batch_size - train.batch_size % parts
        yield (
            f"train.batch_size: {train.batch_size} does not divide by run.processes × train.accumulation_steps "
            f"({parts}); allowed: a multiple of {parts}, such as {near or parts}"
        )


def _model(train: Train, machine: Machine) -> Iterator[str]:
    if train.model.startswith(TIMM):  # models/timm_models.py knows the names and sizes
        if not machine.timm:
            yield f"train.model: {train.model!r} needs timm, which is not installed; {INSTALL_TIMM}"
    elif train.model not in MODELS:
        near = difflib.get_close_matches(train.model, MODELS, n=3)
        guess = f"did you mean {', '.join(near)}?" if near else "torchvision.models.list_models() names them"
        yield f"train.model: {train.model!r} is not one of torchvision's {len(MODELS)} classification models; {guess}"


def _ranges(train: Train) -> Iterator[str]:
    for key, (low, high) in (("crop_scale", train.crop_scale), ("crop_ratio", train.crop_ratio)):
        if low > high:
            yield f"train.{key}: [{low}, {high}] is in the wrong order; allowed: [minimum, maximum]"
    if train.nesterov and train.momentum == 0 and train.optimizer in ("sgd", "fused_sgd"):
        yield "train.nesterov: true needs momentum (train.momentum: 0); allowed: false, or train.momentum > 0"


def _inbox(inbox: str, project: str) -> Iterator[Fault]:
    """An inbox that is inside the project's own files, or holds some of them."""
    path = _from(project, inbox)
    if path.is_absolute() and project and PurePosixPath(project).is_relative_to(path):
        reason = "it holds this project itself, with its outputs"
    elif any(path.is_relative_to(taken) or PurePosixPath(taken).is_relative_to(path) for taken in TAKEN):
        reason = "the project's own files are there"
    else:
        return
    yield Fault("paths.inbox", repr(inbox), "value", reason, "a folder that holds only your images, such as data/inbox")


def _from(project: str, path: str) -> PurePosixPath:
    """A path relative to the project if it is inside; an absolute one without `..` if it is outside."""
    plain = PurePosixPath(posixpath.normpath(path))
    inside = project and plain.is_relative_to(project) and plain != PurePosixPath(project)
    return plain.relative_to(project) if inside else plain


def _weights(train: Train, paths: Paths) -> Iterator[str]:
    if train.weights == "imagenet" and train.model.startswith(TIMM):
        yield (
            f"train.weights: 'imagenet' × train.model: {train.model!r}: these weights have no address with a hash; "
            f"allowed: none, or a file: fetch model.safetensors of the model from huggingface.co/timm, put it into "
            f"{paths.pretrained}/ and name it"
        )
    if train.weights not in ("none", "imagenet") and not train.weights.startswith(f"{paths.pretrained}/"):
        yield (
            f"train.weights: {train.weights!r} is not in a folder that DVC tracks; "
            f"allowed: none, imagenet, or a file in {paths.pretrained}/"
        )


def _split(split: Split) -> Iterator[str]:
    parts = split.fractions
    if not math.isclose(parts.train + parts.val + parts.test, 1, abs_tol=1e-9):
        yield (
            f"split.fractions: {parts.train} + {parts.val} + {parts.test} is not 1; "
            f"allowed: three fractions that sum to 1, such as 0.8, 0.1, 0.1"
        )
    if split.group not in ("none", "folder") and (fault := _fault_of_expression(split.group)):
        yield (
            f"split.group: {split.group!r:.100}: {fault}; allowed: none, folder, or a regular expression with exactly "
            f"one group in parentheses, such as patient([0-9]+)"
        )
    if split.fold >= split.folds:
        yield f"split.fold: {split.fold} with split.folds: {split.folds}; allowed: 0 to {split.folds - 1}"


def _fault_of_expression(text: str) -> str:
    """What is wrong with a regular expression that finds groups; empty if nothing."""
    try:
        groups = re.compile(text).groups
    except (re.error, OverflowError, RecursionError) as error:
        return f"no regular expression ({error})"
    return "" if groups == 1 else f"{groups} groups in parentheses"
