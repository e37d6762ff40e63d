"""Runs git and DVC, and ends with one line if they fail."""

import getpass
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from pipeline.base import files
from pipeline.base.errors import Fault, UserError

TEMPORARY = files.TEMPORARY
COMMIT = "git add . && git commit -m First"
NO_REPOSITORY = f"git clone the project; of its files alone: git init && {COMMIT}"
# What Git says → the remedy
REMEDIES = {"not a git repository": NO_REPOSITORY, "Not a valid object name HEAD": COMMIT}


def environment() -> dict[str, str]:
    """The environment for DVC: PATH with this `python`; a name and a home for a user without them (docker --user)."""
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    try:
        getpass.getuser()
    except (KeyError, OSError):
        environ["LOGNAME"] = str(os.getuid())
    try:
        Path.home()
    except RuntimeError:
        environ["HOME"] = str(TEMPORARY.absolute())
    return environ


def output(
    *command: str,
    cwd: Path | None = None,
    environ: dict[str, str] | None = None,
    remedy: str = "",
) -> str:
    """The standard output of a command.

    Raises UserError with its last line of stderr, and with `remedy`, if the command fails.
    """
    result = subprocess.run(
        command, cwd=cwd, env=environ or environment(), capture_output=True, check=False, text=True,
        errors="surrogateescape",  # the name of a file may be no UTF-8
    )  # fmt: skip
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if line.strip()] or ["no message"]
        program = " ".join(command[3:] if command[0] == sys.executable else command)
        reason = next((line for line in lines if line.startswith("fatal: ")), lines[-1])  # Git adds a hint below
        known = (REMEDIES[said] for said in REMEDIES if said in reason)
        remedy = remedy or next(known, "correct what it names, then run again")
        raise UserError(Fault(program, f"exit status {result.returncode}", "failed", reason, remedy=remedy))
    return result.stdout


def dvc(*arguments: str, **options: Any) -> str:
    """The standard output of DVC, which imports nothing from this folder (-P). `options`, errors: those of `output`."""
    return output(sys.executable, "-P", "-m", "dvc", *arguments, **options)


def code_version(*pathspecs: str) -> str:
    """The hash of the last commit, with "-dirty" if a file of these pathspecs, also a new one, differs from it.

    Empty where there is no commit of Git.
    """
    commit = last_commit()
    return f"{commit}-dirty" if commit and changed("--", *pathspecs) else commit


def changed(*words: str, cwd: Path | None = None) -> list[str]:
    """The files that the status of Git names, with these options and pathspecs."""
    lines = output("git", "status", "--porcelain", "-z", "--no-renames", *words, cwd=cwd).split("\0")
    return list(dict.fromkeys(line[3:] for line in lines if line))  # a file that only the index lost has two lines


def last_commit(cwd: Path | None = None) -> str:
    """The hash of the last commit of Git. Empty where there is none."""
    return commit_of("HEAD", cwd)


def commit_of(revision: str, cwd: Path | None = None) -> str:
    """The hash of the commit that a revision of Git names. Empty if it names none."""
    command = ["git", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False).stdout.strip()
