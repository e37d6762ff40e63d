"""Makes each file operation of each stage fail once: no traceback, no partial output, no leftover after the next run.

test_faults.py takes a sample of all. A library (faults.c, compiled here, loaded with LD_PRELOAD) counts the operations
of a stage that change files: open, write, sync, rename, link, unlink, mkdir, rmdir, truncate, close. In one run per
operation it makes this operation fail with EIO, ENOSPC or EDQUOT, makes this and all later ones fail with EROFS (as
ext4 does after a disk error), or kills the process. The stage starts with other outputs of an earlier run. Then it runs
again without a fault. A row counts, over all operations that were tried,

    tracebacks          runs that printed a traceback, or a warning about an ignored exception
    false_records       runs that ended with 0 although an output is wrong
    partial_outputs     runs after which an output is present, and neither the earlier nor the right one
    unreported_files    runs that left `.partial` or `.previous` files and did not name them; not after a kill
    leftovers           next runs that failed, or left other files or outputs than a run without a fault
    hangs               runs that did not end

The stage is one process without its launcher, forked from a process that has imported everything; images are few.
"""

import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import measuring, workspace
from benchmarks.harness.measuring import Row, Worker
from pipeline.__main__ import work_of
from pipeline.base import files
from pipeline.base.errors import Fault, UserError, exit_status
from pipeline.dataset import feature_file
from tests.helpers.trainings import digests

ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EDQUOT": errno.EDQUOT, "EROFS": errno.EROFS, "KILL": -1}
COUNTED = ("tracebacks", "false_records", "partial_outputs", "unreported_files", "leftovers", "hangs")
SMALL: workspace.Changes = {
    "split": {"phash_distance": 0, "min_side": 16, "folds": 1, "fractions": {"train": 0.5, "val": 0.3, "test": 0.2}},
    "prepare": {"size": 32},
    "train": {
        "model": "squeezenet1_1", "lr": 0.01, "epochs": 1, "batch_size": 12, "crop": 32, "eval_crop": 32,
        "eval_resize": 32, "warmup_epochs": 0,
    },
    "run": {"workers": 1, "log_steps": 1},
}  # fmt: skip
IMAGES = 40
SECONDS = 300  # a longer run hangs
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # a fork has only one


# ---------------------------------------------------------------- the library


def build(folder: Path) -> Path:
    """Compile the library into `folder`; its path. Raises UserError if there is no compiler."""
    compiler, library = shutil.which("cc") or shutil.which("gcc"), folder / "faults.so"
    if compiler is None:
        raise UserError(Fault("cc", "not found", "machine", remedy="install a C compiler (apt-get install gcc)"))
    source = Path(__file__).with_suffix(".c")
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        value = "it cannot be compiled"
        raise UserError(Fault(str(source), value, "failed", done.stderr.strip(), remedy="take another compiler"))
    return library


def load_library() -> Any:
    """The functions of the library, in a process that was started with it."""
    library = ctypes.CDLL(None)
    library.fault_arm.argtypes = (ctypes.c_char_p, ctypes.c_long, ctypes.c_int)
    library.fault_count.restype = ctypes.c_long
    library.fault_what.restype = ctypes.c_char_p
    return library


# ---------------------------------------------------------------- one run


@dataclass(frozen=True)
class Outcome:
    """The end of a run."""

    status: int  # exit status, or the signal as a negative number
    output: str  # stdout and stderr
    operations: int
    failed: str  # the name of the operation that failed
    hung: bool


def write_no_features() -> int:
    """What the launcher does for the stage `features` where the head is trained, as in SMALL."""
    feature_file.write_none(Path("data/features"))
    return 0


def command(stage: str) -> Callable[[], int]:
    """What a stage does, in its frame."""
    if stage == "features":
        return lambda: exit_status(stage, write_no_features)
    return work_of(Namespace(command="rank", stage=stage))


def run(library: Any, stage: str, folder: Path, at: int = 0, error: int = 0) -> Outcome:
    """Run a stage in a fork of this process. Operation number `at` below `folder` fails with `error` (0: none)."""
    log, main = folder.with_name("log"), command(stage)
    child = os.fork()
    if child == 0:
        _run_in_fork(main, library, folder, at, error, log)
    hung, until = False, time.monotonic() + SECONDS
    while not (result := os.waitpid(child, os.WNOHANG))[0]:
        time.sleep(0.002)
        if time.monotonic() > until and not hung:
            hung = True
            os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(result[1])
    failed = library.fault_what().decode()
    return Outcome(status, log.read_text(errors="replace"), library.fault_count(), failed, hung)


def _run_in_fork(stage: Callable[[], int], library: Any, folder: Path, at: int, error: int, log: Path) -> None:
    """Run the stage in the forked process, and end the process."""
    status = 1
    try:
        os.chdir(folder)
        with log.open("wb", buffering=0) as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        library.fault_arm(os.fsencode(folder), at, error)
        status = stage()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


# ---------------------------------------------------------------- the files after a run


def outputs(folder: Path, stage: str) -> dict[str, dict[str, str]]:
    """The digest of each file of each output; none of an output that does not exist."""
    return {name: digests(folder, name) for name in workspace.declared(stage)}


def names(folder: Path) -> set[str]:
    """The names of all files, except those that each attempt writes anew."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir() or path.name.startswith("."))
    results = (
        path for path in paths if not ({"holder", "lock"} & set(path.parts) or path.name.startswith("events.out."))
    )
    return {str(path) for path in results if path.parts[0] not in workspace.NEEDED}


def hidden(folder: Path) -> list[Path]:
    """The `.partial` and `.previous` files and folders, relative to `folder`."""
    return [path.relative_to(folder) for end in ("partial", "previous") for path in folder.rglob(f".*.{end}")]


def write_earlier_outputs(folder: Path, stage: str) -> None:
    """Replace the outputs of the stage by other bytes."""
    for name in workspace.declared(stage):
        path = folder / name
        files.remove(path)
        path = path if path.suffix else path / "old"  # a name without a suffix is a folder's
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("of an earlier run\n")


@dataclass(frozen=True)
class Reference:
    """A stage's run without a fault."""

    before: Path  # the folder before the run
    earlier: dict[str, dict[str, str]]  # digests of the outputs before the run
    right: dict[str, dict[str, str]]  # and after it
    names: set[str]  # all files after it
    operations: int


class Project:
    """The project with few images, and the reference run of each stage."""

    def __init__(self, base: Path, library: Any) -> None:
        self._base, self._library, self._references = base, library, dict[str, Reference]()
        self._done = base / "done"
        self._done.mkdir()
        photos = workspace.draw_photos(base / "drawn.tar", IMAGES, 32).params
        workspace.create(base / "code", workspace.ONE_PROCESS, SMALL, photos)
        for path in (base / "code").iterdir():  # one copy of the code for all
            if path.name == "data":  # outputs are written there, too
                shutil.copytree(path, self._done / path.name)
            else:
                (self._done / path.name).symlink_to(path)

    def reference(self, stage: str) -> Reference:
        """The reference run of a stage, made on the first call, after those of the stages before it."""
        for name in workspace.STAGES[: workspace.STAGES.index(stage) + 1]:
            if name not in self._references:
                before = self._base / f"before-{name}"
                write_earlier_outputs(self._done, name)
                shutil.copytree(self._done, before, symlinks=True)
                earlier, done = outputs(self._done, name), run(self._library, name, self._done)
                if done.status:
                    value = "it fails without a fault"
                    raise UserError(Fault(name, value, "failed", done.output, remedy="correct it first"))
                right = outputs(self._done, name)
                self._references[name] = Reference(before, earlier, right, names(self._done), done.operations)
        return self._references[stage]

    def run_with_fault(self, stage: str, at: int, error: int) -> tuple[Row, str]:
        """Make one operation fail, then run again: 0 or 1 for each of COUNTED, and a description for people."""
        reference, folder = self.reference(stage), self._base / "fault"
        shutil.copytree(reference.before, folder, symlinks=True)
        try:
            first = run(self._library, stage, folder, at, error)
            digests, hidden_files = outputs(folder, stage), [str(path) for path in hidden(folder)]
            again = run(self._library, stage, folder)
            stray = names(folder) ^ reference.names
            row = {
                "tracebacks": any(word in first.output + again.output for word in ("Traceback", "Exception ignored")),
                "false_records": first.status == 0 and digests != reference.right,
                "partial_outputs": any(
                    value not in (reference.earlier[name], reference.right[name], {}) for name, value in digests.items()
                ),
                "unreported_files": error > 0 and not all(path in first.output for path in hidden_files),
                "leftovers": again.status != 0 or outputs(folder, stage) != reference.right or bool(stray),
                "hangs": first.hung or again.hung,
            }
        finally:
            files.remove(folder)
        description = (
            f"{stage} {at} ({first.failed}) {error}: {first.status} {first.output}\n"
            f"again: {again.status} {again.output}\n"
            f"hidden: {hidden_files}, stray: {sorted(stray)}\n"
        )
        return {name: int(value) for name, value in row.items()}, description


def worker(base: str) -> None:
    """Be a process. A turn is a stage and an error: the row, and a description of each fault that is counted."""
    project = Project(Path(base), load_library())

    def turn(stage: str, error: str, every: int) -> Row:
        operations = project.reference(stage).operations
        numbers = range(1 + (every - 1) // 2, operations + 1, every)
        results = [project.run_with_fault(stage, at, ERRORS[error]) for at in numbers]
        counts = {name: sum(row[name] for row, _ in results) for name in COUNTED}
        descriptions = [description for row, description in results if any(row.values())]
        return {"operations": operations, "tried": len(numbers), **counts, "descriptions": descriptions}

    measuring.serve(turn)


@contextmanager
def workers() -> Iterator[Worker]:
    """A worker process with the library, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="faults-") as base:
        library = build(Path(base))
        environ = {"LD_PRELOAD": str(library), **ONE_THREAD}
        with Worker("tests.faults.faults", str(Path(base).resolve()), env=environ) as process:
            yield process
