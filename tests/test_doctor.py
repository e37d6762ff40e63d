"""The doctor's checks, on good and on faulty machines."""

import os
import platform
import py_compile
import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.base.files import LOCKED_PACKAGES
from pipeline.checks import machine, validity
from pipeline.commands import doctor
from pipeline.config import params
from pipeline.config.params import Params
from tests.conftest import PROJECT, change, on_cpu, read_params, write_params


def config(raw: dict[str, Any], **changes: Any) -> Params:
    return params.parse(change(raw, **changes))


def test_the_doctor_finds_nothing_wrong_here(monkeypatch: pytest.MonkeyPatch, raw: dict[str, Any]) -> None:
    """On the machine of the tests, with params for it, no check finds a fault."""
    monkeypatch.chdir(PROJECT)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    findings = doctor.findings(params.parse(on_cpu(raw)), machine.read())
    assert [finding.fault for finding in findings if finding.fault] == []


def test_photos_that_are_not_here_are_named_with_what_brings_them(raw: dict[str, Any], tmp_path: Path) -> None:
    """A clone has no folder, or only what `dvc add` has written into it. Other sources need no photos."""
    inbox, faults = tmp_path / "inbox", []
    own = config(raw, data__source="inbox", paths__inbox=str(inbox))
    for step in (inbox.mkdir, (inbox / "cat.dvc").touch, (inbox / "cat").mkdir):
        faults.append(doctor.photos(own).fault)
        step()
    assert ["--photos" in fault for fault in faults] == [True, True, False]
    assert "dvc checkout" in faults[2]
    assert doctor.photos(own).fault == doctor.photos(config(raw)).fault == ""


def test_bytecode_that_is_not_kept_is_named(tmp_path: Path) -> None:
    """Each start would compile torch. It stops no run, so it is no fault."""
    module = tmp_path / "some/module.py"
    module.parent.mkdir()
    module.write_text("")
    missing = doctor.bytecode(module)
    py_compile.compile(str(module))
    assert "PYTHONDONTWRITEBYTECODE" in missing.value
    assert "PYTHONDONTWRITEBYTECODE" not in doctor.bytecode(module).value
    assert missing.fault == doctor.bytecode(module).fault == ""


def test_gpus_that_torch_cannot_use_are_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason, or the remedy of the container's engine: CDI, which sets the variable to void, may be older."""

    def too_old(_: int) -> str:
        raise RuntimeError("The NVIDIA driver on your system is too old\n(found version 12020).")

    monkeypatch.setattr(torch.cuda, "get_device_name", too_old)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert "is too old (found version 12020)" in doctor.gpus(machine.Machine(1, "missing", True)).fault
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for variable, remedy in (("all", "--device nvidia.com/gpu=all"), ("void", "nvidia-ctk cdi")):
        monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", variable)
        finding = doctor.gpus(machine.Machine(0, "missing", True))
        assert remedy in finding.value
        assert not finding.fault  # a CPU can do


def test_the_gpus_that_are_allowed_are_those_that_torch_has_code_for() -> None:
    """validity.py's oldest GPU and newest generation are those of the locked torch's own list."""
    with_code = [int(name.removeprefix("sm_")) for name in (torch._C._cuda_getArchFlags() or "").split()]
    assert divmod(min(with_code), 10) == validity.LOWEST_CAPABILITY
    assert max(with_code) // 10 == validity.NEWEST_GENERATION
    assert machine.read().cuda_of_torch == int(str(torch.version.cuda).partition(".")[0])


def test_several_gpu_processes_need_shared_memory(raw: dict[str, Any]) -> None:
    """Docker's 64 MB are too small for NCCL, and enough for one process."""
    several = config(raw, run__processes=2)
    assert "--shm-size=1g" in doctor.shared_memory(several, 2**26).fault
    assert doctor.shared_memory(several, 2**30).fault == ""
    assert doctor.shared_memory(config(raw, run__processes=1), 2**26).fault == ""


def test_the_name_of_a_cpu_has_its_kind(tmp_path: Path) -> None:
    """Of a virtual machine the model's name alone stands for several kinds. A CPU of Arm has neither number."""
    (path := tmp_path / "cpuinfo").write_text(
        "".join(f"processor\t: {core}\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n\n" for core in "01")
    )
    assert machine.cpu_name(path) == "AMD EPYC (family 25, model 17)"
    path.write_text("processor\t: 0\nCPU implementer\t: 0x41\n")
    assert machine.cpu_name(path) == platform.processor()


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    """So are a missing folder, and a user without a home."""
    gone = tmp_path / "gone"
    assert str(gone) in doctor.writable((tmp_path, gone)).fault
    assert doctor.writable((tmp_path,)).fault == ""
    assert doctor.writable((Path("~"), tmp_path)).fault.startswith("~: not writable")


def test_too_little_disk_is_said_before_the_work(
    raw: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 images of 100 × 100 pixels, drawn or linked, in the workspace and in DVC's cache, take 6 MB."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    for number in range(100):
        (tmp_path / f"elsewhere/{number}.jpg").touch()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cats").symlink_to(tmp_path / "elsewhere")
    linked = config(raw, data__source="folder", paths__inbox="photos", prepare__size=100)
    drawn = config(raw, data__source="synthetic", data__synthetic__count=100)
    for each in (linked, drawn):
        assert doctor.disk(each, 5_900_000).fault
        assert doctor.disk(each, 6_000_000).fault == ""
    (tmp_path / "photos/loop").symlink_to(tmp_path / "photos")
    assert "photos/loop" in doctor.disk(linked, 6_000_000).fault
    (tmp_path / "data/packed").mkdir(parents=True)
    assert doctor.disk(drawn, 1).fault == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder away")
def test_a_repository_of_somebody_else_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DVC needs Git. Git refuses another owner's repository; the doctor names the command that allows it."""
    monkeypatch.chdir(tmp_path)
    assert doctor.git().fault.endswith("; git init")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    for path in [tmp_path, *tmp_path.rglob("*")]:
        os.chown(path, 12345, 12345)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")  # the image tells Git system-wide
    assert f"git config --global --add safe.directory {tmp_path}" in doctor.git().fault


def test_a_package_that_is_not_as_locked_is_a_fact_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is seen without a stamp: a lock that a pull has changed, and what pip has changed since the installation."""
    assert machine.read().other_packages == ()
    pip = tmp_path / "packages/pillow-0.1.dist-info"
    pip.mkdir(parents=True)
    (pip / "METADATA").write_text("Metadata-Version: 2.4\nName: Pillow\nVersion: 0.1\n\nName: other\nVersion: 7\n")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(pip.parent)
        assert [said.split()[:2] for said in machine.read().other_packages] == [["pillow", "0.1"]]
    (tmp_path / LOCKED_PACKAGES).parent.mkdir()
    text = (PROJECT / LOCKED_PACKAGES).read_text()
    (tmp_path / LOCKED_PACKAGES).write_text(re.sub(r"(?m)^pillow==\S+", "pillow==99.0.0", text))
    assert [said.split()[0] for said in machine.other_packages(tmp_path)] == ["pillow"]
    assert machine.other_packages(tmp_path / "none") == ()


@pytest.mark.parametrize(("device", "fault", "status"), [("cpu", "", 0), ("cpu", "a fault", 1), ("cuda", "", 1)])
def test_the_doctor_ends_with_1_if_something_would_stop_a_run(
    device: str, fault: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A check, or params that this machine cannot run: the default ones need a GPU."""
    monkeypatch.chdir(tmp_path)
    write_params(tmp_path / params.FILE, on_cpu(read_params()) if device == "cpu" else read_params())
    monkeypatch.setattr(machine, "read", lambda: machine.Machine(0, "missing", True))
    monkeypatch.setattr(doctor, "findings", lambda *_: [doctor.Finding("some fact", "a value", fault)])
    assert doctor.main(Namespace()) == status
    said = capsys.readouterr().out
    assert ("some fact  a value" in said, f"some fact: {fault}" in said, "train.device" in said) == (
        True, bool(fault), device == "cuda",
    )  # fmt: skip
