"""Run the whole pipeline on drawn flowers, in `.demo/`, a copy of the project: what `make demo` calls.

    perennial demo              run, and compare with the committed results/demo/
    perennial demo --record     also make this run the committed one

The demo compares the hashes of all outputs in results/demo/dvc.lock, which has no others: a change of code needs a
new record only if it changes an output. The copy stays (`cd .demo; dvc metrics show`).
"""

import shutil
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

from pipeline.base import files
from pipeline.base.errors import Fault, UserError
from pipeline.checks import machine
from pipeline.config import params
from pipeline.data import corrections, split_report
from pipeline.evaluation import figures
from pipeline.studies import record, workcopy
from pipeline.versioning import children, dvc_lock, programs

FOLDER = Path(".demo")
LOCK = record.DEMO / dvc_lock.LOCK
STUDIED = ("models/model.safetensors", "metrics/predictions.csv")  # a study has the hashes of these, see record.Part
COPIED = (
    "params.yaml",
    *(f"metrics/{name}" for name in (split_report.IMAGES, figures.HISTORY, figures.CLASSES, *figures.FILES.values())),
)


def create_copy(folder: Path) -> None:
    """Copy the project's files to `folder`, with the demo's params. Remove other code there."""
    names = workcopy.project_files()
    workcopy.copy_files(names, Path(), folder)
    shutil.copy2(record.DEMO / params.FILE, folder / params.FILE)
    files.write_text(folder / corrections.FILE, corrections.EMPTY)  # those of this folder name its own photos
    for stale in set((folder / workcopy.CODE).rglob("*.py")) - {folder / name for name in names}:
        stale.unlink()


def run(folder: Path) -> int:
    """Make `folder` a Git repository, run the pipeline there, and commit the results. Returns the pipeline's status.

    Raises CalledProcessError if another command fails.
    """

    def call(*command: str) -> None:
        subprocess.run(command, cwd=folder, env=programs.environment(), check=True)

    def commit(message: str) -> None:
        call("git", "add", "--all")
        if subprocess.run(["git", "diff", "--cached", "--quiet"], cwd=folder, check=False).returncode:
            # Without the hooks and the signature that a user has set for every repository.
            options = ("-c", "commit.gpgsign=false", "-c", "core.hooksPath=/dev/null")
            who = ("-c", "user.name=demo", "-c", "user.email=demo@localhost")
            call("git", *options, *who, "commit", "--quiet", "-m", message)

    if not (folder / ".git").exists():
        call("git", "init", "--quiet")
    commit("The project, with the demo's params")
    if status := children.run([sys.executable, "-m", "pipeline", "repro"], cwd=folder, env=programs.environment()):
        return status
    commit("What the pipeline wrote")
    return 0


def compare(actual: dvc_lock.Hashes, committed: dvc_lock.Hashes) -> list[str]:
    """One sentence for each output whose hash differs; empty if all are the same."""
    paths = [path for path in sorted(actual | committed) if actual.get(path) != committed.get(path)]
    return [f"{path}: {actual.get(path, 'none')}, committed {committed.get(path, 'none')}" for path in paths]


def record_run() -> list[str]:
    """Copy the params and metrics of the run in FOLDER to the committed one, and the outputs of its dvc.lock.

    Returns the outputs of the kinds of which studies have hashes, and that are others now.
    """
    before = dvc_lock.outputs(dvc_lock.read(LOCK))
    for name in COPIED:
        (record.DEMO / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(FOLDER / name, record.DEMO / name)
    lines = ["schema: '2.0'", "stages:"]
    for stage, hashes in dvc_lock.read(FOLDER / dvc_lock.LOCK).items():
        lines += [f"  {stage}:", "    outs:"]
        lines += [line for path, md5 in hashes["outs"].items() for line in (f"    - path: {path}", f"      md5: {md5}")]
    files.write_text(LOCK, "\n".join(lines) + "\n")
    after = dvc_lock.outputs(dvc_lock.read(LOCK))
    return [path for path in STUDIED if before.get(path) != after.get(path)]


def main(arguments: Namespace) -> int:
    """Run the demo and compare its outputs. Returns 1 if they differ although they must not; else 0.

    Raises UserError if a command fails.
    """
    start = time.monotonic()
    try:
        create_copy(FOLDER)
        if status := run(FOLDER):
            return status  # the pipeline has printed why, and what to do
    except subprocess.CalledProcessError as error:
        value = f"exit status {error.returncode} in {FOLDER}/"
        raise UserError(Fault(" ".join(error.cmd), value, "failed", remedy="see above")) from None
    if arguments.record and (changed := record_run()):
        print(f"\ndemo: other bytes: {', '.join(changed)}: the studies in {record.RECIPES}/ have other ones now, too;")
        print("perennial folds --recipe NAME repeats a study")
    print(f"\ndemo: done in {time.monotonic() - start:.0f} s. The files and commands above are for {FOLDER}/:")
    print(f"  cd {FOLDER} && . ../.venv/bin/activate")
    print("  perennial verify               runs everything again, and compares every byte")
    actual, committed = (dvc_lock.outputs(dvc_lock.read(lock)) for lock in (FOLDER / dvc_lock.LOCK, LOCK))
    if differences := compare(actual, committed):
        cause = f"on this CPU ({machine.cpu_name()}) only other code, params or packages (perennial doctor)"
        print(f"demo: these outputs differ from the committed ones ({LOCK}); {cause} can be the cause;")
        print("if none is changed, please report it:", *(f"  {line}" for line in differences), sep="\n")
        status = 1
    else:
        print(f"demo: every output equals the committed one, byte for byte ({LOCK})")
    print(f"demo: the report, for a browser: {FOLDER}/reports/index.html")
    return status
