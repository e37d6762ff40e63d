"""Who trained a model, where, when, with which versions and how fast. provenance.json is not hashed."""

import os
import platform
import socket
import subprocess
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from pipeline.base import files
from pipeline.checks import machine
from pipeline.config.params import Arithmetic, Params
from pipeline.learning import environment
from pipeline.learning.world import World

FILE = "provenance.json"
PORTABLE_CPU = "x86-64 CPU with AVX2 and FMA"


def versions() -> dict[str, str]:
    """The versions of everything that computes, by name."""
    cuda = torch.cuda.is_available()
    return {
        "python": platform.python_version(),
        "libc": "-".join(platform.libc_ver()),
        **{name: metadata.version(name) for name in ("numpy", "numba", "torchvision", "timm")},
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "cudnn": str(torch.backends.cudnn.version()) if cuda else "",
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else "",
    }


def hardware(world: World, threads: int, arithmetic: Arithmetic) -> dict[str, Any]:
    """The facts that must be equal before and after a resume: device, CPU capability, threads, numeric variables.

    With `arithmetic` portable, all CPUs that support it have the same name.
    """
    portable = arithmetic == "portable" and world.device.type == "cpu"
    return {
        "device": PORTABLE_CPU if portable else device_name(world.device),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": threads,
        **environment.numeric_variables(environment.initial_variables()),
    }


def device_name(device: torch.device) -> str:
    """The name of the GPU, or of the CPU as Linux gives it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else machine.cpu_name()


def write(
    folder: Path, config: Params, world: World, start_time: float, images: int, kernels: Mapping[str, str]
) -> None:
    """Write provenance.json into the run's folder, after the exported model is written.

    `start_time`: time.monotonic() at the start of this process. `images`: the number of images trained on since.
    `kernels`: `kernel_names.digests` of the run; an empty one is not written.
    """
    cuda = world.device.type == "cuda"
    seconds = time.monotonic() - start_time  # the system clock may have been set meanwhile
    files.write_json(
        folder / FILE,
        {
            "model": files.md5(Path(config.paths.models) / "model.safetensors"),
            "git": {"commit": _git("rev-parse", "HEAD"), "changed": _git("status", "--porcelain").splitlines()},
            "lock": files.sha256(files.LOCKED_PACKAGES),
            "image": os.environ.get("PERENNIAL_IMAGE", ""),
            "host": socket.gethostname(),
            "platform": platform.platform(),
            "versions": versions(),
            **hardware(world, config.train.threads, config.train.arithmetic),
            "device": device_name(world.device),
            "bytes_promised": config.train.deterministic,
            "launcher": config.run.launcher,
            "processes": world.size,
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "seconds": round(seconds, 3),
            "images_per_second": round(images / seconds, 1),
            "gpu_memory": torch.cuda.max_memory_allocated() if cuda else 0,
            **({"kernels": dict(kernels)} if kernels else {}),
        },
    )


def _git(*command: str) -> str:
    """The output of a git command; empty without git or a repository: provenance must not fail a run."""
    try:
        done = subprocess.run(["git", *command], capture_output=True, text=True, errors="replace", check=True)
        return done.stdout.rstrip()  # the first line of a status may begin with a blank
    except (OSError, subprocess.CalledProcessError):
        return ""
