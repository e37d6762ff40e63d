"""Perennial: images in class folders become a trained, measured, versioned classifier; repeated, the same bytes."""

import gc
import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path

from pipeline.base.errors import import_error_hook

# What a command prints before anything else. Its imports take a second or more.
FIRST_LINES = {
    "download": "download: getting the images",
    "split": "split: checking every image, and assigning it to train, val or test",
    "prepare": "prepare: resizing the images, and packing them into one file",
    "weights": "weights: getting pretrained weights, if train.weights asks for some",
    "launch train": "train: starting; it takes some seconds until the first step",
    "launch evaluate": "evaluate: measuring the trained model on the test images",
    "export": "export: writing the model as ONNX, and comparing its answers on the test images",
    "card": "card: describing the model for the Hugging Face Hub",
    "report": "report: writing a page with the figures, the curves, the mistakes and the data",
    "predict": "predict: loading the model",
    "doctor": "doctor: looking at this machine and at params.yaml",
    "start": "start: looking at this machine and at your images",
    "continue_from": "continue_from: getting the model from DVC",
    "compare": "compare: reading the experiments and their figures from Git and DVC",
    "folds": "folds: training and testing on every fold, in copies of the project",
    "sweep": "sweep: reading the ranges, and checking the params of every trial",
    "repro": "repro: checking the files of earlier runs, then running the stages (dvc repro)",
    "demo": "demo: running all stages on drawn flowers in .demo/, a copy of the project",
    "verify": "verify: comparing the files here with dvc.lock; then the stages run again, in a copy",
    "verify --elsewhere": "verify: comparing the inputs here with dvc.lock; then a copy trains with several seeds",
    "verify --record-seeds": "verify: comparing the inputs here with dvc.lock; then a copy trains with several seeds",
}
ANSWERS_ON_STDOUT = {"compare", "predict"}  # their first line goes to stderr, and only if a person sees it


def start_command() -> None:
    """Set up the interpreter for a command of this package, before the command imports its libraries."""
    # Importing torch creates a million objects that stay. By default Python searches them for garbage again and again,
    # which takes a sixth of a start [measured]. See also the end of `stage.main`.
    gc.set_threshold(100_000, 50, 50)
    # The imports can fail for lack of memory (ulimit -v), before the command's own error handling has begun.
    sys.excepthook = import_error_hook
    # torchrun starts Python with -u. Then print writes a line and its end in two steps, and the lines of several
    # processes mix. Every line is one write.
    if isinstance(sys.stderr, TextIOWrapper):
        sys.stderr.reconfigure(line_buffering=True, write_through=False)
    if sys.argv[0] == "-m":
        say_first_line(sys.orig_argv[-len(sys.argv)], sys.argv[1:])


def say_first_line(module: str, arguments: list[str]) -> None:
    """Print what `python -m module arguments` does, unless it is asked for help."""
    command = module.removeprefix("-m").removeprefix(f"{__name__}.")
    line = FIRST_LINES.get(" ".join([command, *arguments[:1]]), FIRST_LINES.get(command, ""))
    descriptor = 2 if command in ANSWERS_ON_STDOUT else 1
    if line and not {"-h", "--help"} & {*arguments} and (descriptor == 1 or os.isatty(descriptor)):
        with suppress(OSError):  # not with print: what it cannot write, it would try to write again at the end
            os.write(descriptor, f"{line}\n".encode())


# `python -m pipeline.<command>` imports this file first, before the imports of the command. Python has not yet replaced
# "-m" by the command's path. A process that `launch` spawns already has that path. A program that imports this package
# as a library is left as it is.
if sys.argv[0] == "-m" or Path(sys.argv[0]).parent == Path(__file__).parent:
    start_command()
