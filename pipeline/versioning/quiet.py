"""Run DVC without its ordinary lines. A person sees the lines of the stages, and DVC's warnings and errors.

    python -m pipeline.versioning.quiet dvc <arguments of dvc>

The word `dvc` is there so that others recognize this process (killed_dvc.is_dvc). The stages write to the terminal
itself: only what DVC prints to sys.stdout is kept, and printed if DVC fails. The exit status is DVC's.
"""

import io
import json
import logging
import math
import os
import re
import signal
import sys
import time
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from pipeline.base import files
from pipeline.base.errors import INTERRUPTED, STOPPED, UNKNOWN, Fault, exit_status
from pipeline.versioning import programs, run_cache

SECONDS = programs.TEMPORARY / "seconds.json"  # stage → seconds of its last run; nothing depends on it

LONG = 1.0  # seconds
RUNS = "Running stage '%s':"
SKIPS = {  # DVC's message about a stage that does not run → what is said of all such stages, in one line
    "Stage '%s' didn't change, skipping": "unchanged",
    "Stage '%s' is cached - skipping run, checking out outputs": "taken from DVC's cache",
}
ENDED = re.compile(r"exited with (-?\d+)$")  # the end of DVC's message about a command that failed
TOLD = (1, 2, STOPPED, 130)  # the exit statuses of this project's stages, which have said why


@dataclass
class Sieve:
    """A filter of DVC's log records."""

    ordinary: io.StringIO  # DVC's ordinary lines, until they are shown
    skipped: dict[str, list[str]] = field(default_factory=lambda: {summary: [] for summary in SKIPS.values()})
    stage: str = ""  # the one that ran last
    start: float = 0.0  # its time; 0 after its end
    cause: BaseException | None = None  # why DVC fails: see first_cause
    warnings: set[str] = field(default_factory=set)  # of DVC; each is written once

    def __call__(self, record: logging.LogRecord) -> bool:
        """Whether a record is written where DVC writes it: to `ordinary`, or to stderr."""
        if record.levelno < logging.WARNING:
            if record.msg in SKIPS and record.args:
                self.note_end()
                self.skipped[SKIPS[record.msg]].append(str(next(iter(record.args))))
            elif record.msg == RUNS and record.args:
                self.note_end()
                self.stage, self.start = str(next(iter(record.args))), time.monotonic()
                self.show_skipped()
            return True
        self.show_skipped()
        if record.levelno < logging.ERROR:
            if any(isinstance(argument, Exception) for argument in record.args or ()):
                self.start = 0.0  # with --keep-going, DVC warns of a stage that failed
            is_new = (text := record.getMessage()) not in self.warnings
            self.warnings.add(text)  # an empty output is warned of by each stage that reads it
            return is_new
        self.start = 0.0
        self.cause = first_cause(record.exc_info[1] if record.exc_info else None)
        if self.is_told_by_stage() or isinstance(self.cause, KeyboardInterrupt):
            return False
        self.show_ordinary()
        return True

    def note_end(self) -> None:
        """Note in SECONDS how long the stage took that has ended, with what DVC did for it; `perennial plan` reads it.

        A stage that fails is not noted.
        """
        if self.start:
            with suppress(OSError):  # a disk that is full or read-only: the time stays unknown
                seconds = read_seconds() | {self.stage: round(time.monotonic() - self.start, 1)}
                files.write_text(SECONDS, json.dumps(seconds))
        self.start = 0.0

    def show_ordinary(self) -> None:
        """Print what DVC has said so far, and forget it."""
        show(self.ordinary.getvalue(), descriptor=2)
        self.ordinary.seek(0)
        self.ordinary.truncate()

    def show_skipped(self) -> None:
        """Print which stages did not run since the last such line."""
        if lines := [f"{summary}: {', '.join(names)}" for summary, names in self.skipped.items() if names]:
            show(f"repro: {'; '.join(lines)}\n")
        for names in self.skipped.values():
            names.clear()

    def is_told_by_stage(self) -> bool:
        """Whether DVC fails because a stage failed. The stage has printed the reason, unless a signal ended it."""
        from dvc.stage.exceptions import StageCmdFailedError

        return isinstance(self.cause, StageCmdFailedError)

    def end(self, status: int) -> None:
        """After a failure, print last what to do, if the stage has not."""
        again = "then run again"
        if isinstance(self.cause, KeyboardInterrupt):
            line = f"interrupted; {INTERRUPTED}"
        elif not self.is_told_by_stage():
            self.show_ordinary()
            remedy = f"correct what DVC names above, {again}"
            line = str(Fault("dvc repro", f"exit status {status}", "failed", remedy=remedy))
        elif (match := ENDED.search(str(self.cause))) and (code := int(match[1])) < 0:
            name, remedy = signal.Signals(-code).name, f"if nobody did this, {UNKNOWN}; {again}"
            line = str(Fault(self.stage, f"ended by {name}", "failed", remedy=remedy))
        elif match and code not in TOLD:
            line = str(Fault(self.stage, f"exit status {code}", "failed", remedy=f"see above; {again}"))
        else:
            return
        show(f"repro: {line}\n", descriptor=2)


def read_seconds() -> dict[str, float]:
    """The content of SECONDS; empty if the file is missing or damaged."""
    try:
        return {str(stage): float(seconds) for stage, seconds in json.loads(SECONDS.read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def first_cause(error: BaseException | None) -> BaseException | None:
    """The error at the beginning of a chain of errors."""
    while error and error.__cause__:
        error = error.__cause__
    return error


def hide_short_bars() -> None:
    """Have DVC show a progress bar only if it lasts longer than LONG, and none after its end."""
    display = tqdm.display

    def display_late(bar: Any, *arguments: Any, **options: Any) -> Any:
        bar.leave = False
        is_shown = time.time() - getattr(bar, "start_t", math.inf) > LONG
        return is_shown and display(bar, *arguments, **options)

    tqdm.display = display_late  # type: ignore[method-assign, assignment]


def show(text: str, descriptor: int = 1) -> None:
    """Print a text past sys.stdout, which is DVC's."""
    with suppress(OSError):  # it is closed
        os.write(descriptor, text.encode(errors="surrogateescape"))


def main(arguments: list[str]) -> int:
    """Run DVC. Returns its exit status."""
    with redirect_stdout(io.StringIO()) as ordinary:
        from dvc.cli import main as dvc  # while it is imported, its log takes the sys.stdout that it finds

        run_cache.lock()
        hide_short_bars()
        sieve = Sieve(ordinary)
        for name in ("dvc", "dvc_objects", "dvc_data"):
            for handler in logging.getLogger(name).handlers:
                handler.addFilter(sieve)
        status: int = dvc(arguments)
    sieve.show_skipped()
    if status:
        sieve.end(status)
    else:
        sieve.note_end()
    return status


if __name__ == "__main__":
    sys.exit(exit_status("repro", lambda: main(sys.argv[2:])))  # Ctrl-C while it imports DVC, too
