"""Compares the packed images with their hashes before a stage reads them. It finds damage, and decides no byte."""

import hashlib
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path

from pipeline.base import linux, schema
from pipeline.base.errors import damaged
from pipeline.config.params import STREAM, Params
from pipeline.dataset import packed
from pipeline.dataset.packed import Packed
from pipeline.versioning import integrity

LARGE = 4e9  # bytes; before more are read, a message is printed


def open_for(config: Params, compares: bool) -> Packed:
    """The packed images of these params, as a stage reads them; `compares`: this process compares the pixels, too.

    With run.residency: stream they are compared when they arrive. Raises UserError as `packed.load` and the checks do.
    """
    data = packed.load(Path(config.paths.packed), Path(config.paths.split))
    if compares and config.run.residency != STREAM:
        check_pixels(data)
    packed.check_settings(data, config.prepare)
    return data


def check_pixels(data: Packed) -> None:
    """Raise UserError if an image has another SHA-256 than images.sha256 says, or that file than digest.json says.

    None is read if this start of the program has compared the folder with dvc.lock.
    """
    folder, remedy = data.folder, schema.checkout(data.folder)
    if integrity.is_compared(folder):
        return
    if data.images.nbytes > LARGE:
        print(
            f"{folder}: comparing {data.images.nbytes / 1e9:.0f} GB with {folder / packed.HASHES}; "
            f"if other processes do not wait so long, raise run.timeout_seconds",
            file=sys.stderr,
        )
    expected = iter(data.hashes)
    shards, image_bytes = data.content.shards(), data.content.image_bytes
    paths = [folder / name for name in shards]
    with ThreadPoolExecutor(linux.usable_cores()) as pool:
        digests = [*pool.map(partial(_digest_of_hashes, image_bytes=image_bytes), paths)]
    for path, count, digest in zip(paths, shards.values(), digests, strict=True):
        if digest != hashlib.sha256(b"".join(row.tobytes() for row in islice(expected, count))).hexdigest():
            raise damaged(path, f"an image has another SHA-256 than {folder / packed.HASHES} says", remedy)


def _digest_of_hashes(shard: Path, image_bytes: int) -> str:
    """The SHA-256 of the SHA-256 of all images in a shard."""
    digest = hashlib.sha256()
    with shard.open("rb") as file:
        while image := file.read(image_bytes):
            digest.update(hashlib.sha256(image).digest())
    return digest.hexdigest()
