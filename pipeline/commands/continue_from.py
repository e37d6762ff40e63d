"""Let the next training continue from a trained model: that of a commit, of an experiment, or of this folder.

    perennial continue-from HEAD          a commit, a branch, a tag, or the name of an experiment
    perennial continue-from workspace     the model that is in this folder now

The model comes from DVC's cache, or from its remote. It is written into data/pretrained, with the names of its
classes, and under a name from its SHA-256. DVC versions the file (dvc add), and train.weights names it. So the next
training depends on the file, and not on the name of a revision, which may mean another model tomorrow.
"""

import tempfile
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from torch import Tensor

from pipeline.base import files
from pipeline.base.errors import Fault, UserError
from pipeline.config import document, params
from pipeline.config.model_names import EXACT, weights_file
from pipeline.config.params import Params
from pipeline.models import description, exported, network, pretrained
from pipeline.models.description import Description
from pipeline.models.exported import ExportedModel
from pipeline.studies import revisions
from pipeline.versioning import programs

DIGITS = 12  # of the SHA-256 of models/model.safetensors, in the name of the file


def load(config: Params, revision: str) -> tuple[Description, ExportedModel]:
    """The model of a revision. Raises UserError if it is not in DVC, or is damaged."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in ("model.json", "model.safetensors"):
            revisions.bring(revision, f"{config.paths.models}/{name}", folder / name)
        try:
            return description.load(folder), exported.load(folder)
        except UserError as error:  # names the file in the revision, and not its copy
            own = f"{revision}:{config.paths.models}/"
            faults = [
                replace(fault, **{key: text.replace(f"{folder}/", own) for key, text in asdict(fault).items()})
                for fault in error.faults
            ]
            raise UserError(*faults) from None


def write(folder: Path, about: Description, weights: Mapping[str, Tensor], digest: str) -> Path:
    """Write the weights, with the names of their classes, into a folder. Returns the path, which has their digest.

    Raises UserError for a network of whole numbers, whose weights no training can start with.
    """
    if about.model.startswith(EXACT):
        reason, allowed = "whole numbers have no gradients", "a revision with another network"
        raise UserError(Fault("REVISION", f"its train.model is {about.model}", "value", reason, allowed))
    path = folder / weights_file(f"{about.model}-{digest[:DIGITS]}")
    with files.atomic_file(path) as temporary:
        pretrained.save(temporary, weights, about.classes)
    return path


def main(arguments: Namespace) -> int:
    """Make the model of a revision the weights that the next training starts with. Returns 0."""
    config, revision = params.load(), arguments.revision
    about, model = load(config, revision)
    path = write(Path(config.paths.pretrained), about, network.export_state(model.net), model.weights)
    programs.dvc("add", str(path))
    document.rewrite(params.FILE, {"train.weights": str(path)})
    print(
        f"{revision}: {about.model} with {len(about.classes)} classes, exported after epoch {about.epoch}",
        f"written: {path}",
        f"for Git: git add {path}.dvc {params.FILE}",
        f"set in {params.FILE}: train.weights: {path}",
        "the learning rate and the optimizer start again. Choose the epochs, a lower rate, and another seed, for other "
        "crops and another order of the images:",
        f"  dvc exp run -S train.epochs={config.train.epochs} -S train.lr={config.train.lr / 10:g} "
        f"-S train.seed={config.train.seed + 1}",
        sep="\n",
    )
    return 0
