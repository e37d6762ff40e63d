"""Classify images with the exported model.

    python -m pipeline.predict IMAGE… [--json] [--device cuda]      files, or folders to look through

Prints one line `path: class probability` per image, or with --json one list with the probabilities of all classes. An
image is decoded, resized and cropped exactly as a test image (model.json). It may have at most split.max_pixels. A file
that is not an image is named on stderr, and the exit status is then 1. Of the params only the paths, that limit and
evaluate.batch_size are read. They are not checked against this machine: it may predict where it could not train.
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
from pipeline.models.exported import ExportedModel, View


@dataclass(frozen=True)
class LoadedImage:
    """An image file as `prepare` would pack it."""

    path: Path
    pixels: NDArray[np.uint8]  # [S, S, 3]
    size: tuple[int, int]  # width and height of the original, upright


def load_image(path: Path, view: View, max_pixels: int) -> LoadedImage:
    """Decode one file once. Raises UserError if it is not an image, cannot be read, or has more than `max_pixels`."""
    try:
        return LoadedImage(path, *images.square_and_size(path, view.packed_size, max_pixels, view.grey))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give the path of an image") from None


def image_paths(path: Path) -> list[Path]:
    """The path itself if it is a file; all files below it, sorted, without junk, if it is a folder.

    Raises UserError for a folder without files, and OSError if the path cannot be looked up.
    """
    if not path.is_dir():
        return [path]
    paths = sorted(
        file
        for file in path.rglob("*")
        if (file.is_symlink() or not file.is_dir()) and not files.is_junk(file.relative_to(path))
    )
    if not paths:
        raise UserError(f"{path}: no file in this folder; give images, or a folder with some")
    return paths


def load_images(
    arguments: Sequence[Path], view: View, max_pixels: int, refused: list[UserError]
) -> Iterator[LoadedImage]:
    """Every image of these files and folders, in order. Other files are named on stderr and put into `refused`."""

    def refuse(error: UserError) -> None:
        print(f"predict: {error}", file=sys.stderr)
        refused.append(error)

    for argument in arguments:
        try:
            paths = image_paths(argument)
        except UserError as error:
            refuse(error)
            continue
        except OSError as error:
            refuse(UserError(f"{argument}: {error.strerror}; give the path of an image"))
            continue
        for path in paths:
            try:
                yield load_image(path, view, max_pixels)
            except UserError as error:
                refuse(error)


def answers(
    model: ExportedModel, loaded: Iterable[LoadedImage], batch_size: int, device: str
) -> Iterator[dict[str, Any]]:
    """The answer for each image: path, class, its probability, and the probabilities of all classes."""
    world, remaining = World(rank=0, local_rank=0, size=1, device=torch.device(device)), iter(loaded)
    while batch := list(islice(remaining, batch_size)):
        image_store = ImageStore(torch.from_numpy(np.stack([image.pixels for image in batch])), world.device)
        sizes = np.array([image.size for image in batch], np.int32)
        log_probs = inference.predict_log_probs(
            model, image_store, sizes, np.arange(len(batch)), batch_size=batch_size, world=world
        )
        for image, probabilities in zip(batch, np.exp(log_probs).tolist(), strict=True):
            by_class = dict(zip(model.classes, probabilities, strict=True))
            best = max(by_class, key=by_class.__getitem__)
            yield {
                "path": str(image.path),
                "class": best,
                "probability": by_class[best],
                "probabilities": by_class,
            }


def predict(arguments: Sequence[Path], as_json: bool, device: str) -> int:
    """Print the answer for each image; the number of files that are not images. Raises UserError without a model."""
    config = params.load()
    if device == "cuda" and machine.read().cuda_devices == 0:
        raise UserError("--device: 'cuda' needs an NVIDIA GPU and its driver (found: none); allowed here: cpu")
    model, refused = exported.load(Path(config.paths.models)), list[UserError]()
    loaded = load_images(arguments, model.view, config.split.max_pixels, refused)
    each = answers(model, loaded, config.evaluate.batch_size, device)
    try:
        for text in json_list(each) if as_json else map(as_line, each):
            sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:  # an error of an image file is a UserError, so this is the output's
        error.filename = "standard output"
        raise
    return len(refused)


def as_line(answer: dict[str, Any]) -> str:
    """One answer as one line that ends in a newline: path, class, and probability with four decimals."""
    return printable(f"{answer['path']}: {answer['class']} {answer['probability']:.4f}") + "\n"


def json_list(each: Iterable[dict[str, Any]]) -> Iterator[str]:
    """All answers as one JSON list, in pieces of one answer, so that no more than one is in memory as text."""
    before = "["
    for answer in each:
        yield f"{before}\n  " + as_json_text(answer).replace("\n", "\n  ")
        before = ","
    yield "[]\n" if before == "[" else "\n]\n"


def as_json_text(answer: dict[str, Any]) -> str:
    """An answer as JSON. If the output's encoding lacks one of its letters, it has JSON escapes instead of letters."""
    text = json.dumps(answer, indent=2, ensure_ascii=False)
    return text if printable(text) == text else json.dumps(answer, indent=2)


def printable(text: str) -> str:
    """The text with Python's escapes for letters that the output's encoding lacks, and for bytes that are not UTF-8."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pipeline.predict", description="Classify images.")
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGE", help="an image, or a folder to look through")
    parser.add_argument("--json", action="store_true", help="print one JSON list with the probabilities of all classes")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to compute (default: cpu)")
    arguments = parser.parse_args()
    return exit_status("predict", lambda: 1 if predict(arguments.images, arguments.json, arguments.device) else 0)


if __name__ == "__main__":
    sys.exit(main())
