"""`dvc repro`, started so that a killed one before it is no obstacle, and ended so that nothing is left running.

    python -m pipeline.repro [arguments of dvc repro]

DVC rewrites dvc.lock and .dvc/tmp/rwlock in place. Killed while it does, it leaves them cut, and the next `dvc repro`
refuses to start. Killed while a stage runs, it leaves its PID in the rwlock, and the next one refuses as long as any
process has that number, which in a container is likely: its few PIDs are the same every time. Where no DVC works here,
this is put right, and said: such an rwlock is removed, a cut dvc.lock is replaced by the last whole one. This is no
other way to run the pipeline: `dvc repro` by itself does the same.

A signal to this process goes to DVC and the stage; if this process is killed, they are terminated. It ends after the
last of them, so that an interrupted training has saved when the prompt is back, or when a container ends.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

import psutil

from pipeline.base import cache_repair, dvc_lock, integrity, linux
from pipeline.base.errors import UserError, exit_status
from pipeline.config import params

DVC = Path(".dvc")
RWLOCK = Path(".dvc/tmp/rwlock")
NOTHING_KEPT = {"--no-commit", "--dry", "--help", "-h"}  # with these DVC puts nothing into its cache, nor takes it out
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


def dvc_lives(folder: Path) -> bool:
    """Whether a DVC process works in `folder` or below it, or in a folder that this user may not know."""
    for process in psutil.process_iter():
        try:
            words = [Path(word) for word in process.cmdline()]
            is_dvc = any(word.name == "dvc" or word.parts[-2:] == ("dvc", "__main__.py") for word in words)
            if is_dvc and Path(process.cwd()).is_relative_to(folder):
                return True
        except psutil.AccessDenied:
            return True
        except (psutil.Error, OSError):  # it ended meanwhile
            continue
    return False


def repair() -> list[str]:
    """Put right what a killed DVC left behind in this folder; what was done, a sentence each.

    While another DVC works here nothing is touched: it may be writing these very files.
    """
    fault = _rwlock_fault()
    cut = dvc_lock.is_cut()
    if not (fault or cut) or dvc_lives(Path.cwd()):
        return []
    done = []
    if fault:
        RWLOCK.unlink(missing_ok=True)
        done.append(f"{RWLOCK} {fault}, and no DVC is running here: removed")
    if cut:
        done.append(f"{dvc_lock.LOCK} was cut by a killed DVC: {dvc_lock.restore()}")
    return done


def _rwlock_fault() -> str:
    """What is wrong with the rwlock if no DVC works here; empty if it is absent, locks nothing, or a holder lives."""
    if not RWLOCK.is_file():
        return ""
    try:
        written, held = RWLOCK.stat().st_mtime, json.loads(RWLOCK.read_bytes())
        groups = [group for kind in ("read", "write") for group in held.get(kind, {}).values()]
        holders = [holder for group in groups for holder in (group if isinstance(group, list) else [group])]
        lives = any(_lives(int(holder["pid"]), str(holder["cmd"]), written) for holder in holders)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return "was left unreadable by a killed DVC"
    return "was left locked by a killed DVC" if holders and not lives else ""


def _lives(pid: int, command: str, written: float) -> bool:
    """Whether a process that wrote its command (sys.argv) and PID into a file by the time `written` still lives.

    Whoever has its PID now, and began later or was started with other arguments, is another. What may not be known is
    taken for the same.
    """
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE or process.create_time() > written:
            return False
        arguments = command.partition(" ")[2]
        return not arguments or " ".join(process.cmdline()).endswith(f" {arguments}")
    except psutil.AccessDenied:
        return True
    except (psutil.Error, OSError, ValueError):
        return False


def run(arguments: list[str]) -> int:
    """`dvc repro` with `arguments`, until it and all it started have ended; its exit status."""
    linux.adopt_orphans()
    # In a process group of its own: a Ctrl-C comes here alone, and is passed on once.
    dvc = subprocess.Popen(
        [sys.executable, "-m", "dvc", "repro", *arguments],
        env=integrity.environment(),
        process_group=0,
        preexec_fn=linux.die_with_parent,  # noqa: PLW1509  (this process has one thread)
    )

    def pass_on(number: int, _: FrameType | None) -> None:
        try:
            os.killpg(dvc.pid, number)
        except ProcessLookupError:
            return

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    status = dvc.wait()
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return status if status >= 0 else 128 - status


def say(sentences: list[str]) -> bool:
    """Print each sentence as one line on stderr. Returns whether there was any."""
    for sentence in sentences:
        print(f"repro: {sentence}", file=sys.stderr)
    return bool(sentences)


def repro(arguments: list[str]) -> int:
    """`run`, with what a killed one left put right before; its exit status."""
    params.load()  # DVC itself would say less of a wrong choice
    say(repair())
    dvc_lock.backup()
    if not (DVC.is_dir() and NOTHING_KEPT.isdisjoint(arguments)) or dvc_lives(Path.cwd()):
        return run(arguments)
    cache = integrity.cache_folder()
    say(cache_repair.repair(cache))
    status = run(arguments)
    dvc_lock.backup()
    if status == 0 and say(cache_repair.repair(cache)):
        raise UserError("this was damaged while it ran: the disk or the memory may be failing; run again")
    return status


def main() -> int:
    return exit_status("repro", lambda: repro(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
