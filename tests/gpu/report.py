"""FOLDER/gpu_tests_<device>.json: the results of all cases, written after each case, so that a second start goes on."""

import json
import threading
from pathlib import Path
from typing import Any

from benchmarks.harness import measuring
from pipeline.base import files
from pipeline.checks import machine
from pipeline.learning import environment
from tests.gpu.ranks import Result

PROJECT = Path(__file__).resolve().parents[2]


class Report:
    """The results by test name, of an earlier start and of this one."""

    def __init__(self, folder: Path | None, device: str) -> None:
        """Read the report in `folder`, if any. Raises ValueError for one of another machine or other code.

        Cases that were skipped are proved again: the machine may have Apex now.
        """
        self.path = folder / f"gpu_tests_{device}.json" if folder else None
        self.cases: dict[str, Result] = {}
        self._is_open, self._writing = True, threading.Lock()
        if self.path:
            self._conditions = head(device)
            if self.path.exists():
                self.cases = self._earlier(self.path)

    def _earlier(self, path: Path) -> dict[str, Result]:
        earlier = json.loads(path.read_text())
        if measuring.comparable(earlier["conditions"]) != measuring.comparable(self._conditions):
            raise ValueError(
                f"{path}: of another machine, environment or code; remove it, or choose another --gpu-report"
            )
        return {name: case for name, case in earlier["cases"].items() if case["outcome"] != "skipped"}

    def add(self, name: str, result: Result) -> None:
        """Add a result and write the report. Several threads may call this."""
        with self._writing:
            if not self._is_open:
                return
            self.cases[name] = result
            if self.path:
                self.cases[name] |= {"host": measuring.listed(self._conditions)}
                files.write_json(self.path, {"conditions": self._conditions, "cases": self.cases})

    def close(self) -> None:
        """Add no further results. A signal handler may call this: it waits for no thread."""
        self._is_open = False


def head(device: str) -> dict[str, Any]:
    """What a report is valid for: machine, versions, code, and the variables that change numbers.

    Raises UserError on a GPU without a commit.
    """
    pins = (PROJECT / "docker/pins.env").read_text().splitlines()
    measuring.check_commit(device)
    conditions = {
        **measuring.machine(),
        **environment.numeric_variables(environment.initial_variables()),
        "device": device,
        "apex": machine.read().apex,
        "apex_commit_pinned": next(pin.partition("=")[2] for pin in pins if pin.startswith("APEX_COMMIT=")),
    }
    return dict(json.loads(json.dumps(conditions)))
