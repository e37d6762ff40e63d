"""`perennial repro` whose stages run in its own process: torch is imported once, and no shell is started.

    python -m tests.helpers.one_process [arguments of perennial repro]

In a process of its own, because stages set threads, variables and seeds for good. Features, train and evaluate still
start their ranks. A stage cannot compare its imports with its deps: those of the others are imported, too.
"""

import os
import sys
from argparse import Namespace
from typing import Any

from pipeline.__main__ import main
from pipeline.base import linux
from pipeline.commands import repro
from pipeline.running import frame
from pipeline.versioning import in_process
from pipeline.versioning.integrity import UNDER_DVC


def run_here(run: in_process.Run, _: str, command: str, **options: Any) -> None:
    """In place of Run.run_command: the last word of the command of a stage is its name."""
    run.has_command, os.environ[UNDER_DVC] = True, options["env"][UNDER_DVC]
    if status := main([command.rsplit(maxsplit=1)[-1]]):
        sys.exit(status)


if __name__ == "__main__":
    frame.check_code = lambda name: None
    linux.die_with_parent = lambda: None
    in_process.Run.run_command = run_here  # type: ignore[method-assign, assignment]
    sys.exit(repro.main(Namespace(arguments=sys.argv[1:])))
