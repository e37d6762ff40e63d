"""A plugin of pytest that prints the CPU seconds of a test run by file, beside those that tests/budget.json has.

    python -m pytest -m "not gpu and not slow"                   the dearest files, and the sum beside the recorded one
    python -m pytest -m "not gpu and not slow" --write-budget    the same, and the files that ran are recorded
    python -m tests.helpers.budget "image-test" [--write]        the same for lines `SECONDS STEP` on standard input

Counted are the process of the tests, its children that it has waited for, and the server that forks (starts.py).
CPU seconds depend on other work of the machine much less than seconds do, but they differ by a tenth from run to run.
So no test fails because of them. Each expression after -m has its own record.
"""

import json
import resource
import sys
from collections import defaultdict
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import starts

RECORDED = Path(__file__).resolve().parents[1] / "budget.json"
IMPORTS = "imports, collection"  # of all workers: each one imports every file
MOST = 15
SECONDS = pytest.StashKey[defaultdict[str, float]]()  # by file
KEY = "cpu_seconds"


def spent() -> float:
    """CPU seconds of this process, of its children that have ended, and of the server that forks for it."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + starts.server_seconds()


def table(seconds: Mapping[str, float], recorded: Mapping[str, float], most: int = MOST) -> list[str]:
    """Lines for the terminal: the dearest files, then the sum; beside each, the recorded seconds of the same files."""
    dearest = sorted(seconds, key=lambda file: (-seconds[file], file))
    before = {file: f"{recorded[file]:.0f}" if file in recorded else "-" for file in dearest}
    lines = [f"{seconds[file]:6.0f}  {before[file]:>8}  {file}" for file in dearest[:most]]
    both = sum(recorded[file] for file in seconds if file in recorded)
    lines.append(f"{sum(seconds.values()):6.0f}  {both:8.0f}  sum of {len(seconds)}")
    return [f"{'CPU s':>6}  {'recorded':>8}", *lines]


def records() -> dict[str, dict[str, float]]:
    """The recorded seconds: expression after -m → file → seconds."""
    return json.loads(RECORDED.read_bytes()) if RECORDED.exists() else {}


def merged(old: Mapping[str, dict[str, float]], ring: str, seconds: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """The records with the seconds of a run. A record of a file that is gone is left out."""
    files = {**old.get(ring, {}), **{file: round(value, 1) for file, value in seconds.items()}}
    current = {file: files[file] for file in sorted(files) if file == IMPORTS or (RECORDED.parents[1] / file).exists()}
    return {**old, ring: current}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --write-budget."""
    parser.addoption("--write-budget", action="store_true", help="record the CPU seconds of this run's files")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to count."""
    config.stash[SECONDS] = defaultdict(float)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Add the seconds of a test and its fixtures to those of its file."""
    before = spent()
    result = yield
    item.config.stash[SECONDS][item.nodeid.split("::")[0]] += spent() - before
    return result


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Add what no test has spent. In a worker of pytest-xdist: send the seconds to the main process."""
    seconds = session.config.stash[SECONDS]
    if not session.config.pluginmanager.has_plugin("dsession"):  # this one runs the tests itself
        seconds[IMPORTS] += spent() - sum(seconds.values())
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[KEY] = dict(seconds)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add the seconds of a worker, unless it was killed."""
    for file, seconds in getattr(node, "workeroutput", {}).get(KEY, {}).items():
        node.config.stash[SECONDS][file] += seconds


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the table, and record it on request."""
    seconds, ring, old = config.stash[SECONDS], config.getoption("markexpr"), records()
    terminalreporter.section("CPU seconds by file")
    for line in table(seconds, old.get(ring, {})):
        terminalreporter.write_line(line)
    if config.getoption("--write-budget"):
        write(merged(old, ring, seconds))


def write(budget: Mapping[str, dict[str, float]]) -> None:
    """Write the records."""
    RECORDED.write_text(json.dumps(budget, indent=1, sort_keys=True) + "\n")


def main(name: str, *options: str) -> None:
    """Print the steps of a program beside those of its record `name`; with --write, record them instead of the old."""
    steps = {step: float(seconds) for seconds, step in (line.strip().split(" ", 1) for line in sys.stdin)}
    old = records()
    print(*table(steps, old.get(name, {}), most=len(steps)), sep="\n")
    if options == ("--write",):
        write({**old, name: steps})


if __name__ == "__main__":
    main(*sys.argv[1:])
