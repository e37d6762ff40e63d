"""The stage report: one page about a run, looked at with a real browser."""

import base64
import io
import itertools
import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser

from pipeline.base import files, linux
from pipeline.base.text import visible
from pipeline.command_line import COMMANDS
from pipeline.config.params import Fit
from pipeline.data import corrections
from pipeline.data.suspects import Suspect
from pipeline.dataset import packed, split_table, squares
from pipeline.dataset.split_table import ImageRow
from pipeline.evaluation.metrics import Share
from pipeline.loader import center, sampler
from pipeline.models import description
from pipeline.models.description import View
from pipeline.reporting import audit, charts, facts, first_step, gallery, heat_maps, outcome, page, rendering, settings
from pipeline.reporting.facts import Facts
from pipeline.reporting.thumbnails import Thumbnail
from pipeline.sources import originals
from pipeline.stages import report
from pipeline.versioning import identity
from tests.conftest import set_params
from tests.helpers import reports
from tests.helpers.browser import needs_chromium, opened
from tests.helpers.pages import Element, parsed
from tests.helpers.reports import CHINESE, CLASSES
from tests.helpers.settings import tracked

# For each drawing: its box, then those of its texts, as left, top, right and bottom.
BOXES = """() => [...document.querySelectorAll("svg")].map((drawing) =>
  [drawing, ...drawing.querySelectorAll("text")].map((element) => {
    const { left, top, right, bottom } = element.getBoundingClientRect();
    return [left, top, right, bottom];
  }))"""


@pytest.fixture(scope="module")
def written(reported: Path) -> Path:
    """The page of four classes with odd names, and of one file for each reason to leave it out."""
    return reported / "reports/index.html"


@pytest.fixture(scope="module")
def elements(written: Path) -> Element:
    return parsed(written.read_text())


@pytest.fixture(scope="module")
def known(reported: Path) -> Facts:
    """What the page says."""
    config = reports.config_in(reported)
    return facts.read(config, identity.settings(config, ["report"]), split_table.all_rows(Path(config.paths.split)))


def page_of(known: Facts, **changes: Any) -> Element:
    """The page of other facts, without pictures."""
    changed = replace(known, **changes)
    return parsed(page.page(changed, gallery.hard_answers(changed.outcome.answers), {}))


# ---- the bytes ----


def test_the_same_inputs_give_the_same_bytes(written: Path, tmp_path: Path) -> None:
    """In another folder, with another number of threads."""
    reports.make_report(tmp_path)
    set_params(tmp_path, run__workers=3)
    report.run(reports.config_in(tmp_path))
    assert (tmp_path / "reports/index.html").read_bytes() == written.read_bytes()


def test_it_shows_exactly_the_settings_that_the_stage_tracks(reported: Path, elements: Element) -> None:
    """So a setting on the page is never an old one. Those of a source that is not used are not shown."""
    changed, others = elements.table("Other than"), elements.table("As the project comes")
    unused = {leaf for leaf in tracked("report") if leaf.startswith("data.") and leaf != "data.source"}
    unused |= {"train.backend"}  # on a CPU there is one
    assert {name for name, *_ in [*changed, *others]} == tracked("report") - unused
    config = reports.config_in(reported)
    expected = {one.name: one for one in settings.settings(config, identity.settings(config, ["report"]))}
    assert {name for name, *_ in changed} >= {"train.model", "split.min_side"}
    for name, value, default in [*changed, *([*row, row[1]] for row in others)]:
        assert (value, default) == (expected[name].value, expected[name].default)


# ---- what it says ----


def test_the_first_training_images_are_those_that_the_model_gets(
    reported: Path, elements: Element, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole and not mirrored, they are the packed images of the first step, in its order; a solved head has no step.

    They need no memory for all images, also if the training kept all of them in memory.
    """
    alts = [one.attributes["alt"] for one in elements.one("p", class_="crops").all("img")]
    assert alts == [f"training image {number}" for number in range(1, first_step.COUNT + 1)]
    config = reports.config_in(reported)
    plain = {"crop": 72, "crop_scale": (1.0, 1.0), "flip": 0.0}
    run = config.run.model_copy(update={"residency": "host"})
    config = config.model_copy(update={"train": config.train.model_copy(update=plain), "run": run})
    monkeypatch.setattr(linux, "available_memory", lambda: 0)
    shown = [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(one.source.partition(",")[2])))).astype(float)
        for one in first_step.pictures(config)
    ]
    data = packed.load(Path(config.paths.packed), Path(config.paths.split))
    rows = data.rows("train")
    batch = rows[sampler.batch_rows(config.train.seed, 0, config.train.batch_size, len(rows))]
    distances = [[np.abs(one - image).mean() for image in data.images[rows]] for one in shown]
    assert [int(rows[np.argmin(row)]) for row in distances] == batch[: first_step.COUNT].tolist()
    assert max(min(row) for row in distances) < 20  # noise as a JPEG; of others at least 40
    solved = {"head": "solved", "freeze_backbone": True}
    assert not first_step.pictures(config.model_copy(update={"train": config.train.model_copy(update=solved)}))


def test_every_file_that_is_left_out_is_there_with_its_reason(elements: Element) -> None:
    """A duplicate, a conflict in both classes, a truncated file, a small one, and one that is no image."""
    data = elements.one("section", id="data")
    titles = [one.text for one in data.all("h4")]
    assert {"conflicting labels: 2 files", "duplicate: 1 file", "truncated: 1 file", "too small: 1 file",
            "unknown format: .txt: 1 file"} <= set(titles)  # fmt: skip
    assert "102 files in all: used 96, left out 6." in data.text
    assert len(data.all(class_="missing")) == 2  # what cannot be decoded
    same = [one.text for one in data.all("span") if one.text.startswith("the same image")]
    assert len(same) == 3
    assert f"the same image: {CHINESE}/either.png" in same


def test_the_figures_are_those_of_the_tables(reported: Path, elements: Element) -> None:
    """Accuracy, interval and images of each class are of predictions.csv; the hash of the model finds its commit."""
    rows = files.read_csv(reported / "metrics/predictions.csv")
    right = sum(row["label"] == row["prediction"] for row in rows)
    hero = elements.one("p", class_="hero").text
    assert hero.startswith(f"{100 * right / len(rows):.1f}\u00a0%")
    assert f"{right} of {len(rows)}" in hero
    images = {label: str(sum(row["label"] == label for row in rows)) for label in CLASSES}
    assert {name: number for name, number, *_ in elements.table("Each class")} == images
    assert files.md5(reported / "models/model.safetensors") in elements.one("section", id="repeat").text
    named = {name for part in ("repeat", "next") for name in re.findall(r"perennial (\w+)", elements.one(id=part).text)}
    assert named <= set(COMMANDS)


def test_the_gallery_begins_with_the_worst(reported: Path, known: Facts, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most MOST_ANSWERS mistakes, the most confident first; and right answers, the least so first."""
    monkeypatch.setattr(gallery, "MOST_ANSWERS", 6)
    hard = gallery.hard_answers(known.outcome.answers)
    rows = {row["path"]: row for row in files.read_csv(reported / "metrics/predictions.csv")}
    sure = [float(rows[answer.path][f"p_{rows[answer.path]['prediction']}"]) for answer in hard.mistakes]
    unsure = [float(rows[answer.path][f"p_{rows[answer.path]['label']}"]) for answer in hard.right_answers]
    assert sure == sorted(sure, reverse=True)
    assert unsure == sorted(unsure)
    assert len(unsure) == 6
    assert hard.mistake_count + hard.right_count == len(rows)


def test_a_mistake_has_its_photo_and_its_heat_map(elements: Element, known: Facts) -> None:
    """Each mistake, and nothing else, with a text for those who do not see it; each photo has a frame."""
    hard = gallery.hard_answers(known.outcome.answers)
    assert hard.mistakes
    described = [image.attributes["alt"] for image in elements.all("img")]
    maps = [text for text in described if "heat map" in text]
    assert maps == [f"heat map of \u2068{visible(one.path)}\u2069: what speaks for the answer" for one in hard.mistakes]
    images = elements.one("section", id="images")
    assert [len(shot.all("img")) for shot in images.all("figure")][: len(maps) + 1] == [2] * len(maps) + [1]
    assert [len(shot.all("svg")) for shot in images.all("figure")][: len(maps) + 1] == [1] * len(maps) + [0]
    assert [part.attributes["id"] for part in elements.one("main").all("section")][:2] == ["quality", "images"]


def test_a_model_without_heat_maps_says_so(reported: Path, tmp_path: Path) -> None:
    """A crop that leaves one place has no map: the page has the reason, and what is allowed."""
    config, origin = reports.config_in(reported), originals.locate(reported / "data/images", reported / "data/inbox")
    answers = outcome.read(reported / "metrics", sorted(CLASSES), 1).answers
    raw = json.loads((reported / "models/model.json").read_text())
    raw["view"] |= {"crop": 32, "resize": 36}
    shutil.copytree(reported / "models", tmp_path / "models")
    files.write_json(tmp_path / "models/model.json", raw)
    config = config.model_copy(update={"paths": config.paths.model_copy(update={"models": str(tmp_path / "models")})})
    described = description.load(tmp_path / "models")
    none = heat_maps.heat_maps(config, described, origin, answers[:1])
    assert none.pictures == {}
    assert heat_maps.heat_maps(config, described, origin, []) == gallery.NO_HEAT_MAPS
    known = facts.read(config, identity.settings(config, ["report"]), split_table.all_rows(Path(config.paths.split)))
    text = parsed(page.page(known, gallery.hard_answers(answers), {}, none)).one("section", id="images").text
    assert "There are no heat maps. train.model: resnet18: its logits are no means over several places" in text


@pytest.mark.parametrize("fit", squares.SQUARES)
@pytest.mark.parametrize("size", [(240, 150), (90, 220)])
def test_the_frame_is_around_what_the_model_sees(size: tuple[int, int], fit: Fit) -> None:
    """Of a picture whose colours are its places: the places in the crop, within two pixels."""
    width, height = size
    places = np.dstack([*np.meshgrid(np.arange(width), np.arange(height)), np.zeros(size[::-1])]).astype(np.uint8)
    view = View(packed_size=192, resize=192, crop=144, fit=fit)
    square = np.asarray(squares.SQUARES[fit](Image.fromarray(places), view.packed_size))
    proportions = np.array([squares.proportions(fit, size)], np.int32)
    (box,) = center.eval_boxes(proportions, view.packed_size, view.resize, view.crop)
    seen = center.cut(square, box, view.crop).reshape(3, -1)
    seen = seen[:2, seen[2] < 10]  # without the padding, which has blue
    found = heat_maps.frame(view, Thumbnail("data:", width, height))
    corners = [float(number) for number in re.findall(r"[\d.]+", found)]
    assert [*corners[:2], *corners[4:6]] == pytest.approx([*seen.min(1), *seen.max(1)], abs=2)


# ---- in a browser ----


@needs_chromium
@pytest.mark.parametrize("epochs", [1, 24, 6000, 100_000])
def test_no_text_of_a_chart_is_cut_off(browser: Browser, tmp_path: Path, epochs: int) -> None:
    """Every label lies inside its drawing, and none is over another one. The first and the last epoch have a label."""
    values = [1 / k for k in range(1, epochs + 1)]
    lines = [charts.Line("training", values, epochs), charts.Line("validation", values, epochs)]
    bins = [(k / 15, (k + 1) / 15, 10 ** (k % 5), k / 14) for k in range(15)]
    drawn = [charts.curves("a", "A", lines, shares=share) for share in (False, True)]
    rows = [(name, [Share(100, 1, 0, 0.9), Share(1, 1, 0.5, 1)]) for name in ("test", "validation")]
    drawn += [charts.bars("b", "B", bins), charts.intervals("c", "C", rows), charts.intervals("d", "D", 9 * rows)]
    drawn.append(charts.growth("e", "E", "images", [(epochs // 8 + 1, rows[0][1][0]), (9 * epochs, rows[1][1][1])]))
    steps = [int(step.text.replace(",", "")) for step in parsed(drawn[0].svg).all("text", y="217")]
    assert (steps[0], steps[-1], len(steps) <= 8) == (1, epochs, True)
    assert len(drawn[0].svg) < 30_000
    path = tmp_path / "charts.html"
    style = (rendering.TEMPLATES / "style.css").read_text()
    figures = [f'<figure class="chart">{chart.svg}</figure>' for chart in drawn]
    path.write_text(f"<style>{style}</style>{''.join(figures)}", encoding="utf-8")
    with opened(browser, path) as page_of_charts:
        boxes = page_of_charts.evaluate(BOXES)
    for (left, top, right, bottom), *texts in boxes:
        assert len(texts) > 5
        for one in texts:
            assert left <= one[0] < one[2] <= right
            assert top <= one[1] < one[3] <= bottom
        for one, other in itertools.combinations(texts, 2):
            assert min(one[2], other[2]) <= max(one[0], other[0]) or min(one[3], other[3]) - max(one[1], other[1]) <= 4


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0.81, 0.93, ["80 %", "85 %", "90 %", "95 %"]), (0.9412, 0.9431, ["94 %", "95 %"]), (0, 1, 6)],
)
def test_a_dot_is_at_its_number_and_its_share(low: float, high: float, ticks: list[str] | int) -> None:
    """Its interval is a line. No tick is finer than a point."""
    first, second = Share(100, 100 * low, low, (low + high) / 2), Share(100, 100 * high, (low + high) / 2, high)
    root = parsed(charts.growth("a", "A", "images", [(10, first), (40, second)]).svg)
    texts = [one.text for one in root.all("text")]
    shares = [text for text in texts if text.endswith("%")]
    assert len(shares) == ticks or shares == ticks
    assert [text for text in texts if not text.endswith("%")] == ["10", "40", "images"]
    x = [float(dot.attributes["cx"]) for dot in root.all("circle")]
    assert (x[1] - charts.LEFT) / (x[0] - charts.LEFT) == pytest.approx(4)


@needs_chromium
def test_a_number_of_the_matrix_shows_its_images_only(browser: Browser, written: Path) -> None:
    """A click, or Enter, leaves the images of this cell; the button brings all back."""
    with opened(browser, written) as page:
        shots, left = page.locator("#images .shot"), page.locator("#images .shot:visible")
        everything, cell = left.count(), page.locator(".matrix .miss a").first
        assert everything < shots.count()  # the others are folded
        cell.click()
        assert 0 < left.count() < everything
        assert {one.get_attribute("data-pair") for one in left.all()} == {cell.get_attribute("data-pair")}
        assert page.locator("#images h3:visible").all_inner_texts() == ["Mistakes, the most confident first"]
        said = page.locator("#filter span").inner_text()
        assert re.fullmatch(r"\d+ images? of .*, taken for .*: \d+ on this page\.", said)
        page.locator("#filter button").click()
        assert (left.count(), page.locator("#filter").is_hidden()) == (everything, True)
        folded = page.locator("#images details .shot").last.get_attribute("data-pair")
        page.locator(f"a[data-pair='{folded}']").press("Enter")
        assert left.count() == page.locator(f".shot[data-pair='{folded}']").count()


@needs_chromium
def test_the_label_of_a_mistake_can_be_corrected(browser: Browser, written: Path, known: Facts) -> None:
    """Below each mistake, and no other image: a choice, which becomes a line of the corrections."""
    mistakes = gallery.hard_answers(known.outcome.answers).mistakes
    with opened(browser, written) as page:
        choices = page.locator(".shot select")
        assert choices.count() == len(mistakes)
        last = mistakes[-1]
        choices.last.select_option(CLASSES[0])
        with page.expect_download() as download:
            page.get_by_text("save corrections.csv").click()
        ((_, cells),) = corrections.read(download.value.path()).lines
    assert (cells["path"], cells["label"]) == (last.path, CLASSES[0])
    label, answer = (known.outcome.classes[number] for number in (last.label, last.prediction))
    likely, taken, _ = last.probabilities
    assert cells["reason"] == f"mistake: {label} {likely:.2f}, {answer} {taken:.2f}"


# ---- the limits ----


def test_a_page_of_very_many_files_stays_small(known: Facts) -> None:
    """Of 50,000 files that are left out for three reasons, and 3,000 groups, only so many are shown; all count."""
    rows = [
        ImageRow(f"a/{k}.png", "a", reason=reason)
        for reason, count in (("truncated", 49_000), ("too small", 999), ("empty", 1))
        for k in range(count)
    ]
    rows += [ImageRow(f"b/{k}.png", "b", "train", group=f"{k // 3}") for k in range(9_000)]
    counts = audit.summarize_split(rows)
    assert [(name, len(rows)) for name, rows in counts.reasons.items()] == [
        ("truncated", 49_000), ("too small", 999), ("empty", 1)
    ]  # fmt: skip
    assert [len(group) for group in counts.groups] == [3] * 3_000
    assert counts.file_count == 59_000
    data = page_of(known, audit=counts).one("section", id="data")
    assert len(data.all("figure")) == 12 + 12 + 1 + 8 * 3
    assert "48,988 more; split.csv has all." in data.text
    assert "2,992 more groups are not shown" in data.text


def test_it_shows_the_worst_of_each_issue(known: Facts) -> None:
    """Six of each with their numbers, and how many more; an image with two has one card; a set without says so."""
    rows = [ImageRow(f"{k}.png", "<a>", "test", width=400, height=100 * (k + 1) ** 2) for k in range(9)]
    rows.append(ImageRow("out.png", "<a>", "", "excluded by hand: a cup of <tea>", pixels="1"))
    suspects = [Suspect("grey", "0.png", "<a>", "test", 3.5, 8)]
    suspects += [Suspect("odd_size", f"{k}.png", "<a>", "test", 900.0 - k, 450.5) for k in range(9)]
    counts = audit.summarize_split(rows, suspects)
    assert report.image_paths(gallery.hard_answers([]), [], counts)["out.png"] is False  # the picture may be missing
    data = page_of(known, audit=counts).one("section", id="data")
    assert [one.text for one in data.all("h4")] == ["excluded by hand: 1 file", "grey: 1 image", "odd size: 9 images"]
    said = [
        [span.text for span in one.one("figcaption").children if isinstance(span, Element)]
        for one in data.all("figure")
    ]
    assert said[0] == ["class <a>", "a cup of <tea>", "out.png"]
    size = "px; usual 280 to 1720"  # of 200, 400 … 1800
    assert said[1] == ["class <a>, test", "3.5, limit 8", f"also odd size: 900 {size}", "0.png"]
    assert said[2:] == [["class <a>, test", f"{900 - k} {size}", f"{k}.png"] for k in range(1, 7)]
    assert "3 more: shown above, or in suspects.csv." in data.text
    nothing = page_of(known, audit=audit.summarize_split(rows)).one("section", id="data")
    assert "No image is dark, bright, blurred, grey, or of an odd" in nothing.text


def test_a_page_of_very_many_classes_stays_small(known: Facts) -> None:
    """With a thousand classes the matrix is a table of the most frequent confusions, and the classes are the worst."""
    classes = tuple(f"class {k}" for k in range(1000))
    answers = [
        outcome.Answer(f"{k}-{j}.jpg", k, (k + (j < 3 + (k == 7))) % 1000, k, (0.5, 0.5, 0.5))
        for k in range(1000)
        for j in range(9)
    ]
    model = replace(known.model, classes=classes)
    root = page_of(known, model=model, outcome=replace(known.outcome, classes=classes, answers=answers))
    confusions = root.table("The 30 most frequent of 1,000 confusions.")
    assert len(confusions) == 30
    assert confusions[0][:2] == ["class 7", "class 8"]
    worst = root.table("Each class on the test images: the 100 with the lowest F1 of 1,000; metrics/per_class.csv")
    assert len(worst) == 100
    assert {"class 7", "class 8"} < {name for name, *_ in worst}
    assert root.all("table", class_="matrix") == []


def test_one_bad_epoch_does_not_flatten_the_others() -> None:
    """It is outside the drawing, and named below it; so is an epoch whose loss is no number."""
    values = [1.0 - 0.02 * k for k in range(30)]
    bad = [*values[:9], 1e6, math.nan, *values[11:]]
    chart = charts.curves(
        "loss", "Loss", [charts.Line("training", values, 30), charts.Line("validation", bad, 30)], shares=False
    )
    assert chart.note == "Outside the drawing: validation, epoch 10: 1e+06; validation, epoch 11: not a finite number."
    line = parsed(chart.svg).all("path", class_="c0")[0].attributes["d"]
    assert min(float(height) for height in re.findall(r"[ML][\d.]+ ([\d.]+)", line)) < 80
    assert "nan" not in chart.svg


def test_a_solved_head_has_no_epochs_and_no_curves(known: Facts) -> None:
    """Its two accuracies are in the words of the section."""
    train = known.config.train.model_copy(update={"head": "solved", "freeze_backbone": True})
    section = page_of(known, config=known.config.model_copy(update={"train": train})).one("section", id="curves")
    assert section.all("svg") == []
    for name in ("train_accuracy", "val_accuracy"):
        assert f"{100 * known.outcome.history[name][-1]:.1f}" in section.text


@pytest.mark.parametrize("file", ['\u202e<b>".png', "a\nb.png"])
def test_no_path_is_markup(known: Facts, file: str) -> None:
    """Whatever letters a file has in its name: in the text, in an attribute, and in its credit."""
    answers = [replace(known.outcome.answers[0], path=f"a/{file}"), *known.outcome.answers[1:]]
    hard = replace(gallery.hard_answers(answers), mistakes=[], right_answers=answers[:1])
    text = page.page(replace(known, credits={f"a/{file}": '"<i>\u202e'}), hard, {})
    shot = parsed(text).one("section", id="images").one("figure")
    assert [span.text for span in shot.all("span")[-2:]] == ['"<i>\\u202e'] * 2
    assert shot.one(class_="file").text == visible(file)
    assert shot.one(class_="file").attributes["title"] == visible(f"a/{file}")
    assert "\u202e" not in text
