"""The house: who may import whom, which library has which owner, and what a stage depends on."""

import ast
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from pipeline import locks
from tests.conftest import PROJECT, limited, read_params

ROOMS = {
    path.relative_to(PROJECT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__"): path
    for path in sorted((PROJECT / "pipeline").rglob("*.py"))
}

# Who may import whom; nothing else is allowed. What stands higher may not look down.
BASE = {"errors", "files", "reading"}
ENGINE = {
    "engine.distributed", "engine.precision", "engine.parallel", "engine.checkpoint", "engine.loop", "engine.ema",
    "engine.optimizers", "engine.stopping", "engine.elastic", "engine.agreement", "engine.variables",
    "engine.frozen",
}  # fmt: skip
STAGE = {*BASE, "params", "stage"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(), "files": set(), "machine": set(), "schedule": set(), "sampling": set(), "synthetic": {"files"},
    "params": {"errors"}, "reading": {"errors"},
    "validity": {"machine", "params", "zoo"},
    "zoo": set(),
    "weights": BASE,
    "stage": {"errors", "intact", "machine", "params", "validity"},
    "intact": {*BASE, "locks", "params"},
    "mend": {*BASE, "intact", "locks", "machine"},
    "images": BASE,
    "packed": BASE,
    "compiled": set(),
    "resample": {"sampling", "compiled"},
    "augment": {"sampling", "resample"},
    "residency": {"errors"},
    "model": {"errors"},
    "metrics": set(),
    "engine": set(), "engine.distributed": {"errors"}, "engine.variables": set(),
    "engine.agreement": {"engine.distributed", "errors"},
    "engine.checkpoint": {"files"}, "engine.ema": set(),
    "engine.precision": {"engine.apex"},  # these three import it only when it is asked for
    "engine.parallel": {"engine.distributed", "engine.apex", "engine.elastic"},
    "engine.elastic": {"engine.distributed"},
    "engine.optimizers": {"engine.apex"},
    "engine.apex": {"engine.precision"},
    "engine.loop": {"engine.precision", "engine.parallel", "engine.ema"},
    "engine.stopping": {"errors", "engine.distributed", "engine.frozen"}, "engine.frozen": {"engine.distributed"},
    "inference": {"augment", "reading", "residency", "sampling", *ENGINE},
    "monitor": {"augment", "engine.loop"},
    "runs": {*BASE, "intact", "locks", "packed", "params", "engine.checkpoint", "engine.distributed",
             "engine.agreement", "engine.variables"},
    "report": {"files", "packed"},
    "download": {*STAGE, "synthetic", "weights"},
    "split": {*STAGE, "images"},
    "prepare": {*STAGE, "images", "packed"},
    "launch": {*STAGE, "engine.distributed", "engine.frozen", "engine.variables", "engine.stopping", "engine.apex",
               "validity"},
    "trained": {*BASE, *ENGINE, "augment", "inference", "model", "residency"},
    "train": {*STAGE, *ENGINE, "augment", "inference", "model", "monitor", "packed", "residency", "runs", "sampling",
              "schedule", "trained", "weights"},
    "evaluate": {*STAGE, *ENGINE, "metrics", "packed", "report", "residency", "runs", "trained"},
    "predict": {*STAGE, *ENGINE, "images", "machine", "residency", "trained"},
    "checks": {"machine", "params", "validity", "engine.apex"},
    "doctor": {"checks", "errors", "machine", "params", "validity"},
    "demo": {"errors", "files", "locks"},
    "repro": {*STAGE, "intact", "locks", "mend"},
    "verify": {*BASE, "intact", "locks", "params", "stage"},
    "locks": {"errors"},
    "": {"errors"},
}  # fmt: skip
OWNERS = {
    "yaml": set(), "ruamel": {"params", "locks"}, "pydantic": {"params", "reading"},
    "pydantic_core": {"params"},
    "PIL": {"images", "report", "synthetic"}, "imagehash": {"split"}, "scipy": {"split"},
    "pooch": {"download"}, "requests": {"download"}, "tarfile": {"download"}, "zipfile": {"download"},
    "torchvision": {"model", "monitor", "weights"}, "tensorboard": set(),
    "safetensors": {"trained", "weights", "verify"},
    "apex": {"engine.apex"}, "dvc": set(), "sklearn": set(), "numba": {"compiled"}, "ctypes": {"machine", "stage"},
}  # fmt: skip


def imports(path: Path) -> set[str]:
    """Every module that a file imports, anywhere in it, absolutely and dotted."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def rooms_of(path: Path) -> set[str]:
    """The rooms that a file imports."""
    return {name for name in imports(path) if name in ROOMS} - {"pipeline", "pipeline.engine"}


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_imports_run_one_way(room: str) -> None:
    """A room imports only the rooms it may."""
    allowed = ALLOWED[room.removeprefix("pipeline").removeprefix(".")]
    assert {name.removeprefix("pipeline.") for name in rooms_of(ROOMS[room])} <= allowed


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_library_has_an_owner(room: str) -> None:
    """A library is imported by its owner alone."""
    here = room.removeprefix("pipeline").removeprefix(".")
    for name in imports(ROOMS[room]):
        library = name.split(".")[0]
        assert here in OWNERS.get(library, {here}), f"{here} imports {library}"
        if name.startswith("torch.distributed"):
            assert here in {"engine.distributed", "launch"}, f"{here} imports torch.distributed"


def closure(room: str) -> set[Path]:
    """The files that a room imports, directly and through others, and the packages they lie in."""
    found, todo = set(), {room}
    while todo:
        name = todo.pop()
        found.add(name)
        found |= {name.rpartition(".")[0]} if "." in name else set()
        todo |= rooms_of(ROOMS[name]) - found
    return {ROOMS[name].relative_to(PROJECT) for name in found}


def stages() -> dict[str, Any]:
    table: dict[str, Any] = YAML(typ="safe", pure=True).load(PROJECT / "dvc.yaml")["stages"]
    return table


@pytest.mark.parametrize("stage", sorted(stages()))
def test_a_stage_depends_on_what_it_imports(stage: str) -> None:
    """The Python files among a stage's deps are exactly those its processes import, and the lock is one of them."""
    deps = [Path(dep) for dep in stages()[stage]["deps"] if not dep.startswith("${")]
    assert Path("requirements/lock.txt") in deps
    named = {
        file.relative_to(PROJECT)
        for dep in deps
        if dep.parts[0] == "pipeline"
        for file in ((PROJECT / dep).rglob("*.py") if (PROJECT / dep).is_dir() else [PROJECT / dep])
    }
    starts = {"pipeline." + stage} | ({"pipeline.launch"} if "launch" in stages()[stage]["cmd"] else set())
    imported = set().union(*(closure(start) for start in starts))
    engine = {file.relative_to(PROJECT) for file in (PROJECT / "pipeline/engine").rglob("*.py")}
    if imported & engine:
        imported |= engine  # the engine is one dependency
    assert named == imported


def tracked(table: dict[str, Any], name: str) -> Any:
    """What params.yaml has under a dotted name."""
    for key in name.split("."):
        table = table[key]
    return table


def leaves(value: Any, name: str = "") -> Iterator[str]:
    """The dotted names of everything in nested tables that is no table."""
    if not isinstance(value, dict):
        yield name
        return
    for key, inner in value.items():
        yield from leaves(inner, f"{name}.{key}" if name else key)


def params_of(stage: str) -> list[str]:
    """What a stage tracks of params.yaml, as dvc.yaml names it."""
    return [name for name in stages()[stage]["params"] if isinstance(name, str)]


@pytest.mark.parametrize("stage", sorted(stages()))
def test_no_tracked_table_holds_a_key_that_the_run_cache_leaves_out(stage: str) -> None:
    """DVC's run cache compares no key called size or nfiles inside a table: such a key is tracked by its full name."""
    raw = read_params()
    inside = [f"{name}.{leaf}" for name in params_of(stage) for leaf in leaves(tracked(raw, name)) if leaf]
    assert [name for name in inside if name.split(".")[-1] in ("size", "nfiles")] == []
    assert "size" not in params_of(stage)


def test_every_param_is_tracked_but_for_those_that_decide_no_byte() -> None:
    """A key that is added to a section which dvc.yaml names key by key is not forgotten there."""
    raw = read_params()
    seen = {
        ".".join(part for part in (name, leaf) if part)
        for stage in stages()
        for name in params_of(stage)
        for leaf in leaves(tracked(raw, name))
    }
    left_out = {name for name in leaves(raw) if name not in seen and not name.startswith(("paths.", "run."))}
    assert left_out == {"data.url"}


def test_the_fingerprint_covers_the_code_that_train_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of such a file begins a new run; a change of another one (the demo, the doctor) ends no run."""
    monkeypatch.chdir(PROJECT)
    imported = closure("pipeline.train") | closure("pipeline.launch")
    code = set(locks.code("train"))
    assert imported <= code
    assert {Path("requirements/lock.txt"), Path("docker/pins.env")} <= code
    assert not code & {Path("pipeline/demo.py"), Path("pipeline/doctor.py"), Path("pipeline/predict.py")}


@pytest.mark.parametrize("module", ["params", "download", "split", "prepare", "validity"])
def test_what_needs_no_torch_imports_none(module: str) -> None:
    """Importing the stages before train takes no torch, and so no seconds."""
    code = f"import sys, pipeline.{module}; sys.exit('torch' in sys.modules or 'torchvision' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=True)


def test_the_lock_names_no_address() -> None:
    """requirements/lock.txt holds names, versions and hashes, and nothing that says where from."""
    text = (PROJECT / "requirements/lock.txt").read_text()
    assert "://" not in text
    assert "--index" not in text
    assert text.count("--hash=sha256:") > 100


def test_every_direct_dependency_has_a_reason() -> None:
    """Each line of pyproject.toml's dependencies says what it is for."""
    text = (PROJECT / "pyproject.toml").read_text()
    block = text[text.index("dependencies = [") : text.index("]\n\n[dependency-groups]")]
    lines = [line for line in block.splitlines()[1:] if line.strip()]
    assert len(lines) >= 10
    assert all("  #" in line for line in lines)


def test_no_test_waits_without_end() -> None:
    """What a test started is killed when its time is over, and the test fails with the names of what it waited for."""
    with (
        subprocess.Popen(["sleep", "1000"]) as started,
        pytest.raises(pytest.fail.Exception, match=r"more than 1 s; killed: .*sleep 1000"),
        limited(1),
    ):
        started.wait()
    assert started.returncode == -signal.SIGKILL
    with pytest.raises(pytest.fail.Exception, match="more than 1 s"), limited(1, longer=1):
        time.sleep(1000)


def test_every_command_ends_alike() -> None:
    """Who can be started with `python -m` ends in `errors.exit_status`, and nobody else prints a UserError."""
    for room, path in ROOMS.items():
        text = path.read_text()
        if '__name__ == "__main__"' in text:
            assert "exit_status(" in text or "stage.main(" in text, room
    written = {room for room, path in ROOMS.items() if "except UserError" in path.read_text()}
    assert written <= {f"pipeline.{name}" for name in ("errors", "launch", "predict", "runs")}
