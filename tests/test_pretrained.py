"""Pretrained weights are fetched, checked, converted and loaded; the model then gives the outputs of the original."""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torchvision
from torch import Tensor, nn

from pipeline.base import files
from pipeline.base.errors import Kind, UserError
from pipeline.config import model_names
from pipeline.dataset.normalization import IMAGENET
from pipeline.models import exported, network, pretrained
from pipeline.models.description import Description, View
from tests.helpers.pickles import Bomb
from tests.helpers.refusals import refuses

SMALL = "shufflenet_v2_x0_5"
ONE, SQUARE = torch.zeros(1), torch.zeros(2, 2)


def small(classes: int = 3) -> nn.Module:
    """The smallest model, with other statistics than a new one."""
    net = network.build(SMALL, classes, seed=1)
    for name, buffer in net.named_buffers():
        if name.endswith("running_mean"):
            buffer.uniform_(-0.1, 0.1, generator=torch.Generator().manual_seed(len(name)))
    return net


def convert(folder: Path, state: Any, name: str = "mine.pth", model: str = SMALL) -> Path:
    """The file that `convert` writes for this content, saved by torch."""
    torch.save(state, folder / name)
    pretrained.convert(folder / name, folder / "converted.safetensors", model)
    return folder / "converted.safetensors"


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether two dicts have the same names and equal tensors."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def is_refused(folder: Path, source: Path, kind: Kind = "damaged") -> str:
    """Check that a file is refused as train.weights, and that no other file is left. Returns the reason."""
    with refuses(("train.weights", kind)) as error:
        pretrained.convert(source, folder / "converted", SMALL)
    assert [path.name for path in folder.iterdir()] == [source.name] * source.exists()
    (fault,) = error.value.faults
    assert fault.value == str(source)
    return fault.reason


LARGE = pytest.mark.nightly("seconds to fill it with random weights; make test has three smaller models")


@pytest.mark.parametrize(
    "name",
    [
        "mobilenet_v3_small", "squeezenet1_1", "mnasnet0_5",
        *(pytest.param(name, marks=LARGE) for name in ("resnet18", "densenet121", "googlenet")),
    ],
)  # fmt: skip
def test_a_model_gives_the_outputs_of_the_original(name: str, tmp_path: Path) -> None:
    """Before the head, the outputs equal those of torchvision's model bit for bit; the head is not loaded."""
    torch.manual_seed(0)
    options = {"init_weights": False, "transform_input": True, "aux_logits": True} if name == "googlenet" else {}
    original = torchvision.models.get_model(name, num_classes=10, **options)
    net = network.build(name, 3, seed=1)
    head = deepcopy(network.head(net).state_dict())
    pretrained.load_into(net, convert(tmp_path, original.state_dict(), model=name))
    assert same(network.head(net).state_dict(), head)

    before_head: dict[nn.Module, Tensor] = {}
    for model in (original, net):
        network.head(model).register_forward_hook(lambda _, args, __, net=model: before_head.update({net: args[0]}))
        model.eval()(torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(2)))
    assert before_head[net].abs().sum() > 0
    assert torch.equal(before_head[net], before_head[original])


@pytest.mark.parametrize(
    ("ending", "wrap"),
    [(".pth", lambda s: s), (".pt", lambda s: {"state_dict": s}), (".pt", lambda s: {"model": s, "epoch": 3}),
     (".safetensors", None)],
)  # fmt: skip
def test_every_format_gives_the_same_bytes(
    ending: str, wrap: Callable[[dict[str, Tensor]], dict[str, Any]] | None, tmp_path: Path
) -> None:
    """With or without a key of training scripts, or from before BatchNorm counted batches.

    Another format and a missing file are refused.
    """
    net, source = small(), tmp_path / f"mine{ending}"
    plain = convert(tmp_path, net.state_dict(), "plain.pth").rename(tmp_path / "plain.safetensors")
    if wrap:
        torch.save(wrap(net.state_dict()), source)
    else:
        safetensors.torch.save_file(net.state_dict(), source, metadata={"format": "pt", "by": "someone"})
    assert pretrained.convert(source, tmp_path / "converted", SMALL) == []
    assert files.sha256(tmp_path / "converted") == files.sha256(plain)
    old = {name: value for name, value in net.state_dict().items() if "num_batches" not in name}
    for path in (tmp_path / "converted", convert(tmp_path, old, "old.pth")):
        fresh = network.build(SMALL, 3, seed=9)
        pretrained.load_into(fresh, path)
        assert same(fresh.state_dict(), net.state_dict())
    with refuses(("train.weights", "value")):
        pretrained.convert(source.rename(tmp_path / "mine.ckpt"), tmp_path / "nothing", SMALL)
    with refuses(("train.weights", "missing")):
        pretrained.convert(source, tmp_path / "nothing", SMALL)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("features.denseblock1.denselayer6.norm.1.weight", "features.denseblock1.denselayer6.norm1.weight"),
        ("encoder.layers.encoder_layer_0.mlp.linear_1.bias", "encoder.layers.encoder_layer_0.mlp.0.bias"),
        ("encoder.layers.encoder_layer_11.mlp.linear_2.weight", "encoder.layers.encoder_layer_11.mlp.3.weight"),
        ("features.denseblock1.denselayer6.norm1.weight", "features.denseblock1.denselayer6.norm1.weight"),
    ],
)  # fmt: skip
def test_names_of_published_files_become_the_present_names(old: str, new: str) -> None:
    """Published files of DenseNet and vision transformers have old names."""
    assert pretrained.present_name(old) == new


def wrapped(prefix: str, **others: Tensor) -> dict[str, Tensor]:
    """The weights of the small model as a wrapper saves them, beside other tensors."""
    return {prefix + name: values for name, values in small().state_dict().items()} | others


@pytest.mark.parametrize(
    ("content", "notes"),
    [
        (wrapped("module."), 1),
        (wrapped("_orig_mod.module."), 1),
        ({"state_dict": wrapped("model.", loss=torch.zeros(2)), "epoch": 1}, 2),
        ({"model_state_dict": wrapped(""), "optimizer_state_dict": {"state": {}}}, 0),
        ({"net": wrapped("backbone."), "acc": 93.1}, 1),
        (wrapped("module.", **dict.fromkeys(["module.aux1.fc2.weight", "module.AuxLogits.fc.weight"], ONE)), 2),
    ],
)
def test_what_wrappers_add_to_names_is_removed(content: dict[str, Any], notes: int, tmp_path: Path) -> None:
    """A note says it. What stands beside the wrapped model is left out with a note, too, as are auxiliary heads."""
    torch.save(content, tmp_path / "mine.pth")
    assert len(pretrained.convert(tmp_path / "mine.pth", tmp_path / "converted", SMALL)) == notes
    assert same(safetensors.torch.load_file(tmp_path / "converted"), small().state_dict())


def test_a_file_without_the_head_starts_with_an_untrained_one(tmp_path: Path) -> None:
    """With and without a prefix."""
    backbone = {name: values for name, values in small().state_dict().items() if not name.startswith("fc.")}
    for content in (backbone, {"module." + name: values for name, values in backbone.items()}):
        net = network.build(SMALL, 5, seed=9)
        untrained = deepcopy(network.head(net).state_dict())
        assert "new" in pretrained.load_into(net, convert(tmp_path, content), tuple("abcde"))
        assert same(network.head(net).state_dict(), untrained)
        assert torch.equal(net.state_dict()["conv1.0.weight"], backbone["conv1.0.weight"])


@pytest.mark.parametrize("content", [wrapped("a.") | wrapped("b."), {"new.weight": ONE}])
def test_another_model_is_refused_where_it_is_converted(content: dict[str, Tensor], tmp_path: Path) -> None:
    """Or two models in one file. The refusal shows names of the file."""
    torch.save(content, tmp_path / "mine.pth")
    assert f"{min(content)}" in is_refused(tmp_path, tmp_path / "mine.pth", "pair")


@pytest.mark.parametrize(
    ("name", "value"),  # None: removed
    [("new.weight", ONE), ("conv5.0.weight", torch.zeros(2, 3)), ("conv1.0.weight", None),
     ("fc.weight", torch.zeros(5, 8)), ("fc.weight", None), ("fc.bias", torch.zeros(()))],
)  # fmt: skip
def test_tensors_that_do_not_fit_are_refused_by_name(name: str, value: Tensor | None, tmp_path: Path) -> None:
    """Only the number of classes may differ. The model is not changed."""
    net = small()
    before, state = deepcopy(net.state_dict()), net.state_dict() | {name: value}
    pretrained.save(tmp_path / "converted", {key: tensor for key, tensor in state.items() if tensor is not None}, ())
    with refuses(("train.weights", "pair")) as error:
        pretrained.load_into(net, tmp_path / "converted")
    assert name in error.value.faults[0].reason
    assert same(net.state_dict(), before)


def test_of_a_head_of_several_layers_only_the_last_has_classes(tmp_path: Path) -> None:
    """With more classes, a BatchNorm before it is loaded as the backbone is, and the last layer is new."""
    model, part = "timm/repvit_m1", "head.head."
    state = network.build(model, 3, seed=1).state_dict()
    state = {name: value + 1 if "num_batches" in name else value for name, value in state.items()}
    net = network.build(model, 4, seed=2)
    new = net.state_dict()[f"{part}l.weight"].clone()
    assert "3 classes there, 4 here" in pretrained.load_into(net, convert(tmp_path, state, model=model))
    loaded = net.state_dict()
    assert torch.equal(loaded[f"{part}l.weight"], new)
    assert loaded[f"{part}bn.num_batches_tracked"] == 1


def convert_with_names(folder: Path, classes: list[str], text: str = "") -> tuple[Path, dict[str, Tensor]]:
    """A converted file of a model with these classes, and its tensors. `text`: metadata instead of the names."""
    state = small(len(classes)).state_dict()
    safetensors.torch.save_file(
        state, folder / "mine.safetensors", {"classes": text or json.dumps(classes), "by": "me"}
    )
    pretrained.convert(folder / "mine.safetensors", folder / "converted.safetensors", SMALL)
    return folder / "converted.safetensors", state


def test_each_class_gets_the_part_of_the_head_with_its_name(tmp_path: Path) -> None:
    """In another order, or with classes more and fewer, too. A class that the file does not name starts untrained.

    Of the metadata the names stay alone: the same weights with the same names are the same bytes.
    """
    path, state = convert_with_names(tmp_path, ["a", "b", "c"])
    with safetensors.safe_open(path, "pt") as content:
        assert content.metadata() == {"classes": '["a", "b", "c"]'}
    pretrained.convert(path, tmp_path / "again.safetensors", SMALL)
    assert files.sha256(tmp_path / "again.safetensors") == files.sha256(path)
    same_net = network.build(SMALL, 3, seed=9)
    pretrained.load_into(same_net, path, ("a", "b", "c"))
    assert same(same_net.state_dict(), state)

    net = network.build(SMALL, 4, seed=9)
    untrained = deepcopy(net.state_dict())
    assert "'new', 'x'" in pretrained.load_into(net, path, ("c", "new", "b", "x"))
    for part in ("fc.weight", "fc.bias"):
        expected = [state[part][2], untrained[part][1], state[part][1], untrained[part][3]]
        assert torch.equal(net.state_dict()[part], torch.stack(expected))
    assert torch.equal(net.state_dict()["conv1.0.weight"], state["conv1.0.weight"])


@pytest.mark.parametrize("text", ["a, b", "3", "[1, 2]", '{"a": 0}', '["a", "b", "c"]'])
def test_names_of_classes_that_do_not_fit_are_refused(text: str, tmp_path: Path) -> None:
    """The metadata has the names as a JSON list, one for each class of the head."""
    net = small()
    with pytest.raises(UserError) as error:  # where it is converted, or where the model is known
        pretrained.load_into(net, convert_with_names(tmp_path, ["a", "b"], text)[0], ("a", "b", "c"))
    assert [fault.kind for fault in error.value.faults] == ["damaged"]


UNUSABLE: dict[str, Callable[[], Any]] = {
    "code": lambda: {"state_dict": {}, "by": Bomb()},
    "a list": lambda: [torch.zeros(1)],
    "nothing": dict,
    "a number": lambda: {"state_dict": {"a": 1}},
    "a number as name": lambda: {"a": SQUARE, 7: SQUARE},
    "sparse": lambda: {"a": SQUARE.to_sparse()},
    "meta": lambda: {"a": SQUARE.to("meta")},
    "quantized": lambda: {"a": torch.quantize_per_tensor(SQUARE, 1.0, 0, torch.qint8)},
    "complex": lambda: {"a": SQUARE + 1j},
    "NaN": lambda: {"b": SQUARE, "a": SQUARE / 0},
    "infinite as float32": lambda: {"a": torch.tensor(1e300, dtype=torch.float64)},
    "nested": lambda: {"a": torch.nested.nested_tensor([SQUARE, SQUARE[:1]])},
}


TEXTS = ("hello\n", "K", "X\0", "t.", "{}", "")


@pytest.mark.parametrize("content", [*UNUSABLE.values(), *TEXTS], ids=[*UNUSABLE, *map(repr, TEXTS)])
@pytest.mark.filterwarnings("ignore")  # of torch, about kinds of tensors
def test_what_is_no_dict_of_usable_tensors_is_refused(
    content: Callable[[], Any] | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No code in a file runs. The unpickler takes the letters of a text for commands: almost any error is possible."""
    monkeypatch.chdir(tmp_path)
    if isinstance(content, str):
        Path("mine.pth").write_text(content)
    else:
        torch.save(content(), "mine.pth")
    is_refused(tmp_path, tmp_path / "mine.pth")


@pytest.mark.parametrize("fault", [1j, torch.nan], ids=str)
def test_what_reads_a_model_refuses_complex_and_broken_weights(fault: complex, tmp_path: Path) -> None:
    """As pretrained weights, where train reads it, and as the trained model."""
    state = {**small().state_dict(), "fc.bias": torch.zeros(3) + fault}
    safetensors.torch.save_file(state, tmp_path / "mine.safetensors")
    assert "'fc.bias'" in is_refused(tmp_path, tmp_path / "mine.safetensors")
    net = small()
    with refuses((tmp_path / "mine.safetensors", "damaged")):
        pretrained.load_into(net, tmp_path / "mine.safetensors")
    description = Description(SMALL, ("a", "b", "c"), View(40, 36, 32), IMAGENET.mean, IMAGENET.std, "last", 1)
    exported.save(tmp_path / "models", state, description)
    with refuses((tmp_path / "models/model.safetensors", "damaged")):
        exported.load(tmp_path / "models")


def test_every_model_has_published_weights_that_can_be_checked() -> None:
    """torchvision's default weights of each model have an https address with a part of their hash."""
    for name in model_names.MODELS:
        url, prefix = pretrained.published_weights(name)
        assert url.startswith("https://")
        assert len(prefix) >= 8
