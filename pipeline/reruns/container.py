"""Runs the stages of a work copy in a container of the project's image, which sees that copy and little else."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.reruns.runner import Job
from pipeline.versioning import run_cache

VARIABLE, IMAGE = "PERENNIAL_IMAGE", "perennial"  # as docker/compose.yaml has them
CONFINED = ("--rm", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--pids-limit=8192")
TEMPORARY = ("--tmpfs=/tmp", "--tmpfs=/var/tmp", "--shm-size=1g")


def image() -> str:
    """The name of the project's image, if Docker has it here; else empty."""
    name = os.environ.get(VARIABLE, IMAGE)
    try:
        done = subprocess.run(["docker", "image", "inspect", name], capture_output=True, check=False)
    except OSError:  # there is no docker
        return ""
    return "" if done.returncode else name


def describe(image: str) -> str:
    """The words that say where stages run: in a container of this image, or here if it is empty."""
    return f"in a container of the image {image}" if image else "here, as your user"


def inside(job: Job, image: str, folders: Sequence[Path], device: str) -> Job:
    """A job whose DVC runs in a container of an image, which can write to its folder and to `folders`.

    `device`: train.device. PERENNIAL_NETWORK names the network, as for docker/compose.yaml.
    """
    here = job.folder.absolute()
    mounts = [f"--volume={folder.absolute()}:{folder.absolute()}" for folder in (here, *folders)]
    command = [
        "docker", "run", *CONFINED, *TEMPORARY, *mounts, f"--volume={run_cache.__file__}:{run_cache.__file__}:ro",
        f"--user={os.getuid()}:{os.getgid()}", f"--workdir={here}", *(f"--env={name}" for name in job.environ),
        f"--network={os.environ.get('PERENNIAL_NETWORK', 'bridge')}", *(["--gpus=all"] if device == "cuda" else []),
        image, "python",
    ]  # fmt: skip
    return replace(job, python=tuple(command))
