"""Unpacks a tar or zip archive. Nothing in the archive can be written outside the target folder."""

import errno
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Generator
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import IO, Any

from pipeline.base import files
from pipeline.base.errors import Fault, UserError

CHUNK = 1 << 20

MAX_DEPTH = 100  # folders in the path of an entry; Python and DVC fail at about a thousand

ZIP = (b"PK\x03\x04", b"PK\x05\x06")
ZIP_ENCRYPTED = 1  # bit of an entry's flags
# What the libraries raise for a damaged archive. They also raise OSError: without a number (gzip, bz2), or EINVAL for a
# wrong position in the file (zip).
LIBRARY_ERRORS = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
DAMAGE = (*LIBRARY_ERRORS, EOFError, NotImplementedError, OverflowError, ValueError)
WRITE_ERRORS = {errno.EEXIST: "there twice", errno.ENOTDIR: "there twice", errno.ENAMETOOLONG: "too long a name"}

# An archive with more is refused as a wrong or hostile one. ImageNet has 1.3 million files and 150 GB.
MAX_ENTRIES, MAX_BYTES = 2_000_000, 500_000_000_000

Entry = tuple[str, int, IO[bytes] | None]  # a name, the size, and the content; None for a folder


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar (plain, gzip, bzip2, xz) or zip into an empty folder, without junk.

    If one top folder holds all class folders, it is left out. Raises UserError for a damaged archive, for more than
    MAX_ENTRIES or MAX_BYTES, and for an entry outside the folder, one that is not a plain file or folder, and one that
    is there twice.
    """
    staging = folder / ".unpacked"  # no entry has this name: hidden names are junk
    staging.mkdir()
    unpacked_bytes = 0
    try:
        with closing(_entries(archive)) as entries:
            for number, (name, size, content) in enumerate(entries, start=1):
                unpacked_bytes += size  # the libraries give no more bytes than the header says
                if number > MAX_ENTRIES:
                    raise _too_large(archive, f"has more than {MAX_ENTRIES:,} entries")
                if unpacked_bytes > MAX_BYTES:
                    raise _too_large(archive, f"unpacks to more than {MAX_BYTES:,} bytes")
                path = _relative_path(archive, name)
                if files.is_junk(path):
                    continue
                try:
                    _write(staging / path, content)
                except OSError as error:
                    if error.errno not in WRITE_ERRORS:
                        raise
                    raise _bad_entry(archive, name, WRITE_ERRORS[error.errno]) from None
    except DAMAGE as error:
        raise _damaged(archive, error) from None
    except OSError as error:
        if error.errno not in (None, errno.EINVAL):
            raise
        raise _damaged(archive, error) from None
    _strip_top_folder(archive, staging, folder)


def _too_large(archive: Path, reason: str) -> UserError:
    remedy = "if it is the right one, unpack it, and name its folder: data.source: folder, paths.inbox"
    return UserError(Fault(str(archive), reason, "damaged", remedy=remedy))


def _entries(archive: Path) -> Generator[Entry, None, None]:
    """The entries of an archive in order. A content can be read until the next entry is requested."""
    with archive.open("rb") as content:
        is_zip = content.read(4) in ZIP
    return _zip_entries(archive) if is_zip else _tar_entries(archive)


def _tar_entries(archive: Path) -> Generator[Entry, None, None]:
    """The entries of a tar. Raises UserError for a link or a device."""
    with tarfile.open(archive) as tar:
        for member in tar:
            if not (member.isdir() or member.isreg()):
                kind = "a link" if member.issym() or member.islnk() else "neither a file nor a folder"
                raise _bad_entry(archive, member.name, kind)
            yield member.name, member.size, tar.extractfile(member)
        # tarfile stops at a broken header as at the end. The true end is a block of zeros.
        stream: Any = tar.fileobj
        stream.seek(tar.offset)
        if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError("a header is broken, or the end is missing")
        while stream.read(CHUNK):  # the decompressor compares its checksum at the end of the file
            pass


def _zip_entries(archive: Path) -> Generator[Entry, None, None]:
    """The entries of a zip. Raises UserError for a link, a device, an encrypted entry or a name that is not UTF-8."""
    try:
        zip_file = zipfile.ZipFile(archive, metadata_encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _bad_entry(archive, os.fsdecode(error.object), "not named in UTF-8") from None
    with zip_file:
        # Some programs of Windows write its separator. A name without any / cannot be in a folder otherwise.
        is_of_windows = not any("/" in info.filename for info in zip_file.infolist())
        for info in zip_file.infolist():
            name = info.filename.replace("\\", "/") if is_of_windows else info.filename
            kind = stat.S_IFMT(info.external_attr >> 16)  # Unix's file type; 0 from other systems
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                what = "a link" if kind == stat.S_IFLNK else "neither a file nor a folder"
                raise _bad_entry(archive, info.filename, what)
            if info.flag_bits & ZIP_ENCRYPTED:
                raise _bad_entry(archive, info.filename, "encrypted")
            if name.endswith("/"):
                yield name, 0, None
            else:
                with zip_file.open(info) as content:
                    yield name, info.file_size, content


def _relative_path(archive: Path, name: str) -> Path:
    """An entry's name as a relative path below the folder. Raises UserError if it leaves the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise _bad_entry(archive, name, "named so that it would land outside the folder")
    if len(path.parts) - 1 > MAX_DEPTH:
        raise _bad_entry(archive, f"{name[:100]}…", f"in more than {MAX_DEPTH} folders")
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:  # tarfile gives bytes that are not UTF-8 as surrogates
        raise _bad_entry(archive, name, "not named in UTF-8") from None
    return Path(path)


def _write(path: Path, content: IO[bytes] | None) -> None:
    """Write one entry. Raises OSError if it is there."""
    if content is None:
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as target:
        shutil.copyfileobj(content, target, CHUNK)


def _strip_top_folder(archive: Path, staging: Path, folder: Path) -> None:
    """Move the unpacked files to `folder`, without the one top folder that holds everything, if there is one.

    A top folder without folders in it is the only class of the archive, and stays.
    """
    top = staging
    tops = list(staging.iterdir())
    if len(tops) == 1 and tops[0].is_dir() and any(path.is_dir() for path in tops[0].iterdir()):
        top = tops[0]
    if not any(path.is_file() for path in top.rglob("*")):
        allowed = "an archive with one folder per class, with images"
        raise UserError(Fault("data.url", str(archive), "missing", "it holds no file", allowed))
    for path in sorted(top.iterdir()):
        path.rename(folder / path.name)
    shutil.rmtree(staging)


def _bad_entry(archive: Path, name: str, what: str) -> UserError:
    reason, allowed = f"its entry {name!r} is {what}", "plain files and folders, each once, inside"
    return UserError(Fault("data.url", str(archive), "value", reason, allowed, "pack the images again"))


def _damaged(archive: Path, error: Exception) -> UserError:
    reason = f"cannot be unpacked: {' '.join(str(error).split()) or type(error).__name__}"
    allowed = "a whole .tar, .tgz, .tar.bz2, .tar.xz or .zip"
    remedy = "make or fetch it again, and set data.sha256 to its hash"
    return UserError(Fault("data.url", str(archive), "damaged", reason, allowed, remedy))
