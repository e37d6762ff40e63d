"""Formats of packed images: random reads, reads from a remote, what a changed image changes, whether damage is noticed.

    python -m benchmarks formats

Each writes the same images, and reads them in the same random order, 64 at a time. `read_ms`: CPU time per image.
`remote_ms`: the same from another folder, with room for a tenth of the images here; a format that fetches whole files
fetches many. `again`: a second writing has the same bytes. `changed`: the share of the bytes in files that differ, or
are new, after one image has changed. `noticed`: a changed bit of the pixels is noticed when they are read. MDS (pip
install mosaicml-streaming), ArrayRecord, which grain reads (pip install array_record), and Lance (pip install pylance)
take part if they are installed.
"""

import resource
import statistics
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import measuring, workspace
from benchmarks.harness.measuring import Report, Row
from pipeline.base import files, schema
from pipeline.data import packed
from pipeline.data.packed import Digest, Packed

Images = NDArray[np.uint8]
Read = Callable[[list[int]], list[bytes]]  # the pixels of the images with these numbers
BATCH, SHARE = 64, 0.1
FILE_BYTES = 2**22  # of the others: room for a tenth of the images has to hold several of their files


@dataclass(frozen=True)
class Preset:
    images: int
    side: int
    turns: int


PRESETS = {"cpu": Preset(1500, 224, 5), "cuda": Preset(1500, 224, 5), "tiny": Preset(20, 32, 1)}


# ---------------------------------------------------------------- the formats


def write_ours(folder: Path, images: Images) -> None:
    packed.write(folder, images, len(images), images.shape[1])


def described(folder: Path) -> Packed:
    """The packed images of a folder, without a split."""
    digest = schema.json_of(folder / packed.DIGEST, Digest, "write it again")
    no_rows = np.zeros(digest.images, np.int64)
    sizes, names = np.zeros((digest.images, 2), np.int32), ("",) * digest.images
    return Packed(folder, digest, names, (), no_rows, sizes, no_rows.astype(np.str_))


def read_ours(folder: Path) -> Read:
    images = described(folder).images
    return lambda rows: [images[row].tobytes() for row in rows]


def compared_ours(folder: Path) -> Read:
    packed.check_pixels(described(folder))
    return read_ours(folder)


def stream_ours(folder: Path, cache: Path, room: int) -> Read:
    from fsspec.implementations.local import LocalFileSystem

    from pipeline.loader import stream
    from pipeline.versioning.remote import Place

    data = described(folder)
    place = Place(LocalFileSystem(), {path.name: str(path) for path in folder.iterdir()}, "", str(folder))
    with chdir(cache):
        reader = stream.open_reader(data, place, room / 1e9)

    def read(rows: list[int]) -> list[bytes]:
        target = np.empty((len(rows), *data.content.shape[1:]), np.uint8)
        reader.read(np.array(rows), target)
        return [image.tobytes() for image in target]

    return read


def write_mds(folder: Path, images: Images) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns={"image": "bytes"}, hashes=["sha256"], size_limit=FILE_BYTES) as writer:
        for image in images:
            writer.write({"image": image.tobytes()})


def read_mds(folder: Path) -> Read:
    from streaming import LocalDataset

    data = LocalDataset(local=str(folder))
    return lambda rows: [data[row]["image"] for row in rows]


def stream_mds(folder: Path, cache: Path, room: int) -> Read:
    from streaming import StreamingDataset

    data = StreamingDataset(
        remote=str(folder), local=str(cache), cache_limit=max(room, 4 * FILE_BYTES), batch_size=1, shuffle=False,
        validate_hash="sha256",
    )  # fmt: skip
    return lambda rows: [data[row]["image"] for row in rows]


def compared_mds(folder: Path) -> Read:
    return stream_mds(folder, folder / "cache", 10**12)


def write_array_record(folder: Path, images: Images) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    in_a_file = max(1, FILE_BYTES // images[0].nbytes)
    for number, start in enumerate(range(0, len(images), in_a_file)):
        writer = ArrayRecordWriter(str(folder / f"{number:05}.array_record"), "group_size:1,uncompressed")
        for image in images[start : start + in_a_file]:
            writer.write(image.tobytes())
        writer.close()


def read_array_record(folder: Path) -> Read:
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    source = ArrayRecordDataSource(sorted(map(str, folder.iterdir())))
    return lambda rows: list(source.__getitems__(rows))


def write_lance(folder: Path, images: Images) -> None:
    import lance
    import pyarrow

    table = pyarrow.table({"image": pyarrow.array([image.tobytes() for image in images], pyarrow.large_binary())})
    lance.write_dataset(table, str(folder / "data.lance"), max_bytes_per_file=FILE_BYTES)


def read_lance(folder: Path) -> Read:
    import lance

    data = lance.dataset(str(folder / "data.lance"))
    return lambda rows: [value.as_py() for value in data.take(rows)["image"]]


@dataclass(frozen=True)
class Format:
    write: Callable[[Path, Images], None]
    read: Callable[[Path], Read]
    compared: Callable[[Path], Read]  # reads with the checks that the format has
    stream: Callable[[Path, Path, int], Read] | None = None  # from a folder, with a cache of so many bytes in another
    needs: str = "numpy"  # the module
    package: str = "numpy"  # which has the module


FORMATS = {
    "ours": Format(write_ours, read_ours, compared_ours, stream_ours),
    "MDS": Format(write_mds, read_mds, compared_mds, stream_mds, "streaming", "mosaicml-streaming"),
    "ArrayRecord": Format(
        write_array_record, read_array_record, read_array_record, None, "array_record", "array_record"
    ),
    "Lance": Format(write_lance, read_lance, read_lance, None, "lance", "pylance"),
}


# ---------------------------------------------------------------- what is measured


def contents(folder: Path) -> dict[str, tuple[str, int]]:
    """Path → SHA-256 and size of each file."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): (files.sha256(path), path.stat().st_size) for path in paths}


def written(kind: Format, folder: Path, images: Images) -> dict[str, tuple[str, int]]:
    """Write the images into a new folder. Returns its contents."""
    folder.mkdir(parents=True)
    kind.write(folder, images)
    return contents(folder)


def cpu_ms(read: Read, order: list[int], images: Images, *, checks: bool = False) -> float:
    """CPU milliseconds of this process for each image, for all in this order. With `checks` they are compared."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        pixels = read(rows)
        if checks and any(one != images[row].tobytes() for one, row in zip(pixels, rows, strict=True)):
            raise ValueError("other pixels")
    after = resource.getrusage(resource.RUSAGE_SELF)
    return 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / len(order)


def notices(kind: Format, folder: Path, order: list[int]) -> bool:
    """Whether a changed bit in the middle of the largest file is noticed by the format itself."""
    largest = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    with largest.open("r+b") as file:
        file.seek(largest.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    try:
        kind.compared(folder)(order)
    except Exception:  # of any library
        return True
    return False


def measure(kind: Format, base: Path, images: Images, turns: int) -> Row:
    """The row of a format."""
    first, again = (written(kind, base / name, images) for name in ("first", "again"))
    changed = images.copy()
    changed[len(images) // 2, 0, 0, 0] ^= 1
    other = written(kind, base / "changed", changed)
    order = np.random.default_rng(0).permutation(len(images)).tolist()
    read = kind.read(base / "first")
    cpu_ms(read, order, images, checks=True)
    row: Row = {
        "version": f"{kind.package} {version(kind.package)}",
        "mb": sum(size for _, size in first.values()) / 1e6,
        "again": first == again,
        "changed": sum(size for name, (digest, size) in other.items() if first.get(name) != (digest, size))
        / sum(size for _, size in other.values()),
        "read_ms": statistics.median([cpu_ms(read, order, images) for _ in range(turns)]),
    }
    if kind.stream:
        (base / "cache").mkdir()
        streamed = kind.stream(base / "first", base / "cache", int(SHARE * images.nbytes))
        row["remote_ms"] = cpu_ms(streamed, order, images)
        cpu_ms(streamed, order, images, checks=True)
    return row | {"noticed": notices(kind, base / "again", order)}


def main() -> None:
    from benchmarks.harness.contenders import missing

    options = measuring.parser(__doc__, "formats", photos=False).parse_args()
    preset = PRESETS[measuring.preset(options)]
    report = Report("formats", options, images=preset.images, side=preset.side)
    shape = (preset.images, preset.side, preset.side, 3)
    images = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    for name, kind in FORMATS.items():
        if reason := missing(kind.needs):
            report.leave_out(name, reason)
            continue
        with workspace.temporary_folder("formats") as base:
            report.add(name, measure(kind, base, images, preset.turns))
    report.conclude()
