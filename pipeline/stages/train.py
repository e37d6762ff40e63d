"""Stage `train`: train a model on the packed images. One of the processes that `running.launch` starts.

    perennial train       starts run.processes of it, as params.yaml says

Writes models/{model.safetensors,model.json,config.json}, metrics/train.json and metrics/history.csv: the same bytes for
the same inputs. A folder in runs/ (running/runs.py) holds the checkpoint from which an interrupted run resumes.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack

from torch import Tensor, nn

from pipeline.config.params import Params
from pipeline.learning import calibration, collectives, determinism, loop, results, schedule, solved
from pipeline.learning.chain import Digest
from pipeline.learning.choices import PARALLELS
from pipeline.learning.loop import Totals
from pipeline.learning.readout import Reading, Readout
from pipeline.learning.state import Progress, export_weights, make_learner, make_model, microbatch_count
from pipeline.learning.task import open_dataset
from pipeline.learning.validation import end_epoch
from pipeline.loader.batches import Batch, train_batches
from pipeline.models import own
from pipeline.running import agreement, claim, group, kernel_names, monitor, rendezvous, stopping
from pipeline.running.failures import check_exported, check_losses_finite, explain_torch_errors
from pipeline.running.job import Job, check_inputs
from pipeline.running.notes import early_stop_note, notes, training_facts
from pipeline.running.rendezvous import check_size
from pipeline.running.resume import compare_kernels, keep_weights, resume, save_state

Weights = dict[str, Tensor]


def train(job: Job, model: nn.Module) -> tuple[Weights, Progress, int]:
    """Train from the newest checkpoint, or from the beginning.

    Returns the weights to export, the progress at the end, and the number of steps taken by this process.
    Raises UserError if a loss is not finite or the checkpoint does not fit; Stopped if all processes were asked to
    stop, and have saved.
    """
    settings, run, world, rows = job.config.train, job.config.run, job.world, job.rows
    BEGINNINGS[settings.head](job, model)
    learner = make_learner(job.config, model, job.dataset.packed.counts("train"), world)
    microbatches = microbatch_count(settings, world)
    totals = Totals.zero(world.device, microbatches)
    progress = resume(job, learner, totals)
    first_step, save_step, save_time = progress.step, progress.step, time.monotonic()
    readout, digest = Readout(world), Digest(settings.hash_every_epochs if world.is_main else 0, job.claim.check)
    parallel_model = PARALLELS[settings.parallel](learner.model, world, settings.deterministic, microbatches)
    batches = loop.Lookahead(train_batches(job.dataset, settings, parallel_model.share, first_step))
    learning_rates = schedule.learning_rates(settings, rows)

    def ended_early() -> bool:
        return schedule.should_stop(progress.history, settings.patience) or job.claim.is_over(len(progress.history))

    def take(readings: list[Reading], is_shown: bool) -> None:
        for reading in readings:
            check_losses_finite(reading.broken_step, settings)
            if is_shown:
                display.reading(reading, learning_rates[reading.step - 1])

    def save() -> None:
        digest.join()
        take(readout.rest(), is_shown=True)  # an attempt that goes on from here does not write these values again
        display.flush()
        save_state(job, learner, totals, progress, job.run.checkpoint)

    collectives.barrier()  # rank 0 may replace the checkpoint only after every process has read it
    with (
        monitor.open_monitor(job, progress, len(learning_rates), totals) as display,
        stopping.requests(world) as request,
    ):
        steps = loop.train(learner, parallel_model, until(ended_early, batches), learning_rates, totals, batches.begin)
        for batch in compare_kernels(job, steps):
            progress.step = batch.step + 1
            epoch = schedule.finished_epoch(progress.step, rows, settings.batch_size)
            is_shown = epoch > 0 or progress.step % run.log_steps == 0
            display.images(batch)
            display.step()
            is_late = is_shown and time.monotonic() - save_time >= schedule.checkpoint_age(run, epoch > 0)
            # On a CPU nothing waits for a device, so a request to stop is read at each step.
            readings = (
                readout.read(progress.step, totals, is_late, request(), epoch > 0)
                if is_shown or not readout.is_delayed
                else []
            )
            take(readings, is_shown)
            if epoch > 0:
                end_epoch(job, learner, totals, progress, learning_rates[batch.step], readings[-1])
                keep_weights(job, learner, len(progress.history))
                digest.begin(learner, progress, world.device)
                display.epoch(progress.history[-1])
            is_over = progress.step == len(learning_rates) or (epoch > 0 and ended_early())
            if epoch > 0 and run.keep_states and (is_over or epoch % run.keep_states == 0):
                digest.join()
                save_state(job, learner, totals, progress, claim.state_file(epoch))
            stop = max((reading.stop for reading in readings), default=0)
            if is_over or stop or any(reading.is_late and reading.step > save_step for reading in readings):
                save()
                save_time, save_step = time.monotonic(), progress.step
            if stop and not is_over:
                raise stopping.stopped(stop, progress.step, len(learning_rates))
        display.finish(results.exported_row(job.config, progress))
    final = progress.best_weights if settings.export == "best" else export_weights(learner, settings)
    return TEMPERATURES[settings.temperature](job, final), progress, progress.step - first_step


# train.temperature → the weights of a trained model as they are exported
TEMPERATURES: dict[str, Callable[[Job, Weights], Weights]] = {
    "none": lambda job, weights: weights,
    "fitted": calibration.fold_in,
}


def until(is_over: Callable[[], bool], batches: Iterable[Batch]) -> Iterator[Batch]:
    """The batches, until `is_over` is true. It is asked before each batch is made."""
    iterator = iter(batches)
    while not is_over() and (batch := next(iterator, None)) is not None:
        yield batch


# train.head → what the head of a model is before the first step
BEGINNINGS: dict[str, Callable[[Job, nn.Module], None]] = {"trained": lambda job, model: None, "solved": solved.begin}


def run(config: Params) -> None:
    """Run one process of the training."""
    start, settings, timeout = time.monotonic(), config.train, config.run.timeout_seconds
    determinism.make_deterministic(settings.threads, settings.deterministic)
    world = rendezvous.world_of(os.environ, settings.device)
    check_size(world, config.run)  # before the processes wait for each other
    meeting = rendezvous.connect_store(world, timeout)
    with ExitStack() as stack:
        stack.enter_context(explain_torch_errors(settings))
        with agreement.compare_facts(meeting, world) as facts:
            data, this_run = check_inputs(config, world, facts)
            if world.is_main:
                stack.enter_context(this_run.lock())
        stack.enter_context(group.process_group(world, settings.backend, timeout, meeting))
        if world.is_main:
            this_run.begin()
            for note in notes(settings, data.counts("train")):
                print(f"train: {note}", file=sys.stderr)
        config = own.pinned(config)
        dataset, where = open_dataset(config, data, world)
        job = Job(config, dataset, world, this_run, claim.read(world.is_main))
        model = make_model(config, data.classes, world)
        if world.is_main:
            print(f"train: the packed images are kept in: {where}", file=sys.stderr)
            print(*(f"train: {line}" for line in training_facts(job, model)), sep="\n", file=sys.stderr)
        weights, progress, steps = (train if settings.has_steps else solved.solve)(job, model)
        if world.is_main:
            if note := early_stop_note(settings, progress.history):
                print(f"train: {note}", file=sys.stderr)
            check_exported(results.exported_row(config, progress), settings)
            results.write(config, data.classes, weights, progress)
            kernels = kernel_names.digests(job.kernels)
            this_run.finish(config, world, start, steps * settings.batch_size, kernels)
            print(f"train: {results.summary(config, progress)}", file=sys.stderr)
