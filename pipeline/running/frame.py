"""The frame of every stage: read and check the params, run the stage's work, and end with one line per error."""

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from types import ModuleType

from pipeline.base import linux
from pipeline.base.errors import Fault, Stopped, UserError, exit_status, raise_if_any
from pipeline.checks import machine, validity
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.running import terminal
from pipeline.versioning import dvc_lock, integrity

PROJECT = Path(__file__).parents[2]  # the folder whose code runs
# What serves people and processes. It decides no byte of an output, so no stage depends on it (docs/architecture.md).
SERVING_NAMES = "versioning checks running answers planning studies attest commands command_line.py"
SERVING = [Path("pipeline", name) for name in SERVING_NAMES.split()]
STOPPED_NOTE = "PERENNIAL_STOPPED_NOTE"  # the variable with the path of a launcher's note file: see `run_stage`


def load_params() -> Params:
    """The params of this folder. Raises UserError if they cannot run on this machine."""
    config = params.load()
    raise_if_any(validity.faults(config, machine.read()))
    return config


def tell(text: str) -> None:
    """Print what is done now to a person who waits: to stderr, if it is a terminal."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def removed_outputs(name: str) -> list[Fault]:
    """The outputs of this stage which DVC has removed, and how to get them back; or nothing.

    DVC removes the outputs of a stage before it starts the stage. It keeps them in its cache, and Git has the metrics.
    """
    if integrity.UNDER_DVC not in os.environ or not dvc_lock.LOCK.is_file():
        return []
    outputs = dvc_lock.read().get(name, {}).get("outs", {})
    paths = [path for path in outputs if not Path(path).exists()]
    if not paths:
        return []
    tracked = subprocess.run(["git", "ls-files", "--", *paths], capture_output=True, text=True, check=False).stdout
    in_git = f"; git checkout {' '.join(tracked.split())}" if tracked else ""
    remedy = f"to get them back: dvc checkout{in_git}"
    return [Fault(", ".join(paths), "removed by DVC before this stage", "missing", remedy=remedy)]


def own_modules() -> Iterator[Path]:
    """The files of the project, relative to it, that this process has imported by their names, without SERVING.

    An `__init__.py` that defines nothing is left out. So is what libraries generate and load under other names.
    """
    for name, module in list(sys.modules.items()):
        content = getattr(module, "__dict__", {})  # no attribute of the module: a lazy one would import more
        path = PurePath(content.get("__file__") or "")
        if not path.is_relative_to(PROJECT):
            continue
        file = Path(path.relative_to(PROJECT))
        place = file.parent / file.name.partition(".")[0]
        is_init = place.name == "__init__"
        if (place.parent if is_init else place) != Path(*name.split(".")) or any(
            file.is_relative_to(serving) for serving in SERVING
        ):
            continue
        defined = (value for key, value in content.items() if not key.startswith("__"))
        if not is_init or not all(isinstance(value, ModuleType) for value in defined):
            yield file


def check_code(name: str) -> None:
    """Raise UserError if this process has imported a file of the project that is no dep of the stage in dvc.yaml.

    After a change of that file DVC would not run the stage again, and a training would go on from its checkpoint.
    Nothing is checked without dvc.yaml, or if it is that of another folder.
    """
    if not dvc_lock.YAML_FILE.is_file() or not PROJECT.samefile(Path.cwd()):
        return
    deps = dvc_lock.deps(name)
    raise_if_any(
        Fault(
            str(dvc_lock.YAML_FILE), f"{file} is no dep of stage {name}", "missing",
            "the stage imports it, and DVC would not see a change of it", remedy=f"add to its deps the line: - {file}",
        )
        for file in sorted(own_modules())
        if not any(file.is_relative_to(dep) for dep in deps)
    )  # fmt: skip


def run_stage(name: str, work: Callable[[Params], None]) -> int:
    """Run a stage's work with the checked params. Returns the exit status of `errors.exit_status`.

    If a process of a launcher was asked to stop, it writes a note and returns 0. Otherwise the launcher would see a
    failure and restart it.
    """
    linux.die_with_parent()
    linux.keep_freed_memory()
    note = os.environ.get(STOPPED_NOTE)

    def run() -> int:
        try:
            try:
                config = load_params()
            except UserError as error:
                raise UserError(*removed_outputs(name), *error.faults) from None  # of many, the first are shown
            if not note:  # for the processes of a launcher, the launcher has checked this
                integrity.mark_compared(integrity.check(name))
            check_code(name)  # before hours of training; at the end, what was imported later
            work(config)
            check_code(name)
        except Stopped as stopped:
            if not note:
                raise
            Path(note).write_text(str(stopped))
        else:
            if note:  # it is from earlier processes, which torchrun stopped because a node joined
                Path(note).unlink(missing_ok=True)
        return 0

    try:
        return exit_status(terminal.red(name), run)
    finally:
        gc.freeze()  # else Python searches all objects for garbage before it exits: two seconds [measured]
