"""FOLDER/gpu_tests_<device>.json: the results of all cases, written after each case, so that a second start goes on."""

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
from pipeline.training import provenance
from tests.gpu.ranks import Result

PROJECT = Path(__file__).resolve().parents[2]


class Report:
    """The results by test name, of an earlier start and of this one."""

    def __init__(self, folder: Path | None, device: str) -> None:
        """Read the report in `folder`, if any. Raises ValueError for a report of another machine or commit."""
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
        """Add a result and write the report."""
        self.cases[name] = result
        if self.path:
            files.write_json(self.path, {"conditions": self._of, "cases": self.cases})

    def lines(self) -> list[str]:
        """One line for every case with figures, and a line with the number of outcomes."""
        outcomes = Counter(result["outcome"] for result in self.cases.values())
        lines = [f"{name}: {as_text(result['figures'])}" for name, result in self.cases.items() if "figures" in result]
        total = ", ".join(f"{outcomes[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped"))
        return [*lines, f"{total}: {self.path}" if self.path else total]


def as_text(figures: dict[str, Any]) -> str:
    """Figures as one line."""
    return ", ".join(f"{key} {measuring.formatted(value)}" for key, value in figures.items())


def head(device: str) -> dict[str, Any]:
    """What a report is valid for: machine, versions, commit, and a digest of the code, as there may be no git."""
    world = World(0, 0, 1, torch.device("cuda", 0) if device == "cuda" else torch.device("cpu"))
    pins = (PROJECT / "docker/pins.env").read_text().splitlines()
    of = {
        **measuring.machine(),
        **provenance.hardware(world, 1, "native"),
        "cuda": torch.version.cuda or "",
        "cudnn": torch.backends.cudnn.version(),
        "apex": machine.read().apex,
        "apex_commit_pinned": next(pin.partition("=")[2] for pin in pins if pin.startswith("APEX_COMMIT=")),
        "code": code(),
    }
    return dict(json.loads(json.dumps(of)))


def code() -> str:
    """SHA-256 of the pipeline's code and of these tests."""
    sha = hashlib.sha256()
    for path in sorted(path for folder in ("pipeline", "tests/gpu") for path in (PROJECT / folder).rglob("*.py")):
        sha.update(f"{path.relative_to(PROJECT)}\n".encode() + path.read_bytes())
    return sha.hexdigest()
