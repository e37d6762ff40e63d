"""Where the packed images reside decides no byte, and what does not fit is refused by name."""

import mmap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from pipeline.base import linux
from pipeline.base.threads import prefetch
from pipeline.config import params
from pipeline.data import packed
from pipeline.loader import storage
from tests.helpers.refusals import refuses

CPU = torch.device("cpu")


@pytest.fixture
def images(tmp_path: Path) -> np.memmap:
    """Twelve packed images, mapped from disk."""
    noise = np.random.default_rng(0).integers(0, 256, (12, 20, 20, 3), dtype=np.uint8)
    packed.write(tmp_path, noise, 12, 20)
    array: np.memmap = np.load(tmp_path / packed.IMAGES, mmap_mode="r")
    return array


@pytest.mark.parametrize("where", get_args(storage.Residency))
def test_the_same_images_are_seen_wherever_they_reside(images: np.memmap, where: storage.Residency) -> None:
    """The images of any rows, in any order, are those of the file; it is said where they are. params.yaml has each."""
    assert where in get_args(params.Run.model_fields["residency"].annotation)
    image_store, note = storage.open_images(images, where, CPU, 1)
    rows = np.array([3, 11, 0, 3])
    result, numbers = image_store.send(image_store.collect(rows))
    assert np.array_equal(result[numbers].numpy(), images[rows])
    assert note.endswith(f"(0 MB, run.residency: {where})")
    assert note.split()[0] == ("disk" if where == "auto" else where)


@pytest.mark.parametrize("where", ["device", "host"])
def test_what_does_not_fit_is_refused_by_name_or_stays_on_disk(tmp_path: Path, where: storage.Residency) -> None:
    """Eight terabytes of images (a file of holes) fit into no memory; `disk` and `auto` map them."""
    shape = (40_000_000, 256, 256, 3)
    with (tmp_path / packed.IMAGES).open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        try:
            file.truncate(file.tell() + int(np.prod(shape)))
        except OSError as error:
            pytest.skip(f"needs a file system with files of 8 TB: {error}")
    images = np.load(tmp_path / packed.IMAGES, mmap_mode="r")
    with refuses(("run.residency", "machine")):
        storage.open_images(images, where, CPU, 2)
    for fitting in ("auto", "disk"):
        image_store, note = storage.open_images(images, fitting, CPU, 2)
        assert note.startswith("disk")
        assert not image_store.images[39_999_999].any()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_prefetch_makes_the_next_item_while_one_is_used(device: str) -> None:
    """In order, no more than one in advance; for a GPU in another thread. An error comes where its item would."""
    numbers: list[int] = []
    second = threading.Event()
    threads: set[int] = set()

    def items() -> Iterator[int]:
        for number in range(4):
            threads.add(threading.get_ident())
            numbers.append(number)
            if number == 1:
                second.set()
            if number == 3:
                raise ValueError("the fourth")
            yield number

    coming = prefetch(items(), device == "cuda")
    assert next(coming) == 0
    assert second.wait(60)  # made while the first is in use
    assert numbers == [0, 1]
    assert next(coming) == 1
    assert next(coming) == 2
    with pytest.raises(ValueError, match="the fourth"):
        next(coming)
    assert len(threads) == 1
    assert (threading.get_ident() in threads) == (device == "cpu")


GROUPS = {  # of a process: a line of /proc/self/cgroup, and the files of the groups
    "version 1": ("5:memory:/a/b", {
        "memory/a/b/memory.limit_in_bytes": "9223372036854771712", "memory/a/b/memory.stat": "total_rss 5",
        "memory/a/memory.limit_in_bytes": "4000", "memory/a/memory.stat": "cache 70\ntotal_rss 1000\ntotal_shmem 500",
    }),
    "version 2": ("0::/a", {
        "a/memory.max": "max", "a/memory.high": "4000", "a/memory.stat": "file 70\nanon 1000\nshmem 500",
    }),
    "the path is that of the host": ("0::/docker/1", {
        "memory.max": "4000", "memory.high": "max", "memory.stat": "anon 1000\nshmem 500",
    }),
}  # fmt: skip


@pytest.mark.parametrize("case", [*GROUPS, "no limit", "no groups"])
def test_the_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """That of a control group or of one above it, less what cannot be given up; cached files can be."""
    line, contents = GROUPS.get(case, ("0::/a", {"a/memory.max": "max", "a/memory.high": "max", "a/memory.stat": ""}))
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    own = tmp_path / "own"
    if case != "no groups":
        own.write_text(f"9:cpu:/a\n{line}\n")
    places = {"memory": tmp_path / "memory", "": tmp_path}
    groups = {name: (places[name], *rest) for name, (_, *rest) in linux.CONTROL_GROUPS.items()}
    monkeypatch.setattr(linux, "CONTROL_GROUPS", groups)
    monkeypatch.setattr(linux, "OWN_GROUPS", own)
    assert linux.memory_limits() == ([(4000, 1500)] if case in GROUPS else [])
    assert (linux.available_memory() == 2500) is (case in GROUPS)


@pytest.mark.parametrize("free", [1, 10**12])
def test_the_system_is_told_what_to_read(images: np.memmap, monkeypatch: Any, free: int) -> None:
    """Of a file that memory holds everything at once; of a larger one each batch's images, when it is planned."""
    parts, options = list[tuple[int, ...]](), list[int]()

    class Mapped(mmap.mmap):
        def madvise(self, option: int, *part: int) -> None:
            options.append(option)
            parts.append(part)
            super().madvise(option, *part)

    monkeypatch.setattr(linux, "available_memory", lambda: free)
    monkeypatch.setattr(mmap, "mmap", Mapped)
    image_store, _ = storage.open_images(images, "disk", CPU, 1)
    rows = np.array([11, 0])
    result, numbers = image_store.send(image_store.collect(rows))
    assert np.array_equal(result[numbers].numpy(), images[rows])
    if free > images.nbytes:
        assert (options, parts) == ([mmap.MADV_WILLNEED], [()])
    else:  # and nothing beside them
        assert options == [mmap.MADV_RANDOM, *[mmap.MADV_WILLNEED] * len(rows)]
        assert parts.pop(0) == ()
        starts = [images.offset + row * images[0].nbytes for row in rows]
        for start, (page, length) in zip(starts, parts, strict=True):
            assert page <= start
            assert page + length == start + images[0].nbytes
