"""Cuts the power of a disk during and after a run of the pipeline (test_power_cuts.py).

Needs root, mkfs.btrfs and mkfs.ext4. The project is on an ext4 file system in a file, and that file is on a btrfs. A
reflink copy of the file is the disk as a power cut at that moment leaves it: data that was only in memory is missing,
and mounting the copy replays the journal. The disk is copied during a run of a small pipeline, and in the seconds
after it. Then each copy is mounted in place of the disk, and `perennial repro` runs there.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness.workspace import call, create_repository, environment

PARAMS: dict[str, dict[str, Any]] = {
    "data": {"source": "synthetic", "synthetic": {"count": 50, "size": 40}},
    "split": {"phash_distance": 0, "folds": 1, "fractions": {"train": 0.6, "val": 0.2, "test": 0.2}},
    "prepare": {"size": 40},
    "train": {
        "device": "cpu", "precision": "fp32", "parallel": "single", "model": "shufflenet_v2_x0_5", "batch_size": 8,
        "epochs": 1, "crop": 32, "eval_crop": 32, "eval_resize": 36, "lr": 0.01, "warmup_epochs": 0,
    },
}  # fmt: skip
OURS, PLAIN = "python -m pipeline repro", "dvc repro"
AFTER = (0.0, 1.0, 3.0, 8.0)  # seconds after the end of a run
SIZE = 2 * 10**9  # bytes of the disk
# For a new process in the project: the hash of dvc.lock, and each damaged file or cache object.
LOOK = """
from pipeline.versioning import dvc_lock, integrity
from pipeline.base import files
print(files.sha256(dvc_lock.LOCK), *integrity.damage(dvc_lock.read(dvc_lock.LOCK)))
"""


def why_not() -> str:
    """Why no disk can be mounted here; empty if one can."""
    if os.geteuid() != 0:
        return "it needs root, to mount a disk in a file"
    missing = [name for name in ("mkfs.btrfs", "mkfs.ext4", "unshare", "mount") if not shutil.which(name)]
    if missing:
        return f"{', '.join(missing)}: not found (apt-get install btrfs-progs e2fsprogs)"
    with tempfile.TemporaryDirectory(prefix="power-cuts-") as temporary:
        disk = Path(temporary) / "disk"
        script = f"truncate -s 300M {disk} && mkfs.btrfs -q {disk} && mount -o loop {disk} /mnt"
        command = ["unshare", "--mount", "sh", "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"a btrfs in a file cannot be mounted here: {done.stderr.strip()}"


def run_checked(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)


class Disk:
    """An ext4 file system in a file on a btrfs, mounted at `at`."""

    def __init__(self, base: Path) -> None:
        """Make both, below `base`, and mount them."""
        self.outer, self.at = base / "outer", base / "disk"
        for folder in (self.outer, self.at):
            folder.mkdir()
        run_checked("truncate", "-s", str(4 * SIZE), base / "btrfs")
        run_checked("mkfs.btrfs", "-q", base / "btrfs")
        run_checked("mount", "-o", "loop", base / "btrfs", self.outer)
        run_checked("truncate", "-s", str(SIZE), self.outer / "ext4")
        run_checked("mkfs.ext4", "-q", self.outer / "ext4")
        self.mount("ext4")

    def mount(self, name: str) -> None:
        """Mount a disk by its name. The kernel replays its journal."""
        run_checked("mount", "-o", "loop", self.outer / name, self.at)

    def unmount(self) -> None:
        """Unmount the disk."""
        run_checked("umount", self.at)

    def cut(self, name: str) -> None:
        """Copy the disk as a power cut now would leave it."""
        run_checked("cp", "--reflink=always", self.outer / "ext4", self.outer / name)


def arguments(command: str) -> list[str]:
    """The command line, with this environment's Python."""
    return [sys.executable, "-m", *command.replace("python -m ", "").split()]


def run_and_cut(disk: Disk, project: Path, command: str, moments: list[float], after: list[float]) -> dict[str, bool]:
    """Run the pipeline, and copy the disk at seconds after its start and its end: copy → whether the run had ended."""
    began, cuts = time.monotonic(), {}
    log = project.parent / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            arguments(command), cwd=project, env=environment(project.parent), stdout=output, stderr=output
        )
        for moment in moments:
            while process.poll() is None and time.monotonic() - began < moment:
                time.sleep(0.01)
            if process.poll() is not None:
                break
            name = f"{command.rsplit(maxsplit=1)[-1]} {moment:05.1f}"
            cuts[name] = False
            disk.cut(name)
        assert process.wait() == 0, log.read_text()
    end = time.monotonic()
    for moment in after:
        time.sleep(max(0.0, end + moment - time.monotonic()))
        name = f"{command.split(maxsplit=1)[0]} after {moment}"
        cuts[name] = True
        disk.cut(name)
    return cuts


def check(disk: Disk, project: Path, name: str, was_done: bool, expected: str) -> None:
    """Mount a copy in place of the disk. One `perennial repro` gives the right bytes.

    `was_done`: a `perennial repro` had ended before the cut, so nothing may be damaged or run again.
    """
    disk.mount(name)
    done = call(project, *arguments(OURS), "--verbose")
    state = call(project, sys.executable, "-c", LOOK).stdout.strip()
    assert (done.returncode, state) == (0, expected), f"{name}: {done.stdout}{done.stderr}"
    assert not (was_done and (done.stderr or "Running stage" in done.stdout)), f"{name}: {done.stderr}"
    disk.unmount()
    (disk.outer / name).unlink()


def cut_and_check(count: int, base: Path) -> None:
    """A run of `perennial repro` and one of `dvc repro`, with so many cuts in all, and what follows each."""
    disk, expected, seconds = Disk(base), "", 0.0
    project = disk.at / "project"
    for command, share in ((OURS, count - count // 3), (PLAIN, count // 3)):
        for folder in (disk.at / "site", project):
            shutil.rmtree(folder, ignore_errors=True)
        create_repository(project, PARAMS)
        run_checked("sync")
        if not expected:  # the reference run; its time gives the moments of the cuts
            began, first = time.monotonic(), disk.at / "first"
            shutil.copytree(project, first, symlinks=True)
            assert call(first, *arguments(OURS)).returncode == 0
            seconds = time.monotonic() - began
            expected = call(first, sys.executable, "-c", LOOK).stdout.strip()
            shutil.rmtree(first)
            run_checked("sync")
        after = list(AFTER[:share])
        during = share - len(after)
        moments = [seconds * (index + 1) / (during + 1) for index in range(during)]
        cuts = run_and_cut(disk, project, command, moments, after)
        disk.unmount()
        for name, was_done in cuts.items():
            check(disk, project, name, was_done and command == OURS, expected)
        disk.mount("ext4")
    disk.unmount()


def main(base: Path) -> None:
    """Cut the power seven times in this mount namespace."""
    try:
        cut_and_check(7, base)
    finally:
        subprocess.run(["umount", "--lazy", str(base / "outer")], check=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
