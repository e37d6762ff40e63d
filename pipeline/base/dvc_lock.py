"""What DVC's files say of the stages: dvc.lock, what each read and wrote, by hash; dvc.yaml, what each depends on."""

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.base.errors import UserError

Hashes = dict[str, str]  # path → MD5; of a folder, that of its listing, with ".dir" behind it


def read(path: Path) -> dict[str, dict[str, Hashes]]:
    """The `deps` and `outs` of every stage of a dvc.lock. Raises UserError if it is missing or cannot be understood."""
    try:
        stages = YAML(typ="safe", pure=True).load(path)["stages"]
        return {
            stage: {kind: {entry["path"]: entry["md5"] for entry in content.get(kind, [])} for kind in ("deps", "outs")}
            for stage, content in stages.items()
        }
    except FileNotFoundError:
        raise UserError(f"{path}: not found; nothing is claimed before the pipeline has run: dvc repro") from None
    except (YAMLError, ValueError, AttributeError, KeyError, TypeError, RecursionError, IsADirectoryError):
        raise UserError(f"{path}: not readable; restore it (git checkout {path.name}), or run the pipeline") from None


def code(stage: str, path: Path = Path("dvc.yaml")) -> list[Path]:
    """The files of the project that a stage depends on by dvc.yaml, sorted: code, lock and pins, no data.

    Raises UserError if dvc.yaml is missing or cannot be understood.
    """
    try:
        deps = YAML(typ="safe", pure=True).load(path)["stages"][stage]["deps"]
        named = [Path(dep) for dep in deps if not dep.startswith("${")]
    except FileNotFoundError:
        raise UserError(f"{path}: not found; run from the project's folder, where it lies") from None
    except (YAMLError, UnicodeDecodeError, AttributeError, KeyError, TypeError):
        raise UserError(f"{path}: not readable; restore it (git checkout {path.name})") from None
    return sorted(file for dep in named for file in (dep.rglob("*.py") if dep.is_dir() else [dep]))


def is_whole(text: str) -> bool:
    """Whether the text of a dvc.lock was written to its end, or at least states nothing by halves.

    Stages missing at the end are no fault: DVC runs them again.
    """
    content = _table(text)
    if not isinstance(content.get("stages"), dict):
        return False
    return all(isinstance(entry, dict) and _stage_is_whole(entry) for entry in content["stages"].values())


def states_a_stage(text: str) -> bool:
    """Whether the text of an entry of DVC's run cache, which is a stage of a dvc.lock, was written to its end."""
    return _stage_is_whole(content := _table(text)) and bool(content.get("outs"))


def _table(text: str) -> dict[str, Any]:
    """A text of YAML as a table; an empty one if it is none, or does not end with a line's end."""
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
