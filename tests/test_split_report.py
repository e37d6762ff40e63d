"""What `split` prints at its end is short for any number of classes, and names what was left out."""

from typing import Any

import pytest

from pipeline.base.text import display_width
from pipeline.data import split_report
from pipeline.evaluation import metrics
from pipeline.running import terminal
from pipeline.sources.layout import Layout
from pipeline.stages import evaluate
from tests.helpers.measured import eval_figures


def report(classes: dict[str, tuple[int, int, int, int]], *excluded: tuple[str, str], **counts: Any) -> list[str]:
    """The report for classes with so many images in train, val and test, and excluded."""
    names = ("train", "val", "test", "excluded")
    by_class = {label: dict(zip(names, numbers, strict=True)) for label, numbers in classes.items()}
    layout = Layout([], sorted(classes), "class folders", ("a note",))
    return split_report.lines(layout, {"classes": by_class, "near_duplicates_across_splits": 0} | counts, excluded)


def test_a_long_list_of_classes_is_cut() -> None:
    """The largest class first; those of one size by name. Of more than 17, a few are named."""
    by_size = report({"b": (1, 2, 3, 0), "c": (9, 1, 1, 0), "a": (4, 1, 1, 0)})[3:6]
    assert [line[0] for line in by_size] == ["c", "a", "b"]
    assert [len(report({f"{n:02}": (9, 1, 1, 0) for n in range(number)})) - 4 for number in (17, 18)] == [17, 16 + 1]
    lines = report({f"{n:04} {'x' * 60}": (2000 - n, 1, 1, 0) for n in range(1000)})
    assert len(lines) < 25
    assert max(map(len, lines)) <= 120 + 80  # the last line names two classes
    assert any("984 more classes" in line for line in lines)
    assert (lines[3][:5], lines[-2][:5]) == ("0000 ", "0999 ")


@pytest.mark.parametrize(
    ("large", "small", "ratio", "advice"),
    [(30, 30, "", False), (30, 10, "3.0 times", False), (31, 10, "3.1 times", True)],
)
def test_the_balance_is_said(large: int, small: int, ratio: str, advice: bool) -> None:
    """The ratio, unless all classes are equal. The advice begins above 3."""
    line = report({"a": (large, 1, 1, 0), "b": (small, 1, 1, 0)})[-1]
    assert ratio in line
    assert ("times" in line, "train.class_weights" in line) == (bool(ratio), advice)


WIDE = {"abc": 3, "郁金香": 6, "ひまわり": 8, "튤립": 4, "🌷": 2, "rose\u0301": 4, "ｗ": 2, "ﾊﾞﾗ": 3, "פרח": 3}


def test_tables_are_straight_with_letters_of_all_widths() -> None:
    """What a terminal draws in two columns counts as two, and what it draws over another letter as none."""
    assert {name: display_width(name) for name in WIDE} == WIDE
    split = report({name: (100 - k, 1, 1, 0) for k, name in enumerate([*WIDE, "a\nb", "c" * 100])})[2:-1]
    by_class = [metrics.ClassFigures(name, 9, 0.5, 0.5, 0.5) for name in [*WIDE, "a\nb"]]
    tested = evaluate.table(eval_figures(0.5), by_class).splitlines()[:-1]
    compared = terminal.columns([[name, "0.5", "", "train.lr=1"] for name in WIDE])
    for table in (split, tested, compared):
        assert len({display_width(line) for line in table}) == 1


@pytest.mark.parametrize(
    ("tested", "facts"), [((15, 15), ""), ((15, 14), "29 in all"), ((1, 40), "1 of a"), ((1, 1), "2 in all; 1 of a, b")]
)
def test_few_test_images_are_said(tested: tuple[int, int], facts: str) -> None:
    """Fewer than 30, or one of a class, by its name; and the command that tests every image."""
    sentence = split_report.few_test_images({label: {"test": n} for label, n in zip("ab", tested, strict=True)})
    assert (sentence.partition("(")[2].partition(")")[0], "perennial folds" in sentence) == (facts, bool(facts))


def test_the_tables_have_every_count() -> None:
    """images.csv is a row per class, excluded.csv one per reason, findings.csv one per other count, parts included."""
    classes = {"b": {"train": 4, "val": 1, "test": 1, "excluded": 3}}
    counts = {"images": 9, "classes": classes, "cut_from_train": {"val": 1, "test": 1}}
    excluded = [("duplicate of b/1", "b/2"), ("empty", "b/3"), ("duplicate of b/1", "b/4")]
    assert split_report.tables(counts, excluded) == {
        "images.csv": (("class", "train", "val", "test", "excluded"), [("b", 4, 1, 1, 3)]),
        "excluded.csv": (("reason", "images", "first"), [("duplicate", 2, "b/2"), ("empty", 1, "b/3")]),
        "findings.csv": (("finding", "number"), [("images", 9), ("cut_from_train.val", 1), ("cut_from_train.test", 1)]),
    }
