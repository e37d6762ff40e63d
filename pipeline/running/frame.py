"""The frame of every stage: read and check the params, run the stage's work, and end with one line per error."""

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path

from pipeline.base import linux
from pipeline.base.errors import Stopped, exit_status, raise_if_any
from pipeline.checks import machine, validity
from pipeline.config import params
from pipeline.config.model_names import MINE, TIMM
from pipeline.config.params import Params, Train
from pipeline.running import terminal
from pipeline.versioning import integrity

STOPPED_NOTE = "PERENNIAL_STOPPED_NOTE"  # the variable with the path of a launcher's note file: see `run_stage`


def load_params() -> Params:
    """The params of this folder. Raises UserError if they cannot run on this machine."""
    config = params.load()
    raise_if_any(validity.faults(config, machine.read()))
    return config


def check_model(settings: Train) -> None:
    """Raise UserError if train.model is one of timm's, or the user's own, and cannot be trained."""
    if settings.model.startswith((TIMM, MINE)):
        from pipeline.models import own, timm_models  # imports torch, which takes seconds

        raise_if_any(timm_models.faults(settings) + own.faults(settings))


def tell(text: str) -> None:
    """Print what is done now to a person who waits: to stderr, if it is a terminal."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def run_stage(name: str, work: Callable[[Params], None]) -> int:
    """Run a stage's work with the checked params. Returns the exit status of `errors.exit_status`.

    If a process of a launcher was asked to stop, it writes a note and returns 0. Otherwise the launcher would see a
    failure and restart it.
    """
    linux.keep_freed_memory()
    note = os.environ.get(STOPPED_NOTE)

    def run() -> int:
        try:
            config = load_params()
            if not note:  # for the processes of a launcher, the launcher has checked this
                integrity.mark_compared(integrity.check(name))
            work(config)
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
