"""The page about a sweep, its table and its conclusion. tests/test_pages.py opens it with a real browser."""

from pathlib import Path

from pipeline.evaluation.figures import TrainFigures
from pipeline.studies import sweep_page, trials
from pipeline.studies.ranges import Range, Sweep, Trial
from pipeline.studies.trials import TrialResult
from tests.helpers.measured import eval_figures, train_figures
from tests.helpers.pages import parsed

HOSTILE = "<b onclick=alert(1)>"
IMAGES = 40  # of the validation
LR = Range.model_validate({"from": 0.001, "to": 0.1, "scale": "log"})
SWEEP = Sweep(
    HOSTILE, "random", 4, 0, {"train.lr": LR, "train.model": ("resnet18", HOSTILE), "train.nesterov": (True, False)}
)


def result_of(number: int, lr: float, model: str, *results: TrainFigures) -> TrialResult:
    values = {"train.lr": lr, "train.model": model, "train.nesterov": True}
    return TrialResult(Trial(number, values), results, Path())


ENDED = [
    result_of(1, 0.01, "resnet18", train_figures(0.5, 0.5, 3)),
    result_of(2, 0.1, "resnet18"),  # failed
    result_of(3, 0.001, HOSTILE, train_figures(0.75, 1.5, 3)),
    result_of(4, 0.05, "resnet18", train_figures(0.75, 1.25, 2)),
    result_of(5, 0.02, "resnet18", train_figures(0.75, 1.25, 2)),
]
BEST_FIRST = trials.sort_by_rank(ENDED)
PRESENT = ENDED[0].trial.values
CONCLUSION = trials.conclusion(BEST_FIRST, PRESENT, eval_figures(0.625, 0.4, 0.8), {"val": IMAGES, "test": 80})
TAKE_OVER = "perennial try s-trial4 train.lr=0.05"
PAGE = sweep_page.page(SWEEP, BEST_FIRST, IMAGES, CONCLUSION, TAKE_OVER)
ELEMENTS = parsed(PAGE)


def test_the_best_is_the_one_with_the_highest_validation_accuracy() -> None:
    """Then the lower validation loss decides, then the number. A failed trial is last, without a rank."""
    assert [one.trial.number for one in BEST_FIRST] == [4, 5, 3, 1, 2]
    header, rows = trials.table(BEST_FIRST)
    assert header[:5] == ["rank", "trial", "state", "train.lr", "train.model"]
    assert rows[0] == ["1", 4, "", "0.05", "resnet18", "true", 0.75, 1.25, 2]
    assert rows[-1] == ["", 2, "failed", "0.1", "resnet18", "true", "", "", ""]
    assert trials.text_table(BEST_FIRST)[-1][:3] == ["–", "2", "failed"]


def test_the_conclusion_warns_of_the_selection() -> None:
    """Each figure has the interval of its images. The validation accuracy is said to be too good."""
    parts = ("0.7500 (95 % interval 0.5981 to 0.8581, 40 images)", "too good", "+25.0 points",
             "0.6250 (95 % interval 0.4000 to 0.8000, 80 images)")  # fmt: skip
    assert [part in sentence for part, sentence in zip(parts, CONCLUSION, strict=True)] == [True] * 4
    alone = trials.conclusion(ENDED[:1], PRESENT, eval_figures(0.5, 0.4, 0.6), {"val": 40, "test": 80})
    assert "too good" not in alone[1]
    without = trials.conclusion(BEST_FIRST, ENDED[1].trial.values, eval_figures(0.5, 0.4, 0.6), {"val": 40, "test": 80})
    assert not any("points" in sentence for sentence in (alone[2], without[2]))  # no gain, and no result to compare


def test_the_page_has_every_trial_and_the_sentences() -> None:
    """The failed one is in the table, without a rank."""
    rows = ELEMENTS.table("The highest validation accuracy first")
    assert rows[0] == ["1", "4", "0.7500", "0.05", "resnet18", "true", "1.2500", "2"]
    assert rows[-1] == ["–", "2", "failed", "0.1", "resnet18", "true", "", ""]
    sentences = [one.text for one in ELEMENTS.one("section", id="best").all("p")]
    assert sentences == [*CONCLUSION, f"To take it over: {TAKE_OVER}."]


def test_each_trial_has_a_dot() -> None:
    """In the order of the numbers, with its interval; of many trials the best."""
    dots = ELEMENTS.one("svg")
    assert len(dots.all("circle")) == len(dots.all("path", class_="line")) == 4
    assert "lr=0.01 model=resnet18 nesterov=true" in dots.text
    assert "; lr=0.02" in dots.one("desc").text
    many = [result_of(k, 0.01, HOSTILE * 3, train_figures(k / 40, 0.5, 3)) for k in range(1, 40)]
    page = parsed(sweep_page.page(SWEEP, trials.sort_by_rank(many), IMAGES, CONCLUSION, TAKE_OVER))
    assert len(page.all("circle")) == sweep_page.MOST_DOTS
    assert page.all(class_="note")[0].text == f"The dots are of the best {sweep_page.MOST_DOTS} trials."
    assert {len(one.text) for one in page.one("svg").all("text") if one.text.startswith("lr=")} == {42}
