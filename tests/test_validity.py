"""Which params are refused: every pair of choices, and the sentence of each refusal."""

import itertools
from typing import Any, get_args

import pytest

from pipeline.config import params, validity
from pipeline.config.machine import Machine
from pipeline.config.params import Train
from pipeline.engine.choices import CLASS_WEIGHTS, LOSSES, OPTIMIZERS
from tests.helpers.choices import CPU_ONLY, MEMORY_FORMAT, PRECISION, SYNC_BN, TWO_GPUS, with_lines

# On two GPUs with Apex, two processes with DDP, a moving average at hand, a place for nodes to meet: then every one of
# these choices runs, alone.
CHOICES: dict[str, tuple[Any, ...]] = {
    "train__precision": PRECISION, "train__parallel": ("ddp", "single", "dp", "apex_ddp", "elastic"),
    "train__sync_bn": SYNC_BN, "train__memory_format": MEMORY_FORMAT, "train__compile": (False, True),
    "train__gradient_checkpointing": (False, True), "train__freeze_backbone": (False, True),
    "train__optimizer": tuple(OPTIMIZERS), "train__export": ("last", "best", "ema"), "train__ema_decay": (0.9, 0.0),
    "train__accumulation_steps": (1, 2), "train__schedule": get_args(Train.model_fields["schedule"].annotation),
    "train__clip_norm": (0.0, 1.0), "train__mixup": (0.0, 0.2), "train__cutmix": (0.0, 1.0),
    "train__class_weights": tuple(CLASS_WEIGHTS), "train__loss": tuple(LOSSES), "train__crop_from": (0, 16),
    "run__launcher": get_args(params.Launcher), "run__processes": (2, 1), "run__nodes": (1, 2),
}  # fmt: skip

# The pairs that are refused. Whatever pair is not here must be accepted.
BARRED = {
    frozenset(pair)
    for pair in (
        ("parallel=single", "processes=2"), ("parallel=dp", "processes=2"),
        ("parallel=single", "nodes=2"), ("parallel=dp", "nodes=2"),
        ("parallel=single", "sync_bn=torch"), ("parallel=single", "sync_bn=apex"),
        ("parallel=dp", "sync_bn=torch"), ("parallel=dp", "sync_bn=apex"),
        ("parallel=dp", "precision=O0"), ("parallel=dp", "precision=O1"),
        ("parallel=dp", "precision=O2"), ("parallel=dp", "precision=O3"), ("parallel=dp", "precision=bf16"),
        ("sync_bn=apex", "precision=bf16"), ("sync_bn=torch", "precision=O3"),
        ("parallel=dp", "compile=True"), ("parallel=dp", "gradient_checkpointing=True"),
        ("compile=True", "crop_from=16"),
        ("parallel=elastic", "precision=O0"), ("parallel=elastic", "precision=O1"),
        ("parallel=elastic", "precision=O2"), ("parallel=elastic", "precision=O3"),
        ("parallel=elastic", "sync_bn=torch"), ("parallel=elastic", "sync_bn=apex"),
        ("parallel=elastic", "compile=True"), ("parallel=elastic", "accumulation_steps=2"),
        ("parallel=apex_ddp", "memory_format=channels_last"), ("parallel=apex_ddp", "precision=bf16"),
        ("compile=True", "gradient_checkpointing=True"),
        ("compile=True", "precision=O0"), ("compile=True", "precision=O1"), ("compile=True", "precision=O2"),
        ("compile=True", "precision=O3"),
        ("gradient_checkpointing=True", "precision=O1"), ("gradient_checkpointing=True", "freeze_backbone=True"),
        ("sync_bn=torch", "freeze_backbone=True"), ("sync_bn=apex", "freeze_backbone=True"),
        ("sync_bn=torch", "processes=1"), ("sync_bn=apex", "processes=1"),
        ("export=ema", "ema_decay=0.0"),
        ("launcher=spawn", "nodes=2"), ("processes=1", "nodes=2"),
    )
}  # fmt: skip


def test_no_pair_of_choices_is_left_open() -> None:
    """Every pair of choices is tried: it is refused exactly if BARRED has it."""
    usual = {key: options[0] for key, options in CHOICES.items()} | {
        "train__device": "cuda", "train__shards": 4, "run__rendezvous": "node0:29400",
    }  # fmt: skip
    refused = set()
    for (key, options), (other, others) in itertools.combinations(CHOICES.items(), 2):
        for value, second in itertools.product(options, others):
            lines = usual | {key: value, other: second}
            if lines["train__parallel"] in ("single", "dp") and "run__processes" not in (key, other):
                lines["run__processes"] = 1
            if validity.faults(with_lines(**lines), TWO_GPUS):
                refused.add(frozenset(f"{k.split('__')[1]}={v}" for k, v in ((key, value), (other, second))))
    assert refused == BARRED


@pytest.mark.parametrize(
    ("lines", "machine", "sentence"),
    [
        ({"train__model": "resnet43"}, CPU_ONLY,
         "train.model: 'resnet43' is not one of torchvision's 80 classification models; "
         "did you mean resnet34, resnet50, resnet18?"),
        ({"train__crop_scale": (0.9, 0.1)}, CPU_ONLY,
         "train.crop_scale: [0.9, 0.1] is in the wrong order; allowed: [minimum, maximum]"),
        ({"train__eval_crop": 64}, CPU_ONLY,
         "train.eval_crop: 64 does not fit into train.eval_resize (36); allowed: up to 36"),
        ({"train__momentum": 0.0}, CPU_ONLY,
         "train.nesterov: true needs momentum (train.momentum: 0); allowed: false, or train.momentum > 0"),
        ({"train__parallel": "ddp", "run__processes": 3}, CPU_ONLY,
         "train.batch_size: 8 does not divide by run.processes × train.accumulation_steps (3); "
         "allowed: a multiple of 3, such as 6"),
        ({"train__accumulation_steps": 16}, CPU_ONLY,
         "train.batch_size: 8 does not divide by run.processes × train.accumulation_steps (16); "
         "allowed: a multiple of 16, such as 16"),
        ({"run__processes": 2}, CPU_ONLY,
         "run.processes: 2 × train.parallel: 'single' would train that many models; "
         "allowed: 1; for several processes: train.parallel: ddp"),
        ({"train__device": "cuda", "train__parallel": "ddp", "run__processes": 4}, TWO_GPUS,
         "run.processes: 4 on a node is more than the GPUs visible here (2); "
         "allowed: 1 to 2; CUDA_VISIBLE_DEVICES chooses them"),
        ({"train__device": "cuda", "run__launcher": "slurm"}, Machine(0, "missing", True, slurm_step=True),
         "train.device: 'cuda' needs an NVIDIA GPU and its driver (found: none); make start writes params that "
         "suit this machine; allowed here: cpu"),
        ({"train__device": "cuda", "train__parallel": "ddp", "run__processes": 4, "run__launcher": "slurm"},
         Machine(1, "missing", True, slurm_step=True),
         "run.processes: 4 on a node is more than the GPUs visible here (1); allowed: 1 to 1; "
         "ask for GPUs by node (--gres=gpu:4, not --gpus-per-task), or add --gpu-bind=none"),
        ({"train__device": "cuda", "train__precision": "O1"}, Machine(2, "without amp", True),
         "train.precision: 'O1' needs apex.amp and apex.parallel, which the installed Apex no longer has; make "
         "start writes params that suit this machine; or use the container (make image); without it: fp16 for O1 to "
         "O3, fp32 for O0, ddp for apex_ddp, torch for apex, sgd for fused_sgd"),
        ({"train__device": "cuda", "train__optimizer": "fused_sgd"}, Machine(2, "without extensions", True),
         "train.optimizer: 'fused_sgd' needs Apex's extensions amp_C, apex_C and syncbn, which the installed Apex was "
         "built without; make start writes params that suit this machine; or use the container (make image); without "
         "it: fp16 for O1 to O3, fp32 for O0, ddp for apex_ddp, torch for apex, sgd for fused_sgd"),
        ({"train__device": "cuda"}, Machine(1, "missing", True, cuda_driver=12, cuda_of_torch=13),
         "train.device: 'cuda': the NVIDIA driver knows CUDA up to 12, the installed torch needs 13; "
         "install a newer driver; allowed here: cpu"),
        ({"train__device": "cuda"}, Machine(3, "missing", True, compute_capabilities=((9, 0), (7, 0), (7, 0))),
         "train.device: 'cuda': a GPU of compute capability 7.0 is visible, the installed torch has code for 7.5 and "
         "later; hide it (CUDA_VISIBLE_DEVICES), or take another GPU; allowed here: cpu"),
        ({"train__device": "cuda", "train__model": "vgg16"}, TWO_GPUS,
         "train.model: 'vgg16' × train.deterministic: true on a GPU: its adaptive_avg_pool2d has no deterministic "
         "backward pass; allowed: another model, or train.deterministic: false"),
        ({"train__precision": "bf16", "train__crop": 16}, CPU_ONLY,
         "train.precision: 'bf16' × train.crop: 16 on the CPU: convolutions of maps of one pixel are not the same "
         "every time; allowed: fp32, a crop of at least 32, or train.deterministic: false"),
        ({"train__precision": "bf16", "train__crop_from": 16, "train__epochs": 9}, CPU_ONLY,
         "train.precision: 'bf16' × train.crop_from: 16 on the CPU: convolutions of maps of one pixel are not the same "
         "every time; allowed: fp32, a crop of at least 32, or train.deterministic: false"),
        ({"train__crop": 224, "train__crop_from": 192, "train__model": "vit_b_16"}, CPU_ONLY,
         "train.crop_from: 192 × train.model: 'vit_b_16': this model takes images of one size; allowed: 0, or "
         "another model"),
        ({"train__crop_from": 32}, CPU_ONLY,
         "train.crop_from: 32; allowed: 0, or from 16 to below train.crop (32)"),
        ({"train__crop_from": 15}, CPU_ONLY,
         "train.crop_from: 15; allowed: 0, or from 16 to below train.crop (32)"),
        ({"train__crop_from": 16, "train__compile": True}, CPU_ONLY,
         "train.compile: true × train.crop_from: 16: every side would be compiled by itself, which takes longer than "
         "small images save; allowed: one of the two"),
        ({"train__compile": True}, Machine(0, "missing", False),
         "train.compile: true needs a C++ compiler (found: none); allowed here: false, or install g++"),
        ({"train__cuda_graphs": True}, CPU_ONLY,
         "train.cuda_graphs: true needs train.device: cuda; allowed on the CPU: false"),
        ({"train__cuda_graphs": True, "train__parallel": "ddp"}, TWO_GPUS,
         "train.cuda_graphs: true × train.parallel: 'ddp': its exchange of gradients is not part of a graph; "
         "allowed: false, or train.parallel: single or elastic"),
        ({"train__cuda_graphs": True, "train__precision": "O1"}, TWO_GPUS,
         "train.cuda_graphs: true × train.precision: 'O1': Apex reads the loss scale in every step; "
         "allowed: false, or a native precision"),
        ({"train__cuda_graphs": True, "train__gradient_checkpointing": True}, TWO_GPUS,
         "train.cuda_graphs: true × train.gradient_checkpointing: true: a graph cannot go back to earlier random "
         "numbers; allowed: one of the two"),
        ({"train__cuda_graphs": True, "train__compile": True, "train__accumulation_steps": 2}, TWO_GPUS,
         "train.cuda_graphs: true × train.compile: true needs train.parallel: single and train.accumulation_steps: 1; "
         "allowed: one of the two, or these values"),
        ({"train__device": "cuda", "train__parallel": "ddp", "train__sync_bn": "torch"}, TWO_GPUS,
         "train.sync_bn: 'torch' × run.processes: 1: there is nothing to synchronize; "
         "allowed: none, or more processes"),
        ({"train__export": "ema"}, CPU_ONLY,
         "train.export: 'ema' needs train.ema_decay > 0, such as 0.999; allowed without: last, best"),
        ({"train__parallel": "elastic", "run__processes": 5, "train__shards": 4}, CPU_ONLY,
         "run.processes: 5 is more than train.shards (4); allowed: 1 to 4, or more shards"),
        ({"train__parallel": "elastic", "train__shards": 3}, CPU_ONLY,
         "train.batch_size: 8 with train.shards: 3: every shard needs the same number of images, "
         "at least two for BatchNorm; allowed: 6 or a larger multiple of 3, such as 9"),
        ({"train__parallel": "elastic"}, CPU_ONLY,
         "train.batch_size: 8 with train.shards: 8: every shard needs the same number of images, "
         "at least two for BatchNorm; allowed: 16 or a larger multiple of 8, such as 16"),
        ({"train__parallel": "elastic", "train__shards": 4, "train__deterministic": False}, CPU_ONLY,
         "train.deterministic: false × train.parallel: 'elastic': elastic is for identical weights, which need "
         "train.deterministic: true; allowed: true, or train.parallel: ddp"),
        ({"run__min_processes": 1}, CPU_ONLY,
         "run.min_processes: 1 needs train.parallel: elastic, run.launcher: torchrun, run.nodes: 2 and "
         "run.max_restarts > 0; allowed without: 0"),
        ({"train__parallel": "elastic", "train__shards": 4, "run__processes": 4, "run__nodes": 2,
          "run__min_processes": 3, "run__max_restarts": 1}, CPU_ONLY,
         "run.min_processes: 3 is not the number of processes per node; allowed: 2, or 0 to stop when a node is lost"),
        ({"run__nodes": 2}, CPU_ONLY,
         "run.processes: 1 does not divide by run.nodes (2); allowed: a multiple of 2"),
        ({"run__node_rank": 1}, CPU_ONLY, "run.node_rank: 1 is not one of 1 nodes; allowed: 0 to 0"),
        ({"split__group": "patient"}, CPU_ONLY,
         "split.group: 'patient': 0 groups in parentheses; allowed: none, folder, or a regular expression with exactly "
         "one group in parentheses, such as patient([0-9]+)"),
        ({"split__group": "(a)(b)"}, CPU_ONLY,
         "split.group: '(a)(b)': 2 groups in parentheses; allowed: none, folder, or a regular expression with exactly "
         "one group in parentheses, such as patient([0-9]+)"),
        ({"split__group": "a("}, CPU_ONLY,
         "split.group: 'a(': no regular expression (missing ), unterminated subpattern at position 1); allowed: none, "
         "folder, or a regular expression with exactly one group in parentheses, such as patient([0-9]+)"),
        ({"split__folds": 10, "split__fold": 10}, CPU_ONLY,
         "split.fold: 10 with split.folds: 10; allowed: 0 to 9"),
        ({"split__fold": 1}, CPU_ONLY, "split.fold: 1 with split.folds: 1; allowed: 0 to 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_these_words(lines: dict[str, Any], machine: Machine, sentence: str) -> None:
    """A refusal names the key, the value, what is allowed, and the remedy."""
    assert sentence in validity.faults(with_lines(**lines), machine)


def test_a_login_node_of_slurm_needs_no_gpu() -> None:
    """Only processes that srun starts need GPUs on their node."""
    lines = {"train__device": "cuda", "run__launcher": "slurm", "train__parallel": "ddp", "run__processes": 4}
    assert validity.faults(with_lines(**lines), CPU_ONLY) == []
    assert validity.faults(with_lines(**lines), Machine(1, "missing", True)) == []


def test_nodes_need_a_place_to_meet() -> None:
    """Two nodes with the default rendezvous, or with spawn, are refused."""
    lines = {"run__nodes": 2, "run__processes": 2, "train__parallel": "ddp"}
    assert validity.faults(with_lines(**lines), CPU_ONLY) == [
        "run.rendezvous: 'localhost:0' × run.nodes: 2: every node needs the address of node 0; "
        "allowed: host:port of node 0, such as node0:29400"
    ]
    assert validity.faults(with_lines(**lines, run__launcher="spawn"), CPU_ONLY) == [
        "run.nodes: 2 × run.launcher: 'spawn', which starts processes on one node; allowed: 1, or torchrun or slurm"
    ]
