"""The check of params for a machine. `faults` is a pure function, and every stage calls it before any work.

The pairs of choices that work on no machine are rows of rules.py. This module checks what depends on the machine, and
pairs of numbers.
"""

import difflib
import math
import posixpath
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from pipeline.base.errors import Fault
from pipeline.base.files import LOCKED_PACKAGES
from pipeline.base.text import did_you_mean
from pipeline.checks import locked, rules
from pipeline.checks.machine import Machine
from pipeline.config import resolution
from pipeline.config.document import short_text
from pipeline.config.model_names import EXACT_MODELS, MINE, MODELS, TIMM
from pipeline.config.params import APEX_LEVELS, Params, Paths, Run, Split, Train

START = "perennial start writes params that suit this machine"
INSTEAD_OF_APEX = "without it: fp16 for O1 to O3, fp32 for O0, ddp for apex_ddp, torch for apex, sgd for fused_sgd"
MOST_PACKAGES = 5  # that a refusal names
MAX_PER_CORE = 8  # processes per core: more of them only wait for each other, and each takes 0.4 GB
RESERVED = frozenset({  # the project's own files, which a test compares with Git's, and the outputs of stages
    "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "README.zh.md",
    "SECURITY.md", "benchmarks", "docker", "docs", "dvc.lock", "dvc.yaml", "params.yaml", "pipeline", "pyproject.toml",
    "requirements", "results", "tests", "data/corrections.csv",
    *(getattr(Paths, name) for name in Paths.__class_vars__),
})  # fmt: skip
# The oldest GPU that the locked torch has code for, and the newest generation; a test asks torch.
LOWEST_CAPABILITY, NEWEST_GENERATION = (7, 5), 12  # Turing, Blackwell
APEX = (*APEX_LEVELS, "apex_ddp", "apex", "fused_sgd")  # the values of settings that need Apex
# The begin of the names of torchvision's models → the least side in pixels; a test tries it. The others take any side.
SMALLEST_SIDES = {
    "alexnet": 63, "convnext": 32, "densenet": 29, "inception_v3": 75, "squeezenet1_0": 21, "squeezenet1_1": 17,
    "vgg": 32,
}  # fmt: skip
NO_APEX = {
    "missing": "Apex, which is not installed",
    "without amp": "apex.amp and apex.parallel, which the installed Apex no longer has",
    "without extensions": "Apex's extensions amp_C, apex_C and syncbn, which the installed Apex was built without",
}


def faults(params: Params, machine: Machine) -> list[Fault]:
    """Every reason why these params cannot run on this machine; empty if they can."""
    checks = (
        _image(machine),
        _packages(machine),
        _hardware(params.train, params.run, machine),
        _apex(params.train, machine),
        rules.faults(params),
        _processes(params.train, params.run, machine),
        _parts(params.train, params.run),
        _model(params.train),
        resolution.faults(params),
        _ranges(params.train),
        _inbox(params.paths.inbox, machine.project),
        _split(params.split),
    )
    return [fault for check in checks for fault in check]


def _image(machine: Machine) -> Iterator[Fault]:
    if machine.stale_files:
        reason, remedy = "not the file that this container's image was built from", "build it again: make image"
        yield Fault(", ".join(machine.stale_files), "changed", "differs", reason, "the same file", remedy)


def _packages(machine: Machine) -> Iterator[Fault]:
    if different := machine.other_packages:
        more = f" … and {len(different) - MOST_PACKAGES} more" if len(different) > MOST_PACKAGES else ""
        reason = f"{', '.join(different[:MOST_PACKAGES])}{more}"
        yield Fault(str(LOCKED_PACKAGES), "other packages are installed", "machine", reason, remedy=locked.REMEDY)


def _may_be_on_login_node(run: Run, machine: Machine) -> bool:
    """Whether this process may be on a Slurm login node, where no GPU needs to be."""
    return run.launcher == "slurm" and not machine.slurm_step


def _hardware(train: Train, run: Run, machine: Machine) -> Iterator[Fault]:
    for reason, remedy in _gpus(run, machine) if train.device == "cuda" else ():
        yield Fault("train.device", "'cuda'", "machine", reason, "cpu", remedy)
    if train.arithmetic == "portable" and machine.missing_cpu_features:
        lacking = " and ".join(machine.missing_cpu_features)
        reason = f"it needs an x86-64 CPU with AVX2 and FMA, and this one lacks {lacking}"
        yield Fault("train.arithmetic", "'portable'", "machine", reason, "native")
    if train.compile and not machine.compiler:
        yield Fault("train.compile", "true", "machine", "it needs a C++ compiler", "false", "install g++")


def _gpus(run: Run, machine: Machine) -> Iterator[tuple[str, str]]:
    """Why this machine cannot train on a GPU, and the remedy."""
    if machine.cuda_devices == 0 and not _may_be_on_login_node(run, machine):
        yield "it needs an NVIDIA GPU and its driver, and none is found", START
    if machine.cuda_devices and machine.cuda_driver < machine.cuda_of_torch:
        reason = f"the NVIDIA driver knows CUDA up to {machine.cuda_driver}"
        yield f"{reason}, the installed torch needs {machine.cuda_of_torch}", "install a newer driver"
    capabilities = sorted(set(machine.compute_capabilities))
    if without_code := [one for one in capabilities if one < LOWEST_CAPABILITY or one[0] > NEWEST_GENERATION]:
        versions = ", ".join(f"{major}.{minor}" for major, minor in without_code)
        known = f"{'.'.join(map(str, LOWEST_CAPABILITY))} to {NEWEST_GENERATION}.x"
        reason = f"a GPU of compute capability {versions} is visible, the installed torch has code for {known}"
        yield reason, "hide it (CUDA_VISIBLE_DEVICES), or take another GPU"


def unused_gpus(params: Params, machine: Machine) -> str:
    """A sentence that names visible GPUs without a process, and the lines that use them; empty if there are none."""
    train, run, visible = params.train, params.run, machine.cuda_devices
    used = visible if train.parallel == "dp" else run.processes // run.nodes
    if train.device == "cpu" or visible <= used:
        return ""
    lines = f"run.processes: {visible * run.nodes}" + (", train.parallel: ddp" if train.parallel == "single" else "")
    hidden = "CUDA_VISIBLE_DEVICES hides them"
    return f"{visible - used} of {visible} visible GPUs are not used; params.yaml to use them: {lines}; {hidden}"


def apex_choices(train: Train) -> dict[str, str]:
    """The settings of `train` that need Apex (train.key → value)."""
    settings = ("precision", "parallel", "sync_bn", "optimizer")
    return {f"train.{key}": value for key in settings if (value := getattr(train, key)) in APEX}


def _apex(train: Train, machine: Machine) -> Iterator[Fault]:
    if machine.apex == "usable" or train.device == "cpu":  # rules.py refuses Apex on a CPU
        return
    remedy = f"{START}; or use the container (make image); {INSTEAD_OF_APEX}"
    for key, value in apex_choices(train).items():
        yield Fault(key, short_text(value), "machine", f"it needs {NO_APEX[machine.apex]}", remedy=remedy)


def _processes(train: Train, run: Run, machine: Machine) -> Iterator[Fault]:
    if run.processes % run.nodes:
        reason, allowed = f"it does not divide by run.nodes ({run.nodes})", f"a multiple of {run.nodes}"
        yield Fault("run.processes", str(run.processes), "value", reason, allowed)
    if run.node_rank >= run.nodes:
        yield Fault("run.node_rank", f"{run.node_rank} of {run.nodes} nodes", "value", allowed=f"0 to {run.nodes - 1}")
    per_node = run.processes // run.nodes
    on_a_node = f"{per_node} on a node"
    if train.device == "cuda" and 0 < machine.cuda_devices < per_node and not _may_be_on_login_node(run, machine):
        remedy = "CUDA_VISIBLE_DEVICES chooses them"
        if run.launcher == "slurm":
            remedy = "ask for GPUs by node (--gres=gpu:4, not --gpus-per-task), or add --gpu-bind=none"
        reason = f"more than the GPUs visible here ({machine.cuda_devices})"
        yield Fault("run.processes", on_a_node, "machine", reason, f"1 to {machine.cuda_devices}", remedy)
    limit = MAX_PER_CORE * machine.cores
    if train.device == "cpu" and per_node > limit:
        reason = f"more than {MAX_PER_CORE} for each core here ({machine.cores})"
        remedy = f"more than {machine.cores} are not faster"
        yield Fault("run.processes", on_a_node, "machine", reason, f"1 to {limit}", remedy)
    if run.min_processes not in (0, per_node):
        reason, allowed = "not the number of processes per node", f"{per_node}, or 0 to stop when a node is lost"
        yield Fault("run.min_processes", str(run.min_processes), "value", reason, allowed)


def _parts(train: Train, run: Run) -> Iterator[Fault]:
    """Batches that cannot be divided over processes, parts or shards. A head that is solved needs none."""
    if not train.has_steps:
        return
    batch, shards, parts = train.batch_size, train.shards, run.processes * train.accumulation_steps
    if train.parallel != "elastic" and batch % parts:
        reason = f"it does not divide by run.processes × train.accumulation_steps ({parts})"
        allowed = f"a multiple of {parts}, such as {batch - batch % parts or parts}"
        yield Fault("train.batch_size", str(batch), "value", reason, allowed)
    if train.parallel != "elastic":
        return
    if run.processes > shards:
        reason, allowed = f"more than train.shards ({shards})", f"1 to {shards}, or more shards"
        yield Fault("run.processes", str(run.processes), "value", reason, allowed)
    if batch % shards or batch < 2 * shards:
        reason = f"each of train.shards ({shards}) needs the same number of images, at least two for BatchNorm"
        nearest = max(2, round(batch / shards)) * shards
        allowed = f"{2 * shards} or a larger multiple of {shards}, such as {nearest}"
        yield Fault("train.batch_size", str(batch), "value", reason, allowed)


def _model(train: Train) -> Iterator[Fault]:
    known = (*MODELS, *EXACT_MODELS)
    if not train.model.startswith((TIMM, MINE)) and train.model not in known:  # models/ has their checks
        near = difflib.get_close_matches(train.model, known, n=3)
        guess = did_you_mean(near) or "torchvision.models.list_models() names them"
        reason = f"not one of torchvision's {len(MODELS)} classification models"
        yield Fault("train.model", short_text(train.model), "unknown", reason, remedy=guess)
    least = next((side for name, side in SMALLEST_SIDES.items() if train.model.startswith(name)), 0)
    for key in ("crop_from" if train.crop_from else "crop", "eval_crop"):
        if (side := getattr(train, key)) < least:
            reason = f"in train.model: {train.model!r} nothing is left of so small an image"
            yield Fault(f"train.{key}", str(side), "pair", reason, f"{least} or more, or another model")


def _ranges(train: Train) -> Iterator[Fault]:
    low, high = train.crop_scale
    if low > high:
        yield Fault("train.crop_scale", f"[{low}, {high}]", "value", "in the wrong order", "[minimum, maximum]")


def _inbox(inbox: str, project: str) -> Iterator[Fault]:
    """An inbox that is inside the project's own files, or holds some of them."""
    path = _relative_to_project(project, inbox)
    if path.is_absolute() and project and PurePosixPath(project).is_relative_to(path):
        reason = "it holds this project itself, with its outputs"
    elif any(path.is_relative_to(name) or PurePosixPath(name).is_relative_to(path) for name in RESERVED):
        reason = "the project's own files are there"
    else:
        return
    yield Fault("paths.inbox", repr(inbox), "value", reason, "a folder that holds only your images, such as data/inbox")


def _relative_to_project(project: str, path: str) -> PurePosixPath:
    """A path relative to the project if it is inside; an absolute one without `..` if it is outside."""
    plain = PurePosixPath(posixpath.normpath(path))
    inside = project and plain.is_relative_to(project) and plain != PurePosixPath(project)
    return plain.relative_to(project) if inside else plain


def _split(split: Split) -> Iterator[Fault]:
    parts = split.fractions
    if not math.isclose(parts.train + parts.val + parts.test, 1, abs_tol=1e-9):
        fractions = f"{parts.train} + {parts.val} + {parts.test}"
        allowed = "three fractions that sum to 1, such as 0.8, 0.1, 0.1"
        yield Fault("split.fractions", fractions, "value", "the sum is not 1", allowed)
    if split.group not in ("none", "folder") and (fault := _fault_of_expression(split.group)):
        allowed = "none, folder, or a regular expression with exactly one group in parentheses, such as patient([0-9]+)"
        yield Fault("split.group", short_text(split.group), "value", fault, allowed)
    if split.fold >= split.folds:
        yield Fault("split.fold", f"{split.fold} of {split.folds} folds", "value", allowed=f"0 to {split.folds - 1}")


def _fault_of_expression(text: str) -> str:
    """The fault of a regular expression for split.group; empty if it has none."""
    try:
        groups = re.compile(text).groups
    except (re.error, OverflowError, RecursionError) as error:
        return f"no regular expression ({error})"
    return "" if groups == 1 else f"{groups} groups in parentheses"
