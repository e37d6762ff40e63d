"""Run the whole pipeline on drawn flowers, in `.demo/`, a copy of the project: what `make demo` calls.

    python -m pipeline.demo              run, and compare with the committed results/demo/
    python -m pipeline.demo --record     also make this run the committed one

Compared are the hashes of all outputs (results/demo/outputs.json), not those of the code: so a comment needs no run.
The copy stays there to be looked at (`cd .demo; dvc metrics show`), and a second demo finds nothing to do.
"""

import filecmp
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from pipeline.base import dvc_lock, files
from pipeline.base.errors import UserError, exit_status

FOLDER = Path(".demo")
RESULTS = Path("results/demo")
OUTPUTS = RESULTS / "outputs.json"  # output → MD5, as in dvc.lock
COPIED = (
    "params.yaml",
    "metrics/data.json",
    "metrics/train.json",
    "metrics/eval.json",
    "metrics/history.csv",
)


def copy_project(folder: Path) -> None:
    """Bring every file that Git knows into `folder`, with the demo's params; files that are the same stay untouched."""
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
    known = [Path(name) for name in listed.split("\0") if name and Path(name).is_file()]
    for source in known:
        target = folder / source
        if target == folder / "params.yaml":
            source = RESULTS / "params.yaml"  # noqa: PLW2901
        if not (target.is_file() and (source.is_symlink() or filecmp.cmp(source, target, shallow=False))):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    for stale in set((folder / "pipeline").rglob("*.py")) - {folder / name for name in known}:
        stale.unlink()


def run(folder: Path) -> None:
    """Make `folder` a repository, run the pipeline there, and commit what it wrote, as a user would.

    Raises CalledProcessError if it fails.
    """

    def call(*command: str) -> None:
        subprocess.run(command, cwd=folder, check=True)

    def commit(message: str) -> None:
        call("git", "add", "--all")
        if subprocess.run(["git", "diff", "--cached", "--quiet"], cwd=folder, check=False).returncode:
            call("git", "-c", "user.name=demo", "-c", "user.email=demo@localhost", "commit", "--quiet", "-m", message)

    # The stages call `python`: let that be this one, also where the environment is not activated.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if not (folder / ".git").exists():
        call("git", "init", "--quiet")
    commit("The project, with the demo's params")
    call(sys.executable, "-m", "pipeline.repro")
    commit("What the pipeline wrote")


def show(folder: Path) -> None:
    """Print the figures of the test images."""
    figures = json.loads((folder / "metrics/eval.json").read_text())
    interval, data = figures["interval"], json.loads((folder / "metrics/data.json").read_text())
    print(f"\nimages   {data['kept']} kept of {data['images']}: {data['splits']}")
    for name in ("accuracy", "balanced_accuracy", "macro_f1", "nll", "ece"):
        print(f"{name:<18} {figures[name]:.4f}")
    print(f"{'95 % interval':<18} {interval['low']:.4f} to {interval['high']:.4f} ({figures['images']} test images)")


def outputs(lock: Path) -> dvc_lock.Hashes:
    """The hash of every output in a dvc.lock. Raises UserError if the lock cannot be read."""
    return {path: md5 for stage in dvc_lock.read(lock).values() for path, md5 in stage["outs"].items()}


def compare(ours: dvc_lock.Hashes, committed: dvc_lock.Hashes) -> list[str]:
    """One sentence for each output whose hash differs; empty if all are the same."""
    paths = [path for path in sorted(ours | committed) if ours.get(path) != committed.get(path)]
    return [f"{path}: {ours.get(path, 'none')}, committed {committed.get(path, 'none')}" for path in paths]


def record() -> None:
    """Make the run in FOLDER the committed one."""
    for name in COPIED:
        (RESULTS / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(FOLDER / name, RESULTS / name)
    files.write_json(OUTPUTS, outputs(FOLDER / "dvc.lock"))


def demo(recording: bool) -> int:
    """Run it, show and compare; the exit status. Raises UserError if a command fails."""
    began = time.monotonic()
    try:
        copy_project(FOLDER)
        run(FOLDER)
    except subprocess.CalledProcessError as error:
        raise UserError(f"{' '.join(error.cmd)} failed in {FOLDER}/; see above") from None
    if recording:
        record()
    show(FOLDER)
    print(f"\nDone in {time.monotonic() - began:.0f} s. Look around:")
    print(f"  cd {FOLDER} && . ../.venv/bin/activate && dvc dag && dvc plots show     images: {FOLDER}/reports/")
    print(f"  tensorboard --logdir {FOLDER}/runs     again, and compared: cd {FOLDER} && python -m pipeline.verify")
    if not OUTPUTS.is_file():
        print(f"There is no committed {OUTPUTS} to compare with; --record makes this run the committed one.")
    elif different := compare(outputs(FOLDER / "dvc.lock"), json.loads(OUTPUTS.read_bytes())):
        print(f"Not every output is the committed one ({OUTPUTS}); another kind of CPU may be the cause:")
        print(*(f"  {line}" for line in different), sep="\n")
    else:
        print(f"Every output is the committed one, byte for byte ({OUTPUTS}).")
    return 0


def main() -> int:
    return exit_status("demo", lambda: demo("--record" in sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
