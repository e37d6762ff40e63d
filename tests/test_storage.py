"""Where the packed images reside decides no byte, and what does not fit is refused by name."""

import mmap
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pipeline.base import files, linux
from pipeline.base.threads import prefetch
from pipeline.config.params import Residency, Run
from pipeline.dataset import packed, split_table
from pipeline.dataset.packed import Packed
from pipeline.loader import storage
from tests.helpers.refusals import refuses

CPU = torch.device("cpu")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Packed:
    """Forty packed images in three shards."""
    monkeypatch.setattr(packed, "SHARD_BYTES", 1)
    noise = np.random.default_rng(0).integers(0, 256, (40, 64, 64, 3), np.uint8)
    packed.write(tmp_path, noise, 40, 64)
    rows = [(f"a/{number:02}.png", "a", "train", "", 60, 40, "", "", "") for number in range(len(noise))]
    files.write_csv(tmp_path / "split.csv", split_table.HEADER, rows)
    return packed.load(tmp_path, tmp_path / "split.csv")


def test_an_image_changes_its_shard_alone(data: Packed, tmp_path: Path) -> None:
    """The three shards are one array, which ends with the last image."""
    images, other = data.images.copy(), tmp_path / "other"
    images[20, 3, 3, 0] += 1
    other.mkdir()
    packed.write(other, images, 40, 64)
    assert np.array_equal(packed.load(other, tmp_path / "split.csv").images, images)
    shards = [[path.read_bytes() for path in sorted(folder.glob("*.bin"))] for folder in (tmp_path, other)]
    assert [len(shard) // images[0].nbytes for shard in shards[0]] == [16, 16, 8]
    assert [one == changed for one, changed in zip(*shards, strict=True)] == [True, False, True]


@pytest.mark.parametrize("where", ["device", "host"])
def test_what_does_not_fit_is_refused_by_name_or_stays_on_disk(
    data: Packed, where: Residency, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images that need more than half of the free memory of both processes; `disk` and `auto` map them."""
    monkeypatch.setattr(linux, "available_memory", lambda: 3 * data.images.nbytes)
    _, note = storage.open_images(data, Run(residency=where), CPU)
    assert note.startswith(where)
    with refuses(("run.residency", "machine")):
        storage.open_images(data, Run(residency=where, processes=2), CPU)
    for fitting in "auto", "disk":
        _, note = storage.open_images(data, Run(residency=fitting, processes=2), CPU)
        assert note.startswith("disk")


@pytest.mark.parametrize("ahead", [0, 2])
def test_prefetch_makes_the_next_items_while_one_is_used(ahead: int) -> None:
    """In order, no more than so many in advance, in another thread; 0: one, in this thread."""
    numbers: list[int] = []
    made = [threading.Event() for _ in range(3)]
    threads: set[int] = set()

    def items() -> Iterator[int]:
        for number in range(4):
            threads.add(threading.get_ident())
            numbers.append(number)
            if number == 3:
                raise ValueError("the fourth")
            made[number].set()
            yield number

    coming = prefetch(items(), ahead)
    assert next(coming) == 0
    assert made[ahead or 1].wait(60)  # while the first is in use
    assert numbers == [0, 1, 2][: (ahead or 1) + 1]
    assert next(coming) == 1
    assert next(coming) == 2
    with pytest.raises(ValueError, match="the fourth"):
        next(coming)
    assert len(threads) == 1
    assert (threading.get_ident() in threads) == (ahead == 0)


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
def test_the_system_is_told_what_to_read(data: Packed, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """Of files that memory holds everything at once; of larger ones each batch's images, when it is planned."""
    advice, taken, advise = list[tuple[int, int, int]](), list[bool](), linux.advise

    def noted(array: NDArray[np.uint8], option: int) -> bool:
        advice.append((array.ctypes.data, array.nbytes, option))
        taken.append(advise(array, option))
        return taken[-1]

    monkeypatch.setattr(linux, "available_memory", lambda: free)
    monkeypatch.setattr(linux, "advise", noted)
    image_store, _ = storage.open_images(data, Run(residency="disk"), CPU)
    rows = np.array([39, 0])
    result, numbers = image_store.send(image_store.collect(rows))
    assert np.array_equal(result[numbers].numpy(), data.images[rows])
    assert all(taken)
    first, length = data.images.ctypes.data, data.images[0].nbytes
    everything = (first, data.images.nbytes)
    if free > data.images.nbytes:
        assert advice == [(*everything, mmap.MADV_WILLNEED)]
    else:  # and nothing beside them
        of_rows = [(first + row * length, length, mmap.MADV_WILLNEED) for row in rows]
        assert advice == [(*everything, mmap.MADV_RANDOM), *of_rows]
