"""The report of `split`: the layout, the excluded images, the images per class and split, and their balance."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.base.text import display_width, in_words, join_names, pad, visible
from pipeline.config.params import WHOLE, Fit
from pipeline.dataset import split_table
from pipeline.dataset.split_table import SPLITS
from pipeline.sources.layout import Layout, count_with_verb

IMAGES = "images.csv"  # the name of the table with the images of each class
LARGEST, SMALLEST = 12, 4  # of a long list, the number of largest and of smallest classes in the table
WIDEST = 40  # columns of a terminal that a name may take
FEW_TEST_IMAGES = 30  # test images; below, 95 % intervals are wider than ± 14 points around an accuracy of 0.8
SQUARE_ENOUGH, MANY = (3, 4), (1, 10)  # short : long side of an image, and the share of images, as whole numbers
UNBALANCED = 3  # the ratio of the largest to the smallest class from which there is a hint


Table = tuple[tuple[str, ...], Sequence[Sequence[object]]]  # of a CSV file: the header and the rows


def lines(layout: Layout, counts: Mapping[str, Any], excluded: Sequence[tuple[str, str]]) -> list[str]:
    """The lines of the report, from the counts of `split.summary`, and the reason and path of each excluded image."""
    left_out = by_reason(excluded).items()
    return [
        f"layout: {layout.kind}",
        *layout.notes,
        *_cut(counts),
        *_near(counts),
        *(f"left out: {len(paths):,} {reason} (first: {visible(paths[0])})" for reason, paths in left_out),
        *_table(counts["classes"]),
        *_balance(counts["classes"]),
    ]


def _cut(counts: Mapping[str, Any]) -> Iterator[str]:
    """The assignment of images without a given split, if others have one."""
    if cut := counts.get("cut_from_train"):
        counts_by_split = ", ".join(f"{images:,} {split}" for split, images in cut.items())
        verb = "is" if len(cut) == 1 else "are"
        yield f"no {' and no '.join(cut)} is given: {join_names(tuple(cut))} {verb} cut from train ({counts_by_split})"
    if assignments := counts.get("without_given_split"):
        counts_by_split = ", ".join(f"{images:,} {split}" for split, images in assignments.items() if images)
        yield f"{sum(assignments.values()):,} images have no split in labels.csv: {counts_by_split}"


def _near(counts: Mapping[str, Any]) -> Iterator[str]:
    """The near duplicates in different splits: only a given split, or split.duplicates: ignore, allows them."""
    if pairs := counts["near_duplicates_across_splits"]:
        number = count_with_verb(pairs, "pair of near duplicates", "pairs of near duplicates")
        yield f"{number} in different splits; figures of such images are too good"


def tables(counts: Mapping[str, Any], excluded: Sequence[tuple[str, str]]) -> dict[str, Table]:
    """File name → table: images per class and split, excluded images per reason, and every other count.

    `excluded`: the reason and the path of each excluded image.
    """
    others = {name: value for name, value in counts.items() if name != "classes"}
    flat = [
        (f"{name}.{part}" if part else name, number)
        for name, value in others.items()
        for part, number in (value.items() if isinstance(value, dict) else [("", value)])
    ]
    columns = (*SPLITS, "excluded")
    return {
        IMAGES: (
            ("class", *columns),
            [(label, *(images[column] for column in columns)) for label, images in counts["classes"].items()],
        ),
        "excluded.csv": (
            ("reason", "images", "first"),
            [(reason, len(paths), paths[0]) for reason, paths in by_reason(excluded).items()],
        ),
        "findings.csv": (("finding", "number"), flat),
    }


def by_reason(excluded: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Reason → paths, the most frequent reason first, then in the order of the alphabet."""
    paths: dict[str, list[str]] = {}
    for reason, path in excluded:
        paths.setdefault(split_table.kind(reason), []).append(path)
    return dict(sorted(paths.items(), key=lambda item: (-len(item[1]), item[0])))


def _table(classes: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """A table of the images per class and split, the largest class first. Of a long list the middle is omitted."""
    order = sorted(classes, key=lambda label: (-sum(classes[label][split] for split in SPLITS), label))
    selected_classes = order if len(order) <= LARGEST + SMALLEST + 1 else [*order[:LARGEST], *order[-SMALLEST:]]
    width = max(display_width(_short(label)) for label in [*selected_classes, "class"])
    parts = (*SPLITS, "excluded")
    yield f"{'class':{width}}  " + "  ".join(f"{part:>8}" for part in parts)
    for number, label in enumerate(selected_classes):
        if number == LARGEST and len(selected_classes) < len(order):
            yield f"… {len(order) - len(selected_classes):,} more classes, all in images.csv; the smallest:"
        yield f"{pad(_short(label), width)}  " + "  ".join(f"{classes[label][part]:8,}" for part in parts)


def _short(label: str) -> str:
    """A name that fits into a table and into one line."""
    name = visible(label)
    if display_width(name) <= WIDEST:
        return name
    while display_width(name) >= WIDEST:
        name = name[:-1]
    return f"{name}…"


def _balance(classes: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """A line on the ratio of the largest to the smallest class in train, with advice if it is high."""
    sizes = {label: by_split["train"] for label, by_split in classes.items()}
    large, small = max(sorted(sizes), key=sizes.__getitem__), min(sorted(sizes), key=sizes.__getitem__)
    if sizes[large] == sizes[small]:
        yield f"train: each class has {sizes[large]:,} images"
        return
    ratio = sizes[large] / sizes[small]
    advice = "; train.class_weights: balanced counts the small classes more" if ratio > UNBALANCED else ""
    yield (
        f"train: the largest class ({_short(large)}, {sizes[large]:,}) has {ratio:.1f} times the images of the "
        f"smallest ({_short(small)}, {sizes[small]:,}){advice}"
    )


def few_test_images(classes: Mapping[str, Mapping[str, int]]) -> str:
    """A sentence on too few test images, in all or of a class, and the remedy; empty if there are enough."""
    total = sum(images["test"] for images in classes.values())
    single_image_classes = [_short(label) for label, images in classes.items() if images["test"] == 1]
    facts = [f"{total} in all"] if total < FEW_TEST_IMAGES else []
    facts += [f"1 of {in_words(single_image_classes)}"] if single_image_classes else []
    return (
        f"few test images ({'; '.join(facts)}): the figures are uncertain; if the data set gives no split, "
        "perennial folds tests every image"
        if facts
        else ""
    )


def unseen_parts(fit: Fit, sizes: Sequence[tuple[int, int]]) -> str:
    """A sentence if many of the used images lose much because they are no squares, and the remedy; else empty.

    `sizes`: width and height. A centre square has short / long side of the area.
    """
    (short, long), (part, whole) = SQUARE_ENOUGH, MANY
    losing = sum(long * min(size) < short * max(size) for size in sizes)
    if fit in WHOLE or whole * losing <= part * len(sizes):
        return ""
    seeing = "training and evaluation see" if fit == "crop" else "evaluation sees"
    return (
        f"{losing:,} of {len(sizes):,} images lose more than a quarter of their area, because they are no squares and "
        f"{seeing} their centre (prepare.fit: {fit}); with prepare.fit: pad or squash, the whole image is seen"
    )
