"""FOLDER/gpu_tests_<device>.json: what every case found, written after each, so that a second start can go on."""

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import measuring
from pipeline.base import files
from pipeline.config import machine
from pipeline.engine.world import World
from pipeline.training import runs
from tests.gpu.ranks import Result

PROJECT = Path(__file__).resolve().parents[2]


class Report:
    """The results by the tests' names: those of an earlier start, and those that are added."""

    def __init__(self, folder: Path | None, device: str) -> None:
        """Without a folder nothing is read or written. Raises ValueError for a report of another machine or commit."""
        self.path = folder / f"gpu_tests_{device}.json" if folder else None
        self.cases: dict[str, Result] = {}
        if self.path:
            self._of = head(device)
            if self.path.exists():
                self.cases = self._earlier(self.path)

    def _earlier(self, path: Path) -> dict[str, Result]:
        earlier = json.loads(path.read_text())
        if earlier["conditions"] != self._of:
            raise ValueError(
                f"{path}: of another machine, environment or commit; remove it, or choose another --gpu-report"
            )
        return dict(earlier["cases"])

    def add(self, name: str, result: Result) -> None:
        """Note a result, and write the report."""
        self.cases[name] = result
        if self.path:
            files.write_json(self.path, {"conditions": self._of, "cases": self.cases})

    def lines(self) -> list[str]:
        """A line for every case that found figures, and one for all of them."""
        outcomes = Counter(result["outcome"] for result in self.cases.values())
        found = [f"{name}: {told(result['figures'])}" for name, result in self.cases.items() if "figures" in result]
        total = ", ".join(f"{outcomes[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped"))
        return [*found, f"{total}: {self.path}" if self.path else total]


def told(figures: dict[str, Any]) -> str:
    """Figures in one line."""
    return ", ".join(f"{key} {measuring.formatted(value)}" for key, value in figures.items())


def head(device: str) -> dict[str, Any]:
    """What the report is valid for: the machine, the versions, the commit, and the code (there may be no git)."""
    world = World(0, 0, 1, torch.device("cuda", 0) if device == "cuda" else torch.device("cpu"))
    pins = (PROJECT / "docker/pins.env").read_text().splitlines()
    of = {
        **measuring.machine(),
        **runs.hardware(world, 1),
        "cuda": torch.version.cuda or "",
        "cudnn": torch.backends.cudnn.version(),
        "apex": machine.read().apex,
        "apex_commit_pinned": next(pin.partition("=")[2] for pin in pins if pin.startswith("APEX_COMMIT=")),
        "code": code(),
    }
    return dict(json.loads(json.dumps(of)))


def code() -> str:
    """SHA-256 over the code that is shown, and that of these tests."""
    found = hashlib.sha256()
    for path in sorted(path for folder in ("pipeline", "tests/gpu") for path in (PROJECT / folder).rglob("*.py")):
        found.update(f"{path.relative_to(PROJECT)}\n".encode() + path.read_bytes())
    return found.hexdigest()
