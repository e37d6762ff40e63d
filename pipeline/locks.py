"""dvc.lock as a table: what each stage read and what it wrote, by hash."""

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
    except (YAMLError, UnicodeDecodeError, AttributeError, KeyError, TypeError):
        raise Refusal(f"{path}: not readable; restore it (git checkout {path.name}), or run the pipeline") from None
