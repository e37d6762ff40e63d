"""What each step of a recipe brings, and what duplicates do to a figure: the tables of docs/folds.md.

python -m benchmarks recipes STUDIES   compares studies of all folds, and writes benchmarks/results/recipes.json
python -m benchmarks recipes           writes the tables in docs/folds.md anew, from that file

STUDIES has a folder <name>/ for each step in STEPS, with the summary.json and predictions.csv that `make folds` wrote,
and `ignore/` (the first step with split.duplicates: ignore) with the split.csv of the first step beside it. Two steps
are compared on the same images, by McNemar's exact test.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import measuring
from benchmarks.harness.phrases import found as searched
from benchmarks.harness.phrases import marked
from pipeline.base import files
from pipeline.base.errors import Fault, UserError
from pipeline.cards import markdown
from pipeline.data import split_table
from pipeline.data.split_table import DUPLICATE
from pipeline.evaluation import metrics
from pipeline.studies import record
from pipeline.studies.record import Record

RESULT = measuring.RESULTS / "recipes.json"
DOCUMENT = Path("docs/folds.md")
STEPS = ("base", "long", "mixup", "ema")  # each but the first is the first with one change
IGNORE = "ignore"
Row = dict[str, Any]
Answers = Mapping[str, Mapping[str, str]]  # path → row of predictions.csv


def answers(folder: Path) -> Answers:
    """The row of each image in a study's predictions.csv."""
    return {row["path"]: row for row in files.read_csv(folder / "predictions.csv")}


def right(row: Mapping[str, str]) -> bool:
    return row["label"] == row["prediction"]


def step(name: str, study: Record, first: Record, of_both: tuple[Answers, Answers]) -> Row:
    """A row of the table: the step, its figures, and the difference to the first step on the same images."""
    there, here = of_both
    test = metrics.mcnemar([right(there[path]) for path in there], [right(here[path]) for path in there])
    figures = study.figures
    return {
        "name": name,
        "changes": {key: value for key, value in study.params.items() if value != first.params[key]},
        "seeds": study.seeds,
        "images": int(figures["images"]),
        "accuracy": figures["accuracy"],
        "low": figures["accuracy_low"],
        "high": figures["accuracy_high"],
        "fold_deviation": figures["over_folds.deviation"],
        "points": test.points,
        "p": test.p,
    }


def relatives(split: Path) -> dict[str, set[str]]:
    """Path → the other images that are its exact or near duplicates, by the rule that keeps them together."""
    groups = defaultdict(set)
    rows = {row["path"]: row for row in split_table.all_rows(split)}
    for path, row in rows.items():
        kept = row["reason"].removeprefix(f"{DUPLICATE} of ")
        groups[rows[kept]["group"] if kept in rows else row["group"] or row["pixels"]].add(path)
    return {path: group - {path} for group in groups.values() for path in group if len(group) > 1}


def leaked(ignored: Answers, related: Mapping[str, set[str]]) -> list[str]:
    """The images that have a duplicate in another fold: it was trained on, or validated with, when they were tested."""
    return [
        path
        for path, others in sorted(related.items())
        if path in ignored and any(ignored[path]["fold"] != ignored[other]["fold"] for other in others & ignored.keys())
    ]


def duplicates(studies: Path) -> Row:
    """What the rule about duplicates costs and brings, of the first step with and without it."""
    ruled, ignored = answers(studies / STEPS[0]), answers(studies / IGNORE)
    affected = leaked(ignored, relatives(studies / STEPS[0] / "split.csv"))
    both = [path for path in affected if path in ruled]
    rows = {}
    for name, chosen in (("together", ruled), (IGNORE, ignored)):
        hits = sum(right(row) for row in chosen.values())
        low, high = metrics.wilson(hits, len(chosen))
        of_affected = sum(right(chosen[path]) for path in both)
        rows[name] = {"images": len(chosen), "right": hits, "low": low, "high": high, "affected_right": of_affected}
    others = [path for path in ruled if path not in affected]
    test = metrics.mcnemar([right(ruled[p]) for p in both], [right(ignored[p]) for p in both])
    rest = metrics.mcnemar([right(ruled[p]) for p in others], [right(ignored[p]) for p in others])
    return {
        "rows": rows,
        "affected": len(both),
        "affected_p": test.p,
        "others": len(others),
        "others_points": rest.points,
        "others_p": rest.p,
    }


def report(studies: Path) -> Row:
    """Everything that the tables say."""
    names = [name for name in STEPS if (studies / name).is_dir()]
    records = [record.read(studies / name / "summary.json") for name in names]
    if others := [name for name, one in zip(names, records, strict=True) if one.seeds != records[0].seeds]:
        value = f"not the seeds of {names[0]} {records[0].seeds}"
        raise UserError(Fault(", ".join(others), value, "differs", remedy="record them with these"))
    read = [answers(studies / name) for name in names]
    rows = [
        step(name, study, records[0], (read[0], found)) for name, study, found in zip(names, records, read, strict=True)
    ]
    return {"machine": measuring.machine(), "rows": rows, "duplicates": duplicates(studies)}


def steps_table(rows: Sequence[Row]) -> str:
    """The table of the steps."""
    cells = []
    for number, row in enumerate(rows):
        changes = ", ".join(f"`{key}: {value}`" for key, value in row["changes"].items())
        gain = f"{row['points']:+.1f} points, p = {row['p']:.2g}" if number else ""
        cells.append((
            f"`{row['name']}`", changes if number else "the first row", ", ".join(map(str, row["seeds"])),
            f"{row['accuracy']:.4f} ({row['low']:.4f} to {row['high']:.4f})", f"± {row['fold_deviation']:.4f}", gain,
        ))  # fmt: skip
    head = ("recipe", "change", "seeds", "accuracy (95 % interval)", "one fold", f"against `{STEPS[0]}`")
    return "\n".join(markdown.table(head, cells))


def duplicates_table(found: Row) -> str:
    """The table of the rule about duplicates."""
    cells = [
        (
            f"`split.duplicates: {name}`", f"{row['images']:,}",
            f"{row['right'] / row['images']:.4f} ({row['low']:.4f} to {row['high']:.4f})",
            f"{row['affected_right']} of {found['affected']}",
        )
        for name, row in found["rows"].items()
    ]  # fmt: skip
    head = ("rule", "images", "accuracy (95 % interval)", "right, of the images with a duplicate in another split")
    return "\n".join(markdown.table(head, cells))


BLOCKS: dict[str, Callable[[Row], str]] = {
    "recipes": lambda report: steps_table(report["rows"]),
    "duplicates": lambda report: duplicates_table(report["duplicates"]),
}


def filled(text: str, content: Row) -> str:
    """The document with its tables."""
    for name, make in BLOCKS.items():
        start, end = searched(marked(name), text).span()
        text = f"{text[:start]}{make(content)}{text[end:]}"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks recipes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("studies", nargs="?", type=Path, help="the folder with the studies")
    studies = parser.parse_args().studies
    if studies:
        files.write_json(RESULT, report(studies))
    content = json.loads(RESULT.read_text())
    files.write_text(DOCUMENT, filled(DOCUMENT.read_text(), content))
    for make in BLOCKS.values():
        print(make(content), end="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
