"""The page with two runs, which `perennial compare` writes for two of them."""

from collections.abc import Sequence
from dataclasses import replace

from pipeline.reporting.gallery import Album
from pipeline.reporting.thumbnails import Thumbnail
from pipeline.studies import pair
from pipeline.studies.pair import Run
from tests.helpers.pages import Element, parsed

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
    images = {"val": 8, "test": len(right)}
    return Run(name, figures=figures, images=images, predictions=rows, history=history)


# 1 both right, 2 only the first, 3 only the second, 1 both wrong
FIRST = run_of("HEAD", [True, True, True, False, False, False, False], 3)
SECOND = run_of(HOSTILE, [True, False, False, True, True, True, False], 5)
TEST = ("No", "the second has 14.3 points more; chance can do as much (p = 1)", "images that only it has right: 3")
PICTURE = Thumbnail("data:image/jpeg;base64,AAAA", 4, 3)


def page(first: Run = FIRST, second: Run = SECOND, changed: Sequence[tuple[str, str, str]] = CHANGED) -> str:
    return pair.page(first, second, TEST, changed, Album({"1.jpg": PICTURE}, {"2.jpg": HOSTILE}))


def shots(root: Element, heading: str) -> list[list[str]]:
    """What is said of each image below a heading."""
    (group,) = (group for group in root.all("div", class_="group") if group.one("h3").text == heading)
    return [[span.text for span in one.one("figcaption").all("span")][:2] for one in group.all("figure")]


def test_it_says_where_two_runs_disagree() -> None:
    """The result of the test, every setting, a line of each run, the shares of each class, and each image."""
    root = parsed(page())
    assert all(part in root.one("section", id="better").text for part in (*TEST[:2], TEST[2][1:]))
    assert root.table("Settings that differ") == [list(row) for row in CHANGED]
    assert [len(one.all("path", class_="line")) for one in root.all("svg", role="img")] == [4, 2, 2, 2, 2]
    assert "Both have 1 image right, and both have 1 wrong." in root.text
    ours = shots(root, "Images that only HEAD has right: 2")
    assert ours == [[HOSTILE, f"{HOSTILE}: daisy"], ["daisy", f"{HOSTILE}: {HOSTILE}"]]
    theirs = shots(root, f"Images that only {HOSTILE} has right: 3")
    assert [answer for _, answer in theirs] == ["HEAD: daisy", f"HEAD: {HOSTILE}", "HEAD: daisy"]
    assert [image.attributes["alt"] for image in root.all("img")] == ["\u20681.jpg\u2069"]
    daisy = next(row for row in root.table("Share of right answers") if row[0] == "daisy")  # images 0 and 2; 0 and 4
    interval = "50.0\u00a0% 15.0\u00a0% to 85.0\u00a0%"
    assert daisy == ["daisy", "4", interval, interval, "+0.0"]
    many = parsed(page(run_of("a", [True] * 80, 2), run_of("b", [False] * 80, 2), []))
    assert len(shots(many, "Images that only a has right: the first 24 of 80")) == 24
    assert ("No setting differs." in many.text, shots(many, "Images that only b has right: 0")) == (True, [])
    lost = parsed(page(second=replace(SECOND, history=[])))  # DVC has no history of it any more
    assert HOSTILE in lost.one("section", id="curves").text
    assert len(lost.all("svg", role="img")) == 1


def test_every_figure_has_the_difference_and_shares_have_their_interval() -> None:
    """The second one less the first; of the time too. What is not known of a run is a dash."""

    def row(name: str, **figures: float) -> list[str]:
        table = parsed(page(second=replace(SECOND, figures=figures or SECOND.figures))).table("Figures of both")
        return next(cells for first, *cells in table if first == name)

    first, second, difference = row("test accuracy")
    assert first == "0.4286 0.158 to 0.750"  # Wilson's, of 3 of 7
    assert (second[:6], difference) == ("0.5714", "+0.1429")
    assert row("exported epoch") == ["2", "4", "+2"]
    timeless = {key: value for key, value in SECOND.figures.items() if key != "seconds"}
    for figures, cells in (({}, ["30", "50", "+20"]), ({**timeless, "seconds": 29.6}, ["30", "30", "+0"]),
                           (timeless, ["30", "–", "–"])):  # fmt: skip
        assert row("seconds of training", **figures) == cells
