"""The experiment of a trial: its name follows from everything that decides the model, and what it gave is checked."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pipeline.base import dvc_lock, files
from pipeline.base.errors import UserError
from pipeline.config import params
from pipeline.evaluation.figures import TrainFigures
from pipeline.studies import experiments, trials
from pipeline.studies.ranges import Sweep
from tests.conftest import on_cpu, read_params, write_params
from tests.helpers.measured import train_figures
from tests.helpers.projects import link_code

SHARED = {"data/split.csv": "a", "pipeline/train.py": "b"}


def name(shared: dict[str, str] = SHARED, study: str = "s", **changes: Any) -> str:
    """The name of the experiment of params with these changes."""
    config = params.parse(on_cpu(read_params(), **changes))
    own = trials.weights(config, Sweep("s", "grid", 1, 0, {"train.lr": (0.1,)}))
    return trials.name(study, "1", config, shared, own)


@pytest.mark.parametrize(
    "changes",
    [
        {"train__lr": 0.5}, {"train__seed": 7}, {"evaluate__batch_size": 3}, {"run__processes": 2},
        {"shared": SHARED | {"data/split.csv": "c"}}, {"shared": SHARED | {"pipeline/train.py": "c"}},
    ],
)  # fmt: skip
def test_a_trial_whose_model_differs_is_another_experiment(changes: dict[str, Any]) -> None:
    """Params, data or code: a finished trial is never taken for one of other images."""
    assert name(**changes) != name()


@pytest.mark.parametrize("changes", [{"run__workers": 5}, {"split__seed": 9}])
def test_a_trial_whose_model_is_the_same_is_the_same_experiment(changes: dict[str, Any]) -> None:
    """The split is known by the hash of its table."""
    assert name(**changes) == name()


def test_the_users_own_weights_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their content, not their name alone; a missing file is refused."""
    monkeypatch.chdir(tmp_path)
    link_code(tmp_path)
    own: dict[str, Any] = {"train__weights": "mine.safetensors"}
    with pytest.raises(UserError, match=r"^train.weights: mine.safetensors not found"):
        name(**own)
    names = []
    for content in ("one", "two", "one"):
        Path("mine.safetensors").write_text(content)
        names.append(name(**own))
    assert names[0] != names[1]
    assert names[0] == names[2]


def test_swept_weights_are_known_by_their_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that params.yaml names are not read then; of `none` there is no file."""
    monkeypatch.chdir(tmp_path)
    Path("one.safetensors").write_text("1")
    config = params.parse(on_cpu(read_params(), train__weights="other.safetensors"))
    swept = Sweep("s", "grid", 2, 0, {"train.weights": ("none", "one.safetensors")})
    assert trials.weights(config, swept) == {"one.safetensors": files.sha256(Path("one.safetensors"))}


def test_a_name_is_one_that_git_takes() -> None:
    """Of the name of the file of ranges letters and digits are left."""
    assert re.fullmatch(r"my-sweep-+2-1-[0-9a-f]{8}", name(study="my sweep: 学习 (2)"))
    assert re.fullmatch(r"sweep-1-[0-9a-f]{8}", name(study="学习"))


def test_data_and_code_are_known_by_their_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The split and the packed images from dvc.lock; each file that the training reads from dvc.yaml."""
    monkeypatch.chdir(tmp_path)
    paths = params.parse(read_params()).paths
    outs = [{"path": path, "md5": f"md5 of {path}"} for path in (paths.split, paths.packed, paths.models)]
    write_params(tmp_path / dvc_lock.LOCK, {"stages": {"all": {"outs": outs}}})
    written, read = {"outs": [paths.packed]}, {"deps": ["code", paths.packed]}
    write_params(tmp_path / "dvc.yaml", {"stages": {"prepare": written, "train": read}})
    (tmp_path / "code").mkdir()
    (tmp_path / "code/one.py").write_text("1")
    expected = {path: f"md5 of {path}" for path in (paths.split, paths.packed)}
    expected["code/one.py"] = files.sha256(tmp_path / "code/one.py")
    assert trials.data(params.parse(read_params())) == expected


def test_damaged_figures_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the commit, and how to try the trial again."""
    config, texts = params.parse(read_params()), iter([json.dumps(asdict(train_figures(0.5, 1.5, 3))), "{}"])
    monkeypatch.setattr(experiments, "text_of", lambda *_: next(texts))
    assert trials.figures_of("0" * 40, config, TrainFigures) == train_figures(0.5, 1.5, 3)
    with pytest.raises(UserError) as error:
        trials.figures_of("0" * 40, config, TrainFigures)
    assert [(fault.key, fault.kind) for fault in error.value.faults] == [
        ("metrics/train.json of 000000000000", "damaged")
    ]
    assert "dvc exp remove" in error.value.faults[0].remedy
