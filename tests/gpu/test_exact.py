"""A network of whole numbers on a GPU: the bits of the CPU (tests/test_exact.py has the other ways)."""

import pytest
import torch

from pipeline.learning.precision import allow_tf32
from pipeline.learning.world import World
from pipeline.models import exact, network, pretrained
from tests.gpu.training import Figures

LITE0 = "exact/tf_efficientnet_lite0"


@pytest.mark.gpu(needs="cuda")
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("side", [64, 224])
def test_whole_numbers(world: World, memory_format: torch.memory_format, side: int) -> Figures:
    """The logits of two images are those of sums in float64 on the CPU."""
    path, names = pretrained.packaged_weights("timm/tf_efficientnet_lite0")
    values = torch.load(path, map_location="cpu", weights_only=True).values()
    net = network.build(LITE0, 5, seed=0)
    net.load_state_dict(exact.quantize(LITE0, dict(zip(names, values, strict=True))), strict=False)
    net = net.eval().to(world.device, memory_format=memory_format)  # type: ignore[call-overload]
    allow_tf32(False)
    exact.check_device(net, side, world.device)
    return {"side": side}
