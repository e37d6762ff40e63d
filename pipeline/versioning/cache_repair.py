"""Finds and removes damage in outputs and in DVC's cache, as after a power cut, a disk fault or an edit by mistake.

DVC copies outputs into its cache and back, and syncs none of it: a power cut within half a minute after a run can empty
both copies. DVC never reads an object in its cache again; it only asks whether the file exists. So before DVC starts:

- every cache object that was written since it was last read is read; if its content does not fit its name, it is
  removed, or restored from an output that still has the content
- an incomplete entry of the run cache is removed
- an output that is not what dvc.lock says gets a new time; DVC then notices it, and takes it from its cache or makes it
  again

After DVC everything is synced, and then read in the same way.
"""

import os
import re
import shutil
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from pipeline.base import files, linux
from pipeline.base.errors import Fault, UserError
from pipeline.base.text import in_words
from pipeline.versioning import dvc_lock, integrity
from pipeline.versioning.integrity import Hashed, Output

NAME = re.compile(r"[0-9a-f]{30}(\.dir)?")  # of an object, in a folder of two more digits
LARGE = 4e9  # bytes to read; from this size on, a message comes first
IDLE_SECONDS = 60  # nobody fills an empty folder that is older than this
PROTECTED = 0o444  # the mode that DVC gives to files in its cache
THEM = "the files above"
REMADE = "DVC restores what dvc.lock names from its cache, or makes it again"
MOST_NAMED = 5  # outputs
DURING = Fault(THEM, "damaged during this run", "damaged", "the disk or the memory may be failing", remedy="run again")
BEFORE = Fault(THEM, "not what dvc.lock says, as before", "differs", remedy="remove them; then: perennial repro")


def repair(cache: Path, stages: Collection[str]) -> list[str]:
    """Remove damage in the outputs of these stages and in DVC's `cache`. Returns one sentence for each repair.

    Outputs of other stages stay as they are: no DVC is about to bring them back. Objects are restored from them, too.
    Everything that is right is synced, and then remembered.
    """
    memory = integrity.load_memory()
    stage_hashes = dvc_lock.read() if dvc_lock.LOCK.is_file() else {}
    to_restore = dvc_lock.outputs(stage_hashes, stages)
    objects = _objects(cache)
    entries = sorted(str(path) for path in cache.glob("runs/*/*/*") if path.is_file())  # of the run cache
    _announce(objects, memory)
    outs = dvc_lock.outputs(stage_hashes)
    outputs, hashed_outputs = integrity.inspect_outputs(outs, memory)
    hashed_objects, hashed_entries = integrity.hash_files(objects, memory), integrity.hash_files(entries, memory)
    damaged = [path for path, (md5, *_) in hashed_objects.items() if md5 != integrity.md5_of_object(path)]
    new_entries = [path for path, entry in hashed_entries.items() if memory.get(path) != entry]
    incomplete = [path for path in new_entries if not dvc_lock.outs_of_entry(Path(path))]
    stale = [output for output in outputs if output.differs and output.path in to_restore]
    repairs = _touch_changed_files(stale, cache)
    repairs += _remove_objects(damaged, outputs, cache) + _remove_compiled()
    repairs += [f"{path}: cut in DVC's run cache: removed" for path in incomplete]
    for path in incomplete:
        Path(path).unlink(missing_ok=True)
        with suppress(OSError):  # the folder has another entry
            Path(path).parent.rmdir()
    _remove_empty(cache)
    removed = {*damaged, *incomplete}
    entry_of = hashed_outputs | hashed_objects | hashed_entries
    current = {path: entry for path, entry in entry_of.items() if path not in removed}
    if current != memory:
        sync(cache)
        integrity.save_memory(current)
    return repairs


def check(before: Collection[str], after: Collection[str]) -> None:
    """Raise UserError if `repair` still had something to do after a run. `before`: what it did before the run."""
    if after:
        raise UserError(BEFORE if set(after) <= set(before) else DURING)


def sync(cache: Path) -> None:
    """Have the system write everything of DVC and the stages to the disk: the cache, the outputs, and dvc.lock."""
    for folder in (cache, Path.cwd()):
        if folder.is_dir():
            linux.sync(folder)


def _objects(cache: Path) -> list[str]:
    """Every object in DVC's cache."""
    top = cache / "files" / "md5"
    folders = sorted(entry.path for entry in os.scandir(top) if entry.is_dir()) if top.is_dir() else []
    return [f"{folder}/{name}" for folder in folders for name in sorted(os.listdir(folder)) if NAME.fullmatch(name)]  # noqa: PTH208  (very many)


def _announce(paths: list[str], memory: Hashed) -> None:
    """Print a message if there is much to read."""
    size = sum(Path(path).stat().st_size for path in paths if path not in memory)
    if size > LARGE:
        print(f"repro: reading {size / 1e9:.0f} GB of DVC's cache, which is new here", file=sys.stderr)


def _remove_empty(cache: Path) -> None:
    """Remove empty folders of the run cache, because DVC fails at one.

    No DVC works in this folder. A DVC in another folder may share the cache, and may be about to fill a new folder.
    """
    age = 0 if cache.resolve().is_relative_to(Path.cwd().resolve()) else IDLE_SECONDS
    for folder in (cache / "runs").glob("*/*"):
        with suppress(OSError):  # not empty, not a folder, or already removed
            if time.time() - folder.stat().st_mtime >= age:
                folder.rmdir()


def _remove_compiled() -> list[str]:
    """Remove numba's cache of compiled code if a file of it is empty: numba fails at such a file every time."""
    compiled = sorted(Path("pipeline/loader/__pycache__").glob("*.nb[ic]"))
    if all(path.stat().st_size for path in compiled):
        return []
    for path in compiled:
        path.unlink(missing_ok=True)
    return ["pipeline/loader/__pycache__: a power cut emptied numba's compiled code: removed, to be compiled again"]


def _touch_changed_files(outputs: list[Output], cache: Path) -> list[str]:
    """Update the mtime of the changed files of outputs, so that DVC hashes them again. Returns sentences about them."""
    sentences = []
    for output in outputs:
        changed = integrity.changed_files(output, integrity.expected_files(output, cache))
        for path in changed:
            with suppress(FileNotFoundError):
                os.utime(path)
        inside = "" if changed == [output.path] else f" of {output.path}"
        sentences.append(f"{in_words(changed)}: not what dvc.lock says{inside}: {REMADE}")
    if len(outputs) > MOST_NAMED:  # as after a checkout of another commit
        return [f"{len(outputs)} outputs, such as {outputs[0].path}: not what dvc.lock says: {REMADE}"]
    return sentences


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
