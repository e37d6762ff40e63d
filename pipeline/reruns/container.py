"""Runs the stages of a work copy in a container of the project's image, which can write to that copy alone."""

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from pipeline.base.errors import Fault, UserError
from pipeline.config.params import Params
from pipeline.reruns.runner import Job
from pipeline.versioning import integrity, run_cache

# As docker/compose.yaml has them, whose services see the whole project. A test compares them.
VARIABLE, IMAGE = "PERENNIAL_IMAGE", "perennial"
CONFINED = ("--rm", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges:true", "--pids-limit=8192")
TEMPORARY = ("--tmpfs=/tmp", "--tmpfs=/var/tmp", "--shm-size=1gb")


def image() -> str:
    """The name of the project's image, if Docker has it here; else empty.

    Raises UserError if PERENNIAL_IMAGE names another one, which Docker does not have, or cannot be asked for.
    """
    name = os.environ.get(VARIABLE, IMAGE)
    command = ["docker", "image", "inspect", name]
    if shutil.which(command[0]) and not subprocess.run(command, capture_output=True, check=False).returncode:
        return name
    if VARIABLE in os.environ:
        reason = f"{' '.join(command)} does not find it"
        raise UserError(Fault(VARIABLE, name, "machine", reason, remedy=f"make image, or without it: unset {VARIABLE}"))
    return ""


def inside(job: Job, image: str, project: Path, config: Params) -> Job:
    """A job whose DVC runs in a container of an image, which can write to the work copy, the archives and DVC's cache.

    `project`: the folder that the work copy is of; its other files can be read. PERENNIAL_NETWORK and
    PERENNIAL_MEMORY are as for docker/compose.yaml.
    """
    here, cache, archives = job.folder.absolute(), integrity.cache_folder(), Path(config.paths.archives)
    (cache / "runs").mkdir(parents=True, exist_ok=True)
    writable = [here, *(project / path for path in (cache, archives))]
    mounts = [f"--volume={path}:{path}" for path in writable]
    mounts += [f"--volume={path}:{path}:ro" for path in (project, run_cache.__file__)]
    command = [
        "docker", "run", *CONFINED, *TEMPORARY, *mounts,
        f"--user={os.getuid()}:{os.getgid()}", f"--workdir={here}", *(f"--env={name}" for name in job.environ),
        f"--network={os.environ.get('PERENNIAL_NETWORK', 'bridge')}",
        f"--memory={os.environ.get('PERENNIAL_MEMORY', '0')}",
        *(["--gpus=all"] if config.train.device == "cuda" else []), image, "python",
    ]  # fmt: skip
    return replace(job, python=tuple(command))
