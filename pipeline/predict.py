"""Classify images with the exported model.

    python -m pipeline.predict IMAGE… [--json] [--device cuda]      files, or folders to look through

Prints one line `path: class probability` per image, or with --json one list with the probabilities of all classes. An
image is decoded, resized and cropped exactly as a test image (model.json). It may have at most split.max_pixels. A file
that is not an image is named on stderr, and the exit status is then 1. In a folder, files that are no images by name
and content are only counted. Of the params only the paths, that limit and
evaluate.batch_size are read. They are not checked against this machine: it may predict where it could not train.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.base.errors import UserError, exit_status
from pipeline.config import machine, params
from pipeline.config.params import Train
from pipeline.engine import environment
from pipeline.models import description
from pipeline.models.description import Description


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


def predict(arguments: Sequence[Path], as_json: bool, device: str) -> int:
    """Print the answer for each image; the number of files that are not images. Raises UserError without a model."""
    config = params.load()
    if device == "cuda" and machine.read().cuda_devices == 0:
        raise UserError("--device: 'cuda' needs an NVIDIA GPU and its driver (found: none); allowed here: cpu")
    models, refused = Path(config.paths.models), list[UserError]()
    set_variables(config.train, description.load(models))
    from pipeline.engine import determinism
    from pipeline.evaluation import classify
    from pipeline.models import exported

    model = exported.load(models)
    if model.arithmetic == "portable":
        determinism.make_deterministic(config.train.threads, deterministic=True)
    loaded = classify.load_images(arguments, model.view, config.split.max_pixels, refused)
    each = classify.answers(model, loaded, config.evaluate.batch_size, device)
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
