"""Packed images that are read from DVC's remote, a batch at a time (run.residency: stream).

The order of the images is that of every training, so it decides no byte. It is random, and an epoch uses each image
once: of the images that a cache has replaced, none would be asked for again soon. So the cache is for the first images
of the table, as many as run.stream_cache_gb holds, and none is ever replaced: a cache of a tenth saves a tenth.

Each image is compared with its SHA-256, when it arrives and when it is in the cache. So all processes of a machine, and
the next start, use one file for it: what is not there yet, or is damaged, has another SHA-256, and is read again.
"""

import hashlib
import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, chain

import numpy as np
from numpy.typing import NDArray

from pipeline.base import files
from pipeline.base.errors import Fault, UserError, damaged, one_line
from pipeline.config.params import STREAM
from pipeline.dataset import packed
from pipeline.dataset.packed import Packed
from pipeline.loader.remote import Place

KEY, CACHE_KEY = "run.residency", "run.stream_cache_gb"
CACHE = files.TEMPORARY / "stream"
BATCHES = 8  # are read at the same time


@dataclass(frozen=True)
class Reader:
    """Reads images uint8 [S, S, 3] by their rows. Several threads may do so at the same time."""

    place: Place
    shards: tuple[str, ...]  # the path of each there
    at: NDArray[np.int64]  # [shards + 1]: the first row of each shard, and the number of all images
    hashes: NDArray[np.uint8]  # [N, 32]: the SHA-256 of each image
    cache: NDArray[np.uint8]  # [C, S, S, 3]: the first C images, once they are there
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(BATCHES, "stream"))

    def read(self, rows: NDArray[np.int64], target: NDArray[np.uint8]) -> None:
        """Fill `target` [n, S, S, 3] with the images of these rows [n].

        Raises UserError if the remote does not answer, or an image has another SHA-256.
        """
        missing: dict[int, list[int]] = {}  # row → its positions in `target`
        for position, row in enumerate(rows.tolist()):
            if row < len(self.cache) and self._is_whole(row, self.cache[row].data):
                target[position] = self.cache[row]
            else:
                missing.setdefault(row, []).append(position)
        for (row, positions), content in zip(missing.items(), self._fetch([*missing]), strict=True):
            target[positions] = image = np.frombuffer(content, np.uint8).reshape(target.shape[1:])
            if row < len(self.cache):
                self.cache[row] = image

    def _is_whole(self, row: int, content: bytes | memoryview) -> bool:
        """Whether these are the bytes of the image."""
        return hashlib.sha256(content).digest() == bytes(self.hashes[row])

    def _fetch(self, rows: list[int]) -> list[bytes]:
        """The bytes of the images of these rows, from the remote."""
        if not rows:
            return []
        numbers = np.searchsorted(self.at, rows, "right") - 1
        length = math.prod(self.cache.shape[1:])
        starts = [int(start) * length for start in rows - self.at[numbers]]
        names, ends = [self.shards[number] for number in numbers], [start + length for start in starts]
        with answers(self.place.shown):
            contents: list[bytes] = self.place.files.cat_ranges(names, starts, ends, on_error="raise")
            if any(len(content) > length for content in contents):
                raise OSError("it sends whole files where a part is asked for")
        for row, name, content in zip(rows, names, contents, strict=True):
            if not self._is_whole(row, content):
                remedy = f"remove it there, and {self.place.listing}; then dvc push data/packed, where it is whole"
                raise damaged(name, f"image {row} has another SHA-256 than {packed.HASHES} says", remedy)
        return contents


def open_reader(data: Packed, place: Place, cache_gb: float) -> Reader:
    """The reader of these packed images at `place`. Raises UserError if others are there, or it does not answer."""
    counts = data.content.shards()
    with answers(place.shown):
        hashes = place.files.cat_file(place.paths[packed.HASHES])
        shards = tuple(place.paths[name] for name in counts)
    try:
        checked = packed.hashes_of(hashes, data.content)
    except ValueError as error:
        remedy = "dvc pull data/packed/digest.json data/split.csv, so that both are of the same commit"
        raise UserError(Fault(packed.HASHES, f"of {place.shown}", "differs", one_line(error), remedy=remedy)) from None
    at = np.array([*accumulate(chain([0], counts.values()))])
    return Reader(place, shards, at, checked, open_cache(data, cache_gb))


def open_cache(data: Packed, gigabytes: float) -> NDArray[np.uint8]:
    """Room on the disk for the first images, at most so many gigabytes. Raises UserError if there is less.

    A cache of other images, or of another size, is removed. A training that uses it keeps it to its end.
    """
    images = min(int(gigabytes * 1e9) // data.content.image_bytes, data.content.images)
    shape = (images, *data.content.shape[1:])
    path = CACHE / f"{data.digest}-{images}.bin"
    files.remove_others(path, r"[0-9a-f]{64}-[0-9]+[.]bin")
    if not images:
        return np.empty(shape, np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        try:  # now: later a full disk would end the process (SIGBUS)
            os.posix_fallocate(file.fileno(), 0, math.prod(shape))
        except OSError as error:
            value, reason = f"{gigabytes:g}", f"{path.parent}: {one_line(error)}"
            raise UserError(Fault(CACHE_KEY, value, "machine", reason, remedy="lower it, or make room")) from None
    return np.memmap(path, np.uint8, "r+", shape=shape)


@contextmanager
def answers(shown: str) -> Iterator[None]:
    """A block that reads from the remote at the address `shown`. Raises UserError for every error there."""
    try:
        yield
    except Exception as error:  # of any of fsspec's packages
        remedy = "look whether it can be reached and has all images, then run again"
        raise UserError(Fault(KEY, STREAM, "failed", f"{shown}: {one_line(error)}", remedy=remedy)) from None
