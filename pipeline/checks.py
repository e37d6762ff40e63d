"""What the doctor asks of a machine or a container, each question a function: the fact, and what would stop the run.

The params have been asked already (validity.py); here it is about driver, Apex, memory, disks, Git, DVC and packages.
"""

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from pipeline.config import machine, validity
from pipeline.config.machine import Machine
from pipeline.config.params import Params

SHM = 2**30  # bytes of /dev/shm that NCCL's processes can rely on; a container has a sixteenth of it if nobody asks
LOCK, PROJECT = Path("requirements/lock.txt"), Path("pyproject.toml")


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's page."""

    fact: str
    value: str
    fault: str = ""  # what would stop the run, and the remedy


def findings(config: Params, here: Machine) -> Iterator[Finding]:
    """The answers to all questions, one after another: some take a second."""
    yield Finding("Python", platform.python_version())
    yield Finding("CPU", f"{len(os.sched_getaffinity(0))} cores, {torch.backends.cpu.get_cpu_capability()}")
    yield Finding("memory", f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB")
    yield driver(config, machine.driver(), torch.version.cuda or "")
    yield gpus(here)
    yield apex(config, here)
    yield shared_memory(config, shutil.disk_usage("/dev/shm").total)
    yield writable((home(), Path.cwd(), Path("/var/tmp")))  # DVC keeps its locks in /var/tmp
    yield disk(config, shutil.disk_usage(Path.cwd()).free)
    yield git()
    yield dvc()
    yield packages(LOCK.read_text(), PROJECT.read_text())
    yield image(here)


def driver(config: Params, version: int, runtime: str) -> Finding:
    """`version` is the driver's newest CUDA, as 1000 · major + 10 · minor; 0 without a driver."""
    value = f"CUDA {version // 1000}.{version % 1000 // 10}" if version else "none"
    fault = ""
    if config.train.device == "cuda" and version and version // 1000 < int(runtime.partition(".")[0]):
        fault = f"the driver knows CUDA up to {value[5:]}, torch was built for {runtime}; install a newer driver"
    return Finding("driver", f"{value}; torch {torch.__version__} wants CUDA {runtime or 'none'}", fault)


def gpus(here: Machine) -> Finding:
    """Whether torch can use what the driver shows."""
    try:
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    except (RuntimeError, AssertionError) as error:  # such as a driver that is too old for this torch
        reason = " ".join(str(error).split())
        return Finding("GPUs", f"{here.cuda_devices} seen by the driver", f"torch cannot use them: {reason}")
    fault = ""
    if here.cuda_devices != len(names):
        fault = (
            f"the driver sees {here.cuda_devices} GPUs, torch {len(names)}: python -c 'import torch; torch.cuda.init()'"
        )
    return Finding("GPUs", ", ".join(names) or "none visible; to a container they are given by --gpus all", fault)


def apex(config: Params, here: Machine) -> Finding:
    """Whether Apex loads, and not only lies there: its extensions fit one torch alone."""
    if here.apex != "usable":  # validity.py has said so, if the params ask for it
        return Finding("Apex", here.apex)
    from pipeline.engine import apex as installed

    broken = installed.fault()
    asked = validity.apex_choices(config.train)
    fault = f"{broken}; build it for this torch (make image); {validity.INSTEAD_OF_APEX}" if broken and asked else ""
    return Finding("Apex", broken or "amp, parallel and the extensions load", fault)


def shared_memory(config: Params, size: int) -> Finding:
    """Images are decoded by threads, which need none; the processes of one node meet in it through NCCL."""
    several = config.train.device == "cuda" and config.run.processes // config.run.nodes > 1
    fault = ""
    if several and size < SHM:
        fault = f"/dev/shm has {size / 2**20:.0f} MiB; NCCL wants {SHM / 2**20:.0f}: docker run --shm-size=1g"
    return Finding("/dev/shm", f"{size / 2**20:,.0f} MiB", fault)


def home() -> Path | None:
    """Where programs keep their settings; None for a user whom nobody gave a home."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def writable(folders: tuple[Path | None, ...]) -> Finding:
    """Home, workspace, and where DVC keeps its locks."""
    if None in folders:
        return Finding("writable", "no home", "this user has no home; set HOME to a folder that can be written to")
    closed = [str(folder) for folder in folders if folder and not os.access(folder, os.W_OK)]
    fault = f"{', '.join(closed)}: not writable; run as its owner, or make it a tmpfs (--tmpfs)" if closed else ""
    return Finding("writable", ", ".join(map(str, folders)), fault)


def disk(config: Params, free: int) -> Finding:
    """Images and packed array lie in the workspace and, unless the disk can share blocks, in DVC's cache again."""
    value = f"{free / 1e9:,.1f} GB free"
    if Path(config.paths.packed).exists():
        return Finding("disk", f"{value}; the data is there")
    folder = Path(config.paths.inbox if config.data.source == "inbox" else config.paths.images)
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    images = config.data.synthetic.count if config.data.source == "synthetic" else len(sizes)
    if not images:
        return Finding("disk", f"{value}; how much the data takes is known when it is here")
    need = 2 * (sum(sizes) + images * config.prepare.size**2 * 3)
    fault = f"{value}, the data and DVC's cache of it take {need / 1e9:,.1f} GB; make room" if need > free else ""
    return Finding("disk", f"{value}; data and cache take about {need / 1e9:,.1f} GB", fault)


def git() -> Finding:
    """Git refuses a folder of another owner, and DVC and provenance ask Git."""
    done = subprocess.run(["git", "rev-parse", "--show-toplevel"], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return Finding("Git", f"repository {done.stdout.strip()}")
    reason = (done.stderr.splitlines() or ["no reason given"])[0]
    remedy = f"git config --global --add safe.directory {Path.cwd()}" if "dubious" in reason else "git init"
    return Finding("Git", "no repository", f"{reason}; {remedy}")


def dvc() -> Finding:
    """How DVC can bring files from its cache into the workspace."""
    program = shutil.which("dvc")
    if program is None:
        return Finding("DVC", "missing", "dvc is not on the PATH; activate the environment: . .venv/bin/activate")
    done = subprocess.run([program, "doctor"], capture_output=True, text=True, check=False)
    said = re.search(r"^Cache types: (.*)$", done.stdout, re.MULTILINE)
    links = "shown after the first run" if said is None or "no-dvc-cache" in said[1] else said[1]
    kind = subprocess.run([program, "config", "cache.type"], capture_output=True, text=True, check=False).stdout.strip()
    fault = "" if done.returncode == 0 else f"dvc doctor: {(done.stderr.splitlines() or ['failed'])[-1]}"
    return Finding(
        "DVC", f"links the disk offers: {links}; cache.type: {kind or 'reflink, else copy (default)'}", fault
    )


def packages(lock: str, project: str) -> Finding:
    """Whether what is installed is what is locked; what developing needs besides may be missing."""
    locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock, re.MULTILINE))
    installed = {plain(found.name): found.version for found in importlib.metadata.distributions()}
    asked = [plain(re.split(r"[^\w.-]", line)[0]) for line in tomllib.loads(project)["project"]["dependencies"]]
    others = [
        f"{name} {installed.get(name, 'missing')} (locked: {version})"
        for name, version in sorted(locked.items())
        if installed.get(name, version) != version or (name in asked and name not in installed)
    ]
    same = sum(installed.get(name) == version for name, version in locked.items())
    fault = f"{', '.join(others)}: not what {LOCK} has; make setup, or make image for the container" if others else ""
    return Finding("packages", f"{same} as in {LOCK}, {len(others)} not", fault)


def plain(name: str) -> str:
    """A package's name in the one spelling that all of Python's tools agree on."""
    return re.sub(r"[-_.]+", "-", name).lower()


def image(here: Machine) -> Finding:
    """A stale image is refused by validity.py; this is where it is shown."""
    if not machine.BUILT_FROM.is_file():
        return Finding("image", "not in the project's container")
    return Finding(
        "image", f"built from other {', '.join(here.stale)}" if here.stale else "built from this lock and pins"
    )
