"""Cuts the power of a disk during and after a run of the pipeline: the next `perennial repro` gives the right bytes.

    python -m tests.faults.power_cuts --cuts 20 --out benchmarks/results/power_cuts.json

Needs root, mkfs.btrfs and mkfs.ext4. The project is on an ext4 file system in a file, and that file is on a btrfs. A
reflink copy of the file is the disk as a power cut at that moment leaves it: data that was only in memory is missing,
and mounting the copy replays the journal. A small pipeline (drawn flowers, one epoch on one CPU process) runs there
without interruption: once started by `perennial repro`, and once by `dvc repro`. The
disk is copied during the run and in the seconds after it. Then each copy is mounted in place of the disk, and
`perennial repro` runs until it succeeds. A cut counts

    repros        runs until one succeeded; more than one means that the user saw an error
    repairs       lines about damage that was repaired
    stages_run    stages that ran
    wrong         dvc.lock in the end differs from the reference run's, or an output or cache object from its hash
    lost          something was damaged, or ran again, although `perennial repro` had ended before the cut

The exit status is 1 if a cut is wrong, lost something, or took more than one run. It is 0, with the reason, if nothing
can be mounted here.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.measuring import machine
from benchmarks.harness.workspace import call, create_repository, environment
from tests.faults import campaign
from tests.faults.campaign import Row

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
MOST_REPROS = 4
IN_NAMESPACE = "PERENNIAL_POWER_CUTS"  # set for the process that runs in a new mount namespace
SIZE = 2 * 10**9  # bytes of the disk
# For a new process in the project: the hash of dvc.lock, and each damaged file or cache object.
LOOK = """
from pipeline.versioning import dvc_lock, integrity
from pipeline.base import files
print(files.sha256(dvc_lock.LOCK), *integrity.damage(dvc_lock.read(dvc_lock.LOCK)))
"""


@dataclass(frozen=True)
class Cut:
    """The outcome of a power cut."""

    command: str  # that ran during or before the cut
    moment: str
    repros: int
    repairs: list[str]
    stages_run: int
    wrong: bool
    lost: bool
    seconds: float


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


def run_and_cut(disk: Disk, project: Path, command: str, moments: list[float], after: list[float]) -> dict[str, str]:
    """Run the pipeline once and copy the disk at seconds after its start and after its end; name of the copy → moment.

    Raises RuntimeError if the pipeline fails.
    """
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
            cuts[name] = f"{time.monotonic() - began:.1f} s after its start"
            disk.cut(name)
        if process.wait() != 0:
            raise RuntimeError(log.read_text())
    end = time.monotonic()
    for moment in after:
        time.sleep(max(0.0, end + moment - time.monotonic()))
        name = f"{command.split(maxsplit=1)[0]} after {moment}"
        cuts[name] = f"{moment:.0f} s after its end"
        disk.cut(name)
    return cuts


def recover(disk: Disk, project: Path, name: str, command: str, moment: str, expected: str) -> Cut:
    """Mount a copy in place of the disk, and run `perennial repro` there until it succeeds."""
    began = time.monotonic()
    disk.mount(name)
    repros, output, messages, status = 0, "", "", 1
    while status != 0 and repros < MOST_REPROS:
        done = call(project, *arguments(OURS), "--verbose")
        repros, output, status = repros + 1, output + done.stdout + done.stderr, done.returncode
        messages += done.stderr
    state = call(project, sys.executable, "-c", LOOK).stdout.strip()
    repairs = [line.removeprefix("repro: ") for line in messages.splitlines() if line.startswith("repro: ")]
    stages_run, wrong = output.count("Running stage"), status != 0 or state != expected
    if wrong or repros != 1:
        print(f"{name}: {state}\n{output}", file=sys.stderr)
    disk.unmount()
    (disk.outer / name).unlink()
    lost = command == OURS and moment.endswith("end") and bool(repairs or stages_run)
    return Cut(command, moment, repros, repairs, stages_run, wrong, lost, round(time.monotonic() - began, 1))


def sweep(count: int, base: Path) -> Iterator[Cut]:
    """Two runs with `count` cuts in all, and the outcome of each cut."""
    disk, expected, seconds = Disk(base), "", 0.0
    for command, share in ((OURS, count - count // 3), (PLAIN, count // 3)):
        project = disk.at / "project"
        shutil.rmtree(disk.at / "site", ignore_errors=True)
        shutil.rmtree(project, ignore_errors=True)
        create_repository(project, PARAMS)
        run_checked("sync")
        began = time.monotonic()
        if not expected:  # the reference run; its time gives the moments of the cuts
            shutil.copytree(project, disk.at / "first", symlinks=True)
            first = call(disk.at / "first", *arguments(OURS))
            if first.returncode != 0:
                raise RuntimeError(first.stdout + first.stderr)
            seconds = time.monotonic() - began
            expected = call(disk.at / "first", sys.executable, "-c", LOOK).stdout.strip()
            shutil.rmtree(disk.at / "first")
            run_checked("sync")
        after = list(AFTER[:share])
        during = share - len(after)
        moments = [seconds * (index + 1) / (during + 1) for index in range(during)]
        cuts = run_and_cut(disk, project, command, moments, after)
        disk.unmount()
        for name, moment in cuts.items():
            yield recover(disk, project, name, command, moment, expected)
        disk.mount("ext4")
    disk.unmount()


def summary(done: list[Row]) -> dict[str, Any]:
    """The figures of a sweep."""
    return {
        "cuts": len(done),
        "wrong": sum(row["wrong"] for row in done),
        "lost": sum(row["lost"] for row in done),
        "rounds_of_errors": sum(row["repros"] - 1 for row in done),
        "with_damage": sum(bool(row["repairs"]) for row in done),
    }


def main() -> int:
    parser = campaign.parser("power_cuts", __doc__)
    parser.add_argument("--cuts", type=int, default=20)
    options = parser.parse_args()
    if IN_NAMESPACE not in os.environ:
        if reason := why_not():
            print(f"power_cuts: left out: {reason}")
            return 0
        command = ["unshare", "--mount", sys.executable, "-m", "tests.faults.power_cuts", *sys.argv[1:]]
        return subprocess.run(command, env={**os.environ, IN_NAMESPACE: "1"}, check=False).returncode
    with tempfile.TemporaryDirectory(prefix="power-cuts-", ignore_cleanup_errors=True) as temporary:
        base = Path(temporary).resolve()
        done = campaign.run(
            map(asdict, sweep(options.cuts, base)), options.out,
            lambda rows: {"machine": machine(), "summary": summary(rows), "cuts": rows},
        )  # fmt: skip
        subprocess.run(["umount", "--lazy", str(base / "outer")], check=False)
    return int(any(row["wrong"] or row["lost"] or row["repros"] != 1 for row in done))


if __name__ == "__main__":
    sys.exit(main())
