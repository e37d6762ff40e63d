"""What this machine has, as plain facts, found without importing torch (which takes seconds)."""

import ctypes
import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Apex = Literal["missing", "without amp", "without extensions", "usable"]
EXTENSIONS = ("amp_C", "apex_C", "syncbn")


@dataclass(frozen=True)
class Machine:
    """The facts that decide which params can run here."""

    cuda_devices: int  # GPUs visible to this process (CUDA_VISIBLE_DEVICES counts)
    apex: Apex
    compiler: bool  # a C++ compiler, which torch.compile calls


def read() -> Machine:
    """The facts of the machine this process runs on."""
    return Machine(_cuda_devices(), _apex(), any(map(shutil.which, ("c++", "g++", "clang++"))))


def _cuda_devices() -> int:
    """Ask the CUDA driver itself; no driver, or one without a device, means none."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


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
