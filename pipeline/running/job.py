"""The inputs of one process of a training, and their checks."""

from dataclasses import dataclass, field
from typing import Any

from pipeline.base.errors import Fault, UserError
from pipeline.config.params import Params
from pipeline.dataset.packed import Packed
from pipeline.learning import environment
from pipeline.learning.task import Task
from pipeline.learning.world import World
from pipeline.running import pixels, provenance, runs
from pipeline.running.agreement import Facts
from pipeline.running.claim import NO_CLAIM, Claim
from pipeline.running.kernel_names import Kernels
from pipeline.running.runs import Run
from pipeline.versioning import identity


@dataclass(frozen=True)
class Job(Task):
    """A task with what runs it, and decides no byte. Nothing in it changes but `kernels`, which resume.py fills."""

    run: Run
    claim: Claim = NO_CLAIM
    kernels: Kernels = field(default_factory=dict)  # of the first steps of all starts; empty on a CPU


def check_inputs(config: Params, world: World, facts: Facts) -> tuple[Packed, Run]:
    """The packed images, and the run. Adds to `facts` what must be equal in all processes.

    Raises UserError if this process cannot start.
    """
    data = pixels.open_for(config, world.local_rank == 0)  # the other processes of a node end with this one
    rows = len(data.rows("train"))
    if config.train.has_steps and config.train.batch_size > rows:
        reason = f"more than the training images ({rows})"
        raise UserError(Fault("train.batch_size", str(config.train.batch_size), "pair", reason, f"1 to {rows}"))
    parts = identity.training_parts(config, data.digest)
    facts |= common_facts(config, parts, world)
    return data, runs.find_run(config, identity.digest(parts))


def common_facts(config: Params, parts: dict[str, Any], world: World) -> Facts:
    """The facts that must be equal in all processes of a training, by the remedy if they differ.

    These are `parts`, which identity.training_parts returns, and the facts whose differences hang a run.
    """
    may_differ = {"node_rank", "rendezvous", "workers", "residency", "stream_cache_gb"}
    versions, variables = provenance.versions(), environment.numeric_variables(environment.initial_variables())
    hardware = provenance.hardware(world, config.train.threads, config.train.arithmetic)
    kind = "train.parallel: 'elastic' needs processes of one kind; take such, or train.parallel: ddp"
    return {
        "give every node the same params.yaml, then run again": {
            **parts["settings"],
            **{f"run.{name}": value for name, value in config.run.model_dump(exclude=may_differ).items()},
        },
        "give every node the same data (perennial repro prepare, or a copy), then run again": parts["data"],
        "check out the same commit on every node, then run again": parts["code"],
        "install the same packages on every node (requirements/lock.txt, or the image), then run again": versions,
        "set it alike on every node, or unset it, then run again": variables,
        # Otherwise the bits of an elastic run would depend on which process computes which shard.
        kind: hardware if config.train.parallel == "elastic" else {},
    }
