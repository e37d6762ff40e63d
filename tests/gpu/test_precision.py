"""Every precision trains with every parallel wrapper, and a step is right."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pipeline.learning import loop
from pipeline.learning.choices import PARALLELS, PRECISIONS
from pipeline.learning.world import World
from tests.gpu import training
from tests.gpu.training import HALF, NATIVE, Figures, Setup, batches, distance, masters, setup, state_digest, train

CONVOLUTION = {"bf16": torch.bfloat16, **dict.fromkeys(HALF, torch.float16)}  # every other precision: float32
WAYS = [
    (precision, parallel)
    for precision in PRECISIONS
    for parallel in PARALLELS
    if parallel != "dp"  # on one GPU the same as single
    and (precision, parallel) != ("bf16", "apex_ddp")  # which is refused: Apex reduces no bf16
    and (precision in NATIVE or parallel != "elastic")  # Apex's levels are refused with elastic
]


@pytest.mark.gpu(ranks=2)
@pytest.mark.parametrize(("precision", "parallel"), WAYS)
def test_trains(world: World, precision: str, parallel: str) -> Figures:
    """The loss falls, convolutions run in the precision's type, ranks stay equal, and saved weights are float32."""
    ready = setup(world, precision, parallel)
    types: set[torch.dtype] = set()
    convolution = ready.bare.get_submodule("0")
    hook = convolution.register_forward_hook(lambda module, inputs, output: types.add(output.dtype))
    losses = train(ready, batches(world, 0, 30))
    hook.remove()
    first, last = sum(losses[:5]) / 5, sum(losses[-5:]) / 5
    assert last < 0.8 * first, f"the loss falls: from {first} to {last}"
    assert types == {CONVOLUTION.get(precision, torch.float32)}, f"convolutions run in the precision's type: {types}"
    assert training.everywhere(world, masters(ready)), "all ranks have the same weights"
    dtypes = {value.dtype for value in ready.bare.state_dict().values() if value.is_floating_point()}
    assert dtypes == {torch.float32}, f"what is saved is float32: {dtypes}"
    return {"loss_first": first, "loss_last": last, "convolution": str(types.pop())}


@pytest.mark.gpu(needs="cuda")
def test_tf32(world: World) -> Figures:
    """Only the precision tf32 uses TF32, for matrices and convolutions."""
    torch.manual_seed(0)
    matrix = torch.randn(1024, 1024, device=world.device)
    images, weights = torch.randn(8, 64, 32, 32, device=world.device), torch.randn(64, 64, 3, 3, device=world.device)
    errors = {}
    for name in ("fp32", "tf32"):
        linear = nn.Linear(1, 1, device=world.device)
        PRECISIONS[name](world.device.type).prepare(linear, torch.optim.SGD(linear.parameters(), lr=0.1))
        errors[f"{name}_matrices"] = distance(matrix @ matrix, matrix.double() @ matrix.double())
        exact = F.conv2d(images.double(), weights.double())
        errors[f"{name}_convolutions"] = distance(F.conv2d(images, weights), exact)
    for name, error in errors.items():
        assert error > 1e-5 if name.startswith("tf32") else error < 1e-5, f"{name}: relative error {error}"
    return {**errors}


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("precision", "optimizer"),
    [*((precision, "sgd") for precision in ("fp32", "fp16", "O1", "O2")), ("fp16", "fused_sgd"), ("O2", "fused_sgd")],
)
def test_step(world: World, precision: str, optimizer: str) -> Figures:
    """The weights change by rate × clipped norm. An overflow skips one step and halves the scale, no more."""
    ready = setup(world, precision, optimizer=optimizer, momentum=0)
    train(ready, batches(world, 0, 1) * 10, rate=0.0, clip_norm=1.0)  # the loss scale settles
    figures: Figures = {}
    for rate in (0.5, 1.0):
        before = masters(ready)
        train(ready, batches(world, 0, 1), rate=rate, clip_norm=0.1)
        figures[f"moved_at_{rate}"] = moved = (masters(ready) - before).norm().item()
        assert abs(moved / (0.1 * rate) - 1) < 1e-2, f"the weights move by {0.1 * rate}: {moved}"
    if precision in HALF:
        before, scale = masters(ready), _scale(ready)
        (broken,) = batches(world, 1, 2)
        broken.images[0, 0, 0, 0] = torch.inf
        train(ready, [broken], clip_norm=0.5, microbatches=2)
        assert torch.equal(masters(ready), before), "an overflow skips the step"
        assert _scale(ready) == scale / 2, f"an overflow halves the scale: {scale} to {_scale(ready)}"
        train(ready, batches(world, 2, 3))
        assert not torch.equal(masters(ready), before), "the step after an overflow is taken"
        assert bool(masters(ready).isfinite().all()), "an overflow leaves no trace"
        figures["scale"] = scale
    return figures


def _scale(ready: Setup) -> float:
    state = ready.precision.state_dict(ready.optimizer)
    return float(state["scalers"]["loss_scaler0"]["loss_scale"] if "scalers" in state else state["scale"])


@pytest.mark.gpu(needs="compiler")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_compiled_graphs(world: World, precision: str) -> Figures:
    """CUDA graphs give the same bits as the compiled model without them, in an evaluation too."""
    warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")  # fp32 must not be TF32
    digests = {}
    for mode in ("default", "reduce-overhead"):
        torch.compiler.reset()
        ready = setup(world, precision)
        ready.bare.compile(mode=mode, dynamic=False)
        train(ready, batches(world, 0, 5))
        logits = list(loop.logits(ready.model, [batch.images for batch in batches(world, 5, 8)], ready.precision))
        train(ready, batches(world, 5, 10))
        digests[mode] = training.digest(state_digest(ready), logits)
    assert digests["default"] == digests["reduce-overhead"], "graphs change no bit"
    return {"digest": digests["default"][:16]}
