"""The page about all folds, looked at with a real browser."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page

from pipeline.base import files
from pipeline.data import corrections, credits
from pipeline.dataset import split_table
from pipeline.evaluation import metrics
from pipeline.reporting import thumbnails
from pipeline.reporting.gallery import Album
from pipeline.reporting.reliance import NO_SHARE, Coverage
from pipeline.sources import originals
from pipeline.studies import folds_page, label_errors, pooling
from pipeline.studies.folds_page import Content
from pipeline.studies.pooling import FoldPredictions
from tests.helpers import reports
from tests.helpers.browser import needs_chromium, opened
from tests.helpers.pages import Element, parsed
from tests.helpers.reports import HOSTILE

FOLDS = 4


def answers(project: Path, seeds: tuple[int, ...] = (0,)) -> FoldPredictions:
    """Invented answers for every image of the split, mostly right; every 12th image has a wrong label."""
    rows = sorted(split_table.kept_rows(project / "data/split.csv"), key=lambda row: row.path)
    classes = tuple(sorted({row.label for row in rows}))
    labels = np.array([classes.index(row.label) for row in rows], np.int64)
    numbers, random = np.arange(len(rows)), np.random.default_rng(0)
    logits = random.normal(0, 1, (len(seeds), len(rows), len(classes)))
    logits[:, numbers, labels] += 2.5
    logits[:, numbers[::12], (labels[::12] + 1) % len(classes)] += 9
    probabilities = np.exp(logits) / np.exp(logits).sum(2, keepdims=True)
    return FoldPredictions(classes, tuple(row.path for row in rows), labels, numbers % FOLDS, seeds, probabilities)


def content(project: Path, seeds: tuple[int, ...] = (0,)) -> Content:
    config, predictions = reports.config_in(project), answers(project, seeds)
    errors = label_errors.find(predictions.probabilities, predictions.labels, predictions.paths, predictions.classes)
    source = originals.locate(Path(config.paths.images), Path(config.paths.inbox))
    examples = folds_page.choose_examples(predictions)
    paths = folds_page.image_paths(examples, errors)
    pictures = thumbnails.pictures(source, dict.fromkeys(paths, True), config.prepare.grey, 2, "folds")
    return Content(
        config=config, predictions=predictions, figures=pooling.figures(predictions), examples=examples, errors=errors,
        album=Album(pictures, credits.credits(Path(config.paths.images) / originals.LICENSE)),
        command=f"perennial folds --folds {FOLDS}   # <all>",
        coverage=Coverage(0.95, NO_SHARE, "no limit is known"),
    )  # fmt: skip


@pytest.fixture(scope="module")
def study(reported: Path) -> Content:
    return content(reported)


@pytest.fixture(scope="module")
def file(study: Content, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "folds.html"
    files.write_text(path, folds_page.page(study))
    return path


@pytest.fixture(scope="module")
def elements(file: Path) -> Element:
    return parsed(file.read_text())


def test_the_figures_are_of_all_images(study: Content, elements: Element, reported: Path) -> None:
    """Accuracy and interval from all images; each fold with its right answers; a matrix whose sum is all images."""
    predictions, hero = study.predictions, elements.one(class_="hero").text
    hits = predictions.by_seed[0].argmax(1) == predictions.labels
    low, high = (f"{100 * bound:.1f}\u00a0%" for bound in metrics.wilson(int(hits.sum()), 96))
    assert hero.startswith(f"{100 * hits.mean():.1f}\u00a0% of the 96 images")
    assert f"{low} to {high}" in hero
    spread = study.figures.over_folds
    assert f"{spread.mean:.3f} ± {spread.deviation:.3f} over folds" in elements.one(class_="tiles").text
    right = [int(hits[predictions.folds == fold].sum()) for fold in range(FOLDS)]
    rows = [[*row[:4], row[4][:5]] for row in elements.table("Each training")]
    assert rows == [[f"{fold}", "0", "24", f"{hit}", f"{hit / 24:.3f}"] for fold, hit in enumerate(right)]
    cells = elements.one("table", class_="matrix").all("a")
    assert sum(int(str(cell.children[0])) for cell in cells) == 96
    assert "over seeds" not in elements.text
    names = [row[0] for caption in ("Other than", "As the project") for row in elements.table(caption)]
    assert ("split.seed" in names, "split.fold" in names) == (True, False)  # the table of folds has it
    several = content(reported, seeds=(3, 5))
    root, figures = parsed(folds_page.page(replace(several, errors=[]))), several.figures
    tiles = root.one(class_="tiles").text
    assert f"{figures.over_seeds.mean:.3f} ± {figures.over_seeds.deviation:.3f} over seeds" in tiles
    assert f"{figures.accuracy_of_mean:.3f} seeds together" in tiles
    trainings = [[f"{fold}", f"{seed}", "24"] for seed in (3, 5) for fold in range(FOLDS)]
    assert [row[:3] for row in root.table("Each training")] == trainings
    assert root.one("section", id="labels").all(id="sheet") == []


def test_every_label_error_is_there_with_both_classes(study: Content, elements: Element) -> None:
    """Rank, given and suggested class with probabilities, and a picture."""
    labels, number, names = elements.one("section", id="labels"), len(study.errors), study.predictions.classes
    assert {one.path for one in study.errors} >= set(study.predictions.paths[::12])
    assert f"{number} labels of 96 ({100 * number / 96:.1f}\u00a0%) may be wrong" in labels.text
    figures = labels.one(id="sheet").all("figure")
    assert sum(one.attributes["src"].startswith("data:image/jpeg") for one in labels.all("img")) == number
    for rank, (figure, one) in enumerate(zip(figures, study.errors, strict=True), start=1):
        first, second, *_ = (span.text for span in figure.one("figcaption").all("span"))
        assert first == f"{rank}. label {one.given} {100 * one.p_given:.1f}\u00a0%"
        assert second == f"suggested: {one.suggested} {100 * one.p_suggested:.1f}\u00a0%"
        assert figure.attributes["data-path"] == one.path
    odd = replace(  # a mark of direction, as photos of WhatsApp have it, and a letter that JSON has as it is
        study.predictions,
        paths=tuple(f"\u200e{path}" for path in study.predictions.paths),
        classes=tuple(f"{name}\x85" for name in names),
    )
    errors = label_errors.find(odd.probabilities, odd.labels, odd.paths, odd.classes)
    changed = replace(study, predictions=odd, errors=errors, examples=folds_page.choose_examples(odd))
    page = parsed(folds_page.page(changed))
    worst = page.one(id="sheet").all("figure")[0].attributes
    assert (worst["data-path"], worst["data-given"]) == (
        f"\u200e{study.errors[0].path}",
        f"{study.errors[0].given}\x85",
    )
    assert json.loads(page.one(id="chosen").attributes["data-classes"]) == [*odd.classes]


def test_a_page_of_very_many_stays_small(study: Content) -> None:
    """Of many label errors, folds and classes only so many are shown; all are counted."""
    n, k = 4_000, 1000
    labels = np.arange(n) % k
    right = np.full((1, n, k), 5e-5)
    right[0, np.arange(n), (labels + 1) % k] = 0.95
    predictions = FoldPredictions(
        tuple(f"class {j}" for j in range(k)), tuple(f"{j:05d}.jpg" for j in range(n)), labels, labels, (0,), right
    )
    errors = [label_errors.LabelError(row, f"{row:05d}.jpg", "class 0", "class 1", 0.1, 0.9, 0.1) for row in range(n)]
    figures, album = pooling.figures(predictions), Album({}, {})
    weak = parsed(folds_page.page(replace(study, predictions=predictions, figures=figures, errors=errors, album=album)))
    assert len(weak.one("section", id="labels").all("figure")) == 20
    errors = errors[:400]
    page = folds_page.page(replace(study, predictions=predictions, figures=figures, errors=errors, album=album))
    root = parsed(page)
    sheet = root.one("section", id="labels")
    assert "400 labels of 4,000" in sheet.text
    assert "metrics/folds/label_errors.csv" in sheet.text
    assert len(sheet.all("figure")) == len(root.table("Each training")) == 100
    assert len(root.table("The 30 most frequent of 1,000")) == 30
    assert sheet.one("h2").text != weak.one("section", id="labels").one("h2").text
    assert len(page) < 200_000
    assert len(folds_page.shown(errors, n)) == 100


# ---- in a browser ----


ODD = 'a, "b"/it\'s; 1,5.jpg'


@pytest.fixture(scope="module")
def odd(study: Content, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page whose first image has a name of all that a table quotes."""
    first, *others = study.errors
    file = tmp_path_factory.mktemp("odd") / "folds.html"
    files.write_text(file, folds_page.page(replace(study, errors=[first._replace(path=ODD), *others])))
    return file


@needs_chromium
def test_choices_are_saved_as_a_table_of_corrections(
    browser: Browser, study: Content, odd: Path, tmp_path: Path
) -> None:
    """The suggested class, another one, or to leave the image out: what is saved, and what is copied, can be read."""
    with opened(browser, odd) as page:
        bar, choices = page.locator("#chosen"), page.locator("#labels .shot select")
        assert bar.is_hidden()
        paths, suggestion = [one.path for one in study.errors], study.errors[0].suggested
        third = next(k for k, one in enumerate(study.errors) if k > 1 and HOSTILE not in (one.given, one.suggested))
        choices.nth(0).select_option(suggestion)
        choices.nth(1).select_option("exclude")
        choices.nth(third).select_option(HOSTILE)
        choices.nth(third + 1).select_option("exclude")
        choices.nth(third + 1).select_option("")
        expected = [[ODD, suggestion], [paths[1], "exclude"], [paths[third], HOSTILE]]
        assert page.locator("output").inner_text() == "3 corrections"
        with page.expect_download() as download:
            page.get_by_text("save corrections.csv").click()
        assert download.value.suggested_filename == "corrections.csv"
        saved = corrections.read(download.value.path())
        assert [[cells["path"], cells["label"]] for _, cells in saved.lines] == expected
        assert saved.lines[0][1]["reason"].startswith("label error 1: ")
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.get_by_text("copy", exact=True).click()
        page.get_by_text("copied", exact=True).wait_for()
        table = tmp_path / "corrections.csv"
        table.write_text(f"{corrections.EMPTY}{page.evaluate('navigator.clipboard.readText()')}")
        assert corrections.read(table) == saved


def reload_until(page: Page, is_so: Callable[[], bool]) -> None:
    """Reload the page, again if need be: a process of Chromium tells the others later what it stores."""
    for _ in range(60):
        page.reload()
        if is_so():
            return
        page.wait_for_timeout(500)
    raise AssertionError("the browser keeps something else")


@needs_chromium
def test_choices_are_there_after_a_reload(browser: Browser, odd: Path, file: Path, tmp_path: Path) -> None:
    """Until they are cleared, and not for other images; where the browser forbids it, the bar says so."""
    shutil.copy(odd, path := tmp_path / "folds.html")
    with opened(browser, path) as page:
        choices, bar = page.locator("#labels .shot select"), page.locator("#chosen")
        choices.nth(0).select_option("exclude")
        choices.last.select_option("exclude")
        reload_until(page, lambda: choices.nth(0).input_value() == choices.last.input_value() == "exclude")
        assert choices.nth(1).input_value() == ""
        page.evaluate("scrollTo(0, 0)")
        box = bar.bounding_box()
        assert box
        assert box["y"] + box["height"] == 900  # in view, whatever part of the page is
        shutil.copy(file, path)
        page.reload()
        assert bar.is_hidden()
        shutil.copy(odd, path)
        page.reload()
        bar.get_by_text("clear").click()
        assert bar.is_hidden()
        reload_until(page, lambda: (bar.is_hidden(), choices.nth(0).input_value()) == (True, ""))
        forbidden = "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('forbidden') } })"
        page.context.add_init_script(forbidden)
        page.reload()
        choices.nth(0).select_option("exclude")
        assert "keeps nothing" in bar.locator(".note").inner_text()
        page.evaluate("Object.defineProperty(navigator, 'clipboard', {})")
        bar.get_by_text("copy", exact=True).click()
        bar.get_by_text("selected").wait_for()
        assert page.evaluate("getSelection().toString()") == bar.locator("pre").inner_text()
