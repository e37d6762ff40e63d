"""The table data/corrections.csv: labels that a person corrects, and images that a person excludes.

Its columns are path, label and reason. A path is as in split.csv. A label is a class of the data set, or `exclude`. The
reason is for people. The table is in Git, so a commit says which images its figures belong to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.base.errors import Fault, UserError
from pipeline.base.text import in_words, visible
from pipeline.dataset.split_table import BY_HAND
from pipeline.sources import user_table
from pipeline.sources.layout import Layout
from pipeline.sources.user_table import Table

FILE = Path("data/corrections.csv")
EXCLUDE = "exclude"
EMPTY = "path,label,reason\n"  # the table without a correction


@dataclass(frozen=True)
class CorrectedLayout:
    """The data set with the corrections applied."""

    layout: Layout
    reasons: Mapping[str, str]  # path of an excluded image → its reason for split.csv
    counts: Mapping[str, int]  # for findings.csv; empty without a correction


NONE = Table()


def read(path: Path = FILE) -> Table:
    """The corrections. Raises UserError for a table that is missing or cannot be read."""
    if not path.is_file():
        raise UserError(missing(path))
    return user_table.parse(str(path), path.read_bytes(), ("path", "label"), ("reason",))


def missing(path: Path = FILE) -> Fault:
    """The fault of a table that is not there."""
    remedy = f"bring it back (git checkout {path}), or write one without a correction: echo {EMPTY.strip()} > {path}"
    return Fault(str(path), "no such plain file", "missing", "it is the table of corrections", remedy=remedy)


def apply(table: Table, layout: Layout) -> CorrectedLayout:
    """The layout with the corrected labels, and the reasons of the excluded images.

    Raises UserError for a path that is no image's or is there twice, and a label that is no class.
    """
    images = {file.path: file for file in layout.image_files}
    lines, table_notes = user_table.by_path(
        str(FILE), table, images, lambda cells, _: _line_fault(cells, layout.classes)
    )
    if not lines:
        return CorrectedLayout(layout, {}, {})
    exclusion_reasons = {
        path: _reason(cells.get("reason", "")) for path, cells in lines.items() if cells["label"] == EXCLUDE
    }
    labels = {path: cells["label"] for path, cells in lines.items() if path not in exclusion_reasons}
    unchanged = [path for path, label in labels.items() if label == images[path].label]
    counts = {
        "relabelled": len(labels) - len(unchanged),
        "excluded": len(exclusion_reasons),
        "unchanged": len(unchanged),
    }
    files = [replace(file, label=labels.get(file.path, file.label)) for file in layout.image_files]
    notes = (*layout.notes, *_notes(counts, unchanged), *table_notes)
    return CorrectedLayout(replace(layout, image_files=files, notes=notes), exclusion_reasons, counts)


def _line_fault(cells: Mapping[str, str], classes: Sequence[str]) -> str:
    """What is wrong with the label or the reason of a line; empty if nothing."""
    label = cells["label"]
    if visible(reason := cells.get("reason", "")) != reason:
        return f"reason {reason!r:.40}: a line break or a control character"
    if label == EXCLUDE and EXCLUDE in classes:
        return f"label {EXCLUDE!r} is a class here, too; rename the class"
    if label not in (EXCLUDE, *classes):
        return f"label {label!r:.40} is no class; allowed: {in_words([repr(name) for name in classes])}, or {EXCLUDE}"
    return ""


def _reason(why: str) -> str:
    return f"{BY_HAND}: {why}" if why else BY_HAND


def _notes(counts: Mapping[str, int], unchanged: Sequence[str]) -> list[str]:
    """Sentences on what the corrections changed."""
    notes = [f"{FILE}: labels corrected: {counts['relabelled']:,}, images left out: {counts['excluded']:,}"]
    if unchanged:
        notes.append(
            f"{FILE}: lines that change nothing, because the label is right already: {len(unchanged):,} "
            f"(first: {visible(unchanged[0])})"
        )
    return notes
