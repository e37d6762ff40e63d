"""Damaged files: each gives one line with the file, what is wrong, and the remedy; whatever is in it."""

import json
import math
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.attest import clone, segments
from pipeline.base import files
from pipeline.base.errors import UserError
from pipeline.config import params
from pipeline.data import corrections, folders, suspects
from pipeline.dataset import feature_file, packed, split_table
from pipeline.dataset.normalization import IMAGENET
from pipeline.evaluation import acceptance, figures
from pipeline.evaluation.figures import TrainFigures
from pipeline.models import exported, network, pretrained
from pipeline.models.description import Description, View
from pipeline.reporting import outcome
from pipeline.running import checkpoint, pixels, resume
from pipeline.running.runs import Run
from pipeline.sources import originals
from pipeline.studies import pooling, ranges, record
from pipeline.studies.record import Part, Record
from pipeline.versioning import dvc_lock, integrity
from tests.conftest import PROJECT, on_cpu, read_params, set_params, write_params
from tests.helpers import starts
from tests.helpers.damage import Damage, cut, flip, overwrite, put, swap
from tests.helpers.refusals import refuses

SPLIT = """path,class,split,reason,width,height,pixels,phash,group
a/1.png,a,train,,60,40,x,y,z
a/2.png,a,val,,60,40,x,y,z
a/3.png,a,,too small,6,4,x,y,
b/1.png,b,train,,60,40,x,y,z
b/2.png,b,test,,60,40,x,y,z
"""
KEPT = "path,width,height\na/1.png,60,40\na/2.png,60,40\nb/1.png,60,40\nb/2.png,60,40\n"
SMALL = "shufflenet_v2_x0_5"
NET = network.build(SMALL, 2, 0)
WEIGHTS, OWN = f"weights/{SMALL}.safetensors", ("mine.pth", "mine.safetensors")
DEMO = PROJECT / "results/demo/metrics"
PART = Part(seed=0, fold=0, images=10, right=5, model="a" * 32, predictions="b" * 32)
TEXTS = {
    "data/split.csv": SPLIT, "data/kept.csv": KEPT,
    "dvc.lock": "schema: '2.0'\nstages:\n  train:\n    cmd: x\n    outs:\n    - path: models\n      md5: abc\n",
    "runs/1/provenance.json": '{"model": "0", "seconds": 1}',
    "metrics/predictions.csv": "path,label,prediction,p_a,p_b\na/1.png,a,a,0.75,0.25\nb/1.png,b,a,0.5,0.5\n",
    "folds/predictions.csv": "path,label,prediction,p_a,p_b\na/1.png,a,a,0.75,0.25\nb/1.png,b,a,0.5,0.5\n",
    "metrics/calibration.csv": "low,high,count,confidence,accuracy\n0.0,0.1,2,0.05,0.5\n",
    "metrics/suspects.csv": "issue,path,class,split,value,limit\ndark,a/1.png,a,train,0.1,0.32\n",
    "data/labels.csv": "path,label\na.png,x\n./b/c.png,y\n",
    "data/corrections.csv": "path,label,reason\na/1.png,b,\n",
    "images/.manifest.csv": f"path,bytes,sha256\na/1.png,3,{'0' * 64}\n",
    "tried.yaml": "search: random\ntrials: 2\nparams:\n  train.lr: {from: 0.01, to: 0.1}\n",
    ".dvc/config": "[core]\n    remote = there\n['remote \"there\"']\n    url = /there\n",
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed folder, its split.csv, a model that nobody trained, and a run that has finished."""
    folder = tmp_path_factory.mktemp("whole")
    for name, content in TEXTS.items():
        files.write_text(folder / name, content)
    for name in ("train.json", "eval.json", "history.csv"):
        shutil.copy(DEMO / name, folder / "metrics")
    shutil.copy(PROJECT / "dvc.yaml", folder)
    (folder / "data/packed").mkdir()
    images = [np.full((40, 40, 3), value, np.uint8) for value in range(4)]
    packed.write(folder / "data/packed", images, 4, 40)
    exported.save(
        folder / "models", network.export_state(NET),
        Description(SMALL, ("a", "b"), View(40, 36, 32), IMAGENET.mean, IMAGENET.std, "last", 1),
    )  # fmt: skip
    exported.save_weights(folder / WEIGHTS, network.export_state(NET))
    for shared in ("pipeline", "requirements", "docker"):
        (folder / shared).symlink_to(PROJECT / shared)
    write_params(folder / "params.yaml", on_cpu(read_params()))
    acceptance.write(folder / "models", acceptance.make("a" * 64, 0.95, [0.25, 0.5], 1))
    record.write(folder / "record.json", Record({"train.lr": 0.1}, {"data/split.csv": "c"}, {}, (PART,)))
    torch.save({"a": torch.arange(12.0), "b": torch.zeros(20_000)}, folder / "mine.pth")  # cut: an error of the system
    np.save(folder / "data/features.npy", np.ones((4, 3), np.float32))
    shutil.copy(folder / WEIGHTS, folder / "mine.safetensors")
    checkpoint.save(folder / "runs/1/checkpoint.pt", {"step": 1})
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(whole, tmp_path / "w", symlinks=True))


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def its_folder_a_file(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.write_text("a file")


def text(content: str) -> Damage:
    return partial(Path.write_text, data=content)


def crlf(path: Path) -> None:
    """As a spreadsheet, or Git with core.autocrlf, writes it."""
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


def crlf_of_one_line(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"y,z\n", b"y,z\r\n", 1))


def longer(path: Path) -> None:
    """A file with another byte."""
    path.write_bytes(path.read_bytes() + b"x")


def a_pipe(path: Path) -> None:
    """Nobody writes into it: opening it would wait for ever."""
    path.unlink()
    os.mkfifo(path)


def endless(path: Path) -> None:
    """A link to a device: reading it would never end."""
    path.unlink()
    path.symlink_to("/dev/zero")


def pairs(*swaps: str) -> tuple[Damage, ...]:
    """A damage for each two texts: the second one in place of the first."""
    return tuple(map(swap, swaps[::2], swaps[1::2]))


def of_figures(name: str, share: str) -> tuple[Damage, ...]:
    """A file of figures without a key, with one more, and with a value out of range."""
    keys = json.loads((DEMO / name).read_text())
    others: list[dict[str, Any]] = [{"other": 1.0}, {share: "high"}, {share: 1.5}, *({key: None} for key in keys)]
    return text("[]"), swap(str(keys[share]), "NaN"), *(put(**change) for change in others)


LAST_BIT = partial(flip, at=-4)  # one number differs by a rounding
BY_ANYBODY: tuple[Damage, ...] = (cut, overwrite, a_folder, its_folder_a_file, Path.unlink, a_pipe, endless)
VIEW = {"packed_size": 40, "resize": 36, "crop": 32, "grey": "full", "fit": "none"}
# By path: what is refused, besides what befalls any file.
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
    "models/model.safetensors": (text("x"), text("\xff" * 1000), LAST_BIT),
    "data/packed/images-00000.bin": (longer, LAST_BIT),
    "data/packed/images.sha256": (longer, LAST_BIT),
    "data/packed/digest.json": (
        text("[]"), put(sha256="0"), put(images=10**30), put(images=3), put(size=10**6), put(fit="wide"),
    ),
    "data/split.csv": (
        text("a\0b"), text("\n" * 10), crlf, crlf_of_one_line,
        *pairs("split", "part", "width", "wide", ",60,", ",wide,", ",60,", ",0,", ",40,", ",00,", ",60,", ",-60,"),
        *pairs(",60,", ",9999999999,", "test", "holdout", "a,train,,", "a,train,split.train_share,", "pixels", "dots"),
        *pairs("a,train,,60", "a,,split.leave_out,wide", "a/1.png", "../1.png", "a/1.png", "/1.png"),
        *pairs("a/1.png", '"' + "a" * 200_000 + '"', "x,y,z", "x,y,z,more", ",60,40,x,y,z", ",60"),
        swap("b/2.png,b,test,,60,40,x,y,z\n", ""),
    ),
    "data/kept.csv": (
        text("a\0b"), text("path,width,height\n"), crlf,
        text("path,width,height,reason,class,split\na/1.png,wide,4,x,,\n"),
        *pairs("width", "wide", "1.png,60", "1.png,wide", "60,40", "60,0", "a/1.png", "../1.png"),
        *pairs("a/2.png,60,40", "a/2.png,60", "a/2.png,60,40", "a/2.png,60,40,1"),
    ),
    "runs/1/provenance.json": (text("[]"), text('{"model": 1}')),
    "runs/1/checkpoint.pt": (longer, LAST_BIT),
    WEIGHTS: (text("x"),),
    **dict.fromkeys(OWN, (text("x"),)),
    "metrics/train.json": of_figures("train.json", "val_accuracy"),
    "metrics/eval.json": of_figures("eval.json", "accuracy"),
    "metrics/history.csv": (swap("val_loss", "loss"), swap("0.", "zero."), text("epoch,state_sha256\n")),
    "metrics/predictions.csv": pairs("p_b", "p_c", "0.75", "x", ",b,a", ",c,a", ",a,a,", ",a,c,", ",0.25", ""),
    "metrics/calibration.csv": (swap("low", "least"), swap("0.05,0.5", "0.05"), swap(",2,", ",two,")),
    "metrics/suspects.csv": (text("issue\nx\n"), text("\0"), *pairs("dark", "dim", "0.1", "low")),
    "folds/predictions.csv": pairs("p_b", "p_c", "0.75", "x", ",b,a", ",a,a", "b/1", "b/2", ",0.25", ""),
    "models/acceptance.json": (put(coverage=1.5), put(highest=[0.9, 0.1]), put(highest=[1.5]), put(classes=0)),
    "record.json": (text("{}"),),
    "dvc.lock": (
        *map(text, ("stages:\n", "a: [\n", "stages: {split: {deps: 3}}", "stages: {split: {params: {a: 3}}}")),
        *pairs("abc", "123", "models", "7", "train", "7", "      md5: abc\n", ""),
    ),
    "dvc.yaml": (text("stages:\n"), text("a: [\n"), text("stages: [1]")),
    "params.yaml": (
        *map(text, ("- 1", "train: {", "a: 1\na: 2", "train: 2024-99-99", "train: !x y")),
        partial(Path.write_bytes, data=b"\xff\xfe"),
    ),
    "tried.yaml": (text("- 1\n"),),
    "data/corrections.csv": (text("path,label,reason\na/1.png,b\n"),),
    "data/labels.csv": (text("path,class\na.png,x\n"), text('path,label\n"a.png,x\n')),
    "images/.manifest.csv": (text("name\nx\n"),),
    ".dvc/config": (text("[core"), text("a = b")),
}  # fmt: skip
LABELS, NAMES = {"a/1.png": "a", "b/1.png": "b"}, ["a.png", "b/c.png", "labels.csv"]


def read_data() -> None:
    """Read split.csv as `report` does, kept.csv as `prepare` does, and the packed images as `train` does."""
    split_table.all_rows(Path("data/split.csv"))
    split_table.all_rows(Path("data/kept.csv"), split_table.PACKED_COLUMNS)
    pixels.check_pixels(packed.load(Path("data/packed"), Path("data/split.csv")))


def read_metrics() -> None:
    """Read the figures and tables as `report` and a check of some segments do."""
    figures.read(Path("metrics"), TrainFigures)
    outcome.read(Path("metrics"), ("a", "b"), 1)
    segments.claimed_states(Path("metrics"))


READERS: dict[str, Callable[[], object]] = {
    **dict.fromkeys(("models/model.json", "models/model.safetensors"), lambda: exported.load(Path("models"))),
    **dict.fromkeys([path for path in DAMAGES if path.startswith(("data/", "metrics/"))], read_data),
    **dict.fromkeys([path for path in DAMAGES if path.startswith("metrics/")], read_metrics),
    "models/acceptance.json": lambda: acceptance.read(Path("models")),
    "runs/1/provenance.json": lambda: Run(Path("runs/1"), "").is_recorded(),
    "runs/1/checkpoint.pt": lambda: resume.newest_checkpoint(Path("runs/1/checkpoint.pt"), "remove it"),
    "data/features.npy": lambda: feature_file.read(Path("data"), 4),
    WEIGHTS: lambda: pretrained.load_into(NET, Path(WEIGHTS)),
    **{name: partial(pretrained._read, Path(name)) for name in OWN},
    "metrics/suspects.csv": lambda: suspects.read(Path("metrics/suspects.csv")),
    "folds/predictions.csv": lambda: pooling.read({(0, 0): Path("folds/predictions.csv")}, LABELS),
    "record.json": lambda: record.read(Path("record.json")),
    "dvc.lock": lambda: (dvc_lock.read(), dvc_lock.params()),
    "dvc.yaml": dvc_lock.commands,
    "params.yaml": params.load,
    "tried.yaml": lambda: ranges.read(Path("tried.yaml")),
    "data/corrections.csv": corrections.read,
    "data/labels.csv": lambda: folders.interpret("data", NAMES, lambda _: Path("data/labels.csv").read_bytes()),
    "images/.manifest.csv": lambda: originals.locate(Path("images"), Path("data")),
    ".dvc/config": clone.check_remotes,
}
WHOLE = (".npy", ".json", ".safetensors", ".pth", ".pt", ".bin", ".sha256")  # a part of such a file is never read
NONE = (a_folder, its_folder_a_file, Path.unlink, a_pipe, endless)  # no file is at this place
VALUES: dict[str, tuple[Damage, ...]] = {  # what befalls any file, and is no damage of this one
    **dict.fromkeys(("metrics/history.csv", "tried.yaml"), (cut,)),  # a part of it is as good
    "metrics/calibration.csv": (cut, overwrite),
    "runs/1/provenance.json": (its_folder_a_file, Path.unlink),  # then no run has finished
    "runs/1/checkpoint.pt": (its_folder_a_file, Path.unlink, a_pipe, endless),
    "models/acceptance.json": NONE, "images/.manifest.csv": (cut, overwrite, *NONE),
    ".dvc/config": (overwrite, *NONE), "data/labels.csv": (cut, overwrite, *NONE),
    "data/corrections.csv": (cut, *NONE),
    "params.yaml": (cut,), "dvc.lock": (cut,), "dvc.yaml": (cut,),
}  # fmt: skip


def restore(path: Path, whole: Path) -> None:
    """Puts the folder of a file back, or a file at the top."""
    place = path if path.parent == Path() else path.parent
    files.remove(place)
    (shutil.copytree if (whole / place).is_dir() else shutil.copy)(whole / place, place)


@pytest.mark.parametrize("path", DAMAGES)
def test_a_damaged_file_is_named(whole: Path, folder: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One fault has the file as its key, for each damage. Nothing is downloaded."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("socket.socket.connect", None)
    READERS[path]()
    usual = [damage for damage in BY_ANYBODY if damage not in VALUES.get(path, ())]
    for damage in (*usual, *DAMAGES[path]):
        if damage is its_folder_a_file and "/" not in path:
            continue
        print(damage)  # pytest shows the last one if it fails
        damage(Path(path))
        with pytest.raises(UserError) as error:
            READERS[path]()
        (fault,) = error.value.faults
        assert fault.key.startswith("train.weights" if path in OWN else path.rpartition("/")[0] or path)
        assert fault.kind in ("missing", "damaged", "differs")
        assert len(str(fault)) < 800
        restore(Path(path), whole)


def test_a_model_of_before_has_the_full_scale(folder: Path) -> None:
    """A model.json without view.grey, view.fit and weights is read; 16-bit grey was scaled by its full scale then."""
    view = {key: value for key, value in VIEW.items() if key not in ("grey", "fit")}
    put(view=view, weights=None)(folder / "models/model.json")
    assert asdict(exported.load(folder / "models").view) == VIEW


def test_a_name_may_have_a_line_break_of_windows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in quotes, and is no end of a line."""
    monkeypatch.chdir(folder)
    swap("a/1.png", '"a/1\r\n.png"')(table := Path("data/split.csv"))
    table.write_bytes(table.read_bytes().replace(b"1\n.png", b"1\r\n.png"))
    assert split_table.all_rows(table)[0].path == "a/1\r\n.png"


def test_packed_images_that_dvc_has_compared_are_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage under DVC compares them with dvc.lock (test_damage.py). Else each start reads them, on any machine."""
    monkeypatch.chdir(folder)
    data = packed.load(Path("data/packed"), Path("data/split.csv"))
    flip(Path("data/packed/images-00000.bin"))
    for compared in ("[null]", '["another-machine", "data/packed"]'):
        monkeypatch.setenv(integrity.COMPARED, compared)
        with refuses(("data/packed/images-00000.bin", "damaged")):
            pixels.check_pixels(data)
    integrity.mark_compared(["data/packed"])
    pixels.check_pixels(data)


@pytest.mark.parametrize("path", READERS)
@pytest.mark.filterwarnings("ignore")  # of torch, about kinds of files
def test_any_bytes_are_a_value_or_a_refusal(folder: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a file that is cut, has another bit or other bytes, or is something else, there is no error but a refusal."""
    monkeypatch.chdir(folder)
    content = Path(path).read_bytes()
    place = st.integers(0, len(content) - 2)
    cuts = place.map(lambda end: content[:end])
    flips = st.builds(
        lambda at, bit: content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :], place, st.integers(0, 7)
    )
    spliced = st.builds(
        lambda start, length, new: content[:start] + new + content[start + length :],
        place, st.integers(0, 20), st.binary(max_size=20),
    )  # fmt: skip

    @settings(max_examples=25, suppress_health_check=list(HealthCheck))
    @given(st.one_of(st.binary(max_size=200), st.text(max_size=50).map(str.encode), cuts, flips, spliced))
    def holds(damaged: bytes) -> None:
        Path(path).write_bytes(damaged)
        is_cut = content.startswith(damaged) and len(damaged) < len(content) - 1
        try:
            READERS[path]()
        except UserError as error:
            for fault in error.faults:
                assert len(str(fault).splitlines()) == 1
        else:
            assert not (is_cut and path.endswith(WHOLE))

    holds()


def wrong_params(path: Path) -> None:
    """No stage needs them before the training, but the first one would draw images."""
    set_params(path.parent, data__source="synthetic", train__crop_scale=[0.9, 0.1])


@pytest.mark.parametrize(
    ("command", "path", "damage"),
    [
        ("prepare", "data/kept.csv", text("a\0b")),
        ("predict params.yaml", "models/model.json", text("[]")),
        ("rank evaluate", "data/packed/images-00000.bin", flip),
        ("rank train", "data/packed/images-00000.bin", flip),
        ("export", "data/packed/images-00000.bin", flip),
        ("download", "train.crop_scale", wrong_params),
    ],
)
def test_a_command_ends_in_one_line(folder: Path, command: str, path: str, damage: Damage) -> None:
    """Every command ends with exit status 1 and one line."""
    damage(folder / path)
    done = starts.run([sys.executable, "-m", "pipeline", *command.split()], cwd=folder)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f": {path}: " in line


@pytest.mark.parametrize("path", ["params.yaml", "dvc.lock", "dvc.yaml", "data/corrections.csv"])
def test_a_merge_that_is_not_finished_is_named(folder: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its line: to restore the file would lose what one side has written."""
    monkeypatch.chdir(folder)
    begin = "path,label,reason\n" if path.endswith("csv") else "# a comment\n"
    Path(path).write_text(f"{begin}<<<<<<< HEAD\na/1.png: 1\n=======\na/1.png: 2\n>>>>>>> other\n")
    with refuses((path, "damaged")) as error:
        READERS[path]()
    (fault,) = error.value.faults
    assert "line 2" in fault.reason
    assert "checkout" not in fault.remedy
