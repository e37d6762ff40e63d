"""Classify images with the exported model.

    perennial predict IMAGE… [--model FOLDER | FILE] [--top N] [--coverage C] [--json | --csv] [--device cuda]
                      [--heatmap FOLDER] [--html FILE] [--next N]
    perennial predict --split val …

IMAGE is a file, a folder to look through, an address (https://…), or - for standard input. With --split, the images are
the project's own of this part of data/split.csv, with the labels of this table. Prints one line `path: class
probability` per image as it goes; with --json one JSON object per line, with --csv a table. An image is decoded,
resized and cropped exactly as a test image (model.json). A file that is not an image is named on stderr, and the exit
status is then 1. In a folder, files that are no images by name and content are only counted. An image of a size that
training excludes is refused, too.

An image whose highest probability is lower than that of 95 % of the validation images (evaluate.coverage, or
--coverage) is none of the classes. This needs 20 validation images per class. Without them every image gets a class,
and stderr says why.

Of a folder with a model, model.onnx computes if `export` made it from these weights: it then gave the class of every
test image. Otherwise model.safetensors computes, and so it does for a portable model. Stderr names the file and the
reason. --model FILE asks for one of the two. While a training runs, or after it was stopped, the folder of params.yaml
has no model: `dvc get . models --rev HEAD -o last` brings the committed one, for --model.

--heatmap FOLDER writes a picture for each image: what the model sees of it, in grey, and over it, from dark blue to
yellow, what speaks for the most likely class. The mean over all places is the logit, exactly (evaluation/heatmap.py).
This needs model.safetensors, a network with global average pooling and a linear head, and a new or an empty folder. Of
two images with the same name the second one gets a number (a.png, a-2.png); with --json each answer names its picture.

--html FILE writes a page with every image and its answer, and with its heat map if those are asked for. Where folders
are named like classes, and with --split, the page and the last lines say how many images get the right class. They also
count the images that the model was trained on: those whose bytes are a train or val image of data/split.csv.

--next N prints the paths of the N images that should be labelled next, the first one first: those that the model is
unsure of, and that differ from each other (answers/next_photos.py). Images that data/split.csv has are left out. With
--json or --csv these images are answered, with their two most likely classes.

Each image is computed alone, so its probabilities do not depend on other images. With --model no params.yaml is read:
the current folder can be any. Otherwise only the paths, split.max_pixels, split.min_side and train.threads are read
from it. They are not checked against this machine: it may predict where it could not train. A model.onnx is computed by
onnxruntime, without torch: the first answer then takes less than a second.
"""

import csv
import io
import json
import sys
import tempfile
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from pipeline.answers import classify, gallery_page, next_photos, own_images
from pipeline.answers.answer import Answer, as_typed, check_page
from pipeline.answers.classify import Request
from pipeline.base import files
from pipeline.base.errors import Fault, UserError
from pipeline.base.text import is_no_path, visible
from pipeline.config import params
from pipeline.config.params import Params

MOST_COUNTED = 20  # classes in the last line
NONE = "none of the classes"


def predict(request: Request, form: str = "text", top: int | None = None, html: Path | None = None) -> int:
    """Print the answer for each image. Returns the number of files that are not images.

    `form` is a key of FORMS. `top` is the number of classes for an image: by default one, in JSON all. `html`: the
    page. Raises UserError without a model.
    """
    if sys.stdout is None:
        remedy = "leave out >&-"
        raise UserError(Fault("standard output", "closed", "missing", "", "a terminal, a file or a program", remedy))
    if html:
        check_page("--html", html, request.below)
    config = Params() if request.model and not request.split else params.load()
    if request.split:
        labels = own_images.of_split(request.split, config)
        request = replace(request, images=tuple(map(Path, labels)), labels=labels)
    refusals, answers = list[UserError](), list[Answer]()
    head, as_text = FORMS["paths" if request.next and form == "text" else form]
    try:
        sys.stdout.write(head)
        computed: Iterable[Answer] = with_progress(classify.answers(request, config, refusals), request)
        for answer in next_photos.to_label(computed, request.next, config) if request.next else computed:
            answers.append(replace(answer, probabilities=answer.most_likely(1)))  # all would fill the memory
            sys.stdout.write(as_text(answer, top))
            sys.stdout.flush()
        sys.stdout.flush()
    except OSError as error:  # an error of an image file is a UserError, so this is of an output; a picture has a name
        error.filename = error.filename or "standard output"
        raise
    has_folder = request.split or any(isinstance(path, Path) and path.is_dir() for path in request.images)
    is_counted = form == "text" and answers and has_folder
    asked = [one.file for one in answers] if request.model is None or request.split else []  # else not this project's
    used = own_images.known(asked, ("train", "val"), config) if is_counted or html else set()
    if is_counted:
        counts = as_counts(Counter(one.prediction if one.is_accepted else NONE for one in answers))
        lines = [counts, *gallery_page.shares(answers, used, request)]
        print(*(f"predict: {line}" for line in lines), sep="\n", file=sys.stderr)
    if html:
        files.write_text(html, gallery_page.page(answers, config, request, used))
        print(f"predict: the page, for a browser: {as_typed(html, request.below)}", file=sys.stderr)
    return len(refusals)


def with_progress(answers: Iterable[Answer], request: Request) -> Iterator[Answer]:
    """The answers, with a progress bar on stderr if a person sees it and does not see the answers."""
    if not sys.stderr.isatty() or (sys.stdout.isatty() and not request.next):
        yield from answers
        return
    from tqdm import tqdm

    from pipeline.evaluation import photos

    yield from tqdm(answers, "predict", photos.count_files(request.images), unit=" images")


def as_counts(classes: Counter[str]) -> str:
    """How many images got each class, the most frequent one first: `12 images: daisy 7, rose 5`."""
    total, others = classes.total(), len(classes) - MOST_COUNTED
    counts = ", ".join(f"{label} {count:,}" for label, count in classes.most_common(MOST_COUNTED))
    more = f", and {others:,} more classes" if others > 0 else ""
    return printable(f"{total:,} {'image' if total == 1 else 'images'}: {counts}{more}")


def as_line(answer: Answer, top: int | None) -> str:
    """One answer as a line: path, class, and probability with four decimals; with `top` more classes."""
    text = ", ".join(f"{label} {chance:.4f}" for label, chance in answer.most_likely(top or 1).items())
    return printable(f"{answer.path}: {text if answer.is_accepted else f'{NONE} ({text})'}") + "\n"


def as_json(answer: Answer, top: int | None) -> str:
    """One answer as a line of JSON, with JSON's escapes where `printable` has Python's: it gives every name back."""
    known = {"path": answer.path, "class": answer.prediction, "probability": answer.probability, "answer": answer.kind}
    chances = {"probabilities": answer.most_likely(top) if top else answer.probabilities}
    picture = {"heatmap": answer.heatmap} if answer.heatmap else {}
    text = json.dumps({**known, **chances, **picture}, ensure_ascii=False)
    if printable(text) != text:
        text = "".join(letter if printable(letter) == letter else json.dumps(letter)[1:-1] for letter in text)
    return text + "\n"


def as_csv(answer: Answer, top: int | None) -> str:
    """One answer as rows of a table, one for each of the most likely classes."""
    rows = io.StringIO()
    csv.writer(rows, lineterminator="\n").writerows(
        (printable(answer.path), rank, printable(label), chance, answer.kind)
        for rank, (label, chance) in enumerate(answer.most_likely(top or 1).items(), start=1)
    )
    return rows.getvalue()


# The forms of the output: what is printed before the first answer, and the text of an answer.
FORMS: dict[str, tuple[str, Callable[[Answer, int | None], str]]] = {
    "text": ("", as_line),
    "json": ("", as_json),
    "csv": ("path,rank,class,probability,answer\n", as_csv),
    "paths": ("", lambda answer, _: f"{printable(answer.path)}\n"),
}


def printable(text: str) -> str:
    """The text with Python's escapes for characters that act (`visible`), that the output's encoding lacks, and for
    bytes that are not UTF-8."""
    encoding = sys.stdout.encoding or "utf-8"
    return visible(text).encode(encoding, "backslashreplace").decode(encoding)


def main(arguments: Namespace) -> int:
    images = tuple(image if is_no_path(image) else Path(image) for image in arguments.images)
    model = Path(arguments.model) if arguments.model else None
    heatmap = Path(arguments.heatmap) if arguments.heatmap else None
    html = Path(arguments.html) if arguments.html else None
    has_others = any(map(is_no_path, arguments.images))
    with tempfile.TemporaryDirectory() if has_others else nullcontext("") as folder:
        request = Request(
            images, model, arguments.device, arguments.max_pixels, arguments.coverage, arguments.min_side, heatmap,
            arguments.below, Path(folder), arguments.split, next=arguments.next,
        )  # fmt: skip
        return 1 if predict(request, arguments.form, arguments.top, html) else 0
