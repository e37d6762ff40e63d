"""train.model: timm/<name>: what cannot be trained is refused, and images have the normalization of the weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import timm.data
import torch
from PIL import Image

from pipeline.base import elementary, files
from pipeline.commands import doctor
from pipeline.config import params
from pipeline.config.params import Train
from pipeline.dataset import packed
from pipeline.dataset.normalization import IMAGENET, Normalization
from pipeline.evaluation import onnx_export, onnx_file
from pipeline.learning import inference
from pipeline.learning.task import open_dataset
from pipeline.loader.batches import train_batches
from pipeline.loader.sampler import Share
from pipeline.loader.storage import ImageStore
from pipeline.models import description, exported, network, timm_models
from tests.conftest import change, on_cpu, read_params
from tests.helpers.trainings import ALONE, launch, small_world
from tests.test_features import validation

HALF = (0.5, 0.5, 0.5)
OTHER_MEAN = "timm/test_resnet"  # a small one, with HALF
MODELS = ("timm/resnet18", "timm/mobilenetv3_small_050", "timm/vit_tiny_patch16_224")


def settings(**changes: Any) -> Train:
    return params.parse(on_cpu(read_params(), **{f"train__{key}": value for key, value in changes.items()})).train


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model": "timm/resnet81"}, [("train.model", "unknown")]),
        ({"model": "timm/../resnet18"}, [("train.model", "unknown")]),
        ({"model": MODELS[2], "crop": 224}, [("train.eval_crop", "pair")]),
        ({"model": "timm/inception_v3"}, [("train.crop", "pair")]),
        ({"model": "timm/deit_tiny_distilled_patch16_224"}, [("train.model", "value")]),
        ({"model": "timm/qwen3_vit_306m_enc"}, [("train.model", "value")]),
        ({"model": "timm/caformer_s18", "temperature": "fitted"}, [("train.temperature", "pair")]),
        ({"model": MODELS[0], "temperature": "fitted"}, []),
        ({"model": MODELS[2], "crop": 224, "eval_crop": 224}, []),
        ({"model": "resnet18"}, []),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_before_any_work(
    changes: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    """An unknown name, a side that the model does not take, and a model with two heads. So says the doctor."""
    faults = timm_models.faults(settings(**changes))
    assert [(fault.key, fault.kind) for fault in faults] == expected
    lines = {f"train__{key}": value for key, value in changes.items()}
    findings = list(doctor.network(params.parse(on_cpu(read_params(), **lines))))
    assert [bool(finding.fault) for finding in findings] == [bool(expected)] * ("timm/" in changes["model"])


@pytest.mark.parametrize(
    ("model", "mean", "std"),
    [
        (MODELS[0], IMAGENET.mean, IMAGENET.std),
        ("timm/tf_efficientnet_lite0", HALF, HALF),
        ("timm/fastvit_mci0", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
        ("timm/dpn68", (124 / 255, 117 / 255, 104 / 255), (1 / (0.0167 * 255),) * 3),
        ("timm/inception_v3", HALF, HALF),
    ],
)
def test_a_model_has_the_normalization_of_its_weights(
    model: str, mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    """Those of timm's default weights, without a look into the network."""
    assert network.normalization(model) == Normalization(mean, std)  # type: ignore[arg-type]


def test_training_sees_the_pixels_as_the_model_wants_them(tmp_path: Path) -> None:
    """The same pixels, jittered and mixed, for a model with a mean of 0.5 and for one with ImageNet's."""
    folder, pixels = small_world(tmp_path, train__mixup=0.4, train__color_jitter=0.4), []
    data = packed.load(folder / "data/packed", folder / "data/split.csv")
    for model in ("resnet18", OTHER_MEAN):
        config = params.parse(change(read_params(folder / "params.yaml"), train__model=model))
        (dataset, _), given = open_dataset(config, data, ALONE), network.normalization(model)
        images = next(train_batches(dataset, config.train, Share(range(1), 1), 0)).images
        mean, std = (images.new_tensor(values)[:, None, None] for values in (given.mean, given.std))
        assert dataset.normalization == given
        pixels.append(images * std + mean)
    assert (pixels[0] - pixels[1]).abs().max() < 1e-5


@pytest.mark.slow("a training; make test compares the images of training")
def test_a_mean_of_its_own_is_everywhere_the_same(tmp_path: Path) -> None:
    """timm with its own transform, ONNX and the pipeline give the same logits, and validation was computed so, too."""
    folder = small_world(tmp_path, train__model=OTHER_MEAN, train__epochs=1, train__eval_resize=40, train__eval_crop=40)
    launch(folder)
    models = folder / "models"
    about, config = (json.loads((models / name).read_text()) for name in ("model.json", "config.json"))
    for content in (about, config["pretrained_cfg"]):
        assert content["mean"] == content["std"] == [0.5, 0.5, 0.5]
    (*_, last) = files.read_csv(folder / "metrics/history.csv")
    assert validation(folder) == pytest.approx((float(last["val_loss"]), float(last["val_accuracy"])))
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (5, 5, 3), np.uint8)).resize((40, 40))
    pixels, one = np.array(image), np.zeros(1, np.int64)
    model = exported.load(models)
    store, sizes = ImageStore(torch.from_numpy(pixels[None]), ALONE.device), np.full((1, 2), 40, np.int32)
    ours = inference.predict_logits(model, store, sizes, one, batch_size=1, world=ALONE)
    timm_data: Any = timm.data
    theirs: Any = timm.create_model(f"local-dir:{models}", pretrained=True).eval()
    transform = timm_data.create_transform(**timm_data.resolve_model_data_config(theirs))
    with torch.inference_mode():
        assert ours == pytest.approx(theirs(transform(image)[None]).numpy(), abs=1e-5)
    (models / "model.onnx").write_bytes(onnx_export.content(model, description.load(models), ""))
    answers = onnx_file.load(models / "model.onnx", 1).log_probabilities(pixels.transpose(2, 0, 1)[None].astype("f4"))
    assert answers == pytest.approx(elementary.log_softmax(ours), abs=1e-5)
