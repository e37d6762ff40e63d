"""Classify images with the versioned model.

    python -m pipeline.predict IMAGE… [--json] [--device cuda]      files, or folders to look through

Prints a line `path: class probability` an image, or with --json one list with the probabilities of all classes. A
image is seen as model.json says, exactly as the model saw its test images, and has at most split.max_pixels, as
those have. What is no image is named on stderr, and the exit status is then 1. The params are read for paths, that
limit and evaluate.batch_size only, and not checked against this machine: it may predict where it could not train.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.base import files
from pipeline.base.errors import UserError, exit_status
from pipeline.config import machine, params
from pipeline.data import images
from pipeline.engine.world import World
from pipeline.evaluation import inference
from pipeline.loader.storage import ImageStore
from pipeline.models import exported
from pipeline.models.exported import ExportedModel


@dataclass(frozen=True)
class LoadedImage:
    """A file as `prepare` would pack it."""

    path: Path
    pixels: NDArray[np.uint8]  # [S, S, 3]
    size: tuple[int, int]  # width and height, upright


def read(path: Path, packed_size: int, max_pixels: int) -> LoadedImage:
    """Read one file. Raises UserError if it is no image, cannot be read, or has more than `max_pixels`."""
    try:
        # Decoded twice, so that the one definition of squeezing serves here too.
        squeezed = images.resize_to_square(path, packed_size, max_pixels)
        with images.decoded(path, max_pixels) as image:
            return LoadedImage(path, squeezed, image.size)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give the path of an image") from None


def listed(given: Path) -> list[Path]:
    """The file itself, or all that a folder has but folders, sorted, without what an operating system left there.

    Raises UserError for a folder without any, OSError for what cannot even be looked up.
    """
    if not given.is_dir():
        return [given]
    inside = sorted(
        path
        for path in given.rglob("*")
        if (path.is_symlink() or not path.is_dir()) and not files.is_junk(path.relative_to(given))
    )
    if not inside:
        raise UserError(f"{given}: no file in this folder; give images, or a folder with some")
    return inside


def load_images(
    given: Sequence[Path], packed_size: int, max_pixels: int, refused: list[UserError]
) -> Iterator[LoadedImage]:
    """Every image of the given files and folders, in order; what is none is said on stderr and put into `refused`."""

    def refuse(refusal: UserError) -> None:
        print(f"predict: {refusal}", file=sys.stderr)
        refused.append(refusal)

    for start in given:
        try:
            paths = listed(start)
        except UserError as refusal:
            refuse(refusal)
            continue
        except OSError as error:
            refuse(UserError(f"{start}: {error.strerror}; give the path of an image"))
            continue
        for path in paths:
            try:
                yield read(path, packed_size, max_pixels)
            except UserError as refusal:
                refuse(refusal)


def answers(
    model: ExportedModel, shown: Iterable[LoadedImage], batch_size: int, device: str
) -> Iterator[dict[str, Any]]:
    """What each image shows: path, class, its probability, and the probabilities of all classes."""
    world, waiting = World(rank=0, local_rank=0, size=1, device=torch.device(device)), iter(shown)
    while batch := list(islice(waiting, batch_size)):
        image_store = ImageStore(torch.from_numpy(np.stack([image.pixels for image in batch])), world.device)
        sizes = np.array([image.size for image in batch], np.int32)
        found = inference.predict_log_probs(
            model, image_store, sizes, np.arange(len(batch)), batch_size=batch_size, world=world
        )
        for image, probabilities in zip(batch, np.exp(found).tolist(), strict=True):
            by_class = dict(zip(model.classes, probabilities, strict=True))
            best = max(by_class, key=by_class.__getitem__)
            yield {
                "path": str(image.path),
                "class": best,
                "probability": by_class[best],
                "probabilities": by_class,
            }


def predict(given: Sequence[Path], as_json: bool, device: str) -> int:
    """Print what the given images show; the number of files that are no images. Raises UserError without a model."""
    config = params.load()
    if device == "cuda" and machine.read().cuda_devices == 0:
        raise UserError("--device: 'cuda' needs an NVIDIA GPU and its driver (found: none); allowed here: cpu")
    model, refused = exported.load(Path(config.paths.models)), list[UserError]()
    shown = load_images(given, model.view.packed_size, config.split.max_pixels, refused)
    found = answers(model, shown, config.evaluate.batch_size, device)
    try:
        if as_json:
            print(as_one_list(list(found)))
        else:
            for answer in found:
                print(sayable(f"{answer['path']}: {answer['class']} {answer['probability']:.4f}"))
        sys.stdout.flush()
    except OSError as error:  # the files' own have become refusals
        error.filename = "standard output"
        raise
    return len(refused)


def sayable(text: str) -> str:
    """A text that can be printed here: what is no letter in the output's encoding, or no UTF-8, as Python writes it."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def as_one_list(found: list[dict[str, Any]]) -> str:
    """All answers as JSON, which has escapes of its own for what cannot be printed here."""
    text = json.dumps(found, indent=2, ensure_ascii=False)
    return text if sayable(text) == text else json.dumps(found, indent=2)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pipeline.predict", description="Classify images.")
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGE", help="an image, or a folder to look through")
    parser.add_argument("--json", action="store_true", help="print one JSON list with the probabilities of all classes")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to compute (default: cpu)")
    given = parser.parse_args()
    return exit_status("predict", lambda: 1 if predict(given.images, given.json, given.device) else 0)


if __name__ == "__main__":
    sys.exit(main())
