"""What the stage download reads, made by tests: archives, a web server, and a project with its params."""

import io
import json
import os
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pipeline.config import params
from tests.conftest import read_params

PHOTOS = {"top/daisy/a.jpg": b"a" * 3000, "top/rose/b.jpg": b"b" * 5000, "top/LICENSE.txt": b"CC-BY"}
BODY = os.urandom(300_000)
NO_WAITS = (0.0, 0.0, 0.0, 0.0)


def member(name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"", target: str = "") -> tarfile.TarInfo:
    """The header of one entry of a tar."""
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname, info.mode = kind, len(content), target, 0o777
    return info


def tar_bytes(entries: dict[str, bytes], *extra: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """A plain tar of these files, and of these headers with their content."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, content in entries.items():
            tar.addfile(member(name, content=content), io.BytesIO(content))
        for info, content in extra:
            tar.addfile(info, io.BytesIO(content))
    return raw.getvalue()


def zip_bytes(entries: dict[str, bytes], *extra: tuple[zipfile.ZipInfo, bytes]) -> bytes:
    """A zip of these files, and of these headers with their content."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, content in entries.items():
            zipped.writestr(name, content)
        for info, content in extra:
            zipped.writestr(info, content)
    return raw.getvalue()


def contents(folder: Path) -> dict[str, bytes]:
    """Relative path → content of every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fill(folder: Path, contents: dict[str, bytes]) -> None:
    """Write these files below a folder."""
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def project(folder: Path, **data: Any) -> params.Params:
    """Write a params.yaml that this machine can run, with these settings of `data`, and read it."""
    raw = read_params()
    raw["train"] |= {"device": "cpu", "precision": "fp32", "parallel": "single"}
    raw["data"] |= data
    (folder / "params.yaml").write_text(json.dumps(raw))
    return params.load(folder / "params.yaml")


@contextmanager
def server(answer: Callable[[BaseHTTPRequestHandler, int], None]) -> Iterator[tuple[str, list[str]]]:
    """A real server on this machine; its address and the requested paths. `answer` gets each request and its number."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            answer(self, len(paths))

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_port}/photos.tgz", paths
        finally:
            running.shutdown()
            thread.join()


def reply(request: BaseHTTPRequestHandler, content: bytes, status: int = 200, length: int | None = None) -> None:
    """Answer a request with this content; `length` is what the header says, if it is not the truth."""
    request.send_response(status)
    request.send_header("Content-Length", str(len(content) if length is None else length))
    request.end_headers()
    request.wfile.write(content)
