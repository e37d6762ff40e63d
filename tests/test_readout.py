"""What the host reads from the device during a training, and when."""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from pipeline.config import params
from pipeline.learning import readout, schedule, state
from pipeline.learning.loop import Totals
from pipeline.learning.readout import Readout
from pipeline.loader.storage import Dataset
from pipeline.running.job import Job
from pipeline.running.monitor import Monitor
from pipeline.running.resume import save_state
from pipeline.running.runs import Run
from pipeline.stages import train
from tests.conftest import on_cpu, read_params
from tests.helpers.refusals import refuses
from tests.helpers.trainings import ALONE, begun, small_world, train_steps

# How often the host waits at the end of an epoch: for its sums, and for the logits of the validation. With
# `export: best` also for the weights of a best epoch: once for float32, once for int64. docs/performance.md says so.
WAITS_OF_EPOCH, WAITS_OF_BEST = 2, 4
READS = {"item", "tolist", "cpu", "__bool__", "__int__", "__float__", "__index__"}


class Reads(TorchFunctionMode):
    """Counts reads inside the block by the name of the method.

    A copy to the CPU is one that names "cpu": torch itself names devices by objects, where a tensor stays on its own.
    A copy with `non_blocking` is no read, and neither is what is done with the result of any copy. The wait for its
    event is one (`synchronize`), unless a later event has been recorded: then the device has finished this one long
    before. `numpy` does not count: on a GPU it would raise.
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_name: Counter[str] = Counter()
        self._events = 0
        self._on_host: dict[int, Tensor] = {}  # kept, so that no other tensor gets the same id

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result, name = func(*args, **kwargs), getattr(func, "__name__", "")
        inputs, to_host = tensors_of(args), name == "cpu" or (name == "to" and "cpu" in targets(args, kwargs))
        if to_host and any(result is tensor for tensor in inputs):
            result = result.clone()  # as from a device: the values are then another tensor
        from_host = any(id(tensor) in self._on_host for tensor in inputs)
        if not from_host and (name in READS or to_host) and not kwargs.get("non_blocking"):
            self.by_name[name] += 1
        if to_host or from_host:
            results = [tensor for tensor in tensors_of(result) if all(tensor is not one for one in inputs)]
            self._on_host |= {id(tensor): tensor for tensor in results}
        return result

    def event(self, device: torch.device) -> Callable[[], None]:
        """Takes the place of `readout._event`: returns the wait for an event that is recorded now."""
        self._events += 1
        number = self._events

        def synchronize() -> None:
            if number == self._events:
                self.by_name["synchronize"] += 1

        return synchronize

    def taken(self) -> int:
        """The number of reads since the last call."""
        count = self.by_name.total()
        self.by_name.clear()
        return count


def targets(args: Any, kwargs: dict[str, Any]) -> list[str]:
    """The arguments of `Tensor.to` that are text."""
    return [value for value in (*args, kwargs.get("device")) if isinstance(value, str)]


def tensors_of(values: Any) -> list[Tensor]:
    """The tensors in nested lists and tuples."""
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def test_delayed_values_are_those_of_their_step() -> None:
    """They come with the next step that is due, and the end of an epoch brings all. Later sums do not change them."""
    values, totals, read = Readout(ALONE, is_delayed=True), Totals.zero(ALONE.device, 2), []
    for step, at_once in ((2, False), (4, False), (5, True), (7, False)):
        totals.sums.add_(torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]]))
        if step == 5:
            totals.broken_step.fill_(4)
        readings = values.read(step, totals, is_late=step == 4, stop=step == 5, at_once=at_once)
        read.append([(r.step, r.loss, r.correct, r.images, r.broken_step, r.is_late, r.stop) for r in readings])
    assert read == [
        [],
        [(2, 11, 22, 33, -1, False, 0)],
        [(4, 22, 44, 66, -1, True, 0), (5, 33, 66, 99, 4, False, 1)],
        [],
    ]


def shown(job: Job) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows: step and value of each series."""
    events = EventAccumulator(str(job.run.folder)).Reload()
    tags = set(events.Tags()["scalars"]) - {"images_per_second"}
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in tags}


def train_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_delayed: bool, **changes: Any
) -> tuple[list[int], list[Any]]:
    """Train in this process. Returns the reads until the end of each step, those after the last, and the losses."""
    never: dict[str, Any] = {"run__checkpoint_seconds": 3600, "run__epoch_checkpoint_seconds": 3600}
    small_world(folder, train__batch_size=4, run__log_steps=2, **never, **changes)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(train, "Readout", partial(Readout, is_delayed=is_delayed))
    (job, model), reads = begun(), Reads()
    monkeypatch.setattr(readout, "_event", reads.event)
    of_steps: list[int] = []

    def end_step(_: Monitor) -> None:
        if not of_steps:
            stack.enter_context(reads)  # not earlier: then the weights go to the device
        of_steps.append(reads.taken())

    monkeypatch.setattr(Monitor, "step", end_step)
    with ExitStack() as stack:
        train.train(job, model)
    return [*of_steps, reads.taken()], shown(job)["loss/train"]


BEST = pytest.param({"train__export": "best"}, WAITS_OF_BEST, marks=pytest.mark.nightly("the same with another line"))


@pytest.mark.parametrize(("changes", "waits"), [({"train__clip_norm": 1.0}, WAITS_OF_EPOCH), BEST])
def test_a_step_within_an_epoch_waits_for_nothing(
    changes: dict[str, Any], waits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU a read is a wait. An epoch's end has as many as the documents say."""
    _, at_once = train_here(tmp_path / "at once", monkeypatch, is_delayed=False, **changes)
    reads, delayed = train_here(tmp_path / "delayed", monkeypatch, is_delayed=True, **changes)
    assert delayed == at_once
    of_epoch = len(reads) // 2
    assert reads[1:of_epoch] + reads[of_epoch + 1 : -1] == [0] * (len(reads) - 3)
    assert reads[of_epoch] == waits


def test_attempts_show_what_one_attempt_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard has each value once, also if each attempt is killed some steps after its last checkpoint."""
    monkeypatch.setattr(schedule, "checkpoint_age", lambda *_: 0.0)
    monkeypatch.setattr(train, "Readout", partial(Readout, is_delayed=True))
    # Files of one second are read in the order of their names as text.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(100))

    def series(folder: Path, *attempts: int) -> dict[str, list[tuple[int, float]]]:
        """The series of a training whose attempts have so many steps."""
        small_world(folder, train__batch_size=4, run__log_steps=2)
        monkeypatch.chdir(folder)
        for count in attempts:
            job, model = begun()
            train_steps(job, model, count)
        return shown(job)

    once = series(tmp_path / "once", 18)
    assert [step for step, _ in once["loss/val"]] == [9, 18]
    assert series(tmp_path / "often", 1, 5, 6, 1, 3, 18) == once


def test_a_state_after_a_broken_loss_is_not_saved(tmp_path: Path) -> None:
    """Nobody could go on from it. Delayed values do not show it yet when a checkpoint is due."""
    config = params.parse(on_cpu(read_params()))
    job = Job(config, cast(Dataset, None), ALONE, Run(tmp_path, ""))
    model = state.make_model(config, ("a", "b"), ALONE)
    learner, totals = state.make_learner(config, model, {"a": 1, "b": 1}, ALONE), Totals.zero(ALONE.device, 1)
    totals.broken_step.fill_(3)
    with refuses(("train.lr", "value")):
        save_state(job, learner, totals, state.Progress(step=4), job.run.checkpoint)
    assert list(tmp_path.iterdir()) == []
