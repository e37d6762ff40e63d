"""A small untrained model with packed images of its own, evaluated and exported."""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from pipeline.base import files
from pipeline.config import params
from pipeline.config.params import Params
from pipeline.dataset import packed, split_table
from pipeline.evaluation import acceptance
from pipeline.learning import results, state
from pipeline.models import network
from pipeline.sources.originals import Originals
from pipeline.stages import prepare
from tests.conftest import below, on_cpu, read_params, write_params
from tests.helpers import starts

CLASSES = ("daisy", "rose", "tulip")


def draw(path: Path, size: tuple[int, int], colour: int, random: np.random.Generator) -> None:
    """Save a noisy image of one colour."""
    pixels = random.integers(0, 120, (size[1], size[0], 3))
    pixels[..., colour] += 120
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(path)


def export_model(folder: Path) -> None:
    """Fill a folder with params, images, split, packed images and an untrained model, as earlier stages do.

    The model is evaluated, and exported with limits that give each image one class.
    """
    folder.mkdir()
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
    kept = [(path, *size) for path, _, _, reason, *size, _, _, _ in sorted(lines) if not reason]
    files.write_csv(folder / config.paths.kept, split_table.PACKED_COLUMNS, kept)
    config = below(folder, config)
    paths = config.paths
    images = Originals(Path(paths.images), {})
    prepare.prepare(images, Path(paths.kept), Path(paths.packed), config.prepare, workers=2)
    weights = network.export_state(network.build(config.train.model, len(CLASSES), seed=1))
    history = [dict.fromkeys(state.HISTORY, 0.0) | {"epoch": 1, "step": 1}]
    data = packed.load(Path(paths.packed), Path(paths.split))
    results.write(config, data.classes, weights, state.Progress(step=1, history=history))
    starts.run([sys.executable, "-m", "pipeline", "rank", "evaluate"], cwd=folder, check=True)
    digest = files.sha256(folder / "models/model.safetensors")
    acceptance.write(folder / "models", acceptance.make(digest, 0.95, [0.0] * 60, len(CLASSES)))
    starts.run([sys.executable, "-m", "pipeline", "export"], cwd=folder, check=True)


def config_of(folder: Path) -> Params:
    return below(folder, params.load(folder / "params.yaml"))
