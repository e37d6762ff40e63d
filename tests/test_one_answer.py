"""The answer for an image does not depend on the images beside it, or on their number."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.answers import classify
from pipeline.answers.classify import Request
from pipeline.base.errors import UserError
from pipeline.dataset.normalization import IMAGENET
from pipeline.learning import inference, loop
from pipeline.learning.choices import PRECISIONS
from pipeline.loader.storage import ImageStore
from pipeline.models import network
from pipeline.models.description import View
from pipeline.models.exported import center_crops
from tests.helpers.evaluations import config_of
from tests.helpers.trainings import ALONE

MODELS = {"resnet18": 32, "mobilenet_v3_small": 64, "convnext_tiny": 64, "efficientnet_b0": 64,
          "timm/vit_tiny_patch16_224": 224}  # fmt: skip
HEAVY = [pytest.mark.nightly("models of up to 28 million weights; make test runs resnet18")]


@pytest.mark.parametrize(
    "model", [pytest.param(name, marks=[] if name.startswith("resnet") else HEAVY) for name in MODELS]
)
def test_an_answer_has_the_same_bits_in_every_batch(model: str) -> None:
    """50 images in two orders, with one of them eight times, and alone and in groups. test_evaluate.py: processes."""
    random, side = np.random.default_rng(0), MODELS[model]
    net, sizes = network.build(model, 5, seed=0), np.full((50, 2), side, np.int32)
    store = ImageStore(torch.from_numpy(random.integers(0, 256, (50, side, side, 3), np.uint8)), ALONE.device)

    def logits(*groups: NDArray[np.int64]) -> Tensor:
        by_image = torch.empty(50, 5)
        for rows in groups:
            crops = center_crops(View(side, side, side), sizes, rows, IMAGENET)
            compute = partial(loop.logits, net, precision=PRECISIONS["fp32"]("cpu"))
            by_image[torch.from_numpy(rows)] = inference.logits(compute, store, crops, 16, ALONE)
        return by_image

    every = np.arange(50)
    expected = logits(every)
    assert torch.equal(logits(random.permutation(50)), expected)
    assert torch.equal(logits(np.append(every, [3] * 7)), expected)
    assert torch.equal(logits(every[:1], every[1:3], every[3:]), expected)


def test_predict_gives_a_photo_one_answer(with_onnx: Path) -> None:
    """Alone, in two orders, and twice in one request, by torch and by ONNX: the same probabilities, bit for bit."""
    config, refusals = config_of(with_onnx), list[UserError]()
    photos = sorted(Path(config.paths.images).rglob("*.png"))[:9]
    for file in (classify.WEIGHTS, classify.ONNX):

        def probabilities(*paths: Path, model: Path = Path(config.paths.models) / file) -> list[tuple[str, object]]:
            answers = classify.answers(Request(paths, model), config, refusals)
            return [(answer.path, answer.probabilities) for answer in answers]

        alone = dict(answer for photo in photos for answer in probabilities(photo))
        assert len(alone) == 9
        for order in (photos, photos[::-1], [*photos, photos[4], photos[4]]):
            assert all(alone[path] == answer for path, answer in probabilities(*order))
    assert refusals == []
