"""Finds and removes damage in outputs and in DVC's cache, as after a power cut, a disk fault or an edit by mistake.

DVC copies outputs into its cache and back, and syncs none of it: a power cut within half a minute after `dvc repro` can
empty both copies. DVC never reads an object in its cache again; it only asks whether the file exists. So before a run:

- every object of the cache and entry of the run cache that is newer than SYNCED is read. An object whose content does
  not fit its name is removed, or restored from an output that still has the content; an incomplete entry is removed
- an output that is not what dvc.lock says gets a new time; DVC then notices it, and takes it from its cache or makes it
  again

SYNCED is written when everything is read or written by a run that ended well, and is synced. So after a run that did
not end well, and after `dvc repro` alone, what they wrote is newer.
"""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from pipeline.base import files, linux, locks
from pipeline.base.errors import Fault
from pipeline.base.text import in_words
from pipeline.versioning import dvc_lock, integrity, programs
from pipeline.versioning.integrity import Output

NAME = re.compile(r"[0-9a-f]{30}(\.dir)?")  # of an object, in a folder of two more digits
LARGE = 4e9  # bytes to read; from this size on, a message comes first
PROTECTED = 0o444  # the mode that DVC gives to files in its cache
REMADE = "DVC restores what dvc.lock names from its cache, or makes it again"
SYNCED = programs.TEMPORARY / "synced"  # a time in nanoseconds, by the clock of the cache's disk
DURING = Fault(
    "the files above", "damaged during this run", "damaged", "the disk or the memory may be failing", remedy="run again"
)


def repair(cache: Path, stages: Collection[str]) -> list[str]:
    """Remove damage in the outputs of these stages and in DVC's `cache`. Returns one sentence for each repair.

    Outputs of other stages stay as they are: no DVC is about to bring them back. Objects are restored from them, too.
    """
    (last, now), memory = _times(cache), integrity.load_memory()
    stage_hashes = dvc_lock.read() if dvc_lock.LOCK.is_file() else {}
    to_restore = dvc_lock.outputs(stage_hashes, stages)
    objects = [path for path in _objects(cache) if os.stat(path).st_ctime_ns >= last]  # noqa: PTH116  (very many)
    _announce(objects)
    outputs, hashed_outputs = integrity.inspect_outputs(dvc_lock.outputs(stage_hashes), memory)
    hashed = integrity.hash_files(objects, {})
    damaged = [path for path, (md5, *_) in hashed.items() if md5 != integrity.md5_of_object(path)]
    stale = [output for output in outputs if output.differs and output.path in to_restore]
    repairs = _touch_changed_files(stale, cache)
    repairs += _remove_objects(damaged, outputs, cache) + _remove_compiled() + _remove_entries(cache, last)
    if objects or hashed_outputs != memory:
        settle(cache, now)
        integrity.save_memory(hashed_outputs)
    return repairs


def settle(cache: Path, time: int = 0) -> None:
    """Sync everything, and note that the cache as it was at a time, by default now, need not be read."""
    time = time or _times(cache)[1]
    sync(cache)
    with suppress(OSError):  # without write access, all is read again
        files.write_text(SYNCED, str(time))


def sync(cache: Path) -> None:
    """Have the system write everything of DVC and the stages to the disk: the cache, the outputs, and dvc.lock."""
    for folder in (cache, Path.cwd()):
        if folder.is_dir():
            linux.sync(folder)


def _times(cache: Path) -> tuple[int, int]:
    """The time in SYNCED and the time now, as ctimes: every write changes a file's ctime, and no program can set it.

    The disk may have another machine's clock. Without write access, and after that clock went back, the first is 0.
    """
    last = now = 0
    with suppress(OSError, ValueError):
        with tempfile.TemporaryFile(dir=cache) as probe:
            now = os.fstat(probe.fileno()).st_ctime_ns
        last = int(SYNCED.read_text())
    return last if last <= now else 0, now


def _objects(cache: Path) -> list[str]:
    """Every object in DVC's cache."""
    top = cache / "files" / "md5"
    folders = sorted(entry.path for entry in os.scandir(top) if entry.is_dir()) if top.is_dir() else []
    return [f"{folder}/{name}" for folder in folders for name in sorted(os.listdir(folder)) if NAME.fullmatch(name)]  # noqa: PTH208  (very many)


def _announce(paths: list[str]) -> None:
    """Print a message if there is much to read."""
    size = sum(Path(path).stat().st_size for path in paths)
    if size > LARGE:
        print(f"repro: reading {size / 1e9:.0f} GB of DVC's cache, which is new here", file=sys.stderr)


def _remove_entries(cache: Path, since: int) -> list[str]:
    """Remove incomplete entries of the run cache which were written since a time; one sentence each."""
    runs = cache / "runs"
    if not runs.is_dir():
        return []
    with locks.exclusive(runs):
        entries = [path for path in sorted(runs.glob("*/*/*")) if path.stat().st_ctime_ns >= since]
        incomplete = [path for path in entries if not dvc_lock.outs_of_entry(path)]
        for path in incomplete:
            path.unlink()
            with suppress(OSError):  # the folder has another entry; DVC fails at an empty one
                path.parent.rmdir()
    return [f"{path}: cut in DVC's run cache: removed" for path in incomplete]


def _remove_compiled() -> list[str]:
    """Remove numba's cache of compiled code if a file of it is empty: numba fails at such a file every time."""
    compiled = sorted(Path("pipeline/loader/__pycache__").glob("*.nb[ic]"))
    if all(path.stat().st_size for path in compiled):
        return []
    for path in compiled:
        path.unlink(missing_ok=True)
    return ["pipeline/loader/__pycache__: a power cut emptied numba's compiled code: removed, to be compiled again"]


def _touch_changed_files(outputs: list[Output], cache: Path) -> list[str]:
    """Update the mtime of the changed files of outputs, so that DVC hashes them again. Returns what is said of them."""
    changed = [
        path for output in outputs for path in integrity.changed_files(output, integrity.expected_files(output, cache))
    ]
    for path in changed:
        with suppress(FileNotFoundError):
            os.utime(path)
    return [f"{in_words(changed)}: not what dvc.lock says: {REMADE}"] if changed else []


def _remove_objects(damaged: list[str], outputs: list[Output], cache: Path) -> list[str]:
    """Remove damaged cache objects, and restore those whose content is still in an output; one sentence each."""
    if not damaged:
        return []
    files_by_md5 = {md5: path for output in outputs for path, md5 in output.files.items()}
    folders_by_md5 = {output.actual: output for output in outputs}
    owners = {md5: path for output in outputs for path, md5 in integrity.expected_files(output, cache).items()}
    owners |= {output.expected: output.path for output in outputs}
    names_of: dict[str, list[str]] = {"put back from the output": [], "removed": []}
    for name in damaged:
        path = Path(name)
        md5 = integrity.md5_of_object(name) + (".dir" if name.endswith(".dir") else "")
        path.unlink(missing_ok=True)
        if md5 in folders_by_md5 or md5 in files_by_md5:
            with files.atomic_file(path) as partial:
                if md5 in files_by_md5:
                    shutil.copyfile(files_by_md5[md5], partial)
                else:
                    partial.write_bytes(integrity.listing_of(folders_by_md5[md5]))
                partial.chmod(PROTECTED)
        names = names_of["put back from the output" if path.exists() else "removed"]
        names.append(f"{name} ({owners[md5]})" if md5 in owners else name)
    return [f"{in_words(names)}: damaged in DVC's cache: {repair}" for repair, names in names_of.items() if names]
