"""Show what this machine or container has, what would stop a run here, and which params cannot run here.

    perennial doctor        exit status 1 if something would stop a run; if not, how long a run takes

Each check is a function that returns a `Finding`: Apex, memory, disks, Git. The params, the driver and the packages are
checked by checks/validity.py, as at the start of every stage. Some checks take seconds, so only this command does them.
"""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.base import files, linux
from pipeline.base.errors import UserError
from pipeline.base.files import LOCKED_PACKAGES
from pipeline.checks import machine, validity
from pipeline.checks.machine import Machine
from pipeline.config import params
from pipeline.config.model_names import MINE, TIMM
from pipeline.config.params import Params
from pipeline.sources import originals

SHM = 2**30  # bytes of /dev/shm that NCCL needs between processes; a container has 64 MiB by default
# Whether the variable NVIDIA_VISIBLE_DEVICES is "void" → what is said where torch sees no GPU. A CDI specification sets
# this value, so that the older way does not give the GPUs a second time [NVIDIA Container Toolkit].
NO_GPU = {
    False: "none visible; to show them to a container: --device nvidia.com/gpu=all (older Docker: --gpus all)",
    True: "none visible, and NVIDIA_VISIBLE_DEVICES is void: the CDI specification of the host may be older than its "
    "driver or GPUs; there: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
}


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's output."""

    fact: str
    value: str
    fault: str = ""  # what would stop a run, and the remedy; empty if nothing would


def findings(config: Params, facts: Machine) -> Iterator[Finding]:
    """The result of every check, one at a time, because some take a second."""
    yield Finding("Python", platform.python_version())
    yield Finding("memory", f"{linux.memory_bytes() / 2**30:.0f} GiB")
    import torch  # takes seconds: after the first lines

    yield Finding("CPU", f"{linux.usable_cores()} cores, {torch.backends.cpu.get_cpu_capability()}")
    yield bytecode(Path(torch.__file__))
    yield driver(machine.driver_version(), torch.version.cuda or "")
    yield gpus(facts)
    if unused := validity.unused_gpus(config, facts):
        yield Finding("GPUs", unused)
    yield apex(config, facts)
    yield from network(config)
    yield shared_memory(config, shutil.disk_usage("/dev/shm").total)
    home = Path(os.path.expanduser("~"))  # noqa: PTH111  (of a user without a home it stays "~", which is not there)
    yield writable((home, Path.cwd(), Path("/var/tmp")))  # DVC keeps its locks in /var/tmp
    yield photos(config)
    yield disk(config, shutil.disk_usage(Path.cwd()).free)
    yield git()
    yield Finding("packages", f"{len(facts.other_packages)} not as in {LOCKED_PACKAGES}")  # validity.py refuses them


def bytecode(module: Path) -> Finding:
    """Whether Python keeps the compiled form of a module that has been imported. If not, each start compiles it."""
    if Path(importlib.util.cache_from_source(str(module))).is_file():
        return Finding("bytecode", "kept")
    remedy = f"unset PYTHONDONTWRITEBYTECODE, or once: python -m compileall -q {module.parent.parent}"
    return Finding("bytecode", f"not kept: each start of Python compiles torch, which takes seconds; {remedy}")


def driver(version: int, runtime: str) -> Finding:
    """The newest CUDA that the driver knows, and the one that torch was built for (`runtime`, such as "13.0").

    `version`: as 1000 · major + 10 · minor; 0 without a driver. validity.py refuses a driver that is too old.
    """
    import torch

    value = f"CUDA {version // 1000}.{version % 1000 // 10}" if version else "none"
    return Finding("driver", f"{value}; torch {torch.__version__} needs CUDA {runtime or 'none'}")


def gpus(facts: Machine) -> Finding:
    """Whether torch can use every GPU that the driver reports."""
    import torch

    try:
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    except (RuntimeError, AssertionError) as error:  # such as a driver that is too old for this torch
        reason = " ".join(str(error).split())
        return Finding("GPUs", f"{facts.cuda_devices} seen by the driver", f"torch cannot use them: {reason}")
    fault = ""
    if facts.cuda_devices != len(names):
        why = "python -c 'import torch; torch.cuda.init()'"
        fault = f"the driver sees {facts.cuda_devices} GPUs, torch {len(names)}; to see why: {why}"
    value = ", ".join(names) or NO_GPU[os.environ.get("NVIDIA_VISIBLE_DEVICES") == "void"]
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    return Finding("GPUs", value if variable is None else f"{value}; CUDA_VISIBLE_DEVICES: {variable!r}", fault)


def apex(config: Params, facts: Machine) -> Finding:
    """Whether the installed Apex loads: its extensions fit only the torch that they were built for."""
    if facts.apex != "usable":  # validity.py has reported it, if the params need Apex
        return Finding("Apex", facts.apex)
    from pipeline.learning import apex as installed

    broken = installed.fault()
    needed = validity.apex_choices(config.train)
    fault = f"{broken}; build it for this torch (make image); {validity.INSTEAD_OF_APEX}" if broken and needed else ""
    return Finding("Apex", broken or "amp, parallel and the extensions load", fault)


def network(config: Params) -> Iterator[Finding]:
    """Whether train.model can be trained with these settings, if the model is one of timm or the user's own."""
    if config.train.model.startswith(TIMM):
        from pipeline.models import timm_models

        yield Finding("timm", importlib.metadata.version("timm"), "\n".join(map(str, timm_models.faults(config.train))))
    elif config.train.model.startswith(MINE):
        from pipeline.models import own

        yield Finding("network", config.train.model, "\n".join(map(str, own.faults(config.train))))


def shared_memory(config: Params, size: int) -> Finding:
    """Whether /dev/shm (`size` bytes) is large enough for NCCL. Decoding uses threads, which need none of it."""
    several = config.train.device == "cuda" and config.run.processes // config.run.nodes > 1
    fault = ""
    if several and size < SHM:
        fault = f"/dev/shm has {size / 2**20:.0f} MiB; NCCL needs {SHM / 2**20:.0f}: docker run --shm-size=1g"
    return Finding("/dev/shm", f"{size / 2**20:,.0f} MiB", fault)


def writable(folders: tuple[Path, ...]) -> Finding:
    """Whether this user may write to each of the folders."""
    closed = [str(folder) for folder in folders if not os.access(folder, os.W_OK)]
    remedy = "run as its owner, make it a tmpfs (--tmpfs), or, for a home, set HOME to a folder that can be written to"
    fault = f"{', '.join(closed)}: not writable; {remedy}" if closed else ""
    return Finding("writable", ", ".join(map(str, folders)), fault)


def disk(config: Params, free: int) -> Finding:
    """Whether `free` bytes hold the images and the packed array twice: in the workspace and in DVC's cache.

    On a disk that can share blocks (reflink) they take less. Links to folders are followed, as by `download`.
    """
    value = f"{free / 1e9:,.1f} GB free"
    if Path(config.paths.packed).exists():
        return Finding("disk", f"{value}; the data is there")
    folder = Path(config.paths.inbox if config.data.source in ("inbox", "folder") else config.paths.images)
    try:
        paths = [folder / name for name in originals.list_entries(folder)] if folder.is_dir() else []
    except (UserError, OSError) as error:
        return Finding("disk", f"{value}; the size of the data is not known", str(error))
    sizes = [path.stat().st_size for path in paths if path.is_file()]
    images = config.data.synthetic.count if config.data.source == "synthetic" else len(sizes)
    if not images:
        return Finding("disk", f"{value}; the size of the data is not known before it is downloaded")
    copied = 0 if config.data.source == "folder" else sum(sizes)
    need = 2 * (copied + images * config.prepare.size**2 * 3)
    fault = f"{value}, the data and DVC's cache of it take {need / 1e9:,.1f} GB; make room" if need > free else ""
    return Finding("disk", f"{value}; data and cache take about {need / 1e9:,.1f} GB", fault)


def photos(config: Params) -> Finding:
    """Whether the user's photos are here: in a clone they are not, though the files of `dvc add` may be."""
    inbox = Path(config.paths.inbox)
    if config.data.source not in ("inbox", "folder"):
        return Finding("photos", f"data.source: {config.data.source}")
    added = [path for path in files.visible(inbox) if originals.is_from_dvc_add(path, inbox)]
    missing = [str(path) for path in added if not path.with_suffix("").exists()]
    if missing:
        return Finding(
            "photos", f"in {inbox}", f"{missing[0]} names photos that are not here; dvc checkout, or dvc pull"
        )
    found = len(files.visible(inbox)) > len(added)
    fault = "" if found else f"paths.inbox: {inbox} has no photos; perennial start --photos /path/to/photos"
    return Finding("photos", f"{'' if found else 'none '}in {inbox}", fault)


def git() -> Finding:
    """Whether Git accepts this folder. It refuses a folder of another owner; DVC and provenance need Git."""
    result = subprocess.run(["git", "rev-parse", "--show-toplevel"], capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return Finding("Git", f"repository {result.stdout.strip()}")
    reason = (result.stderr.splitlines() or ["no reason given"])[0]
    remedy = f"git config --global --add safe.directory {Path.cwd()}" if "dubious" in reason else "git init"
    return Finding("Git", "no repository", f"{reason}; {remedy}")


def main(_: Namespace) -> int:
    """Print every finding and what is refused. Returns 1 if anything is wrong, else 0.

    Raises UserError for unreadable params.
    """
    config = params.load()
    facts, faults = machine.read(), []
    for finding in findings(config, facts):
        print(f"{finding.fact:<10} {finding.value}", flush=True)
        faults += [f"{finding.fact}: {finding.fault}"] if finding.fault else []
    refused = validity.faults(config, facts)
    if faults:
        print("\nThis would stop a run here:", *faults, sep="\n")
    if refused:
        print("\nparams.yaml is refused here:", *refused, sep="\n")
    if faults or refused:
        return 1
    print("\nparams.yaml can run here.")
    from pipeline.planning import estimate, survey  # imports what decodes images, which takes a second

    for line in estimate.report_lines(config, survey.survey(config)):
        print(line, flush=True)
    return 0
