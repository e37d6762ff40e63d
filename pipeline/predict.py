"""Classify images with the exported model.

    python -m pipeline.predict IMAGE… [--model FOLDER | FILE.onnx] [--top N] [--json | --csv] [--device cuda]

IMAGE is a file, or a folder to look through. Prints one line `path: class probability` per image as it goes; with
--json one JSON object per line, with --csv a table. An image is decoded, resized and cropped exactly as a test image
(model.json). A file that is not an image is named on stderr, and the exit status is then 1. In a folder, files that are
no images by name and content are only counted.

With --model no params.yaml is read, so the current folder can be any. Otherwise only the paths, split.max_pixels,
train.threads and evaluate.batch_size are read from it. They are not checked against this machine: it may predict where
it could not train. A model.onnx is computed by onnxruntime, without torch: the first answer then takes less than a
second.
"""

import argparse
import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.base import linux
from pipeline.base.errors import UserError, exit_status
from pipeline.config import machine, params
from pipeline.config.params import Params, Train
from pipeline.engine import environment
from pipeline.models import description
from pipeline.models.description import Description

Answer = dict[str, Any]  # as `photos.answer` makes it


@dataclass(frozen=True)
class Request:
    """What the command line asks for."""

    images: tuple[Path, ...]
    model: Path | None = None  # a folder or a model.onnx; None: that of params.yaml
    form: str = "text"  # a key of FORMS
    top: int | None = None  # so many of the most likely classes; None: one, in JSON all
    device: str = "cpu"
    max_pixels: int | None = None  # None: split.max_pixels


def set_variables(settings: Train, model: Description) -> None:
    """Set the variables that decide how this process computes, before it imports its libraries. Raises UserError.

    A model of train.arithmetic: portable answers with the same bytes on every CPU that has what this needs, with the
    same train.threads.
    """
    if model.arithmetic == "native":
        return
    if lacking := machine.cpu_lacks():
        print(
            f"predict: this CPU lacks {' and '.join(lacking)}, so the last digits may differ from another CPU's",
            file=sys.stderr,
        )
        return
    os.environ.update(environment.required_variables(settings.threads, True, model.arithmetic))


def predict(request: Request) -> int:
    """Print the answer for each image; the number of files that are not images. Raises UserError without a model."""
    config = params.load() if request.model is None else Params()
    refused = list[UserError]()
    is_onnx = request.model is not None and not request.model.is_dir()
    each = (by_onnxruntime if is_onnx else by_torch)(request, config, refused)
    head, as_text = FORMS[request.form]
    try:
        sys.stdout.write(head)
        for answer in with_progress(each, request):
            sys.stdout.write(as_text(answer, request.top))
            sys.stdout.flush()
        sys.stdout.flush()
    except OSError as error:  # an error of an image file is a UserError, so this is the output's
        error.filename = "standard output"
        raise
    return len(refused)


def by_torch(request: Request, config: Params, refused: list[UserError]) -> Iterator[Answer]:
    """The answers of the model in a folder."""
    if request.device == "cuda" and machine.read().cuda_devices == 0:
        raise UserError("--device: 'cuda' needs an NVIDIA GPU and its driver (found: none); allowed here: cpu")
    models = request.model or Path(config.paths.models)
    set_variables(config.train, description.load(models))
    from pipeline.engine import determinism
    from pipeline.evaluation import classify, photos
    from pipeline.models import exported

    model = exported.load(models)
    if model.arithmetic == "portable":
        determinism.make_deterministic(config.train.threads, deterministic=True)
    limit = request.max_pixels or config.split.max_pixels
    loaded = photos.load_images(request.images, model.view, limit, refused)
    return classify.answers(model, loaded, config.evaluate.batch_size, request.device)


def by_onnxruntime(request: Request, config: Params, refused: list[UserError]) -> Iterator[Answer]:
    """The answers of a model.onnx."""
    assert request.model is not None
    if request.device != "cpu":
        raise UserError(f"--device: {request.device!r}: {request.model} is computed on the CPU; allowed: cpu")
    from pipeline.evaluation import onnx_classify, photos
    from pipeline.models import onnx_file

    with onnx_file.ended_by_ctrl_c():
        model = onnx_file.load(request.model, linux.usable_cores())
    limit = request.max_pixels or config.split.max_pixels
    return onnx_classify.answers(model, photos.load_images(request.images, model.view, limit, refused))


def with_progress(each: Iterable[Answer], request: Request) -> Iterator[Answer]:
    """The answers, with a progress bar on stderr if a person sees it and does not see the answers."""
    if not sys.stderr.isatty() or sys.stdout.isatty():
        yield from each
        return
    from tqdm import tqdm

    from pipeline.evaluation import photos

    yield from tqdm(each, "predict", photos.number_of_files(request.images), unit=" images")


def most_likely(answer: Answer, top: int) -> list[tuple[str, float]]:
    """The most likely classes with their probabilities, the first one first."""
    return sorted(answer["probabilities"].items(), key=lambda item: -item[1])[:top]


def as_line(answer: Answer, top: int | None) -> str:
    """One answer as a line: path, class, and probability with four decimals; with `top` more classes."""
    shown = ", ".join(f"{label} {chance:.4f}" for label, chance in most_likely(answer, top or 1))
    return printable(f"{answer['path']}: {shown}") + "\n"


def as_json(answer: Answer, top: int | None) -> str:
    """One answer as a line of JSON. If the output's encoding lacks one of its letters, it has JSON escapes instead."""
    if top is not None:
        answer = answer | {"probabilities": dict(most_likely(answer, top))}
    text = json.dumps(answer, ensure_ascii=False)
    return (text if printable(text) == text else json.dumps(answer)) + "\n"


def as_csv(answer: Answer, top: int | None) -> str:
    """One answer as rows of a table, one for each of the most likely classes."""
    rows = io.StringIO()
    ranked = enumerate(most_likely(answer, top or 1), start=1)
    csv.writer(rows, lineterminator="\n").writerows((answer["path"], rank, *found) for rank, found in ranked)
    return printable(rows.getvalue())


# The forms of the output: what is printed before the first answer, and the text of an answer.
FORMS: dict[str, tuple[str, Callable[[Answer, int | None], str]]] = {
    "text": ("", as_line),
    "json": ("", as_json),
    "csv": ("path,rank,class,probability\n", as_csv),
}


def printable(text: str) -> str:
    """The text with Python's escapes for letters that the output's encoding lacks, and for bytes that are not UTF-8."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def positive(text: str) -> int:
    """A whole number of at least 1. Raises ValueError, which argparse reports."""
    if (number := int(text)) < 1:
        raise ValueError
    return number


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pipeline.predict", description="Classify images.")
    parser.add_argument("images", nargs="+", type=Path, metavar="IMAGE", help="an image, or a folder to look through")
    parser.add_argument(
        "--model", type=Path, metavar="PATH",
        help="a folder with model.json, or a model.onnx; then no params.yaml is read (default: that of params.yaml)",
    )  # fmt: skip
    parser.add_argument("--top", type=positive, metavar="N", help="print the N most likely classes")
    parser.add_argument(
        "--max-pixels", type=positive, metavar="N", help="refuse larger images (default: split.max_pixels)"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to compute (default: cpu)")
    forms = parser.add_mutually_exclusive_group()
    for form, what in (("json", "one JSON object per line, with all classes"), ("csv", "path,rank,class,probability")):
        forms.add_argument(f"--{form}", dest="form", action="store_const", const=form, default="text", help=what)
    given = parser.parse_args()
    request = Request(tuple(given.images), given.model, given.form, given.top, given.device, given.max_pixels)
    return exit_status("predict", lambda: 1 if predict(request) else 0)


if __name__ == "__main__":
    sys.exit(main())
