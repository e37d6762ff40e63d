"""Shared by the tests: the project's folder, its params, real photos, and time limits."""

import fcntl
import gc
import hashlib
import os
import re
import resource
import shutil
import signal
import tarfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import hypothesis
import psutil
import pytest
from ruamel.yaml import YAML
from tqdm import tqdm

from pipeline.base import files, linux
from pipeline.config.params import Params, Paths
from tests.helpers import starts

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytest_plugins = ["tests.helpers.budget"]
gc.set_threshold(100_000, 50, 50)  # as pipeline/__main__.py does: importing all tests takes a seventh less

PROJECT = Path(__file__).resolve().parents[1]
PHOTOS = PROJECT / "tests/data/flower_photos"

# The folders of tests lie in memory, if there is room. `perennial repro` syncs the whole file system after each stage.
# On a disk a sync takes system time, and waits for what other programs have written: the tests of CI took 560 s of CPU
# time instead of 394 [measured].
MEMORY, NEEDED = Path("/dev/shm"), 4 * 2**30  # bytes; the tests of CI use 0.6 GB
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > NEEDED and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))  # pytest's own name

hypothesis.settings.register_profile("perennial", deadline=None, derandomize=True)  # the same examples in each run
hypothesis.settings.load_profile("perennial")
# A shell starts background jobs with INT ignored, and each process that a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# For the processes that tests start in other folders. What it names already stays: the packages of a bare machine.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH", "")]))

SECONDS = 900  # limit for a test, its setup and its teardown, each: far more than any needs on a slow machine


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """After a test the environment is as before it: a stage that runs in this process sets variables for good.

    So is the display of bars, which a run of DVC changes (versioning/changed_dvc.py).
    """
    before, display = dict(os.environ), tqdm.display
    yield
    tqdm.display = display  # type: ignore[method-assign]
    if dict(os.environ) != before:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Inside the block the time is limited: after `seconds` all child processes are killed, and the test fails.

    The test may then go on and print the output of these processes. After 30 more seconds it fails where it is.
    """
    killed: list[str] = []

    def on_alarm(_: int, __: FrameType | None) -> None:
        if killed:
            pytest.fail(f"more than {seconds + 30} s; first killed: {killed}")
        killed.append(f"after {seconds} s")
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                killed.append(f"{process.pid} ({process.status()}): {' '.join(process.cmdline())}")
                process.kill()
        signal.alarm(30)

    before, remaining = signal.signal(signal.SIGALRM, on_alarm), signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(remaining)
        signal.signal(signal.SIGALRM, before)
        if killed:
            pytest.fail(f"more than {seconds} s; killed: {killed}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    with limited(SECONDS):
        return (yield)


pytest_runtest_setup = pytest_runtest_teardown = pytest_runtest_call


def pytest_configure() -> None:
    """Let a process that crashes write no core file: an emulated one has three gigabytes, and is tried again."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def pytest_collection_finish() -> None:
    """Let forked processes begin with the variables that libraries have set when the files of tests imported them."""
    starts.BASE.update(os.environ)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", default="1/1", metavar="K/N", help="the K-th of N parts of the tests that -m chooses")


def in_part(nodeid: str, part: str) -> bool:
    """Whether a test is in a part. The digest of its name decides, so other tests change nothing."""
    which, of = map(int, part.split("/"))
    return int(hashlib.sha256(nodeid.encode()).hexdigest(), 16) % of == which - 1


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as slow what is nightly, and keep the tests of --part. Raise UsageError for a mark without its reason."""
    part = config.getoption("--part")
    numbers = re.fullmatch(r"([1-9]\d?)/([1-9]\d?)", part)
    if not numbers or int(numbers[1]) > int(numbers[2]):
        raise pytest.UsageError(
            f"--part: {part} is no part; allowed: K/N, with K from 1 to N (make test-nightly PART=1/8)"
        )
    config.hook.pytest_deselected(items=[item for item in items if not in_part(item.nodeid, part)])
    items[:] = [item for item in items if in_part(item.nodeid, part)]
    for item in items:
        for marker in item.iter_markers("nightly"):
            item.add_marker(pytest.mark.slow(*marker.args))
        for marker in item.iter_markers("slow"):
            if not (len(marker.args) == 1 and isinstance(marker.args[0], str) and len(marker.args[0]) > 20):
                raise pytest.UsageError(f"{item.nodeid}: its mark needs the reason why it is left out")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """The number of processes for `-n auto`: one more than cores, one per 2 GB of memory, at most 8.

    One more, because a test that waits for a process needs no core: with one per core, a sixth of the time was idle.
    """
    return max(1, min(linux.usable_cores() + 1, psutil.virtual_memory().total // 2**31, 8))


@pytest.fixture(scope="session")
def photos() -> Path:
    """The folder with forty real photos (tests/data/README.md). No test changes it."""
    return PHOTOS


@pytest.fixture(scope="session")
def archive(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of these photos, with the layout of flower_photos.tgz."""
    path = tmp_path_factory.mktemp("archive") / "flower_photos.tgz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(photos, "flower_photos")
    return path


def made_once(tmp_path_factory: pytest.TempPathFactory, make: Callable[[Path], object]) -> Path:
    """A folder that `make(folder)` fills, once for all workers. Tests copy it."""
    top = tmp_path_factory.getbasetemp()
    top = top.parent if "PYTEST_XDIST_WORKER" in os.environ else top
    folder = top / make.__name__
    with (top / f"{make.__name__}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a worker that could not finish it
            folder.mkdir()
            make(folder / "project")
            (folder / "done").touch()
    return folder / "project"


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project on drawn flowers, run by `perennial repro` and committed: 20 seconds of CPU. Tests copy it."""
    from tests.helpers.projects import finish_project

    return made_once(tmp_path_factory, finish_project)


@pytest.fixture
def finished_copy(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it as the working folder, which the test may change."""
    folder = shutil.copytree(finished, tmp_path / "project", symlinks=True)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="session")
def with_onnx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an untrained model of three classes after evaluate and export. Tests copy it."""
    from tests.helpers.evaluations import export_model

    return made_once(tmp_path_factory, export_model)


@pytest.fixture(scope="session")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder after the report, with odd names of all kinds. No test changes it."""
    from tests.helpers.reports import make_report

    return made_once(tmp_path_factory, make_report)


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """A real browser, for tests with the mark `needs_chromium`."""
    from tests.helpers.browser import started

    with started() as running:
        yield running


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def small(here: Path) -> Path:
    """Two classes of ten images in the current folder, and a table of corrections without a line."""
    from pipeline.data import corrections
    from tests.helpers.datasets import two_classes

    files.write_text(corrections.FILE, corrections.EMPTY)
    return two_classes(here / "data/images")


@pytest.fixture
def raw() -> dict[str, Any]:
    """params.yaml as plain tables, which the test may change."""
    return read_params()


def read_params(path: Path = PROJECT / "params.yaml") -> dict[str, Any]:
    """A params file as plain tables."""
    return deepcopy(YAML(typ="safe", pure=True).load(path))


def write_params(path: Path, raw: dict[str, Any]) -> None:
    """Write tables as a params file."""
    YAML().dump(raw, path)


def change(raw: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Change params in place: `section__key=value`. Returns them."""
    for dotted, value in changes.items():
        *sections, key = dotted.split("__")
        table = raw
        for section in sections:
            table = table[section]
        table[key] = value
    return raw


def set_params(folder: Path, **changes: Any) -> None:
    """Change params in the params.yaml of a folder: `section__key=value`."""
    write_params(folder / "params.yaml", change(read_params(folder / "params.yaml"), **changes))


def below(folder: Path, config: Params) -> Params:
    """The params with their paths below `folder`, for calls from another working folder. Constants, too: an attribute
    of the copy hides that of the class."""
    names = ("inbox", *Paths.__class_vars__)
    paths = config.paths.model_copy(update={name: str(folder / getattr(config.paths, name)) for name in names})
    return config.model_copy(update={"paths": paths})


def on_cpu(raw: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The params for a training that runs on every machine: a small model, fp32, one CPU process."""
    small = {
        "train__device": "cpu", "train__precision": "fp32", "train__parallel": "single",
        "train__model": "shufflenet_v2_x0_5", "train__lr": 0.01, "train__epochs": 1, "train__batch_size": 8,
        "train__crop": 32, "train__eval_crop": 32, "train__eval_resize": 36, "prepare__size": 40,
        "train__warmup_epochs": 0, "run__processes": 1,
    }  # fmt: skip
    return change(change(raw, **small), **changes)
