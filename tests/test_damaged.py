"""Damaged files of the pipeline: each gives one line with the file, what is wrong, and the remedy."""

import json
import math
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.base.errors import UserError
from pipeline.config import params
from pipeline.data import corrections
from pipeline.dataset import packed, split_table
from pipeline.dataset.normalization import IMAGENET
from pipeline.models import exported, network, pretrained
from pipeline.models.description import Description, View
from pipeline.running import pixels
from pipeline.running.runs import Run
from pipeline.versioning import dvc_lock, integrity
from tests.conftest import PROJECT, on_cpu, read_params, write_params
from tests.helpers import starts
from tests.helpers.datasets import one_pixel
from tests.helpers.refusals import refuses

SPLIT = """path,class,split,reason,width,height,pixels,phash,group
a/1.png,a,train,,60,40,x,y,z
a/2.png,a,val,,60,40,x,y,z
a/3.png,a,,too small,6,4,x,y,
b/1.png,b,train,,60,40,x,y,z
b/2.png,b,test,,60,40,x,y,z
"""
KEPT = "path,width,height\na/1.png,60,40\na/2.png,60,40\nb/1.png,60,40\nb/2.png,60,40\n"
Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed folder, its split.csv, a model that nobody trained, and a run that has finished."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "data/packed").mkdir(parents=True)
    (folder / "data/split.csv").write_text(SPLIT)
    (folder / "data/kept.csv").write_text(KEPT)
    images = [np.full((40, 40, 3), value, np.uint8) for value in range(4)]
    packed.write(folder / "data/packed", images, 4, 40)
    exported.save(
        folder / "models", network.export_state(NET),
        Description("shufflenet_v2_x0_5", ("a", "b"), View(40, 36, 32), IMAGENET.mean, IMAGENET.std, "last", 1),
    )  # fmt: skip
    exported.save_weights(folder / "weights/shufflenet_v2_x0_5.safetensors", network.export_state(NET))
    (folder / "metrics").mkdir()
    for shared in ("pipeline", "requirements", "docker"):
        (folder / shared).symlink_to(PROJECT / shared)
    write_params(folder / "params.yaml", on_cpu(read_params()))
    (folder / "dvc.lock").write_text("schema: '2.0'\nstages: {}\n")
    (folder / "runs/1").mkdir(parents=True)
    (folder / "runs/1/provenance.json").write_text('{"model": "0", "seconds": 1}')
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(whole, tmp_path / "w", symlinks=True))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def make_empty(path: Path) -> None:
    path.write_bytes(b"")


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def its_folder_a_file(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.write_text("a file")


def text(content: str) -> Damage:
    return partial(Path.write_text, data=content)


def put(**keys: Any) -> Damage:
    """Puts keys into a JSON file; None removes a key."""

    def change(path: Path, keys: dict[str, Any]) -> None:
        content = {**json.loads(path.read_text()), **keys}
        path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))

    return partial(change, keys=keys)


def swap(old: str, new: str) -> Damage:
    return partial(lambda path, old, new: path.write_text(path.read_text().replace(old, new)), old=old, new=new)


def crlf(path: Path) -> None:
    """As a spreadsheet, or Git with core.autocrlf, writes it."""
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


def crlf_of_one_line(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"y,z\n", b"y,z\r\n", 1))


def longer(path: Path) -> None:
    """A file with another byte."""
    path.write_bytes(path.read_bytes() + b"x")


def last_bit(path: Path) -> None:
    """One number differs by a rounding."""
    content = path.read_bytes()
    path.write_bytes(content[:-4] + bytes([content[-4] ^ 1]) + content[-3:])


def a_pipe(path: Path) -> None:
    """Nobody writes into it: opening it would wait for ever."""
    path.unlink()
    os.mkfifo(path)


def endless(path: Path) -> None:
    """A link to a device: reading it would never end."""
    path.unlink()
    path.symlink_to("/dev/zero")


BY_ANYBODY: tuple[Damage, ...] = (cut, make_empty, a_folder, its_folder_a_file, Path.unlink, a_pipe, endless)
VIEW = {"packed_size": 40, "resize": 36, "crop": 32, "grey": "full", "fit": "none"}
DAMAGES: dict[str, tuple[Damage, ...]] = {
    "models/model.json": (
        text("[" * 100_000), text('{"model": "\\ud800"}'), put(mean=None), put(added=1),
        put(mean=[0.5, math.nan, 0.5]), put(std=[0.2, 0.0, 0.2]), put(std=[0.2, math.inf, 0.2]),
        put(classes=["a", "a"]), put(classes=[str(number) for number in range(10**6)]),
        *(put(model=name) for name in (
            "no_such_model", "fasterrcnn_resnet50_fpn", "timm/hf-hub:timm/resnet18.a1_in1k",
        )),
        put(view={**VIEW, "crop": 10**9}), put(view={**VIEW, "crop": 40}), put(view={**VIEW, "fit": "wide"}),
    ),
    "models/model.safetensors": (text("x"), text("\xff" * 1000), last_bit),
    "data/packed/images-00000.bin": (longer, last_bit),
    "data/packed/images.sha256": (longer, last_bit),
    "data/packed/digest.json": (
        text("[]"), put(sha256="0"), put(images=10**30), put(images=3), put(size=10**6), put(fit="wide"),
    ),
    "data/split.csv": (
        text("a\0b"), text("\n" * 10), swap("split", "part"), swap("width", "wide"), swap(",60,", ",wide,"),
        swap(",60,", ",0,"), swap(",40,", ",00,"), crlf, crlf_of_one_line, swap(",60,", ",-60,"),
        swap(",60,", ",9999999999,"), swap("test", "holdout"),
        swap("a,train,,", "a,train,split.train_share,"), swap("a,train,,60", "a,,split.leave_out,wide"),
        swap("a/1.png", "../1.png"), swap("a/1.png", "/1.png"), swap("a/1.png", '"' + "a" * 200_000 + '"'),
        swap("x,y,z", "x,y,z,more"), swap(",60,40,x,y,z", ",60"), swap("b/2.png,b,test,,60,40,x,y,z\n", ""),
    ),
    "data/kept.csv": (
        text("a\0b"), text("path,width,height\n"), swap("width", "wide"), swap("1.png,60", "1.png,wide"),
        crlf, swap("60,40", "60,0"),
        swap("a/1.png", "../1.png"), swap("a/2.png,60,40", "a/2.png,60"), swap("a/2.png,60,40", "a/2.png,60,40,1"),
        text("path,width,height,reason,class,split\na/1.png,wide,40,small,,\n"),
    ),
    "runs/1/provenance.json": (text("[]"), text('{"model": 1}')),
    "weights/shufflenet_v2_x0_5.safetensors": (text("x"),),
}  # fmt: skip
NET = network.build("shufflenet_v2_x0_5", 2, 0)


def read_data() -> None:
    """Read kept.csv as `prepare` does, and the packed images as `train` does."""
    split_table.all_rows(Path("data/kept.csv"), split_table.PACKED_COLUMNS)
    pixels.check_pixels(packed.load(Path("data/packed"), Path("data/split.csv")))


READERS: dict[str, Callable[[], object]] = {
    "models": lambda: exported.load(Path("models")),
    "data": read_data,
    "runs": lambda: Run(Path("runs/1"), "").is_recorded(),
    "weights": lambda: pretrained.load_into(NET, Path("weights/shufflenet_v2_x0_5.safetensors")),
}
CASES = [
    (path, damage)
    for path, damages in DAMAGES.items()
    for damage in (*BY_ANYBODY, *damages)
    if not (path.startswith("runs") and damage in (its_folder_a_file, Path.unlink))  # then no run has finished
]


@pytest.mark.parametrize(
    ("path", "damage"), CASES, ids=lambda value: str(getattr(value, "keywords", getattr(value, "__name__", value)))[:60]
)
def test_a_damaged_file_is_named(folder: Path, path: str, damage: Damage, monkeypatch: pytest.MonkeyPatch) -> None:
    """One fault has the file as its key. No code in the file runs, and nothing is downloaded."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("socket.socket.connect", None)
    reader = READERS[path.split("/", maxsplit=1)[0]]
    reader()
    damage(Path(path))
    with pytest.raises(UserError) as error:
        reader()
    (fault,) = error.value.faults
    assert fault.key.startswith(path.rpartition("/")[0])
    assert fault.kind in ("missing", "damaged", "differs")
    assert len(str(fault)) < 800
    assert not Path("exploded").exists()


def test_a_model_of_before_has_the_full_scale(whole: Path, tmp_path: Path) -> None:
    """A model.json without view.grey, view.fit and weights is read; 16-bit grey was scaled by its full scale then."""
    shutil.copytree(whole / "models", tmp_path / "models")
    view = {key: value for key, value in VIEW.items() if key not in ("grey", "fit")}
    put(view=view, weights=None)(tmp_path / "models/model.json")
    assert asdict(exported.load(tmp_path / "models").view) == VIEW


def test_a_name_may_have_a_line_break_of_windows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in quotes, and is no end of a line."""
    monkeypatch.chdir(folder)
    swap("a/1.png", '"a/1\r\n.png"')(table := Path("data/split.csv"))
    table.write_bytes(table.read_bytes().replace(b"1\n.png", b"1\r\n.png"))
    assert split_table.all_rows(table)[0]["path"] == "a/1\r\n.png"


def test_packed_images_are_read_once_and_again_after_a_change(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without DVC, the pixels are compared with digest.json. A file that has not changed since is not read again."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv(integrity.COMPARED, "[null]")
    place, read, digest = Path("data/packed"), list[Path](), pixels._digest_of_hashes
    data = packed.load(place, Path("data/split.csv"))
    monkeypatch.setattr(pixels, "_digest_of_hashes", lambda *shard: read.append(shard[0]) or digest(*shard))  # type: ignore[func-returns-value]
    pixels.check_pixels(data)
    pixels.check_pixels(data)
    assert read == [place / "images-00000.bin"]
    pixels.MEMORY.write_bytes(pixels.MEMORY.read_bytes()[:20])  # another start is writing it
    pixels.check_pixels(data)
    one_pixel(place / "images-00000.bin")
    for _ in range(2):
        with refuses(("data/packed/images-00000.bin", "damaged")):
            pixels.check_pixels(data)
    assert read == [place / "images-00000.bin"] * 3
    integrity.mark_compared(["data/packed"])  # with dvc.lock, by the stage's frame: see test_damage.py
    pixels.check_pixels(data)
    monkeypatch.setenv(integrity.COMPARED, '["another-machine", "data/packed"]')
    with pytest.raises(UserError):
        pixels.check_pixels(data)


@pytest.mark.parametrize("path", ["models/model.json", "data/split.csv", "data/kept.csv", "data/packed/digest.json"])
def test_any_bytes_give_a_value_or_a_refusal(folder: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any content and any changed bytes there is no error other than UserError."""
    monkeypatch.chdir(folder)
    content = Path(path).read_bytes()
    spliced = st.builds(
        lambda start, length, new: content[:start] + new + content[start + length :],
        st.integers(0, len(content)), st.integers(0, 20), st.binary(max_size=20),
    )  # fmt: skip

    @settings(max_examples=100, suppress_health_check=list(HealthCheck))
    @given(st.one_of(st.binary(max_size=200), st.text(max_size=50).map(str.encode), spliced))
    def holds(damaged: bytes) -> None:
        Path(path).write_bytes(damaged)
        with suppress(UserError):
            READERS[path.split("/", maxsplit=1)[0]]()

    holds()


@pytest.mark.parametrize(
    ("command", "path", "damage"),
    [
        ("prepare", "data/kept.csv", text("a\0b")),
        ("clean-runs", "data/packed/digest.json", make_empty),
        ("predict params.yaml", "models/model.json", text("[]")),
        ("rank evaluate", "data/packed/images-00000.bin", longer),
        ("rank evaluate", "data/packed/images-00000.bin", one_pixel),
        ("rank train", "data/packed/images-00000.bin", one_pixel),
        ("export", "data/packed/images-00000.bin", one_pixel),
    ],
)
def test_a_command_ends_in_one_line(folder: Path, command: str, path: str, damage: Damage) -> None:
    """Every command ends with exit status 1 and one line, and removes no run."""
    damage(folder / path)
    done = starts.run([sys.executable, "-m", "pipeline", *command.split()], cwd=folder)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f": {path}: " in line
    assert (folder / "runs/1").is_dir()


TO_READ: dict[str, Callable[[], object]] = {
    "params.yaml": params.load, "dvc.lock": dvc_lock.read, "dvc.yaml": dvc_lock.commands,
    "data/corrections.csv": corrections.read,
}  # fmt: skip


@pytest.mark.parametrize("name", [*TO_READ][:-1])
def test_a_pipe_is_no_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading one would wait for ever. For the corrections, see test_corrections.py."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo(name)
    with refuses((name, "damaged")):
        TO_READ[name]()


@pytest.mark.parametrize(("name", "read"), TO_READ.items())
def test_a_merge_that_is_not_finished_is_named(
    name: str, read: Callable[[], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its line: to restore the file would lose what one side has written."""
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    begin = "path,label,reason\n" if name.endswith("csv") else "# a comment\n"
    Path(name).write_text(f"{begin}<<<<<<< HEAD\na/1.png: 1\n=======\na/1.png: 2\n>>>>>>> other\n")
    with refuses((name, "damaged")) as error:
        read()
    (fault,) = error.value.faults
    assert "line 2" in fault.reason
    assert "checkout" not in fault.remedy
