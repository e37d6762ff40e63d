"""Whether files are, byte for byte, what dvc.lock says of them.

DVC knows a file by its inode, time and size, and takes what it checks out of its cache for what it once put there. So a
bit that flipped in the cache, or a file that a power cut emptied, is handed on without a word. Here the bytes are read.

MEMORY has the MD5 of every file that was read, beside its marks: inode, size and times. A file whose marks are the same
is not read again, as in Git's index: whoever writes to a file changes its ctime, and nobody can set that. What a disk
does by itself stays unseen then; `python -m pipeline.verify` remembers nothing and reads everything.
"""

import errno
import fnmatch
import getpass
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pipeline.base import dvc_lock, files
from pipeline.base.errors import UserError

MEMORY = Path(".dvc/tmp/hashed.json")  # beside DVC's own working files: Git ignores it
IGNORE = Path(".dvcignore")
UNDER_DVC = "DVC_STAGE"  # DVC sets it for the commands that it runs
NAMED = 10  # how many files are written out
REMEDY = (
    "python -m pipeline.repro (make repro) takes away what is damaged and makes it anew; "
    "with a remote: remove what is named, then dvc pull"
)
# The outputs of other stages that a stage reads, by their keys in `paths`.
READ: dict[str, tuple[str, ...]] = {
    "download": (),
    "split": ("images",),
    "prepare": ("images", "split"),
    "train": ("packed", "split", "weights"),
    "evaluate": ("images", "models", "packed", "split"),
}

Seen = dict[str, list[str | int]]  # path → MD5, inode, size, mtime and ctime


@dataclass(frozen=True)
class Output:
    """An output, a file or a folder, as it is found."""

    path: str
    claimed: str  # its MD5 in dvc.lock; of a folder that of its listing, with ".dir" behind it
    found: str  # the same of what is there; empty if nothing is
    files: dict[str, str]  # path → MD5 of each file

    @property
    def wrong(self) -> bool:
        """Whether it is there, and is not what is claimed."""
        return self.found not in ("", self.claimed)


def _marks(path: str) -> list[str | int]:
    facts = os.stat(path)  # noqa: PTH116  (of very many files: a Path each would take longer than the rest)
    return [facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns]


def _md5(path: str) -> str:
    """The MD5 of a file; empty if the disk cannot read it."""
    try:
        return files.md5(Path(path))
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return ""


def read(paths: Iterable[str], memory: Seen) -> Seen:
    """MD5 and marks of the files that are there; those with the marks that `memory` has are not read again."""
    found, unknown = {}, {}
    for path in paths:
        try:
            marks = _marks(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        known = memory.get(path)
        if known and known[1:] == marks:
            found[path] = known
        else:
            unknown[path] = marks
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        hashes = pool.map(_md5, unknown)
        return found | {path: [md5, *marks] for (path, marks), md5 in zip(unknown.items(), hashes, strict=True)}


def remembered() -> Seen:
    """What MEMORY has; nothing if it is not there or was damaged itself."""
    try:
        content = json.loads(MEMORY.read_bytes())
        return {str(path): list(entry) for path, entry in content.items() if len(entry) == 5}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def remember(seen: Seen) -> None:
    """Write MEMORY. What it names must be on the disk: a file that a power cut emptied would have other marks."""
    MEMORY.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(MEMORY, json.dumps(seen))


def _within(folder: str) -> list[str]:
    """The files in a folder that DVC counts in, relative to it, in the order of its listings."""
    lines = IGNORE.read_text(encoding="utf-8").splitlines() if IGNORE.is_file() else []
    patterns = [fnmatch.translate(line) for line in lines if line and line[0] not in "#/"]
    ignored = re.compile("|".join(patterns) or r"(?!)")
    found = []
    for top, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not ignored.match(name)]
        inside = top[len(folder) :].lstrip("/")
        found += [f"{inside}/{name}" if inside else name for name in names if not ignored.match(name)]
    return sorted(found)


def _listing(hashes: dict[str, str]) -> bytes:
    """What DVC stores of a folder: the MD5 of each file by its path in it."""
    entries = [{"md5": hashes[path], "relpath": path} for path in sorted(hashes)]
    return json.dumps(entries, sort_keys=True).encode()


def listing_of(output: Output) -> bytes:
    """The listing of a folder as it is found."""
    return _listing({path.removeprefix(f"{output.path}/"): md5 for path, md5 in output.files.items()})


def look(outs: dvc_lock.Hashes, memory: Seen) -> tuple[list[Output], Seen]:
    """Read outputs (path → claimed MD5); how each is found, and what is to be remembered of their files."""
    inside = {path: _within(path) for path, md5 in outs.items() if md5.endswith(".dir") and Path(path).is_dir()}
    paths = [path for path in outs if path not in inside]
    seen = read([*paths, *(f"{folder}/{name}" for folder, names in inside.items() for name in names)], memory)
    found = []
    for path, claimed in outs.items():
        if path in inside:
            hashes = {name: str(seen[f"{path}/{name}"][0]) for name in inside[path] if f"{path}/{name}" in seen}
            md5 = hashlib.md5(_listing(hashes), usedforsecurity=False).hexdigest() + ".dir"
            found.append(Output(path, claimed, md5, {f"{path}/{name}": md5 for name, md5 in hashes.items()}))
        else:
            hashes = {path: str(seen[path][0])} if path in seen else {}
            found.append(Output(path, claimed, hashes.get(path, ""), hashes))
    return found, seen


def environment() -> dict[str, str]:
    """What DVC has to be told: where `python` is; a name and a home for a user without (any container's --user)."""
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    try:
        getpass.getuser()
    except (KeyError, OSError):
        environ["LOGNAME"] = str(os.getuid())
    try:
        Path.home()
    except RuntimeError:
        environ["HOME"] = str(MEMORY.parent.absolute())
    return environ


def cache_folder() -> Path:
    """Where DVC keeps its cache. Raises UserError if DVC does not tell."""
    command = [sys.executable, "-m", "dvc", "cache", "dir"]
    asked = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if asked.returncode:
        raise UserError(f"dvc cache dir ended with exit status {asked.returncode}: {asked.stderr.strip()}")
    return Path(os.path.relpath(asked.stdout.strip()))


def object_of(cache: Path, md5: str) -> Path:
    """The file in DVC's cache that has the content of this MD5."""
    return cache / "files" / "md5" / md5[:2] / md5[2:]


def claims_of(output: Output, cache: Path) -> dict[str, str]:
    """path → MD5 of every file of an output as it should be; only its own if the cache no longer has the listing."""
    if output.found == output.claimed:
        return output.files
    stored = object_of(cache, output.claimed)
    if not output.claimed.endswith(".dir") or _md5_if_there(stored) + ".dir" != output.claimed:
        return {output.path: output.claimed}
    entries = json.loads(stored.read_bytes())
    return {f"{output.path}/{entry['relpath']}": str(entry["md5"]) for entry in entries}


def _md5_if_there(path: Path) -> str:
    return _md5(str(path)) if path.is_file() else ""


def differing(output: Output, claimed: dict[str, str]) -> list[str]:
    """The files of a wrong output that are not as they should be; all of them if that is not known file by file."""
    if output.path in claimed:
        return sorted(output.files) or [output.path]
    return sorted(path for path in claimed | output.files if claimed.get(path) != output.files.get(path))


def named(paths: list[str]) -> str:
    """Paths in words, the first of them written out."""
    return ", ".join(paths[:NAMED]) + (f" and {len(paths) - NAMED:,} more" if len(paths) > NAMED else "")


def claimed_by(stored: str) -> str:
    """The MD5 that the content of an object in DVC's cache should have, from its name."""
    path = Path(stored)
    return f"{path.parent.name}{path.name}".removesuffix(".dir")


def _damaged_objects(claimed: dict[str, str], cache: Path) -> dict[str, str]:
    """Object → path of those files (path → MD5) whose object in DVC's cache is there, and damaged."""
    owners = {str(object_of(cache, md5)): path for path, md5 in claimed.items()}
    return {stored: owners[stored] for stored, (md5, *_) in read(owners, {}).items() if md5 != claimed_by(stored)}


def _described(output: Output, cache: Path) -> str:
    """What is wrong with an output, with the objects in DVC's cache that are damaged, too."""
    claimed = claims_of(output, cache)
    wrong = differing(output, claimed)
    objects = _damaged_objects({path: claimed[path] for path in claimed.keys() & {*wrong, output.path}}, cache)
    also = f"; damaged in DVC's cache, too: {named(sorted(objects))}" if objects else ""
    return (
        f"{named(wrong)}: not what dvc.lock says of {output.path}{also}; {REMEDY}; where a change is meant: dvc commit"
    )


def damaged(claims: dict[str, dict[str, dvc_lock.Hashes]]) -> list[str]:
    """What of the outputs of a dvc.lock is damaged, here or in DVC's cache, a sentence each; every byte is read."""
    cache = cache_folder()
    found, _ = look({path: md5 for claim in claims.values() for path, md5 in claim["outs"].items()}, {})
    said = [_described(output, cache) for output in found if output.wrong]
    for output in found:
        claimed = {output.path: output.claimed} | claims_of(output, cache)
        said += [
            f"{stored}: damaged in DVC's cache ({path}); {REMEDY}"
            for stored, path in _damaged_objects(claimed, cache).items()
            if not output.wrong
        ]
    return said


def check(stage: str, paths: Mapping[str, str]) -> None:
    """Read what a stage of DVC's reads of other stages' outputs. Raises UserError if it is not what dvc.lock says.

    Only for a stage that DVC runs: what somebody makes by hand is in no lock.
    """
    if UNDER_DVC not in os.environ or not dvc_lock.LOCK.is_file():
        return
    folders = {Path(paths[key]).as_posix() for key in READ[stage]}
    outs = {
        path: md5
        for maker, claim in dvc_lock.read().items()
        if maker != stage
        for path, md5 in claim["outs"].items()
        if path in folders or any(path.startswith(f"{folder}/") for folder in folders)
    }
    found, _ = look(outs, remembered())
    if wrong := [output for output in found if output.wrong]:
        cache = cache_folder()
        raise UserError("\n".join(_described(output, cache) for output in wrong))
