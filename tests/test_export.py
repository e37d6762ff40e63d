"""The stage export: model.onnx gives the classes of torch for every test image, and has the same bytes every time."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

from pipeline.base import files
from pipeline.config import params
from pipeline.dataset import packed
from pipeline.dataset.normalization import IMAGENET
from pipeline.evaluation import onnx_check, onnx_export, onnx_file
from pipeline.models import exported, network
from pipeline.models.description import Description, View
from pipeline.stages import export
from tests.conftest import PROJECT, change, read_params, write_params
from tests.helpers.evaluations import CLASSES, config_of
from tests.helpers.refusals import refuses

OUTPUTS = ("models/model.onnx", "metrics/export.json")
Change = Callable[[onnx.ModelProto], None]


@pytest.fixture
def copy(with_onnx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, as the working folder. In this process the model is not written again, which is slow."""
    shutil.copytree(with_onnx, tmp_path / "another")
    monkeypatch.chdir(tmp_path / "another")
    monkeypatch.setattr(onnx_export, "content", content_with(lambda model: None))
    return tmp_path / "another"


def model_of(name: str, side: int = 64) -> tuple[exported.ExportedModel, Description]:
    """A model in which no weight is zero: a new ViT's head is, so its logits would be 0 in every program."""
    view, net = View(packed_size=80, resize=side, crop=side), network.build(name, len(CLASSES), seed=1).eval()
    random = torch.Generator().manual_seed(1)
    for parameter in net.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.1, generator=random)
    model = exported.ExportedModel(net, CLASSES, view, IMAGENET)
    return model, Description(name, CLASSES, view, IMAGENET.mean, IMAGENET.std, "last", 1)


def test_every_test_image_gets_its_class_in_onnxruntime(with_onnx: Path) -> None:
    """Nothing but the file and NumPy is needed: classes and view are in its metadata, and it normalizes by itself."""
    session = onnxruntime.InferenceSession(with_onnx / OUTPUTS[0], providers=["CPUExecutionProvider"])
    notes = session.get_modelmeta().custom_metadata_map
    assert tuple(json.loads(notes["classes"])) == CLASSES
    assert json.loads(notes["view"]) == {"crop": 32, "fit": "none", "grey": "full", "packed_size": 40, "resize": 36}
    config = config_of(with_onnx)
    data = packed.load(Path(config.paths.packed), Path(config.paths.split))
    rows = files.read_csv(with_onnx / "metrics/predictions.csv")
    model = onnx_file.load(with_onnx / OUTPUTS[0], 1)
    probabilities = onnx_check.onnx_probabilities(model, data, data.rows("test"), batch_size=7)
    assert [CLASSES[best] for best in probabilities.argmax(1)] == [row["prediction"] for row in rows]
    report = json.loads((with_onnx / OUTPUTS[1]).read_text())
    assert (report["images"], report["near_ties"], report["probabilities_differ_less_than"]) == (23, 0, 1e-4)
    (shape,) = (value.shape for value in session.get_inputs())
    assert shape == ["batch", 3, 32, 32]
    content = (with_onnx / OUTPUTS[0]).read_bytes()  # it holds no path and no version
    assert not [word for word in (str(PROJECT), str(with_onnx), ".py", "torch", "pipeline") if word.encode() in content]


def content_with(change: Change) -> Callable[..., bytes]:
    """`onnx_export.content`, with a change of the graph."""

    def content(*_: Any) -> bytes:
        model = onnx.load(OUTPUTS[0])
        change(model)
        return bytes(model.SerializeToString())

    return content


def with_head(**changes: Callable[[NDArray[np.float32]], NDArray[np.float32]]) -> Change:
    """Changes the weight or the bias of the last layer."""

    def change(model: onnx.ModelProto) -> None:
        for tensor in model.graph.initializer:
            part = tensor.name.removeprefix("net.fc.")
            if part in changes:
                values = changes[part](onnx.numpy_helper.to_array(tensor))
                tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))

    return change


OTHER_CLASSES = with_head(weight=np.negative, bias=np.negative)  # the least likely class becomes the most likely one
LESS_SURE = with_head(bias=lambda bias: bias + np.array([1, 0, 0], np.float32))
NOT_A_NUMBER = with_head(bias=lambda bias: bias * np.array([1, np.nan, 1], np.float32))


def seven_answers(model: onnx.ModelProto) -> None:
    """A last node makes seven answers of one."""
    model.graph.node[-1].output[0] = "early"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([7, 3]), "seven"))
    model.graph.node.append(onnx.helper.make_node("Reshape", ["early", "seven"], ["logits"]))


@pytest.mark.parametrize(("change", "ties"), [(OTHER_CLASSES, False), (LESS_SURE, True)])
def test_a_changed_class_or_probability_fails_with_the_image_named(
    copy: Path, monkeypatch: pytest.MonkeyPatch, change: Change, ties: bool
) -> None:
    """And the faulty file does not stay. Other probabilities are a fault where no other class is."""
    monkeypatch.setattr(onnx_export, "content", content_with(change))
    if ties:
        monkeypatch.setattr(onnx_check, "near_ties", lambda table: np.ones(len(table), bool))
    before = files.sha256(Path(OUTPUTS[0]))
    with refuses(("model.onnx", "differs")) as error:
        export.run(params.load())
    assert "é.png" in error.value.faults[0].reason
    assert files.sha256(Path(OUTPUTS[0])) == before
    assert not list(Path("models").glob(".*"))


def test_a_tie_is_no_changed_class() -> None:
    """If two classes are less than 0.0001 apart, either is allowed."""
    paths, classes = ("a", "b"), ("x", "y")
    table, other = np.array([[0.50001, 0.49999], [0.9, 0.1]]), np.array([[0.49999, 0.50001], [0.9, 0.1]])
    assert onnx_check.near_ties(table).tolist() == [True, False]
    assert onnx_check.limit(paths, table, other, classes) == 1e-4
    table[1], other[1] = (0.45, 0.55), (0.55, 0.45)
    with refuses(("model.onnx", "differs")):
        onnx_check.limit(paths, table, other, classes)


def test_what_is_not_asked_for_or_not_there_is_not_compared(copy: Path) -> None:
    """The photos are not needed. The predictions of an earlier split are refused. Switched off, model.onnx is empty."""
    shutil.rmtree("data/images")
    export.run(params.load())
    table = Path("metrics/predictions.csv")
    files.write_text(table, table.read_text().rpartition("tulip/")[0])
    with refuses((table, "differs")):
        export.run(params.load())
    write_params(params.FILE, change(read_params(params.FILE), evaluate__onnx=False))
    export.run(params.load())
    assert json.loads(Path(OUTPUTS[1]).read_text()) == {"onnx": False}
    assert Path(OUTPUTS[0]).read_bytes() == b""


def test_a_model_that_torch_cannot_write_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with a branch on its values, and one that is larger than a file of protobuf can be."""

    class Branch(torch.nn.Module):
        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return pixels if pixels.sum() > 0 else -pixels

    model, description = model_of("resnet18")
    branch = exported.ExportedModel(Branch(), CLASSES, model.view, IMAGENET)
    for odd, most in ((branch, onnx_export.MOST_BYTES), (model, 1000)):
        monkeypatch.setattr(onnx_export, "MOST_BYTES", most)
        with refuses(("train.model", "pair")):
            onnx_export.content(odd, description, "")


LARGE = pytest.mark.nightly("torch writes it for seconds; make test has the one that is written soonest")


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("squeezenet1_1", 64), pytest.param("vit_b_16", 224, marks=LARGE),
        *(pytest.param(name, 64, marks=LARGE) for name in ("mobilenet_v3_small", "efficientnet_b0", "convnext_tiny")),
    ],
)  # fmt: skip
def test_other_models_give_the_same_logits(name: str, side: int, tmp_path: Path) -> None:
    """Up to rounding, for any number of images, with torch and with onnxruntime."""
    model, description = model_of(name, side)
    (tmp_path / "model.onnx").write_bytes(onnx_export.content(model, description, ""))
    runtime = onnx_file.load(tmp_path / "model.onnx", 1)
    pixels = np.random.default_rng(0).uniform(0, 255, (3, 3, side, side)).astype(np.float32)
    with torch.inference_mode():
        net = exported.with_normalization(model.net, model.normalization)
        logits = torch.log_softmax(net(torch.from_numpy(pixels)).double(), 1)
    for several in (pixels, pixels[:1]):
        assert runtime.log_probabilities(several) == pytest.approx(logits[: len(several)].numpy(), abs=1e-5)


def changed(folder: Path, target: Path, change: Change) -> Path:
    """The exported model of a folder, written with a change."""
    model = onnx.load(folder / OUTPUTS[0])
    change(model)
    onnx.save(model, target / "changed.onnx")
    return target / "changed.onnx"


def with_notes(**notes: str) -> Change:
    """Change entries of the metadata."""

    def change(model: onnx.ModelProto) -> None:
        for entry in model.metadata_props:
            entry.value = notes.get(entry.key, entry.value)

    return change


def with_other_input(model: onnx.ModelProto) -> None:
    """Rename the input."""
    for node in model.graph.node:
        node.input[:] = ["data" if name == "pixels" else name for name in node.input]
    model.graph.input[0].name = "data"


@pytest.mark.parametrize(
    "change",
    [
        NOT_A_NUMBER, seven_answers, with_other_input, with_notes(classes='["a", "b"]'),
        with_notes(classes="[" * 100_000), lambda model: model.ClearField("metadata_props"),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_refused(with_onnx: Path, tmp_path: Path, change: Change) -> None:
    """What is no number, a node that fails, another input or number of classes, and metadata without the schema."""
    path = changed(with_onnx, tmp_path, change)
    with refuses((path, "damaged")):
        onnx_file.load(path, 1).log_probabilities(np.zeros((1, 3, 32, 32), np.float32))
