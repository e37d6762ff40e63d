"""Compares the outputs of a repetition with the claimed ones, and prints both."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.base import schema
from pipeline.versioning.dvc_lock import Claims, Hashes

COLUMN = 64  # characters of the first column of values in the table of provenance


def compare(claims: Claims, got: Hashes, repeated: Iterable[str]) -> list[str]:
    """Print one line per output of the stages. Returns the paths of those whose hash is not the claimed one."""
    rows = [
        (path, claimed, got.get(path, "none")) for name in repeated for path, claimed in claims[name]["outs"].items()
    ]
    width = max(len(path) for path, _, _ in rows)
    print(f"\n{'output':{width}}  {'claimed':36}  {'got':36}")
    for path, claimed, found in rows:
        print(f"{path:{width}}  {claimed:36}  {found:36}  {'same' if claimed == found else 'differs'}")
    return [path for path, claimed, found in rows if claimed != found]


def outputs(claims: Claims, stages: Iterable[str]) -> Hashes:
    """The hashes of the outputs of these stages."""
    return {path: md5 for name in stages for path, md5 in claims[name]["outs"].items()}


def print_tensor_differences(different: Iterable[str], clone: Path) -> None:
    """Print in how many tensors the weights among these outputs differ, if the files are here and in the clone."""
    for path in different:
        if path.endswith(".safetensors") and Path(path).is_file() and (clone / path).is_file():
            from pipeline.models import exported  # imports torch, which takes seconds

            print(f"\n{path}: {exported.tensor_differences(Path(path), clone / path)}")


def print_provenance(here: Path, there: Path) -> None:
    """Print the provenance of the claimed training and of the repeated one, side by side."""
    for repeated in sorted(there.glob("*/provenance.json")):
        # Names with the same last digits are of the same fingerprint, and so of the same inputs.
        digits = repeated.parent.name.rpartition("-")[2]
        claimed = next((_flat(path) for path in sorted(here.glob(f"*-{digits}/{repeated.name}"))), {})
        got = _flat(repeated)
        print(f"\n{'provenance':24}  {'claimed':{COLUMN}}  got")
        for key in sorted(claimed.keys() | got.keys()):
            print(f"{key:24}  {claimed.get(key, '?'):{COLUMN}}  {got.get(key, '?')}")


def _flat(path: Path) -> dict[str, str]:
    """A provenance.json as `section.key` → text; empty if the file is missing."""
    if not path.is_file():
        return {}
    flat: dict[str, str] = {}
    for key, value in schema.json_of(path, dict[str, Any], f"remove it: rm {path}").items():
        inner = {f"{key}.{name}": part for name, part in value.items()} if isinstance(value, dict) else {key: value}
        flat |= {name: str(part) for name, part in inner.items()}
    return flat
