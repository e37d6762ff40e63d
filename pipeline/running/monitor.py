"""The display of a running training: a progress bar, one line per epoch, TensorBoard. No output of it is hashed."""

import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, cast

import torch
from torchvision.utils import make_grid
from tqdm import tqdm

from pipeline.config import params
from pipeline.learning.loop import Totals
from pipeline.learning.readout import Reading
from pipeline.learning.state import Progress
from pipeline.loader.batches import Batch
from pipeline.running.job import Job

with warnings.catch_warnings():  # its import touches interfaces that its dependencies deprecate
    warnings.simplefilter("ignore")
    from torch.utils.tensorboard import SummaryWriter

GRID_IMAGES, GRID_COLUMNS = 16, 4


class _Nothing:
    """The display of all processes but rank 0: each of its functions does nothing."""

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: None


class Monitor:
    """Shows steps and epochs, on rank 0."""

    def __init__(self, job: Job, progress: Progress, steps: int, totals: Totals) -> None:
        """The events go to the run's board. They replace events that earlier attempts wrote after this progress.

        `totals`: of the epoch that goes on.
        """
        first_step = progress.step
        # The values of the last step before were written with its own number; without a step nothing stays.
        purge = first_step + 1 if first_step else 0
        self._writer: Any = SummaryWriter(str(job.run.folder), purge_step=purge)
        title = _title(job, len(progress.history) + 1)
        self._bar = tqdm(initial=first_step, total=steps, unit="step", desc=title, disable=None)
        self._job = job
        self._previous_sums = totals.sums.sum(0).tolist()
        self._first_step = self._step = first_step
        self._time = time.perf_counter()
        text = params.FILE.read_text(encoding="utf-8") if params.FILE.is_file() else ""
        self._writer.add_text("params", f"```yaml\n{text}\n```", first_step)

    def images(self, batch: Batch) -> None:
        """Write the first training crops of this attempt to TensorBoard."""
        if batch.step == self._first_step:
            images = batch.images[:GRID_IMAGES].float()
            normal = self._job.dataset.normalization
            mean, std = (images.new_tensor(values)[:, None, None] for values in (normal.mean, normal.std))
            grid = make_grid((images * std + mean).clamp(0, 1), nrow=GRID_COLUMNS)
            self._writer.add_image("crops", grid, batch.step + 1)

    def step(self) -> None:
        """Advance the bar."""
        self._bar.update()

    def reading(self, reading: Reading, learning_rate: float) -> None:
        """Write values of the training, at the step that they belong to. The learning rate is that step's."""
        sums, now = [reading.loss, reading.correct, reading.images], time.perf_counter()
        loss, correct, images = (new - old for new, old in zip(sums, self._previous_sums, strict=True))
        rate = (reading.step - self._step) * self._job.config.train.batch_size / (now - self._time)
        self._previous_sums, self._step, self._time = sums, reading.step, now
        for tag, value in (
            ("loss/train", loss / images),
            ("accuracy/train", correct / images),
            ("learning_rate", learning_rate),
            ("images_per_second", rate),
            ("gpu_memory", torch.cuda.max_memory_allocated() if self._job.world.device.type == "cuda" else 0),
        ):
            self._writer.add_scalar(tag, value, reading.step)
        self._bar.set_postfix_str(f"loss {loss / images:.3f}, {rate:,.0f} images/s")

    def epoch(self, row: Mapping[str, float]) -> None:
        """Show one row of history.csv. Totals start at zero again."""
        step = int(row["step"])
        self._writer.add_scalar("accuracy/val", row["val_accuracy"], step)
        self._writer.add_scalar("loss/val", row["val_loss"], step)
        tqdm.write(
            f"epoch {row['epoch']}/{self._job.config.train.epochs}: loss {row['train_loss']:.4f}, "
            f"validation loss {row['val_loss']:.4f}, validation accuracy {row['val_accuracy']:.4f}",
            file=sys.stderr,
        )
        self._bar.set_description(_title(self._job, int(row["epoch"]) + 1), refresh=False)
        self._previous_sums, self._time = [0.0, 0.0, 0.0], time.perf_counter()

    def finish(self, row: Mapping[str, float]) -> None:
        """Write the figures of the exported epoch."""
        for name in ("val_accuracy", "val_loss"):
            self._writer.add_scalar(f"exported/{name}", row[name], int(row["step"]))

    def flush(self) -> None:
        """Write the events to the disk."""
        self._writer.flush()

    def close(self) -> None:
        """Flush the events and close the bar."""
        self._writer.close()
        self._bar.close()


def _title(job: Job, epoch: int) -> str:
    """The title of the bar: the epoch that runs; after the last epoch, the last."""
    epochs = job.config.train.epochs
    return f"train: epoch {min(epoch, epochs)}/{epochs}"


@contextmanager
def open_monitor(job: Job, progress: Progress, steps: int, totals: Totals) -> Iterator[Monitor]:
    """A Monitor that is closed when the block ends; on all processes but rank 0 one that shows nothing."""
    if not job.world.is_main:
        yield cast(Monitor, _Nothing())
        return
    with closing(Monitor(job, progress, steps, totals)) as monitor:
        yield monitor
