"""Packed images that are read from DVC's remote, a batch at a time (run.residency: stream).

The order of the images is that of every training, so it decides no byte. It is random, and an epoch uses each image
once: of the images that a cache has replaced, none would be asked for again soon. So the first images that arrive stay
in the cache until it is full (run.stream_cache_gb), and none is ever replaced: a cache of a tenth saves a tenth.

Each image is compared with its SHA-256 when it arrives. The cache is a file that has no name: it goes with the process.
"""

import hashlib
import math
import os
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.base.errors import Fault, UserError, damaged, one_line
from pipeline.config.params import STREAM
from pipeline.data import packed
from pipeline.data.packed import Packed
from pipeline.versioning import programs
from pipeline.versioning.remote import Place

KEY, CACHE_KEY = "run.residency", "run.stream_cache_gb"
BATCHES = 8  # are read at the same time


@dataclass(frozen=True)
class Reader:
    """Reads images uint8 [S, S, 3] by their rows. Several threads may do so at the same time."""

    place: str  # the address, as the user may see it
    files: Any  # fsspec's file system
    shards: tuple[str, ...]  # the path of each in `files`
    at: NDArray[np.int64]  # [shards + 1]: the first row of each shard, and the number of all images
    hashes: NDArray[np.uint8]  # [N, 32]: the SHA-256 of each image
    cache: NDArray[np.uint8]  # [C, S, S, 3]
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(BATCHES, "stream"))
    places: dict[int, int] = field(default_factory=dict)  # row → its place in the cache, once it is there
    lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, rows: NDArray[np.int64], target: NDArray[np.uint8]) -> None:
        """Fill `target` [n, S, S, 3] with the images of these rows [n].

        Raises UserError if the remote does not answer, or an image has another SHA-256.
        """
        wanted = rows.tolist()
        arrived = self._fetch(sorted({row for row in wanted if row not in self.places}))
        for position, row in enumerate(wanted):
            target[position] = arrived[row] if row in arrived else self.cache[self.places[row]]

    def _fetch(self, rows: list[int]) -> dict[int, NDArray[np.uint8]]:
        """Row → image, for rows that are in the remote alone. Those for which there is room stay in the cache."""
        if not rows:
            return {}
        numbers = np.searchsorted(self.at, rows, "right") - 1
        length = math.prod(self.cache.shape[1:])
        starts = [int(start) * length for start in rows - self.at[numbers]]
        names = [self.shards[number] for number in numbers]
        with answers(self.place):
            contents = self.files.cat_ranges(names, starts, [start + length for start in starts], on_error="raise")
        arrived = {}
        for row, name, content in zip(rows, names, contents, strict=True):
            if hashlib.sha256(content).digest() != self.hashes[row].tobytes():
                remedy = "remove it there, and send a whole one (dvc push data/packed)"
                raise damaged(name, f"image {row} has another SHA-256 than {packed.HASHES} says", remedy)
            arrived[row] = np.frombuffer(content, np.uint8).reshape(self.cache.shape[1:])
        with self.lock:
            for row, image in arrived.items():
                if row not in self.places and len(self.places) < len(self.cache):
                    self.cache[len(self.places)] = image
                    self.places[row] = len(self.places)  # last: a reader takes what is there
        return arrived


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
    return Reader(
        place=place.shown,
        files=place.files,
        shards=shards,
        at=np.array([*accumulate(chain([0], counts.values()))]),
        hashes=checked,
        cache=_cache(data, cache_gb),
    )


def _cache(data: Packed, gigabytes: float) -> NDArray[np.uint8]:
    """Room for images on the disk, at most so many gigabytes. Raises UserError if there is less."""
    images = min(int(gigabytes * 1e9) // data.content.image_bytes, data.content.images)
    if not images:
        return np.empty((0, *data.content.shape[1:]), np.uint8)
    programs.TEMPORARY.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=programs.TEMPORARY) as file:
        try:  # now: later a full disk would end the process (SIGBUS)
            os.posix_fallocate(file.fileno(), 0, images * data.content.image_bytes)
        except OSError as error:
            value, reason = f"{gigabytes:g}", f"{programs.TEMPORARY}: {one_line(error)}"
            raise UserError(Fault(CACHE_KEY, value, "machine", reason, remedy="lower it, or make room")) from None
        return np.memmap(file, np.uint8, "r+", shape=(images, *data.content.shape[1:]))


@contextmanager
def answers(place: str) -> Iterator[None]:
    """A block that reads from the remote. Raises UserError for every error there."""
    try:
        yield
    except Exception as error:  # of any of fsspec's packages
        remedy = "look whether it can be reached and has all images (dvc push data/packed), then run again"
        raise UserError(Fault(KEY, STREAM, "failed", f"{place}: {one_line(error)}", remedy=remedy)) from None
