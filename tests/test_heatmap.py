"""Heat maps: where they come from, what they show, and what predict and the report do with them."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from pipeline.dataset.normalization import IMAGENET
from pipeline.evaluation import heatmap
from pipeline.evaluation.photos import LoadedImage
from pipeline.models import exported, network
from pipeline.models.description import Description, View
from tests.helpers import starts
from tests.helpers.refusals import refuses

CLASSES = ("daisy", "rose", "tulip")
SIDE = 64
VIEW = View(packed_size=SIDE, resize=SIDE, crop=SIDE)
POOLED = ("resnet18", "densenet121", "timm/tf_efficientnet_lite0")


def explain(name: str, net: nn.Module, pixels: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The logits [1, classes] of one image, and the maps [classes, h, w]."""
    return heatmap.explain(name, net, lambda: net.eval()(pixels).detach().double().numpy())


def noise(side: int) -> Tensor:
    return torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", POOLED)
def test_the_mean_of_a_map_is_the_logit(name: str) -> None:
    """Minus the mean of all logits. In DenseNet the last ReLU is no module, in EfficientNet drop-out is in between."""
    logits, maps = explain(name, network.build(name, 5, seed=1), noise(96))
    assert maps.shape == (5, 3, 3)
    assert maps.mean((1, 2)) == pytest.approx(logits[0] - logits.mean(), rel=1e-4, abs=1e-5 * np.abs(logits).max())
    assert np.abs(maps.sum(0)).max() < 1e-9


@pytest.mark.parametrize(
    ("name", "side"),
    [("vgg11", 64), ("convnext_tiny", 64), ("squeezenet1_1", 64), ("timm/vit_tiny_patch16_224", 224), ("resnet18", 32)],
)
def test_a_network_whose_logits_are_no_means_is_refused(name: str, side: int) -> None:
    """Without pooling, with a layer after it, with a head that is no Linear, and with a single place."""
    with refuses(("train.model", "value")) as found:
        explain(name, network.build(name, 5, seed=1), noise(side))
    assert isinstance(found.value, heatmap.NoMaps)


class Bright(nn.Module):
    """Of its two classes, the first one is for bright places, the second one for dark ones."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 1, 8, stride=8), nn.Linear(1, 2)
        with torch.no_grad():
            self.conv.weight.fill_(1 / 192)
            self.conv.bias.zero_()  # type: ignore[union-attr]
            self.head.weight.copy_(torch.tensor([[1.0], [-1.0]]))

    def forward(self, pixels: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu(self.conv(pixels)).mean((2, 3)))
        return logits


def test_a_bright_square_is_where_the_map_is_highest(tmp_path: Path) -> None:
    """And the picture is yellow there, blue elsewhere; the map of the other class has its sign turned."""
    pixels = np.zeros((SIDE, SIDE, 3), np.uint8)
    pixels[16:24, 40:48] = 255
    _, maps = explain("bright", Bright(), torch.from_numpy(pixels).permute(2, 0, 1)[None].float())
    assert np.unravel_index(maps[0].argmax(), maps[0].shape) == (2, 5)
    assert np.array_equal(maps[0], -maps[1])
    picture = heatmap.picture(LoadedImage(Path("a.png"), pixels, (SIDE, SIDE)), VIEW, maps[0] - maps[0].min())
    red, _, blue = np.asarray(picture)[20, 44].tolist()
    assert red > blue
    red, _, blue = np.asarray(picture)[60, 4].tolist()
    assert red < blue
    paths = [heatmap.save(picture, tmp_path / "new", "a") for _ in range(3)]
    assert [path.name for path in paths] == ["a.png", "a-2.png", "a-3.png"]
    assert len({path.read_bytes() for path in paths}) == 1
    with Image.open(paths[0]) as written:
        assert (written.size, written.mode, written.info) == ((SIDE, SIDE), "RGB", {})


def test_a_picture_of_a_photo_with_the_longest_name_is_written(tmp_path: Path) -> None:
    """Of two such photos both, under a part of the name."""
    for _ in range(2):
        assert heatmap.save(Image.new("RGB", (3, 3)), tmp_path, "é" * 125).is_file()
    assert len(list(tmp_path.iterdir())) == 2


def test_the_colours_grow_lighter_step_by_step() -> None:
    """From blue to yellow, which every eye tells apart. A map that speaks against everywhere is dark blue."""
    colours = heatmap._colours().astype(int)
    lightness = colours @ (0.2126, 0.7152, 0.0722)
    assert (np.diff(lightness) > -0.3).all()  # rounded to whole numbers
    assert (np.diff(lightness[::8]) > 0).all()
    assert (colours[0].tolist(), colours[-1].tolist()) == ([0x00, 0x22, 0x4E], [0xFE, 0xE8, 0x38])
    image = LoadedImage(Path("a.png"), np.zeros((SIDE, SIDE, 3), np.uint8), (SIDE, SIDE))
    for value in (-1.0, 0.0):
        picture = np.asarray(heatmap.picture(image, VIEW, np.full((2, 2), value)))
        assert np.unique(picture.reshape(-1, 3), axis=0).tolist() == [[0, 17, 39]]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with an untrained resnet18 for images of SIDE pixels."""
    return save(tmp_path / "models", "resnet18")


def save(folder: Path, name: str) -> Path:
    """Write a model as `train` does."""
    weights = network.export_state(network.build(name, len(CLASSES), seed=1))
    exported.save(folder, weights, Description(name, CLASSES, VIEW, IMAGENET.mean, IMAGENET.std, "last", 1))
    return folder


def predict(models: Path, *words: object, cwd: Path) -> tuple[int, list[dict[str, object]], str]:
    """The exit status of `perennial predict --json`, its answers, and its errors."""
    command = [sys.executable, "-m", "pipeline", "predict", "--json", "--model", models, *words]
    done = starts.run([*map(str, command)], cwd=cwd)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_predict_writes_a_picture_for_each_image(models: Path, photos: Path, tmp_path: Path) -> None:
    """Two images of one name have two pictures. The answers are those without pictures, and so are a second run's."""
    first = next(path for path in sorted(photos.rglob("*.jpg")))
    for name in ("x/a.b.png", "y/a.b.jpg", "y/c.webp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        with Image.open(first) as image:
            image.resize((90, 70)).save(tmp_path / name)
    given = ("x", "y/a.b.jpg", "y/c.webp")
    _, plain, _ = predict(models, *given, cwd=tmp_path)
    status, answers, said = predict(models, *given, "--heatmap", "maps/new", cwd=tmp_path)
    assert status == 0, said
    assert "model.safetensors, because --heatmap" in said
    pictures = [str(answer.pop("heatmap")) for answer in answers]
    assert (pictures, answers) == (["maps/new/a.b.png", "maps/new/a.b-2.png", "maps/new/c.png"], plain)
    assert predict(models, *given, "--heatmap", "again", cwd=tmp_path)[0] == 0
    new, again = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("maps/new", "again")
    )
    assert new == again
    assert sorted(new) == ["a.b-2.png", "a.b.png", "c.png"]


@pytest.mark.parametrize(
    ("model", "folder", "named"),
    [("models", "file", "--heatmap: file"), ("models", "full", "--heatmap: full"),
     ("model.onnx", "new", "model.safetensors"), ("squeezed", "new", "train.model: squeezenet1_1")],
)  # fmt: skip
def test_predict_refuses_what_it_cannot_explain_or_would_replace(
    models: Path, photos: Path, tmp_path: Path, model: str, folder: str, named: str
) -> None:
    """A file, a folder that is not empty, a model that is no weights, and one without pooling. Nothing is written."""
    (tmp_path / "full").mkdir()
    for name in ("file", "full/a.png", "model.onnx"):
        (tmp_path / name).write_text("x")
    save(tmp_path / "squeezed", "squeezenet1_1")
    image = next(path for path in sorted(photos.rglob("*.jpg")))
    status, answers, said = predict(tmp_path / model, image, "--heatmap", folder, cwd=tmp_path)
    assert (status, answers) == (1, [])
    assert named in said
    assert not (tmp_path / "new").exists()
