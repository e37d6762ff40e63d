"""What `make repro` and `make demo` end with: the figures, where to look, and what to do next."""

import re

import pytest

from pipeline.config import params
from pipeline.config.params import Paths
from pipeline.evaluation.summary import summary
from pipeline.repro import reached
from tests.conftest import PROJECT

RESULTS = PROJECT / "results/demo"


def paths_in(folder: str) -> Paths:
    """The paths of the demo, with its metrics in another folder."""
    return params.load(RESULTS / "params.yaml").paths.model_copy(update={"metrics": folder})


def test_the_figures_are_those_of_the_metrics() -> None:
    """Images, test accuracy with its interval and the number of test images, and where everything is."""
    said = summary(paths_in(str(RESULTS / "metrics")))
    assert re.search(r"^images +600 of 600 are used: 484 train, 63 val, 53 test$", said, re.MULTILINE)
    assert re.search(r"^test accuracy +0.9434 \(95 % interval: 0.8463 to 0.9806, 53 images\)$", said, re.MULTILINE)
    for place in ("reports/index.html", "data/split.csv", "dvc plots show", "tensorboard --logdir runs"):
        assert place in said
    assert "python -m pipeline.predict IMAGE" in said


def test_before_an_evaluation_there_is_nothing_to_say() -> None:
    """Without metrics there is no summary."""
    assert summary(paths_in("nowhere")) == ""


DATA, LAST = {"download", "split", "prepare"}, {"evaluate", "export", "card", "report"}
ALL = DATA | {"weights", "train"} | LAST


@pytest.mark.parametrize(
    ("arguments", "stages"),
    [
        ([], ALL),
        (["--force"], ALL),
        (["evaluate"], ALL - {"export", "card", "report"}),
        (["report"], ALL - {"export", "card"}),
        (["--downstream", "split"], ALL - {"download", "weights"}),
        (["prepare"], DATA),
        (["prepare", "weights"], DATA | {"weights"}),
        (["--single-item", "train"], {"train"}),
        (["-s", "report"], {"report"}),
        (["--pipeline", "split"], ALL),
        (["data/packed"], ALL),
    ],
)
def test_what_a_run_brings_up_to_date(arguments: list[str], stages: set[str]) -> None:
    """By dvc.yaml, with DVC's own options. Only these outputs are checked, and only their figures are shown."""
    assert reached(arguments) == stages


def test_the_report_is_named_last() -> None:
    """It is what a person opens next. After an evaluation alone it is not named: the page is of an earlier run."""
    paths = paths_in(str(RESULTS / "metrics"))
    assert "reports/index.html" in summary(paths).splitlines()[-1]
    assert "reports/index.html" not in summary(paths, reported=False)
