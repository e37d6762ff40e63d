"""Facts about this machine, read without an import of torch (which takes seconds)."""

import ctypes
import importlib.util
import json
import os
import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from pipeline.base import files
from pipeline.checks import locked

Apex = Literal["missing", "without amp", "without extensions", "usable"]
PORTABLE_NEEDS = {"avx2": "AVX2", "fma": "FMA"}  # flag in /proc/cpuinfo → name; Intel since Haswell, AMD since Zen
EXTENSIONS = ("amp_C", "apex_C", "syncbn")
PROJECT = Path(__file__).resolve().parents[2]
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76  # attributes of a device [CUDA driver API, CUdevice_attribute]
# Only in the container's image: the SHA-256 of each file that it was built from (docker/environment.py).
BUILT_FROM = Path("/opt/perennial/environment.json")


@dataclass(frozen=True)
class Machine:
    """Facts about a machine that decide which params can run on it."""

    cuda_devices: int  # GPUs visible to this process (CUDA_VISIBLE_DEVICES counts)
    apex: Apex
    compiler: bool  # whether there is a C++ compiler, which torch.compile needs
    compute_capabilities: tuple[tuple[int, int], ...] = ()  # major and minor of each visible GPU
    cuda_driver: int = 0  # the newest major version of CUDA that the driver knows; 0 without a driver
    cuda_of_torch: int = 0  # the major version of CUDA that the installed torch was built for; 0 for a CPU build
    slurm_step: bool = False  # whether srun started this process; if not, it may run on a login node without a GPU
    cores: int = 1  # of the whole machine; Slurm may allow a process fewer
    physical_cores: int = 1  # `cores`, with the threads of one core (SMT) counted once
    missing_cpu_features: tuple[str, ...] = ()  # instruction sets for train.arithmetic: portable that the CPU lacks
    project: str = ""  # the absolute path of the project's folder; empty if it does not matter
    stale_files: tuple[str, ...] = ()  # files of the checkout that differ from those of the container's image
    other_packages: tuple[str, ...] = ()  # installed packages that are not as locked: what is said of each


def read() -> Machine:
    """The facts of the machine on which this process runs."""
    compiler = any(map(shutil.which, ("c++", "g++", "clang++")))
    capabilities = _compute_capabilities()
    return Machine(
        cuda_devices=len(capabilities),
        apex=_apex(),
        compiler=compiler,
        compute_capabilities=capabilities,
        cuda_driver=driver_version() // 1000,
        cuda_of_torch=_cuda_of_torch(),
        slurm_step="SLURM_STEP_NUM_TASKS" in os.environ,
        cores=os.cpu_count() or 1,
        physical_cores=psutil.cpu_count(logical=False) or os.cpu_count() or 1,
        missing_cpu_features=missing_cpu_features(),
        project=str(Path.cwd()),
        stale_files=stale_files(BUILT_FROM, PROJECT),
        other_packages=other_packages(PROJECT),
    )


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The name of the CPU as Linux gives it, and its family and model.

    In a virtual machine many kinds can have one name [Firecracker, DEFAULT_BRAND_STRING].
    """
    entries = re.findall(r"^(model name|cpu family|model)\s*:\s*(.*\S)", cpuinfo.read_text(), re.MULTILINE)
    of_last = dict(entries)
    name = of_last.get("model name") or platform.processor()
    if not {"cpu family", "model"} <= of_last.keys():
        return name
    return f"{name} (family {of_last['cpu family']}, model {of_last['model']})"


def missing_cpu_features() -> tuple[str, ...]:
    """The instruction sets of x86-64 that `train.arithmetic: portable` needs and that this CPU lacks."""
    if platform.machine() != "x86_64":
        return tuple(PORTABLE_NEEDS.values())
    match = re.search(r"^flags\s*:(.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    flags = match[1].split() if match else []
    return tuple(name for flag, name in PORTABLE_NEEDS.items() if flag not in flags)


def stale_files(built_from: Path, project: Path) -> tuple[str, ...]:
    """The files listed in `built_from` that differ in `project`; none outside the container."""
    if not built_from.is_file():
        return ()
    names = []
    for name, sha256 in json.loads(built_from.read_bytes()).items():
        path = project / name
        if not path.is_file() or files.sha256(path) != sha256:
            names.append(name)
    return tuple(names)


def other_packages(project: Path) -> tuple[str, ...]:
    """What is said of each package that is not installed as the lock of `project` says; nothing without a lock.

    The packages are read each time (0.02 s): a stamp of the installation would not show what pip changed afterwards.
    """
    lock = project / files.LOCKED_PACKAGES
    return tuple(locked.differences(locked.versions(lock.read_text(encoding="utf-8")))) if lock.is_file() else ()


def _compute_capabilities() -> tuple[tuple[int, int], ...]:
    """Major and minor compute capability of each GPU, from the CUDA driver; empty without a driver or a GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ()
    count, device, value = ctypes.c_int(0), ctypes.c_int(0), ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()

    def attribute(number: int) -> int:
        driver.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        return value.value

    capabilities = []
    for index in range(count.value):
        driver.cuDeviceGet(ctypes.byref(device), index)
        capabilities.append((attribute(CAPABILITY_MAJOR), attribute(CAPABILITY_MINOR)))
    return tuple(capabilities)


def _cuda_of_torch() -> int:
    """The major version of CUDA that the installed torch was built for; 0 without CUDA or without torch."""
    spec = importlib.util.find_spec("torch")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if match := re.search(r"^cuda\b.*= '(\d+)\.", (Path(folder) / "version.py").read_text(), re.MULTILINE):
            return int(match[1])
    return 0


def driver_version() -> int:
    """The newest CUDA version that the driver supports, as 1000 · major + 10 · minor; 0 without a driver."""
    version = ctypes.c_int(0)
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except OSError:
        return 0
    return version.value


def _apex() -> Apex:
    """Which parts of Apex are installed, by its files: importing Apex would import torch. `launch` tests the import."""
    spec = importlib.util.find_spec("apex")
    if spec is None or not spec.submodule_search_locations:
        return "missing"
    folder = Path(spec.submodule_search_locations[0])
    if not ((folder / "amp").is_dir() and (folder / "parallel").is_dir()):
        return "without amp"
    if not all(importlib.util.find_spec(extension) for extension in EXTENSIONS):
        return "without extensions"
    return "usable"
