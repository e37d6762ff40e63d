"""train.model: mine/<file>.py:<function>: the user's network keeps the promises, and its faults are refused by name."""

import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.base import files
from pipeline.commands import doctor
from pipeline.config import params
from pipeline.dataset.normalization import IMAGENET
from pipeline.evaluation import heatmap, onnx_export
from pipeline.models import exported, network, own
from pipeline.models.description import Description, View
from pipeline.planning import forecast
from pipeline.studies import workcopy
from pipeline.versioning import dvc_lock
from tests.conftest import PROJECT, on_cpu, read_params, set_params
from tests.helpers import in_process, starts
from tests.helpers.refusals import check_form, refuses
from tests.helpers.trainings import launch, outputs, small_world, stop_in_epoch

(EXAMPLE,) = re.findall(r"```python\n(from torch import nn\n.*?)```", (PROJECT / "docs/projects.md").read_text(), re.S)
MODEL, FILE, OTHER = "mine/net.py:small", Path("data/mine/net.py"), EXAMPLE.replace("nn.ReLU()", "nn.GELU()")
BEGIN, POOL = "def small(classes):\n    return nn.Sequential(\n", "nn.AdaptiveAvgPool2d(1), nn.Flatten(), "
ODD = """from torch import nn
class Odd(nn.Linear):  # it has no mean over places, and branches on pixels
    def forward(self, images):
        return super().forward(images.flatten(1)) * (1 if images.sum() > 0 else 2)
odd = lambda classes: Odd(3072, classes)
"""
ABOUT = Description(MODEL, ("a", "b"), View(40, 36, 32), IMAGENET.mean, IMAGENET.std, "last", 1)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the file of the document."""
    monkeypatch.chdir(tmp_path)
    files.write_text(FILE, EXAMPLE)
    return tmp_path


@pytest.mark.slow("a run of all stages; make test stops and resumes a training of such a network")
def test_it_goes_through_all_stages(
    finished_copy: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The network of the document. Another text of the file is seen; no other file counts."""
    in_process.fork_stages(monkeypatch, finished_copy)
    set_params(finished_copy, train__model=MODEL, evaluate__onnx=False)

    def outputs_of(content: str) -> dict[str, str]:
        files.write_text(FILE, content)
        assert in_process.run(capfd)[0] == 0
        return dvc_lock.outputs(dvc_lock.read())

    first = outputs_of(EXAMPLE)
    assert f'"{MODEL}@{files.sha256(FILE)[:16]}"' in Path("models/model.json").read_text()
    assert FILE in workcopy.project_files()  # though it is in no commit
    image = str(next(Path("data/images").rglob("*.png")))
    assert image in starts.run([sys.executable, "-m", "pipeline", "predict", image], check=True).stdout
    files.write_text(FILE, OTHER)
    states = {each.stage: each.state for each in forecast.forecast()}
    assert {states[name] for name in ("download", "split", "prepare")} == {"unchanged"}
    assert states["weights"] == "runs"
    assert states["train"] == "maybe"
    files.write_text(Path("data/mine/beside.py"), "nonsense(")
    assert outputs_of(EXAMPLE) == first


AVERAGED = {"train__ema_decay": 0.9, "train__export": "ema"}
TWO = pytest.param(
    {**AVERAGED, "train__parallel": "ddp", "run__processes": 2},
    marks=pytest.mark.nightly("three trainings; test_resume.py has those of two processes"),
)
COMPILED = pytest.param({"train__compile": True}, marks=pytest.mark.nightly("the compiler takes half a minute"))


@pytest.mark.parametrize("lines", [AVERAGED, TWO, COMPILED], ids=str)
def test_a_stopped_training_goes_on_to_the_same_bytes(lines: dict[str, Any], tmp_path: Path) -> None:
    """With several processes, an average, the compiler. Another file begins another run, although the weights fit."""
    lines = {"train__model": MODEL, "train__epochs": 6, "run__log_steps": 1, **lines}
    straight, cut = (small_world(tmp_path / name, **lines) for name in ("straight", "cut"))

    def make_weights(folder: Path, content: str) -> None:
        files.write_text(folder / FILE, content)
        starts.run([sys.executable, "-m", "pipeline", "weights"], cwd=folder, check=True)

    for folder in (straight, cut):
        make_weights(folder, EXAMPLE)
    launch(straight)
    stop_in_epoch(cut, 2)
    other = shutil.copytree(cut, tmp_path / "other", symlinks=True)
    make_weights(other, OTHER)
    assert "going on" not in launch(other).stderr
    assert "going on from step" in launch(cut).stderr
    assert outputs(straight) == outputs(cut)


def test_the_weights_follow_from_the_seed(here: Path) -> None:
    """Also those that depend on a number which the file draws when it is read."""
    files.write_text(FILE, "import torch\nSTART = torch.rand(9)\n" + EXAMPLE)
    first, again, other = (network.build(MODEL, 3, seed).state_dict()["5.weight"] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_only_code_of_the_project_runs_and_only_that_of_the_model(here: Path) -> None:
    """A folder with a model brings no code. If the file was changed later, its copy in data/weights is used."""
    about = replace(ABOUT, model=f"{MODEL}@{files.sha256(FILE)[:16]}")
    exported.save(Path("else/models"), network.export_state(network.build(MODEL, 2, seed=0)), about)
    assert exported.load(Path("else/models")).net
    for folder in ("else/data/weights/mine-net.py", "else/data/mine/net.py"):
        files.write_text(Path(folder), EXAMPLE)
    files.write_text(FILE, "open('ran', 'w')\n" + OTHER)
    with refuses(("train.model", "differs")):
        exported.load(Path("else/models"))
    assert not Path("ran").exists()
    files.write_text(Path("data/weights/mine-net.py"), EXAMPLE)
    assert exported.load(Path("else/models")).net


def test_heat_maps_and_onnx_are_made_or_refused_by_name(here: Path) -> None:
    """The network of the document has both."""
    files.write_text(Path("data/mine/odd.py"), ODD)
    images = torch.linspace(-2, 2, 3072).sin().reshape(1, 3, 32, 32)
    small, odd = (network.build(model, 2, seed=0).eval() for model in (MODEL, "mine/odd.py:odd"))
    logits, maps = heatmap.explain(MODEL, small, lambda: small(images).double().numpy())
    assert abs(maps.mean((1, 2)) - logits[0] + logits.mean()).max() < 1e-4
    known, unknown = (exported.ExportedModel(net, ABOUT.classes, ABOUT.view, IMAGENET) for net in (small, odd))
    assert onnx_export.content(known, ABOUT, "")
    with refuses(("train.model", "value")):
        heatmap.explain("mine/odd.py:odd", odd, lambda: odd(images).double().numpy())
    with refuses(("train.model", "pair")):
        onnx_export.content(unknown, ABOUT, "")


IDLE = "class Idle(nn.Linear):\n    forward = lambda self, values: values\n"
NAMED = "__import__('collections').OrderedDict({str(__import__('time').time_ns()): nn.PReLU()})"
REFUSED = [  # train.model, a place of the example, what is there instead; kind and words of the refusal
    ("mine/net.py:smal", "", "", "unknown", "did you mean small?"),
    ("mine/nett.py:small", "", "", "missing", "did you mean net.py?"),
    ("mine/../net.py:small", "", "", "value", "letters"),
    (MODEL, "from", "import no_such\nfrom", "value", "data/mine/net.py, line 1: ModuleNotFoundError: "),
    (MODEL, "small(", "small(:", "value", "data/mine/net.py, line 4: SyntaxError: "),
    (MODEL, "    return", "    exit(1)\n    return", "value", "data/mine/net.py, line 5: SystemExit: 1"),
    (MODEL, "return", "return classes or", "value", "the function returns int"),
    (MODEL, "nn.Linear(32, ", "nn.LazyLinear(", "value", "lazy layers"),
    (MODEL, "Conv2d(3, ", "Conv2d(1, ", "value", "train.crop: 32: RuntimeError: "),
    (MODEL, "32, classes)", "32, classes), nn.Unflatten(1, (1, 3))", "value", "train.crop: 32: for 2 images and 3 "),
    (MODEL, f"{POOL}nn.Linear(32", "nn.Flatten(), nn.Linear(8192", "value", "train.eval_crop: 36: "),
    (MODEL, "nn.ReLU()", "nn.PReLU(init=__import__('random').random())", "value", "random numbers"),
    (MODEL, "nn.ReLU()", f"nn.Sequential({NAMED})", "value", "one seed"),
    (MODEL, BEGIN, f"{IDLE}{BEGIN}Idle(1, 1), ", "value", "no logit depends on 0.weight, 0.bias; "),
    (MODEL, "nn.BatchNorm2d(", "__import__('timm').layers.BatchNormAct2d(", "value", "train.sync_bn"),
]


@pytest.mark.parametrize(("model", "place", "new", "kind", "words"), REFUSED, ids=[row[-1] for row in REFUSED])
def test_what_cannot_be_trained_is_refused(here: Path, model: str, place: str, new: str, kind: str, words: str) -> None:
    """The name, the file with its line, the function, and what the network gives. The doctor says the same."""
    files.write_text(FILE, EXAMPLE.replace(place, new, 1))
    config = params.parse(on_cpu(read_params(), train__model=model, train__eval_crop=36, train__sync_bn="torch"))
    (fault,) = own.faults(config.train)
    assert (fault.key, fault.value, fault.kind) == ("train.model", model, kind)
    assert words in str(fault)
    check_form(fault)
    assert [finding.fault for finding in doctor.network(config)] == [str(fault)]
