"""Choices of `train.*` that do not work together, on any machine. Each sentence has the reason and what is allowed.

`validity.faults` asks for all of them. A test tries every pair of choices: it is either refused or accepted.
"""

from collections.abc import Iterator

from pipeline.config.model_names import TIMM
from pipeline.config.params import APEX_LEVELS, Run, Train


def pairs(train: Train) -> Iterator[str]:
    """The pairs of choices that do not work together, one sentence each."""
    if train.parallel == "apex_ddp" and train.memory_format == "channels_last":
        yield (
            "train.memory_format: 'channels_last' × train.parallel: 'apex_ddp' mixes up the gradients of "
            "convolutions; allowed: contiguous, or train.parallel: ddp"
        )
    if train.parallel == "dp" and train.precision in APEX_LEVELS:
        yield (
            f"train.precision: {train.precision!r} × train.parallel: 'dp': Apex changes the first replica only; "
            f"allowed: a native precision, or train.parallel: ddp"
        )
    if train.sync_bn != "none" and train.parallel in ("single", "dp"):
        yield (
            f"train.sync_bn: {train.sync_bn!r} × train.parallel: {train.parallel!r}: there is only one process; "
            f"allowed: none, or train.parallel: ddp with several"
        )
    if train.sync_bn != "none" and train.model.startswith(TIMM):
        yield (
            f"train.sync_bn: {train.sync_bn!r} × train.model: {train.model!r}: timm's BatchNorm contains the "
            f"activation, which SyncBN would lose; allowed: none, or a model of torchvision"
        )
    if train.sync_bn != "none" and train.freeze_backbone:
        yield (
            f"train.sync_bn: {train.sync_bn!r} × train.freeze_backbone: true: frozen statistics are not synchronized; "
            f"allowed: none, or train.freeze_backbone: false"
        )
    if train.compile and train.precision in APEX_LEVELS:
        yield (
            f"train.compile: true × train.precision: {train.precision!r}: Apex changes the compiled functions; "
            f"allowed: false, or a native precision"
        )
    if train.compile and (train.parallel == "dp" or train.gradient_checkpointing):
        other = "train.parallel: 'dp'" if train.parallel == "dp" else "train.gradient_checkpointing: true"
        yield f"train.compile: true × {other} is not supported by torch.compile; allowed: one of the two"
    if train.compile and train.crop_from:
        yield (
            f"train.compile: true × train.crop_from: {train.crop_from}: every side would be compiled by itself, which "
            f"takes longer than small images save; allowed: one of the two"
        )
    yield from _graphs(train)
    if train.gradient_checkpointing and (train.parallel == "dp" or train.precision == "O1"):
        other = "train.parallel: 'dp'" if train.parallel == "dp" else "train.precision: 'O1'"
        yield (
            f"train.gradient_checkpointing: true × {other}: the recomputation would use other weights; "
            f"allowed: one of the two"
        )
    if train.gradient_checkpointing and train.freeze_backbone:
        yield (
            "train.gradient_checkpointing: true × train.freeze_backbone: true: a frozen backbone stores nothing for a "
            "backward pass; allowed: one of the two"
        )
    if train.export == "ema" and train.ema_decay == 0:
        yield "train.export: 'ema' needs train.ema_decay > 0, such as 0.999; allowed without: last, best"


def _graphs(train: Train) -> Iterator[str]:
    """The choices that do not work with CUDA graphs, which the compiler records, or pipeline/engine/graphs.py."""
    if not train.cuda_graphs:
        return
    here = "train.cuda_graphs: true"
    if train.compile and (train.parallel != "single" or train.accumulation_steps > 1):
        yield (
            f"{here} × train.compile: true needs train.parallel: single and train.accumulation_steps: 1; "
            f"allowed: one of the two, or these values"
        )
    if not train.compile and train.parallel not in ("single", "elastic"):
        yield (
            f"{here} × train.parallel: {train.parallel!r}: its exchange of gradients is not part of a graph; "
            f"allowed: false, or train.parallel: single or elastic"
        )
    if not train.compile and train.precision in APEX_LEVELS:
        yield (
            f"{here} × train.precision: {train.precision!r}: Apex reads the loss scale in every step; "
            f"allowed: false, or a native precision"
        )
    if not train.compile and train.gradient_checkpointing:
        yield (
            f"{here} × train.gradient_checkpointing: true: a graph cannot go back to earlier random numbers; "
            f"allowed: one of the two"
        )


def portable(train: Train) -> Iterator[str]:
    """The choices that do not work with train.arithmetic: portable, one sentence each."""
    if train.arithmetic != "portable":
        return
    reasons = (
        ("device", "cuda", "a GPU's bytes depend on its kind", "cpu"),
        ("precision", "bf16", "without AVX-512 the CPU emulates it, about 20 times slower", "fp32"),
        ("precision", "fp16", "without AVX-512 the CPU emulates it, about 20 times slower", "fp32"),
        ("compile", True, "the compiler writes code for this kind of CPU", "false"),
        ("deterministic", False, "portable is for identical bytes", "true"),
    )
    for key, value, reason, allowed in reasons:
        if getattr(train, key) == value:
            said = repr(value) if isinstance(value, str) else str(value).lower()
            yield (
                f"train.{key}: {said} × train.arithmetic: 'portable': {reason}; allowed: {allowed}, or "
                f"train.arithmetic: native"
            )


def half_precision(train: Train) -> Iterator[str]:
    """The pairs that give wrong numbers in half precision, one sentence each."""
    if train.parallel == "apex_ddp" and train.precision == "bf16":
        yield (
            "train.precision: 'bf16' × train.parallel: 'apex_ddp': Apex DDP does not reduce bf16 gradients; "
            "allowed: any other precision, or train.parallel: ddp"
        )
    if train.parallel == "dp" and train.precision == "bf16":
        yield (
            "train.precision: 'bf16' × train.parallel: 'dp': torch runs the replicas' autocast in fp16, "
            "without a loss scale; allowed: any other native precision, or train.parallel: ddp"
        )
    if train.sync_bn == "apex" and train.precision == "bf16":
        yield (
            "train.sync_bn: 'apex' × train.precision: 'bf16': Apex's kernels have no bf16; "
            "allowed: torch, or another precision"
        )
    if train.sync_bn == "torch" and train.precision == "O3":
        yield (
            "train.sync_bn: 'torch' × train.precision: 'O3': its counts of values overflow in half precision; "
            "allowed: apex, or another precision"
        )


def elastic(train: Train, run: Run) -> Iterator[str]:
    """The choices that do not work with train.parallel: elastic or run.min_processes, one sentence each."""
    here = run.processes // run.nodes
    if run.min_processes and not (
        train.parallel == "elastic" and run.launcher == "torchrun" and run.nodes == 2 and run.max_restarts > 0
    ):
        yield (
            f"run.min_processes: {run.min_processes} needs train.parallel: elastic, run.launcher: torchrun, "
            f"run.nodes: 2 and run.max_restarts > 0; allowed without: 0"
        )
    elif run.min_processes not in (0, here):
        yield (
            f"run.min_processes: {run.min_processes} is not the number of processes per node; "
            f"allowed: {here}, or 0 to stop when a node is lost"
        )
    if train.parallel != "elastic":
        return
    if train.precision in APEX_LEVELS:
        yield (
            f"train.precision: {train.precision!r} × train.parallel: 'elastic': Apex keeps its own gradients; "
            f"allowed: a native precision, or train.parallel: ddp"
        )
    if train.sync_bn != "none":
        yield (
            f"train.sync_bn: {train.sync_bn!r} × train.parallel: 'elastic': BatchNorm uses the images of one shard, "
            f"which are in one process; allowed: none, or train.parallel: ddp"
        )
    if train.compile:
        yield (
            "train.compile: true × train.parallel: 'elastic': elastic reads each gradient as soon as it is computed; "
            "allowed: one of the two"
        )
    if train.accumulation_steps > 1:
        yield (
            f"train.accumulation_steps: {train.accumulation_steps} × train.parallel: 'elastic': a process already "
            f"computes its shards one after another; allowed: 1, and more train.shards"
        )
    if not train.deterministic:
        yield (
            "train.deterministic: false × train.parallel: 'elastic': elastic is for identical weights, which need "
            "train.deterministic: true; allowed: true, or train.parallel: ddp"
        )
    if run.processes > train.shards:
        yield (
            f"run.processes: {run.processes} is more than train.shards ({train.shards}); "
            f"allowed: 1 to {train.shards}, or more shards"
        )
    if train.batch_size % train.shards or train.batch_size < 2 * train.shards:
        near = max(2, round(train.batch_size / train.shards)) * train.shards
        yield (
            f"train.batch_size: {train.batch_size} with train.shards: {train.shards}: every shard needs the same "
            f"number of images, at least two for BatchNorm; allowed: {2 * train.shards} or a larger multiple of "
            f"{train.shards}, such as {near}"
        )
