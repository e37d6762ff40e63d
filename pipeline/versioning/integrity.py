"""Compares files with dvc.lock, byte by byte.

DVC identifies a file by its inode, time and size, and trusts its own cache. If a bit flips in the cache, or a power cut
empties a file, DVC uses that file without a message. The functions here read the bytes.

MEMORY holds the MD5 of every file that was read, with its inode, size and times. A file for which these have not
changed is not read again, as in Git's index: every write changes the ctime, and no program can set it. A disk that
changes a file by itself is not noticed in this way; `perennial verify` uses no memory and reads everything.
"""

import errno
import fnmatch
import hashlib
import json
import os
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from pipeline.base import files, linux
from pipeline.base.errors import Fault, UserError
from pipeline.base.text import in_words
from pipeline.versioning import dvc_lock, programs

MEMORY = programs.TEMPORARY / "hashed.json"
IGNORE = Path(".dvcignore")
UNDER_DVC = "DVC_STAGE"  # DVC sets this variable for the commands that it runs
COMPARED = "PERENNIAL_COMPARED"  # the variable with what `check` compared at this start: see `mark_compared`
REMEDY = (
    "perennial repro removes damaged files and makes them again; "
    "with a remote: remove the files that are listed, then dvc pull"
)

Hashed = dict[str, list[str | int]]  # path → MD5, inode, size, mtime and ctime


@dataclass(frozen=True)
class Output:
    """An output (a file or a folder): its hash in dvc.lock, and its hash now."""

    path: str
    expected: str  # its MD5 in dvc.lock; for a folder: the MD5 of its listing, followed by ".dir"
    actual: str  # the same of the files that are there; empty if there is none
    files: dict[str, str]  # path → MD5 of each file

    @property
    def differs(self) -> bool:
        """Whether it is there, and has another hash than dvc.lock says."""
        return self.actual not in ("", self.expected)


def _stat(path: str) -> list[str | int]:
    """Inode, size, mtime and ctime of a file."""
    facts = os.stat(path)  # noqa: PTH116  (with very many files, creating the Path objects would take most of the time)
    return [facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns]


def _md5(path: str) -> str:
    """The MD5 of a file; empty if the disk cannot read it."""
    try:
        return files.md5(Path(path))
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return ""


def hash_files(paths: Iterable[str], memory: Hashed) -> Hashed:
    """MD5, inode, size and times of the files that exist. Files that are as in `memory` are not read again."""
    known, unknown = {}, {}
    for path in paths:
        try:
            facts = _stat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        entry = memory.get(path)
        if entry and entry[1:] == facts:
            known[path] = entry
        else:
            unknown[path] = facts
    with ThreadPoolExecutor(linux.usable_cores()) as pool:
        hashes = pool.map(_md5, unknown)
        return known | {path: [value, *facts] for (path, facts), value in zip(unknown.items(), hashes, strict=True)}


def load_memory() -> Hashed:
    """The content of MEMORY; empty if the file is missing or damaged."""
    try:
        content = json.loads(MEMORY.read_bytes())
        return {str(path): list(entry) for path, entry in content.items() if len(entry) == 5}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def save_memory(memory: Hashed) -> None:
    """Write MEMORY. The files in it must be synced: a power cut would empty one that is not, and change its times."""
    MEMORY.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(MEMORY, json.dumps(memory))


def _files_in(folder: str) -> list[str]:
    """The files in a folder that DVC does not ignore, in the order of DVC's listings."""
    lines = IGNORE.read_text(encoding="utf-8").splitlines() if IGNORE.is_file() else []
    ignored = _any_of(line for line in lines if line and line[0] not in "#/")
    ignored_path = _any_of(line[1:] for line in lines if line.startswith("/"))
    paths = []
    for top, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not ignored.match(name)]
        paths += [f"{top}/{name}" for name in names if not ignored.match(name)]
    return sorted(path for path in paths if not ignored_path.match(path))


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    """The regular expression of a name or path that one of these patterns of a shell matches."""
    return re.compile("|".join(map(fnmatch.translate, patterns)) or r"(?!)")


def listing_of(output: Output) -> bytes:
    """DVC's cache object for an output that is a folder: a JSON list of the MD5 and relative path of each file."""
    relative = {path.removeprefix(f"{output.path}/"): md5 for path, md5 in output.files.items()}
    entries = [{"md5": relative[path], "relpath": path} for path in sorted(relative)]
    return json.dumps(entries, sort_keys=True).encode()


def digest_of(output: Output) -> str:
    """The hash in dvc.lock for a folder with the files of this output."""
    return hashlib.md5(listing_of(output), usedforsecurity=False).hexdigest() + ".dir"


def inspect_outputs(outs: dvc_lock.Hashes, memory: Hashed) -> tuple[list[Output], Hashed]:
    """Hash outputs (path → MD5 in dvc.lock). Returns each with its actual hash, and the hashes of all their files."""
    folders = {path: _files_in(path) for path, md5 in outs.items() if md5.endswith(".dir") and Path(path).is_dir()}
    files_of = {path: folders.get(path, [path]) for path in outs}
    hashed = hash_files(chain.from_iterable(files_of.values()), memory)
    outputs = []
    for path, expected in outs.items():
        hashes = {file: str(hashed[file][0]) for file in files_of[path] if file in hashed}
        output = Output(path, expected, hashes.get(path, ""), hashes)
        outputs.append(replace(output, actual=digest_of(output)) if path in folders else output)
    return outputs, hashed


def cache_folder() -> Path:
    """The folder of DVC's cache, relative to this one. Raises UserError if DVC does not name it."""
    return Path(os.path.relpath(programs.dvc("cache", "dir").strip()))


def object_of(cache: Path, md5: str) -> Path:
    """The file in DVC's cache for this MD5."""
    return cache / "files" / "md5" / md5[:2] / md5[2:]


def md5_of_object(path: str) -> str:
    """The MD5 that a file in DVC's cache should have, by its name."""
    stored = Path(path)
    return f"{stored.parent.name}{stored.name}".removesuffix(".dir")


def expected_files(output: Output, cache: Path) -> dict[str, str]:
    """path → MD5 in dvc.lock of an output's files; only of the output itself if its listing is not in the cache."""
    if output.actual == output.expected:
        return output.files
    listing = object_of(cache, output.expected)
    md5 = _md5(str(listing)) if listing.is_file() else ""
    if not output.expected.endswith(".dir") or md5 + ".dir" != output.expected:
        return {output.path: output.expected}
    entries = json.loads(listing.read_bytes())
    return {f"{output.path}/{entry['relpath']}": str(entry["md5"]) for entry in entries}


def changed_files(output: Output, expected: dict[str, str]) -> list[str]:
    """The files of an output that differ from `expected` (see `expected_files`); all if no single file is known."""
    if output.path in expected:
        return sorted(output.files) or [output.path]
    return sorted(path for path in expected | output.files if expected.get(path) != output.files.get(path))


def _damaged_objects(expected: dict[str, str], cache: Path) -> dict[str, str]:
    """Object → path, for the files (path → MD5) whose object in DVC's cache exists and is damaged."""
    paths = {str(object_of(cache, md5)): path for path, md5 in expected.items()}
    return {
        stored: paths[stored] for stored, (md5, *_) in hash_files(paths, {}).items() if md5 != md5_of_object(stored)
    }


def _fault(output: Output, cache: Path) -> Fault:
    """An output that differs: its changed files, and their damaged objects in DVC's cache."""
    expected = expected_files(output, cache)
    changed = changed_files(output, expected)
    objects = _damaged_objects({path: expected[path] for path in expected.keys() & {*changed, output.path}}, cache)
    also = f"damaged in DVC's cache, too: {in_words(sorted(objects))}" if objects else ""
    value, remedy = f"not what dvc.lock says of {output.path}", f"{REMEDY}; if the change is intended: dvc commit"
    return Fault(in_words(changed), value, "differs", also, remedy=remedy)


def damage(stage_hashes: dvc_lock.StageHashes) -> list[Fault]:
    """Every output of a dvc.lock that is damaged, here or in DVC's cache. Reads every byte."""
    cache = cache_folder()
    outputs, _ = inspect_outputs(dvc_lock.outputs(stage_hashes), {})
    faults = [_fault(output, cache) for output in outputs if output.differs]
    for output in outputs:
        expected = {output.path: output.expected} | expected_files(output, cache)
        faults += [
            Fault(stored, "damaged in DVC's cache", "damaged", f"it is of {path}", remedy=REMEDY)
            for stored, path in _damaged_objects(expected, cache).items()
            if not output.differs
        ]
    return faults


def differing(paths: Iterable[Path]) -> dict[Path, bool]:
    """Whether each file differs from the dvc.lock of this folder, of those that it names and that are there."""
    outs = dvc_lock.outputs(dvc_lock.here())
    names = {os.path.relpath(path): path for path in paths if path.is_file()}  # reading a pipe would wait for ever
    outputs, _ = inspect_outputs({name: outs[name] for name in names if name in outs}, load_memory())
    return {names[output.path]: output.differs for output in outputs}


def check(stage: str) -> list[str]:
    """Compare the outputs of other stages that `stage` reads with dvc.lock. Raises UserError if one differs.

    An output of a later stage beside them does not count: that stage makes it again.
    Only if DVC runs the stage: files that were made by hand are in no dvc.lock. Returns the paths that were compared.
    """
    if UNDER_DVC not in os.environ or not dvc_lock.LOCK.is_file():
        return []
    inputs = dvc_lock.deps(stage)
    outs = {
        path: md5
        for maker, hashes in dvc_lock.read().items()
        if maker != stage
        for path, md5 in hashes["outs"].items()
        if any(Path(path).is_relative_to(one) for one in inputs)
    }
    outputs, _ = inspect_outputs(outs, load_memory())
    if differing := [output for output in outputs if output.differs]:
        cache = cache_folder()
        raise UserError(*(_fault(output, cache) for output in differing))
    return list(outs)


def mark_compared(paths: list[str]) -> None:
    """Let this process and those that it starts on this machine know what `check` has compared."""
    os.environ[COMPARED] = json.dumps([os.uname().nodename, *paths])


def is_compared(path: Path) -> bool:
    """Whether `check` has compared this output, at this start and on this machine: srun passes variables to others."""
    machine, *paths = json.loads(os.environ.get(COMPARED, "[null]"))
    return machine == os.uname().nodename and path.as_posix() in paths
