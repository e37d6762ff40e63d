"""Every kind of file that people have in a folder of photos ends as stated: kept, or left out with a reason."""

import io
import re
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from pipeline.base import threads
from pipeline.config.params import Prepare
from pipeline.data import decoders, findings, formats, images
from pipeline.data.images import ImageInfo
from pipeline.dataset import packed, split_table
from pipeline.dataset.split_table import ImageRow
from pipeline.sources.originals import Originals
from pipeline.stages import prepare, split
from tests.conftest import PROJECT
from tests.helpers.datasets import HAS_HEIF, decode, do_split, left_out, needs_heif, settings
from tests.helpers.refusals import refuses

# pytest makes warnings errors again; the module itself ignores Pillow's warnings about odd metadata
pytestmark = pytest.mark.filterwarnings("ignore")

if HAS_HEIF:
    decoders._heif()  # Pillow can save HEIC then
HEIF = pytest.param("HEIF", marks=needs_heif)
SIDE = 32  # of the packed images
ORIENTATION = 0x0112


def scene(seed: int, width: int = 96, height: int = 64) -> Image.Image:
    """A smooth image, another one for each seed."""
    coarse = np.random.default_rng(seed).integers(30, 226, (4, 6, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encode(image: Image.Image, file_format: str, **options: Any) -> bytes:
    content = io.BytesIO()
    image.save(content, file_format, **options)
    return content.getvalue()


File = tuple[bytes, Image.Image]  # a file, and what is to be seen in it


def plain(file_format: str, seed: int, mode: str = "RGB", **options: Any) -> File:
    """A scene in this format and mode."""
    image = scene(seed).convert(mode)
    return encode(image, file_format, **options), image


def sixteen_bits(file_format: str, seed: int, bits: int = 16) -> File:
    """Grey of 16 bits that uses this number of bits."""
    grey = np.asarray(scene(seed).convert("L"))
    values = (grey.astype(np.uint16) * 257) >> (16 - bits)
    return encode(Image.fromarray(values), file_format), Image.fromarray((values // 256).astype(np.uint8))


def white_zero(seed: int, order: str) -> File:
    """A TIFF of 16-bit grey in this order of bytes, with the tag that white is 0."""
    grey = np.asarray(scene(seed).convert("L"))
    values = (65535 - grey.astype(np.uint16) * 257).astype(f"{order}u2")
    return encode(Image.fromarray(values), "TIFF", tiffinfo={262: 0}), Image.fromarray(grey)


def numbers(seed: int, kind: type, factor: float) -> File:
    """A TIFF of grey values for which no value is known to be white."""
    values = np.asarray(scene(seed).convert("L")).astype(kind) * kind(factor)
    return encode(Image.fromarray(values), "TIFF"), scene(seed)


def several(file_format: str, seed: int, **options: Any) -> File:
    """Three images in one file."""
    first, *others = (scene(1000 * number + seed) for number in range(3))
    return encode(first, file_format, save_all=True, append_images=others, **options), first


def cut(file_format: str, seed: int) -> File:
    """The first half of a file."""
    content, image = plain(file_format, seed)
    return content[: len(content) // 2], image


def raw(seed: int, **tags: Any) -> File:
    """A TIFF with a preview in it, and tags of a camera's raw file."""
    return encode(scene(seed), "TIFF", tiffinfo={int(tag[1:]): value for tag, value in tags.items()}), scene(seed)


def cr2(seed: int) -> File:
    """A TIFF with the mark of Canon's raw files, which comes between the header and the first tags."""
    content = encode(scene(seed).convert("L"), "TIFF")
    return b"II*\0" + struct.pack("<I", 16) + b"CR\2\0" + bytes(4) + content[8:], scene(seed)


def head(content: bytes, seed: int) -> File:
    """The first bytes of a format that is not decoded."""
    return content + bytes(500), scene(seed)


def boxes(brands: bytes, seed: int) -> File:
    """The first bytes of a container with these brands."""
    return head(struct.pack(">I", 8 + len(brands)) + b"ftyp" + brands, seed)


@dataclass(frozen=True)
class Case:
    """A kind of file, what the split says of it, and how much the packed image may differ from the original."""

    name: str
    make: Callable[[int], File]
    reason: str = ""
    tolerance: float = 3  # mean difference in grey levels
    has_more: bool = False
    is_dark: bool = False


def of(name: str) -> str:
    return f"unsupported format: {name}"


def beside(name: str) -> str:
    return f"video or sidecar: {name}"


RARE = of("TIFF of a rare kind, or damaged")
CASES = (  # all endings of videos and sidecars: `test_a_video_or_sidecar_of_any_length_is_named`
    Case("JPEG.jpg", partial(plain, "JPEG", quality=90)),
    Case("JPEG, CMYK.jpg", partial(plain, "JPEG", mode="CMYK", quality=90), tolerance=6),
    Case("JPEG, grey.jpg", partial(plain, "JPEG", mode="L", quality=90)),
    Case("JPEG with a preview, MPO.jpg", partial(several, "MPO", quality=90)),
    Case("PNG, alpha.png", partial(plain, "PNG", mode="RGBA")),
    Case("PNG, palette.png", partial(plain, "PNG", mode="P"), tolerance=25),
    Case("PNG, 1 bit.png", partial(plain, "PNG", mode="1"), tolerance=12),
    Case("PNG, 16-bit grey.png", partial(sixteen_bits, "PNG")),
    Case("PNG, 12-bit grey in 16.png", partial(sixteen_bits, "PNG", bits=12), is_dark=True),
    Case("PNG, animated.png", partial(several, "PNG"), has_more=True),
    Case("TIFF, CMYK.tif", partial(plain, "TIFF", mode="CMYK"), tolerance=6),
    Case("TIFF, pages.tiff", partial(several, "TIFF"), has_more=True),
    Case("TIFF, 16-bit grey.tiff", partial(sixteen_bits, "TIFF")),
    Case("TIFF, 16-bit grey, white is 0.tiff", partial(white_zero, order="<")),
    Case("TIFF, 16-bit grey, white is 0, the highest byte first.tiff", partial(white_zero, order=">")),
    Case("TIFF, fractions of colours.tif", partial(raw, _339=(3, 3, 3)), RARE),
    Case("TIFF, fractions.tiff", partial(numbers, kind=np.float32, factor=1 / 255), "not decodable"),
    Case("TIFF, 32-bit grey.tiff", partial(numbers, kind=np.int32, factor=2**20), "not decodable"),
    Case("GIF.gif", partial(plain, "GIF", mode="P"), tolerance=25),
    Case("GIF, animated.gif", partial(several, "GIF"), tolerance=25, has_more=True),
    Case("BMP.bmp", partial(plain, "BMP")),
    Case("PPM.ppm", partial(plain, "PPM")),
    Case("WebP.webp", partial(plain, "WEBP", quality=90)),
    Case("WebP, animated.webp", partial(several, "WEBP", quality=90), has_more=True),
    Case("AVIF.avif", partial(plain, "AVIF", quality=90)),
    Case("AVIF, animated.avif", partial(several, "AVIF", quality=90), has_more=True),
    Case("HEIC.heic", partial(plain, "HEIF", quality=90)),
    Case("HEIC, alpha.heic", partial(plain, "HEIF", mode="RGBA", quality=90)),
    Case("HEIC, grey.heic", partial(plain, "HEIF", mode="L", quality=90)),
    Case("HEIC, 10-bit grey.heic", partial(sixteen_bits, "HEIF")),
    Case("HEIC, tiles.heic", partial(plain, "HEIF", quality=90, tile_size=64)),
    Case("HEIC, two images.heic", partial(several, "HEIF", quality=90), has_more=True),
    Case("HEIC named JPEG.jpg", partial(plain, "HEIF", quality=90)),
    Case("JPEG 2000.jp2", partial(plain, "JPEG2000")),
    Case("JPEG 2000, 16-bit grey.jp2", partial(sixteen_bits, "JPEG2000")),
    Case("JPEG 2000, codestream.j2k", partial(plain, "JPEG2000", no_jp2=True)),
    Case("SVG.svg", partial(head, b'<?xml version="1.0"?>\n<svg width="64">'), "unknown format: .svg"),
    Case("DICOM.DCM", partial(head, bytes(128) + b"DICM"), "unknown format: .dcm"),
    Case("Canon raw.CR2", cr2, of("camera raw")),
    Case("Canon raw.CR3", partial(boxes, b"crx \0\0\0\1crx isom"), of("camera raw")),
    Case("Nikon raw.NEF", partial(raw, _254=1, _330=8), of("camera raw")),
    Case("DNG.dng", partial(raw, _50706=b"\1\4\0\0"), of("camera raw")),
    Case("DNG, pixels of a sensor.dng", partial(raw, _50706=b"\1\4\0\0", _262=32803), RARE),
    Case("Live Photo.MOV", partial(boxes, b"qt  \0\0\0\0qt  "), beside("video")),
    Case("A web page.jpg", partial(head, b"<!doctype html><html>"), "unknown format: .jpg"),
    Case("Words.txt", partial(head, b"words"), "unknown format: .txt"),
    Case("Words without an ending", partial(head, b"words"), "unknown format"),
    Case("Words.=1+1", partial(head, b"words"), "unknown format"),
    Case("Half a JPEG.jpg", partial(cut, "JPEG"), "truncated"),
    Case("Empty.jpg", lambda seed: (b"", scene(seed)), "empty"),
)


OF_HEIC = tuple(case for case in CASES if "HEIC" in case.name)
PRESENT = tuple(case for case in CASES if HAS_HEIF or case not in OF_HEIC)  # the encoder comes with the decoder
LOST = sum(bool(case.reason) and not case.reason.startswith(beside("")) for case in PRESENT)


def class_folder(top: Path, seed: int) -> Path:
    """One of two class folders."""
    folder = top / ("cat", "dog")[seed % 2]
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@dataclass(frozen=True)
class World:
    """What became of all cases."""

    scenes: dict[str, Image.Image]
    split: split.Result
    squares: dict[str, NDArray[np.uint8]]

    def row(self, case: Case) -> tuple[ImageRow, ImageInfo]:
        pairs = zip(self.split.rows, self.split.infos, strict=True)
        return next(pair for pair in pairs if pair[0].path.endswith(f"/{case.name}"))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """All cases, split and packed."""
    folder, scenes = tmp_path_factory.mktemp("formats"), {}
    for seed, case in enumerate(PRESENT):
        path = class_folder(folder / "images", seed) / case.name
        content, scenes[f"{path.parent.name}/{case.name}"] = case.make(seed)
        path.write_bytes(content)
    source = Originals(folder / "images", {})
    result = split.split(source, settings(max_unreadable=LOST), workers=2)
    split_table.write(result.rows, folder / "split.csv", folder / "kept.csv")
    prepare.prepare(source, folder / "kept.csv", folder / "packed", Prepare(size=SIDE), workers=2)
    data = packed.load(folder / "packed", folder / "split.csv")
    return World(scenes, result, dict(zip(data.paths, data.images, strict=True)))


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name, marks=[needs_heif] * (case in OF_HEIC)) for case in CASES]
)
def test_each_kind_of_file_ends_as_stated(world: World, case: Case) -> None:
    """The split gives the stated reason, or keeps the image; then prepare packs what is to be seen in it."""
    row, info = world.row(case)
    assert (row.reason, info.has_more, info.is_dark) == (case.reason, case.has_more, case.is_dark)
    if not case.reason:
        original = world.scenes[row.path]
        assert (row.width, row.height) == original.size
        square = np.asarray(original.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)).astype(int)
        assert abs(world.squares[row.path] - square).mean() < case.tolerance


def test_each_kind_is_counted_and_what_is_odd_is_said(world: World) -> None:
    """Files are counted by reason; those of several images, dark ones and each unsupported format have a line.

    split.max_unreadable counts no video or sidecar, but a file of an unknown format, because it may be a photo.
    """
    reasons = [case.reason for case in PRESENT]
    assert left_out(world.split.rows) == {reason: reasons.count(reason) for reason in reasons if reason}
    assert world.split.counts["files_of_several_images"] == sum(case.has_more for case in PRESENT)
    assert world.split.counts["dark_16_bit"] == sum(case.is_dark for case in PRESENT)
    infos = [(row.path, info) for row, info in zip(world.split.rows, world.split.infos, strict=True)]
    several_images, dark, *others = findings.lines(infos)
    assert len(findings.lost_images(infos)) == LOST
    assert next(path for path, info in infos if info.has_more) in several_images
    assert next(path for path, info in infos if info.is_dark) in dark
    unsupported = {reason for reason in reasons if reason.startswith("unsupported format")}
    assert {": ".join(line.split(": ")[:2]) for line in others[: len(unsupported)]} == unsupported


@pytest.mark.parametrize("name", formats.COMPANIONS)
def test_a_video_or_sidecar_of_any_length_is_named(tmp_path: Path, name: str) -> None:
    """By the ending of its name. It is not too large. An image with such an ending is decoded."""
    with (path := tmp_path / f"a{name.upper()}").open("wb") as file:
        file.truncate(10**9)
    assert images.inspect_image(path, 8, 10**6).reason == beside(formats.COMPANIONS[name])
    path.write_bytes(plain("PNG", 0)[0])
    assert images.inspect_image(path, 8, 10**6).reason == ""


# ---- of several formats ----


@pytest.mark.parametrize("file_format", [HEIF, "AVIF", "JPEG2000"])
def test_threads_decode_the_same_bytes(tmp_path: Path, file_format: str) -> None:
    """Eight threads that decode the same images at once get the bytes of one thread."""
    paths = [tmp_path / f"{seed}.img" for seed in range(4)]
    for seed, path in enumerate(paths):
        path.write_bytes(encode(scene(seed, 400, 300), file_format))

    def look(path: Path) -> str:
        return images.inspect_image(path, 8, 10**6).pixels

    alone = [look(path) for path in paths]
    assert len(set(alone)) == 4
    assert list(threads.ordered_map(look, paths * 8, 8)) == alone * 8


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "TIFF", HEIF, "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_turned_once(tmp_path: Path, file_format: str, orientation: int) -> None:
    """An orientation in EXIF is applied once, also where the container turns the image too, and to the size."""
    inverse = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # of each orientation, as Pillow's numbers
    image, exif = scene(0), Image.Exif()
    exif[ORIENTATION] = orientation
    turned = image.transpose(Image.Transpose(inverse[orientation])) if orientation > 1 else image
    (tmp_path / "a").write_bytes(encode(turned, file_format, exif=exif.tobytes()))
    assert abs(np.asarray(decode(tmp_path / "a")).astype(int) - np.asarray(image)).mean() < 5
    info = images.inspect_image(tmp_path / "a", 8, 10**6)
    assert (info.width, info.height) == image.size
    assert images.square_and_size(tmp_path / "a", 2)[1] == image.size  # also of a JPEG at a reduced scale


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "BMP", "PPM", "GIF", "WEBP", "TIFF", HEIF, "AVIF", "JPEG2000"])
def test_damaged_files_end_with_a_reason(tmp_path: Path, file_format: str) -> None:
    """Cut anywhere it is truncated, where the format tells. For 100 damaged files there is a reason or an image."""
    content, draw = plain(file_format, 0)[0], np.random.default_rng(0)
    for length in (100, len(content) // 3, len(content) * 9 // 10):
        (tmp_path / "a").write_bytes(content[:length])
        reason = images.inspect_image(tmp_path / "a", 8, 10**6).reason
        assert reason == "truncated" or (reason and file_format not in ("JPEG", "PNG", "BMP", "PPM")), (length, reason)
    for number in range(100):
        broken = np.frombuffer(content, np.uint8).copy()
        broken[draw.integers(0, len(broken) if number % 2 else 400, 6)] = draw.integers(0, 256, 6)
        (tmp_path / "a").write_bytes(broken.tobytes())
        assert decoders.kind(images.inspect_image(tmp_path / "a", 8, 10**6).reason) in ("", *decoders.REASONS)


def test_a_heic_without_its_decoder_is_named_counted_and_has_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing requires pillow-heif. The command names the version that test.txt has; split must run again after it."""
    monkeypatch.setitem(sys.modules, "pillow_heif", None)  # import says that there is no such module
    monkeypatch.setattr(decoders, "_heif", decoders._heif.__wrapped__)  # forgets that it was loaded
    for seed in range(20):
        (class_folder(tmp_path, seed) / f"{seed}.png").write_bytes(plain("PNG", seed)[0])
    photo = tmp_path / "cat/IMG_1.HEIC"
    photo.write_bytes(boxes(b"heic\0\0\0\0mif1heic", 0)[0])
    rows, infos, *_ = split.split(Originals(tmp_path, {}), settings(max_unreadable=1), workers=2)
    assert left_out(rows) == {of("HEIC"): 1}
    command = re.search(r": pip install (pillow-heif==\S+) \(", remedy := formats.remedy("HEIC"))
    assert command is not None
    assert f"\n{command[1]} ;" in (PROJECT / "requirements/test.txt").read_text()
    assert remedy in next(findings.lines([(row.path, info) for row, info in zip(rows, infos, strict=True)]))
    for key, read in (
        ("split.max_unreadable", lambda: do_split(tmp_path, max_unreadable=0)),
        (photo, lambda: decode(photo)),
    ):
        with refuses((key, "damaged")) as error:
            read()
        assert remedy in error.value.faults[0].remedy
