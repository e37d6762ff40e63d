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
from pipeline.data import folders, labels

MANIFEST = ".manifest.csv"  # in paths.images; no file of an archive or an inbox has this name: hidden names are junk
HEADER = ("path", "bytes", "sha256")
KERNEL_FOLDERS = (("proc",), ("sys",))  # top folders; their files are on no disk, and may have no end
LICENSE = "LICENSE.txt"  # is copied beside the manifest: reports name the photographers


class Changed(UserError):
    """A file that differs from the manifest."""


@dataclass(frozen=True)
class Originals:
    """The image files of a data set."""

    root: Path
    hashes: Mapping[str, str]  # path of a file → its SHA-256 in the manifest; empty without a manifest

    def entries(self) -> list[str]:
        """The files and folders below root, as `folders.entries` lists them.

        With a manifest its files, and also the folders below root that are empty now.
        """
        if not self.hashes:
            return folders.entries(self.root)
        return sorted({*folders.with_parents(self.hashes), *folders.without_files(list_entries(self.root))})

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
        raise folders.no_inbox(inbox, remedy)
    return Originals(inbox, hashes)


def copy_inbox(inbox: Path, folder: Path) -> None:
    """Copy all files below `inbox` into an empty folder, without junk.

    Raises UserError if there is neither a class folder nor a table labels.csv, for a link, for what is neither a file
    nor a folder, and for a name that is not UTF-8.
    """
    remedy = (
        f"put images into {inbox}/<class>/ (or {inbox}/train/<class>/, and the same for val and test; or anywhere in "
        f"it, with a table {inbox}/{labels.NAME}); in a clone: dvc pull, if the photos were added with "
        f"dvc add {inbox}/*; without the photos: perennial repro --downstream split"
    )
    if not inbox.is_dir():
        raise folders.no_inbox(inbox, remedy)
    images = 0
    for path in sorted(inbox.rglob("*")):
        relative = path.relative_to(inbox)
        if files.is_junk(relative) or folders.is_from_dvc_add(path, inbox):
            continue
        folders.check_name(path, relative.as_posix())
        if path.is_symlink():
            value, allowed = "a symbolic link", "files and folders"
            raise UserError(Fault(str(path), value, "value", allowed=allowed, remedy="copy its target there instead"))
        if path.is_dir():
            (folder / relative).mkdir()
        elif not path.is_file():
            raise folders.not_a_file(path)
        else:
            shutil.copyfile(path, folder / relative)
            images += len(relative.parts) > 1 or relative.name == labels.NAME
    if not images:
        raise folders.no_inbox(inbox, remedy, "it has no class folder with a file in it")


def write_manifest(inbox: Path, target: Path, workers: int) -> tuple[int, int]:
    """Write the manifest of the files below `inbox` into the folder `target`. Returns the numbers of files and bytes.

    Links are followed. Raises UserError if there is no file, and for what `_walk` refuses.
    """
    if not inbox.is_dir():
        raise folders.no_inbox(inbox, "set it to the folder with your images")
    names = [name for name in list_entries(inbox) if not name.endswith("/")]
    if not names:
        remedy = (
            f"put images into {inbox}/<class>/, or name another folder; in a clone: "
            f"dvc pull, if the photos were added with dvc add {inbox}/*"
        )
        raise folders.no_inbox(inbox, remedy, "it is empty")

    def row(name: str) -> tuple[str, int, str]:
        path = inbox / name
        return name, path.stat().st_size, files.sha256(path)

    rows = list(threads.ordered_map(row, names, workers, "download"))
    files.write_csv(target / MANIFEST, HEADER, rows)
    if LICENSE in names:
        (target / LICENSE).write_bytes((inbox / LICENSE).read_bytes())
    return len(rows), sum(size for _, size, _ in rows)


def list_entries(folder: Path) -> list[str]:
    """The files and folders below `folder`, as `folders.entries` lists them, and those in links to folders."""
    return sorted(_walk(folder, folder, ()))


def _walk(folder: Path, top: Path, above: tuple[Path, ...]) -> Iterator[str]:
    """The paths of the files and folders below `folder` relative to `top`, without junk and what `dvc add` wrote.

    `above`: the folders that contain it. Raises UserError for a link to one of them, for what is neither a file nor a
    folder, for a link into KERNEL_FOLDERS, and for a name that split.csv cannot hold.
    """
    real_folder = folder.resolve()
    if real_folder in above:
        raise _link_refusal(folder, "a link to a folder that it is in")
    with os.scandir(folder) as scan:
        entries = list(scan)
    for entry in entries:
        path = Path(entry.path)
        name = path.relative_to(top).as_posix()
        if files.is_junk(Path(entry.name)) or folders.is_from_dvc_add(path, top):
            continue
        folders.check_name(path, name)
        if entry.is_symlink() and path.resolve().parts[1:2] in KERNEL_FOLDERS:
            raise _link_refusal(path, f"a link to {path.resolve()}, which may never end")
        if entry.is_dir():
            yield f"{name}/"
            yield from _walk(path, top, (*above, real_folder))
        elif entry.is_file():
            yield name
        else:
            raise folders.not_a_file(path)


def _link_refusal(link: Path, value: str) -> UserError:
    return UserError(Fault(str(link), value, "value", remedy="remove the link"))


def linked_folders(inbox: Path) -> list[str]:
    """The paths of links to folders below `inbox`, sorted. DVC does not look into them, so it sees no change there."""
    return [name[:-1] for name in list_entries(inbox) if name.endswith("/") and (inbox / name[:-1]).is_symlink()]
