"""Perennial: images in class folders become a trained, measured, versioned classifier; repeated, the same bytes."""

import gc
import sys
from pathlib import Path

from pipeline.base.errors import import_error_hook


def start_command() -> None:
    """Set up the interpreter for a command of this package, before the command imports its libraries."""
    # Importing torch creates a million objects that stay. By default Python searches them for garbage again and again,
    # which takes a sixth of a start [measured]. See also the end of `stage.main`.
    gc.set_threshold(100_000, 50, 50)
    # The imports can fail for lack of memory (ulimit -v), before the command's own error handling has begun.
    sys.excepthook = import_error_hook


# `python -m pipeline.<command>` imports this file first, before the imports of the command. Python has not yet replaced
# "-m" by the command's path. A process that `launch` spawns already has that path. A program that imports this package
# as a library is left as it is.
if sys.argv[0] == "-m" or Path(sys.argv[0]).parent == Path(__file__).parent:
    start_command()
