"""A network of whole numbers on a GPU: the bits of the CPU (tests/test_exact.py has the other ways)."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pipeline.base import elementary
from pipeline.learning import inference, ridge
from pipeline.learning.precision import allow_tf32
from pipeline.learning.world import World
from pipeline.loader.storage import ImageStore
from pipeline.models import exact, network, pretrained
from pipeline.models.description import View
from pipeline.models.exported import ExportedModel
from tests.gpu.training import Figures

LITE0 = "exact/tf_efficientnet_lite0"


def pretrained_net() -> nn.Module:
    """The network with the weights of the package, and a drawn head."""
    path, names = pretrained.packaged_weights("timm/tf_efficientnet_lite0")
    values = torch.load(path, map_location="cpu", weights_only=True).values()
    net = network.build(LITE0, 5, seed=0)
    net.load_state_dict(exact.quantize(LITE0, dict(zip(names, values, strict=True))), strict=False)
    return net.eval()


@pytest.mark.gpu(needs="cuda")
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("side", [64, 224])
def test_whole_numbers(world: World, memory_format: torch.memory_format, side: int) -> Figures:
    """The logits of two images are those of sums in float64 on the CPU."""
    net = pretrained_net().to(world.device, memory_format=memory_format)  # type: ignore[call-overload]
    allow_tf32(False)
    exact.check_device(net, side, world.device)
    return {"side": side}


@pytest.mark.gpu(needs="cuda")
def test_probabilities(world: World) -> Figures:
    """With a solved head, the log-probabilities of packed images are those of the CPU, also in other batches."""
    net, random = pretrained_net(), np.random.default_rng(0)
    features = (random.integers(0, 4000, (60, 1280)) / exact.UNIT).astype(np.float32)
    head = ridge.solve(features, np.arange(60) % 5, np.ones(5), 0.5).on_grid()
    last: Any = net.classifier
    last.load_state_dict({"weight": torch.from_numpy(head.weight), "bias": torch.from_numpy(head.bias)})
    images = torch.from_numpy(random.integers(0, 256, (9, 72, 72, 3), dtype=np.uint8))
    sizes, rows = np.full((9, 2), 72, np.int32), np.arange(9)
    model = ExportedModel(net, tuple("abcde"), View(packed_size=72, resize=72, crop=64), network.normalization(LITE0))
    results = []
    for place, size in ((world, 4), (World(rank=0, local_rank=0, size=1, device=torch.device("cpu")), 1)):
        store = ImageStore(images.to(place.device), place.device)
        logits = inference.predict_logits(model, store, sizes, rows, batch_size=size, world=place)
        results.append(elementary.log_softmax(logits))
    assert results[0].tobytes() == results[1].tobytes()
    return {"images": len(rows)}
