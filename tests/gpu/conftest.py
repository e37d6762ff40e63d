"""Tests that need a GPU. The body of each test runs in new processes, one per rank, with its `world`.

    python -m pytest tests/gpu                                     on one NVIDIA GPU; tests that need more are skipped
    python -m pytest tests/gpu --gpu-report benchmarks/results     the same with a report; started again, it goes on
    python -m pytest tests/gpu --gpu-device cpu                    the dry run: what a CPU can show; the rest is listed

`@pytest.mark.gpu(ranks=2, needs="apex", gpus=2)`: the number of ranks, what the body needs (`ranks.Needs`), and the
GPUs that are visible to the ranks: then they exchange over NCCL, else they share one, over gloo. An argument that names
Apex or TF32 needs that too. The body returns figures for the report. It uses no network and no data: images are noise.
Starting the processes takes most of the time, so several cases run at once. Each result is written when it is there,
also before pytest reaches its test.
"""

import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pipeline.base import linux
from pipeline.base.errors import UserError
from pipeline.checks import machine
from tests.gpu import ranks
from tests.gpu.ranks import Case, Result
from tests.gpu.report import Report

CORES_A_CASE = 2
REPORT = pytest.StashKey[Report]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpu")
    group.addoption("--gpu-device", choices=("cuda", "cpu"), default="cuda", help="cpu: the dry run")
    group.addoption("--gpu-report", type=Path, metavar="FOLDER", help="keep a report there, and go on after it")


def device(config: pytest.Config) -> str:
    """The device of the bodies. The options exist only if this folder is on the command line; the default is a GPU."""
    return str(config.getoption("--gpu-device", "cuda"))


def pytest_configure(config: pytest.Config) -> None:
    folder = config.getoption("--gpu-report", None)
    if folder and config.getoption("numprocesses", None):
        raise pytest.UsageError("--gpu-report: several processes (-n) cannot write it; cases run at once without -n")
    if folder and device(config) == "cuda" and machine.read().cuda_devices == 0:
        raise pytest.UsageError("--gpu-report: needs an NVIDIA GPU and its driver; the dry run: --gpu-device cpu")
    try:
        config.stash[REPORT] = Report(folder, device(config))
    except (ValueError, UserError) as error:
        raise pytest.UsageError(str(error)) from error


def case(item: pytest.Function) -> Case:
    """The case that runs for a test."""
    mark = item.get_closest_marker("gpu")
    assert mark is not None, f"{item.nodeid}: @pytest.mark.gpu is missing"
    arguments: Any = item.callspec.params if hasattr(item, "callspec") else {}
    return ranks.case(item.module.__name__, item.originalname, arguments, **mark.kwargs)


def prove(item: pytest.Function) -> Result:
    """The result of a test's case, which is added to the report."""
    result = ranks.prove(case(item), device(item.config))
    item.config.stash[REPORT].add(item.nodeid, result)
    return result


@pytest.fixture(scope="session")
def ahead(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Result]]]:
    """The results of the cases, by test. Several cases run at once."""
    config, report = request.config, request.config.stash[REPORT]
    items = [
        item for item in request.session.items if isinstance(item, pytest.Function) and "world" in item.fixturenames
    ]
    if hasattr(config, "workerinput"):
        items = []  # a worker of pytest-xdist runs few of them
    before: Any = signal.getsignal(signal.SIGINT)

    def interrupt(number: int, frame: FrameType | None) -> None:
        report.close()  # the ranks are interrupted, too, and so fail
        before(number, frame)

    pool, cases = ThreadPoolExecutor(max(1, linux.usable_cores() // CORES_A_CASE)), set(report.cases)
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield {item.nodeid: pool.submit(prove, item) for item in items if item.nodeid not in cases}
    finally:
        pool.shutdown(cancel_futures=True)
        signal.signal(signal.SIGINT, before)


@pytest.fixture
def world(request: pytest.FixtureRequest, ahead: dict[str, Future[Result]]) -> Result:
    """In the ranks: the body's World. In this process: the result of the ranks, from now or from the report."""
    if early := ahead.get(request.node.nodeid):
        return early.result()
    result = request.config.stash[REPORT].cases.get(request.node.nodeid)
    return prove(request.node) if result is None else result


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    """Skip or fail by the result of the ranks. The body has run there, and is not called here."""
    result: Any = pyfuncitem.funcargs["world"]
    if result["outcome"] == "skipped":
        pytest.skip(result["reason"])
    if result["outcome"] == "failed":
        pytest.fail(result.get("output", result["reason"]), pytrace=False)
    return True
