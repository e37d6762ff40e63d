"""What `make repro` and `make demo` end with: the figures, where to look, and what to do next."""

import re

import pytest

from pipeline.config import params
from pipeline.config.params import Paths
from pipeline.evaluation.summary import summary
from pipeline.repro import reaches_the_end
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
    for place in ("reports/mistakes.png", "data/split.csv", "dvc plots show", "tensorboard --logdir runs"):
        assert place in said
    assert "python -m pipeline.predict IMAGE" in said


def test_before_an_evaluation_there_is_nothing_to_say() -> None:
    """Without metrics there is no summary."""
    assert summary(paths_in("nowhere")) == ""


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ([], True),
        (["--force"], True),
        (["evaluate"], True),
        (["--downstream", "split"], True),
        (["prepare"], False),
        (["--single-item", "train"], False),
    ],
)
def test_figures_of_an_earlier_run_are_not_shown(arguments: list[str], shown: bool) -> None:
    """The summary follows only if the last stage is among those that `make repro` was asked for."""
    assert reaches_the_end(arguments) == shown
