"""Puts experiments into DVC's queue. DVC changes the files here meanwhile, so a journal says how to put them back.

The command that changes them is a process of its own, which also writes and removes the journal: when only its caller
is killed, it ends its work. So a journal that is left is of a command that was killed itself.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dvc.cli import main as dvc

from pipeline.base import files, programs
from pipeline.base.errors import UserError, exit_status
from pipeline.studies import experiments

JOURNAL = programs.TEMPORARY / "queueing.json"
AUTHOR = ("-c", "user.name=perennial", "-c", "user.email=perennial@localhost")
LOCKS = ("index.lock", "HEAD.lock")  # of Git: a killed command leaves them, and Git then refuses to change anything
MOST_SHOWN = 5  # changes in a message
POLL = 0.5  # seconds between two looks whether a DVC has ended


def uncommitted() -> list[str]:
    """The changes that no commit has: files that Git tracks, and new code."""
    return sorted(
        {*_changed("--untracked-files=no"), *_changed("--", "dvc.lock", "dvc.yaml", "params.yaml", "pipeline")}
    )


def check_committed() -> None:
    """Raise UserError if there are uncommitted changes."""
    if changes := uncommitted():
        more = f" and {len(changes) - MOST_SHOWN} more" if len(changes) > MOST_SHOWN else ""
        raise UserError(
            f"not committed: {', '.join(changes[:MOST_SHOWN])}{more}; a trial begins at a commit; "
            "git add -A && git commit -m 'Before the sweep', or take the changes back"
        )


def _changed(*words: str) -> list[str]:
    listed = programs.output("git", "status", "--porcelain", "-z", "--no-renames", *words).split("\0")
    return [line[3:] for line in listed if line]


def queue(commit: str, name: str, values: Mapping[str, Any], targets: Sequence[str], copied: Sequence[str]) -> None:
    """Put an experiment of this commit into the queue that runs only these stages, with other values of params.yaml.

    `copied`: files in no commit that the copy needs. DVC writes the values into params.yaml, takes a snapshot, and puts
    everything back. Raises UserError if the commit is not the last one any more, or something is not committed: the
    snapshot would have it.
    """
    if (now := experiments.head()) != commit:
        raise UserError(
            f"{name}: the last commit is now {now[:12]}, and all trials of this start begin at {commit[:12]}; to keep "
            f"those that have finished, git checkout {commit[:12]} and run again; for new trials, run again"
        )
    check_committed()
    words = ["exp", "run", "--quiet", "--queue", "--name", name, "--single-item"]
    words += [word for key, value in values.items() for word in ("--set-param", f"{key}={_override(value)}")]
    words += [word for path in copied for word in ("--copy-paths", path)]
    # In a process group of its own, Ctrl-C does not reach it: it would be interrupted while it puts files back.
    done = subprocess.run(
        [sys.executable, "-m", experiments.CHANGER, *words, *targets],
        env=programs.environment(), capture_output=True, text=True, check=False, process_group=0,
    )  # fmt: skip
    if done.returncode:
        message = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise UserError(f"{name}: dvc exp run --queue ended with exit status {done.returncode}: {message}")


def _override(value: Any) -> str:
    """A value in Hydra's words, as `dvc exp run -S` reads it."""
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_override, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return repr(value)


def wait_for_others(say: Callable[[str], None]) -> None:
    """Return when no DVC works in this very folder: a killed sweep leaves one that still puts files back.

    The workers of the queue do not count. They work in copies, and read and write nothing here but the queue.
    """
    told = 0
    while found := experiments.others():
        if found[0] != told:
            say(f"waiting for process {found[0]}, a DVC that works in this folder")
            told = found[0]
        time.sleep(POLL)


def repair() -> str:
    """Put back the files that a killed command of this module has changed. Says what was done; or nothing.

    Only while no other one works. The work began without uncommitted changes, so the files of the commit are what was
    there. Changes since then are kept as a commit of `git stash create`.
    """
    if not JOURNAL.is_file():
        return ""
    began = json.loads(JOURNAL.read_text(encoding="utf-8"))
    if experiments.head() != began["head"]:  # somebody has gone on since then
        files.remove(JOURNAL)
        return ""
    for name in LOCKS:
        files.remove(Path(programs.output("git", "rev-parse", "--git-path", name).strip()))
    kept = programs.output("git", *AUTHOR, "stash", "create").strip()
    programs.output("git", "reset", "--quiet", "--hard")
    if began["branch"] != "HEAD":
        programs.output("git", "symbolic-ref", "HEAD", f"refs/heads/{began['branch']}")
    files.remove(JOURNAL)
    where = f" (what lay there: git stash apply {kept[:12]})" if kept else ""
    return f"a killed dvc exp run --queue left its files here; the files of the commit are put back{where}"


def run_dvc(words: Sequence[str]) -> int:
    """Run a command of DVC with a journal; its exit status. If the process is killed, the journal stays."""
    branch = programs.output("git", "rev-parse", "--abbrev-ref", "HEAD").strip()
    files.write_json(JOURNAL, {"branch": branch, "head": experiments.head()})
    status = dvc(list(words))
    files.remove(JOURNAL)
    return int(status)


if __name__ == "__main__":
    sys.exit(exit_status("queueing", lambda: run_dvc(sys.argv[1:])))
