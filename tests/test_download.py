"""Photos arrive whole or not at all: the network, the archive, the inbox."""

import bz2
import gzip
import io
import json
import lzma
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from pipeline import download
from pipeline.base import files
from pipeline.base.errors import UserError
from pipeline.config import params

ROOT = Path(__file__).parents[1]
MINI = ROOT.parent / "shared" / "data" / "flower_photos_mini.tgz"
MINI_SHA256 = "b6fcdfa50563d9d6acac6e32666ee5d7f612622c3d7fed0875e75f4382e88331"
PHOTOS = {"top/daisy/a.jpg": b"a" * 3000, "top/rose/b.jpg": b"b" * 5000, "top/LICENSE.txt": b"CC-BY"}
UNPACKED = {name.removeprefix("top/"): content for name, content in PHOTOS.items()}
ROOMY = (1000, 10**9)  # max_files, max_bytes
NO_WEIGHTS = {"none.txt": b"No pretrained weights are asked for (train.weights: none).\n"}


def member(name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"", target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname, info.mode = kind, len(content), target, 0o777
    return info


def tar_bytes(entries: dict[str, bytes], *extra: tuple[tarfile.TarInfo, bytes]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, content in entries.items():
            tar.addfile(member(name, content=content), io.BytesIO(content))
        for info, content in extra:
            tar.addfile(info, io.BytesIO(content))
    return raw.getvalue()


def zip_bytes(entries: dict[str, bytes], *extra: tuple[zipfile.ZipInfo, bytes]) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, content in entries.items():
            zipped.writestr(name, content)
        for info, content in extra:
            zipped.writestr(info, content)
    return raw.getvalue()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def unpacked(content: bytes, base: Path, limits: tuple[int, int] = ROOMY) -> dict[str, bytes]:
    """What an archive of these bytes unpacks to, through the same atomic folder as in the stage."""
    archive = base / "archive"
    archive.write_bytes(content)
    with files.atomic_folder(base / "images") as folder:
        download.unpack(archive, folder, *limits)
    return contents(base / "images")


def refusal(content: bytes, base: Path, limits: tuple[int, int] = ROOMY) -> str:
    """The one line an archive is refused with; nothing of it may be left, in the folder or beside it."""
    with pytest.raises(UserError) as refused:
        unpacked(content, base, limits)
    assert [path.name for path in base.iterdir()] == ["archive"]
    assert "\n" not in str(refused.value)
    return str(refused.value)


def project(folder: Path, **data: Any) -> params.Params:
    """Write a params.yaml that this machine can run, with these settings of `data`, and read it."""
    raw = YAML(typ="safe", pure=True).load(ROOT / "params.yaml")
    raw["train"] |= {"device": "cpu", "precision": "fp32", "parallel": "single"}
    raw["data"] |= data
    (folder / "params.yaml").write_text(json.dumps(raw))
    return params.load(folder / "params.yaml")


def archive_project(folder: Path, archive: Path, **data: Any) -> params.Params:
    return project(folder, source="archive", url=f"file://{archive}", sha256=files.sha256(archive), **data)


# The network


@contextmanager
def server(answer: Callable[[BaseHTTPRequestHandler, int], None]) -> Iterator[tuple[str, list[str]]]:
    """A real server on this machine that answers its n-th request (from 1) so; its address and the paths asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            answer(self, len(asked))

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_port}/photos.tgz", asked
        finally:
            running.shutdown()
            thread.join()


def reply(request: BaseHTTPRequestHandler, content: bytes, status: int = 200, length: int | None = None) -> None:
    request.send_response(status)
    request.send_header("Content-Length", str(len(content) if length is None else length))
    request.end_headers()
    request.wfile.write(content)


def sha256(content: bytes, folder: Path) -> str:
    path = folder / "hashed"
    path.write_bytes(content)
    digest = files.sha256(path)
    path.unlink()
    return digest


BODY = os.urandom(300_000)
NO_WAITS = (0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(lambda request: reply(request, b"", 503), id="status 503"),
        pytest.param(lambda request: reply(request, b"", 429), id="status 429"),
        pytest.param(lambda request: reply(request, BODY[:1000], length=len(BODY)), id="body cut short"),
        pytest.param(lambda request: request.connection.close(), id="no answer"),
    ],
)
def test_what_may_pass_is_tried_again(
    failure: Callable[[BaseHTTPRequestHandler], None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A server that fails twice and then serves is enough; each failed try is said."""
    with server(lambda request, n: failure(request) if n <= 2 else reply(request, BODY)) as (url, asked):
        download.fetch(url, tmp_path / "got", sha256(BODY, tmp_path), NO_WAITS)
    assert (tmp_path / "got").read_bytes() == BODY
    assert len(asked) == 3
    said = capfd.readouterr().err
    assert [f"try {n} failed" in said for n in (1, 2, 3)] == [True, True, False]


def test_the_waits_grow() -> None:
    """The wait doubles from try to try, and there are five tries."""
    assert [later / earlier for earlier, later in zip(download.WAITS, download.WAITS[1:], strict=False)] == [2, 2, 2]


def test_giving_up_says_how_to_go_on(tmp_path: Path) -> None:
    """After the last try the refusal names the address and the way without network, and leaves nothing."""
    with (
        server(lambda request, n: reply(request, b"", 500)) as (url, asked),
        pytest.raises(UserError, match=r"5 tries failed, the last: 500 .* set data.url: file:///"),
    ):
        download.fetch(url, tmp_path / "got", "0" * 64, NO_WAITS)
    assert len(asked) == 5
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_is_refused_at_once(tmp_path: Path) -> None:
    """Status 404 is not tried again."""
    with (
        server(lambda request, n: reply(request, b"", 404)) as (url, asked),
        pytest.raises(UserError, match=r"data.url: .* cannot be downloaded: 404 .* set data.url: file:///"),
    ):
        download.fetch(url, tmp_path / "got", "0" * 64, NO_WAITS)
    assert len(asked) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_hash_is_refused_at_once(tmp_path: Path) -> None:
    """Another file than the one that is named is not kept; both hashes are said."""
    right, wrong = sha256(BODY, tmp_path), "0" * 64
    with (
        server(lambda request, n: reply(request, BODY)) as (url, asked),
        pytest.raises(UserError, match=f"data.sha256: {url} has SHA-256 {right}, expected {wrong}"),
    ):
        download.fetch(url, tmp_path / "got", wrong, NO_WAITS)
    assert len(asked) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_download_is_kept_checked_and_mended(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The second time needs no network; a damaged kept archive is named, removed and downloaded again."""
    digest = sha256(BODY, tmp_path)
    with server(lambda request, n: reply(request, BODY)) as (url, asked):
        kept = download.obtain(url, digest, tmp_path, NO_WAITS)
        assert download.obtain(url, digest, tmp_path, NO_WAITS) == kept == tmp_path / digest
        assert len(asked) == 1
        kept.write_bytes(b"damaged")
        assert download.obtain(url, digest, tmp_path, NO_WAITS).read_bytes() == BODY
        assert len(asked) == 2
    assert f"{kept} has SHA-256" in capfd.readouterr().err


def test_bytes_are_stored_as_they_are_in_the_archive(tmp_path: Path) -> None:
    """The server is asked not to encode what it sends."""
    encodings: list[str | None] = []

    def answer(request: BaseHTTPRequestHandler, n: int) -> None:
        encodings.append(request.headers["Accept-Encoding"])
        reply(request, BODY)

    with server(answer) as (url, _):
        download.fetch(url, tmp_path / "got", sha256(BODY, tmp_path), NO_WAITS)
    assert encodings == ["identity"]


def test_a_killed_download_leaves_nothing_and_the_next_one_succeeds(tmp_path: Path) -> None:
    """SIGKILL in mid-download leaves no file under the final name; the next run removes the rest, and gets the file."""
    digest, held = sha256(BODY, tmp_path), threading.Event()

    def answer(request: BaseHTTPRequestHandler, n: int) -> None:
        if n == 1:
            reply(request, BODY[:200_000], length=len(BODY))
            request.wfile.flush()
            held.wait()
        else:
            reply(request, BODY)

    archives = tmp_path / "archives"
    with server(answer) as (url, _):
        code = f"from pathlib import Path; from pipeline import download; download.obtain({url!r}, {digest!r}, Path())"
        archives.mkdir()
        child = subprocess.Popen(
            [sys.executable, "-c", code], cwd=archives, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        partial = archives / f".{digest}.partial"
        while not partial.exists():
            assert child.poll() is None
            time.sleep(0.01)
        child.kill()
        assert child.wait() == -signal.SIGKILL
        held.set()
        assert [path.name for path in archives.iterdir()] == [partial.name]
        other = archives / ".another.partial"
        other.write_bytes(b"of an earlier run")
        assert download.obtain(url, digest, archives, NO_WAITS).read_bytes() == BODY
    assert [path.name for path in archives.iterdir()] == [digest]


# The archive


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(tar_bytes(PHOTOS), id="tar"),
        pytest.param(gzip.compress(tar_bytes(PHOTOS)), id="tar.gz"),
        pytest.param(bz2.compress(tar_bytes(PHOTOS)), id="tar.bz2"),
        pytest.param(lzma.compress(tar_bytes(PHOTOS)), id="tar.xz"),
        pytest.param(zip_bytes(PHOTOS), id="zip"),
    ],
)
def test_every_kind_of_archive_is_known_by_its_content(content: bytes, tmp_path: Path) -> None:
    """An archive without a telling name unpacks to class folders and the licence; nothing is executable."""
    assert unpacked(content, tmp_path) == UNPACKED
    assert all(path.stat().st_mode & 0o111 == 0 for path in (tmp_path / "images").rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["top/daisy/a", "top/rose/b"], ["daisy/a", "rose/b"]),
        (["./top/daisy/a", "./top/rose/b"], ["daisy/a", "rose/b"]),
        (["daisy/a", "rose/b"], ["daisy/a", "rose/b"]),
        (["daisy/a", "daisy/b"], ["daisy/a", "daisy/b"]),
        (["top/daisy/a"], ["daisy/a"]),
        (["top/top/a", "top/rose/b"], ["top/a", "rose/b"]),
        (["top/train/daisy/a", "top/test/daisy/b"], ["train/daisy/a", "test/daisy/b"]),
        (["top/daisy/a", "LICENSE"], ["top/daisy/a", "LICENSE"]),
        (["top/daisy/a", "__MACOSX/top/._a", "top/.DS_Store", "top/daisy/Thumbs.db"], ["daisy/a"]),
    ],
)
def test_one_common_top_folder_is_taken_away(names: list[str], expected: list[str], tmp_path: Path) -> None:
    """The one folder that holds all class folders is taken away, never a class folder; junk does not count."""
    for pack in (tar_bytes, zip_bytes):
        assert sorted(unpacked(pack(dict.fromkeys(names, b"x")), tmp_path)) == sorted(expected)


def test_odd_names_survive(tmp_path: Path) -> None:
    """Spaces, commas, quotes and non-ASCII letters are kept, also in a zip that does not say that it is UTF-8."""
    names = {"Gänse blümchen/a, \"b\" 'c'.JPG": b"x", "薔薇/ü.png": b"y"}
    assert unpacked(tar_bytes(names), tmp_path) == names
    assert unpacked(zip_bytes(names), tmp_path) == names
    unsaid = zip_bytes({"d/Xx.png": b"x", "e/Xx.png": b"x"}).replace(b"Xx.png", "ü.png".encode())
    assert sorted(unpacked(unsaid, tmp_path)) == ["d/ü.png", "e/ü.png"]


def link(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = 0o120777 << 16
    return info


ATTACKS = [
    pytest.param(tar_bytes(PHOTOS, (member(name, kind, target=target), b"")), name, what, id=f"tar: {what}: {name}")
    for name, kind, target, what in [
        ("/tmp/x.jpg", tarfile.REGTYPE, "", "outside"),
        ("top/../../x.jpg", tarfile.REGTYPE, "", "outside"),
        ("..", tarfile.DIRTYPE, "", "outside"),
        ("top/soft.jpg", tarfile.SYMTYPE, "/etc/passwd", "a link"),
        ("top/hard.jpg", tarfile.LNKTYPE, "top/daisy/a.jpg", "a link"),
        ("top/disk", tarfile.BLKTYPE, "", "neither"),
        ("top/tty", tarfile.CHRTYPE, "", "neither"),
        ("top/pipe", tarfile.FIFOTYPE, "", "neither"),
        ("top/daisy/a.jpg", tarfile.REGTYPE, "", "there twice"),
        ("top/daisy/./a.jpg", tarfile.REGTYPE, "", "there twice"),
        ("top/daisy", tarfile.REGTYPE, "", "there twice"),
        ("top/daisy/a.jpg/b.jpg", tarfile.REGTYPE, "", "there twice"),
        ("top/daisy/" + "n" * 300, tarfile.REGTYPE, "", "too long a name"),
        ("top/daisy/\udcff.jpg", tarfile.REGTYPE, "", "not named in UTF-8"),
    ]
] + [
    pytest.param(zip_bytes(PHOTOS, (info, b"target")), info.filename, what, id=f"zip: {what}: {info.filename}")
    for info, what in [
        (zipfile.ZipInfo("/tmp/x.jpg"), "outside"),
        (zipfile.ZipInfo("top/../../x.jpg"), "outside"),
        (link("top/soft.jpg"), "a link"),
        (zipfile.ZipInfo("top/./daisy/a.jpg"), "there twice"),
    ]
]


@pytest.mark.parametrize(("content", "name", "what"), ATTACKS)
def test_nothing_lands_outside(content: bytes, name: str, what: str, tmp_path: Path) -> None:
    """An entry that is no plain file or folder inside, or there twice, is refused by name; nothing is unpacked."""
    said = refusal(content, tmp_path)
    assert f"its entry {name!r} is " in said
    assert what in said


def test_a_zip_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """Its bytes are shown."""
    said = refusal(zip_bytes({"daisy/Xx.png": b"x"}).replace(b"Xx", b"\xff\xfe"), tmp_path)
    assert r"its entry 'daisy/\udcff\udcfe.png' is not named in UTF-8" in said


@pytest.mark.parametrize("pack", [tar_bytes, zip_bytes])
def test_more_entries_or_bytes_than_allowed_are_refused(
    pack: Callable[[dict[str, bytes]], bytes], tmp_path: Path
) -> None:
    """The limits hold exactly, and the key to raise is named."""
    content, size = pack(PHOTOS), sum(map(len, PHOTOS.values()))
    assert unpacked(content, tmp_path, (len(PHOTOS), size)) == UNPACKED
    files.remove(tmp_path / "images")
    assert "data.max_files: " in refusal(content, tmp_path, (len(PHOTOS) - 1, size))
    assert "data.max_bytes: " in refusal(content, tmp_path, (len(PHOTOS), size - 1))


def test_bytes_are_counted_not_believed(tmp_path: Path) -> None:
    """A sparse file of a terabyte in an archive of a few bytes is refused after max_bytes."""
    real = tmp_path / "sparse"
    with real.open("wb") as sparse:
        sparse.truncate(10**12)
    subprocess.run(["tar", "--sparse", "-cf", "x.tar", "sparse"], cwd=tmp_path, check=True)
    content = (tmp_path / "x.tar").read_bytes()
    real.unlink()
    (tmp_path / "x.tar").unlink()
    assert "data.max_bytes: " in refusal(content, tmp_path, (10, 5_000_000))


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8bnot gzip", b"PK\x03\x04not zip", bytes(10240)])
def test_what_is_no_archive_is_refused(content: bytes, tmp_path: Path) -> None:
    """A file that is no archive, or holds no file, is refused with what would do."""
    assert refusal(content, tmp_path).startswith("data.url: ")


@pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress])
@settings(deadline=None)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_tar_is_refused(
    compress: Callable[[bytes], bytes], share: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Wherever a tar ends too early, it is refused as damaged (its end is two blocks of zeros; one is enough)."""
    whole = tar_bytes(PHOTOS).rstrip(b"\0")
    whole += bytes(-len(whole) % 512)
    content = compress(whole + bytes(512))
    cut = content[: int(share * (len(content) - (511 if compress is bytes else 0)))]
    assert "cannot be unpacked" in refusal(cut, tmp_path_factory.mktemp("cut"))


@settings(deadline=None)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_zip_is_refused(share: float, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Wherever a zip ends too early, it is refused as damaged."""
    content = zip_bytes(PHOTOS)
    assert "cannot be unpacked" in refusal(content[: int(share * len(content))], tmp_path_factory.mktemp("cut"))


@pytest.mark.parametrize("content", [tar_bytes(PHOTOS), gzip.compress(tar_bytes(PHOTOS)), zip_bytes(PHOTOS)])
@settings(deadline=None)
@given(share=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_a_changed_byte_never_ends_in_a_traceback(
    content: bytes, share: float, flip: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """An archive with a changed byte unpacks or is refused, and nothing half-done is left."""
    changed, base = bytearray(content), tmp_path_factory.mktemp("changed")
    changed[int(share * len(changed))] ^= flip
    try:
        unpacked(bytes(changed), base)
    except UserError:
        assert [path.name for path in base.iterdir()] == ["archive"]
    else:
        assert sorted(path.name for path in base.iterdir()) == ["archive", "images"]


def test_a_broken_header_is_not_taken_for_the_end(tmp_path: Path) -> None:
    """A tar with a broken header in the middle is refused, not unpacked up to there."""
    content = bytearray(tar_bytes(PHOTOS))
    content[content.index(b"top/rose/b.jpg")] ^= 1
    assert "cannot be unpacked: a header is broken" in refusal(bytes(content), tmp_path)


def test_real_photos_unpack_and_stay_until_the_next_whole_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mini archive gives 735 photos and their licence; a later failure leaves them as they are."""
    if not MINI.exists():
        pytest.skip(f"{MINI.name} is not beside the project (../shared/data)")
    monkeypatch.chdir(tmp_path)
    config = archive_project(tmp_path, MINI)
    assert config.data.sha256 == MINI_SHA256
    download.run(config)
    images = tmp_path / "data" / "images"
    classes = {path.name: len(list(path.iterdir())) for path in images.iterdir() if path.is_dir()}
    assert classes == {"daisy": 127, "dandelion": 180, "roses": 128, "sunflowers": 140, "tulips": 160}
    assert sorted(path.name for path in images.iterdir() if path.is_file()) == ["LICENSE.txt"]
    assert contents(tmp_path / "data" / "weights") == NO_WEIGHTS

    with pytest.raises(UserError, match=r"data\.max_files"):
        download.run(archive_project(tmp_path, MINI, max_files=100))
    assert len(list(images.rglob("*.jpg"))) == 735
    assert sorted(path.name for path in images.parent.iterdir()) == ["images", "weights"]


def test_a_killed_run_leaves_nothing_and_the_next_one_succeeds(tmp_path: Path) -> None:
    """SIGKILL while unpacking leaves no images folder; the next run of the stage gives all files, and says so."""
    photos = {f"{kind}/{number}.jpg": os.urandom(2000) for kind in ("daisy", "rose") for number in range(1500)}
    archive = tmp_path / "my photos.tgz"
    archive.write_bytes(gzip.compress(tar_bytes(photos), compresslevel=1))
    project(tmp_path, source="archive", url=f"file://{tmp_path}/my%20photos.tgz", sha256=files.sha256(archive))
    command = [sys.executable, "-m", "pipeline.download"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    images = tmp_path / "data" / "images"

    child = subprocess.Popen(command, cwd=tmp_path, env=environment)
    while not (files.partial(images) / ".unpacked" / "daisy" / "50.jpg").exists():
        assert child.poll() is None
    child.kill()
    assert child.wait() == -signal.SIGKILL
    assert sorted(path.name for path in images.parent.iterdir()) == [files.partial(images).name, "weights"]

    again = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
    assert (
        again.stdout
        == f"download: 3,000 files, 6,000,000 bytes in data/images, from file://{tmp_path}/my%20photos.tgz\n"
    )
    assert contents(images) == photos
    assert sorted(path.name for path in images.parent.iterdir()) == ["images", "weights"]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("file://photos.tgz", "has no full path"),
        ("file:///nowhere/photos.tgz", "there is no such file"),
        ("file:///", "there is no such file"),
    ],
)
def test_a_wrong_file_address_is_refused(url: str, said: str, tmp_path: Path) -> None:
    """An address without a full path, or of no file, is refused with what would do."""
    with pytest.raises(UserError, match=f"data.url: '{url}'.* {said}.*; allowed: "):
        download.obtain(url, "0" * 64, tmp_path)


def test_an_own_archive_with_a_wrong_hash_stays(tmp_path: Path) -> None:
    """A file:// archive is never removed; both hashes are said."""
    archive = tmp_path / "own#1.tar"
    archive.write_bytes(tar_bytes(PHOTOS))
    with pytest.raises(UserError, match=f"has SHA-256 {files.sha256(archive)}, expected {'0' * 64}"):
        download.obtain(f"file://{archive}", "0" * 64, tmp_path)
    assert archive.exists()
    assert download.obtain(f"file://{archive}", files.sha256(archive), tmp_path) == archive


# The inbox and the drawn flowers


def fill(folder: Path, contents: dict[str, bytes]) -> None:
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("top", ["", "train/"])
def test_the_inbox_is_copied_without_junk(top: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Class folders with any names are copied as they are, and what an operating system left there is not."""
    monkeypatch.chdir(tmp_path)
    photos = {f'{top}my daisies, "new"/o\'Brien 薔薇.JPG': b"x", f"{top}Röschen/b.png": b"y", "LICENSE.txt": b"mine"}
    junk = {".DS_Store": b"", f"{top}Röschen/Thumbs.db": b"", f"{top}__MACOSX/._b.png": b"", ".gitkeep": b""}
    config = project(tmp_path, source="inbox")
    fill(tmp_path / "data" / "inbox", photos | junk)
    (tmp_path / "data" / "inbox" / "LICENSE.txt").chmod(0o755)
    download.run(config)
    images = tmp_path / "data" / "images"
    assert contents(images) == photos
    assert not any("__MACOSX" in path.name for path in images.rglob("*"))
    assert (images / "LICENSE.txt").stat().st_mode & 0o111 == 0
    assert contents(tmp_path / "data" / "weights") == NO_WEIGHTS


@pytest.mark.parametrize("found", [None, {}, {".gitkeep": b""}, {"photo.jpg": b"x"}, {"daisy/.hidden": b"x"}])
def test_an_inbox_without_class_folders_is_refused(found: dict[str, bytes] | None, tmp_path: Path) -> None:
    """A missing or empty inbox, or one without class folders, is refused with what to put there."""
    inbox, folder = tmp_path / "inbox", tmp_path / "images"
    folder.mkdir()
    if found is not None:
        inbox.mkdir()
        fill(inbox, found)
    with pytest.raises(UserError, match=r"paths\.inbox: .*put images into .*inbox/<class>/"):
        download.copy(inbox, folder)


@pytest.mark.parametrize("target", ["a.jpg", "nowhere.jpg", "../daisy"])
def test_a_link_in_the_inbox_is_refused_by_name(target: str, tmp_path: Path) -> None:
    """A symbolic link to a file, to nothing or to a folder is refused."""
    fill(tmp_path / "inbox", {"daisy/a.jpg": b"x"})
    (tmp_path / "inbox" / "daisy" / "link.jpg").symlink_to(target)
    (tmp_path / "images").mkdir()
    with pytest.raises(UserError, match=r"daisy/link\.jpg: a symbolic link; .*copy there what it points to"):
        download.copy(tmp_path / "inbox", tmp_path / "images")


def test_what_is_no_file_or_not_utf8_in_the_inbox_is_refused(tmp_path: Path) -> None:
    """A named pipe, and a name of odd bytes, are refused by name."""
    daisy = tmp_path / "inbox" / "daisy"
    daisy.mkdir(parents=True)
    for make, said in ((os.mkfifo, "neither a file nor a folder"), (Path.touch, "not named in UTF-8")):
        odd = daisy / ("pipe" if make is os.mkfifo else "\udcff.jpg")
        make(odd)
        files.remove(tmp_path / "images")
        (tmp_path / "images").mkdir()
        with pytest.raises(UserError, match=said):
            download.copy(tmp_path / "inbox", tmp_path / "images")
        odd.unlink()


def test_drawn_flowers_are_the_third_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`synthetic` fills the images folder with as many images as the params say."""
    monkeypatch.chdir(tmp_path)
    download.run(project(tmp_path, source="synthetic", synthetic={"count": 50, "size": 32, "seed": 1}))
    assert len(list((tmp_path / "data" / "images").rglob("*.png"))) == 50


def test_no_torch_is_imported() -> None:
    """Downloading does not wait for torch."""
    code = "import sys, pipeline.download; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
