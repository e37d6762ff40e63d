"""The image files that the stages read: copies in paths.images, or the user's files in paths.inbox.

With `data.source: folder` the stage download copies no image. It writes a manifest into paths.images: the path, size
and SHA-256 of each file in paths.inbox. DVC versions this manifest. The stages split and prepare then read the files in
paths.inbox, and refuse a file that is not as the manifest says.
"""

import hashlib
import io
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from pipeline.base import files, schema, threads
from pipeline.base.errors import Fault, UserError, missing
from pipeline.sources import labels

MANIFEST = ".manifest.csv"  # in paths.images; no file of an archive or an inbox has this name: hidden names are junk
HEADER = ("path", "bytes", "sha256")
LICENSE = "LICENSE.txt"  # is copied beside the manifest: reports name the photographers


class Changed(UserError):
    """A file that differs from the manifest."""


@dataclass(frozen=True)
class Originals:
    """The image files of a data set."""

    root: Path
    hashes: Mapping[str, str]  # path of a file → its SHA-256 in the manifest; empty without a manifest

    def entries(self) -> list[str]:
        """The files of the manifest; without a manifest, what `list_entries` lists below root."""
        if not self.root.is_dir():
            raise missing(self.root, "run the download stage first (perennial repro does)", "no such folder")
        return sorted(self.hashes) or list_entries(self.root)

    def file(self, name: str) -> tuple[Path, str]:
        """The path of a file, and the SHA-256 that its content must have (empty: any). Raises Changed without the file.

        The caller compares the hash (`check_hash`) with the bytes that it decodes: a file can be replaced at any time.
        """
        path = self.root / name
        if self.hashes and not (path.is_file() and name in self.hashes):
            raise _change_refusal(path, "changed" if path.is_file() else "removed")
        return path, self.hashes.get(name, "")

    def read(self, name: str) -> bytes:
        """The content of a file. Raises Changed if it is not that of the manifest."""
        path, sha256 = self.file(name)
        with path.open("rb") as file:
            return copy(file, path, sha256).getvalue()


def copy(file: IO[bytes], path: Path, sha256: str) -> io.BytesIO:
    """The bytes of an opened file in memory. Raises Changed if there is a `sha256`, and they have another one."""
    file.seek(0)
    content = io.BytesIO(file.read())
    check_hash(content, path, sha256)
    return content


def check_hash(file: IO[bytes], path: Path, sha256: str) -> None:
    """Raise Changed if there is a `sha256`, and the bytes of an opened file have another one. Moves it to its start."""
    file.seek(0)
    if sha256 and hashlib.file_digest(cast(Any, file), "sha256").hexdigest() != sha256:
        raise _change_refusal(path, "changed")
    file.seek(0)


def _change_refusal(path: Path, what: str) -> Changed:
    value = f"{what} after the stage download listed it (data.source: folder)"
    remedy = (
        "list the files again (perennial repro --force --single-item download), then perennial repro; or restore it"
    )
    return Changed(Fault(str(path), value, "differs", remedy=remedy))


def missing_image(path: Path) -> UserError:
    """The refusal of a missing image file that is in split.csv."""
    return missing(path, "run the split stage again (perennial repro does)", "in split.csv, but not there")


def locate(images: Path, inbox: Path) -> Originals:
    """The image files that paths.images holds, or that its manifest lists in paths.inbox.

    Raises UserError if there is no such folder, and for a damaged manifest.
    """
    manifest = images / MANIFEST
    if not manifest.is_file():
        return Originals(images, {})
    with schema.reading(manifest, schema.checkout(manifest), KeyError):
        hashes = {row["path"]: row["sha256"] for row in files.read_csv(manifest)}
    if not inbox.is_dir():
        remedy = (
            f"set it to the folder with the images that {manifest} lists; train and evaluate do not need them: "
            f"perennial repro --allow-missing evaluate"
        )
        raise no_inbox(inbox, remedy)
    return Originals(inbox, hashes)


def copy_inbox(inbox: Path, folder: Path) -> None:
    """Copy all files below `inbox` into an empty folder, without junk.

    Raises UserError if there is neither a class folder nor a table labels.csv, for a link, and for what `list_entries`
    refuses.
    """
    remedy = (
        f"put images into {inbox}/<class>/ (or {inbox}/train/<class>/, and the same for val and test; or anywhere in "
        f"it, with a table {inbox}/{labels.NAME}); in a clone: dvc pull, if the photos were added with "
        f"dvc add {inbox}/*; without the photos: perennial repro --downstream split"
    )
    if not inbox.is_dir():
        raise no_inbox(inbox, remedy)
    names = list_entries(inbox)
    if inbox_links := links(inbox):
        value, remedy = "a symbolic link", "copy its target there instead"
        raise UserError(Fault(str(inbox_links[0]), value, "value", allowed="files and folders", remedy=remedy))
    if not any("/" in name or name == labels.NAME for name in names):
        raise no_inbox(inbox, remedy, "it has no class folder with a file in it")
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(inbox / name, target)


def write_manifest(inbox: Path, target: Path, workers: int) -> tuple[int, int]:
    """Write the manifest of the files below `inbox` into the folder `target`. Returns the numbers of files and bytes.

    Links are followed. Raises UserError if there is no file, and for what `list_entries` refuses.
    """
    if not inbox.is_dir():
        raise no_inbox(inbox, "set it to the folder with your images")
    if not (names := list_entries(inbox)):
        remedy = (
            f"put images into {inbox}/<class>/, or name another folder; in a clone: "
            f"dvc pull, if the photos were added with dvc add {inbox}/*"
        )
        raise no_inbox(inbox, remedy, "it is empty")

    def row(name: str) -> tuple[str, int, str]:
        path = inbox / name
        return name, path.stat().st_size, files.sha256(path)

    rows = list(threads.ordered_map(row, names, workers, "download"))
    files.write_csv(target / MANIFEST, HEADER, rows)
    if LICENSE in names:
        (target / LICENSE).write_bytes((inbox / LICENSE).read_bytes())
    return len(rows), sum(size for _, size, _ in rows)


def list_entries(folder: Path) -> list[str]:
    """The relative paths of all files below `folder`, sorted.

    Junk and what `dvc add` wrote are left out. Links are followed. Raises UserError for a link to a folder that
    contains it, for what is neither a file nor a folder, and for a name that split.csv cannot hold.
    """
    return sorted(_walk(folder, folder, ()))  # code points have the order of their UTF-8 bytes


def _walk(folder: Path, top: Path, above: tuple[Path, ...]) -> Iterator[str]:
    """The names of `list_entries` below `folder`, relative to `top`. `above`: the folders that contain it."""
    real_folder = folder.resolve()
    if real_folder in above:
        raise UserError(Fault(str(folder), "a link to a folder that it is in", "value", remedy="remove the link"))
    for entry in list(os.scandir(folder)):
        path = Path(entry.path)
        name = path.relative_to(top).as_posix()
        if files.is_junk(Path(path.name)) or is_from_dvc_add(path, top):
            continue
        check_name(path, name)
        target = path if entry.is_symlink() else entry  # an entry raises OSError for a link to itself
        if target.is_dir():
            yield from _walk(path, top, (*above, real_folder))
        elif target.is_file():
            yield name
        else:
            value, remedy = "neither a file nor a folder (a broken link?)", "remove it, or put the file there"
            raise UserError(Fault(str(path), value, "value", remedy=remedy))


def check_name(path: Path, name: str) -> None:
    """Raise UserError for a name that split.csv cannot hold."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        remedy = "rename it (convmv -f latin1 -t utf8 does)"
        raise UserError(Fault(ascii(path.as_posix()), "the name is not UTF-8", "value", remedy=remedy)) from None
    if "\r" in name:  # Python 3.11 and 3.12 write it to a CSV file without quotes, and read it as the end of a line
        value, remedy = "a carriage return in the name", "rename or remove it"
        raise UserError(Fault(repr(path.as_posix()), value, "value", remedy=remedy))


def is_from_dvc_add(path: Path, top: Path) -> bool:
    """Whether `dvc add` wrote this file beside the file or folder in `top` that it versions."""
    return path.parent == top and path.suffix == ".dvc" and path.is_file()


def no_inbox(inbox: Path, remedy: str, reason: str = "it is not a folder") -> UserError:
    """The refusal of an inbox without images."""
    return UserError(Fault("paths.inbox", str(inbox), "missing", reason, remedy=remedy))


def links(folder: Path) -> list[Path]:
    """The links below `folder` without junk, sorted. Links in a linked folder are not listed."""
    return sorted(
        path for path in folder.rglob("*") if path.is_symlink() and not files.is_junk(path.relative_to(folder))
    )
