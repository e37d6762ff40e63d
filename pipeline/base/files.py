"""Writes outputs atomically, and as the same bytes for the same content.

A file or folder gets its final name only when it is complete. A killed run leaves it under a fixed name
(`.<name>.partial`), so the next run removes it. Text has sorted keys, `\\n` line ends and floats as `repr`.
"""

import csv
import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# In lower case: files that systems add to folders of photos, and folders of systems, NAS devices and programs.
JUNK_NAMES = frozenset({
    "__macosx", "icon\r", "thumbs.db", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini", "picasa.ini",
    "@eadir", "@tmp", "@synoresource", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "lost+found",
    "$recycle.bin", "system volume information", "network trash folder", "temporary items", "__pycache__",
})  # fmt: skip
JUNK_ENDINGS = ("@synoeastream", "@synoresource")

LOCKED_PACKAGES = Path("requirements/lock.txt")  # in the project's folder
TEMPORARY = Path(".dvc/tmp")  # DVC's own working files: Git and DVC ignore it


def is_junk(path: Path) -> bool:
    """Whether a relative path is hidden, or in a folder or file that a system adds (Thumbs.db, @eaDir, …)."""
    parts = path.as_posix().lower().split("/")
    return any(part.startswith(".") or part in JUNK_NAMES or part.endswith(JUNK_ENDINGS) for part in parts)


def visible(folder: Path) -> list[Path]:
    """The files and folders in a folder, without junk, sorted; empty if there is no such folder."""
    return sorted(path for path in folder.glob("*") if not is_junk(Path(path.name)))


def sync_folder(folder: Path) -> None:
    """Write the names in `folder` to the disk, so that a rename survives a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        error.filename = str(folder)
        raise
    finally:
        os.close(descriptor)


def partial(path: Path) -> Path:
    """The name of `path` while it is written."""
    return path.with_name(f".{path.name}.partial")


def previous(path: Path) -> Path:
    """The name of the earlier folder `path` while it is replaced."""
    return path.with_name(f".{path.name}.previous")


def remove(path: Path) -> None:
    """Remove a file, a link or a whole folder, if it exists. Raises OSError that names `path`."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        error.filename = str(path)
        raise


def remove_others(keep: Path, form: str) -> None:
    """Remove what is beside `keep` and has a name of this form, a regular expression.

    Nothing else: the folder may be a link to one with a user's own files.
    """
    for path in set(keep.parent.glob("*")) - {keep}:
        if re.fullmatch(form, path.name):
            remove(path)


def link(path: Path, target: Path) -> None:
    """Replace a path by a link to a file or folder."""
    remove(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target.resolve())


def _clean_up(error: BaseException, path: Path, temporary: Path, aside: Path) -> None:
    """Clean up after an error. Files that cannot be removed become notes of the error, so that it is not replaced.

    An error from writing to an open file has no file name: it gets that of the output.
    """
    if isinstance(error, OSError) and error.errno is not None and error.filename is None:
        error.filename = str(path)
    try:
        if aside.exists() and not path.exists():
            aside.replace(path)
    except OSError as another:
        error.add_note(f"{aside} stays ({another.strerror}), and is the earlier {path}; the next run puts it back")
    try:
        remove(temporary)
    except OSError as another:
        error.add_note(f"{temporary} stays ({another.strerror}); the next run removes it")


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield the path to write to; rename it to `path` after the block, or remove it if the block raises."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = partial(path)
    remove(temporary)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        _clean_up(error, path, temporary, previous(path))
        raise
    sync_folder(path.parent)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; rename it to `path` after the block, or remove it if the block raises.

    A folder cannot be renamed onto one that is not empty, so an earlier `path` is renamed first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, aside = partial(path), previous(path)
    remove(temporary)
    if aside.exists() and not path.exists():  # killed between the two renames: the earlier output is complete
        aside.replace(path)
    remove(aside)
    temporary.mkdir()
    try:
        yield temporary
        if path.exists():
            path.replace(aside)
        temporary.replace(path)
    except BaseException as error:
        _clean_up(error, path, temporary, aside)
        raise
    try:
        sync_folder(path.parent)
    except OSError as error:
        if aside.exists():  # until the renames are on the disk, it may be the only complete one
            error.add_note(f"{aside} stays, and is the earlier {path}; the next run removes it")
        raise
    remove(aside)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, value: Any) -> None:
    """Write JSON with sorted keys. Raises ValueError for NaN and infinity, which JSON does not have."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table; a float becomes its shortest exact text (`repr`)."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([repr(float(cell)) if isinstance(cell, float) else cell for cell in row] for row in rows)
    write_text(path, text.getvalue())


def read_csv(path: Path) -> list[dict[str, str]]:
    """Read a table written by `write_csv`: one dict per row."""
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def md5(path: Path) -> str:
    """The MD5 of a file, in hexadecimal: its name in DVC's cache and in dvc.lock."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
