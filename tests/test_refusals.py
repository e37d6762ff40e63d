"""Refusals, rendered: of each its key, its kind and its form. No other test reads the words of one."""

import ast
import os
import re
import socket
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from ruamel.yaml import YAML

from pipeline.answers import classify
from pipeline.base import errors
from pipeline.base.errors import Fault, Kind, UserError
from pipeline.checks import rules, validity
from pipeline.checks.machine import Machine
from pipeline.checks.rules import PAIRS, Pair
from pipeline.commands import folds, predict, repro
from pipeline.config import params
from pipeline.data import corrections, folders, images, splitting
from pipeline.data.splitting import Cut
from pipeline.dataset.split_table import SPLITS
from pipeline.evaluation import onnx_file
from pipeline.learning.loss import balanced_weights
from pipeline.models import network
from pipeline.planning import forecast
from pipeline.running import checkpoint_copy, launchers, rendezvous
from pipeline.running.launch import placed_by_cluster
from pipeline.running.runs import Run
from pipeline.sources import fetch, originals
from pipeline.sources.layout import ImageFile, Layout
from pipeline.studies import ranges, runner
from pipeline.studies.record import Part, Record
from tests.conftest import PROJECT, change, on_cpu, read_params, write_params
from tests.helpers.choices import CHOICES, CPU_ONLY, TWO_GPUS, with_lines
from tests.helpers.datasets import decode
from tests.helpers.refusals import check_form, refuses
from tests.helpers.sources import fill

# Values of the keys that no pair of CHOICES has: each row of the rules finds some for all of its keys.
VALUES: dict[str, tuple[Any, ...]] = CHOICES | {
    "train.freeze_norm": (True,), "train.temperature": ("none", "fitted"), "train.head_lr_factor": (2.0,),
    "train.head": ("solved", "trained"), "train.erasing": (0.5,), "train.color_jitter": (0.5,),
    "train.device": ("cuda", "cpu"), "train.arithmetic": ("portable",), "train.deterministic": (True, False),
    "train.model": ("timm/resnet18", "vgg11", "vit_b_16", "exact/tf_efficientnet_lite0", "mine/net.py:small"),
    "train.cuda_graphs": (True,), "train.crop": (16,),
    "train.eval_crop": (32, 600), "train.weights": ("imagenet", "none"), "train.nesterov": (True,),
    "train.momentum": (0.0,), "data.source": ("torchvision/MNIST",), "split.min_side": (32,),
    "split.phash_distance": (8,), "run.max_restarts": (0,), "run.min_processes": (1,),
    "run.rendezvous": ("localhost:0",),
}  # fmt: skip


def config_for(row: Pair) -> params.Params:
    """Params to which the row applies."""
    lacking = row.conditions.keys() - VALUES.keys()
    assert not lacking, f"VALUES in tests/test_refusals.py needs {', '.join(lacking)}: each with a value of the row"
    return with_lines(**{
        key: next(value for value in VALUES[key] if rules.contains(values, value))
        for key, values in row.conditions.items()
    })  # fmt: skip


@pytest.mark.parametrize("row", PAIRS, ids=lambda row: f"{row.key}-{row.other}")
def test_every_row_is_rendered(row: Pair) -> None:
    """A row refuses its own pair, and names the keys and their values. What it allows instead, it does not refuse."""
    config = config_for(row)
    fault = row.fault(config)
    assert fault in rules.faults(config)
    assert (fault.key, fault.kind) == (row.key, "pair")
    assert all(f"{key}: " in str(fault) for key in row.conditions)
    check_form(fault)
    for part in re.split(r", (?:or )?| or |; ", row.allowed):
        key, _, value = part.rpartition(": ")
        with suppress(UserError):  # words, such as "another model"
            allowed = params.with_values(config, {key or row.key: YAML(typ="safe", pure=True).load(value)})
            assert not row.applies(allowed), part


def test_no_pair_is_in_two_rows() -> None:
    """Each row refuses params that no row before it refuses for the same two keys."""
    for row in PAIRS:
        same = [one for one in PAIRS if one.applies(config_for(row)) and {one.key, one.other} == {row.key, row.other}]
        assert same == [row]


# ---- one table: what is refused, by its key and kind; with neither it is accepted ----

Keys = str | tuple[str, ...]
Row = tuple[str, Callable[[], object], Keys, Kind | Literal[""]]


def rows(of: str, call: Callable[[Any], object], *cases: tuple[Any, Keys, Kind | Literal[""]]) -> list[Row]:
    """A row for each value that `call` gets, with what it is refused for."""
    return [(of, partial(call, value), keys, kind) for value, keys, kind in cases]


def config(**lines: Any) -> params.Params:
    return params.parse(on_cpu(read_params(), **lines))


def parse(lines: dict[str, Any]) -> params.Params:
    return params.parse(change(read_params(), **{key.replace(".", "__"): value for key, value in lines.items()}))


def load_params(content: str) -> None:
    fill(Path(), {"params.yaml": content.encode()})
    params.load()


def check(case: tuple[dict[str, Any], Machine]) -> None:
    errors.raise_if_any(validity.faults(with_lines(**case[0]), case[1]))


def check_photos(stage: str) -> None:
    Path("data/inbox").mkdir(parents=True)
    Path("data/inbox/z.jpg").symlink_to("nowhere")
    repro.check_photos(params.Params(), [stage])


def check_inbox(inbox: str) -> None:
    machine = Machine(cuda_devices=0, apex="missing", compiler=True, cores=2, project="/home/me/project")
    errors.raise_if_any(validity.faults(config(paths__inbox=inbox), machine))


def apply_corrections(content: str, *files: str) -> None:
    """Corrections of four images of cats and dogs, or of these."""
    images = [ImageFile(path, path.split("/")[0], "") for path in (files or ("cat/1.png", "dog/3.png", "dog/é.png"))]
    fill(Path(), {"data/corrections.csv": content.encode()})
    corrections.apply(corrections.read(), Layout(images, sorted({image.label for image in images}), "class folders"))


def read_labels(content: str | bytes) -> None:
    raw = content if isinstance(content, bytes) else content.encode()
    folders.interpret("in", ["a.png", "b/c.png", "d e,f.JPG", "labels.csv"], lambda _: raw)


def layout_of(names: str) -> None:
    folders.interpret("in", names.split(), lambda _: b"")


def copy_inbox(content: dict[str, bytes]) -> None:
    fill(Path("inbox"), content)
    originals.copy_inbox(Path("inbox"), Path())


def copy_link(target: str) -> None:
    fill(Path("inbox"), {"cats/a.jpg": b"a", "dogs/b.jpg": b"b"})
    Path("inbox/cats/link").symlink_to(target)
    originals.copy_inbox(Path("inbox"), Path())


def list_inbox(make: Callable[[Path], object], name: str) -> None:
    Path("in").mkdir()
    make(Path("in", name))
    originals.list_entries(Path("in"))


def socket_at(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def look_at(make: Callable[[Path], object], look: Callable[[Path], object]) -> None:
    make(Path("a.jpg"))
    look(Path("a.jpg"))


def placed(variables: dict[str, str]) -> None:
    """The place of a node of two, in which a cluster sets these variables."""
    run = config(train__parallel="ddp", run__processes=2, run__nodes=2).run
    assert placed_by_cluster(run, variables) == run.model_copy(update={"node_rank": int(bool(variables))})


PLACE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
OF_SLURM = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID", "WORLD_SIZE": "SLURM_STEP_NUM_TASKS"}
STEP = {"SLURM_STEP_NODELIST": "a", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}


def of_launchers(changes: dict[str, str]) -> list[Row]:
    """The numbers of a launcher with these changes, as torchrun and as srun give them; only these are refused."""
    return [
        (f"numbers of {names['RANK']}",
         partial(rendezvous.world_of, {names[name]: value for name, value in {**PLACE, **changes}.items()}, "cpu"),
         tuple(names[name] for name in changes), "value" if changes else "")
        for names in ({name: name for name in PLACE}, OF_SLURM)
    ]  # fmt: skip


def read_ranges(content: dict[str, Any]) -> None:
    """A file of ranges with these changes; None takes a line out."""
    usual = {
        "search": "random",
        "trials": 4,
        "params": {"train.lr": {"from": 0.01, "to": 0.1}, "train.mixup": [0.0, 0.2]},
    }
    write_params(Path("tried.yaml"), {key: value for key, value in (usual | content).items() if value is not None})
    ranges.read(Path("tried.yaml"))


def tried(**range_of_lr: Any) -> dict[str, Any]:
    return {"params": {"train.lr": {"from": 0.1, "to": 1} | range_of_lr}}


def study(options: tuple[Any, ...]) -> None:
    folds.make_plan(config(), *options)


def recipe(**values: Any) -> Record:
    part = Part(seed=0, fold=0, images=10, right=5, model="a" * 32, predictions="b" * 32)
    return Record({key.replace("__", "."): value for key, value in values.items()}, {"split": "c"}, {}, (part,))


def fetch_file(url: str) -> None:
    fill(Path(), {"own.tar": b"own"})
    fetch.obtain_archive(url.format(own=Path("own.tar").absolute()), "0" * 64, Path(), 10**7)


def load_onnx(content: bytes) -> None:
    fill(Path(), {"x.onnx": content})
    onnx_file.load(Path("x.onnx"), 1)


def predict_with(model: Path | None) -> None:
    write_params(Path("params.yaml"), read_params())
    predict.predict(classify.Request((Path("x.png"),), model=model))


def count_classes(case: tuple[Cut, list[str]]) -> None:
    splitting.check_class_sizes(["a"], [ImageFile("a.png", "a", split) for split in case[1]], case[0])


def copies_behind_a_link() -> None:
    run = Run(Path("run"), "0" * 64)
    fill(Path(), {f"{run.fingerprint}/own.txt": b""})
    Path(run.fingerprint, "partial").symlink_to("own.txt")
    checkpoint_copy.Place(str(Path.cwd()), run)


def locate_elsewhere() -> None:
    fill(Path("inbox"), {"cats/a.jpg": b"a"})
    Path("images").mkdir()
    originals.write_manifest(Path("inbox"), Path("images"), workers=1)
    originals.locate(Path("images"), Path("other"))


def in_slurm(variables: dict[str, str]) -> None:
    os.environ.pop("SLURM_JOB_ID", None)
    os.environ.update(variables)
    launchers.LAUNCHERS["slurm"](("pipeline", "rank", "train"), config(run__launcher="slurm").run)


GPU, SLURM = {"train__device": "cuda"}, Machine(1, "missing", True, slurm_step=True)
H100 = Machine(1, "usable", compiler=True, compute_capabilities=((9, 0),), cuda_driver=13, cores=2)
NOT_PORTABLE: list[tuple[str, Any]] = [
    ("train.device", "cuda"), ("train.precision", "bf16"), ("train.precision", "fp16"), ("train.compile", True),
    ("train.deterministic", False),
]  # fmt: skip
WITHOUT_FMA = Machine(0, "missing", True, missing_cpu_features=("FMA",))
ELASTIC = {"train__parallel": "elastic", "train__shards": 4}
FOUR = {**GPU, "train__parallel": "ddp", "run__processes": 4}
WHOLE, GIVEN, TEST_FROM_TRAIN = Cut("", SPLITS), Cut("train", ()), Cut("train", ("train", "test"))
SQUEEZENET, TWO_NODES = "squeezenet1_1", {"run__nodes": 2, "run__rendezvous": "node0:29400"}
RANGES: list[tuple[dict[str, Any], str, Kind]] = [
    ({"search": "best"}, "search", "value"), ({"search": None}, "search", "missing"),
    ({"jobs": 2}, "jobs", "unknown"), ({"trials": None}, "trials", "missing"),
    ({"params": {"train.mixup": [0.0, 0.2]}}, "trials", "value"),
    ({"search": "grid", "trials": None}, "train.lr", "pair"),
    ({"search": "grid", "params": {"train.lr": [0.1]}}, "trials", "pair"),
    ({"search": "grid", "trials": None, "params": {"train.lr": [*range(1, 40)], "train.mixup": [*range(40)]}},
     "params", "value"),
    ({"params": {}}, "params", "value"), ({"params": {"train.mixupp": [0.1]}}, "params", "unknown"),
    ({"params": {"lr": [0.1]}}, "params", "unknown"),
    *(({"params": {name: [0, 1]}}, "params", "value") for name in ("data.source", "split.seed", "train.seed")),
    (tried(to=0.01), "train.lr", "value"), (tried(**{"from": 0}, scale="log"), "train.lr", "pair"),
    (tried(scale="ln"), "train.lr.scale", "value"), (tried(step=1), "train.lr.step", "unknown"),
    ({"params": {"train.lr": 0.1}}, "train.lr", "value"),
    ({"params": {"train.lr": [0.1, 0.1]}}, "train.lr", "value"),
]  # fmt: skip
ROWS: list[Row] = [
    *rows(
        "a value, or two numbers", lambda lines: check((lines, CPU_ONLY)),
        ({"train__model": "resnet43"}, "train.model", "unknown"),
        ({"train__model": "nothing like it"}, "train.model", "unknown"),
        ({"train__crop_scale": (0.9, 0.1)}, "train.crop_scale", "value"),
        ({"train__eval_crop": 64}, "train.eval_crop", "pair"),
        *(({"train__eval_crop": 64, "prepare__fit": fit}, "", "") for fit in ("squash", "pad")),  # nothing is resized
        ({"train__eval_crop": 64, "prepare__fit": "crop"}, "train.eval_crop", "pair"),
        ({"train__crop_from": 32}, "train.crop_from", "pair"),
        ({"train__crop_from": 15}, "train.crop_from", "pair"),
        ({"train__model": "vgg11", "train__eval_crop": 31}, "train.eval_crop", "pair"),
        ({"train__model": "vgg11", "train__crop": 64, "train__crop_from": 31}, "train.crop_from", "pair"),
        ({"train__model": "vgg11", "train__crop": 32}, "", ""), ({"train__crop": 16}, "", ""),
        ({"train__parallel": "ddp", "run__processes": 3}, "train.batch_size", "value"),
        ({"train__accumulation_steps": 16}, "train.batch_size", "value"),
        (ELASTIC | {"train__shards": 3}, "train.batch_size", "value"),
        (ELASTIC | {"train__shards": 8}, "train.batch_size", "value"),
        (ELASTIC | {"run__processes": 5}, "run.processes", "value"),
        (ELASTIC | TWO_NODES | {"run__processes": 4, "run__min_processes": 3, "run__max_restarts": 1},
         "run.min_processes", "value"),
        (TWO_NODES, "run.processes", "value"), ({"run__node_rank": 1}, "run.node_rank", "value"),
        ({"run__processes": 16, "train__parallel": "ddp", "train__batch_size": 16}, "run.processes", "machine"),
        (GPU, "train.device", "machine"), ({"split__group": "patient"}, "split.group", "value"),
        ({"split__group": "(a)(b)"}, "split.group", "value"), ({"split__group": "a("}, "split.group", "value"),
        ({"split__folds": 10, "split__fold": 10}, "split.fold", "value"), ({"split__fold": 1}, "split.fold", "value"),
        ({"split__fractions": params.Fractions(train=0.5)}, "split.fractions", "value"),
    ),
    *rows(
        "a machine", check,
        ((FOUR, TWO_GPUS), "run.processes", "machine"),
        ((FOUR | {"run__launcher": "slurm"}, SLURM), "run.processes", "machine"),
        # only processes that srun starts need GPUs on their node
        *(((FOUR | {"run__launcher": "slurm"}, here), "", "") for here in (CPU_ONLY, Machine(1, "missing", True))),
        ((GPU | {"run__launcher": "slurm"}, Machine(0, "missing", True, slurm_step=True)), "train.device", "machine"),
        ((GPU, Machine(1, "missing", True, cuda_driver=12, cuda_of_torch=13)), "train.device", "machine"),
        ((GPU, Machine(3, "missing", True, compute_capabilities=((9, 0), (7, 0), (7, 0)))), "train.device", "machine"),
        ((GPU | {"train__precision": "O1"}, Machine(2, "without amp", True)), "train.precision", "machine"),
        ((GPU | {"train__optimizer": "fused_sgd"}, Machine(2, "without extensions", True)),
         "train.optimizer", "machine"),
        (({"train__compile": True}, Machine(0, "missing", False)), "train.compile", "machine"),
        (({"train__arithmetic": "portable"}, WITHOUT_FMA), "train.arithmetic", "machine"),
        *((({key: value, "train.arithmetic": "portable"}, H100), key, "pair") for key, value in NOT_PORTABLE),
        *((({key: value, "train.arithmetic": "native"}, H100), "", "") for key, value in NOT_PORTABLE),
        (({}, Machine(0, "missing", True, stale_files=("requirements/lock.txt",))), "requirements/lock.txt", "differs"),
        (({}, Machine(0, "missing", True, other_packages=("a 1 (locked: 2)",) * 9)),
         "requirements/lock.txt", "machine"),
    ),
    *rows(
        "a table in itself", load_params,
        ("train: &a {x: *a}", "params.yaml", "damaged"), ("train: {crop_scale: &a [*a, 1]}", "params.yaml", "damaged"),
    ),
    *rows(
        "a param", parse,
        *(({key: value}, key, "value") for key, value in (
            ("train.parallel", "ddpp"), ("train.lr", "0.1"), ("train.lr", 0), ("train.lr", float("nan")),
            ("train.lr", 1e308), ("train.epochs", 1.5), ("train.epochs", True), ("train.epochs", 10**8),
            ("train.nesterov", "yes"), ("train.crop_scale", [0.1, 0.2, 0.3]), ("train.crop_scale", 0.1),
            ("train.weight_decay", 1e308), ("train.head_lr_factor", 1e308), ("train.mixup", 1e308),
            ("train.clip_norm", 1e308), ("train.threads", 100_000), ("train.batch_size", 10**12), ("train", 3),
            ("train.model", date(2024, 5, 1)), ("train.model", None), ("train.model", b"resnet18"),
            ("train.weights", "mine.pth"), ("train.weights", "data/pretrained"),
            ("train.weights", "data/pretrained/../a"),
            ("run.processes", 0), ("run.processes", 1_000_000), ("run.workers", 10**9), ("run.timeout_seconds", 10**30),
            ("run.rendezvous", "node0:99999"), ("run.rendezvous", "node0:65536"), ("data.url", "ftp://x/y"),
            ("data.url", "file:///" + "a" * 5000), ("paths.inbox", "a/../../b"), ("paths.inbox", "a" * 201),
            # control characters, which would act on the terminal that shows the setting
            ("paths.inbox", "/tmp/a\x1b[31mb"), ("paths.inbox", "/a\0"), ("data.url", "https://a/\x7f"),
            *(("run.checkpoint_copy", text) for text in ("memory://x", "no://x", "file://x", " ", "$HOME/x", "")),
            ("split.group", "a\nb"), ("train.model", "\0"),
            ("split.fractions.val", 1e-7), ("train.head_l2", 1e-7),  # what is computed from them is only rounding
        )),
        ({"train.crop_scale": [0.5, 1e308]}, "train.crop_scale.1", "value"),
        ({"train.crop_scale": [0.5]}, "train.crop_scale.1", "missing"),
        ({"split.sed": 1}, "split.sed", "unknown"), ({"split.1": 1}, "split.1", "unknown"),
        ({"nonsense": {}}, "nonsense", "unknown"),
    ),
    *rows(
        "an inbox inside the project's own folders, or with them in it", check_inbox,
        *((path, "paths.inbox", "value") for path in (
            "data", "data/images", "data/images/mine", "models", "pipeline", "runs/x", "/home/me/project/data/images",
            "/home/me/photos/../project/pipeline", "/home/me/project/", "/home/me",
        )),
        *((path, "", "") for path in (
            "data/inbox", "data/photos", "mine", "/home/me/project/data/photos", "/home/photos",
        )),
    ),
    *rows(
        "data/corrections.csv", apply_corrections,
        ("", "data/corrections.csv", "damaged"),
        ("path,label,reason\ncat/1.png,dog\n", "data/corrections.csv:2", "damaged"),
        *((f"path,label\n{line}\n", "data/corrections.csv:2", "value") for line in (
            "dog/1.png,cat", "dog/33.png,cat", "LICENSE.txt,cat", "dog/3.png,Cat", "dog/3.png,",
        )),
        ("path,label\ndog/3.png,cat\n./dog/3.png,exclude\n", "data/corrections.csv:3", "value"),
        ('path,label,reason\ndog/3.png,exclude,"two\nlines"\n', "data/corrections.csv:3", "value"),
    ),
    *rows(
        "corrections where a class is called exclude",
        lambda line: apply_corrections(f"path,label\n{line}\n", "exclude/1.png", "cat/1.png"),
        ("cat/1.png,exclude", "data/corrections.csv:2", "value"), ("exclude/1.png,cat", "", ""),
    ),
    ("no corrections", corrections.read, "data/corrections.csv", "missing"),
    ("a pipe in the place of corrections", lambda: look_at(os.mkfifo, corrections.read), "a.jpg", "missing"),
    ("no corrections before a run", lambda: repro.check_photos(params.Params(), ["split"]), "data/corrections.csv",
     "missing"),
    ("no inbox before a run", lambda: repro.check_photos(params.Params(), ["download"]), "paths.inbox", "missing"),
    *rows(
        "a broken link in the inbox before a run of a stage", check_photos,
        ("download", "data/inbox/z.jpg", "value"), ("weights", "", ""),
    ),
    *rows(
        "labels.csv", read_labels,
        *((content, f"in/labels.csv:{line}" if line else "in/labels.csv", "damaged") for content, line in (
            ("", 0), ("path,class\na.png,x\n", 0), ("path;label,group\na.png;x,\n", 0), ("path;label\na.png,x\n", 2),
            ("path,label,Path\n", 0), ("path,label\na.png\n", 2), ("path,label\na.png,x\n\nd e,f.JPG,x\n", 4),
            ('path,label\n"a.png,x\n', 0), (b"path,label\na.png,caf\xe9\n", 0),
        )),
        *((f"path,label\n{line}\n", "in/labels.csv:2", "value") for line in (
            "z.png,x", "../a.png,x", "/a.png,x", "b/,x", "a.png, ", "a.png,x\0y",
        )),
        ("path,label\na.png,x\n./a.png,x\n", "in/labels.csv:3", "value"),
        ("path,label,split\na.png,x,holdout\n", "in/labels.csv:2", "value"),
        ("path,label\na.png,x\n", "in/labels.csv", "missing"),
    ),
    *rows("no class folders", layout_of, ("train.tar", "in", "missing"), ("train/1.parquet", "in", "missing")),
    ("pointers of Git LFS", lambda: folders.interpret("in", ["a/1.jpg", "b/1.jpg"], lambda _: folders.LFS + b"v1\n"),
     "in/a/1.jpg", "missing"),
    *rows(
        "an inbox without class folders", copy_inbox,
        *((content, "paths.inbox", "missing") for content in (
            {}, {".gitkeep": b""}, {"photo.jpg": b"x"}, {"daisy/.hidden": b"x"},
        )),
    ),
    *rows(
        "a link, whose target DVC would not see", copy_link,
        ("a.jpg", "inbox/cats/link", "value"), ("../dogs", "inbox/cats/link", "value"),
    ),
    *(("what cannot be listed", partial(list_inbox, make, name), key, "value") for make, name, key in (
        (lambda path: path.symlink_to("nowhere"), "z.jpg", "in/z.jpg"),
        (lambda path: path.symlink_to(path.name), "z.jpg", "in/z.jpg"), (os.mkfifo, "z.jpg", "in/z.jpg"),
        (lambda path: path.symlink_to("/dev/zero"), "z.jpg", "in/z.jpg"),
        (Path.touch, "\udcff.jpg", ascii("in/\udcff.jpg")), (Path.touch, "a\rb.jpg", repr("in/a\rb.jpg")),
    )),
    *rows(
        "a folder without photos", lambda name: originals.write_manifest(Path(name), Path("images"), workers=1),
        (".", "paths.inbox", "missing"), ("missing", "paths.inbox", "missing"),
    ),
    ("no images", lambda: originals.Originals(Path("missing"), {}).entries(), "missing", "missing"),
    ("photos of another machine", locate_elsewhere, "paths.inbox", "missing"),
    *(("what is no file", partial(look_at, make, look), "a.jpg", "value")
      for make in (os.mkfifo, socket_at, Path.mkdir, lambda path: path.symlink_to("/dev/zero"))
      for look in (decode, lambda path: images.square_and_size(path, 32),
                   lambda path: images.inspect_image(path, 1, 1))),
    *rows(
        "an address of a file", fetch_file,
        ("file://photos.tgz", "data.url", "value"), ("file:///nowhere/photos.tgz", "data.url", "missing"),
        ("file:///", "data.url", "missing"), ("file://{own}", "data.sha256", "differs"),
    ),
    *rows(
        "images of a class", count_classes,
        ((WHOLE, ["", "", ""]), "", ""), ((WHOLE, ["", ""]), "classes", "missing"), ((WHOLE, []), "classes", "missing"),
        ((GIVEN, ["test", "val", "train"]), "", ""), ((GIVEN, ["train", "test", "test"]), "classes", "missing"),
        ((TEST_FROM_TRAIN, ["train", "train", "val"]), "", ""),
        ((TEST_FROM_TRAIN, ["train", "val"]), "classes", "missing"),
    ),
    *rows(
        "a cluster with other numbers than the params", placed,
        ({"PET_NODE_RANK": "1"}, "", ""), ({}, "", ""),
        ({"PET_NODE_RANK": "1", "PET_NNODES": "3", "PET_NPROC_PER_NODE": "4"},
         ("run.nodes", "run.processes / run.nodes"), "differs"),
        ({"PET_NODE_RANK": "1", "PET_NNODES": "3", "PET_NPROC_PER_NODE": "auto"}, "run.nodes", "differs"),
        *(({"PET_NODE_RANK": rank}, "run.nodes", "differs") for rank in ("2", "-1", "first")),
        ({"PET_NODE_RANK": "1", "PET_MASTER_ADDR": "node0", "PET_MASTER_PORT": "http"},
         "PET_MASTER_ADDR, PET_MASTER_PORT", "value"),
    ),
    *(row for changes in (
        {}, {"RANK": "2"}, {"RANK": "-1"}, {"RANK": "first"}, {"RANK": "\u0661"}, {"LOCAL_RANK": "7"},
        {"WORLD_SIZE": "0"}, {"WORLD_SIZE": ""}, {"WORLD_SIZE": "1000000000000"}, {"RANK": "x", "WORLD_SIZE": "x"},
    ) for row in of_launchers(changes)),
    *rows(
        "an address that no launcher gives", lambda odd: rendezvous.address({"MASTER_ADDR": "localhost", **odd}),
        *((odd, "MASTER_ADDR, MASTER_PORT", "value") for odd in (
            {}, {"MASTER_PORT": "http"}, {"MASTER_PORT": "65536"}, {"MASTER_ADDR": "", "MASTER_PORT": "1"},
        )),
    ),
    *rows(
        "an address that no step of Slurm has", rendezvous.address, (STEP, "", ""),
        *((odd, ", ".join(STEP), "value") for odd in (
            {}, {**STEP, "SLURM_JOB_ID": "x"}, {**STEP, "SLURM_STEP_NODELIST": "["},
        )),
    ),
    *rows(
        "an interface", rendezvous.check_interface, ({}, "", ""), ({rendezvous.INTERFACE: "lo"}, "", ""),
        ({rendezvous.INTERFACE: "lo,nosuch0"}, rendezvous.INTERFACE, "machine"),
    ),
    *rows(
        "Slurm without a job, and without srun", in_slurm,
        *((variables, "run.launcher", "machine") for variables in ({}, {"SLURM_JOB_ID": "1", "PATH": ""})),
    ),
    *rows("a file of ranges", read_ranges, *((lines, f"tried.yaml: {key}", kind) for lines, key, kind in RANGES)),
    *rows(
        "a study: folds, seeds, jobs, recipe", study,
        ((1, None, 1, None), "--folds", "value"), ((0, None, 1, None), "--folds", "value"),
        ((None, 101, 1, None), "--seeds", "value"), ((None, 0, 1, None), "--seeds", "value"),
        ((None, None, 0, None), "--jobs", "value"), ((None, None, 1, recipe()), "--folds", "value"),
        ((2, None, 1, recipe(split__folds=2)), "--folds", "pair"),
        ((None, 2, 1, recipe(split__folds=2)), "--seeds", "pair"),
        ((None, None, 1, recipe(split__folds="two")), "split.folds", "value"),
        ((None, None, 1, recipe(split__folds=2, nope__lr=1)), "nope", "unknown"),
        ((None, None, 1, recipe(split__folds=2, train__lr__high=1)), "train.lr", "value"),
        ((None, None, 1, recipe(split__folds=2, train__precision="tf32")), "train.precision", "pair"),
    ),
    ("no such recipe", lambda: folds.read_recipe("nope"), "--recipe", "unknown"),
    *rows(
        "a place of runs", lambda place: runner.slots(config(**place[0]), 1, place[1]),
        (({}, "kubernetes"), "--on", "value"), (({}, "slurm '--comment=a"), "--on", "value"),
        (({"train__parallel": "ddp", "run__processes": 2, "run__nodes": 2}, "slurm"), "run.launcher", "pair"),
    ),
    ("a machine without sbatch", lambda: os.environ.update(PATH="nowhere") or runner.slots(config(), 1, "slurm"),
     "--on", "machine"),
    *rows(
        "model.onnx", load_onnx, (b"", "x.onnx", "missing"), (b"nothing of this kind", "x.onnx", "damaged"),
    ),
    ("no model.onnx", lambda: onnx_file.load(Path("x.onnx"), 1), "x.onnx", "missing"),
    *rows(
        "a model that is not there", predict_with, (Path("nowhere"), "nowhere", "missing"),
        (Path(), "model.json", "missing"), (None, "models/model.json", "missing"),
    ),
    ("a folder without DVC and Git", forecast.forecast, "this folder", "missing"),
    ("copies of checkpoints behind a link", copies_behind_a_link, "run.checkpoint_copy", "machine"),
    ("a class without an image", lambda: balanced_weights({"a": 7, "b": 0}), "train.class_weights", "pair"),
    ("no BatchNorm to freeze", lambda: network.freeze_norm(network.build(SQUEEZENET, 3, seed=0), SQUEEZENET),
     "train.freeze_norm", "pair"),
    ("a head without a vector", lambda: network.without_head(network.build(SQUEEZENET, 3, seed=0), SQUEEZENET),
     "train.head", "pair"),
    ("a head without a bias", lambda: network.without_head(torch.nn.Sequential(torch.nn.Linear(3, 2, False)), "a"),
     "train.head", "pair"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "keys", "kind"), [pytest.param(*row[1:], id=f"{row[0]}: {row[3]}") for row in ROWS])
@pytest.mark.usefixtures("here")
def test_a_refusal_has_key_and_kind(call: Callable[[], object], keys: Keys, kind: Kind) -> None:
    """In an empty folder. A row without a key is accepted."""
    faults = [(key, kind) for key in ((keys,) if isinstance(keys, str) else keys)]
    with refuses(*faults) if kind else nullcontext():
        call()


def test_every_fault_in_the_code_says_what_to_do() -> None:
    """Each call of Fault gives what is allowed or the remedy: also where no test comes by. mypy checks its kind."""
    trees = {path.name: ast.parse(path.read_text()) for path in (PROJECT / "pipeline").rglob("*.py")}
    calls = [(name, node) for name, tree in trees.items() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    faults = [(name, call) for name, call in calls if isinstance(call.func, ast.Name) and call.func.id == "Fault"]
    assert len(faults) > 40
    for name, call in faults:
        keywords = {keyword.arg for keyword in call.keywords}
        assert len(call.args) > 4 or {"allowed", "remedy"} & keywords, f"{name}:{call.lineno}"


def test_a_fault_without_a_remedy_is_a_bug() -> None:
    with pytest.raises(ValueError, match="remedy"):
        Fault("train.lr", "-1", "value", "too small")


def test_a_message_has_the_first_faults_and_counts_the_others() -> None:
    """The error itself has all of them."""
    error = UserError(*(Fault(f"line {number}", "wrong", "value", allowed="right") for number in range(1010)))
    *lines, last = str(error).splitlines()
    assert len(lines) == errors.MOST_SHOWN
    assert f"{1010 - len(lines):,}" in last
    assert len(error.faults) == 1010
