"""The page with two runs, which `perennial compare` writes for two of them."""

import re
from collections.abc import Sequence
from dataclasses import replace

from pipeline.studies import pair
from pipeline.studies.pair import Run
from tests.helpers.pages import parsed

HOSTILE = "<b onclick=alert(1)>"
FIGURES = {"macro_f1": 0.4, "nll": 1.25, "ece": 0.1, "val_accuracy": 0.75}
CHANGED = [("train.lr", "0.1", "0.05"), ("train.model", "resnet18", "<i>resnet34</i>")]


def run_of(name: str, right: list[bool], epochs: int) -> Run:
    """A run that has these of its test images right, with so many epochs."""
    classes = ("daisy", HOSTILE)
    rows = [
        {"path": f"{k}.jpg", "label": classes[k % 2], "prediction": classes[k % 2 if hit else 1 - k % 2]}
        for k, hit in enumerate(right)
    ]
    columns = ("train_loss", "val_loss", "train_accuracy", "val_accuracy")
    history = [dict.fromkeys(columns, str(1 / (epoch + 1))) for epoch in range(epochs)]
    figures = FIGURES | {"accuracy": sum(right) / len(right), "exported_epoch": epochs - 1, "seconds": 10.0 * epochs}
    return Run(name, figures, {"val": 8, "test": len(right)}, rows, history)


# 1 both right, 2 only the first, 3 only the second, 1 both wrong
FIRST = run_of("HEAD", [True, True, True, False, False, False, False], 3)
SECOND = run_of(HOSTILE, [True, False, False, True, True, True, False], 5)
TEST = "the second has 14.3 points more; chance can do as much (p = 1)"


def page(first: Run = FIRST, second: Run = SECOND, changed: Sequence[tuple[str, str, str]] = CHANGED) -> str:
    return pair.page(first, second, TEST, changed)


def test_it_says_where_two_runs_disagree() -> None:
    """The result of the test, every setting, the shares of each class, and each image that only one has right."""
    root = parsed(page())
    assert TEST in root.one("section", id="better").text
    assert root.table("Settings that differ") == [list(row) for row in CHANGED]
    assert "Both have 1 image right, and both have 1 wrong." in root.text
    assert root.table("Images that only HEAD has right: 2") == [
        ["1.jpg", HOSTILE, "daisy"],
        ["2.jpg", "daisy", HOSTILE],
    ]
    assert [row[0] for row in root.table(f"Images that only {HOSTILE} has right: 3")] == ["3.jpg", "4.jpg", "5.jpg"]
    daisy = next(row for row in root.table("Share of right answers") if row[0] == "daisy")  # images 0 and 2; 0 and 4
    interval = "50.0\u00a0% 15.0\u00a0% to 85.0\u00a0%"
    assert daisy == ["daisy", "4", interval, interval, "+0.0"]


def test_every_figure_has_the_difference_and_shares_have_their_interval() -> None:
    """The second one less the first; of the time too. What is not known of a run is a dash."""

    def row(second: Run, name: str) -> list[str]:
        return next(
            cells for name_of, *cells in parsed(page(second=second)).table("Figures of both") if name_of == name
        )

    first, second, difference = row(SECOND, "test accuracy")
    assert first == "0.4286 0.158 to 0.750"  # Wilson's, of 3 of 7
    assert (second[:6], difference) == ("0.5714", "+0.1429")
    assert row(SECOND, "exported epoch") == ["2", "4", "+2"]
    assert row(SECOND, "seconds of training") == ["30", "50", "+20"]
    faster = replace(SECOND, figures={**FIRST.figures, "seconds": 29.6})
    assert row(faster, "seconds of training") == ["30", "30", "+0"]
    timeless = replace(SECOND, figures={key: value for key, value in SECOND.figures.items() if key != "seconds"})
    assert row(timeless, "seconds of training") == ["30", "–", "–"]


def test_each_figure_is_one_drawing_with_a_line_of_each_run() -> None:
    """On the same axes: the longer run ends further to the right, and each has its own exported epoch."""
    root = parsed(page())
    assert len(root.all("svg", role="img")) == 5
    for key in ("val_loss", "val_accuracy", "train_loss", "train_accuracy"):
        drawing = root.one("svg", **{"aria-labelledby": f"{key}-t {key}-d"})
        lines = [line.attributes["d"] for line in drawing.all("path", class_="line")]
        short, long = ([float(x) for x in re.findall(r"[ML]([\d.]+) ", line)] for line in lines)
        assert (len(short), len(long)) == (3, 5)
        assert short == long[:3]
        assert long == sorted(set(long))
        dots = [float(dot.attributes["cx"]) for dot in drawing.all("circle")]
        assert dots == [short[1], long[3]]  # epochs 2 and 4
    shares = root.one("svg", **{"aria-labelledby": "shares-t shares-d"})
    assert len(shares.all("circle")) == 4  # validation and test accuracy, of two runs


def test_lists_may_be_empty_or_long() -> None:
    """No setting differs, and no image is right in one only; of many images, fifty are listed."""
    same = parsed(page(FIRST, FIRST, [])).text
    assert "No setting differs." in same
    assert same.count("Images that only HEAD has right: 0.") == 2
    many = parsed(page(run_of("a", [True] * 80, 2), run_of("b", [False] * 80, 2)))
    rows = many.table("Images that only a has right: the first 50 of 80")
    assert [row[0] for row in rows] == [f"{k}.jpg" for k in range(50)]
