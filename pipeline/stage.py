"""What all stages share: read the params, refuse what cannot run, and end in one line instead of a traceback."""

import gc
import os
from collections.abc import Callable
from pathlib import Path

from pipeline.base import integrity, linux
from pipeline.base.errors import Stopped, UserError, exit_status
from pipeline.config import machine, params, validity
from pipeline.config.params import Params

STOPPED_NOTE = "PERENNIAL_STOPPED_NOTE"  # the launcher's file for saying so: see `main`


def workers(config: Params) -> int:
    """How many threads decode images: `run.workers`, or one a core."""
    return config.run.workers or len(os.sched_getaffinity(0))


def checked() -> Params:
    """The params of this folder. Raises UserError if they cannot run on this machine."""
    config = params.load()
    if found := validity.faults(config, machine.read()):
        raise UserError("\n".join(found))
    return config


def main(name: str, work: Callable[[Params], None]) -> int:
    """Run one stage's work on the checked params; returns the exit status of `errors.exit_status`.

    A process of a launcher that was stopped leaves a note and returns 0: a launcher must not take it for a failure, and
    restart.
    """
    linux.die_with_parent()
    linux.keep_freed_memory()
    note = os.environ.get(STOPPED_NOTE)

    def noted() -> int:
        try:
            config = checked()
            if not note:  # a process of a launcher reads what that has looked at
                integrity.check(name, config.paths.model_dump())
            work(config)
        except Stopped as stopped:
            if not note:
                raise
            Path(note).write_text(str(stopped))
        else:
            if note:  # of the processes before, which torchrun stopped because a node joined
                Path(note).unlink(missing_ok=True)
        return 0

    try:
        return exit_status(name, noted)
    finally:
        gc.freeze()  # what is left is no garbage; else Python looks for some for two seconds [measured] before it ends
