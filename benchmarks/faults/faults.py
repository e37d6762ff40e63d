"""Fails every file operation of every stage once: no traceback, no half output, nothing left after the next run.

    python -m benchmarks faults --out benchmarks/results         for every operation; hours
    python -m benchmarks faults --every 20 --stages prepare      a sample

A library in front of the C library (faults.c, built here) counts the operations of a stage that change files: open,
write, sync, rename, link, unlink, mkdir, rmdir, truncate, close. For every number it fails the operation with that
number, with EIO, ENOSPC or EDQUOT, that and all later ones with EROFS (what ext4 does after an error of the disk), or
kills the process there. The stage finds outputs of an earlier run, of other
bytes. Then it runs again, unhindered. A row counts, over all numbers,

    operations    that the stage makes
    tried         of those, the ones that were struck
    tracebacks    faults that ended in one, or warned of an exception that was ignored
    lies          runs that ended with 0 though an output is not what it should be
    halves        outputs that are neither those of the earlier run nor the right ones, nor away
    unnamed       `.partial` and `.previous` files that stayed without a word, though the process was not killed
    left_overs    files after the next run that an unhindered run does not leave, or outputs that differ
    hangs         runs that did not end

The exit status is 1 if there is one of the last six. A stage is one process without its launcher, forked from one that
has imported everything; images are few and small.
"""

import argparse
import ctypes
import errno
import hashlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import measuring, workspace
from benchmarks.harness.measuring import Report, Row, Worker
from pipeline.base import files
from pipeline.base.errors import UserError

STAGES = ("download", "split", "prepare", "train", "evaluate")
ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EDQUOT": errno.EDQUOT, "EROFS": errno.EROFS, "KILL": -1}
COUNTED = ("tracebacks", "lies", "halves", "unnamed", "left_overs", "hangs")
OUTPUTS = {
    "download": ("data/images/", "data/weights/"),
    "split": ("data/split.csv", "metrics/data.json"),
    "prepare": ("data/packed/",),
    "train": ("models/model.safetensors", "models/model.json", "metrics/train.json", "metrics/history.csv"),
    "evaluate": (
        *(f"metrics/{name}" for name in ("eval.json", "confusion.csv", "calibration.csv", "predictions.csv")),
        "reports/mistakes.png",
    ),
}
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
SECONDS = 300  # a run that takes longer hangs
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # a fork keeps only one


# ---------------------------------------------------------------- the library


def build(folder: Path) -> Path:
    """The library that fails operations, made in `folder`. Raises UserError where there is no compiler."""
    compiler, library = shutil.which("cc") or shutil.which("gcc"), folder / "faults.so"
    if compiler is None:
        raise UserError("cc: not found; install a C compiler (apt-get install gcc)")
    source = Path(__file__).with_suffix(".c")
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"{source} cannot be compiled: {done.stderr.strip()}")
    return library


def loaded() -> Any:
    """The library's functions, in a process that began with it."""
    library = ctypes.CDLL(None)
    library.fault_arm.argtypes = (ctypes.c_char_p, ctypes.c_long, ctypes.c_int)
    library.fault_count.restype = ctypes.c_long
    library.fault_what.restype = ctypes.c_char_p
    return library


# ---------------------------------------------------------------- one run


@dataclass(frozen=True)
class Ended:
    """How a run ended."""

    status: int  # exit status, or the signal as a negative number
    said: str  # on stdout and stderr
    operations: int
    struck: str  # the name of the operation that failed
    hung: bool


def command(stage: str) -> Callable[[], int]:
    """A stage, as `python -m pipeline.<stage>` runs it; its module is imported."""
    main: Callable[[], int] = importlib.import_module(f"pipeline.{stage}").main
    return main


def run(library: Any, stage: str, folder: Path, at: int = 0, error: int = 0) -> Ended:
    """Run a stage in a process forked from this one, in which the operation number `at` below `folder` fails."""
    said, main = folder.with_name("said"), command(stage)
    child = os.fork()
    if child == 0:
        _be(main, library, folder, at, error, said)
    hung, until = False, time.monotonic() + SECONDS
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        time.sleep(0.002)
        if time.monotonic() > until and not hung:
            hung = True
            os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(ended[1])
    what = library.fault_what().decode()
    return Ended(status, said.read_text(errors="replace"), library.fault_count(), what, hung)


def _be(stage: Callable[[], int], library: Any, folder: Path, at: int, error: int, said: Path) -> None:
    """In the forked process: be the stage, to the end of the process."""
    status = 1
    try:
        os.chdir(folder)
        with said.open("wb", buffering=0) as output:
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


# ---------------------------------------------------------------- what it left


def digest(path: Path) -> str:
    """What is at a path: the SHA-256 of a file, or of the files of a folder with their names; nothing if it is away."""
    if path.is_file():
        return files.sha256(path)
    if not path.is_dir():
        return ""
    inside = sorted(file for file in path.rglob("*") if file.is_file())
    listed = "".join(f"{file.relative_to(path)} {files.sha256(file)}\n" for file in inside)
    return hashlib.sha256(listed.encode()).hexdigest()


def outputs(folder: Path, stage: str) -> dict[str, str]:
    """The digest of each output."""
    return {name: digest(folder / name) for name in OUTPUTS[stage]}


def names(folder: Path) -> set[str]:
    """The names of all files, but for those that tell of every attempt."""
    kept = ("tensorboard", "pid", "lock")
    found = (path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir() or path.name.startswith("."))
    return {str(path) for path in found if not set(kept) & set(path.parts) and path.parts[0] not in workspace.NEEDED}


def hidden(folder: Path) -> list[Path]:
    """What carries the name of something half-written or put aside, relative to `folder`."""
    return [path.relative_to(folder) for end in ("partial", "previous") for path in folder.rglob(f".*.{end}")]


def earlier(folder: Path, stage: str) -> None:
    """Put outputs of other bytes where the stage's own belong."""
    for name in OUTPUTS[stage]:
        path = folder / name
        files.remove(path)
        path = path / "old" if name.endswith("/") else path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("of an earlier run\n")


@dataclass(frozen=True)
class Whole:
    """A stage before an unhindered run, and after it."""

    before: Path
    old: dict[str, str]
    right: dict[str, str]
    left: set[str]
    operations: int


class Scene:
    """The project with few images, stage after stage, and what each leaves when nothing fails."""

    def __init__(self, base: Path, library: Any) -> None:
        self._base, self._library, self._wholes = base, library, dict[str, Whole]()
        self._done = base / "done"
        self._done.mkdir()
        drawn = workspace.drawn(base / "drawn.tar", IMAGES, 32).params
        workspace.workplace(base / "code", workspace.ONE_PROCESS, SMALL, drawn)
        for path in (base / "code").iterdir():  # one copy of the code for all
            (self._done / path.name).symlink_to(path)

    def whole(self, stage: str) -> Whole:
        """The stage, run once; those before it first."""
        for name in STAGES[: STAGES.index(stage) + 1]:
            if name not in self._wholes:
                before = self._base / f"before-{name}"
                earlier(self._done, name)
                shutil.copytree(self._done, before, symlinks=True)
                old, ended = outputs(self._done, name), run(self._library, name, self._done)
                if ended.status:
                    raise UserError(f"{name} fails by itself: {ended.said}")
                right = outputs(self._done, name)
                self._wholes[name] = Whole(before, old, right, names(self._done), ended.operations)
        return self._wholes[stage]

    def strike(self, stage: str, at: int, error: int) -> tuple[Row, str]:
        """Fail one operation, then run again; what of COUNTED came of it, 0 or 1 each, and what was said of it."""
        whole, folder = self.whole(stage), self._base / "struck"
        shutil.copytree(whole.before, folder, symlinks=True)
        try:
            hit = run(self._library, stage, folder, at, error)
            found, stays = outputs(folder, stage), [str(path) for path in hidden(folder)]
            again = run(self._library, stage, folder)
            stray = names(folder) ^ whole.left
            row = {
                "tracebacks": any(word in hit.said + again.said for word in ("Traceback", "Exception ignored")),
                "lies": hit.status == 0 and found != whole.right,
                "halves": any(now not in (whole.old[name], whole.right[name], "") for name, now in found.items()),
                "unnamed": error > 0 and not all(path in hit.said for path in stays),
                "left_overs": again.status != 0 or outputs(folder, stage) != whole.right or bool(stray),
                "hangs": hit.hung or again.hung,
            }
        finally:
            files.remove(folder)
        said = f"{stage} {at} ({hit.struck}) {error}: {hit.status} {hit.said}\nagain: {again.status} {again.said}"
        return {name: int(value) for name, value in row.items()}, f"{said}\nstayed: {stays}, stray: {sorted(stray)}\n"


def worker(base: Path) -> None:
    """Answer for a stage and an error: the row, and what was said of each fault that is counted."""
    ready = Scene(base, loaded())

    def turn(stage: str, error: str, every: int) -> Row:
        whole = ready.whole(stage)
        struck = range(1 + (every - 1) // 2, whole.operations + 1, every)
        found = [ready.strike(stage, at, ERRORS[error]) for at in struck]
        return {
            "operations": whole.operations,
            "tried": len(struck),
            **{name: sum(row[name] for row, _ in found) for name in COUNTED},
            "said": [said for row, said in found if any(row.values())],
        }

    measuring.serve(turn)


# ---------------------------------------------------------------- all of them


@contextmanager
def workers() -> Iterator[Worker]:
    """A process with the library and everything imported, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="faults-") as base:
        library = build(Path(base))
        with Worker(__name__ if __name__ != "__main__" else "benchmarks.faults.faults", str(Path(base).resolve()),
                    env={"LD_PRELOAD": str(library), **ONE_THREAD}) as found:  # fmt: skip
            yield found


def main() -> int:
    parser = measuring.parser(__doc__, "faults")
    parser.add_argument("--every", type=int, default=1, help="strike each so many operations (default: %(default)s)")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument("--errors", nargs="+", choices=tuple(ERRORS), default=tuple(ERRORS))
    options = parser.parse_args()
    with measuring.refusals("faults"):
        return strike_all(options)


def strike_all(options: argparse.Namespace) -> int:
    """Print and write a row for each stage and error; the exit status."""
    report = Report("faults", options, every=options.every)
    wanted = {f"{stage} {error}": (stage, error) for stage in options.stages for error in options.errors}
    with workers() as striking:
        for name in report.missing(wanted):
            stage, error = wanted[name]
            row = striking.ask(stage=stage, error=error, every=options.every)
            print(*row.pop("said"), sep="\n", end="", file=sys.stderr)
            report.add(name, row)
    totals = {name: sum(row[name] for row in report.rows.values()) for name in ("tried", *COUNTED)}
    report.conclude(**totals)
    return int(any(totals[name] for name in COUNTED))


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(Path(sys.argv[2]))
    else:
        sys.exit(main())
