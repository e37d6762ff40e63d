"""What train.hash_every_epochs costs: seconds of the hash of the whole state, against the steps of an epoch.

    python -m benchmarks state

One process and one thread on the CPU, fp32, SGD with momentum, batches of noise; steps and hashes take turns. Seconds
are those of the CPU, of all threads together: the hash uses every core, a step one. `megabytes` is what is hashed; on a
GPU these bytes are also copied to the host.
"""

import time
from collections import deque
from itertools import islice

from benchmarks.harness import measuring
from benchmarks.harness.measuring import Report, Row
from benchmarks.speed.arithmetic import Case

TURNS = 5


CASES = {  # with the images of an epoch
    "cpu": (
        (Case("resnet18", 64, 32, 4), 484), (Case("resnet18", 64, 64, 4), 2932), (Case("resnet34", 224, 16, 2), 2932),
    ),
    "tiny": ((Case("shufflenet_v2_x0_5", 32, 4, 2), 40),),
}  # fmt: skip


def measure(case: Case, images: int) -> Row:
    """CPU seconds of a hash and of the steps of an epoch, and their ratio: medians over the turns."""
    from benchmarks.speed import ours
    from pipeline.learning import chain

    trainer, batches = ours.on_noise(case.model, case.batch, case.side, device="cpu", precision="fp32")
    steps = trainer.steps(batches)
    deque(islice(steps, 2), maxlen=0)  # the first choose algorithms, and fill caches
    state = trainer.learner.state_dict()
    turns = []
    for _ in range(TURNS):
        began = time.process_time()
        chain.sha256(state)
        hashed = time.process_time()
        deque(islice(steps, case.steps), maxlen=0)
        epoch = (time.process_time() - hashed) / case.steps * images / case.batch
        turns.append({"hash_seconds": hashed - began, "epoch_seconds": epoch, "share": (hashed - began) / epoch})
    megabytes = sum(tensor.nbytes for tensor in chain.tensors(state)) / 1e6
    return {"megabytes": megabytes, **measuring.medians(turns)}


def main() -> None:
    options = measuring.parser(__doc__, "state", photos=False).parse_args()
    report = Report("state", options, turns=TURNS)
    for case, images in CASES["tiny" if options.tiny else "cpu"]:
        title = f"{case.title}, {images:,} images"
        if report.missing([title]):
            report.add(title, measure(case, images))
    report.conclude(share={title: row["share"] for title, row in report.rows.items()})
