"""Saves a running training, and resumes it exactly. The sampler has no state to save (see loader/sampler.py)."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from pipeline.base import errors, schema
from pipeline.base.errors import Fault, UserError, raise_if_any, without_secrets
from pipeline.learning import chain, collectives
from pipeline.learning.loop import Learner, Totals
from pipeline.learning.state import Progress, export_weights
from pipeline.loader import sampler
from pipeline.loader.batches import Batch
from pipeline.models import exported
from pipeline.running import agreement, checkpoint, checkpoint_copy, kernel_names, provenance
from pipeline.running.failures import check_losses_finite
from pipeline.running.job import Job
from pipeline.running.kernel_names import Kernels

LONGEST_NAME = 150  # characters of a kernel in a refusal: the arguments of a template can take hundreds
NO_KERNELS = "the profiler names no kernel of the first step: a resume cannot compare the choice of the libraries"


@dataclass(frozen=True)
class Content:
    """The content of a working checkpoint."""

    __pydantic_config__ = schema.TENSORS

    model: Any  # Learner.load_state_dict checks these three
    precision: Any
    optimizer: Any
    ema: list[Tensor]
    totals: Tensor  # Totals.sums of all processes
    progress: Progress
    hardware: dict[str, Any]
    fingerprint: str  # of its run
    kernels: Kernels = field(default_factory=dict)  # missing without any: on a CPU


def save_state(job: Job, learner: Learner, totals: Totals, progress: Progress, path: Path) -> None:
    """Save the state to `path`: the working checkpoint, or a file that stays (run.keep_states).

    All processes call this, because their totals are added; rank 0 writes the file. Raises UserError if a loss was not
    finite: nobody could go on from there.
    """
    check_losses_finite(int(collectives.all_reduce_max(totals.broken_step.clone())), job.config.train)
    sums = collectives.all_reduce_sum(totals.sums.clone())
    if job.world.is_main:
        hardware = provenance.hardware(job.world, job.config.train.threads, job.config.train.arithmetic)
        facts = {"progress": asdict(progress), "hardware": hardware, "fingerprint": job.run.fingerprint}
        facts |= {"kernels": job.kernels} if job.kernels else {}
        state = {**learner.state_dict(), "totals": sums, **facts}
        checkpoint.save(path, state, keep_previous=path == job.run.checkpoint)


def keep_weights(job: Job, learner: Learner, epoch: int) -> None:
    """Save the weights, as they would be exported after this epoch, in the run's folder (run.save_every_epochs)."""
    every = job.config.run.save_every_epochs
    if job.world.is_main and every and epoch % every == 0:
        weights = export_weights(learner, job.config.train)
        exported.save_weights(job.run.folder / f"epoch-{epoch:04}.safetensors", weights)


def newest_checkpoint(path: Path, remedy: str) -> dict[str, Any] | None:
    """The newest undamaged checkpoint, or None if there is no checkpoint. A damaged one is reported on stderr.

    Raises UserError with the remedy if all checkpoints are damaged.
    """
    damaged = []
    for candidate in (path, checkpoint.previous(path)):
        try:
            return checkpoint.load(candidate)
        except FileNotFoundError:
            continue
        except checkpoint.DamagedError:
            damaged.append(str(candidate))
            print(f"train: {candidate} is damaged; the one before it is used", file=sys.stderr)
    if damaged:
        raise errors.damaged(", ".join(damaged), "there is no other", remedy)
    return None


def resume(job: Job, learner: Learner, totals: Totals) -> Progress:
    """Load the working checkpoint, if there is one, into the learner and the totals. Returns the progress.

    Raises UserError if the checkpoint is damaged, of another run, or from hardware that computes other bits; and if a
    claim begins with another file, and the claim has another state there.
    """
    path = Path(job.claim.start or job.run.checkpoint)
    remedy = _start_again(job)
    # Rank 0 reads for all: with several nodes only the first one has the checkpoint.
    state = collectives.broadcast_object(newest_checkpoint(path, remedy) if job.world.is_main else None)
    if state is None:
        return Progress()
    steps = sampler.steps(job.config.train.epochs, job.rows, job.config.train.batch_size)
    try:
        content = schema.validate(state, Content)
        check_run(job, path, content.fingerprint)
        if not 0 <= content.progress.step <= steps:
            raise ValueError(f"it is of step {content.progress.step}, and this run has the steps 0 to {steps}")
        check_hardware(job, content.hardware)
        job.kernels.update(content.kernels)
        learner.load_state_dict(state)
        share = job.world.share(len(totals.sums))
        totals.sums[share.start : share.stop] = content.totals[share.start : share.stop]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError) as error:
        if errors.describe_system_error(error):
            raise
        raise errors.damaged(path, f"not what this run saves ({errors.one_line(error)})", remedy) from None
    if job.world.is_main:
        print(f"train: going on from step {content.progress.step} ({path.parent})", file=sys.stderr)
        if job.claim.start:
            digest = chain.sha256(chain.whole_state(learner, content.progress))
            job.claim.check_start(len(content.progress.history), digest)
    return content.progress


def check_run(job: Job, path: Path, fingerprint: str) -> None:
    """Raise UserError if the checkpoint at `path` is of another run: one with other params, data or code.

    The name of its folder does not show it: somebody may have copied the file. A claim compares the state itself.
    """
    ours = job.run.fingerprint
    if fingerprint != ours and not job.claim.start:
        value, reason = f"of the run {fingerprint[:16]}", f"this run is {ours[:16]}"
        raise UserError(Fault(str(path), value, "differs", reason, remedy=_start_again(job)))


def check_hardware(job: Job, hardware: dict[str, Any]) -> None:
    """Raise UserError if the checkpoint's hardware or numeric variables differ from those of this process."""
    current = provenance.hardware(job.world, job.config.train.threads, job.config.train.arithmetic)
    remedy = f"go on where it was begun; {_start_again(job)}"
    if job.claim.start:
        remedy = "repeat it there; with train.arithmetic: portable every x86-64 CPU can"
    _raise_if_other(job, "", hardware, current, remedy)


def compare_kernels(job: Job, steps: Iterator[Batch]) -> Iterator[Batch]:
    """The steps of a training. On a GPU with train.deterministic, `check_kernels` gets the kernels of the first one.

    Without train.cuda_graphs: CUPTI has counted the kernels of graphs wrongly [PyTorch, kineto 1165], and a resume must
    not be refused for that.
    """
    settings = job.config.train
    is_compared = job.world.device.type == "cuda" and settings.deterministic and not settings.cuda_graphs
    return kernel_names.STEPS[is_compared](steps, partial(check_kernels, job))


def check_kernels(job: Job, crops: str, names: list[str]) -> None:
    """Compare the library kernels of this start's first step with those of an earlier start, or else keep them.

    All processes call this. `crops`: the size of the crops; a step with other crops has other kernels, and is not
    compared. `names`: of all kernels of this process. Raises UserError in every process if a kernel differs.
    """
    of_all = [name for names in collectives.all_gather_object(names) for name in names]
    if not (current := kernel_names.relative(of_all)):
        if job.world.is_main:
            print(f"train: {NO_KERNELS}", file=sys.stderr)
        return
    remedy = f"give the training the GPU memory that it had (nvidia-smi lists other programs); {_start_again(job)}"
    _raise_if_other(job, "the kernel ", job.kernels.setdefault(crops, current), current, remedy)


def _raise_if_other(job: Job, what: str, before: Mapping[str, Any], now: Mapping[str, Any], remedy: str) -> None:
    """Raise UserError with each fact that was another one when the run began: the bytes could not be the same.

    `what`: before the name of a fact.
    """
    place = job.claim.start or str(job.run.folder)
    raise_if_any(
        Fault(place, f"begun with {what}{name[:LONGEST_NAME]}: {old}", "differs", f"here: {new}", remedy=remedy)
        for name, old, new in agreement.differences(before, now)
    )


def _start_again(job: Job) -> str:
    """What removes the checkpoints of a run: the remedy if it cannot go on from them."""
    address = job.config.run.checkpoint_copy
    copies = f", and remove {without_secrets(address)}/{job.run.fingerprint}" if address != checkpoint_copy.NONE else ""
    return f"to start again: rm -r {job.run.folder}{copies}"
