"""Runs a command on a terminal of its own."""

import io
import os
import pty
import subprocess
import termios
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any


class Screen(io.StringIO):
    """A stream with what a person sees, for monkeypatch as sys.stderr."""

    def isatty(self) -> bool:
        return True


def on_terminal(command: Sequence[str], folder: Path, columns: int = 120, **options: Any) -> tuple[int, str]:
    """The exit status of a command, and what it wrote to a terminal. `options`: those of Popen."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, columns))  # without a height, tqdm shows no bar
    with subprocess.Popen(command, cwd=folder, stdout=theirs, stderr=theirs, **options) as process:
        os.close(theirs)
        output = b""
        with suppress(OSError):  # the end
            while part := os.read(ours, 10_000):
                output += part
    os.close(ours)
    return process.returncode, output.decode()
