"""An archive is unpacked whole and inside its folder, or refused."""

import bz2
import gzip
import lzma
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.base import files
from pipeline.base.errors import Kind, UserError
from pipeline.sources import archive as archives
from pipeline.sources.archive import MAX_DEPTH, unpack
from tests.helpers.refusals import refuses
from tests.helpers.sources import PHOTOS, contents, member, tar_bytes, zip_bytes

FILES = {name.removeprefix("top/"): content for name, content in PHOTOS.items()}
ROOMY = (1000, 10**9)  # entries, bytes


def unpack_bytes(content: bytes, base: Path, limits: tuple[int, int] = ROOMY) -> dict[str, bytes]:
    """The files that an archive of these bytes unpacks to, through an atomic folder as in the stage."""
    archive = base / "archive"
    archive.write_bytes(content)
    with files.atomic_folder(base / "images") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(archives, "MAX_ENTRIES", limits[0])
        patch.setattr(archives, "MAX_BYTES", limits[1])
        unpack(archive, folder)
    return contents(base / "images")


def is_refused(content: bytes, base: Path, kind: Kind, key: str = "data.url", limits: tuple[int, int] = ROOMY) -> str:
    """Check that an archive is refused, and that no file is left. Returns the reason."""
    with refuses((key, kind)) as error:
        unpack_bytes(content, base, limits)
    assert [path.name for path in base.iterdir()] == ["archive"]
    return error.value.faults[0].reason


TAR = tar_bytes(PHOTOS)
KINDS = {"tar": TAR, "tar.gz": gzip.compress(TAR), "tar.bz2": bz2.compress(TAR), "tar.xz": lzma.compress(TAR),
         "zip": zip_bytes(PHOTOS)}  # fmt: skip


@pytest.mark.parametrize("content", KINDS.values(), ids=KINDS)
def test_every_kind_of_archive_is_known_by_its_content(content: bytes, tmp_path: Path) -> None:
    """The name of an archive does not matter; it unpacks to class folders and the licence; no file is executable."""
    assert unpack_bytes(content, tmp_path) == FILES
    assert all(path.stat().st_mode & 0o111 == 0 for path in (tmp_path / "images").rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("names", "paths"),
    [
        ("top/daisy/a top/rose/b", "daisy/a rose/b"), ("./top/daisy/a ./top/rose/b", "daisy/a rose/b"),
        ("daisy/a rose/b", "daisy/a rose/b"), ("daisy/a daisy/b", "daisy/a daisy/b"), ("top/daisy/a", "daisy/a"),
        ("top/top/a top/rose/b", "rose/b top/a"), ("top/daisy/a LICENSE", "LICENSE top/daisy/a"),
        ("top/train/daisy/a top/test/daisy/b", "test/daisy/b train/daisy/a"),
        ("top/daisy/a __MACOSX/top/._a top/.DS_Store top/daisy/Thumbs.db", "daisy/a"),
    ],
)  # fmt: skip
def test_one_common_top_folder_is_left_out(names: str, paths: str, tmp_path: Path) -> None:
    """The one folder that holds all class folders is left out, but never a class folder; junk does not count."""
    for pack in (tar_bytes, zip_bytes):
        assert sorted(unpack_bytes(pack(dict.fromkeys(names.split(), b"x")), tmp_path)) == paths.split()


def test_odd_names_survive(tmp_path: Path) -> None:
    """Spaces, commas, quotes and non-ASCII letters are kept, also in a zip without the flag for UTF-8."""
    names = {"Gänse blümchen/a, \"b\" 'c'.JPG": b"x", "薔薇/ü.png": b"y"}
    assert unpack_bytes(tar_bytes(names), tmp_path) == names
    assert unpack_bytes(zip_bytes(names), tmp_path) == names
    unsaid = zip_bytes({"d/Xx.png": b"x", "e/Xx.png": b"x"}).replace(b"Xx.png", "ü.png".encode())
    assert sorted(unpack_bytes(unsaid, tmp_path)) == ["d/ü.png", "e/ü.png"]


def link(name: str) -> zipfile.ZipInfo:
    """The header of a symbolic link in a zip."""
    info = zipfile.ZipInfo(name)
    info.external_attr = 0o120777 << 16
    return info


ATTACKS = [
    *((tar_bytes(PHOTOS, (member(name, kind, target=target), b"")), name) for name, kind, target in (
        ("/tmp/x.jpg", tarfile.REGTYPE, ""), ("top/../../x.jpg", tarfile.REGTYPE, ""), ("..", tarfile.DIRTYPE, ""),
        ("top/soft.jpg", tarfile.SYMTYPE, "/etc/passwd"), ("top/hard.jpg", tarfile.LNKTYPE, "top/daisy/a.jpg"),
        ("top/disk", tarfile.BLKTYPE, ""), ("top/tty", tarfile.CHRTYPE, ""), ("top/pipe", tarfile.FIFOTYPE, ""),
        # there twice
        ("top/daisy/a.jpg", tarfile.REGTYPE, ""), ("top/daisy/./a.jpg", tarfile.REGTYPE, ""),
        ("top/daisy", tarfile.REGTYPE, ""), ("top/daisy/a.jpg/b.jpg", tarfile.REGTYPE, ""),
        # too long a name, and one that is not UTF-8
        ("top/daisy/" + "n" * 300, tarfile.REGTYPE, ""), ("top/daisy/\udcff.jpg", tarfile.REGTYPE, ""),
    )),
    *((zip_bytes(PHOTOS, (info, b"target")), info.filename) for info in (
        zipfile.ZipInfo("/tmp/x.jpg"), zipfile.ZipInfo("top/../../x.jpg"), link("top/soft.jpg"),
        zipfile.ZipInfo("top/./daisy/a.jpg"),
    )),
    (zip_bytes({"daisy/Xx.png": b"x"}).replace(b"Xx", b"\xff\xfe"), "daisy/\udcff\udcfe.png"),
    # Python makes such folders with a function that calls itself for each.
    *((pack({**PHOTOS, "a/" * depth + "a.jpg": b"x"}), "a/a/")
      for pack in (tar_bytes, zip_bytes) for depth in (MAX_DEPTH + 1, 1500)),
]  # fmt: skip


@pytest.mark.parametrize(("content", "name"), ATTACKS, ids=[ascii(name)[:40] for _, name in ATTACKS])
def test_nothing_lands_outside(content: bytes, name: str, tmp_path: Path) -> None:
    """An entry outside the folder or too deep in it, a link, a device or a second entry is refused by name."""
    reason = is_refused(content, tmp_path, "value")
    assert repr(name).rstrip("'\"") in reason
    assert len(reason) < 500


@pytest.mark.parametrize("pack", [tar_bytes, zip_bytes])
def test_more_entries_or_bytes_than_allowed_are_refused(
    pack: Callable[[dict[str, bytes]], bytes], tmp_path: Path
) -> None:
    """The limits are exact."""
    content, size = pack(PHOTOS), sum(map(len, PHOTOS.values()))
    assert unpack_bytes(content, tmp_path, (len(PHOTOS), size)) == FILES
    files.remove(tmp_path / "images")
    is_refused(content, tmp_path, "damaged", f"{tmp_path}/archive", (len(PHOTOS) - 1, size))
    is_refused(content, tmp_path, "damaged", f"{tmp_path}/archive", (len(PHOTOS), size - 1))


def test_bytes_are_counted(tmp_path: Path) -> None:
    """A small archive with a sparse file of a terabyte is refused after the allowed bytes."""
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(10**12)
    tar = subprocess.run(["tar", "--sparse", "-c", "sparse"], cwd=tmp_path, check=True, stdout=subprocess.PIPE)
    (tmp_path / "sparse").unlink()
    is_refused(tar.stdout, tmp_path, "damaged", f"{tmp_path}/archive", (10, 5_000_000))


@pytest.mark.parametrize(
    ("content", "kind"),
    [(bytes(10240), "missing")]
    + [(content, "damaged") for content in (b"", b"no archive", b"\x1f\x8bnot gzip", b"PK\x03\x04not zip")],
)
def test_what_is_no_archive_is_refused(content: bytes, kind: Kind, tmp_path: Path) -> None:
    """A file that is no archive, or holds no file."""
    is_refused(content, tmp_path, kind)


SHORT = TAR.rstrip(b"\0")
SHORT += bytes(-len(SHORT) % 512 + 512)  # two blocks of zeros are the end of a tar; one is enough


@pytest.mark.parametrize(
    "content", [SHORT[:-511], gzip.compress(SHORT), bz2.compress(SHORT), lzma.compress(SHORT), zip_bytes(PHOTOS)]
)
@settings(max_examples=30)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_archive_is_refused(content: bytes, share: float, tmp_path_factory: pytest.TempPathFactory) -> None:
    """An archive cut at any point is refused as damaged."""
    is_refused(content[: int(share * len(content))], tmp_path_factory.mktemp("cut"), "damaged")


@pytest.mark.parametrize("content", [TAR, KINDS["tar.gz"], KINDS["zip"]])
@given(share=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_changed_byte_never_ends_in_a_traceback(
    content: bytes, share: float, flip: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """An archive with a changed byte unpacks or is refused, and no partial output is left."""
    broken, base = bytearray(content), tmp_path_factory.mktemp("changed")
    broken[int(share * len(broken))] ^= flip
    try:
        unpack_bytes(bytes(broken), base)
    except UserError:
        assert [path.name for path in base.iterdir()] == ["archive"]
    else:
        assert sorted(path.name for path in base.iterdir()) == ["archive", "images"]


def test_a_broken_header_is_not_taken_for_the_end(tmp_path: Path) -> None:
    """A tar with a broken header in the middle is refused, not unpacked up to there."""
    content = bytearray(tar_bytes(PHOTOS))
    content[content.index(b"top/rose/b.jpg")] ^= 1
    is_refused(bytes(content), tmp_path, "damaged")
