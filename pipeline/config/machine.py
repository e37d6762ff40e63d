"""What this machine has, as plain facts, found without importing torch (which takes seconds)."""

import ctypes
import hashlib
import importlib.util
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Apex = Literal["missing", "without amp", "without extensions", "usable"]
EXTENSIONS = ("amp_C", "apex_C", "syncbn")
PROJECT = Path(__file__).resolve().parents[2]
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76  # of CUdevice_attribute [CUDA driver API]
BUILT_FROM = Path("/opt/perennial/environment.json")  # in the image alone: file → SHA-256 (docker/environment.py)


@dataclass(frozen=True)
class Machine:
    """The facts that decide which params can run here."""

    cuda_devices: int  # GPUs visible to this process (CUDA_VISIBLE_DEVICES counts)
    apex: Apex
    compiler: bool  # a C++ compiler, which torch.compile calls
    compute_capabilities: tuple[tuple[int, int], ...] = ()  # major and minor of each visible GPU
    cuda_driver: int = 0  # the newest major version of CUDA that the driver knows; 0 without a driver
    cuda_of_torch: int = 0  # the major version of CUDA that the installed torch was built for; 0 without
    slurm_step: bool = False  # whether srun started this process: else it may be on a login node, which has no GPU
    cores: int = 1  # of the machine: Slurm and others let one process see fewer
    stale: tuple[str, ...] = ()  # files of the checkout that are not those the container's image was built from


def read() -> Machine:
    """The facts of the machine this process runs on."""
    compiler = any(map(shutil.which, ("c++", "g++", "clang++")))
    capabilities = _compute_capabilities()
    return Machine(
        cuda_devices=len(capabilities),
        apex=_apex(),
        compiler=compiler,
        compute_capabilities=capabilities,
        cuda_driver=driver() // 1000,
        cuda_of_torch=_cuda_of_torch(),
        slurm_step="SLURM_STEP_NUM_TASKS" in os.environ,
        cores=os.cpu_count() or 1,
        stale=stale(BUILT_FROM, PROJECT),
    )


def stale(built_from: Path, project: Path) -> tuple[str, ...]:
    """The files named in `built_from` that are others in `project`; none where there is no such image."""
    if not built_from.is_file():
        return ()
    return tuple(
        name for name, sha256 in json.loads(built_from.read_bytes()).items() if _sha256(project / name) != sha256
    )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"


def _compute_capabilities() -> tuple[tuple[int, int], ...]:
    """Major and minor of each GPU, as the CUDA driver itself says; no driver, or one without a device, means none."""
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

    found = []
    for index in range(count.value):
        driver.cuDeviceGet(ctypes.byref(device), index)
        found.append((attribute(CAPABILITY_MAJOR), attribute(CAPABILITY_MINOR)))
    return tuple(found)


def _cuda_of_torch() -> int:
    """The major version of CUDA that the installed torch was built for; 0 for one without, or for no torch."""
    found = importlib.util.find_spec("torch")
    for folder in (found.submodule_search_locations or ()) if found else ():
        if match := re.search(r"^cuda\b.*= '(\d+)\.", (Path(folder) / "version.py").read_text(), re.MULTILINE):
            return int(match[1])
    return 0


def driver() -> int:
    """The newest CUDA that the driver knows, as 1000 · major + 10 · minor; 0 without a driver."""
    version = ctypes.c_int(0)
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except OSError:
        return 0
    return version.value


def _apex() -> Apex:
    """Look at the installed files only: importing Apex would import torch. `launch` tries whether they load."""
    found = importlib.util.find_spec("apex")
    if found is None or not found.submodule_search_locations:
        return "missing"
    folder = Path(found.submodule_search_locations[0])
    if not ((folder / "amp").is_dir() and (folder / "parallel").is_dir()):
        return "without amp"
    if not all(importlib.util.find_spec(extension) for extension in EXTENSIONS):
        return "without extensions"
    return "usable"
