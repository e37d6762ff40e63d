"""What DVC's files say of the stages: dvc.lock, what each read and wrote, by hash; dvc.yaml, what each depends on."""

from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.errors import Refusal

Hashes = dict[str, str]  # path → MD5; of a folder, that of its listing, with ".dir" behind it


def read(path: Path) -> dict[str, dict[str, Hashes]]:
    """The `deps` and `outs` of every stage of a dvc.lock. Raises Refusal if it is missing or cannot be understood."""
    try:
        stages = YAML(typ="safe", pure=True).load(path)["stages"]
        return {
            stage: {kind: {entry["path"]: entry["md5"] for entry in content.get(kind, [])} for kind in ("deps", "outs")}
            for stage, content in stages.items()
        }
    except FileNotFoundError:
        raise Refusal(f"{path}: not found; nothing is claimed before the pipeline has run: dvc repro") from None
    except (YAMLError, ValueError, AttributeError, KeyError, TypeError, RecursionError, IsADirectoryError):
        raise Refusal(f"{path}: not readable; restore it (git checkout {path.name}), or run the pipeline") from None


def code(stage: str, path: Path = Path("dvc.yaml")) -> list[Path]:
    """The files of the project that a stage depends on by dvc.yaml, sorted: code, lock and pins, no data.

    Raises Refusal if dvc.yaml is missing or cannot be understood.
    """
    try:
        deps = YAML(typ="safe", pure=True).load(path)["stages"][stage]["deps"]
        named = [Path(dep) for dep in deps if not dep.startswith("${")]
    except FileNotFoundError:
        raise Refusal(f"{path}: not found; run from the project's folder, where it lies") from None
    except (YAMLError, UnicodeDecodeError, AttributeError, KeyError, TypeError):
        raise Refusal(f"{path}: not readable; restore it (git checkout {path.name})") from None
    return sorted(file for dep in named for file in (dep.rglob("*.py") if dep.is_dir() else [dep]))
