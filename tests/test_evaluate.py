"""The stage evaluate, on a small untrained model and packed images of its own."""

import csv
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

from pipeline import evaluate, prepare
from pipeline.base import files
from pipeline.base.errors import UserError
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.data import packed, split_table
from pipeline.data.originals import Originals
from pipeline.evaluation import metrics
from pipeline.models import exported, network
from pipeline.training import results, state
from tests.conftest import below, on_cpu, read_params, write_params
from tests.helpers import starts

CLASSES = ("daisy", "rose", "tulip")
OUTPUTS = (
    "metrics/eval.json",
    "metrics/per_class.csv",
    "metrics/confusion.csv",
    "metrics/calibration.csv",
    "metrics/predictions.csv",
)


def draw(path: Path, size: tuple[int, int], colour: int, random: np.random.Generator) -> None:
    """Save a noisy image of one colour."""
    pixels = random.integers(0, 120, (size[1], size[0], 3))
    pixels[..., colour] += 120
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path)


def make(folder: Path) -> Params:
    """Fill a folder with params, images, split, packed images and an untrained model, as earlier stages do."""
    write_params(folder / "params.yaml", on_cpu(read_params(), evaluate__batch_size=4))
    config = params.load(folder / "params.yaml")
    random, lines = np.random.default_rng(0), []
    for number in range(33):
        colour = number % 3
        path, size = f"{CLASSES[colour]}/{number:02d} é.png", (48 + number, 64 - number // 2)
        draw(folder / config.paths.images / path, size, colour, random)
        part = "train" if number < 10 else "test"
        lines.append((path, CLASSES[colour], part, "", *size, "", "", ""))
    lines.append(("rose/broken.png", "rose", "", "truncated", 0, 0, "", "", ""))
    files.write_csv(folder / config.paths.split, split_table.HEADER, sorted(lines))
    config = below(folder, config)
    paths = config.paths
    images = Originals(Path(paths.images), {})
    prepare.prepare(images, Path(paths.split), Path(paths.packed), config.prepare, workers=2)
    weights = network.export_state(network.build(config.train.model, len(CLASSES), seed=1))
    history = [dict.fromkeys(state.HISTORY, 0.0) | {"epoch": 1, "step": 1}]
    data = packed.load(Path(paths.packed), Path(paths.split))
    results.write(config, data.classes, weights, state.Progress(step=1, history=history))
    return config


def run(folder: Path, processes: int) -> subprocess.CompletedProcess[str]:
    """Run the stage in `folder` with so many processes, more than `validity` would allow on few cores."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [sys.executable, *(launcher if processes > 1 else []), "-m", "pipeline.evaluate"]
    return starts.run(command, ranks=processes, cwd=folder)


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project's folder after evaluate with one process."""
    folder = tmp_path_factory.mktemp("evaluated")
    make(folder)
    done = run(folder, processes=1)
    assert done.returncode == 0, done.stderr
    assert "23 test images" in done.stdout
    return folder


@pytest.fixture
def copy(evaluated: Path, tmp_path: Path) -> Path:
    """A copy of that folder to change, without the outputs."""
    folder = tmp_path / "copy"
    shutil.copytree(evaluated, folder)
    for name in OUTPUTS:
        (folder / name).unlink()
    return folder


def config_of(folder: Path) -> Params:
    return below(folder, params.load(folder / "params.yaml"))


def figures_in(folder: Path) -> dict[str, float]:
    return cast(dict[str, float], json.loads((folder / "metrics/eval.json").read_text()))


def data_of(config: Params) -> packed.Packed:
    return packed.load(Path(config.paths.packed), Path(config.paths.split))


@pytest.mark.parametrize("processes", [2, 3])
def test_the_number_of_processes_changes_no_byte(evaluated: Path, copy: Path, processes: int) -> None:
    """With 2 and 3 processes, and for a model trained in bf16, all outputs are those of one process in fp32."""
    write_params(copy / "params.yaml", on_cpu(read_params(copy / "params.yaml"), train__precision="bf16"))
    done = run(copy, processes)
    assert done.returncode == 0, done.stderr
    for name in OUTPUTS:
        assert files.sha256(copy / name) == files.sha256(evaluated / name), name


def test_every_test_image_is_counted_once(evaluated: Path) -> None:
    """predictions.csv has the test lines of split.csv in their order, and the figures follow from its columns."""
    lines = [line for line in files.read_csv(evaluated / "data/split.csv") if line["split"] == "test"]
    rows = files.read_csv(evaluated / "metrics/predictions.csv")
    assert [(row["path"], row["label"]) for row in rows] == [(line["path"], line["class"]) for line in lines]
    assert list(rows[0]) == ["path", "label", "prediction", "p_daisy", "p_rose", "p_tulip"]

    probabilities = np.array([[float(row[f"p_{name}"]) for name in CLASSES] for row in rows])
    labels = np.array([CLASSES.index(row["label"]) for row in rows])
    assert probabilities.sum(1) == pytest.approx(1)
    assert [CLASSES[best] for best in probabilities.argmax(1)] == [row["prediction"] for row in rows]
    written = figures_in(evaluated)
    expected = metrics.summary(np.log(probabilities), labels)
    assert len(lines) == 23
    assert written["accuracy"] == expected.accuracy
    by_class = metrics.class_table(metrics.confusion(probabilities.argmax(1), labels, 3), CLASSES)
    assert [list(row.values()) for row in files.read_csv(evaluated / "metrics/per_class.csv")] == [
        [row.name, str(row.images), repr(row.precision), repr(row.recall), repr(row.f1)] for row in by_class
    ]
    assert (written["nll"], written["ece"]) == pytest.approx((expected.nll, expected.ece))


def test_tables_for_plots(evaluated: Path) -> None:
    """confusion.csv has one row per image, which DVC's template counts; calibration.csv has the filled bins."""
    rows = files.read_csv(evaluated / "metrics/predictions.csv")
    assert files.read_csv(evaluated / "metrics/confusion.csv") == [
        {"actual": row["label"], "predicted": row["prediction"]} for row in rows
    ]
    bins = files.read_csv(evaluated / "metrics/calibration.csv")
    assert set(bins[0]) == {"low", "high", "count", "confidence", "accuracy"}
    assert sum(int(row["count"]) for row in bins) == len(rows)
    written = figures_in(evaluated)
    error = sum(int(row["count"]) * abs(float(row["confidence"]) - float(row["accuracy"])) for row in bins) / len(rows)
    assert error == pytest.approx(written["ece"])


def test_a_model_without_mistakes(copy: Path) -> None:
    """Where nothing was mistaken the log-likelihood is 0, and the interval ends at 1."""
    config = config_of(copy)
    data = data_of(config)
    rows = data.rows("test")
    sure = np.where(np.arange(3) == data.labels[rows][:, None], 0.0, -1000.0)
    evaluate.write(config, data, rows, sure)
    figures = figures_in(copy)
    assert (figures["accuracy"], figures["nll"], figures["accuracy_high"]) == (1, 0, 1)


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_without_a_model(copy: Path, name: str) -> None:
    """Without a model the refusal names the missing file and how to get one."""
    path = copy / "models" / name
    path.unlink()
    with pytest.raises(UserError) as refusal:
        evaluate.run(config_of(copy))
    assert str(refusal.value) == f"{path}: not found; train a model (dvc repro) or fetch a shared one (dvc pull)"


def test_a_model_of_other_classes(copy: Path) -> None:
    """A model whose classes are not those of split.csv is refused, both named."""
    config = config_of(copy)
    lines = files.read_csv(Path(config.paths.split))
    renamed = [{**line, "class": line["class"].replace("rose", "peony")} for line in lines]
    files.write_csv(Path(config.paths.split), split_table.HEADER, [list(line.values()) for line in renamed])
    with pytest.raises(UserError) as refusal:
        evaluate.run(config)
    assert str(refusal.value) == (
        f"{copy}/models/model.json: its classes are daisy, rose, tulip, those of {copy}/data/split.csv are "
        f"daisy, peony, tulip; they do not belong together; train again (dvc repro)"
    )


def test_a_model_of_other_packed_images(copy: Path) -> None:
    """A model that saw images of another size is refused, both sizes named."""
    config, description = config_of(copy), copy / "models/model.json"
    description.write_text(description.read_text().replace('"packed_size": 40', '"packed_size": 64'))
    with pytest.raises(UserError) as refusal:
        evaluate.run(config)
    assert str(refusal.value) == (
        f"{copy}/models/model.json: made for packed images of 64 pixels, {copy}/data/packed has 40; "
        f"they do not belong together; train again (dvc repro --force --single-item train)"
    )


def test_weights_that_do_not_fit(copy: Path) -> None:
    """Truncated weights, and weights of another model, are refused with the remedy."""
    weights = copy / "models/model.safetensors"
    whole = weights.read_bytes()
    for content in (whole[: len(whole) // 2], b""):
        weights.write_bytes(content)
        with pytest.raises(
            UserError, match=r"damaged: .*; train a model \(dvc repro\) or fetch a shared one \(dvc pull\)$"
        ):
            exported.load(copy / "models")
    save_file({"other": np.zeros(3, np.float32)}, weights)
    with pytest.raises(UserError, match=r"not the weights of the shufflenet_v2_x0_5 with 3 classes"):
        exported.load(copy / "models")


def test_another_normalization(copy: Path) -> None:
    """A model.json with another mean than this code's is refused: predictions would be wrong without a sign of it."""
    description = copy / "models/model.json"
    description.write_text(description.read_text().replace("0.485", "0.5"))
    with pytest.raises(UserError, match=r"normalized with mean \[0\.5, .*; this code has \[0\.485, "):
        exported.load(copy / "models")


def test_a_broken_model(copy: Path) -> None:
    """A model whose weights or answers are not numbers is refused before anything is written."""
    weights = copy / "models/model.safetensors"
    tensors = load_file(weights)
    largest = np.finfo(np.float32).max
    for kernel, bias, said in (
        (0, math.nan, r"model\.safetensors: the tensor 'fc\.bias' has .* not finite numbers .*dvc repro"),
        (largest, largest, "the model's outputs are not finite numbers"),
    ):
        tensors |= {"fc.weight": np.full_like(tensors["fc.weight"], kernel), "fc.bias": np.full(3, bias, np.float32)}
        save_file(tensors, weights)
        with pytest.raises(UserError, match=said):
            evaluate.run(config_of(copy))
    assert not (copy / "metrics/eval.json").exists()


def test_no_test_image(copy: Path) -> None:
    """A split without a test image is refused."""
    path = copy / "data/split.csv"
    with path.open(encoding="utf-8", newline="") as lines:
        table = [[cell.replace("test", "val") for cell in line] for line in csv.reader(lines)]
    files.write_csv(path, table[0], table[1:])
    with pytest.raises(UserError) as refusal:
        evaluate.run(config_of(copy))
    assert str(refusal.value) == f"{path}: no test image; raise split.fractions.test, then dvc repro"
