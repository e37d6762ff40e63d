"""The inputs that decide the bytes of a stage's outputs: the settings that dvc.yaml tracks, code, data; their digest.

Fingerprints of runs, names of experiments, records of reruns, the report and the model card use it.
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline.base import files
from pipeline.config import document, params
from pipeline.config.params import Params
from pipeline.versioning import dvc_lock
from pipeline.versioning.dvc_lock import Hashes, StageHashes

TRAIN = ("train",)  # the stages of a training


def settings(config: Params, stages: Iterable[str], varied: Collection[str] = ()) -> dict[str, Any]:
    """Dotted key → value of every setting that dvc.yaml tracks for these stages, without those of stages before them.

    `varied`: dotted keys that are left out, because results that differ in them are compared.
    dvc.yaml names params.yaml, which `config` stands for, or a file of pipeline/tracked/ by the value of a setting:
    a link to params.yaml, or the one value for which nothing changes (elastic: any number of processes).
    Raises UserError if dvc.yaml or such a file is missing or not readable.
    """
    values = dict(document.leaves(config.model_dump(mode="json")))
    result: dict[str, Any] = {}
    for file, name in (entry for stage in stages for entry in dvc_lock.tracked(stage)):
        path = Path(filled(file, values))
        is_params = path == params.FILE or path.is_symlink()
        leaves = values if is_params else dict(document.leaves(document.read(path)))
        result |= {key: value for key, value in leaves.items() if key == name or key.startswith(f"{name}.")}
    return {key: value for key, value in result.items() if key not in varied}


def filled(text: str, values: Mapping[str, Any]) -> str:
    """A path of dvc.yaml with the value of each setting that it names. `values`: dotted key → value."""
    return re.sub(r"\$\{([\w.]+)\}", lambda key: str(values[key[1]]), text)


def code(stages: Iterable[str]) -> dict[str, str]:
    """Path → SHA-256 (hexadecimal) of each file of the project that dvc.yaml lists for these stages."""
    return {path.as_posix(): files.sha256(path) for stage in stages for path in dvc_lock.code(stage)}


def inputs(stage_hashes: StageHashes, stages: Collection[str]) -> Hashes:
    """The hashes of the outputs of other stages that these stages read."""
    read = {dep.as_posix() for stage in stages for dep in dvc_lock.deps(stage)}
    outs = dvc_lock.outputs(stage_hashes, [name for name in stage_hashes if name not in stages])
    return {path: md5 for path, md5 in outs.items() if path in read}


def parts(
    config: Params,
    stages: Collection[str],
    data: Mapping[str, str],
    code: Mapping[str, str],
    varied: Collection[str] = (),
    **others: Any,
) -> dict[str, Any]:
    """Everything that decides the outputs of stages: tracked settings without `varied`, data, code, and `others`.

    `data` and `code`: name → hash. `others`: such as versions and hardware, for outputs that are not compared by bytes.
    """
    return {"settings": settings(config, stages, varied), "data": dict(data), "code": dict(code), **others}


def training_parts(config: Params, packed_digest: str) -> dict[str, Any]:
    """The parts of a training in this folder: the data are the packed images, the split and the weights.

    Code is the files that dvc.yaml lists for the train stage. After a change of another file, a run can be resumed.
    """
    weights = sorted([*Path(config.paths.weights).glob("*.safetensors"), *Path(config.paths.weights).glob("*.py")])
    features = Path(config.paths.features).glob("*.npy")
    data = {
        "SHA-256 of paths.packed": packed_digest,
        "SHA-256 of paths.split": files.sha256(Path(config.paths.split)),
        **{f"SHA-256 of {path.name} in paths.weights": files.sha256(path) for path in weights},
        **{f"SHA-256 of {path.name} in paths.features": files.sha256(path) for path in features},
    }
    return parts(config, TRAIN, data, code(TRAIN))


def digest(parts: Any) -> str:
    """The SHA-256 (hexadecimal) of values of JSON; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
