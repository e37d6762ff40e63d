"""What a machine can do to a run: fill the disk, have no HOME and no user. test_faults.py kills, and forbids to write.

Disks are small tmpfs mounts, users are taken with setpriv: tests that need root are skipped without it.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torchvision

from pipeline.models import pretrained
from tests.helpers import starts
from tests.helpers.projects import create_project
from tests.helpers.trainings import digests

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small disk or to become another user")


def run(folder: Path, stage: str) -> subprocess.CompletedProcess[str]:
    return starts.run([sys.executable, "-m", "pipeline", stage], cwd=folder)


def outputs(folder: Path) -> dict[str, str]:
    """Every file of every output with its SHA-256."""
    return digests(folder, "data", "models", "metrics", "reports")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 400 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400m", "none", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path, leave: int) -> Path:
    """A file that leaves this many bytes free on the disk."""
    filler = disk / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free - leave)
    return filler


@needs_root
def test_a_full_disk_is_named_and_costs_nothing(finished: Path, disk: Path) -> None:
    """One line names the output and the free space. Earlier outputs do not change. With enough space it runs."""
    folder = shutil.copytree(finished, disk / "w", symlinks=True, ignore=shutil.ignore_patterns("cache"))
    before = outputs(folder)
    filler = fill(disk, 4096)
    full = run(folder, "prepare")
    assert full.returncode == 1
    (line,) = full.stderr.splitlines()
    assert line.startswith(("prepare: data/packed", "prepare: data/.packed.partial"))
    assert "No space left on device (0 MB free there)" in line
    assert outputs(folder) == before
    filler.unlink()
    assert run(folder, "prepare").returncode == 0
    assert outputs(folder) == before


@needs_root
def test_weights_that_do_not_fit_on_the_disk_are_named(disk: Path, tmp_path: Path) -> None:
    """Converted weights without space are an error with the file's name, and no incomplete file stays."""
    torch.save(torchvision.models.shufflenet_v2_x0_5().state_dict(), tmp_path / "mine.pth")
    fill(disk, 4096)
    with pytest.raises(OSError, match="No space left on device") as full:
        pretrained.convert(tmp_path / "mine.pth", disk / "weights.safetensors", "shufflenet_v2_x0_5")
    assert full.value.filename == str(disk / "weights.safetensors")
    assert [path.name for path in disk.iterdir()] == ["filler"]


def as_a_stranger(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """`python -m pipeline` as an unknown user without HOME. The user may read everything, so that Python starts."""
    user = ["--reuid=12345", "--regid=12345", "--clear-groups"]
    capability = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    command = ["setpriv", *user, *capability, sys.executable, "-m", "pipeline", *words]
    environ["PATH"] = os.environ["PATH"]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


@needs_root
@pytest.mark.nightly("a whole pipeline under DVC, for a user; make test runs one of its own stages as that user")
def test_a_user_without_a_name_and_a_home_runs_the_pipeline(tmp_path: Path) -> None:
    """The pipeline runs as in a container with any --user."""
    folder = tmp_path / "w"
    create_project(folder, data__source="synthetic", data__synthetic={"count": 60, "size": 40})
    for path in [tmp_path, *tmp_path.rglob("*")]:
        os.chown(path, 12345, 12345, follow_symlinks=False)
    ran = as_a_stranger(folder, "repro", DVC_SITE_CACHE_DIR=str(tmp_path / "site"))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (folder / "metrics/eval.json").stat().st_uid == 12345


@needs_root
def test_a_workspace_of_somebody_else_is_named(finished: Path) -> None:
    """A user without write access gets one line."""
    refused = as_a_stranger(finished, "prepare")
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert line.startswith("prepare: data/.packed.partial: ")
