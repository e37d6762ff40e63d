"""The summary after the last stage: the test metrics, the files and pages with more, and the next commands."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.base import files
from pipeline.base.text import in_words, visible
from pipeline.config.params import Paths
from pipeline.data import split_report
from pipeline.dataset import split_table
from pipeline.dataset.split_table import SPLITS, ImageRow
from pipeline.evaluation import figures, metrics
from pipeline.evaluation.figures import EvalFigures
from pipeline.running.terminal import bold
from pipeline.versioning import dvc_lock, integrity

Rows = Sequence[tuple[str, str]]  # name and text
Images = Mapping[str, ImageRow]  # path → the row of split.csv, for each image that is not excluded
PARTS = "the accuracies are of other test images; perennial compare HEAD workspace tests on those of both"


@dataclass(frozen=True)
class Evaluation:
    """The last evaluation in dvc.lock, by the MD5 of its input and output: DVC's cache has those of earlier runs."""

    split: str
    predictions: str


def evaluation(stage_hashes: dvc_lock.StageHashes, paths: Paths) -> Evaluation | None:
    """The evaluation in a dvc.lock; None if there is none."""
    if "evaluate" not in stage_hashes:
        return None
    deps, outs = stage_hashes["evaluate"]["deps"], stage_hashes["evaluate"]["outs"]
    return Evaluation(deps.get(paths.split, ""), outs.get(f"{paths.metrics}/{figures.PREDICTIONS}", ""))


def question(committed: Evaluation | None, after: Evaluation | None) -> Rows:
    """The command that compares this result with the committed one; empty if there is no other result."""
    is_other = committed and after and committed.predictions != after.predictions
    return [("better than the commit?", "perennial compare HEAD workspace")] if is_other else []


def changes_since(before: Evaluation | None, after: Evaluation | None, cache: Path) -> Rows:
    """The accuracy of an earlier evaluation, which images were added, removed or changed since then, and which moved.

    Empty if no image was, or if `cache`, which is DVC's, lacks a table of the evaluations.
    """
    if not before or not after or before.split == after.split:
        return []
    objects = [integrity.object_of(cache, md5) for md5 in (before.split, before.predictions, after.split)]
    if not all(path.is_file() for path in objects):
        return []
    old, new = ({row.path: row for row in split_table.kept_rows(table)} for table in (objects[0], objects[2]))
    if not (changes := ", ".join(_changes(old, new))):
        return []
    moved = sum(old[path].split != new[path].split for path in old.keys() & new.keys())
    answers = files.read_csv(objects[1])
    right, total = sum(row["label"] == row["prediction"] for row in answers), len(answers)
    low, high = metrics.wilson(right, total)
    return [
        ("earlier test accuracy", f"{right / total:.4f} (95 % interval: {low:.4f} to {high:.4f}, {total:,} images)"),
        ("used images since then", changes),
        *([("note", f"in another part than earlier: {moved:,} of the images; {PARTS}")] if moved else []),
    ]


def _identity(row: ImageRow) -> tuple[str, str]:
    """What makes an image another one."""
    return row.label, row.pixels


def _changes(old: Images, new: Images) -> Iterator[str]:
    """The number of images that were added, removed or changed, in total and for each class."""
    both = new.keys() & old.keys()
    for word, paths, table in (
        ("added", new.keys() - old.keys(), new),
        ("removed", old.keys() - new.keys(), old),
        ("changed", {path for path in both if _identity(new[path]) != _identity(old[path])}, new),
    ):
        if counts := Counter(table[path].label for path in sorted(paths)):
            class_counts = in_words([f"{visible(label)} {images:,}" for label, images in counts.most_common()])
            yield f"{len(paths):,} {word} ({class_counts})"


def summary(paths: Paths, *, has_report: bool = True, earlier: Rows = ()) -> str:
    """The numbers of images, the test metrics, the files with more, and the next commands; empty before an evaluation.

    `has_report`: whether the page in paths.reports is of the same run; it is named at the end. `earlier`: the rows of
    `changes_since` and `question`.
    """
    folder = Path(paths.metrics)
    table = folder / split_report.IMAGES
    if not (table.is_file() and figures.path(folder, EvalFigures).is_file()):
        return ""
    classes, eval_figures = files.read_csv(table), figures.read(folder, EvalFigures)
    low, high = eval_figures.interval
    number = {column: sum(int(row[column]) for row in classes) for column in (*SPLITS, "excluded")}
    few = split_report.few_test_images({row["class"]: {"test": int(row["test"])} for row in classes})
    constant = no_better_than_constant(eval_figures.accuracy, [int(row["test"]) for row in classes])
    used_images = sum(number[name] for name in SPLITS)
    splits = ", ".join(f"{number[name]:,} {name}" for name in SPLITS)
    rows = [
        ("images", f"{used_images:,} of {used_images + number['excluded']:,} are used: {splits}"),
        (
            "test accuracy",
            f"{bold(f'{eval_figures.accuracy:.4f}')} "
            f"(95 % interval: {low:.4f} to {high:.4f}, {number['test']:,} images)",
        ),
        *earlier,
        *([("note", few)] if few else []),
        *([("note", constant)] if constant else []),
        *metrics.titled(eval_figures, 4),
        ("", ""),
        ("the split", f"{paths.split} (each image: train, val, test, or why it is not used)"),
        ("plots", "dvc plots show"),
        *([("curves of the training", f"tensorboard --logdir {paths.runs}")] if has_curves(folder) else []),
        ("classify an image", "perennial predict IMAGE"),
        (
            "keep this result",
            "git add . && git commit -m 'My model'; to share it: dvc push (once: dvc remote add -d NAME ADDRESS)",
        ),
    ]
    if has_report:
        rows += [("", ""), ("the report", f"{paths.reports}/index.html: all of this and more, for a browser")]
    return "\n".join(f"{name:<24} {value}".rstrip() for name, value in rows)


def has_curves(metrics: Path) -> bool:
    """Whether the training had steps: a head that is solved has none."""
    table = metrics / figures.HISTORY
    return not table.is_file() or any(row["step"] != "0" for row in files.read_csv(table))


def no_better_than_constant(accuracy: float, test_images: Sequence[int]) -> str:
    """A sentence if the accuracy is not above that of one answer for every image; else empty.

    `test_images`: the number of each class.
    """
    constant = max(test_images) / sum(test_images)
    if accuracy > constant:
        return ""
    remedy = "take more photos, or pretrained weights (perennial start quick)"
    return f"no better than one answer for every image ({constant:.4f}); {remedy}"
