"""What a person sees of a running training: a progress bar, one line per epoch, TensorBoard. Nothing is hashed."""

import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from pipeline.engine.loop import Batch, Totals
from pipeline.loader import augment

with warnings.catch_warnings():  # its import touches interfaces that its dependencies deprecate
    warnings.simplefilter("ignore")
    from torch.utils.tensorboard import SummaryWriter

GRID_IMAGES = 16


class _Silent:
    """A TensorBoard writer that writes nothing, for all processes but rank 0."""

    def add_scalar(self, *_: Any) -> None: ...
    def add_image(self, *_: Any) -> None: ...
    def close(self) -> None: ...


class Monitor:
    """Shows steps and epochs. On all processes but rank 0 it shows nothing."""

    def __init__(self, board: Path, first_step: int, steps: int, batch_size: int, shown: bool) -> None:
        """`board`: the folder of the events. They replace events of earlier attempts from `first_step` on."""
        self._writer = SummaryWriter(str(board), purge_step=first_step) if shown else _Silent()
        self._bar = tqdm(initial=first_step, total=steps, unit="step", disable=None if shown else True)
        self._shown, self._batch_size = shown, batch_size
        self._seen, self._step, self._time = [0.0, 0.0, 0.0], first_step, time.perf_counter()

    def images(self, batch: Batch) -> None:
        """Write the first training crops of this attempt to TensorBoard."""
        if self._shown:
            self._writer.add_image("crops", _grid(batch.images[:GRID_IMAGES]), batch.step)

    def step(self, batch: Batch, learning_rate: float, totals: Totals, due: bool) -> None:
        """Advance the bar. When `due`, read the totals from the device, which waits for it, and show them."""
        self._bar.update()
        if not due or not self._shown:
            return
        sums, now = totals.sums.to("cpu").sum(0).tolist(), time.perf_counter()
        loss, right, images = (new - old for new, old in zip(sums, self._seen, strict=True))
        rate = (batch.step + 1 - self._step) * self._batch_size / (now - self._time)
        self._seen, self._step, self._time = sums, batch.step + 1, now
        memory = torch.cuda.max_memory_allocated() if batch.images.is_cuda else 0
        for tag, value in (
            ("loss", loss / images),
            ("train/accuracy", right / images),
            ("learning_rate", learning_rate),
            ("images_per_second", rate),
            ("gpu_memory", memory),
        ):
            self._writer.add_scalar(tag, value, batch.step + 1)
        self._bar.set_postfix_str(f"loss {loss / images:.3f}, {rate:,.0f} images/s")

    def epoch(self, row: dict[str, float], epochs: int) -> None:
        """Show one row of history.csv. The totals start again at zero."""
        step = int(row["step"])
        self._writer.add_scalar("accuracy", row["val_accuracy"], step)
        self._writer.add_scalar("val/loss", row["val_loss"], step)
        if self._shown:
            tqdm.write(
                f"epoch {row['epoch']}/{epochs}: loss {row['train_loss']:.4f}, "
                f"validation loss {row['val_loss']:.4f}, validation accuracy {row['val_accuracy']:.4f}",
                file=sys.stderr,
            )
        self._seen, self._time = [0.0, 0.0, 0.0], time.perf_counter()

    def close(self) -> None:
        """Flush the events and close the bar."""
        self._writer.close()
        self._bar.close()


@contextmanager
def opened(board: Path, first_step: int, steps: int, batch_size: int, shown: bool) -> Iterator[Monitor]:
    """A Monitor that is closed when the block ends."""
    monitor = Monitor(board, first_step, steps, batch_size, shown)
    try:
        yield monitor
    finally:
        monitor.close()


def _grid(images: Tensor) -> Tensor:
    """Normalized images [n, 3, h, w] as one uint8 image [3, H, W], four per row."""
    from torchvision.utils import make_grid

    mean, std = (torch.tensor(values, device=images.device)[:, None, None] for values in (augment.MEAN, augment.STD))
    grid: Tensor = make_grid((images.float() * std + mean).clamp(0, 1), nrow=4).mul(255).byte().to("cpu")
    return grid
