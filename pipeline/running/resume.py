"""Saves a running training, and resumes it exactly. The sampler has no state to save (see loader/sampler.py)."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from pipeline.base import errors, schema
from pipeline.base.errors import Fault, UserError
from pipeline.learning import chain, collectives
from pipeline.learning.loop import Learner, Totals
from pipeline.learning.state import Progress, export_weights
from pipeline.loader import sampler
from pipeline.models import exported
from pipeline.running import agreement, checkpoint, checkpoint_copy, claim, provenance
from pipeline.running.failures import check_losses_finite
from pipeline.running.job import Job


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


def save_checkpoint(job: Job, learner: Learner, totals: Totals, progress: Progress) -> None:
    """Save the working checkpoint. All processes call this, because their totals are added; rank 0 writes the file.

    Raises UserError if a loss was not finite: nobody could go on from there.
    """
    _save(job, learner, totals, progress, job.run.checkpoint, keep_previous=True)


def keep_state(job: Job, learner: Learner, totals: Totals, progress: Progress) -> None:
    """Save the state at the end of an epoch to a file that stays (run.keep_states), as `save_checkpoint` does."""
    _save(job, learner, totals, progress, claim.state_file(len(progress.history)), keep_previous=False)


def keep_weights(job: Job, learner: Learner, epoch: int) -> None:
    """Save the weights, as they would be exported after this epoch, in the run's folder (run.save_every_epochs)."""
    every = job.config.run.save_every_epochs
    if job.world.is_main and every and epoch % every == 0:
        weights = export_weights(learner, job.config.train)
        exported.save_weights(job.run.folder / f"epoch-{epoch:04}.safetensors", weights)


def _save(job: Job, learner: Learner, totals: Totals, progress: Progress, path: Path, keep_previous: bool) -> None:
    check_losses_finite(int(collectives.all_reduce_max(totals.broken_step.clone())), job.config.train)
    sums = collectives.all_reduce_sum(totals.sums.clone())
    if job.world.is_main:
        hardware = provenance.hardware(job.world, job.config.train.threads, job.config.train.arithmetic)
        facts = {"progress": asdict(progress), "hardware": hardware, "fingerprint": job.run.fingerprint}
        checkpoint.save(path, {**learner.state_dict(), "totals": sums, **facts}, keep_previous)


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
    remedy = checkpoint_copy.start_again(job.config.run, path.parent, job.run.fingerprint)
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
        again = checkpoint_copy.start_again(job.config.run, path.parent, ours)
        value, reason = f"of the run {fingerprint[:16]}", f"this run is {ours[:16]}"
        raise UserError(Fault(str(path), value, "differs", reason, remedy=again))


def check_hardware(job: Job, hardware: dict[str, Any]) -> None:
    """Raise UserError if the checkpoint's hardware or numeric variables differ from those of this process."""
    current = provenance.hardware(job.world, job.config.train.threads, job.config.train.arithmetic)
    place = job.claim.start or str(job.run.folder)
    again = checkpoint_copy.start_again(job.config.run, job.run.folder, job.run.fingerprint)
    remedy = f"go on where it was begun; {again}"
    if job.claim.start:
        remedy = "repeat it there; with train.arithmetic: portable every x86-64 CPU can"
    faults = [
        Fault(place, f"begun with {name} {before}", "differs", f"here it is {now}", remedy=remedy)
        for name, before, now in agreement.differences(hardware, current)
    ]
    if faults:  # the bytes could not be the same
        raise UserError(*faults)
