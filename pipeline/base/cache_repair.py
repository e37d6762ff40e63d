"""What a power cut, a failing disk or a slip of the hand damaged in DVC's cache and in outputs: found, and taken away.

DVC copies outputs into its cache, and back, and syncs nothing of it: a power cut within half a minute after its end
empties both. Of an object in its cache DVC asks only whether it is there. Hence, before DVC starts:

- every object that was written since it was last read is read; one that is not what its name says is removed, or put
  back from an output that still has its content
- an entry of the run cache that was cut is removed
- an output that is not what dvc.lock says gets a new time: DVC then looks at it, and takes it from its cache, or makes
  it anew

After DVC everything is synced, and then read in the same way.
"""

import os
import re
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

from pipeline.base import dvc_lock, files, integrity, linux
from pipeline.base.integrity import Output, Seen

NAME = re.compile(r"[0-9a-f]{30}(\.dir)?")  # of an object, in a folder of two more digits
MUCH = 4e9  # bytes to read, from which on it is said before
YOUNG_SECONDS = 60  # as old is a folder that nobody is about to fill any more
PROTECTED = 0o444  # as DVC leaves what is in its cache


def look_after(cache: Path) -> list[str]:
    """Take away what is damaged in this folder's outputs and in DVC's `cache`; what was done, a sentence each.

    All that was found right is synced, and then remembered.
    """
    memory = integrity.remembered()
    claims = dvc_lock.read() if dvc_lock.LOCK.is_file() else {}
    objects, entries = _objects(cache), _entries(cache)
    _announce(objects, memory)
    found, seen = integrity.look(
        {path: md5 for claim in claims.values() for path, md5 in claim["outs"].items()}, memory
    )
    stored, noted = integrity.read(objects, memory), integrity.read(entries, memory)
    damaged = [path for path, (md5, *_) in stored.items() if md5 != integrity.claimed_by(path)]
    cut = [path for path, entry in noted.items() if memory.get(path) != entry and not _is_whole(Path(path))]
    wrong = [output for output in found if output.wrong]
    said = [_make_dvc_look(output, cache) for output in wrong] + _take_away(damaged, found, cache) + _compiled()
    said += [f"{path}: cut in DVC's run cache: removed" for path in cut]
    for path in cut:
        Path(path).unlink(missing_ok=True)
        with suppress(OSError):  # another entry lies there
            Path(path).parent.rmdir()
    _remove_empty(cache)
    known = {path: entry for path, entry in (seen | stored | noted).items() if path not in {*damaged, *cut}}
    if known != memory:
        sync(cache)
        integrity.remember(known)
    return said


def sync(cache: Path) -> None:
    """Have everything on the disk that DVC and the stages wrote: its cache, the outputs, and dvc.lock."""
    for folder in (cache, Path.cwd()):
        if folder.is_dir():
            linux.sync(folder)


def _objects(cache: Path) -> list[str]:
    """Every object in DVC's cache."""
    top = cache / "files" / "md5"
    folders = sorted(entry.path for entry in os.scandir(top) if entry.is_dir()) if top.is_dir() else []
    return [f"{folder}/{name}" for folder in folders for name in sorted(os.listdir(folder)) if NAME.fullmatch(name)]  # noqa: PTH208  (very many)


def _entries(cache: Path) -> list[str]:
    """Every entry of DVC's run cache: what a stage wrote, by a hash of what it read."""
    return sorted(str(path) for path in cache.glob("runs/*/*/*") if path.is_file())


def _announce(paths: list[str], memory: Seen) -> None:
    """Say it if there is much to read."""
    size = sum(Path(path).stat().st_size for path in paths if path not in memory)
    if size > MUCH:
        print(f"repro: reading {size / 1e9:.0f} GB of DVC's cache, which is new here", file=sys.stderr)


def _is_whole(entry: Path) -> bool:
    return dvc_lock.states_a_stage(entry.read_text(encoding="utf-8", errors="replace"))


def _remove_empty(cache: Path) -> None:
    """Remove empty folders of the run cache: DVC fails at one.

    No DVC works in this folder. One of another folder may share the cache, and be about to fill a young one.
    """
    age = 0 if cache.resolve().is_relative_to(Path.cwd().resolve()) else YOUNG_SECONDS
    for folder in (cache / "runs").glob("*/*"):
        with suppress(OSError):  # not empty, no folder, or gone
            if time.time() - folder.stat().st_mtime >= age:
                folder.rmdir()


def _compiled() -> list[str]:
    """Remove what numba keeps of compiled code if some of it was emptied: it fails at that, again and again."""
    kept = sorted(Path("pipeline/loader/__pycache__").glob("*.nb[ic]"))
    if all(path.stat().st_size for path in kept):
        return []
    for path in kept:
        path.unlink(missing_ok=True)
    return [
        "pipeline/loader/__pycache__: what numba had compiled was emptied by a power cut: removed, to be compiled anew"
    ]


def _make_dvc_look(output: Output, cache: Path) -> str:
    """Give the wrong files of an output a new time: as long as they have the old one, DVC does not look at them."""
    wrong = integrity.differing(output, integrity.claims_of(output, cache))
    for path in wrong:
        with suppress(FileNotFoundError):
            os.utime(path)
    return (
        f"{integrity.named(wrong)}: not what dvc.lock says of {output.path}: to be taken from DVC's cache again, "
        f"or made anew"
    )


def _take_away(damaged: list[str], found: list[Output], cache: Path) -> list[str]:
    """Remove damaged objects, and put back those whose content an output still has."""
    if not damaged:
        return []
    holders = {md5: path for output in found for path, md5 in output.files.items()}
    listings = {output.found: output for output in found}
    owners = {md5: path for output in found for path, md5 in integrity.claims_of(output, cache).items()}
    owners |= {output.claimed: output.path for output in found}
    said: dict[str, list[str]] = {"put back from the output": [], "removed": []}
    for name in damaged:
        path, md5 = Path(name), integrity.claimed_by(name)
        whole = md5 + ".dir" * name.endswith(".dir")
        path.unlink(missing_ok=True)
        if whole in listings or whole in holders:
            with files.atomic_file(path) as partial:
                if whole in holders:
                    shutil.copyfile(holders[whole], partial)
                else:
                    partial.write_bytes(integrity.listing_of(listings[whole]))
                partial.chmod(PROTECTED)
        how = "put back from the output" if path.exists() else "removed"
        said[how].append(f"{name} ({owners[whole]})" if whole in owners else name)
    return [f"{integrity.named(names)}: damaged in DVC's cache: {how}" for how, names in said.items() if names]
