"""What `split` prints at its end: the layout, what is left out, the images per class and split, and their balance."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.base.text import in_words, visible
from pipeline.data import split_table
from pipeline.data.layout import Layout, are, as_list, columns, padded
from pipeline.data.split_table import SPLITS

LARGEST, SMALLEST = 12, 4  # classes that are shown of a long list
WIDEST = 40  # columns of a name in a table
FEW_TESTED = 30  # test images; below, 95 % intervals are wider than ± 14 points around an accuracy of 0.8
UNBALANCED = 3  # the ratio of the largest to the smallest class from which there is a hint


class Table(NamedTuple):
    """The content of a CSV file."""

    header: tuple[str, ...]
    rows: Sequence[Sequence[object]]


def lines(layout: Layout, counts: Mapping[str, Any], excluded: Sequence[tuple[str, str]]) -> list[str]:
    """The report, in lines, from what `split.summary` counted, and the reason and path of each excluded image."""
    return [
        f"layout: {layout.kind}",
        *layout.notes,
        *_cut(counts),
        *_near(counts),
        *_left_out(excluded),
        *_table(counts["classes"]),
        *_balance(counts["classes"]),
    ]


def _cut(counts: Mapping[str, Any]) -> Iterator[str]:
    """How images without a given split were assigned, if others have one."""
    if cut := counts.get("cut_from_train"):
        of = ", ".join(f"{images:,} {split}" for split, images in cut.items())
        verb = "is" if len(cut) == 1 else "are"
        yield f"no {' and no '.join(cut)} is given: {as_list(tuple(cut))} {verb} cut from train ({of})"
    if assigned := counts.get("without_given_split"):
        of = ", ".join(f"{images:,} {split}" for split, images in assigned.items() if images)
        yield f"{sum(assigned.values()):,} images have no split in labels.csv: {of}"


def _near(counts: Mapping[str, Any]) -> Iterator[str]:
    """The near duplicates in different splits: only a given split, or split.duplicates: ignore, allows them."""
    if pairs := counts["near_duplicates_across_splits"]:
        number = are(pairs, "pair of near duplicates", "pairs of near duplicates")
        yield f"{number} in different splits; figures of such images are too good"


def tables(counts: Mapping[str, Any], excluded: Sequence[tuple[str, str]]) -> dict[str, Table]:
    """File name → table: images per class and split, excluded images per reason, and every other count.

    `excluded`: the reason and the path of each excluded image.
    """
    others = {name: value for name, value in counts.items() if name not in ("classes", "splits")}
    flat = [
        (f"{name}.{part}" if part else name, number)
        for name, value in others.items()
        for part, number in (value.items() if isinstance(value, dict) else [("", value)])
    ]
    columns = (*SPLITS, "excluded")
    return {
        "images.csv": Table(
            ("class", *columns),
            [(label, *(of[column] for column in columns)) for label, of in counts["classes"].items()],
        ),
        "excluded.csv": Table(
            ("reason", "images", "first"),
            [(reason, len(paths), paths[0]) for reason, paths in by_reason(excluded).items()],
        ),
        "findings.csv": Table(("finding", "number"), flat),
    }


def by_reason(excluded: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Reason → paths, the most frequent reason first; of equally frequent ones the first in the alphabet."""
    found: dict[str, list[str]] = {}
    for reason, path in excluded:
        found.setdefault(split_table.kind(reason), []).append(path)
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))


def _left_out(excluded: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Each reason with its number of images and the first of them, the most frequent first."""
    for reason, paths in by_reason(excluded).items():
        yield f"left out: {len(paths):,} {reason} (first: {visible(paths[0])})"


def _table(classes: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """A table of the images per class and split, the largest class first. Of a long list the middle is cut out."""
    order = sorted(classes, key=lambda label: (-_kept(classes[label]), label))
    shown = order if len(order) <= LARGEST + SMALLEST + 1 else [*order[:LARGEST], *order[-SMALLEST:]]
    width = max(columns(_short(label)) for label in [*shown, "class"])
    parts = (*SPLITS, "excluded")
    yield f"{'class':{width}}  " + "  ".join(f"{part:>8}" for part in parts)
    for number, label in enumerate(shown):
        if number == LARGEST and len(shown) < len(order):
            yield f"… {len(order) - len(shown):,} more classes, all in images.csv; the smallest:"
        yield f"{padded(_short(label), width)}  " + "  ".join(f"{classes[label][part]:8,}" for part in parts)


def _short(label: str) -> str:
    """A name that fits into a table and into one line."""
    name = visible(label)
    if columns(name) <= WIDEST:
        return name
    while columns(name) >= WIDEST:
        name = name[:-1]
    return f"{name}…"


def _kept(by_split: Mapping[str, int]) -> int:
    return sum(by_split[split] for split in SPLITS)


def _balance(classes: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """The ratio of the largest to the smallest class in train, and what to do if it is high."""
    sizes = {label: by_split["train"] for label, by_split in classes.items()}
    large, small = max(sorted(sizes), key=sizes.__getitem__), min(sorted(sizes), key=sizes.__getitem__)
    if sizes[large] == sizes[small]:
        yield f"train: each class has {sizes[large]:,} images"
        return
    ratio = sizes[large] / sizes[small]
    advice = "; train.class_weights: balanced counts the small classes more" if ratio > UNBALANCED else ""
    if round(100 * ratio) == 100:
        compared = "about as many images as"
    else:
        compared = f"{ratio:.1f} times the images of" if ratio >= 2 else f"{100 * ratio - 100:.0f} % more images than"
    yield (
        f"train: the largest class ({_short(large)}, {sizes[large]:,}) has {compared} the smallest "
        f"({_short(small)}, {sizes[small]:,}){advice}"
    )


def few_tested(classes: Mapping[str, Mapping[str, int]]) -> str:
    """A sentence on too few test images, in all or of a class, and the remedy; empty if there are enough."""
    total = sum(of["test"] for of in classes.values())
    alone = [_short(label) for label, of in classes.items() if of["test"] == 1]
    facts = [f"{total} in all"] if total < FEW_TESTED else []
    facts += [f"1 of {in_words(alone)}"] if alone else []
    return (
        f"few test images ({'; '.join(facts)}): the figures are uncertain; make folds tests every image"
        if facts
        else ""
    )
