"""The SHA-256 of what each operator of a training step computes, and the names of the operators that were called.

python -m tests.ranks.operators        prints {"hashes": {case: SHA-256}, "called": […]}
"""

import hashlib
import json
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.learning.loss import WeightedLoss, focal_losses
from tests.helpers.operators import Operators

Case = Callable[[Tensor], Tensor]


def layer(module: nn.Module) -> Case:
    """A layer with weights drawn from a seed; its gradients are added to the outputs."""
    for parameter in module.parameters():
        nn.init.trunc_normal_(parameter, std=0.2)

    def case(x: Tensor) -> Tensor:
        y: Tensor = module.train()(x)
        y.square().mean().backward(retain_graph=True)
        gradients = [parameter.grad.flatten() for parameter in module.parameters() if parameter.grad is not None]
        return torch.cat([y.flatten(), *gradients, *(b.flatten().float() for b in module.buffers())])

    return case


def attention(x: Tensor) -> Tensor:
    q = x.flatten(2).transpose(1, 2)  # [n, positions, channels]
    return F.scaled_dot_product_attention(q, q, q) + (q @ q.transpose(1, 2)).softmax(-1) @ q


def cases() -> dict[str, Case]:
    """An operator's name → what it computes of images [4, 24, 17, 17]."""
    convolutions = {
        f"convolution {side} × {side}, stride {stride}, {groups} groups": layer(
            nn.Conv2d(24, 48, side, stride, side // 2, groups=groups, bias=groups == 24)
        )
        for side, stride, groups in ((1, 1, 1), (3, 1, 1), (3, 2, 1), (7, 2, 1), (3, 1, 24), (5, 2, 24), (3, 1, 4))
    }
    norms = {"batch norm": layer(nn.BatchNorm2d(24)), "layer norm": layer(nn.LayerNorm(17))}
    activations = {
        f.__name__: f for f in (F.relu, F.gelu, F.silu, F.hardswish, F.hardsigmoid, F.relu6, torch.sigmoid, torch.tanh)
    }
    return {
        **convolutions, **norms, **activations,
        "linear": layer(nn.Sequential(nn.Flatten(), nn.Linear(24 * 17 * 17, 37), nn.Linear(37, 5, bias=False))),
        "attention": attention,
        "max pool": lambda x: F.max_pool2d(x, 3, 2, 1),
        "average pool": lambda x: F.avg_pool2d(x, 2, 2),
        "adaptive pool": lambda x: F.adaptive_avg_pool2d(x, 7),
        "mean and sum": lambda x: x.mean((2, 3)) + x.sum((2, 3)),
        "cosine": lambda x: F.normalize(x.flatten(2), dim=2) @ F.normalize(x.flatten(2), dim=2).transpose(1, 2),
        "relative positions": lambda x: x.flatten()[torch.arange(3000) % 700],
        "exponent": lambda x: torch.exp(torch.clamp(x, max=1.5)) * x.sigmoid() - x,
        "drop-out": lambda x: F.dropout(x, 0.3) + x * torch.empty(4, 1, 1, 1).bernoulli_(0.8).div_(0.8),
        "cross entropy": lambda x: F.cross_entropy(x[:, :, 0, 0], torch.arange(4), label_smoothing=0.1),
        "cross entropy of mixed labels": lambda x: F.cross_entropy(x[:, :, 0, 0], x[:, :, 1, 1].detach().softmax(1)),
        "weighted focal loss": lambda x: WeightedLoss(focal_losses, range(1, 25), 0.1)(x[:, :, 0, 0], torch.arange(4)),
        "log-softmax in float64": lambda x: torch.log_softmax(x[:, :, 0, 0].double(), 1).float(),
        "clipped gradient": lambda x: x * (1 / (torch.nn.utils.get_total_norm([x.detach()]) + 1e-6)),
    }  # fmt: skip


def digest(case: Case, memory_format: torch.memory_format) -> str:
    """The SHA-256 of the output and of the gradient."""
    torch.manual_seed(0)
    x = torch.randn(4, 24, 17, 17).contiguous(memory_format=memory_format).requires_grad_()
    y = case(x)
    (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
    parts = (y.detach(), x.grad if x.grad is not None else torch.zeros(0))
    return hashlib.sha256(b"".join(part.contiguous().numpy().tobytes() for part in parts)).hexdigest()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    operators = Operators()
    with operators:
        hashes = {
            f"{name}, {str(memory_format).removeprefix('torch.')}": digest(case, memory_format)
            for name, case in cases().items()
            for memory_format in (torch.contiguous_format, torch.channels_last)
        }
    print(json.dumps({"hashes": hashes, "called": sorted(operators.names)}))


if __name__ == "__main__":
    main()
