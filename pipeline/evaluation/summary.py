"""What a person wants to know after the last stage: how good the model is, where to look, and what to do next."""

import json
from pathlib import Path

from pipeline.base import files
from pipeline.config.params import Paths
from pipeline.data.split_table import SPLITS


def summary(paths: Paths, *, reported: bool = True) -> str:
    """The images, the metrics on the test images, where to look, and what to do next; empty before an evaluation.

    `reported`: the page in paths.reports is of the same run; it is named at the end.
    """
    table, figures = Path(paths.metrics) / "images.csv", Path(paths.metrics) / "eval.json"
    if not (table.is_file() and figures.is_file()):
        return ""
    classes, found = files.read_csv(table), json.loads(figures.read_bytes())
    interval = f"95 % interval: {found['accuracy_low']:.4f} to {found['accuracy_high']:.4f}"
    number = {column: sum(int(row[column]) for row in classes) for column in (*SPLITS, "excluded")}
    kept = sum(number[name] for name in SPLITS)
    splits = ", ".join(f"{number[name]:,} {name}" for name in SPLITS)
    rows = [
        ("images", f"{kept:,} of {kept + number['excluded']:,} are used: {splits}"),
        ("test accuracy", f"{found['accuracy']:.4f} ({interval}, {number['test']:,} images)"),
        ("balanced accuracy", f"{found['balanced_accuracy']:.4f}"),
        ("macro F1", f"{found['macro_f1']:.4f}"),
        ("negative log-likelihood", f"{found['nll']:.4f}"),
        ("calibration error", f"{found['ece']:.4f}"),
        ("", ""),
        ("the split", f"{paths.split} (each image: train, val, test, or why it is not used)"),
        ("plots", "dvc plots show"),
        ("curves of the training", f"tensorboard --logdir {paths.runs}"),
        ("classify an image", "python -m pipeline.predict IMAGE"),
        ("keep this result", "git add . && git commit -m 'My model'; to share it: dvc push"),
    ]
    if reported:
        rows += [("", ""), ("the report", f"{paths.reports}/index.html: all of this and more, for a browser")]
    return "\n".join(f"{name:<24} {value}".rstrip() for name, value in rows)
