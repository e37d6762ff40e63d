"""The table of choices that do not work together on any machine. A new pair needs only a row.

`validity.faults` refuses params by these rows. docs/ways.md links them; tests read them, too.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from pipeline.base.errors import Fault
from pipeline.config import document
from pipeline.config.model_names import EXACT, MINE, PACKAGED, TIMM, source_model
from pipeline.config.params import APEX_LEVELS, Params

Predicate = Callable[[Any], bool]  # whether a value is among those of a row
Values = Predicate | tuple[Any, ...] | str | bool | int  # values with a property, several values, or one


def above(limit: int) -> Predicate:
    return lambda value: bool(value > limit)


def other_than(only: Any) -> Predicate:
    return lambda value: bool(value != only)


def begins_with(*starts: str) -> Predicate:
    return lambda value: bool(value.startswith(starts))


@dataclass(frozen=True)
class Pair:
    """A row: one of `values` for `key` does not work with one of `others` for `other`.

    The row holds only for params with the values of `where`, too (key → values).
    """

    key: str
    values: Values
    other: str
    others: Values
    reason: str
    allowed: str  # instead of the value of `key`, or of another key
    where: Mapping[str, Values] = field(default_factory=dict)

    @property
    def conditions(self) -> dict[str, Values]:
        """Every key of the row, and the values that do not work together."""
        return {self.key: self.values, self.other: self.others, **self.where}

    def applies(self, params: Params) -> bool:
        """Whether these params have such a combination of values."""
        return all(contains(values, attrgetter(key)(params)) for key, values in self.conditions.items())

    def fault(self, params: Params) -> Fault:
        """The fault of params to which the row applies."""
        (_, value), *others = ((key, document.short_text(attrgetter(key)(params))) for key in self.conditions)
        pair = " × ".join([value, *(f"{key}: {other}" for key, other in others)])
        return Fault(self.key, pair, "pair", self.reason, self.allowed)


def contains(values: Values, value: Any) -> bool:
    """Whether a value of a setting is one of the values of a row."""
    if callable(values):
        return values(value)
    return bool(value in values if isinstance(values, tuple) else value == values)


# On a GPU the backward pass of their adaptive_avg_pool2d is not deterministic. A test finds them by tracing all models.
NONDETERMINISTIC = begins_with("alexnet", "vgg")
SIDE = 224  # pixels, of a model that learns an embedding for every position of a patch
FIXED_SIDE = begins_with("vit_", "maxvit")


def not_packaged(name: str) -> bool:
    """Whether no package has the ImageNet weights of this model of timm."""
    return name.startswith((TIMM, EXACT)) and source_model(name) not in PACKAGED


def not_exact(name: str) -> bool:
    """Whether a model is not one of whole numbers."""
    return not name.startswith(EXACT)


ONE_PROCESS, SYNCED = ("single", "dp"), ("torch", "apex")
ONE_SIDE = "this model takes images of one size"
GREY_SETS = ("torchvision/MNIST", "torchvision/FashionMNIST", "torchvision/KMNIST")

# Of train.*, what a head that is solved on a frozen backbone does not take: key, values, reason, what is allowed.
NOT_FOR_A_FINAL_HEAD: tuple[tuple[str, Values, str, str], ...] = (
    ("temperature", "none", "the scores of least squares are no probabilities", "fitted"),
    *((key, above(0), "there is one feature vector of each image, as it is", "0")
      for key in ("mixup", "cutmix", "erasing", "color_jitter")),
    ("loss", "focal", "least squares are solved", "cross_entropy"),
    ("export", ("best", "ema"), "there is one solution", "last"),
    ("precision", other_than("fp32"), "features are fp32, as evaluation is",
     "fp32"),
    ("parallel", ("dp", "apex_ddp"), "no gradient is exchanged", "single, ddp or elastic"),
    *((key, True, "there are no training steps", "false") for key in ("compile", "cuda_graphs")),
)  # fmt: skip

PAIRS = (
    # The images.
    Pair("split.min_side", above(28), "data.source", GREY_SETS, "its images have 28 pixels per side",
         "28 or less"),
    Pair("split.phash_distance", above(0), "data.source", GREY_SETS,
         "its images are so much alike that nearly all would be near duplicates", "0"),
    # The device.
    Pair("train.precision", ("tf32", *APEX_LEVELS), "train.device", "cpu", "it is for GPUs", "fp32, bf16, fp16"),
    Pair("train.parallel", ("dp", "apex_ddp"), "train.device", "cpu", "it is for GPUs", "single, ddp, elastic"),
    Pair("train.backend", "nccl", "train.device", "cpu", "NCCL is for GPUs", "auto, gloo"),
    Pair("train.sync_bn", SYNCED, "train.device", "cpu", "SyncBN is for GPUs", "none"),
    Pair("train.optimizer", "fused_sgd", "train.device", "cpu", "Apex is for GPUs", "sgd, adam, adamw"),
    Pair("train.cuda_graphs", True, "train.device", "cpu", "CUDA graphs are for GPUs", "false"),
    # The precision. Several of these pairs would run, and give wrong numbers.
    Pair("train.precision", APEX_LEVELS, "train.parallel", "dp", "Apex changes the first replica only",
         "a native precision, or train.parallel: ddp"),
    Pair("train.precision", "bf16", "train.parallel", "apex_ddp", "Apex DDP does not reduce bf16 gradients",
         "any other precision, or train.parallel: ddp"),
    Pair("train.precision", "bf16", "train.parallel", "dp",
         "torch runs the replicas' autocast in fp16, without a loss scale",
         "any other native precision, or train.parallel: ddp"),
    Pair("train.memory_format", "channels_last", "train.parallel", "apex_ddp",
         "Apex DDP mixes up the gradients of convolutions", "contiguous, or train.parallel: ddp"),
    Pair("train.sync_bn", "apex", "train.precision", "bf16", "Apex's kernels have no bf16",
         "torch, or another precision"),
    Pair("train.sync_bn", "torch", "train.precision", "O3", "its counts of values overflow in half precision",
         "apex, or another precision"),
    # The same bytes.
    Pair("train.model", NONDETERMINISTIC, "train.deterministic", True,
         "its adaptive_avg_pool2d has no deterministic backward pass",
         "another model, or train.deterministic: false", where={"train.device": "cuda"}),
    *(Pair("train.precision", "bf16", f"train.{key}", tuple(range(1, 32)),
           "convolutions of maps of one pixel are not the same every time",
           "fp32, a crop of at least 32, or train.deterministic: false",
           where={"train.device": "cpu", "train.deterministic": True}) for key in ("crop", "crop_from")),
    Pair("train.device", "cuda", "train.arithmetic", "portable", "a GPU's bytes depend on its kind",
         "cpu, or train.arithmetic: native", where={"train.model": not_exact}),
    Pair("train.precision", ("bf16", "fp16"), "train.arithmetic", "portable",
         "without AVX-512 the CPU emulates it, about 20 times slower", "fp32, or train.arithmetic: native"),
    Pair("train.compile", True, "train.arithmetic", "portable", "the compiler writes code for this kind of CPU",
         "false, or train.arithmetic: native"),
    Pair("train.deterministic", False, "train.arithmetic", "portable", "portable is for identical bytes",
         "true, or train.arithmetic: native"),
    # SyncBN.
    Pair("train.sync_bn", SYNCED, "train.parallel", ONE_PROCESS, "there is only one process",
         "none, or train.parallel: ddp with several"),
    Pair("train.sync_bn", SYNCED, "run.processes", 1, "there is nothing to synchronize", "none, or more processes",
         where={"train.parallel": ("ddp", "apex_ddp")}),
    Pair("train.sync_bn", SYNCED, "train.model", begins_with(TIMM),
         "timm's BatchNorm contains the activation, which SyncBN would lose", "none, or a model of torchvision"),
    *(Pair("train.sync_bn", SYNCED, f"train.{key}", True, "frozen statistics are not synchronized",
           f"none, or train.{key}: false") for key in ("freeze_backbone", "freeze_norm")),
    # torch.compile.
    Pair("train.compile", True, "train.precision", APEX_LEVELS, "Apex changes the compiled functions",
         "false, or a native precision"),
    Pair("train.compile", True, "train.parallel", "dp", "torch.compile does not support it",
         "false, or train.parallel: ddp"),
    Pair("train.compile", True, "train.gradient_checkpointing", True, "torch.compile does not support it",
         "one of the two"),
    Pair("train.compile", True, "train.crop_from", above(0),
         "every side would be compiled by itself, which takes longer than small images save", "one of the two"),
    # CUDA graphs, which pipeline/learning/graphs.py records, or the compiler.
    Pair("train.cuda_graphs", True, "train.parallel", ("dp", "ddp", "apex_ddp"),
         "its exchange of gradients is not part of a graph", "false, or train.parallel: single or elastic"),
    Pair("train.cuda_graphs", True, "train.precision", APEX_LEVELS, "Apex reads the loss scale in every step",
         "false, or a native precision"),
    Pair("train.cuda_graphs", True, "train.gradient_checkpointing", True,
         "a graph cannot go back to earlier random numbers", "one of the two"),
    Pair("train.cuda_graphs", True, "train.accumulation_steps", above(1),
         "the compiler's graphs are of one part of a batch", "one of the two, or train.accumulation_steps: 1",
         where={"train.compile": True}),
    # Gradient checkpointing.
    Pair("train.gradient_checkpointing", True, "train.parallel", "dp", "the recomputation would use other weights",
         "one of the two"),
    Pair("train.gradient_checkpointing", True, "train.precision", "O1", "the recomputation would use other weights",
         "one of the two"),
    Pair("train.gradient_checkpointing", True, "train.freeze_backbone", True,
         "a frozen backbone stores nothing for a backward pass", "one of the two"),
    # Elastic.
    Pair("train.precision", APEX_LEVELS, "train.parallel", "elastic", "Apex keeps its own gradients",
         "a native precision, or train.parallel: ddp"),
    Pair("train.sync_bn", SYNCED, "train.parallel", "elastic",
         "BatchNorm uses the images of one shard, which are in one process", "none, or train.parallel: ddp"),
    Pair("train.compile", True, "train.parallel", "elastic",
         "elastic reads each gradient as soon as it is computed", "one of the two"),
    Pair("train.accumulation_steps", above(1), "train.parallel", "elastic",
         "a process already computes its shards one after another", "1, and more train.shards"),
    Pair("train.deterministic", False, "train.parallel", "elastic",
         "elastic is for identical weights, which need train.deterministic: true", "true, or train.parallel: ddp"),
    Pair("run.min_processes", above(0), "train.parallel", ("single", "dp", "ddp", "apex_ddp"),
         "only elastic goes on with fewer processes", "0, or train.parallel: elastic"),
    Pair("run.min_processes", above(0), "run.launcher", ("spawn", "slurm"), "only torchrun restarts without a node",
         "0, or run.launcher: torchrun"),
    Pair("run.min_processes", above(0), "run.nodes", other_than(2), "only the first of two nodes can go on alone",
         "0, or run.nodes: 2"),
    Pair("run.min_processes", above(0), "run.max_restarts", 0, "to go on without a node is a restart",
         "0, or run.max_restarts above 0"),
    # Processes and nodes.
    Pair("run.processes", above(1), "train.parallel", ONE_PROCESS, "this would train that many models",
         "1; for several processes: train.parallel: ddp"),
    Pair("run.rendezvous", lambda value: value.endswith(":0"), "run.nodes", above(1),
         "every node needs the address of node 0", "host:port of node 0, such as node0:29400",
         where={"run.launcher": ("torchrun", "spawn")}),
    # The model and its optimizer.
    Pair("train.crop", other_than(SIDE), "train.model", FIXED_SIDE, ONE_SIDE, f"{SIDE}, or another model"),
    Pair("train.crop_from", above(0), "train.model", FIXED_SIDE, ONE_SIDE, "0, or another model"),
    Pair("train.eval_crop", other_than(SIDE), "train.model", FIXED_SIDE, ONE_SIDE, f"{SIDE}, or another model"),
    Pair("train.weights", "imagenet", "train.model", not_packaged,
         "these weights have no address with a hash",
         f"none, {', '.join(PACKAGED)}, or model.safetensors of the model from huggingface.co/timm, as a file in "
         "data/pretrained/"),
    Pair("train.weights", "imagenet", "train.model", begins_with(MINE), "nobody publishes them", "none, or a file"),
    *(Pair(f"train.{key}", value, "train.model", begins_with(MINE), "its head is unknown", f"{rest}, or another model")
      for key, value, rest in (("freeze_backbone", True, "false"), ("head", "solved", "trained"),
                               ("temperature", "fitted", "none"), ("head_lr_factor", other_than(1), "1.0"))),
    # Whole numbers.
    *(Pair("train.model", begins_with(EXACT), key, value, "whole numbers have no gradients",
           f"timm/…, or {key}: {allowed}")
      for key, value, allowed in (("train.head", "trained", "solved"), ("train.freeze_backbone", False, "true"))),
    Pair("train.eval_crop", above(512), "train.model", begins_with(EXACT),
         "a sum over more places than those of 512 pixels could be inexact", "512 or less"),
    # A head that is solved, from features that are computed once.
    Pair("train.head", "solved", "train.weights", "none", "features of random weights say little",
         "trained, or train.weights: imagenet, or a file"),
    *(Pair("train.head", "solved", f"train.{key}", values, reason,
           f"trained, or train.{key}: {allowed}, or train.freeze_backbone: false",
           where={"train.freeze_backbone": True})
      for key, values, reason, allowed in NOT_FOR_A_FINAL_HEAD),
    Pair("train.freeze_norm", True, "train.weights", "none", "the statistics of random weights say nothing",
         "false, or train.weights: imagenet, or a file"),
    Pair("train.nesterov", True, "train.momentum", 0, "Nesterov's step needs momentum",
         "false, or train.momentum above 0", where={"train.optimizer": ("sgd", "fused_sgd")}),
    Pair("train.export", "ema", "train.ema_decay", 0, "there is no average to export",
         "last, best, or train.ema_decay above 0, such as 0.999"),
)  # fmt: skip


def faults(params: Params) -> Iterator[Fault]:
    """A fault for each row that applies to these params."""
    return (pair.fault(params) for pair in PAIRS if pair.applies(params))
