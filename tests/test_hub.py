"""models/ as a folder that timm and transformers load: the same logits, bit by bit, or a refusal that names the way."""

import importlib
import importlib.util
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision import transforms

from pipeline.config import model_names, params
from pipeline.dataset import squares
from pipeline.dataset.normalization import IMAGENET
from pipeline.evaluation import onnx_export
from pipeline.models import exported, hub, network
from pipeline.models.description import Description, View
from tests.conftest import PROJECT
from tests.helpers import starts

CLASSES = ("daisy", "rose", "tulip é")
TRANSFORMERS = importlib.util.find_spec("transformers") is not None
needs_transformers = pytest.mark.skipif(not TRANSFORMERS, reason="needs transformers (make test)")
QUICK = ("resnet18", "regnet_x_400mf", "densenet121", "timm/mobilenetv3_small_050")
LARGE = "regnet_y_128gf"  # 645 million parameters: only the names and shapes of its tensors are compared


def description(model: str, crop: int = 64) -> Description:
    view = View(packed_size=80, resize=73, crop=crop)
    return Description(model, CLASSES, view, IMAGENET.mean, IMAGENET.std, "last", 1)


def random_model(model: str) -> nn.Module:
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
    exported.save(folder, network.export_state(net), description(model))
    content: dict[str, Any] = json.loads((folder / hub.FILE).read_text())
    return content


def pixels(model: str) -> Tensor:
    side = 96 if "inception" in model else 64
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(7))


def theirs(model: str, images: Tensor) -> Tensor:
    """The images as the other library's model expects them: Inception's first operation is part of our model only."""
    if model != "inception_v3":
        return images
    channels = [images[:, [c]] * (IMAGENET.std[c] / 0.5) + (IMAGENET.mean[c] - 0.5) / 0.5 for c in range(3)]
    return torch.cat(channels, 1)


def in_own_memory(net: nn.Module) -> nn.Module:
    """The model with its tensors where torch allocates them. safetensors leaves them where they lie in the file.

    At an address that is no multiple of 16 bytes, MKL adds in another order, so the last bit can differ [measured].
    """
    for tensor in (*net.parameters(), *net.buffers()):
        tensor.data = tensor.data.clone()
    return net


MORE_MODELS = pytest.mark.nightly("29 models with up to 145 million parameters; make test compares one of each family")


@pytest.mark.parametrize(
    "model", [*QUICK, *(pytest.param(m, marks=MORE_MODELS) for m in sorted(hub.TIMM_NAMES.keys() - {*QUICK, LARGE}))]
)
def test_timm_gives_the_same_logits(model: str, tmp_path: Path) -> None:
    """The folder is all that timm needs: the model, its weights, and the names of the classes."""
    import timm

    net = random_model(model)
    save(tmp_path, model, net)
    other: Any = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    assert tuple(other.pretrained_cfg["label_names"]) == CLASSES
    with torch.inference_mode():
        assert torch.equal(in_own_memory(other)(theirs(model, pixels(model))), net(pixels(model)))


AGAIN = pytest.mark.nightly("the same with larger models; make test has a small one of both libraries")


SMALL = ("resnet18", "timm/mobilenetv3_small_050")


@needs_transformers
@pytest.mark.parametrize("model", [*SMALL, *(pytest.param(m, marks=AGAIN) for m in ("densenet121", "inception_v3"))])
def test_transformers_gives_the_same_logits(model: str, tmp_path: Path) -> None:
    """With the names of the classes, and the sides and colours for its own preprocessing."""
    import transformers

    net = random_model(model)
    content = save(tmp_path, model, net)
    other = transformers.AutoModelForImageClassification.from_pretrained(tmp_path).eval()
    assert tuple(other.config.id2label.values()) == CLASSES
    with torch.inference_mode():
        assert torch.equal(in_own_memory(other)(theirs(model, pixels(model))).logits, net(pixels(model)))
    processor: Any = transformers.AutoImageProcessor
    pixel_values = processor.from_pretrained(tmp_path)(np.zeros((90, 120, 3), np.uint8))["pixel_values"]
    assert np.asarray(pixel_values).shape == (1, *content["pretrained_cfg"]["input_size"]) == (1, 3, 64, 64)


@pytest.mark.parametrize("model", ["mobilenet_v3_small", pytest.param("regnet_x_400mf", marks=needs_transformers)])
def test_a_library_without_the_model_does_not_answer_at_random(model: str, tmp_path: Path) -> None:
    """It refuses the folder. transformers would take a RegNet for timm's, and leave out tensors with other names."""
    save(tmp_path, model, random_model(model))
    if model in hub.TIMM_NAMES:
        load = importlib.import_module("transformers").AutoModelForImageClassification.from_pretrained
    else:
        load = importlib.import_module("timm").create_model
    with pytest.raises((RuntimeError, ValueError), match=r"torchvision|timm"):
        load(tmp_path if model in hub.TIMM_NAMES else f"local-dir:{tmp_path}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but models/ and photo.jpg."""
    folder = tmp_path_factory.mktemp("handed on")
    net = random_model("resnet18")
    save(folder / "models", "resnet18", net)
    model = exported.ExportedModel(net, CLASSES, description("resnet18").view, IMAGENET)
    (folder / "models/model.onnx").write_bytes(onnx_export.content(model, description("resnet18"), ""))
    pixels = np.random.default_rng(0).integers(0, 256, (9, 12, 3), np.uint8)
    Image.fromarray(pixels).resize((120, 90)).save(folder / "photo.jpg")
    return folder


WAYS = re.findall(r"^(\w+):\n\n```python\n(.*?)```", (PROJECT / "docs/hand-on.md").read_text(), re.M | re.S)
RUN_ALL = "import json, sys\nfor code in json.loads(sys.argv[1]): exec(code, {})"


@needs_transformers
@pytest.mark.slow("imports libraries for seconds; make test has their models in this process")
def test_the_lines_of_the_documentation_run(folder: Path) -> None:
    """In a process and a folder without this project, they print the class. All of them print the same one."""
    command = [sys.executable, "-c", RUN_ALL, json.dumps([code for _, code in WAYS])]
    done = starts.run(command, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "daisy\n" * 4, WAYS


@pytest.mark.parametrize("fit", get_args(params.Fit))
def test_timm_sees_what_the_card_says(fit: params.Fit) -> None:
    """By config.json, timm's own preprocessing gives the pixels of prepare.fit, for an original of any shape."""
    from timm.data.transforms_factory import create_transform

    config = params.with_values(params.Params(), {"prepare.fit": fit, "train.eval_crop": 64, "train.eval_resize": 73})
    content = hub.config(replace(description("resnet18"), view=View.from_params(config)))["pretrained_cfg"]
    mean, std = (np.array(content[name])[:, None, None] for name in ("mean", "std"))
    cut = transforms.Compose([transforms.Resize(73, transforms.InterpolationMode.BICUBIC), transforms.CenterCrop(64)])
    random = np.random.default_rng(0)
    for width, height in ((90, 120), (301, 77), (64, 64), (37, 41), (40, 900)):
        image = Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8))
        seen = squares.SQUARES[fit](image, 64) if fit in params.WHOLE else cut(image)
        pixels = (create_transform(**content)(image).numpy() * std + mean) * 255
        assert np.abs(np.asarray(seen).transpose(2, 0, 1) - pixels).max() < 1e-3


OTHERS = pytest.mark.nightly("each of 80 models is built twice; make test has one of each family, and strangers")
TABLE = {*QUICK, "convnext_tiny", "efficientnet_b0", "inception_v3", "mobilenet_v3_small", "squeezenet1_1", "vgg11"}


def shapes(net: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in net.state_dict().items()}


def has_timms_tensors(model: str) -> bool:
    """Whether torchvision's model has the tensors of timm's model: that of the table, or the one of its name."""
    import timm
    from timm.models import regnet

    name, is_regnet = hub.TIMM_NAMES.get(model, model), model.startswith(hub.RENAMED_PREFIX)
    with torch.device("cpu" if is_regnet else "meta"):  # torchvision computes a RegNet's widths with tensors
        ours = shapes(network.build(model, 3, seed=0))
    with torch.device("meta"):
        theirs = shapes(timm.create_model(name, num_classes=3)) if name in timm.list_models() else {}
    return bool((regnet._filter_fn(ours) if is_regnet else ours) == theirs)


@pytest.mark.parametrize(
    "model", [name if name in TABLE else pytest.param(name, marks=OTHERS) for name in model_names.MODELS]
)
def test_the_table_has_every_model_with_the_layers_of_timms(model: str) -> None:
    """Tensors' names and shapes are equal for each entry, and differ for each other model of the same name."""
    assert has_timms_tensors(model) == (model in hub.TIMM_NAMES)


def test_every_share_gives_the_side_back() -> None:
    """timm divides the crop by the share and rounds down: the side to resize to, for every pair of sides."""
    for resize in range(16, 1025):
        for crop in {16, resize, resize - 1, resize * 7 // 8} & set(range(16, resize + 1)):
            share = hub.crop_share(View(packed_size=16, resize=resize, crop=crop))
            assert int(crop / share) == resize
            assert share == pytest.approx(crop / resize)
