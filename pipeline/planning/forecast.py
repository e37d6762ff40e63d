"""Predicts what `dvc repro` does with each stage, and why: from dvc.yaml, dvc.lock, the files and DVC's cache.

The rules are those of DVC 3. A stage is unchanged if its command, its tracked params, the hashes of what it reads and
those of its outputs are as in dvc.lock, and DVC's cache has the outputs. Otherwise DVC looks into its cache: if only
outputs differ, for those of dvc.lock; else for an entry of the run cache, whose name is a hash of command, params,
hashes of what is read, and paths of the outputs. If the cache has all outputs, they are taken from it. Otherwise the
stage runs. What a run will write is not known, so a stage that reads it may run. A stage that also has a change of its
own runs, unless the run cache has an entry for the outputs as they were; then it may run, too.

Nothing is written here, except by `remember`, after a run.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache as cache_results
from functools import reduce
from graphlib import TopologicalSorter
from operator import getitem
from pathlib import Path
from typing import Any, Literal

from pipeline.base import files
from pipeline.config import document
from pipeline.config.params import Params
from pipeline.versioning import dvc_lock, identity, integrity, programs, quiet
from pipeline.versioning.dvc_lock import Hashes
from pipeline.versioning.integrity import Hashed, Output

READ = programs.TEMPORARY / "read.json"  # Hashed: the files that stages read and none writes, as dvc.lock has them
UNHASHED = ("size", "nfiles")  # keys that the name of an entry of the run cache leaves out, also among params

NEW = "new in dvc.yaml"
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
class Stage:
    """A stage of dvc.yaml with the values of now."""

    name: str
    command: str
    deps: tuple[str, ...]
    params: dict[str, dict[str, Any]]  # file → name → value
    outs: dict[str, bool]  # path → whether DVC caches it


@dataclass(frozen=True)
class Folder:
    """The project's folder: its files and DVC's cache as they are, and what DVC will have done before a stage."""

    disk: dict[str, Output]
    earlier: Hashed  # the content of READ
    cache: Path
    makers: dict[str, str] = field(default_factory=dict)  # output that will be another one → the stage that makes it
    restored: Hashes = field(default_factory=dict)  # those of them that come from DVC's cache


def forecast(config: Params, cache: Path) -> list[Forecast]:
    """The forecast of each stage, in the order of dvc.yaml. Raises UserError for unreadable files of DVC."""
    graph = dvc_lock.graph()
    locked = dvc_lock.entries() if dvc_lock.LOCK.exists() else {}
    values, read = dict(document.leaves(config.model_dump(mode="json"))), cache_results(document.read)
    stages = {name: _stage(name, values, read) for name in graph}
    paths = {path for stage in stages.values() for path in (*stage.deps, *stage.outs)}
    earlier, seconds = integrity.load_memory(READ), quiet.read_seconds()
    hashes = {path: ".dir" if Path(path).is_dir() else "" for path in sorted(paths)}
    outputs, _ = integrity.inspect_outputs(hashes, earlier | integrity.load_memory())
    folder = Folder({output.path: output for output in outputs}, earlier, cache)
    forecasts: dict[str, Forecast] = {}
    for name in TopologicalSorter(graph).static_order():
        state, reasons = _decide(stages[name], locked.get(name, {}), folder)
        forecasts[name] = Forecast(name, state, tuple(reasons), seconds.get(name))
    return [forecasts[name] for name in graph]


def _stage(name: str, values: Mapping[str, Any], read: Callable[[Path], Any]) -> Stage:
    """A stage of dvc.yaml. `values`: dotted key → value of every setting; `read`: the content of a file of params."""
    params: dict[str, dict[str, Any]] = {}
    for file, key in dvc_lock.tracked(name):
        path = identity.filled(file, values)
        with suppress(KeyError, TypeError):  # the file lacks the setting
            params.setdefault(path, {})[key] = reduce(getitem, key.split("."), read(Path(path)))
    deps = tuple(identity.filled(str(path), values) for path in dvc_lock.deps(name))
    return Stage(name, str(dvc_lock.commands()[name]), deps, params, dvc_lock.outs(name))


def _decide(stage: Stage, entry: Mapping[str, Any], folder: Folder) -> tuple[State, list[Reason]]:
    """The state of a stage, which dvc.lock has as `entry`, and its reasons. Adds to `folder` what it will change."""
    hashes: dict[str, Hashes] = dvc_lock.stage_hashes({stage.name: entry})[stage.name]
    now = {path: folder.restored.get(path, folder.disk[path].actual) for path in stage.deps}
    open_deps = {
        path: maker
        for out, maker in folder.makers.items()
        for path in stage.deps
        if out not in folder.restored and (Path(path).is_relative_to(out) or Path(out).is_relative_to(path))
    }
    now |= {path: hashes["deps"].get(path, "") for path in open_deps}  # at first, as if they stayed as they were
    of_inputs = list(_input_reasons(stage, entry, hashes["deps"], now, folder))
    of_outputs = list(_output_reasons(stage, hashes["outs"], folder)) if entry else []
    source: Hashes = {}
    state: State = "unchanged"
    if of_inputs or of_outputs:
        is_known = not of_inputs and hashes["outs"].keys() >= stage.outs.keys()
        source = {path: hashes["outs"][path] for path in stage.outs} if is_known else _run_cache(stage, now, folder)
        state = "cache" if source and all(_is_cached(*out, folder.cache) for out in source.items()) else "runs"
    if open_deps:
        state = "runs" if state == "runs" else "maybe"
    if state != "unchanged":
        folder.makers.update(dict.fromkeys(stage.outs, stage.name))
    if state == "cache":
        folder.restored.update(source)
    return state, [*of_inputs, *of_outputs, *_stage_reasons(OPEN, open_deps)]


def _input_reasons(
    stage: Stage, entry: Mapping[str, Any], expected: Hashes, now: Hashes, folder: Folder
) -> Iterator[Reason]:
    """The differences of command, params and read files. `now`: their hashes when the stage is reached."""
    if not entry:
        yield Reason("new", stage.name, "has no run in dvc.lock")
        return
    if entry.get("cmd") != stage.command:
        yield Reason("command", stage.name, values={"old": entry.get("cmd"), "new": stage.command})
    tracked = {name: value for table in stage.params.values() for name, value in table.items()}
    locked = {name: table[name] for table in entry.get("params", {}).values() for name in table if name in tracked}
    old, new = dict(document.leaves(locked)), dict(document.leaves(tracked))
    for key in old | new:
        values = {word: side[key] for word, side in (("old", old), ("new", new)) if key in side}
        if len(values) == 1 or values["old"] != values["new"]:
            yield Reason("param", key, values=values)
    changed = [path for path, md5 in now.items() if md5 != expected.get(path)]
    yield from _stage_reasons(RESTORED, {path: folder.makers[path] for path in changed if path in folder.restored})
    for path in changed:
        if path not in expected:
            yield Reason("input", path, NEW)
        elif path not in folder.restored:
            yield _difference("input", folder.disk[path], expected[path], folder)


def _stage_reasons(change: str, makers: Mapping[str, str]) -> list[Reason]:
    """A reason for each stage among `makers` (path → the stage that writes it)."""
    return [
        Reason("stage", stage, change, files={path: change for path in makers if makers[path] == stage})
        for stage in dict.fromkeys(makers.values())
    ]


def _output_reasons(stage: Stage, expected: Hashes, folder: Folder) -> Iterator[Reason]:
    """The outputs that are not as in dvc.lock, or not in DVC's cache."""
    for path, cached in stage.outs.items():
        if path not in expected:
            yield Reason("output", path, NEW)
        elif folder.disk[path].actual != expected[path]:
            yield _difference("output", folder.disk[path], expected[path], folder)
        elif cached and not _is_cached(path, expected[path], folder.cache):
            yield Reason("output", path, "not in DVC's cache")


def _difference(kind: Kind, output: Output, expected: str, folder: Folder) -> Reason:
    """How a file or folder differs from dvc.lock; with the files in a folder, if it is known what they were."""
    if not output.actual:
        return Reason(kind, output.path, "missing")
    top = f"{output.path}/"
    before = {path: str(md5) for path, (md5, *_) in folder.earlier.items() if path.startswith(top)}
    if integrity.digest_of(replace(output, files=before)) != expected:
        before = integrity.expected_files(replace(output, expected=expected), folder.cache)
    if output.path in before:  # no single file is known
        return Reason(kind, output.path)
    words = {(True, False): "removed", (False, True): "new", (True, True): "changed"}
    paths = integrity.changed_files(output, before)
    return Reason(kind, output.path, files={path: words[path in before, path in output.files] for path in paths})


def _run_cache(stage: Stage, deps: Hashes, folder: Folder) -> Hashes:
    """The outputs of the newest entry of DVC's run cache for a stage that reads these hashes; empty without one."""
    entry = {
        "cmd": stage.command,
        "deps": [{"path": path, "hash": "md5", "md5": deps[path]} for path in sorted(deps)],
        "params": _without(UNHASHED, stage.params),
        "outs": sorted(stage.outs),
    }
    text = json.dumps({key: value for key, value in entry.items() if value}, sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()
    entries = sorted((folder.cache / "runs" / key[:2] / key).glob("*"), key=lambda path: path.stat().st_mtime)
    return dvc_lock.outs_of_entry(entries[-1]) if entries else {}


def _without(keys: tuple[str, ...], value: Any) -> Any:
    """A value without these keys, in nested tables too."""
    if isinstance(value, list):
        return [_without(keys, item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _without(keys, item) for key, item in value.items() if key not in keys}


def _is_cached(path: str, md5: str, cache: Path) -> bool:
    """Whether DVC's cache has an output: the file, or every file of the folder."""
    expected = integrity.expected_files(Output(path, md5, "", {}), cache)
    return all(integrity.object_of(cache, md5).is_file() for md5 in expected.values())


def remember() -> None:
    """Write READ after a run. What was changed meanwhile stays as it was remembered."""
    if not dvc_lock.LOCK.is_file():
        return
    stages, before = dvc_lock.read(), integrity.load_memory(READ)
    outs = dvc_lock.outputs(stages)
    deps = {path: md5 for hashes in stages.values() for path, md5 in hashes["deps"].items() if path not in outs}
    inspected, hashed = integrity.inspect_outputs(deps, before)
    now: Hashed = {}
    for output in inspected:
        same = output.actual == output.expected
        top = f"{output.path}/"
        earlier = [path for path in before if path == output.path or path.startswith(top)]
        now |= {path: hashed[path] for path in output.files} if same else {path: before[path] for path in earlier}
    if now != before:
        with suppress(OSError):  # a disk that is full or read-only: `plan` then names no single files
            files.write_text(READ, json.dumps(now))
