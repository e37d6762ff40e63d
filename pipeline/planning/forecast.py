"""Predicts what `dvc repro` does with each stage, and why. DVC is asked, and nothing is written.

DVC says which command, params, inputs and outputs of a stage are not as in dvc.lock, and which entry of its run cache
fits. What a stage takes from DVC's cache is known, and the stages after it are asked about that. What a run will write
is not known, so a stage that reads it may run. A stage that also has a change of its own runs, unless the run cache has
an entry for the outputs as they were; then it may run, too.

Only the names of changed files in a folder are found here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, Literal

from pipeline.config import document
from pipeline.versioning import dvc_lock, in_process, integrity, questions
from pipeline.versioning.dvc_lock import Hashes

NEW = "new in dvc.yaml"
CHANGES = {"deleted": "missing", "modified": "changed", "new": NEW, "not in cache": "not in DVC's cache"}  # DVC's words
RESTORED, OPEN = "from an earlier run", "not known"  # what a stage before it writes

State = Literal["unchanged", "cache", "runs", "maybe"]
Kind = Literal["new", "command", "param", "input", "output", "stage"]


@dataclass(frozen=True)
class Reason:
    """A difference between a stage in dvc.lock and now."""

    kind: Kind
    name: str  # of a param; the path of an input or output; of a stage before it, for the kind `stage`
    change: str = "changed"  # in words; for a stage before it: RESTORED or OPEN
    values: Mapping[str, Any] = field(default_factory=dict)  # `old` and `new`, of a command or a param, if there is one
    files: Mapping[str, str] = field(default_factory=dict)  # path → how it changed; empty if no single file is known


@dataclass(frozen=True)
class Forecast:
    """What `dvc repro` does with a stage."""

    stage: str
    state: State
    reasons: tuple[Reason, ...]
    seconds: float | None  # of its last run; None: not known


@dataclass(frozen=True)
class Folder:
    """The project's folder as it is, and what DVC will have done before a stage."""

    locked: Mapping[str, Mapping[str, Any]]  # the stages of dvc.lock
    cache: Path
    listings: Mapping[str, tuple[str, Hashes]]  # the content of in_process.LISTINGS
    makers: dict[str, str] = field(default_factory=dict)  # output that will be another one → the stage that makes it
    restored: Hashes = field(default_factory=dict)  # those of them that come from DVC's cache


def forecast() -> list[Forecast]:
    """The forecast of each stage, in the order of dvc.yaml. Raises UserError for unreadable files of DVC."""
    locked = dvc_lock.entries() if dvc_lock.LOCK.exists() else {}
    seconds, forecasts = in_process.read_notes(in_process.SECONDS), dict[str, Forecast]()
    with questions.asked() as repo:
        stages = questions.stages(repo)
        graph = dvc_lock.graph()
        cache = Path(repo.cache.local_cache_dir)
        folder = Folder(locked, cache, in_process.read_notes(in_process.LISTINGS))
        for name in TopologicalSorter(graph).static_order():
            state, reasons = _decide(stages[name], folder)
            forecasts[name] = Forecast(name, state, tuple(reasons), seconds.get(name))
    return [forecasts[name] for name in graph]


def _decide(stage: Any, folder: Folder) -> tuple[State, list[Reason]]:
    """The state of a stage of DVC, and its reasons. Adds to `folder` what the stage will change."""
    name = stage.addressing
    inputs = [dep for dep in stage.deps if not questions.is_params(dep)]
    open_deps = {
        dep.def_path: maker
        for out, maker in folder.makers.items()
        for dep in inputs
        if out not in folder.restored and _overlap(Path(dep.def_path), Path(out))
    }
    now = {
        dep.def_path: dep.hash_info.value or "" for dep in inputs
    }  # at first, as if the open ones stayed as they were
    for dep in inputs:
        if dep.def_path not in open_deps:
            now[dep.def_path] = folder.restored.get(dep.def_path) or (dep.get_hash().value if dep.exists else "")
    of_inputs = list(_input_reasons(stage, inputs, now, folder))
    of_outputs = list(_output_reasons(stage, folder)) if name in folder.locked else []
    source: Hashes = {}
    state: State = "unchanged"
    if of_inputs or of_outputs:
        source = questions.cached_outputs(stage, now, changed=bool(of_inputs))
        state = "cache" if source else "runs"
    if open_deps:
        state = "runs" if state == "runs" else "maybe"
    if state != "unchanged":
        folder.makers.update(dict.fromkeys((out.def_path for out in stage.outs), name))
    if state == "cache":
        folder.restored.update(source)
    return state, [*of_inputs, *of_outputs, *_stage_reasons(OPEN, open_deps)]


def _overlap(one: Path, other: Path) -> bool:
    """Whether one path is the other one, or lies in it."""
    return one.is_relative_to(other) or other.is_relative_to(one)


def _input_reasons(stage: Any, inputs: list[Any], now: Hashes, folder: Folder) -> Iterator[Reason]:
    """The differences of command, params and read files. `now`: their hashes when the stage is reached."""
    entry = folder.locked.get(stage.addressing)
    if entry is None:
        yield Reason("new", stage.addressing, "has no run in dvc.lock")
        return
    if stage.cmd_changed:
        yield Reason("command", stage.addressing, values={"old": entry.get("cmd"), "new": stage.cmd})
    tracked, new = questions.params_of(stage)
    old = {name: table[name] for table in entry.get("params", {}).values() for name in table if name in tracked}
    before, after = dict(document.leaves(old)), dict(document.leaves(new))
    for key in before | after:
        values = {word: side[key] for word, side in (("old", before), ("new", after)) if key in side}
        if len(values) == 1 or values["old"] != values["new"]:
            yield Reason("param", key, values=values)
    expected = {dep.def_path: dep.hash_info.value or "" for dep in inputs}
    changed = [path for path, md5 in now.items() if md5 != expected[path]]
    yield from _stage_reasons(RESTORED, {path: folder.makers[path] for path in changed if path in folder.restored})
    for path in changed:
        if not expected[path]:
            yield Reason("input", path, NEW)
        elif path not in folder.restored:
            yield _difference("input", path, expected[path], folder)


def _stage_reasons(change: str, makers: Mapping[str, str]) -> list[Reason]:
    """A reason for each stage among `makers` (path → the stage that writes it)."""
    return [
        Reason("stage", stage, change, files={path: change for path in makers if makers[path] == stage})
        for stage in dict.fromkeys(makers.values())
    ]


def _output_reasons(stage: Any, folder: Folder) -> Iterator[Reason]:
    """The outputs that are not as in dvc.lock, or not in DVC's cache."""
    for out in stage.outs:
        for change in [*out.workspace_status().values(), *out.status().values()][:1]:
            if change == "modified" and out.hash_info:
                yield _difference("output", out.def_path, out.hash_info.value, folder)
            else:
                yield Reason("output", out.def_path, CHANGES[change] if out.hash_info else NEW)


def _difference(kind: Kind, path: str, expected: str, folder: Folder) -> Reason:
    """How a file or folder differs from dvc.lock; with the files in a folder, if it is known what they were."""
    if not Path(path).exists():
        return Reason(kind, path, "missing")
    (output,), _ = integrity.inspect_outputs({path: ".dir" if Path(path).is_dir() else ""}, integrity.load_memory())
    known, listing = folder.listings.get(path, ("", {}))
    before = {f"{path}/{name}": md5 for name, md5 in listing.items()}
    if known != expected:
        before = integrity.expected_files(replace(output, expected=expected), folder.cache)
    if path in before:  # no single file is known
        return Reason(kind, path)
    words = {(True, False): "removed", (False, True): "new", (True, True): "changed"}
    paths = integrity.changed_files(output, before)
    return Reason(kind, path, files={path: words[path in before, path in output.files] for path in paths})
