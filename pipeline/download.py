"""Stage 1: photos from an archive, from the inbox or from the drawing board → `data/images/<class>/<file>`,
and pretrained weights, if asked for → `data/weights/<model>.safetensors`.

    python -m pipeline.download

An archive is hashed before it is unpacked, and nothing in it can be written outside the folder. The output appears
only when it is complete. A downloaded archive is kept, so running the stage again needs no network.
"""

import bz2
import errno
import gzip
import lzma
import os
import shutil
import stat
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Generator, Sequence
from contextlib import closing
from io import BufferedIOBase
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import unquote

import pooch
import requests

from pipeline import stage
from pipeline.base import files
from pipeline.base.errors import UserError
from pipeline.config.params import Params
from pipeline.data import synthetic

WAITS = (1.0, 2.0, 4.0, 8.0)  # seconds before the second try, the third …
STALLED = 30  # seconds without a byte end a try
CHUNK = 1 << 20

ZIP = (b"PK\x03\x04", b"PK\x05\x06")
ZIP_ENCRYPTED = 1  # bit of an entry's flags
# What the decoders raise on broken input, besides OSError without a number (gzip, bz2) or for a seek to nowhere (zip).
FROM_LIBRARIES = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
DAMAGED = (*FROM_LIBRARIES, EOFError, NotImplementedError, OverflowError, ValueError)
UNWRITABLE = {errno.EEXIST: "there twice", errno.ENOTDIR: "there twice", errno.ENAMETOOLONG: "too long a name"}

Entry = tuple[str, IO[bytes] | None]  # a name and its content; a folder has none


def run(config: Params) -> None:
    """Fill `paths.weights` as `train.weights` asks, and `paths.images` from `data.source`."""
    images, data = Path(config.paths.images), config.data
    bring_weights(config)
    if data.source == "archive":
        origin = data.url
        archive = obtain(data.url, data.sha256, Path(config.paths.archives))
        with files.atomic_folder(images) as folder:
            unpack(archive, folder, data.max_files, data.max_bytes)
    elif data.source == "inbox":
        origin = config.paths.inbox
        with files.atomic_folder(images) as folder:
            copy(Path(config.paths.inbox), folder)
    else:
        drawn = data.synthetic
        origin = f"the drawing board (seed {drawn.seed})"
        with files.atomic_folder(images) as folder:
            synthetic.draw(folder, drawn.count, drawn.size, drawn.seed, stage.workers(config))
    sizes = [path.stat().st_size for path in images.rglob("*") if path.is_file()]
    print(f"download: {len(sizes):,} files, {sum(sizes):,} bytes in {config.paths.images}, from {origin}")


# The archive


def obtain(url: str, sha256: str, archives: Path, waits: Sequence[float] = WAITS) -> Path:
    """The path of an archive whose hash was just checked: the file of a file:// address, or a download that is kept.

    Raises UserError if it is missing, cannot be downloaded, or is not the file that `sha256` names.
    """
    for leftover in archives.glob(".*.partial"):  # of a run that was killed
        files.remove(leftover)
    if url.startswith("file://"):
        path = _local(url)
        if (found := files.sha256(path)) != sha256:
            raise UserError(_mismatch(str(path), found, sha256))
        return path
    kept = archives / sha256
    if kept.exists() and (found := files.sha256(kept)) != sha256:
        print(f"download: {kept} has SHA-256 {found}: damaged, removed; downloading it again", file=sys.stderr)
        files.remove(kept)
    if not kept.exists():
        fetch(url, kept, sha256, waits)
    return kept


def _local(url: str) -> Path:
    """The path of a file:// address."""
    path = Path(unquote(url.removeprefix("file://")))
    if not path.is_absolute():
        raise UserError(
            f"data.url: {url!r} has no full path; allowed: file:// and a path from the root, file:///home/…"
        )
    try:
        there = path.is_file()
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        there = False
    if not there:
        raise UserError(f"data.url: {url!r}: there is no such file; allowed: an existing archive (a space is %20)")
    return path


def fetch(url: str, target: Path, sha256: str, waits: Sequence[float] = WAITS) -> None:
    """Download to `target`, which appears only when its hash is right.

    Tries again, after each of `waits` seconds, on what may pass: a lost connection, a timeout, status 429 and 5xx.
    Raises UserError on anything else, and after the last try.
    """
    go_on = "to go on without the network: fetch that file elsewhere and set data.url: file:///path/to/it"
    with files.atomic_file(target) as temporary:
        _get(url, temporary, waits, "data.url", go_on)
        if (found := files.sha256(temporary)) != sha256:
            raise UserError(_mismatch(url, found, sha256))


def _get(url: str, target: Path, waits: Sequence[float], key: str, go_on: str) -> None:
    """Download to `target`, with the tries of `fetch`. A UserError begins with `key` and ends with `go_on`."""
    # A server that takes the archive's gzip for a transfer encoding would have it unpacked on the way.
    client = pooch.HTTPDownloader(
        progressbar=sys.stderr.isatty() and not os.environ.get("CI"),
        chunk_size=CHUNK,
        timeout=STALLED,
        headers={"Accept-Encoding": "identity"},
    )
    for attempt, wait in enumerate([*waits, None], start=1):
        try:
            client(url, str(target), None)
            return
        except requests.RequestException as error:
            reason = " ".join(str(error).split())
            if not _may_pass(error):
                raise UserError(f"{key}: {url!r} cannot be downloaded: {reason}; {go_on}") from None
            if wait is None:
                raise UserError(f"{key}: {url!r}: {attempt} tries failed, the last: {reason}; {go_on}") from None
            print(f"download: try {attempt} failed: {reason}; again in {wait:g} s", file=sys.stderr)
            time.sleep(wait)


def _may_pass(error: requests.RequestException) -> bool:
    """Whether the same request may succeed a little later."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return error.response.status_code == 429 or error.response.status_code >= 500
    return isinstance(error, requests.ConnectionError | requests.Timeout | requests.exceptions.ChunkedEncodingError)


def _mismatch(where: str, found: str, expected: str) -> str:
    return (
        f"data.sha256: {where} has SHA-256 {found}, expected {expected}; "
        f"nothing was unpacked; get the right file, or set data.sha256 if you trust this one"
    )


def unpack(archive: Path, folder: Path, max_files: int, max_bytes: int) -> None:
    """Unpack a tar (plain, gzip, bzip2, xz) or zip into an empty folder, without its one top folder and without junk.

    Raises UserError for an entry that would land outside, that is no plain file or folder, or that is there twice, for
    more than `max_files` entries or `max_bytes` bytes (both counted, not believed), and for a damaged archive.
    """
    inside = folder / ".unpacked"  # no entry has a hidden name: that would be junk
    inside.mkdir()
    left = max_bytes
    try:
        with closing(_entries(archive)) as entries:
            for number, (name, content) in enumerate(entries, start=1):
                if number > max_files:
                    raise UserError(f"data.max_files: {archive} has more than {max_files} entries; allowed: raise it")
                path = _inside(archive, name)
                if files.is_junk(path):
                    continue
                try:
                    left = _write(inside / path, content, left)
                except OSError as error:
                    if error.errno not in UNWRITABLE:
                        raise
                    raise UserError(_refused(archive, name, UNWRITABLE[error.errno])) from None
                if left < 0:
                    raise UserError(f"data.max_bytes: {archive} unpacks to more than {max_bytes}; allowed: raise it")
    except DAMAGED as error:
        raise UserError(_damaged(archive, error)) from None
    except OSError as error:
        if error.errno not in (None, errno.EINVAL):
            raise
        raise UserError(_damaged(archive, error)) from None
    _strip(archive, inside, folder)


def _entries(archive: Path) -> Generator[Entry, None, None]:
    """The entries of an archive, one after the other. A content can be read only until the next entry is asked for."""
    with archive.open("rb") as content:
        head = content.read(8)
    return _zip_entries(archive) if head.startswith(ZIP) else _tar_entries(archive, head)


def _tar_entries(archive: Path, head: bytes) -> Generator[Entry, None, None]:
    with _decompressed(archive, head) as stream:
        with tarfile.open(fileobj=stream, mode="r:") as tar:
            for member in tar:
                if not (member.isdir() or member.isreg()):
                    kind = "a link" if member.issym() or member.islnk() else "neither a file nor a folder"
                    raise UserError(_refused(archive, member.name, kind))
                yield member.name, tar.extractfile(member)
            # tarfile takes a broken header for the end. The true end is a block of zeros,
            stream.seek(tar.offset)
            if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise tarfile.ReadError("a header is broken, or the end is missing")
        while stream.read(CHUNK):  # and the compressor's checksum stands behind it
            pass


def _decompressed(archive: Path, head: bytes) -> BufferedIOBase:
    """The bytes of a tar, whatever it is compressed with; its name does not matter."""
    if head.startswith(b"\x1f\x8b"):
        return gzip.open(archive, "rb")
    if head.startswith(b"BZh"):
        return bz2.open(archive, "rb")
    if head.startswith(b"\xfd7zXZ\0"):
        return lzma.open(archive, "rb")
    return archive.open("rb")


def _zip_entries(archive: Path) -> Generator[Entry, None, None]:
    try:
        opened = zipfile.ZipFile(archive, metadata_encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(_refused(archive, os.fsdecode(error.object), "not named in UTF-8")) from None
    with opened as zipped:
        for info in zipped.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)  # Unix's file type; 0 from other systems
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                what = "a link" if kind == stat.S_IFLNK else "neither a file nor a folder"
                raise UserError(_refused(archive, info.filename, what))
            if info.flag_bits & ZIP_ENCRYPTED:
                raise UserError(_refused(archive, info.filename, "encrypted"))
            if info.is_dir():
                yield info.filename, None
            else:
                with zipped.open(info) as content:
                    yield info.filename, content


def _inside(archive: Path, name: str) -> Path:
    """An entry's name as a relative path that stays inside the folder. Raises UserError if it is none."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise UserError(_refused(archive, name, "named so that it would land outside the folder"))
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:  # tarfile keeps the odd bytes as surrogates
        raise UserError(_refused(archive, name, "not named in UTF-8")) from None
    return Path(path)


def _write(path: Path, content: IO[bytes] | None, left: int) -> int:
    """Write one entry, of which only `left` bytes are allowed; what is left then, negative if it was too much."""
    if content is None:
        path.mkdir(parents=True, exist_ok=True)
        return left
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as target:
        while left >= 0 and (chunk := content.read(CHUNK)):
            left -= len(chunk)
            if left >= 0:
                target.write(chunk)
    return left


def _strip(archive: Path, inside: Path, folder: Path) -> None:
    """Move what was unpacked up into `folder`, without the one folder that holds everything, if there is one.

    A top folder without folders in it is the only class of the archive, and stays.
    """
    top = inside
    tops = list(inside.iterdir())
    if len(tops) == 1 and tops[0].is_dir() and any(path.is_dir() for path in tops[0].iterdir()):
        top = tops[0]
    if not any(path.is_file() for path in top.rglob("*")):
        raise UserError(f"data.url: {archive} holds no file; allowed: an archive of folders, one a class, with images")
    for path in sorted(top.iterdir()):
        path.rename(folder / path.name)
    shutil.rmtree(inside)


def _refused(archive: Path, name: str, what: str) -> str:
    return (
        f"data.url: {archive}: its entry {name!r} is {what}; allowed: plain files and folders, each once, inside; "
        f"nothing was unpacked; pack the images again"
    )


def _damaged(archive: Path, error: Exception) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    return (
        f"data.url: {archive} cannot be unpacked: {reason}; allowed: a whole .tar, .tgz, .tar.bz2, .tar.xz or .zip; "
        f"nothing was unpacked; make or fetch it again, and set data.sha256 to its hash"
    )


# The weights


def bring_weights(config: Params) -> None:
    """Fill `paths.weights` with <train.model>.safetensors, or with a line that says that no weights are asked for.

    Raises UserError if they cannot be had, or not be read.
    """
    model, asked = config.train.model, config.train.weights
    with files.atomic_folder(Path(config.paths.weights)) as folder:
        if asked == "none":  # not an empty folder: DVC would warn of it with every command
            files.write_text(folder / "none.txt", "No pretrained weights are asked for (train.weights: none).\n")
            return
        from pipeline.models import pretrained

        if asked == "imagenet":
            source = obtain_published(*pretrained.published(model), Path(config.paths.archives))
        else:
            source = Path(asked)
        for note in pretrained.convert(source, folder / f"{model}.safetensors"):
            print(f"download: {note}")
    print(
        f"download: weights of {model} in {config.paths.weights}, from {source.name if asked == 'imagenet' else asked}"
    )


def obtain_published(url: str, sha256_prefix: str, archives: Path, waits: Sequence[float] = WAITS) -> Path:
    """The path of published weights whose hash begins with `sha256_prefix`, as was just checked. They are kept.

    Raises UserError if they cannot be downloaded, or are not what the prefix says.
    """
    kept = archives / PurePosixPath(url).name
    if kept.exists() and not files.sha256(kept).startswith(sha256_prefix):
        print(f"download: {kept} is not what its name says: damaged, removed; downloading it again", file=sys.stderr)
        files.remove(kept)
    if not kept.exists():
        go_on = "to go on without the network: fetch that file elsewhere and name it in train.weights"
        with files.atomic_file(kept) as temporary:
            _get(url, temporary, waits, "train.weights", go_on)
            if not (found := files.sha256(temporary)).startswith(sha256_prefix):
                raise UserError(
                    f"train.weights: {url} has SHA-256 {found}, its name promises {sha256_prefix}…; "
                    f"nothing was kept; try again later; {go_on}"
                )
    return kept


# The inbox


def copy(inbox: Path, folder: Path) -> None:
    """Copy the class folders of the inbox (or its train, val, test) into an empty folder, without junk.

    Raises UserError if there are none, and for what is neither a file nor a folder, or not named in UTF-8.
    """
    layout = f"put images into {inbox}/<class>/ (or {inbox}/train/<class>/, val and test alike)"
    if not inbox.is_dir():
        raise UserError(f"paths.inbox: {inbox} is not a folder; {layout}")
    images = 0
    for path in sorted(inbox.rglob("*")):
        relative = path.relative_to(inbox)
        if files.is_junk(relative):
            continue
        if path.is_symlink():
            raise UserError(f"{path}: a symbolic link; allowed: files and folders; copy there what it points to")
        if not (path.is_file() or path.is_dir()):
            raise UserError(f"{path}: neither a file nor a folder; allowed: files and folders; take it out")
        try:
            str(relative).encode("utf-8")
        except UnicodeEncodeError:
            raise UserError(f"{str(path)!r}: not named in UTF-8; rename it") from None
        if path.is_dir():
            (folder / relative).mkdir()
        else:
            shutil.copyfile(path, folder / relative)
            images += len(relative.parts) > 1
    if not images:
        raise UserError(f"paths.inbox: {inbox} has no class folder with a file in it; {layout}")


def main() -> int:
    return stage.main("download", run)


if __name__ == "__main__":
    sys.exit(main())
