"""Reads DVC's files: dvc.lock (what each stage read and wrote, by hash) and dvc.yaml (what each stage depends on).

`dvc repro` rewrites dvc.lock in place: if it is killed, it may leave it cut.
"""

import re
import subprocess
from collections.abc import Collection, Container, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.base import files, schema
from pipeline.base.errors import UserError, damaged, missing

LOCK, YAML_FILE = Path("dvc.lock"), Path("dvc.yaml")
UNREADABLE = (YAMLError, ValueError, AttributeError, KeyError, TypeError, RecursionError)  # raised for a wrong content

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
    remedy = f"restore it (git checkout {path.name}), or remove it; the next run writes it"
    try:
        return _whole(_text(path, remedy, "the first run writes it: perennial repro"))
    except UNREADABLE:
        raise damaged(path, "not readable", remedy) from None


def _text(path: Path, remedy: str, if_missing: str) -> str:
    """The text of a file of DVC. Raises UserError if it is missing, or no file of text."""
    if not path.exists():
        raise missing(path, if_missing)
    with schema.reading(path, remedy):
        return path.read_text(encoding="utf-8")


def _whole(text: str, is_stage: bool = False) -> Mapping[str, Mapping[str, Any]]:
    """The stages in the text of a dvc.lock, or the only stage in an entry of the run cache.

    Raises one of UNREADABLE if it is cut. Lines at its end may be missing if DVC then brings their stage up to date.
    """
    stages: Mapping[str, Mapping[str, Any]] = {"": parsed(text)} if is_stage else parsed(text)["stages"]
    stage_hashes(stages)
    for content in stages.values():
        _ = [table.items() for table in content.get("params", {}).values()]
        # DVC writes path, hash, md5, size, and for a folder nfiles, and compares md5 alone.
        _ = [out["nfiles" if ".dir" in out["md5"] else "size"] for out in content.get("outs", []) if "hash" in out]
    if not text.endswith("\n"):
        raise ValueError
    return stages


def _string(value: Any) -> str:
    """The value itself. Raises TypeError if it is no string: YAML takes digits without quotes for a number."""
    if not isinstance(value, str):
        raise TypeError
    return value


def params(path: Path = LOCK, without: Container[str] = ()) -> dict[str, Any]:
    """Dotted key → value of every param in a dvc.lock, but for those of the stages `without`.

    Raises UserError if the file is missing or not readable.
    """
    stages = [stage for name, stage in entries(path).items() if name not in without]
    tables = [stage.get("params", {}).get("params.yaml", {}) for stage in stages]
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
    remedy = f"restore it (git checkout {YAML_FILE})"
    try:
        stages = parsed(_text(YAML_FILE, remedy, "run from the project's folder, where it lies"))["stages"]
        return {stage: entry | {"deps": [str(dep) for dep in entry.get("deps", [])]} for stage, entry in stages.items()}
    except UNREADABLE:
        raise damaged(YAML_FILE, "not readable", remedy) from None


@lru_cache(maxsize=4)  # parsing dvc.lock takes 0.2 s, and `perennial repro` asks ten times; nobody changes the result
def parsed(text: str) -> Any:
    """The content of a YAML text. Raises YAMLError."""
    return YAML(typ="safe", pure=True).load(text)


def put_in_order() -> None:
    """Write the stages of dvc.lock in the order of dvc.yaml, in the bytes that they have.

    DVC writes them in the order in which they ran for the first time, which depends on the commands.
    """
    text = LOCK.read_text(encoding="utf-8") if LOCK.is_file() else ""
    head, *blocks = re.split(r"^(?=  \w)", text, flags=re.MULTILINE)
    order = {f"  {stage}:": number for number, stage in enumerate(_stages())}
    ordered = sorted(blocks, key=lambda block: order.get(block.partition("\n")[0], len(order)))
    if ordered != blocks:
        files.write_text(LOCK, head + "".join(ordered))


def is_cut() -> bool:
    """Whether there is a dvc.lock, and it is not readable, as a killed DVC leaves it."""
    with suppress(UserError):
        entries()
        return False
    return LOCK.is_file()


def restore() -> str:
    """Replace dvc.lock by the committed one, or remove it. Returns what was done, in words."""
    newer = "stages that had finished since then come from DVC's run cache, or run again"
    if text := _committed_text():
        files.write_text(LOCK, text)
        return f"put back as it was last committed; {newer}"
    LOCK.unlink()
    return f"none is committed, so it is removed; {newer}"


def here() -> StageHashes:
    """The stages of the dvc.lock of this folder; none without one that is readable."""
    with suppress(UserError):
        return read()
    return {}


def committed() -> StageHashes:
    """The stages of the dvc.lock of the last commit; none without one that is readable."""
    text = _committed_text()
    return stage_hashes(_whole(text)) if text else {}


def _committed_text() -> str:
    """The text of the dvc.lock of the last commit; empty if there is none, or it is not readable."""
    shown = subprocess.run(["git", "show", f"HEAD:./{LOCK}"], capture_output=True, check=False)
    with suppress(*UNREADABLE):
        text = shown.stdout.decode()
        _whole(text)
        return text
    return ""


def outs_of_entry(path: Path) -> Hashes:
    """The outputs in an entry of DVC's run cache, which is one stage of a dvc.lock; empty if it is cut."""
    with suppress(*UNREADABLE):
        return stage_hashes(_whole(path.read_text(encoding="utf-8"), is_stage=True))[""]["outs"]
    return {}
