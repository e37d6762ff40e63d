"""run.residency: stream: images are read from DVC's remote, to the same bytes. What is not whole there is refused."""

import json
import os
import shutil
import sys
import threading
from collections.abc import Callable
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.base import files
from pipeline.base.errors import Kind
from pipeline.checks.machine import PROJECT
from pipeline.config.params import Run
from pipeline.dataset import packed
from pipeline.loader import remote, storage, stream
from pipeline.versioning import dvc_lock, integrity
from tests.conftest import set_params
from tests.helpers import buckets
from tests.helpers.damage import cut, edited, flip
from tests.helpers.projects import call
from tests.helpers.refusals import refuses
from tests.helpers.trainings import launch, outputs, small_world

IMAGES, SIDE = 60, 64
A_TENTH = IMAGES * 3 * SIDE**2 / 10 / 1e9  # gigabytes
CPU, STREAMED = torch.device("cpu"), Run(residency="stream")
PACKED = Path("data/packed")
CONFIG = "[core]\n    no_scm = true\n    remote = there\n['remote \"there\"']\n    url = {}\n"
OTHER_IMAGES = json.dumps({"sha256": 64 * "0", "images": IMAGES, "size": SIDE})
SMALL_SHARDS = "SHARD_BYTES = 2**26", "SHARD_BYTES = 2**10"


def sharded_world(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Path:
    """The packed images in four shards, and the code that reads them so."""
    with monkeypatch.context() as patch:
        patch.setattr(packed, "SHARD_BYTES", 2**10)
        small_world(folder, count=IMAGES, side=SIDE, prepare__size=SIDE, **changes)
    (folder / "pipeline").unlink()
    shutil.copytree(PROJECT / "pipeline", folder / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    edited("pipeline/dataset/packed.py", *SMALL_SHARDS)(folder)
    return folder


def move_to_remote(folder: Path) -> Path:
    """Move the packed images of a folder to a remote of DVC, beside it. Only digest.json stays. Returns the remote."""
    store = folder.parent / "remote"
    with chdir(folder):
        ((output,), _) = integrity.inspect_outputs({PACKED.as_posix(): ".dir"}, {})
        contents = {md5: Path(path).read_bytes() for path, md5 in output.files.items()}
        for md5, content in (contents | {output.actual: integrity.listing_of(output)}).items():
            target = integrity.object_of(store, md5)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    entry = f"{{cmd: a, outs: [{{path: {PACKED}, md5: {output.actual}, hash: md5, nfiles: 1}}]}}"
    (folder / dvc_lock.LOCK).write_text(f"schema: '2.0'\nstages:\n  prepare: {entry}\n")
    (folder / ".dvc").mkdir()
    (folder / ".dvc/config").write_text(CONFIG.format(store))
    for path in (folder / PACKED).iterdir():
        if path.name != packed.DIGEST:
            path.unlink()
    return store


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> packed.Packed:
    """Packed images of which this folder has digest.json alone."""
    folder = sharded_world(tmp_path / "w", monkeypatch)
    move_to_remote(folder)
    monkeypatch.setattr(packed, "SHARD_BYTES", 2**10)
    monkeypatch.chdir(folder)
    return packed.load(PACKED, Path("data/split.csv"))


def whole_images(data: packed.Packed) -> np.ndarray:
    """The images of the remote."""
    place = remote.locate(PACKED.as_posix())
    shards = [Path(place.paths[name]).read_bytes() for name in data.content.shards()]
    return np.frombuffer(b"".join(shards), np.uint8).reshape(data.content.shape)


def test_whole_sharded_and_streamed_images_give_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache has room for a tenth. Three trainings: 8 seconds."""
    whole = small_world(tmp_path / "whole", count=IMAGES, side=SIDE, prepare__size=SIDE)
    sharded = sharded_world(tmp_path / "sharded", monkeypatch)
    streamed = sharded_world(tmp_path / "streamed", monkeypatch, run__residency="stream", run__stream_cache_gb=A_TENTH)
    assert len(list((sharded / PACKED).glob("*.bin"))) == 4
    move_to_remote(streamed)
    for folder in (whole, sharded, streamed):
        launch(folder)
    assert outputs(whole) == outputs(sharded) == outputs(streamed)
    assert not list((streamed / PACKED).glob("*.bin"))


@pytest.mark.parametrize("share", [0, 0.1])
def test_a_cache_of_a_tenth_saves_a_tenth(data: packed.Packed, share: float) -> None:
    """Any rows, in any order, by several threads; then the same by another process. What is there is not asked for."""
    images, place = whole_images(data), remote.locate(PACKED.as_posix())
    asked = list[tuple[str, int]]()

    class Noted:
        def cat_ranges(self, paths: list[str], starts: list[int], *rest: Any, **options: Any) -> list[bytes]:
            asked.extend(zip(paths, starts, strict=True))
            contents: list[bytes] = place.files.cat_ranges(paths, starts, *rest, **options)
            return contents

    for saved in (0, int(share * IMAGES)):
        reader = replace(stream.open_reader(data, place, share * 10 * A_TENTH), place=replace(place, files=Noted()))
        asked.clear()
        parts = np.random.default_rng(0).permutation(IMAGES).reshape(6, 10)
        targets = [np.empty((11, *images.shape[1:]), np.uint8) for _ in parts]
        rows = [np.append(part, part[0]) for part in parts]  # one of them twice
        threads = [threading.Thread(target=reader.read, args=pair) for pair in zip(rows, targets, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for part, target in zip(rows, targets, strict=True):
            assert np.array_equal(target, images[part])
        assert len(set(asked)) == len(asked) == IMAGES - saved


def test_a_damaged_cache_is_read_again(data: packed.Packed) -> None:
    """A bit has flipped on this machine's disk: the image comes from the remote, and is whole in the cache again."""
    images, target = whole_images(data), np.empty((1, *data.content.shape[1:]), np.uint8)
    for _ in range(2):
        reader = stream.open_reader(data, remote.locate(PACKED.as_posix()), 10 * A_TENTH)
        reader.read(np.array([IMAGES - 1]), target)
        assert np.array_equal(target[0], images[-1])
        (cache,) = stream.CACHE.iterdir()
        assert cache.read_bytes().endswith(images[-1].tobytes())
        flip(cache)


def test_the_cache_of_other_images_is_removed(data: packed.Packed, tmp_path: Path) -> None:
    """Of another size, too. The folder may be a link to one with a user's own files, which stay."""
    for gigabytes, left in ((1.0, 1), (A_TENTH, 1), (0.0, 0)):
        stream.open_cache(data, gigabytes)
        assert len([*stream.CACHE.iterdir()]) == left
    stream.CACHE.rmdir()
    (tmp_path / "mine/photos").mkdir(parents=True)
    (tmp_path / "mine/notes.bin").touch()
    stream.CACHE.symlink_to(tmp_path / "mine")
    stream.open_cache(data, 1.0)
    stream.open_cache(replace(data, content=replace(data.content, sha256=64 * "0")), 1.0)
    kept = {path.name for path in stream.CACHE.iterdir()}
    assert kept == {"photos", "notes.bin", f"{64 * '0'}-{IMAGES}.bin"}


def test_a_remote_that_sends_whole_files_is_not_called_damaged(data: packed.Packed) -> None:
    """As a web server may that does not know parts of files."""
    place = remote.locate(PACKED.as_posix())

    class Whole:
        def cat_ranges(self, paths: list[str], *_: Any, **__: Any) -> list[bytes]:
            return [Path(path).read_bytes() for path in paths]

    reader = replace(stream.open_reader(data, place, 0), place=replace(place, files=Whole()))
    with refuses(("run.residency", "failed")):
        reader.read(np.array([0]), np.empty((1, *data.content.shape[1:]), np.uint8))


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
def test_an_image_that_is_not_whole_is_refused(data: packed.Packed, damage: Callable[[Path], None]) -> None:
    """By the name of its file in the remote, and never used; the others are."""
    reader, last = stream.open_reader(data, remote.locate(data.folder.as_posix()), 1), IMAGES - 1
    target = np.zeros((1, *data.content.shape[1:]), np.uint8)
    shard = Path(reader.shards[-1])
    damage(shard)
    key = "run.residency" if damage is Path.unlink else str(shard)
    with refuses((key, "failed" if damage is Path.unlink else "damaged")):
        reader.read(np.array([last]), target)
    assert not target.any()
    reader.read(np.array([0]), target)
    assert target.any()


@pytest.mark.parametrize(
    ("name", "content", "key", "kind"),
    [
        (PACKED / packed.DIGEST, OTHER_IMAGES, packed.HASHES, "differs"),
        (".dvc/config", "[core]\n    no_scm = true\n", PACKED, "missing"),
        (".dvc/config", CONFIG.format("http://127.0.0.1:9"), PACKED, "failed"),  # nobody listens there
        (".dvc/config", CONFIG.format("../nothing-pushed"), PACKED, "missing"),
        (dvc_lock.LOCK, "schema: '2.0'\nstages: {}\n", PACKED, "missing"),
    ],
)
@pytest.mark.usefixtures("data")
def test_without_its_images_no_training_starts(name: str, content: str, key: object, kind: Kind) -> None:
    """Other images, no remote, one that does not answer, an empty one, a dvc.lock without them."""
    Path(name).write_text(content)
    with refuses((key, kind)):
        storage.open_images(packed.load(PACKED, Path("data/split.csv")), STREAMED, CPU)


def test_a_disk_without_room_for_the_cache_is_refused(data: packed.Packed, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: later a full disk would end the process without a word."""
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: (_ for _ in ()).throw(full))
    with refuses(("run.stream_cache_gb", "machine")):
        storage.open_images(data, STREAMED, CPU)


@pytest.mark.nightly("pushes to a server of S3's protocol and trains from there; make test streams from a folder")
def test_a_node_trains_on_images_of_a_bucket(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It pulls digest.json, the split and the weights alone. Model and figures are those of the whole run."""
    whole, node = tmp_path / "whole", tmp_path / "node"
    shutil.copytree(finished, whole, symlinks=True)
    with buckets.server() as port:
        for name, value in {**buckets.VARIABLES, "ENDPOINT_URL": f"http://127.0.0.1:{port}"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        call(finished, "git", "clone", "--quiet", str(whole), str(node))
        for folder in (whole, node):
            call(folder, "dvc", "remote", "add", "--default", "there", f"s3://{buckets.BUCKET}/data")
        call(whole, "dvc", "push", "data/packed", "prepare", "split", "weights")
        call(node, "dvc", "pull", "data/packed/digest.json", "data/split.csv", "data/weights")
        assert [path.name for path in (node / PACKED).iterdir()] == [packed.DIGEST]
        settings = {"run__residency": "stream", "run__stream_cache_gb": 0.001}
        set_params(node, **settings)
        done = launch(node)
        call(node, sys.executable, "-m", "pipeline", "evaluate")
    assert f"s3://{buckets.BUCKET}/data" in done.stderr
    assert outputs(node) == outputs(whole)
    for name in ("metrics/predictions.csv", "metrics/eval.json"):
        assert files.sha256(node / name) == files.sha256(whole / name)
