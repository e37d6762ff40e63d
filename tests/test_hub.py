"""models/ as a folder that timm and transformers load: the same logits, bit by bit, or a refusal that names the way."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from pipeline.config import model_names
from pipeline.loader import augment
from pipeline.models import exported, hub, network, onnx_export
from pipeline.models.description import Description, View
from tests.conftest import PROJECT

CLASSES = ("daisy", "rose", "tulip é")
TRANSFORMERS = importlib.util.find_spec("transformers") is not None
needs_transformers = pytest.mark.skipif(not TRANSFORMERS, reason="needs transformers (make test)")
QUICK = ("resnet18", "regnet_x_400mf", "densenet121", "timm/mobilenetv3_small_050")
LARGE = "regnet_y_128gf"  # 645 million parameters: only its tensors' names and shapes are compared


def described(model: str, crop: int = 64) -> Description:
    view = View(packed_size=80, resize=73, crop=crop)
    return Description(model, CLASSES, view, augment.MEAN, augment.STD, "last", 1)


def trained(model: str) -> nn.Module:
    """The model with random weights and with statistics that are not those of the beginning."""
    net, random = network.build(model, len(CLASSES), seed=3).eval(), torch.Generator().manual_seed(5)
    for name, buffer in net.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(generator=random)
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 2, generator=random)
    return net


def save(folder: Path, model: str, net: nn.Module) -> dict[str, Any]:
    """Write the model as train does. The content of config.json."""
    exported.save(folder, network.export_state(net), described(model))
    content: dict[str, Any] = json.loads((folder / hub.FILE).read_text())
    return content


def pixels(model: str) -> Tensor:
    side = 96 if "inception" in model else 64
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(7))


def theirs(model: str, images: Tensor) -> Tensor:
    """The images as the other library's model expects them: Inception's first operation is part of our model only."""
    if model != "inception_v3":
        return images
    taken_over = [images[:, [c]] * (augment.STD[c] / 0.5) + (augment.MEAN[c] - 0.5) / 0.5 for c in range(3)]
    return torch.cat(taken_over, 1)


def in_own_memory(net: nn.Module) -> nn.Module:
    """The model with its tensors where torch allocates them. safetensors leaves them where they lie in the file.

    At an address that is no multiple of 16 bytes, MKL adds in another order, so the last bit can differ [measured].
    """
    for tensor in (*net.parameters(), *net.buffers()):
        tensor.data = tensor.data.clone()
    return net


def timm_cfg(net: Any) -> Any:
    """What timm has read from config.json, without the weights."""
    return net.pretrained_cfg


def check_timm(folder: Path, model: str) -> None:
    """Save a random model, load it with timm, and compare the classes and the logits."""
    import timm

    net = trained(model)
    save(folder, model, net)
    loaded = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert tuple(timm_cfg(loaded)["label_names"]) == CLASSES
    with torch.inference_mode():
        assert torch.equal(in_own_memory(loaded)(theirs(model, pixels(model))), net(pixels(model)))


@pytest.mark.parametrize("model", QUICK)
def test_timm_gives_the_same_logits(model: str, tmp_path: Path) -> None:
    """The folder is all that timm needs: the model, its weights, and the names of the classes."""
    check_timm(tmp_path, model)


@pytest.mark.slow("builds 29 models with up to 145 million parameters; make test compares one of each family")
@pytest.mark.parametrize("model", sorted(hub.TIMM_NAMES.keys() - {*QUICK, LARGE}))
def test_timm_gives_the_same_logits_of_every_model(model: str, tmp_path: Path) -> None:
    """So does each other torchvision model that timm has."""
    check_timm(tmp_path, model)


AGAIN = pytest.mark.slow("the same with larger models; make test has a small one of both libraries")


@needs_transformers
@pytest.mark.parametrize(
    "model",
    [
        "resnet18", "timm/mobilenetv3_small_050",
        *(pytest.param(name, marks=AGAIN) for name in ("densenet121", "inception_v3")),
    ],
)  # fmt: skip
def test_transformers_gives_the_same_logits(model: str, tmp_path: Path) -> None:
    """With the names of the classes, and the sides and colours for its own preprocessing."""
    import transformers

    net = trained(model)
    content = save(tmp_path, model, net)
    loaded = transformers.AutoModelForImageClassification.from_pretrained(tmp_path).eval()
    assert tuple(loaded.config.id2label.values()) == CLASSES
    with torch.inference_mode():
        assert torch.equal(in_own_memory(loaded)(theirs(model, pixels(model))).logits, net(pixels(model)))
    assert content["pretrained_cfg"]["input_size"] == [3, 64, 64]


@needs_transformers
def test_an_image_goes_through_their_own_preprocessing(tmp_path: Path) -> None:
    """transformers' image processor, and timm's transforms, read the sides and colours from config.json."""
    import timm
    import transformers

    save(tmp_path, "resnet18", trained("resnet18"))
    image = np.random.default_rng(0).integers(0, 256, (90, 120, 3), np.uint8)
    processor: Any = transformers.AutoImageProcessor
    found = processor.from_pretrained(tmp_path)(image, return_tensors="pt")["pixel_values"]
    assert found.shape == (1, 3, 64, 64)
    reading: Any = timm.data
    data = reading.resolve_model_data_config(timm.create_model(f"local-dir:{tmp_path}"))
    assert (tuple(data["input_size"]), data["interpolation"], data["crop_pct"]) == ((3, 64, 64), "bicubic", 64 / 73)
    assert (tuple(data["mean"]), tuple(data["std"])) == (augment.MEAN, augment.STD)


def test_what_timm_does_not_have_is_refused_by_name(tmp_path: Path) -> None:
    """timm names the model and the library that has it."""
    import timm

    save(tmp_path, "mobilenet_v3_small", trained("mobilenet_v3_small"))
    with pytest.raises(RuntimeError, match=r"torchvision\.models\.mobilenet_v3_small"):
        timm.create_model(f"local-dir:{tmp_path}", pretrained=True)


@needs_transformers
@pytest.mark.parametrize(("model", "way"), [("mobilenet_v3_small", "torchvision"), ("regnet_x_400mf", "timm")])
def test_what_transformers_cannot_load_is_refused_by_name(model: str, way: str, tmp_path: Path) -> None:
    """It would take a RegNet for timm's, leave out the tensors with other names, and answer at random."""
    import transformers

    save(tmp_path, model, trained(model))
    with pytest.raises(ValueError, match=f"model type `{way}`"):
        transformers.AutoModelForImageClassification.from_pretrained(tmp_path)


@pytest.fixture(scope="module")
def handed_on(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but models/ and photo.jpg."""
    folder = tmp_path_factory.mktemp("handed on")
    net = trained("resnet18")
    save(folder / "models", "resnet18", net)
    model = exported.ExportedModel(net, CLASSES, described("resnet18").view)
    (folder / "models/model.onnx").write_bytes(onnx_export.content(model, described("resnet18"), ""))
    pixels = np.random.default_rng(0).integers(0, 256, (9, 12, 3), np.uint8)
    Image.fromarray(pixels).resize((120, 90)).save(folder / "photo.jpg")
    return folder


ANOTHER_WAY = pytest.mark.slow("imports torch and another library for seconds; make test has onnxruntime")
WAYS = re.findall(r"^(\w+):\n\n```python\n(.*?)```", (PROJECT / "docs/hand-on.md").read_text(), re.M | re.S)


@needs_transformers
@pytest.mark.parametrize(
    "way", [way if way == "onnxruntime" else pytest.param(way, marks=ANOTHER_WAY) for way, _ in WAYS]
)
def test_the_lines_of_the_documentation_run(way: str, handed_on: Path) -> None:
    """In a process and a folder without this project, they print the class. All of them print the same one."""
    done = subprocess.run(
        [sys.executable, "-c", dict(WAYS)[way]], cwd=handed_on, capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "daisy\n"


def test_every_library_has_its_lines() -> None:
    """At most ten beside its imports, and none is longer than a line of code."""
    assert [way for way, _ in WAYS] == ["torchvision", "timm", "transformers", "onnxruntime"]
    for _, lines in WAYS:
        assert len([line for line in lines.splitlines() if line and " import " not in f" {line}"]) <= 10
        assert max(map(len, lines.splitlines())) <= 125


FILLED = pytest.mark.slow("torchvision fills a RegNet with random weights; make test compares the smallest one")


def shapes(net: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in net.state_dict().items()}


def has_timms_tensors(model: str) -> bool:
    """Whether torchvision's model has the tensors of timm's model: that of the table, or the one of its name."""
    import timm
    from timm.models import regnet

    name, renamed = hub.TIMM_NAMES.get(model, model), model.startswith(hub.RENAMED_PREFIX)
    with torch.device("cpu" if renamed else "meta"):  # torchvision computes a RegNet's widths with tensors
        ours = shapes(network.build(model, 3, seed=0))
    with torch.device("meta"):
        theirs = shapes(timm.create_model(name, num_classes=3)) if name in timm.list_models() else {}
    return bool((regnet._filter_fn(ours) if renamed else ours) == theirs)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(name, marks=FILLED) if name.startswith(hub.RENAMED_PREFIX) and name not in QUICK else name
        for name in model_names.MODELS
        if name != LARGE
    ],
)
def test_the_table_has_every_model_with_the_layers_of_timms(model: str) -> None:
    """Tensors' names and shapes are equal for each entry, and differ for each other model of the same name."""
    assert has_timms_tensors(model) == (model in hub.TIMM_NAMES)


@pytest.mark.slow("fills 2.6 GB with random weights; make test compares the smaller models of this family")
def test_the_largest_model_has_the_layers_of_timms() -> None:
    """So is the largest RegNet of the table."""
    assert has_timms_tensors(LARGE)


def test_every_share_gives_the_side_back() -> None:
    """timm divides the crop by the share and rounds down: the side to resize to, for every pair of sides."""
    for resize in range(16, 1025):
        for crop in {16, resize, resize - 1, resize * 7 // 8} & set(range(16, resize + 1)):
            share = hub.crop_share(View(packed_size=16, resize=resize, crop=crop))
            assert int(crop / share) == resize
            assert share == pytest.approx(crop / resize)
