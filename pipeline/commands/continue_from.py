"""Let the next training continue from a trained model: that of a commit, of an experiment, or of this folder.

    perennial continue-from HEAD          a commit, a branch, a tag, or the name of an experiment
    perennial continue-from workspace     the model that is in this folder now

The model comes from DVC's cache, or from its remote. It is written into data/pretrained, with the names of its
classes, and under a name from its SHA-256. DVC versions the file (dvc add), and train.weights names it. So the next
training depends on the file, and not on the name of a revision, which may mean another model tomorrow.
"""

import tempfile
from argparse import Namespace
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dvc.exceptions import DvcException
from torch import Tensor

from pipeline.base import files
from pipeline.base.errors import Fault, UserError, damaged
from pipeline.config import document, params
from pipeline.config.model_names import weights_file
from pipeline.config.params import Params
from pipeline.evaluation import figures
from pipeline.evaluation.figures import TrainFigures
from pipeline.models import description, exported, network, pretrained
from pipeline.models.description import Description
from pipeline.studies import revisions
from pipeline.studies.revisions import HERE
from pipeline.versioning import programs

REMEDY = "take another revision, or train there again (perennial repro)"
DIGITS = 12  # of the SHA-256 of models/model.safetensors, in the name of the file


@dataclass(frozen=True)
class Model:
    """A trained model: its weights and its facts."""

    description: Description
    weights: dict[str, Tensor]
    digest: str  # the SHA-256 of model.safetensors
    accuracy: float  # of validation


def fetch(revision: str, names: list[str], folder: Path) -> None:
    """Copy files of a revision into a folder, from DVC's cache or remote, or from Git.

    Raises UserError if there is no such revision or file, or if the cache has other bytes than the revision names.
    """
    source = revisions.open_revision(revision)
    try:
        for name in names:
            source.get_file(name, str(folder / Path(name).name))
            md5 = source.info(name).get("md5")  # of an output of DVC in a commit
            if md5 and md5 != files.md5(folder / Path(name).name):
                raise damaged(f"{revision}:{name}", "in DVC's cache", "perennial repro repairs the cache")
    except (DvcException, OSError) as error:
        reason = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error) or "no such file"
        allowed = (
            f"{HERE}, or a commit, branch, tag or experiment (dvc exp show names them) with a model in DVC's cache or "
            f"remote"
        )
        raise UserError(Fault(revision, reason, "missing", allowed=allowed)) from None


def _of_revision(fault: Fault, folder: Path, revision: str) -> Fault:
    """The fault of a file of a revision, which was fetched into this folder."""
    return replace(fault, **{k: v.replace(f"{folder}/", f"{revision}:") for k, v in asdict(fault).items()})


def load(config: Params, revision: str) -> Model:
    """The model of a revision. Raises UserError if it is not in DVC, or is damaged."""
    names = [f"{config.paths.models}/{name}" for name in ("model.json", "model.safetensors")]
    metrics = str(figures.path(config.paths.metrics, TrainFigures))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        fetch(revision, [*names, metrics], folder)
        try:
            model_description, model = description.load(folder), exported.load(folder)
        except UserError as error:
            raise UserError(*(_of_revision(fault, folder, revision) for fault in error.faults)) from None
        text = figures.path(folder, TrainFigures).read_bytes()
        return Model(
            description=model_description,
            weights=network.export_state(model.net),
            digest=model.weights,
            accuracy=figures.parse(text, TrainFigures, f"{metrics} of {revision}", REMEDY).val_accuracy,
        )


def write(folder: Path, model: Model) -> Path:
    """Write the weights, with the names of their classes, into a folder. Returns the path, which has their digest."""
    path = folder / weights_file(f"{model.description.model}-{model.digest[:DIGITS]}")
    with files.atomic_file(path) as temporary:
        pretrained.save(temporary, model.weights, model.description.classes)
    return path


def main(arguments: Namespace) -> int:
    """Make the model of a revision the weights that the next training starts with. Returns 0."""
    config, revision = params.load(), arguments.revision
    model = load(config, revision)
    name, classes, epoch = model.description.model, len(model.description.classes), model.description.epoch
    print(
        f"{revision}: {name} with {classes} classes, exported after epoch {epoch}, "
        f"validation accuracy {model.accuracy:.4f}"
    )
    if name.partition("@")[0] != config.train.model:  # of one's own network, the code may be another
        reason, allowed = f"the model of {revision} is another one", f"{name}, or another revision"
        raise UserError(Fault("train.model", config.train.model, "differs", reason, allowed))
    path = write(Path(config.paths.pretrained), model)
    programs.dvc("add", str(path))
    document.rewrite(params.FILE, {"train.weights": str(path)})
    print(
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
