"""A resume on a GPU is refused if a library has chosen another kernel. Here a stand-in for the profiler names them."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.autograd import DeviceType

from pipeline.base import files
from pipeline.base.errors import Kind
from pipeline.config import params
from pipeline.learning import collectives, schedule
from pipeline.running import checkpoint, kernel_names, provenance, resume
from pipeline.running.job import Job
from tests.conftest import PROJECT, change, read_params
from tests.helpers.refusals import refuses
from tests.helpers.trainings import ALONE, begun, small_world, train_steps

FORWARD, BACKWARD, OTHER = "sm90_xmma_fprop_bf16", "cutlass_wgrad_64x64", "cudnn::implicit_convolve_sgemm"
OWN = ("void at::native::vectorized_elementwise_kernel", "Memcpy HtoD", "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
STEP = (FORWARD, FORWARD, BACKWARD, *OWN)


def test_counts_are_relative_and_of_libraries_alone() -> None:
    """Several microbatches, and passes before a recording, change nothing; another choice for one convolution does."""
    expected = {BACKWARD: 1, FORWARD: 2}
    assert kernel_names.relative(STEP) == kernel_names.relative(STEP * 5) == expected
    assert kernel_names.relative((FORWARD, OTHER, BACKWARD)) == {FORWARD: 1, OTHER: 1, BACKWARD: 1}
    assert kernel_names.relative(OWN) == {}
    hashes = kernel_names.digests({"64 × 64": expected, "96 × 96": expected, "128 × 128": {FORWARD: 2}})
    assert hashes["64 × 64"] == hashes["96 × 96"] != hashes["128 × 128"]
    steps: Any = iter(())  # on a CPU nothing is between the training and its steps
    assert kernel_names.STEPS[False](steps, lambda *_: None) is steps


Start = Callable[..., Job]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """A function that starts the training of a small world, in which these kernels run in the first step.

    `count`: it is killed after so many steps, each of which is saved. Returns the job.
    """
    small_world(tmp_path, train__batch_size=4, run__log_steps=1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(schedule, "checkpoint_age", lambda *_: 0.0)
    monkeypatch.setitem(kernel_names.STEPS, False, kernel_names.watched)
    events: list[SimpleNamespace] = []

    class Profile:
        """Names its events, as torch's profiler does, only after its block."""

        def __init__(self, **_: object) -> None:
            self.is_over = False

        def __enter__(self) -> "Profile":
            return self

        def __exit__(self, *_: object) -> None:
            self.is_over = True

        def events(self) -> list[SimpleNamespace]:
            assert self.is_over
            return events

    monkeypatch.setattr(kernel_names, "profile", Profile)

    def run(*names: str, count: int = 1000) -> Job:
        events[:] = [SimpleNamespace(name=name, device_type=DeviceType.CUDA) for name in names]
        events.append(SimpleNamespace(name="aten::convolution", device_type=DeviceType.CPU))
        job, model = begun()
        train_steps(job, model, count)
        return job

    return run


def test_another_choice_is_refused_before_a_step_of_it_is_saved(start: Start) -> None:
    """The refusal names each kernel that differs. With the old choice the training goes on to its end."""
    job = start(*STEP, count=3)
    saved = job.run.checkpoint.read_bytes()
    with refuses((job.run.folder, "differs"), (job.run.folder, "differs")) as refused:
        start(FORWARD, OTHER, BACKWARD, *OWN)
    assert all(any(name in fault.value for fault in refused.value.faults) for name in (FORWARD, OTHER))
    assert job.run.checkpoint.read_bytes() == saved
    goes_on = start(*STEP * 3)
    assert goes_on.kernels == job.kernels
    assert checkpoint.load(job.run.checkpoint)["progress"]["step"] == 18


def test_processes_are_compared_together_and_crops_alone(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process with another choice is enough. A step with other crops has its own kernels, which are kept, too."""
    job = start(*STEP, count=1)
    (crops,) = job.kernels
    resume.check_kernels(job, "8 × 8", [OTHER])
    assert job.kernels == {crops: {BACKWARD: 1, FORWARD: 2}, "8 × 8": {OTHER: 1}}
    others = [*STEP]
    monkeypatch.setattr(collectives, "all_gather_object", lambda own: [own, others])
    resume.check_kernels(job, crops, [*STEP])
    others[0] = OTHER
    differs: list[tuple[object, Kind]] = [(job.run.folder, "differs")] * 3
    with refuses(*differs):
        resume.check_kernels(job, crops, [*STEP])


def test_provenance_has_a_hash_for_each_size_of_crops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without kernels, as on a CPU, it has no such key. It also says when the bytes are not promised. A clock that
    jumps makes no negative time."""
    monkeypatch.chdir(tmp_path)
    began = time.monotonic()
    monkeypatch.setattr("time.time", lambda: -1e9)
    (tmp_path / "requirements").symlink_to(PROJECT / "requirements")
    files.write_text(tmp_path / "models/model.safetensors", "")
    hashes = kernel_names.digests({"64 × 64": {FORWARD: 1}})
    for kernels, deterministic in (({}, True), (hashes, False)):
        config = params.parse(change(read_params(), train__deterministic=deterministic))
        provenance.write(tmp_path, config, ALONE, began, 1, kernels)
        record = json.loads((tmp_path / provenance.FILE).read_text())
        assert (0 <= record["seconds"] < 1000, record["images_per_second"] >= 0) == (True, True)
        assert record["bytes_promised"] is deterministic
        assert ("kernels" in record, record.get("kernels", {})) == (bool(kernels), kernels)


def test_what_cannot_be_compared_is_said(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    """A profiler that names no kernel ends no training, and forgets none of an earlier start."""
    job = start(*STEP, count=3)
    capsys.readouterr()
    assert start(*OWN, count=3).kernels == job.kernels
    assert "profiler" in capsys.readouterr().err
