"""The model of the last finished run, from DVC's cache: DVC removes the model before a training begins.

So a running training and a stopped one leave no model in the folder. dvc.lock still names the last one.
"""

from pathlib import Path

from pipeline.base import files
from pipeline.evaluation import acceptance
from pipeline.versioning import dvc_lock, integrity

DESCRIPTION, WEIGHTS, ONNX = "model.json", "model.safetensors", "model.onnx"
NEEDED = {DESCRIPTION, WEIGHTS}
NAMES = {*NEEDED, ONNX, acceptance.FILE}  # the files that decide an answer


def link(models: Path, target: Path) -> str:
    """Link the files of the model into the folder `target`. Returns which dvc.lock names them; empty without a model.

    That is the dvc.lock here, else the committed one. A file that DVC's cache lacks, or has damaged, is left out.
    """
    for name, stages in ((f"{dvc_lock.LOCK}", dvc_lock.here()), (f"HEAD's {dvc_lock.LOCK}", dvc_lock.committed())):
        outs = {Path(path): md5 for path, md5 in dvc_lock.outputs(stages).items()}
        hashes = {path.name: md5 for path, md5 in outs.items() if path.parent == models and path.name in NAMES}
        if not hashes.keys() >= NEEDED:
            continue
        cache = integrity.cache_folder().absolute()
        objects = {file: integrity.object_of(cache, md5) for file, md5 in hashes.items()}
        whole = {file for file, path in objects.items() if path.is_file() and files.md5(path) == hashes[file]}
        if whole >= NEEDED:
            for file in whole:
                (target / file).symlink_to(objects[file])
            return name
    return ""
