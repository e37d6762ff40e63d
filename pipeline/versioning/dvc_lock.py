"""Reads DVC's files: dvc.lock (what each stage read and wrote, by hash) and dvc.yaml (what each stage depends on).

Also keeps a backup of dvc.lock, because DVC rewrites that file in place: a DVC that is killed leaves it cut.
"""

import subprocess
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.base import files
from pipeline.base.errors import damaged, missing

LOCK = Path("dvc.lock")
BACKUP = Path(".dvc/tmp/dvc.lock.whole")  # beside DVC's own working files: Git ignores it

Hashes = dict[str, str]  # path → MD5; for a folder: the MD5 of its listing, followed by ".dir"
StageHashes = dict[str, dict[str, Hashes]]  # stage → `deps` and `outs` → hashes


def read(path: Path = LOCK) -> StageHashes:
    """The stages of a dvc.lock. Raises UserError if it is missing or not readable."""
    return stage_hashes(entries(path))


def stage_hashes(stages: Mapping[str, Mapping[str, Any]]) -> StageHashes:
    """The hashes in the stages of a dvc.lock."""
    return {
        _string(stage): {
            kind: {_string(entry["path"]): _string(entry["md5"]) for entry in content.get(kind, [])}
            for kind in ("deps", "outs")
        }
        for stage, content in stages.items()
    }


def entries(path: Path = LOCK) -> dict[str, dict[str, Any]]:
    """The stages of a dvc.lock with all that DVC writes of them. Raises UserError if it is missing or not readable."""
    try:
        stages: dict[str, dict[str, Any]] = YAML(typ="safe", pure=True).load(path)["stages"]
        stage_hashes(stages)  # raises for a damaged file
        _ = [table.items() for content in stages.values() for table in content.get("params", {}).values()]
        return stages
    except FileNotFoundError:
        raise missing(path, "the first run writes it: perennial repro") from None
    except (YAMLError, ValueError, AttributeError, KeyError, TypeError, RecursionError, IsADirectoryError):
        remedy = f"restore it (git checkout {path.name}), or remove it; the next run writes it"
        raise damaged(path, "not readable", remedy) from None


def _string(value: Any) -> str:
    """The value itself. Raises TypeError if it is no string: YAML takes digits without quotes for a number."""
    if not isinstance(value, str):
        raise TypeError
    return value


def params(path: Path = LOCK) -> dict[str, Any]:
    """Dotted key → value of every param in a dvc.lock. Raises UserError if it is missing or not readable."""
    tables = [stage.get("params", {}).get("params.yaml", {}) for stage in entries(path).values()]
    return {key: value for table in tables for key, value in table.items()}


def commands(path: Path = Path("dvc.yaml")) -> dict[str, Any]:
    """The command of every stage in dvc.yaml. Raises UserError if dvc.yaml is missing or not readable."""
    return {stage: entry.get("cmd") for stage, entry in _stages(path).items()}


def code(stage: str, path: Path = Path("dvc.yaml")) -> list[Path]:
    """The files of the project among a stage's deps in dvc.yaml, sorted: code, lock and pins.

    The outputs of stages and a folder that a setting names (${…}) are none.
    Raises UserError if dvc.yaml is missing or not readable.
    """
    outs = [out for entry in _stages(path).values() for out in _outs(entry)]
    sources = [dep for dep in deps(stage, path) if not (_reads([dep], outs) or str(dep).startswith("${"))]
    files = [file for dep in sources for file in (dep.rglob("*.py") if dep.is_dir() else [dep])]
    return sorted(file for file in files if not file.name.startswith("."))  # such as an editor's


def deps(stage: str, path: Path = Path("dvc.yaml")) -> list[Path]:
    """The deps of a stage in dvc.yaml. Raises UserError if dvc.yaml is missing or not readable."""
    return [Path(dep) for dep in _stages(path)[stage]["deps"]]


def tracked(stage: str, path: Path = Path("dvc.yaml")) -> list[tuple[str, str]]:
    """The params of a stage in dvc.yaml: the file, and the dotted name of a setting in it or of a table of settings.

    Raises UserError if dvc.yaml is missing or not readable.
    """
    entries = _stages(path)[stage].get("params", [])
    tables = [entry if isinstance(entry, dict) else {"params.yaml": [entry]} for entry in entries]
    return [(file, name) for table in tables for file, names in table.items() for name in names]


def graph(path: Path = Path("dvc.yaml")) -> dict[str, set[str]]:
    """Stage → the stages whose outputs it reads. Raises UserError if dvc.yaml is missing or not readable."""
    stages = _stages(path)
    return {
        stage: {other for other, maker in stages.items() if _reads(map(Path, entry["deps"]), _outs(maker))}
        for stage, entry in stages.items()
    }


def _reads(deps: Iterable[Path], outs: Collection[Path]) -> bool:
    """Whether one of `deps` is one of `outs`, is in one, or has one in it."""
    return any(dep.is_relative_to(out) or out.is_relative_to(dep) for dep in deps for out in outs)


def outs(stage: str, path: Path = Path("dvc.yaml")) -> dict[str, bool]:
    """Output → whether DVC has it in its cache, for a stage in dvc.yaml.

    Raises UserError if dvc.yaml is missing or not readable.
    """
    return _outs_with_cache(_stages(path)[stage])


def _outs_with_cache(stage: Mapping[str, Any]) -> dict[str, bool]:
    """The same: an output in dvc.yaml is a path, or a table with the path as its only key."""
    outs = [out for kind in ("outs", "metrics", "plots") for out in stage.get(kind, [])]
    tables = [out if isinstance(out, dict) else {out: {}} for out in outs]
    return {path: options.get("cache", True) for table in tables for path, options in table.items()}


def _outs(stage: Mapping[str, Any]) -> list[Path]:
    """What a stage of dvc.yaml writes."""
    return list(map(Path, _outs_with_cache(stage)))


def _stages(path: Path) -> dict[str, dict[str, Any]]:
    """The stages of a dvc.yaml, each with its deps as text."""
    try:
        return _parsed(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise missing(path, "run from the project's folder, where it lies") from None
    except (YAMLError, UnicodeDecodeError, AttributeError, KeyError, TypeError):
        raise damaged(path, "not readable", f"restore it (git checkout {path.name})") from None


@lru_cache(maxsize=1)  # a study asks for each of its trainings, and parsing takes 60 ms
def _parsed(text: str) -> dict[str, dict[str, Any]]:
    stages = YAML(typ="safe", pure=True).load(text)["stages"]
    return {stage: entry | {"deps": [str(dep) for dep in entry.get("deps", [])]} for stage, entry in stages.items()}


def backup() -> None:
    """Copy dvc.lock to BACKUP, if it is whole."""
    if LOCK.is_file() and is_whole(text := _text(LOCK)):
        files.write_text(BACKUP, text)


def is_cut() -> bool:
    """Whether there is a dvc.lock, and a killed DVC left it incomplete."""
    return LOCK.is_file() and not is_whole(_text(LOCK))


def restore() -> str:
    """Replace dvc.lock by BACKUP, or by the committed one, or remove it. Returns what was done, in words."""
    if BACKUP.is_file() and is_whole(text := _text(BACKUP)):
        files.write_text(LOCK, text)
        return "put back as it was before the last run"
    committed = subprocess.run(["git", "show", f"HEAD:./{LOCK}"], capture_output=True, text=True, check=False)
    if committed.returncode == 0 and is_whole(committed.stdout):
        files.write_text(LOCK, committed.stdout)
        return "put back as it was last committed"
    LOCK.unlink()
    return "there is no earlier one, so it is removed; stages that had finished run again, or come from DVC's run cache"


def _text(path: Path) -> str:
    """The text of a file that may be damaged: bytes that are not UTF-8 are replaced."""
    return path.read_text(encoding="utf-8", errors="replace")


def is_whole(text: str) -> bool:
    """Whether every stage in the text of a dvc.lock is complete.

    Stages may be missing at the end: DVC runs them again.
    """
    content = _table(text)
    if not isinstance(content.get("stages"), dict):
        return False
    return all(isinstance(entry, dict) and _stage_is_whole(entry) for entry in content["stages"].values())


def states_a_stage(text: str) -> bool:
    """Whether the text of an entry of DVC's run cache (one stage of a dvc.lock) is complete."""
    return bool(outs_of_entry(text))


def outs_of_entry(text: str) -> Hashes:
    """The outputs in the text of an entry of DVC's run cache; empty if it is not complete."""
    content = _table(text)
    return {out["path"]: str(out["md5"]) for out in content.get("outs", [])} if _stage_is_whole(content) else {}


def _table(text: str) -> dict[str, Any]:
    """A text of YAML as a table; empty if it is not a table, or its last line has no end."""
    try:
        content = YAML(typ="safe", pure=True).load(text)
    except YAMLError:
        return {}
    return content if text.endswith("\n") and isinstance(content, dict) else {}


def _stage_is_whole(entry: dict[str, Any]) -> bool:
    deps, outs, params = entry.get("deps", []), entry.get("outs", []), entry.get("params", {})
    if "cmd" not in entry or deps is None or outs is None or params is None:
        return False
    return all(map(_file_is_whole, [*deps, *outs])) and None not in params.values()


def _file_is_whole(entry: dict[str, Any]) -> bool:
    """DVC writes path, hash, md5, size, and for a folder nfiles, in this order."""
    needed = {"path", "md5", "size"} if "hash" in entry else {"path"}
    if str(entry.get("md5")).endswith(".dir"):
        needed.add("nfiles")
    return len(entry) > 1 and needed <= entry.keys()
