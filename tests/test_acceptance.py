""" "None of the classes": the limit from validation images, what predict makes of it, and classes that are left out."""

import csv
import json
import shutil
import sys
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import Browser

from pipeline.answers import classify
from pipeline.answers.classify import Request
from pipeline.base import files
from pipeline.commands import predict
from pipeline.dataset import split_table
from pipeline.evaluation import acceptance, metrics
from pipeline.evaluation.acceptance import MIN_IMAGES, MISSING, MOST_IMAGES, Acceptance
from pipeline.studies import learning_curve
from tests.helpers import starts
from tests.helpers.browser import needs_chromium, opened
from tests.helpers.datasets import do_split, put, two_classes
from tests.helpers.pages import parsed
from tests.helpers.projects import call, create_project
from tests.helpers.refusals import refuses

WEIGHTS = "a" * 64
SCORE = st.integers(0, 10**6).map(lambda number: number / 10**6)


def content(scores: list[float], coverage: float = 0.95, classes: int = 1) -> Acceptance:
    return acceptance.make(WEIGHTS, coverage, scores, classes)


@given(st.lists(SCORE, min_size=MIN_IMAGES + 1, max_size=60), st.sampled_from([0.5, 0.9, 0.95]))
def test_the_coverage_is_exact(scores: list[float], coverage: float) -> None:
    """Whichever of the images comes last: the share of those that reach the limit of the others is the coverage.

    This is the whole proof of split conformal prediction: the images are exchangeable.
    """
    reached = 0
    for number, score in enumerate(scores):
        limit = acceptance.limit(content([*scores[:number], *scores[number + 1 :]]), WEIGHTS, coverage)
        reached += score >= limit.highest
    assert reached >= coverage * len(scores)


@given(st.lists(st.floats(0, 1), min_size=60, max_size=60), st.sampled_from([50, 80, 90, 95]))
def test_an_image_below_the_limit_is_none_of_the_classes(scores: list[float], percent: int) -> None:
    """Every other one gets a class, also the one whose score is the limit, or equal to it in six digits."""
    for images in range(MIN_IMAGES, len(scores) + 1):
        limit = acceptance.limit(content(scores[:images], percent / 100), WEIGHTS)
        at = sorted(scores[:images])[(images + 1) * (100 - percent) // 100 - 1]
        for score in scores:
            is_none = float(f"{score:.6g}") < float(f"{at:.6g}")
            assert acceptance.judge(score, limit) == ("none" if is_none else "class")


def test_a_coverage_that_is_asked_for_comes_first() -> None:
    """predict --coverage; without it the coverage of the file, evaluate.coverage."""
    scores = content([number / 100 for number in range(99)], coverage=0.95)
    limits = [acceptance.limit(scores, WEIGHTS, coverage) for coverage in (0, 0.9)]
    assert [(limit.coverage, limit.images, limit.highest) for limit in limits] == [(0.95, 99, 0.04), (0.9, 99, 0.09)]


def test_a_score_has_six_digits(tmp_path: Path) -> None:
    """In the file and where a probability is compared. A file of an older version, with `own`, gives its limit."""
    scores = content([0.12345649, 0.000123456789])
    assert scores.highest == (0.000123457, 0.123456)
    assert [acceptance.reaches(score, 0.123456) for score in (0.12345551, 0.12345549)] == [True, False]
    acceptance.write(tmp_path, scores)
    raw = json.loads((tmp_path / acceptance.FILE).read_bytes())
    files.write_json(tmp_path / acceptance.FILE, raw | {"own": [0.1, 0.2]})
    assert acceptance.read(tmp_path) == scores


@pytest.mark.parametrize(
    "case",
    [MISSING, content([0.5] * (3 * MIN_IMAGES - 1), classes=3), replace(content([0.5] * 99), weights="b" * 64),
     content([0.5] * MIN_IMAGES, coverage=0.99)],
    ids=["an older model", "few images", "other weights", "a high coverage"],
)  # fmt: skip
def test_without_a_limit_every_image_gets_a_class(case: Acceptance) -> None:
    """And the reason is known. With 101 classes or more, the MOST_IMAGES scores of a file are enough."""
    limit = acceptance.limit(case, WEIGHTS)
    assert limit.reason
    assert acceptance.judge(0.1, limit) == ""
    many = content([number / MOST_IMAGES for number in range(MOST_IMAGES)], classes=1000)
    assert acceptance.limit(many, WEIGHTS).reason == ""


def test_evaluate_writes_the_probabilities_of_the_validation_images(finished: Path) -> None:
    """Of each one the highest; model.onnx has the same."""
    scores = acceptance.read(finished / "models")
    val = [row for row in files.read_csv(finished / "data/split.csv") if row["split"] == "val"]
    assert (len(scores.highest), scores.classes) == (len(val), 5)
    assert scores.weights == files.sha256(finished / "models/model.safetensors")
    assert all(1 / 5 <= highest <= 1 for highest in scores.highest)
    assert classify.open_onnx(finished / "models/model.onnx").acceptance == scores


def image(folder: Path) -> Path:
    return min((folder / "data/images").rglob("*.png"))


@pytest.mark.parametrize(("limit", "kind"), [(1.0, "none"), (0.2, "class")])
def test_predict_gives_a_class_or_none(
    finished: Path, limit: float, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In JSON, as a row of the table, and as a line, by the limit of the model's folder."""
    models = shutil.copytree(finished / "models", tmp_path / "models")
    acceptance.write(models, acceptance.make(acceptance.read(models).weights, 0.95, [limit] * 100, 5))
    said = {}
    for form in ("json", "csv", "text"):
        assert predict.predict(Request((image(finished),), models / "model.safetensors"), form) == 0
        said[form] = capsys.readouterr().out
    (row,) = csv.DictReader(said["csv"].splitlines())
    assert (json.loads(said["json"])["answer"], row["answer"]) == (kind, kind)
    assert (predict.NONE in said["text"], f"{row['class']} 0." in said["text"]) == (kind == "none", True)


def test_predict_says_why_there_is_no_limit(finished: Path) -> None:
    """The validation images are too few. --coverage is then refused by name, as it is outside of its range."""

    def ask(*arguments: str) -> Any:
        return starts.run([sys.executable, "-m", "pipeline", "predict", *arguments, str(image(finished))], cwd=finished)

    done = ask("--model", "models/model.onnx", "--json")
    assert (done.returncode, json.loads(done.stdout)["answer"]) == (0, "")
    assert f"{len(acceptance.read(finished / 'models').highest)} validation images" in done.stderr
    for coverage, status in (("1.2", 2), ("0.9", 1)):
        refusal = ask("--coverage", coverage)
        assert refusal.returncode == status
        assert "--coverage" in refusal.stderr
        assert coverage in refusal.stderr


def test_a_class_that_is_left_out_is_in_no_split(tmp_path: Path) -> None:
    """Its images stay in the table, with a reason; a broken file and a copy keep their own. Other names are refused."""
    folder = two_classes(tmp_path / "images")
    with refuses(("split.leave_out", "value")):  # one class would be left
        do_split(folder, leave_out="cat")
    for seed in range(200, 210):
        put(folder / f"third/{seed}.png", seed)
    put(folder / "third/copy.png", 200)
    (folder / "third/broken.png").write_bytes((folder / "third/200.png").read_bytes()[:60])
    rows, _ = do_split(folder, leave_out="third")
    reasons = Counter(split_table.kind(row.reason) for row in rows if row.label == "third")
    assert reasons[split_table.LEAVE_OUT] == 10
    assert len(reasons) == 3
    assert {row.split for row in rows if row.label == "third"} == {""}
    assert all(row.reason for row in rows if row.label == "third")
    with refuses(("split.leave_out", "value")):
        do_split(folder, leave_out="fourth")


def test_a_smaller_share_is_a_part_of_a_larger_one(tmp_path: Path) -> None:
    """Of the training images; validation and test images stay. Each class keeps an image."""
    folder = two_classes(tmp_path / "images")
    for seed in range(300, 340):
        put(folder / f"{'cat' if seed % 2 else 'dog'}/{seed}.png", seed)
    used, others = [], []
    for share in (1e-6, 0.25, 0.5, 1.0):
        rows, _ = do_split(folder, train_share=share)
        used.append({row.path for row in rows if row.split == "train"})
        others.append({(row.path, row.split) for row in rows if row.split in ("val", "test")})
    assert sorted(Path(path).parent.name for path in used[0]) == ["cat", "dog"]
    assert used[0] < used[1] < used[2] < used[3]
    assert others[0] == others[1] == others[2] == others[3]


@given(st.lists(st.tuples(SCORE, st.booleans()), min_size=2, max_size=30))
def test_the_auroc_counts_pairs(rows: list[tuple[float, bool]]) -> None:
    """It is the share of pairs in which the known image has the higher score; a tie counts half."""
    rows = [*rows, (0.5, True), (0.4, False)]
    known, others = ([score for score, is_known in rows if is_known is kind] for kind in (True, False))
    pairs = [(a > b) + (a == b) / 2 for a in known for b in others]
    scores, is_known = np.array([score for score, _ in rows]), np.array([kind for _, kind in rows])
    assert metrics.auroc(scores, is_known) == pytest.approx(sum(pairs) / len(pairs))


@pytest.mark.parametrize(("better", "can_be_said"), [(2, False), (30, True)])
def test_the_gain_of_a_doubling_has_an_interval(better: int, can_be_said: bool) -> None:
    """Two more right answers of 100 can be chance, and the sentence says so; thirty cannot."""
    labels = {f"{number}": "a" for number in range(100)}
    half = dict.fromkeys(labels, "b")
    whole = {path: "a" if int(path) < better else "b" for path in labels}
    gain = learning_curve.gain(labels, half, whole)
    assert gain.points == pytest.approx(better)
    assert (gain.low > 0) is can_be_said
    assert "from 69 to 163 " in gain.sentence(69, 163)


@pytest.mark.parametrize(("images", "better", "is_clear"), [(4, 1, False), (40, 6, False), (40, 12, True)])
def test_a_class_is_named_only_for_a_rise_beyond_chance(images: int, better: int, is_clear: bool) -> None:
    """One of four photos is none; and of ten classes one rises by six of forty although nothing has changed."""
    labels = {f"{name}{number}": name for name in "abcdefghij" for number in range(images)}
    whole = labels | {f"a{number}": "b" for number in range(20)}
    half = whole | {f"c{number}": "b" for number in range(better)}
    first, *others = learning_curve.class_gains(labels, half, whole)
    assert (first.name, first.is_clear) == ("c", is_clear)
    assert not any(row.is_clear for row in others)


SMALL: dict[str, Any] = {
    "data__source": "synthetic", "data__synthetic__count": 300, "data__synthetic__size": 40, "prepare__size": 32,
    "split__fractions__train": 0.3, "split__fractions__val": 0.5, "split__fractions__test": 0.2,
    "evaluate__batch_size": 8,
}  # fmt: skip


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project after both studies."""
    project = create_project(tmp_path_factory.mktemp("unknown") / "project", **SMALL)
    call(project, "python", "-m", "pipeline", "folds", "--leave-out-classes", "--jobs", "2")
    call(project, "python", "-m", "pipeline", "curve", "--jobs", "2")
    return project


STUDY = pytest.mark.nightly("nine trainings under DVC; make test has the figures, and a class that is left out")


@STUDY
def test_every_class_is_left_out_once(studied: Path) -> None:
    """Of each class all images are asked, by the model that never saw them; the page has four kinds."""
    summary = json.loads((studied / "metrics/unknown/summary.json").read_bytes())
    rows = files.read_csv(studied / "metrics/unknown/answers.csv")
    assert len(summary["classes"]) == 5
    for result in summary["classes"]:
        others = [row for row in rows if row["without"] == row["label"] == result["without"]]
        assert result["recognized"]["images"] == len(others) == 60
        assert result["recognized"]["count"] == sum(row["accepted"] == "False" for row in others)
        assert all(row["prediction"] != row["without"] for row in others)
    assert summary["total"]["recognized"]["images"] == 300
    assert len(parsed((studied / "reports/unknown.html").read_text()).all(class_="group")) == 4


@STUDY
def test_the_curve_has_shares_of_the_same_test_images(studied: Path) -> None:
    summary = json.loads((studied / "metrics/curve/summary.json").read_bytes())
    counts = [point["training_images"] for point in summary["points"]]
    assert counts == sorted(set(counts))
    half, whole = summary["points"][-2:]
    assert summary["last_doubling"]["points"] == pytest.approx(100 * (whole["accuracy"] - half["accuracy"]))


@STUDY
@needs_chromium
def test_a_page_is_as_wide_as_the_window(browser: Browser, studied: Path) -> None:
    """On a desktop and on a phone nothing makes the page scroll sideways."""
    for page, width in product(("unknown", "curve"), (1280, 390)):
        with opened(browser, studied / f"reports/{page}.html", width=width) as view:
            assert view.evaluate("document.documentElement.scrollWidth") <= width
