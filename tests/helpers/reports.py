"""A finished run for the report, without a training: real images, a real split, a real model, and invented answers."""

import os
from pathlib import Path
from unittest import mock

import numpy as np

from pipeline.base import files
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.dataset import packed
from pipeline.dataset.normalization import IMAGENET
from pipeline.evaluation import acceptance
from pipeline.learning.state import HISTORY
from pipeline.models import exported, network
from pipeline.models.description import Description, View
from pipeline.stages import evaluate, prepare, report, split
from tests.conftest import below, on_cpu, read_params, write_params
from tests.helpers.datasets import noise_image, put

HOSTILE = "<img src=x onerror=alert(1)>"
HEBREW, CHINESE = "פרח אדום", "郁金香"
CLASSES = (HOSTILE, "daisy", HEBREW, CHINESE)
PER_CLASS = 24
MODEL = "resnet18"  # untrained


def config_in(folder: Path) -> Params:
    """The params of a folder, with their paths below it."""
    return below(folder, params.load(folder / "params.yaml"))


def draw(folder: Path) -> None:
    """Images of four classes with names of all kinds, and one file for each reason to leave it out."""
    for number, label in enumerate(CLASSES):
        for seed in range(PER_CLASS):
            put(folder / label / f"{seed:02d} & {label[:4].strip('<')}.png", 1000 * number + seed, 48 + 4 * seed)
    noise_image(1000, 48).save(folder / "daisy/again.png")  # a duplicate, in other bytes of the file
    for label in ("daisy", CHINESE):
        put(folder / label / "either.png", 77, 60)
    (folder / "daisy/cut.png").write_bytes((folder / CHINESE / "either.png").read_bytes()[:300])
    put(folder / "daisy/tiny.png", 5, 8)
    (folder / "daisy/notes.txt").write_text("no image")
    credit = "CC-BY by Zoë <b> - https://example.org/?a=1&b=2"
    files.write_text(folder / "LICENSE.txt", "".join(f"daisy/{k:02d} & dais.png {credit}\n" for k in range(PER_CLASS)))


def finish(folder: Path) -> None:
    """Split and pack the images of a folder, and write what training and evaluation would: invented figures."""
    config, random, epochs = config_in(folder), np.random.default_rng(0), 6
    split.run(config)
    prepare.run(config)
    data = packed.load(Path(config.paths.packed), Path(config.paths.split))
    rows = data.rows("test")
    strength = random.gamma(2, 1.2, len(rows))
    logits = random.normal(0, 1, (len(rows), len(data.classes)))
    logits[np.arange(len(rows)), data.labels[rows]] += strength
    evaluate.write(config, data, rows, logits - np.log(np.exp(logits).sum(1, keepdims=True)))
    scores = random.uniform(0.3, 1, acceptance.MIN_IMAGES * len(data.classes)).tolist()
    models, weights = Path(config.paths.models), network.export_state(network.build(MODEL, len(data.classes), 0))
    view = View.from_params(config)
    exported.save(models, weights, Description(MODEL, data.classes, view, IMAGENET.mean, IMAGENET.std, "best", 4))
    digest = files.sha256(models / "model.safetensors")
    acceptance.write(models, acceptance.make(digest, 0.95, scores, len(data.classes)))
    history = []
    for epoch in range(1, epochs + 1):
        figures = (value for part in (1.1, 1) for value in (part * 1.7 / epoch**0.7, epoch / (epoch + part)))
        history.append((epoch, 10 * epoch, 0.1, *figures))
    files.write_csv(Path(config.paths.metrics) / "history.csv", HISTORY, history)


def make_report(folder: Path) -> None:
    """A whole folder: params, drawn images, everything that the report reads, and the report."""
    places = {"prepare__size": 72, "train__eval_crop": 64, "train__eval_resize": 72}  # a feature map of 2 × 2
    raw = on_cpu(read_params(), data__source="inbox", split__min_side=16, split__folds=1, **places)
    raw["split"]["fractions"] = {"train": 0.4, "val": 0.2, "test": 0.4}
    folder.mkdir(exist_ok=True)
    write_params(folder / "params.yaml", raw)
    draw(folder / params.Paths.images)
    finish(folder)
    with mock.patch.dict(os.environ):  # the stage sets variables of its process for good
        report.run(config_in(folder))
