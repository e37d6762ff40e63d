"""Tests of the container's files that need no container; docker/image_test.sh builds and runs it.

The doctor's checks (pipeline/doctor.py) are tried here on good and on faulty machines.
"""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement
from ruamel.yaml import YAML

from pipeline import doctor
from pipeline.config import machine, params, validity
from pipeline.config.params import Params
from tests.conftest import PROJECT, change, on_cpu
from tests.test_train import small_world

DOCKER = PROJECT / "docker"


def pins() -> dict[str, str]:
    lines = (DOCKER / "pins.env").read_text().splitlines()
    return dict(line.split("=", maxsplit=1) for line in lines if line and not line.startswith("#"))


def parsed(raw: dict[str, Any], **changes: Any) -> Params:
    return params.parse(change(raw, **changes))


@pytest.fixture
def built_from(tmp_path: Path) -> Path:
    """The file of hashes in an image that is built from this checkout."""
    files = ["requirements/lock.txt", "docker/pins.env"]
    made = subprocess.run(
        [sys.executable, DOCKER / "environment.py", *files], cwd=PROJECT, capture_output=True, check=True
    )
    (tmp_path / "environment.json").write_bytes(made.stdout)
    return tmp_path / "environment.json"


def test_the_defaults_of_the_dockerfile_are_the_pins() -> None:
    """`docker build` without arguments builds from the digests and the commit of docker/pins.env."""
    defaults = dict(re.findall(r"^ARG (\w+)=(\S+)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE))
    assert {name: defaults.get(name) for name in pins()} == pins()
    assert set(defaults) == set(pins()) | {"TORCH_CUDA_ARCH_LIST"}


def test_every_base_image_is_a_digest() -> None:
    """A FROM names an earlier stage, nothing at all, or an ARG that is a full name with a digest; no tag can move."""
    known = {"scratch", "${DEVEL_IMAGE}", "${RUNTIME_IMAGE}"}
    for image, stage in re.findall(r"^FROM (\S+) AS (\S+)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE):
        assert image in known
        known.add(stage)
    for name in ("DEVEL_IMAGE", "RUNTIME_IMAGE"):
        assert re.fullmatch(r"docker\.io/nvidia/cuda:[\w.-]+@sha256:[0-9a-f]{64}", pins()[name])
    assert re.fullmatch(r"[0-9a-f]{40}", pins()["APEX_COMMIT"])


def test_the_dockerfile_builds_without_a_front_end_and_where_nothing_is_reached() -> None:
    """No syntax line, no heredoc, no linked copy, nothing added from an address: BuildKit and buildah alike."""
    text = (DOCKER / "Dockerfile").read_text()
    instructions = [line for line in text.splitlines() if not line.startswith("#")]
    assert not re.search(r"^#\s*(syntax|escape)=", text, re.MULTILINE)
    assert not [line for line in instructions if "<<" in line or "--link" in line or line.startswith("ADD ")]


def test_the_build_sees_only_what_it_copies() -> None:
    """Every file that reaches the engine is one that the Dockerfile names: no data, no model, no credential."""
    ignored = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in ignored if line.startswith("!")}
    assert ignored[1] == "*"
    text = (DOCKER / "Dockerfile").read_text()
    copied = {word for line in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE) for word in line.split()}
    assert allowed == copied


def test_the_image_of_this_checkout_is_not_stale(built_from: Path) -> None:
    """The stages compare with what docker/environment.py writes. Without an image nothing is stale."""
    assert machine.stale(built_from, PROJECT) == ()
    assert machine.stale(built_from.with_name("none.json"), PROJECT) == ()


@pytest.mark.parametrize("name", ["requirements/lock.txt", "docker/pins.env"])
def test_a_changed_line_makes_the_image_stale(built_from: Path, tmp_path: Path, raw: dict[str, Any], name: str) -> None:
    """Every stage then refuses in one sentence, which names the file and the remedy."""
    for file in json.loads(built_from.read_text()):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        shutil.copy(PROJECT / file, tmp_path / file)
    (tmp_path / name).write_text((PROJECT / name).read_text() + "# one line more\n")
    stale = machine.stale(built_from, tmp_path)
    assert stale == (name,)
    (sentence,) = validity.faults(params.parse(on_cpu(raw)), machine.Machine(0, "missing", True, stale=stale))
    assert sentence == (
        f"{name}: not the file that this container's image was built from; allowed: the same file; "
        f"build the image again: make image"
    )


def test_a_missing_file_makes_the_image_stale(built_from: Path, tmp_path: Path) -> None:
    """A checkout without a lock is not the one the image was built from."""
    assert machine.stale(built_from, tmp_path) == ("requirements/lock.txt", "docker/pins.env")


def test_compose_gives_the_container_no_more_than_it_needs() -> None:
    """Every service: a read-only root, no capability, no new privilege; ports only on the host's own interface."""
    services = YAML(typ="safe", pure=True).load(DOCKER / "compose.yaml")["services"]
    assert set(services) == {"repro", "repro-cpu", "tensorboard"}
    for service in services.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_workflows_name_actions_by_commit_and_begin_with_no_permission() -> None:
    """A tag of an action can be moved, a commit cannot; a job has the permissions that it names."""
    for path in sorted((PROJECT / ".github/workflows").glob("*.yml")):
        workflow = YAML(typ="safe", pure=True).load(path)
        assert workflow["permissions"] == {}, path
        uses = re.findall(r"uses: (\S+)", path.read_text())
        assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action) for action in uses), path


def test_no_code_of_a_fork_reaches_the_gpu() -> None:
    """The GPU job is in a protected environment, of this repository alone, and closed for pull requests from forks."""
    jobs = YAML(typ="safe", pure=True).load(PROJECT / ".github/workflows/gpu.yml")["jobs"]
    assert jobs["train"]["environment"] == "gpu"
    assert "github.event.repository.name == 'perennial' && !github.event.repository.fork" in jobs["train"]["if"]
    assert "github.event.pull_request.head.repo.full_name == github.repository" in jobs["train"]["if"]
    assert jobs["comment"]["permissions"] == {"pull-requests": "write"}
    assert not [step for step in jobs["comment"]["steps"] if "checkout" in step.get("uses", "")]


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and ip, to take away the network")
@pytest.mark.parametrize("processes", [1, 2])
def test_training_needs_no_network_and_no_known_host_name(tmp_path: Path, processes: int) -> None:
    """As in a container with --network none: its name is in no file, and only the loopback is there."""
    parallel = "ddp" if processes > 1 else "single"
    folder = small_world(tmp_path / "w", train__parallel=parallel, run__processes=processes, train__epochs=1)
    alone = f"hostname nobody-knows-me && ip link set lo up && exec {sys.executable} -m pipeline.launch train"
    done = subprocess.run(
        ["unshare", "--uts", "--net", "sh", "-c", alone], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "models/model.safetensors").is_file()


# ---------------------------------------------------------------- the doctor


def faults(found: Iterator[doctor.Finding]) -> list[str]:
    return [finding.fault for finding in found if finding.fault]


def test_the_doctor_finds_nothing_wrong_here(monkeypatch: pytest.MonkeyPatch, raw: dict[str, Any]) -> None:
    """On the machine of the tests, with params for it, no check finds a fault."""
    monkeypatch.chdir(PROJECT)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert faults(doctor.findings(params.parse(on_cpu(raw)), machine.read())) == []


@pytest.mark.parametrize(
    ("version", "fault"),
    [
        (0, ""),  # no driver: validity.py says that there is no GPU
        (13000, ""),
        (13020, ""),
        (12080, "the driver knows CUDA up to 12.8, torch was built for 13.0; install a newer driver"),
    ],
)
def test_a_driver_must_know_the_major_version_of_torchs_cuda(raw: dict[str, Any], version: int, fault: str) -> None:
    """Within one major version any driver serves, and an older major does not."""
    assert doctor.driver(params.parse(raw), version, "13.0").fault == fault


def test_a_driver_that_torch_cannot_use_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """If torch raises for a GPU's name, the doctor prints the reason and goes on."""

    def too_old(_: int) -> str:
        raise RuntimeError("The NVIDIA driver on your system is too old\n(found version 12020).")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", too_old)
    found = doctor.gpus(machine.Machine(1, "missing", True))
    assert found.fault == "torch cannot use them: The NVIDIA driver on your system is too old (found version 12020)."


def test_the_lowest_gpu_is_the_one_that_torch_has_code_for() -> None:
    """validity.py's lowest compute capability is the lowest of the locked torch's own list."""
    lowest = min(int(name.removeprefix("sm_")) for name in (torch._C._cuda_getArchFlags() or "").split())
    assert divmod(lowest, 10) == validity.LOWEST_CAPABILITY
    assert machine.read().cuda_of_torch == int(str(torch.version.cuda).partition(".")[0])


def test_several_gpu_processes_need_shared_memory(raw: dict[str, Any]) -> None:
    """Docker's 64 MB are too small for NCCL, and enough for one process."""
    several = parsed(raw, run__processes=2)
    assert doctor.shared_memory(several, 2**26).fault == (
        "/dev/shm has 64 MiB; NCCL needs 1024: docker run --shm-size=1g"
    )
    assert doctor.shared_memory(several, 2**30).fault == ""
    assert doctor.shared_memory(parsed(raw, run__processes=1), 2**26).fault == ""


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    """So are a missing folder, and a user without a home."""
    gone = tmp_path / "gone"
    assert doctor.writable((tmp_path, gone)).fault.startswith(f"{gone}: not writable")
    assert doctor.writable((tmp_path,)).fault == ""
    assert "set HOME" in doctor.writable((None, tmp_path)).fault


def test_too_little_disk_is_said_before_the_work(
    raw: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 drawn images of 100 × 100 pixels, in the workspace and in DVC's cache, take 60 MB."""
    monkeypatch.chdir(tmp_path)
    drawn = parsed(raw, data__source="synthetic", data__synthetic__count=1000, prepare__size=100)
    assert "take 0.1 GB" in doctor.disk(drawn, 59_000_000).fault
    assert doctor.disk(drawn, 60_000_000).fault == ""
    (tmp_path / "data/packed").mkdir(parents=True)
    assert doctor.disk(drawn, 1).fault == ""


def test_photos_behind_links_need_disk_too(
    raw: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is read where it is may hold links to folders; a link that has no end is named."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    for number in range(1000):
        (tmp_path / f"elsewhere/{number}.jpg").touch()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cats").symlink_to(tmp_path / "elsewhere")
    linked = parsed(raw, data__source="folder", paths__inbox="photos", prepare__size=100)
    assert "take 0.1 GB" in doctor.disk(linked, 59_000_000).fault
    assert doctor.disk(linked, 60_000_000).fault == ""
    (tmp_path / "photos/loop").symlink_to(tmp_path / "photos")
    found = doctor.disk(linked, 60_000_000)
    assert "photos/loop: a link to a folder that it is in" in found.fault


def test_a_folder_that_git_does_not_know_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DVC needs Git, so a missing repository is a fault with the remedy."""
    monkeypatch.chdir(tmp_path)
    assert doctor.git().fault.endswith("; git init")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a folder away")
def test_a_repository_of_somebody_else_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git refuses another owner's repository; the doctor names the command that allows it."""
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    for path in [tmp_path, *tmp_path.rglob("*")]:
        os.chown(path, 12345, 12345)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")  # the image tells Git system-wide
    assert f"git config --global --add safe.directory {tmp_path}" in doctor.git().fault


def is_wanted(package: Requirement, extras: set[str]) -> bool:
    """Whether this machine needs what a package names, with these of the package's extras."""
    return package.marker is None or any(package.marker.evaluate({"extra": extra}) for extra in ("", *extras))


def test_the_image_that_runs_has_no_optional_package() -> None:
    """pillow-heif contains x265, so it is under GPL 2: it is an extra, and nothing that a run needs brings it."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    wanted, needed = [Requirement(line) for line in project["project"]["dependencies"]], dict[str, Requirement]()
    while wanted:
        package = wanted.pop()
        if str(package) not in needed:
            needed[str(package)] = package
            found = map(Requirement, importlib.metadata.requires(package.name) or [])
            wanted += [other for other in found if is_wanted(other, package.extras)]
    names = {doctor.normalized(package.name) for package in needed.values()}
    assert {"torch", "pillow", "requests", "urllib3", "s3fs"} <= names
    assert not {"pillow-heif", "timm", "pytest"} & names
    (heic,) = project["project"]["optional-dependencies"]["heic"]
    assert heic in project["dependency-groups"]["dev"]
    assert not re.search(r"--(all-)?extra|\[\w*heic", (DOCKER / "Dockerfile").read_text())


def test_packages_are_held_against_the_lock() -> None:
    """Another version and a missing direct dependency are faults. Packages for development may be missing."""
    project = '[project]\nname = "x"\ndependencies = ["torch==2.11.0", "not.There>=1"]'
    lock = "torch==2.10.0 ; marker \\\n    --hash=sha256:0\nnot-there==1.0\nonly-for-tests==3\nhypothesis==0\n"
    found = doctor.packages(lock, project)
    assert "not-there missing (locked: 1.0)" in found.fault
    assert "torch 2.11.0 (locked: 2.10.0)" in found.fault
    assert "only-for-tests" not in found.fault
    here = [(PROJECT / name).read_text() for name in ("requirements/lock.txt", "pyproject.toml")]
    assert doctor.packages(*here).fault == ""


def test_the_doctor_ends_with_1_where_the_params_cannot_run(tmp_path: Path) -> None:
    """The default params need a GPU. Without one, the doctor prints the refusal and ends with status 1."""
    if machine.read().cuda_devices:
        pytest.skip("needs a machine without a GPU")
    asked = subprocess.run(
        [sys.executable, "-m", "pipeline.doctor"], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert asked.returncode == 1
    assert "train.device: 'cuda' needs an NVIDIA GPU" in asked.stdout


def test_the_tests_that_run_in_the_image_exist() -> None:
    """docker/image_test.sh names them at a late step of a long run."""
    (names,) = re.findall(r"^TESTS=\((.*)\)$", (PROJECT / "docker/image_test.sh").read_text(), re.MULTILINE)
    missing = [name for name in names.split() if not (PROJECT / f"tests/test_{name}.py").is_file()]
    assert len(names.split()) >= 8
    assert missing == []
