"""Reads DVC's files: dvc.lock (what each stage read and wrote, by hash) and dvc.yaml (what each stage depends on).

`dvc repro` rewrites dvc.lock in place: if it is killed, it may leave it cut.
"""

import re
import subprocess
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.base import files
from pipeline.base.errors import damaged, missing

LOCK, YAML_FILE = Path("dvc.lock"), Path("dvc.yaml")

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


def outputs(stage_hashes: StageHashes, stages: Iterable[str] | None = None) -> Hashes:
    """The hashes of the outputs of these stages, by default of all; a stage that is not in `stage_hashes` has none."""
    names = stage_hashes if stages is None else [name for name in stages if name in stage_hashes]
    return {path: md5 for name in names for path, md5 in stage_hashes[name]["outs"].items()}


def entries(path: Path = LOCK) -> Mapping[str, Mapping[str, Any]]:
    """The stages of a dvc.lock with all that DVC writes of them. Raises UserError if it is missing or not readable."""
    try:
        stages: Mapping[str, Mapping[str, Any]] = parsed(path.read_text(encoding="utf-8"))["stages"]
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


def commands() -> dict[str, Any]:
    """The command of every stage in dvc.yaml. Raises UserError if dvc.yaml is missing or not readable."""
    return {stage: entry.get("cmd") for stage, entry in _stages().items()}


def code(stage: str) -> list[Path]:
    """The files of the project among a stage's deps, sorted: code, lock and pins. Raises UserError as `commands` does.

    The outputs of stages and a folder that a setting names (${…}) are none.
    """
    written = [out for name in _stages() for out in outs(name)]
    sources = [dep for dep in deps(stage) if not (_reads([dep], written) or str(dep).startswith("${"))]
    files = [file for dep in sources for file in (dep.rglob("*.py") if dep.is_dir() else [dep])]
    return sorted(file for file in files if not file.name.startswith("."))  # such as an editor's


def deps(stage: str) -> list[Path]:
    """The deps of a stage in dvc.yaml. Raises UserError as `commands` does."""
    return [Path(dep) for dep in _stages()[stage]["deps"]]


def tracked(stage: str) -> list[tuple[str, str]]:
    """The params of a stage in dvc.yaml: the file, and the dotted name of a setting in it or of a table of settings.

    Raises UserError as `commands` does.
    """
    entries = _stages()[stage].get("params", [])
    tables = [entry if isinstance(entry, dict) else {"params.yaml": [entry]} for entry in entries]
    return [(file, name) for table in tables for file, names in table.items() for name in names]


def graph() -> dict[str, set[str]]:
    """Stage → the stages whose outputs it reads. Raises UserError as `commands` does."""
    written = {stage: outs(stage) for stage in _stages()}
    return {stage: {maker for maker in written if _reads(deps(stage), written[maker])} for stage in written}


def _reads(deps: Iterable[Path], outs: Collection[str]) -> bool:
    """Whether one of `deps` is one of `outs`, is in one, or has one in it."""
    return any(dep.is_relative_to(out) or Path(out).is_relative_to(dep) for dep in deps for out in outs)


def outs(stage: str) -> dict[str, bool]:
    """Output → whether DVC has it in its cache, for a stage in dvc.yaml. Raises UserError as `commands` does.

    An output in dvc.yaml is a path, or a table with the path as its only key.
    """
    entries = [out for kind in ("outs", "metrics", "plots") for out in _stages()[stage].get(kind, [])]
    tables = [entry if isinstance(entry, dict) else {entry: {}} for entry in entries]
    return {path: options.get("cache", True) for table in tables for path, options in table.items()}


def _stages() -> dict[str, dict[str, Any]]:
    """The stages of dvc.yaml, each with its deps as text."""
    try:
        stages = parsed(YAML_FILE.read_text(encoding="utf-8"))["stages"]
        return {stage: entry | {"deps": [str(dep) for dep in entry.get("deps", [])]} for stage, entry in stages.items()}
    except FileNotFoundError:
        raise missing(YAML_FILE, "run from the project's folder, where it lies") from None
    except (YAMLError, UnicodeDecodeError, AttributeError, KeyError, TypeError):
        raise damaged(YAML_FILE, "not readable", f"restore it (git checkout {YAML_FILE})") from None


@lru_cache(maxsize=4)  # parsing dvc.lock takes 0.2 s, and `perennial repro` asks ten times; nobody changes the result
def parsed(text: str) -> Any:
    """The content of a YAML text. Raises YAMLError."""
    return YAML(typ="safe", pure=True).load(text)


def put_in_order() -> None:
    """Write the stages of dvc.lock in the order of dvc.yaml, in the bytes that they have. A cut file stays as it is.

    DVC writes them in the order in which they ran for the first time, which depends on the commands.
    """
    head, *blocks = re.split(r"^(?=  \w)", _whole_text(LOCK), flags=re.MULTILINE)
    order = {f"  {stage}:": number for number, stage in enumerate(_stages())}
    ordered = sorted(blocks, key=lambda block: order.get(block.partition("\n")[0], len(order)))
    if ordered != blocks:
        files.write_text(LOCK, head + "".join(ordered))


def is_cut() -> bool:
    """Whether there is a dvc.lock, and a killed DVC left it incomplete."""
    return LOCK.is_file() and not _whole_text(LOCK)


def restore() -> str:
    """Replace dvc.lock by the committed one, or remove it. Returns what was done, in words."""
    newer = "stages that had finished since then come from DVC's run cache, or run again"
    if text := _committed_text():
        files.write_text(LOCK, text)
        return f"put back as it was last committed; {newer}"
    LOCK.unlink()
    return f"none is committed, so it is removed; {newer}"


def here() -> StageHashes:
    """The stages of the dvc.lock of this folder; none without one, and of one that a killed DVC has cut."""
    return read() if LOCK.is_file() and not is_cut() else {}


def committed() -> StageHashes:
    """The stages of the dvc.lock of the last commit; none without one that is whole."""
    return stage_hashes(_table(_committed_text()).get("stages", {}))


def _committed_text() -> str:
    """The text of the dvc.lock of the last commit; empty if there is none, or it is cut."""
    shown = subprocess.run(["git", "show", f"HEAD:./{LOCK}"], capture_output=True, text=True, check=False)
    return shown.stdout if shown.returncode == 0 and is_whole(shown.stdout) else ""


def _whole_text(path: Path) -> str:
    """The text of a dvc.lock; empty if the file is missing or cut."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    return text if is_whole(text) else ""


def is_whole(text: str) -> bool:
    """Whether every stage in the text of a dvc.lock is complete.

    Stages may be missing at the end: DVC runs them again.
    """
    content = _table(text)
    if not isinstance(content.get("stages"), dict):
        return False
    return all(isinstance(entry, dict) and _stage_is_whole(entry) for entry in content["stages"].values())


def outs_of_entry(path: Path) -> Hashes:
    """The outputs in an entry of DVC's run cache, which is one stage of a dvc.lock; empty if it is not complete."""
    content = _table(path.read_text(encoding="utf-8", errors="replace"))
    return {out["path"]: str(out["md5"]) for out in content.get("outs", [])} if _stage_is_whole(content) else {}


def _table(text: str) -> dict[str, Any]:
    """A text of YAML as a table; empty if it is not a table, or its last line has no end."""
    try:
        content = parsed(text)
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
