"""The image files as the stages read them: copies in paths.images, or the user's own files where they are.

With `data.source: folder` the stage download copies no image. It writes a manifest into paths.images: the path, size
and SHA-256 of each file in paths.inbox. DVC versions this manifest. The stages split and prepare then read the files in
paths.inbox, and refuse a file that is not as the manifest says.
"""

import hashlib
import io
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from pipeline.base import files, schema, threads
from pipeline.base.errors import Fault, UserError, missing
from pipeline.data import folders

MANIFEST = ".manifest.csv"  # in paths.images; no file of an archive or an inbox has this name: hidden names are junk
HEADER = ("path", "bytes", "sha256")
KERNEL = (("proc",), ("sys",))  # top folders whose files are on no disk, and may have no end
LICENSE = "LICENSE.txt"  # is copied beside the manifest: reports name the photographers


class Changed(UserError):
    """A file that is not as the manifest says."""


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
        return sorted({*folders.with_parents(self.hashes), *folders.without_files(listed(self.root))})

    def file(self, name: str) -> tuple[Path, str]:
        """The path of a file, and the SHA-256 that its content must have (empty: any). Raises Changed if it is gone.

        The hash is compared (`check`) with that of the bytes that are decoded: the file may be replaced at any time.
        """
        path = self.root / name
        if self.hashes and not (path.is_file() and name in self.hashes):
            raise _changed(path, "changed" if path.is_file() else "removed")
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
    check(content, path, sha256)
    return content


def check(file: IO[bytes], path: Path, sha256: str) -> None:
    """Raise Changed if there is a `sha256`, and the bytes of an opened file have another one. Moves it to its start."""
    file.seek(0)
    if sha256 and hashlib.file_digest(cast(Any, file), "sha256").hexdigest() != sha256:
        raise _changed(path, "changed")
    file.seek(0)


def _changed(path: Path, what: str) -> Changed:
    value = f"{what} after the stage download listed it (data.source: folder)"
    remedy = "list the files again (dvc repro --force --single-item download), then dvc repro; or restore it"
    return Changed(Fault(str(path), value, "differs", remedy=remedy))


def gone(path: Path) -> UserError:
    """The refusal of an image file that `split` saw."""
    return missing(path, "run the split stage again (dvc repro does)", "in split.csv, but not there")


def opened(images: Path, inbox: Path) -> Originals:
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
            f"dvc repro --allow-missing evaluate"
        )
        raise folders.no_inbox(inbox, remedy)
    return Originals(inbox, hashes)


def write_manifest(inbox: Path, target: Path, workers: int) -> tuple[int, int]:
    """Write the manifest of the files below `inbox` into the folder `target`; the numbers of files and bytes.

    Links are followed. Raises UserError if there is no file, and for what `_walk` refuses.
    """
    if not inbox.is_dir():
        raise folders.no_inbox(inbox, "set it to the folder with your images")
    names = [
        name for name in listed(inbox) if not name.endswith("/")
    ]  # code points have the order of their UTF-8 bytes
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


def listed(folder: Path) -> list[str]:
    """The files and folders below `folder`, as `folders.entries` lists them, and those behind links."""
    return sorted(_walk(folder, folder, ()))


def _walk(folder: Path, top: Path, above: tuple[Path, ...]) -> Iterator[str]:
    """The paths of the files and folders below `folder` relative to `top`, without junk and what `dvc add` wrote.

    `above` has the folders that lead to it. Raises UserError for a link to one of them, for what is neither a file nor
    a folder, for a link to what is on no disk, and for a name that split.csv cannot hold.
    """
    here = folder.resolve()
    if here in above:
        raise _endless(folder, "a link to a folder that it is in")
    with os.scandir(folder) as found:
        entries = list(found)
    for entry in entries:
        path = Path(entry.path)
        name = path.relative_to(top).as_posix()
        if files.is_junk(Path(entry.name)) or folders.is_from_dvc_add(path, top):
            continue
        folders.check_name(path, name)
        if entry.is_symlink() and path.resolve().parts[1:2] in KERNEL:
            raise _endless(path, f"a link to {path.resolve()}, which may never end")
        if entry.is_dir():
            yield f"{name}/"
            yield from _walk(path, top, (*above, here))
        elif entry.is_file():
            yield name
        else:
            raise folders.not_a_file(path)


def _endless(link: Path, value: str) -> UserError:
    return UserError(Fault(str(link), value, "value", remedy="remove the link"))


def linked_folders(inbox: Path) -> list[str]:
    """The paths of links to folders below `inbox`, sorted. DVC does not look into them, so it sees no change there."""
    return [name[:-1] for name in listed(inbox) if name.endswith("/") and (inbox / name[:-1]).is_symlink()]
