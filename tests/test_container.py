"""The security of the container and of CI, and a training without a network; docker/image_test.sh builds the image.

What hadolint, zizmor and check-jsonschema check (`make lint`) is not repeated here.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from ruamel.yaml import YAML

from pipeline.checks import locked, machine
from tests.conftest import PROJECT
from tests.helpers.trainings import small_world

DOCKER = PROJECT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()


def test_the_image_is_built_from_digests_and_commits() -> None:
    """A FROM names an earlier stage, nothing, or an ARG of docker/pins.env: a name with a digest, which cannot move."""
    lines = (DOCKER / "pins.env").read_text().splitlines()
    pins = dict(line.split("=", maxsplit=1) for line in lines if line and not line.startswith("#"))
    defaults = dict(re.findall(r"^ARG (\w+)=(\S+)$", DOCKERFILE, re.MULTILINE))
    assert defaults.items() >= pins.items()
    assert re.fullmatch(r"[0-9a-f]{40}", pins["APEX_COMMIT"])
    known = {"scratch"}
    for image, stage in re.findall(r"^FROM (\S+) AS (\S+)$", DOCKERFILE, re.MULTILINE):
        pin = re.fullmatch(r"\$\{(\w+)\}", image)
        assert image in known or (pin and re.fullmatch(r"\S+@sha256:[0-9a-f]{64}", pins[pin[1]])), image
        known.add(stage)


def test_the_build_sees_only_what_it_copies() -> None:
    """Every file that reaches the engine is one that the Dockerfile names: no data, no model, no credential."""
    ignored = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    copies = re.findall(r"^COPY (?!--from)(?:--\S+ )?(.+) \S+$", DOCKERFILE, re.MULTILINE)
    copies += re.findall(r"--mount=type=bind,source=([^,]+)", DOCKERFILE)
    assert ignored[1] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == {word for line in copies for word in line.split()}


def test_compose_gives_the_container_no_more_than_it_needs() -> None:
    """Every service. Git trusts the workspace alone: the configuration of another folder could run programs."""
    assert re.findall(r"safe\.directory (\S+)", DOCKERFILE) == ["/workspace"]
    services = YAML(typ="safe", pure=True).load(DOCKER / "compose.yaml")["services"]
    for service in services.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert 0 < service["pids_limit"] < 2**15
        assert service["mem_limit"] == "${PERENNIAL_MEMORY:-0}"
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_a_job_has_the_permissions_that_it_names_and_runs_in_no_copy_of_the_repository() -> None:
    """A fork, or a copy under another name, would spend hours of its owner; a job that only says so may run there."""
    for path in sorted((PROJECT / ".github/workflows").glob("*.yml")):
        workflow = YAML(typ="safe", pure=True).load(path)
        assert workflow["permissions"] == {}, path
        jobs = {name: job for name, job in workflow["jobs"].items() if name != "elsewhere"}
        own = {name for name, job in jobs.items() if "fork" in job.get("if", "")}
        assert all(name in own or {*job.get("needs", "").split()} & own for name, job in jobs.items()), path


def test_no_code_of_a_fork_reaches_the_gpu() -> None:
    """The GPU job is in a protected environment, of this repository alone, and closed for pull requests from forks."""
    jobs = YAML(typ="safe", pure=True).load(PROJECT / ".github/workflows/gpu.yml")["jobs"]
    assert jobs["train"]["environment"] == "gpu"
    assert "github.event.repository.name == 'perennial' && !github.event.repository.fork" in jobs["train"]["if"]
    assert "github.event.pull_request.head.repo.full_name == github.repository" in jobs["train"]["if"]
    assert jobs["comment"]["permissions"] == {"pull-requests": "write"}
    assert not [step for step in jobs["comment"]["steps"] if "checkout" in step.get("uses", "")]


def test_an_image_that_was_built_from_other_files_is_stale(tmp_path: Path) -> None:
    """A changed or missing lock or pin is stale. Without an image nothing is."""
    names = ["requirements/lock.txt", "docker/pins.env"]
    command = [sys.executable, str(DOCKER / "environment.py"), *names]
    built_from = tmp_path / "environment.json"
    built_from.write_bytes(subprocess.run(command, cwd=PROJECT, capture_output=True, check=True).stdout)
    assert machine.stale_files(built_from, PROJECT) == ()
    assert machine.stale_files(tmp_path / "none.json", PROJECT) == ()
    assert machine.stale_files(built_from, tmp_path) == tuple(names)
    for name in json.loads(built_from.read_text()):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(PROJECT / name, tmp_path / name)
    with (tmp_path / names[1]).open("a") as file:
        file.write("# one line more\n")
    assert machine.stale_files(built_from, tmp_path) == (names[1],)


@pytest.mark.parametrize(("ci", "status"), [("", 0), ("true", 1)])
def test_a_container_that_cannot_be_tested_fails_in_ci_alone(ci: str, status: int) -> None:
    """Without an engine or without room the test is left out, in one line; continuous integration fails."""
    environ = {**os.environ, "CI": ci, "LAB_ROOT": "/proc", "DOCKER_HOST": "unix:///none"}  # /proc has no room
    done = subprocess.run(DOCKER / "image_test.sh", env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.count("\n") == 1


DOCKER_STAND_IN = """#!/bin/sh
case "$*" in
"info --format {{.DockerRootDir}}") echo / ;;
info) test "$HAS_DAEMON" = yes || { echo "permission denied" >&2; exit 1; } ;;
"compose version --short") echo "$VERSION" ;;
"image inspect perennial") test "$HAS_IMAGE" = yes ;;
"image ls --quiet perennial" | "image ls --quiet host:5000/perennial") test "$HAS_IMAGE" != yes || echo 0123456789ab ;;
esac
"""
COMPLETE = {"HAS_DAEMON": "yes", "VERSION": "v2.39.1", "HAS_IMAGE": "yes", "NEEDED_GB": "0"}
TOOLS = ("docker", "nvidia-smi", "nvidia-ctk")


@pytest.mark.parametrize(
    ("what", "changes", "missing", "named"),
    [
        ("build", {}, (), ()),
        ("run", {}, (), ()),
        ("build", {}, ("docker",), ("docs.docker.com",)),
        ("run", {"HAS_DAEMON": "no"}, ("nvidia-ctk",), ("permission denied",)),
        ("build", {"NEEDED_GB": "999999", "HAS_IMAGE": "no"}, (), ("NEEDED_GB=",)),
        ("build", {"NEEDED_GB": "999999", "PERENNIAL_IMAGE": "perennial:test"}, (), ()),  # it reuses layers
        ("build", {"NEEDED_GB": "999999", "PERENNIAL_IMAGE": "host:5000/perennial"}, (), ()),
        ("run", {"VERSION": "2.5.0"}, (), ("docker compose is 2.5.0",)),
        ("run", {"HAS_IMAGE": "no"}, TOOLS[1:], ("(nvidia-smi)", "(nvidia-ctk)", "make image")),
        ("run", {"HAS_IMAGE": "no", "PERENNIAL_IMAGE": "ghcr.io/one/perennial"}, (), ()),
        ("run", {"DOCKER_HOST": "tcp://other:2375"}, TOOLS[1:], ()),
    ],
)
def test_what_the_container_needs_is_said_in_a_line_each(
    what: str, changes: dict[str, str], missing: tuple[str, ...], named: tuple[str, ...], tmp_path: Path
) -> None:
    """Before a build or a run. Of another machine only the daemon's own answers count."""
    for name in {*TOOLS} - {*missing}:
        (tmp_path / name).write_text(DOCKER_STAND_IN if name == "docker" else "#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    for name in ("bash", "df", "head", "id", "sort", "tail", "tr"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    environ = {"PATH": str(tmp_path), **COMPLETE, **changes}
    done = subprocess.run([DOCKER / "needed.sh", what], env=environ, capture_output=True, text=True, check=False)
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout, len(lines)) == (bool(named), "", len(named)), done.stderr
    assert all(part in line and "; " in line for part, line in zip(named, lines, strict=True)), lines


@pytest.mark.nightly("the container's test trains two processes without a network in make test-ci")
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and ip, to take away the network")
def test_training_needs_no_network_and_no_known_host_name(tmp_path: Path) -> None:
    """As in a container with --network none: its name is in no file, and only the loopback is there."""
    folder = small_world(tmp_path / "w", train__parallel="ddp", run__processes=2, train__epochs=1)
    alone = f"hostname nobody-knows-me && ip link set lo up && exec {sys.executable} -m pipeline train"
    done = subprocess.run(
        ["unshare", "--uts", "--net", "sh", "-c", alone], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "models/model.safetensors").is_file()


def test_a_package_is_in_one_lock() -> None:
    """What a run needs is in lock.txt; what only tests and linters need is in test.txt: it makes no stage run again.

    pillow-heif contains x265, so it is under GPL 2: it is an extra, and the image that runs has lock.txt alone.
    """
    texts = {name: (PROJECT / f"requirements/{name}.txt").read_text() for name in ("lock", "test", "uv")}
    lock, test, uv = ({*re.findall(r"^([a-z0-9.-]+)==", text, re.MULTILINE)} for text in texts.values())
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    groups = project["project"]["dependencies"], project["dependency-groups"]["test"]
    run, tests = ({locked.canonical_name(Requirement(line).name) for line in lines} for lines in groups)
    assert run <= lock
    assert tests <= lock | test
    assert not lock & (test | {"pillow-heif", "pytest"})
    assert project["project"]["optional-dependencies"]["heic"][0] in groups[1]
    stages = re.split(r"^FROM \S+ AS ", DOCKERFILE, flags=re.MULTILINE)
    assert [stage.split()[0] for stage in stages if "requirements/test.txt" in stage] == ["test"]
    assert uv == {"uv"}  # `make setup` and the image have it from there
    assert f"\n{texts['uv']}" in texts["test"]
    for text in texts.values():  # names, versions and hashes, and nothing that says where from
        assert "://" not in text
        assert "--index" not in text
        assert text.count("--hash=sha256:") >= len(re.findall("==", text))


def test_the_tests_that_run_in_the_image_exist() -> None:
    """docker/image_test.sh names them at a late step of a long run."""
    (names,) = re.findall(r"^TESTS=\((.*)\)$", (PROJECT / "docker/image_test.sh").read_text(), re.MULTILINE)
    assert [name for name in names.split() if not (PROJECT / f"tests/test_{name}.py").is_file()] == []
