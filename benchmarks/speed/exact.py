"""What whole numbers cost: a forward pass of exact/tf_efficientnet_lite0 against timm's network in float32, in turn.

    python -m benchmarks exact

One process and one thread on the CPU, images of noise in channels_last. Seconds are those of the CPU, for an image.
"""

import time
from typing import Any

import torch

from benchmarks.harness import measuring
from benchmarks.harness.measuring import Report, Row
from pipeline.models import exact, network, pretrained

FLOAT, WHOLE = "timm/tf_efficientnet_lite0", "exact/tf_efficientnet_lite0"
BATCHES, SIDE, TURNS = (1, 8, 32), {"cpu": 224, "tiny": 64}, {"cpu": 11, "tiny": 1}


def networks() -> dict[str, Any]:
    """Both, with the weights of the package, without a head."""
    path, names = pretrained.packaged_weights(FLOAT)
    tensors = dict(zip(names, torch.load(path, weights_only=True).values(), strict=True))
    result: dict[str, Any] = {"float32": network.build(FLOAT, 1000, seed=0), "exact": network.build(WHOLE, 2, seed=0)}
    result["float32"].load_state_dict(tensors)
    result["exact"].load_state_dict(exact.quantize(WHOLE, tensors), strict=False)
    return {
        name: network.without_head(net, "").to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for name, net in result.items()
    }


@torch.inference_mode()
def measure(nets: dict[str, Any], batch: int, side: int, turns: int) -> Row:
    """Seconds for an image in each network, and their ratio: medians over the turns, after one that is not counted."""
    images = torch.randint(-255, 256, (batch, 3, side, side)).float().to(memory_format=torch.channels_last)
    each = []
    for _ in range(turns + 1):
        row = {}
        for name, net in nets.items():
            began = time.process_time()
            net(images)
            row[f"{name}_seconds"] = (time.process_time() - began) / batch
        each.append(row | {"ratio": row["exact_seconds"] / row["float32_seconds"]})
    return measuring.medians(each[1:])


def main() -> None:
    options = measuring.parser(__doc__, "exact", photos=False).parse_args()
    name = "tiny" if options.tiny else "cpu"
    torch.set_num_threads(1)
    report, nets = Report("exact", options, side=SIDE[name], turns=TURNS[name]), networks()
    for batch in BATCHES:
        if report.missing([title := f"batches of {batch}"]):
            report.add(title, measure(nets, batch, SIDE[name], TURNS[name]))
    report.conclude(ratio={title: row["ratio"] for title, row in report.rows.items()})
