"""Interrupted anywhere, by anything, a training goes on from where all its processes stopped, to the same bytes."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from ruamel.yaml import YAML

from pipeline import train
from pipeline.base import files
from pipeline.base.errors import UserError
from pipeline.config import params
from pipeline.engine import stopping
from tests.conftest import on_cpu
from tests.test_train import launch, outputs, small_world

LONG: dict[str, Any] = {"train__epochs": 24, "run__log_steps": 2}  # 108 steps: long enough to be hit in the middle


def start(folder: Path) -> subprocess.Popen[str]:
    """`python -m pipeline.launch train`, in a session of its own, its messages going to a file."""
    with (folder / "said").open("w") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "pipeline.launch", "train"],
            cwd=folder, stderr=said, text=True, start_new_session=True,
        )  # fmt: skip


def said(folder: Path) -> str:
    return (folder / "said").read_text()


def wait_for(condition: Any, what: str) -> None:
    """Wait until something is so; ten minutes without it are a hang."""
    for _ in range(60_000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError(what)


def ranks(launcher: subprocess.Popen[str]) -> list[psutil.Process]:
    """The training processes below a launcher, by rank."""
    children = psutil.Process(launcher.pid).children()
    started = [child for child in children if "resource_tracker" not in " ".join(child.cmdline())]
    return sorted(started, key=lambda child: (child.create_time(), child.pid))


def gone(folder: Path) -> bool:
    """Whether no process works in the folder any more."""
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()) == folder:
                return False
        except (psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError):
            continue
    return True


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run on two processes."""
    folder = small_world(tmp_path_factory.mktemp("whole"), train__parallel="ddp", run__processes=2, **LONG)
    launch(folder)
    return folder


def strike(folder: Path, target: str, number: signal.Signals, epoch: int = 3) -> int:
    """Start a run, wait for an epoch, send a signal; the launcher's exit status, once nothing is left of it."""
    launcher = start(folder)
    wait_for(lambda: f"epoch {epoch}/" in said(folder) or launcher.poll() is not None, "not so far")
    assert launcher.poll() is None, f"it ended before it was struck: {said(folder)}"
    if target == "group":
        os.killpg(launcher.pid, number)
    elif target == "launcher":
        launcher.send_signal(number)
    else:
        ranks(launcher)[int(target[-1])].send_signal(number)
    status = launcher.wait(600)
    wait_for(lambda: gone(folder), "orphans")
    return status


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That run, stopped in the middle; the tests copy it."""
    folder = small_world(tmp_path_factory.mktemp("stopped"), train__parallel="ddp", run__processes=2, **LONG)
    assert strike(folder, "launcher", signal.SIGTERM) == 75
    return folder


STRIKES = {
    "torchrun": [
        *itertools.product(("rank 1", "launcher"), ("TERM", "INT", "USR1", "KILL")),
        ("rank 0", "KILL"), ("group", "KILL"),
    ],
    "spawn": [*itertools.product(("rank 1", "launcher"), ("TERM", "KILL"))],
}  # fmt: skip


@pytest.mark.parametrize(
    "launcher",
    ["spawn", pytest.param("torchrun", marks=pytest.mark.slow("ten strikes; make test has spawn's, and three others"))],
)
def test_an_interrupted_run_goes_on_to_the_same_bytes(whole: Path, tmp_path: Path, launcher: str) -> None:
    """Struck once an epoch by another signal to another process: each time it ends with a non-zero status, leaves no
    process and no output, says what happened, and goes on if asked to; in the end, to the bytes of the run left alone.
    """
    folder = small_world(tmp_path, train__parallel="ddp", run__processes=2, run__launcher=launcher, **LONG)
    for epoch, (target, name) in enumerate(STRIKES[launcher], 1):
        number, what = signal.Signals[f"SIG{name}"], f"SIG{name} to {target}"
        status, words = strike(folder, target, number, epoch), said(folder)
        assert status != 0, what
        assert not (folder / "models").exists(), what
        assert ("going on from step" in words) == (epoch > 1), what
        if number == signal.SIGKILL and target.startswith("rank"):
            assert f"process {target[-1]} of 2 ended with signal SIGKILL" in words, what
        elif number != signal.SIGKILL:
            stopped = r"train: stopped by process \d: SIG\w+; saved at step \d+ of 108; run again to go on"
            assert re.search(stopped, words), what
            assert status == 75, what
        assert "Traceback" not in words, what
    again = launch(folder)
    assert re.search(r"going on from step \d+", again.stderr)
    assert outputs(folder) == outputs(whole)


def test_stops_are_not_restarted_and_deaths_are(whole: Path, tmp_path: Path) -> None:
    """With run.max_restarts a killed process restarts all from the last save; a wish to stop restarts nothing."""
    folder = small_world(tmp_path / "stop", train__parallel="ddp", run__processes=2, run__max_restarts=3, **LONG)
    assert strike(folder, "rank 1", signal.SIGTERM) == 75
    assert "launch: restart" not in said(folder)
    folder = small_world(tmp_path / "death", train__parallel="ddp", run__processes=2, run__max_restarts=3, **LONG)
    assert strike(folder, "rank 1", signal.SIGKILL) == 0
    assert "launch: restart 1 of 3" in said(folder)
    assert outputs(folder) == outputs(whole)


def test_a_second_signal_does_not_hurry_a_stop(tmp_path: Path) -> None:
    """TERM twice, as `docker stop` reaches the launcher: through repro, and through the end of DVC."""
    folder = small_world(tmp_path, train__parallel="ddp", run__processes=2, **LONG)
    launcher = start(folder)
    wait_for(lambda: "epoch 1/" in said(folder) or launcher.poll() is not None, "no first epoch")
    for _ in range(20):  # the moments at which it can do harm are short
        launcher.send_signal(signal.SIGTERM)
        time.sleep(0.01)
    assert launcher.wait(600) == 75, said(folder)
    assert re.search(
        r"train: stopped by process \d: SIGTERM; saved at step \d+ of 108; run again to go on", said(folder)
    )
    assert "Traceback" not in said(folder)


def test_a_stop_during_the_start_is_not_restarted(tmp_path: Path) -> None:
    """Processes that are just starting have nothing to save, and run.max_restarts is no reason to start them again."""
    folder = small_world(tmp_path, train__parallel="ddp", run__processes=2, run__max_restarts=3, **LONG)
    launcher = start(folder)
    wait_for(lambda: len(ranks(launcher)) == 2 or launcher.poll() is not None, "no process was started")
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(600) != 0
    assert "launch: restart" not in said(folder)
    wait_for(lambda: gone(folder), "orphans")


FURTHER_STATE = pytest.mark.slow("further kinds of state and numbers of processes; make test has two of the five")


@pytest.mark.parametrize(
    ("processes", "lines"),
    [
        (1, {"train__optimizer": "adamw", "train__lr": 0.001, "train__ema_decay": 0.9, "train__export": "ema",
             "train__model": "mobilenet_v3_small", "train__gradient_checkpointing": True}),
        (2, {"train__precision": "bf16", "run__launcher": "spawn", "train__accumulation_steps": 2, "train__mixup": 0.2,
             "train__model": "mobilenet_v3_small", "train__epochs": 12}),
        pytest.param(
            2, {"train__precision": "fp16", "train__model": "mobilenet_v3_small", "train__epochs": 6,
                "train__clip_norm": 1.0, "train__export": "best"}, marks=FURTHER_STATE,
        ),
        # A model that is large enough for several buckets of gradients.
        pytest.param(
            3, {"train__model": "resnet18", "train__epochs": 4, "train__batch_size": 12}, marks=FURTHER_STATE,
        ),
        pytest.param(
            4, {"train__model": "resnet18", "train__epochs": 4, "train__optimizer": "adam", "train__lr": 0.001},
            marks=FURTHER_STATE,
        ),
    ],
    ids=str,
)  # fmt: skip
def test_resume_is_exact_in_the_middle_of_an_epoch(tmp_path: Path, processes: int, lines: dict[str, Any]) -> None:
    """On 1 to 4 processes, for every kind of state there is to save."""
    lines = {
        "train__parallel": "ddp", "run__processes": processes, "train__epochs": 24, "run__log_steps": 1,
        "train__label_smoothing": 0.0, **lines,
    }  # fmt: skip
    straight = small_world(tmp_path / "straight", **lines)
    launch(straight)
    folder = small_world(tmp_path / "cut", **lines)
    launcher = start(folder)
    wait_for(lambda: "epoch 2/" in said(folder) or launcher.poll() is not None, "no second epoch")
    ranks(launcher)[-1].send_signal(signal.SIGTERM)
    assert launcher.wait(600) == 75, said(folder)
    launch(folder)
    assert outputs(folder) == outputs(straight)


def test_a_finished_run_that_dvc_did_not_record_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the last step and DVC's record, it goes on from its end; once recorded, a start trains anew."""
    folder = small_world(tmp_path, run__log_steps=2)
    monkeypatch.setenv("DVC_STAGE", "train")  # as DVC starts it
    launch(folder)
    first = outputs(folder)
    shutil.rmtree(folder / "models")  # as DVC does with what it has no record of
    again = launch(folder)
    assert "going on from step 9" in again.stderr
    assert "epoch 1/2" not in again.stderr
    assert outputs(folder) == first
    outs = [{"path": "models/model.safetensors", "md5": files.md5(folder / "models/model.safetensors")}]
    with (folder / "dvc.lock").open("w") as lock:
        YAML().dump({"schema": "2.0", "stages": {"train": {"cmd": "", "outs": outs}}}, lock)
    forced = launch(folder)
    assert "going on" not in forced.stderr
    assert "epoch 1/2" in forced.stderr
    assert outputs(folder) == first
    assert not list(folder.glob("runs/*/*checkpoint.pt"))


def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_used(
    whole: Path, stopped: Path, tmp_path: Path
) -> None:
    """Cut short, or with one bit changed; with both damaged, the run refuses and says what to remove."""
    for damage in ("cut", "changed"):
        folder = shutil.copytree(stopped, tmp_path / damage, symlinks=True)
        (saved,) = folder.glob("runs/*/checkpoint.pt")
        content = bytearray(saved.read_bytes())
        content[len(content) // 2] ^= 1
        saved.write_bytes(content[: len(content) // 2] if damage == "cut" else content)
        again = launch(folder)
        assert "checkpoint.pt is damaged; the one before it is used" in again.stderr
        assert outputs(folder) == outputs(whole)
    folder = shutil.copytree(stopped, tmp_path / "both", symlinks=True)
    for saved in folder.glob("runs/*/*checkpoint.pt"):
        saved.write_bytes(saved.read_bytes()[:1000])
    refused = launch(folder, check=False)
    assert refused.returncode == 1
    assert "damaged, and there is no other; to begin anew: rm -r runs/" in refused.stderr


def test_one_run_at_a_time(tmp_path: Path) -> None:
    """A second start while the first lives is refused with the process id of the first; then it goes on after it."""
    folder = small_world(tmp_path, train__parallel="ddp", run__processes=2, **LONG)
    first = start(folder)
    wait_for(lambda: "epoch 1/" in said(folder) or first.poll() is not None, "no first epoch")
    held_up = [psutil.Process(first.pid), *ranks(first)]
    for process in held_up:
        process.suspend()  # it lives as long as the second start takes
    second = launch(folder, check=False)
    for process in held_up:
        process.resume()
    assert second.returncode != 0
    held = int((next(folder.glob("runs/*/pid"))).read_text())
    assert f"process {held} is training this very run; wait for it, or end it, then run again" in second.stderr
    assert held in [rank.pid for rank in ranks(first)] or first.poll() is not None
    assert first.wait(600) == 0


def test_a_resume_on_other_hardware_is_refused(stopped: Path, tmp_path: Path) -> None:
    """The checkpoint remembers what decides bits; what differs is named."""
    folder = shutil.copytree(stopped, tmp_path / "w", symlinks=True)
    environ = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    refused = subprocess.run(
        [sys.executable, "-m", "pipeline.launch", "train"],
        cwd=folder, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert refused.returncode == 1
    assert "here it is 'DEFAULT', so the bytes could not be the same; go on where it was begun" in refused.stderr


def test_clean_runs_removes_what_nothing_would_resume(whole: Path, stopped: Path, tmp_path: Path) -> None:
    """Finished and stale folders go, and it says how much that freed; the one that can be resumed stays."""
    folder = shutil.copytree(stopped, tmp_path / "w", symlinks=True)
    (resumable,) = (folder / "runs").iterdir()
    (folder / "runs/stale").mkdir()
    (folder / "runs/stale/checkpoint.pt").write_bytes(bytes(2_500_000))
    clean = [sys.executable, "-m", "pipeline.training.runs", "--clean"]
    done = subprocess.run(clean, cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout == "runs: 1 folders removed, 2.5 MB freed\n"
    assert list((folder / "runs").iterdir()) == [resumable]
    launch(folder)
    assert outputs(folder) == outputs(whole)
    assert (
        "runs: 1 folders removed"
        in subprocess.run(clean, cwd=folder, capture_output=True, text=True, check=True).stdout
    )


def test_deterministic_mode_refuses_what_it_cannot_vouch_for(tmp_path: Path) -> None:
    """A variable that contradicts it is named, with what is allowed."""
    folder = small_world(tmp_path)
    environ = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":0:0"}
    refused = subprocess.run(
        [sys.executable, "-m", "pipeline.launch", "train"],
        cwd=folder, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert refused.returncode == 1
    assert refused.stderr == (
        "train: CUBLAS_WORKSPACE_CONFIG: ':0:0' contradicts train.deterministic: true; "
        "allowed: :4096:8, :16:8, or unset it\n"
    )


def test_an_operator_without_a_deterministic_version_is_named(raw: dict[str, Any]) -> None:
    """What torch cannot do the same way twice is refused by its name, with what is allowed instead."""
    settings = params.parse(on_cpu(raw)).train
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        with (
            pytest.raises(
                UserError,
                match=r"train.deterministic: true × train.model: 'shufflenet_v2_x0_5': put_ has no deterministic",
            ),
            train.explain_torch_errors(settings),
        ):
            torch.zeros(2).put_(torch.tensor([0]), torch.ones(1))
    finally:
        torch.use_deterministic_algorithms(before)
    with pytest.raises(RuntimeError, match="something else"), train.explain_torch_errors(settings):
        raise RuntimeError("something else")


def test_a_container_that_forbids_to_watch_a_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old seccomp profile knows no pidfd_open: that is named, and not taken for a disk without write access."""

    def forbidden(_: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "pidfd_open", forbidden)
    with pytest.raises(UserError, match=r"pidfd_open is not permitted here.*seccomp"):
        stopping._watchable(1)


def test_batchnorm_over_a_single_value_is_refused(raw: dict[str, Any]) -> None:
    """torch's error of a layer in the middle of a model becomes a sentence about the params; other errors stay."""
    settings = params.parse(on_cpu(raw)).train
    with (
        pytest.raises(UserError, match=r"train.batch_size: 8: a part of the batch is one image.* train.crop: 32, and"),
        train.explain_torch_errors(settings),
    ):
        torch.nn.BatchNorm2d(4)(torch.ones(1, 4, 1, 1))
    with pytest.raises(ValueError, match="something else"), train.explain_torch_errors(settings):
        raise ValueError("something else")


def test_provenance_says_when_the_bytes_are_not_promised(tmp_path: Path) -> None:
    """train.deterministic: false is allowed, and recorded."""
    folder = small_world(tmp_path, train__deterministic=False)
    launch(folder)
    assert json.loads(next(folder.glob("runs/*/provenance.json")).read_text())["bytes_promised"] is False
