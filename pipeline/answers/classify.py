"""Classifies image files by model.onnx or model.safetensors: selects the file, and computes an answer for each image.

This module imports no library at its top: numpy and torch read the variables of `set_variables` when they are imported,
and a model.onnx does not need torch, whose import takes seconds.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.answers.answer import Answer, as_typed
from pipeline.base import files, linux
from pipeline.base.errors import Fault, UserError, missing, raise_if_any
from pipeline.checks import machine
from pipeline.config.params import Params, Train
from pipeline.evaluation import acceptance
from pipeline.evaluation.acceptance import Acceptance, Limit
from pipeline.learning import environment
from pipeline.models import description
from pipeline.models.description import Description
from pipeline.versioning import dvc_lock, integrity

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pipeline.evaluation.onnx_file import OnnxModel
    from pipeline.evaluation.photos import LoadedImage
    from pipeline.models.exported import ExportedModel

DESCRIPTION, WEIGHTS, ONNX = "model.json", "model.safetensors", "model.onnx"


@dataclass(frozen=True)
class Request:
    """The images to classify, and the model and the device."""

    images: tuple[Path | str, ...]  # a text is an address, or `-` for standard input
    model: Path | None = None  # a folder, a model.safetensors or a model.onnx; None: the folder of params.yaml
    device: str = "cpu"
    max_pixels: int | None = None  # None: split.max_pixels
    coverage: float = 0  # of acceptance.limit; 0: that of the model
    min_side: int | None = None  # None: split.min_side
    heatmap: Path | None = None  # a folder for the pictures of heatmap.py
    below: str = ""  # the folder in which the paths were typed (`command_line.parse`)
    folder: Path = Path()  # for images that are no files yet
    split: str = ""  # its images of the project are classified, instead of others
    labels: Mapping[str, str] = field(default_factory=dict)  # the file of an image → its class, as a person says
    next: int = 0  # so many images are chosen to be labelled next; 0: every image is answered


def answers(request: Request, config: Params, refusals: list[UserError]) -> Iterator[Answer]:
    """The answers of the model. The file that computes is named on stderr, unless the request names it.

    The refusal of an image is added to `refusals`. Raises UserError without a model.
    """
    models = request.model or Path(config.paths.models)
    check_heatmap(request.heatmap, models)
    if request.model is None and not (models / DESCRIPTION).exists():
        during = f"during a training: dvc get . {models} --rev HEAD -o last, then predict --model last"
        raise missing(models / DESCRIPTION, f"{description.REMEDY}; {during}")
    if models.name == WEIGHTS:
        check_files(models.parent, DESCRIPTION)
        return torch_answers(request, models.parent, config, refusals)
    if request.model is not None and not models.is_dir():
        if request.device != "cpu":
            raise UserError(Fault("--device", request.device, "pair", f"{models} is computed on the CPU", "cpu"))
        check_files(models.parent, models.name)
        return onnx_answers(request, open_onnx(models), config, refusals)
    check_files(models, DESCRIPTION)
    description_of_model, reason = description.load(models), "--heatmap looks into its layers"
    model = reason if request.heatmap else onnx_or_reason(models, description_of_model, request.device)
    if isinstance(model, str):
        print(f"predict: computed from {models / WEIGHTS}, because {model}", file=sys.stderr)
        return torch_answers(request, models, config, refusals)
    print(f"predict: computed from {models / ONNX}", file=sys.stderr)
    return onnx_answers(request, model, config, refusals)


def check_heatmap(folder: Path | None, models: Path) -> None:
    """Raise UserError for a folder in which a picture could replace a file, and for a model without layers."""
    if folder is None:
        return
    if models.name != WEIGHTS and models.is_file():
        reason, remedy = f"{models} does not show its layers", f"--model FOLDER with a {WEIGHTS}"
        raise UserError(Fault("--heatmap", str(folder), "pair", reason, remedy=remedy))
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        reason = "it is not empty" if folder.is_dir() else "it is a file"
        raise UserError(Fault("--heatmap", str(folder), "value", reason, "a new or an empty folder"))


def open_onnx(path: Path) -> "OnnxModel":
    """A model.onnx. Raises UserError."""
    from pipeline.evaluation import onnx_file

    return onnx_file.load(path, linux.usable_cores())


def onnx_or_reason(models: Path, model_json: Description, device: str) -> "OnnxModel | str":
    """The opened model.onnx of a folder, or the reason why it is not used.

    `export` writes no file that gives another class for a test image. It has the hash of its weights, and so has
    model.json.
    """
    path, weights = models / ONNX, models / WEIGHTS
    reasons = (
        (device != "cpu", f"--device is {device}"),
        (model_json.arithmetic == "portable",
         f"train.arithmetic was portable; --model {path} is faster, with other last digits"),
        (not path.is_file() or path.stat().st_size == 0,
         f"{path} is missing or empty; to be faster: evaluate.onnx: true, then perennial repro (or dvc pull)"),
        (not (model_json.weights or weights.is_file()),
         f"nothing says that {path} is of this model without that file; --model {path} needs no other"),
        (integrity.differing([path]).get(path, False),
         f"{path} is not the file of {dvc_lock.LOCK}; to be faster: dvc checkout"),
    )  # fmt: skip
    for applies, reason in reasons:
        if applies:
            return reason
    try:
        model = open_onnx(path)
    except UserError as error:
        return f"of an error: {error}"
    expected = model_json.weights or files.sha256(weights)
    if (model.classes, model.view, model.weights) != (model_json.classes, model_json.view, expected):
        return f"{path} is of another model; to be faster: perennial repro export, or dvc checkout"
    return model


def onnx_answers(request: Request, model: "OnnxModel", config: Params, refusals: list[UserError]) -> Iterator[Answer]:
    """The answers of a model.onnx. Each image is a batch of its own, so no answer depends on another image."""
    import numpy as np

    from pipeline.base import elementary
    from pipeline.evaluation import photos
    from pipeline.loader import center

    view = model.view
    limit = limit_of(model.acceptance, model, request)
    for image in photos.load_images(request.images, view, *size_limits(request, config), refusals, request.folder):
        (box,) = center.eval_boxes(np.array([image.size], np.int32), view.packed_size, view.resize, view.crop)
        pixels = center.cut(image.pixels, box, view.crop)[None]
        (log_probabilities,) = model.log_probabilities(pixels)
        yield answer_for(image, model.classes, elementary.exp(log_probabilities), limit, request)


def torch_answers(request: Request, models: Path, config: Params, refusals: list[UserError]) -> Iterator[Answer]:
    """The answers of model.safetensors in a folder. Each image is a batch of its own, as for `onnx_answers`."""
    check_files(models, WEIGHTS, acceptance.FILE)
    if request.device == "cuda" and machine.read().cuda_devices == 0:
        raise UserError(Fault("--device", "cuda", "machine", "no NVIDIA GPU with its driver is found", "cpu"))
    set_variables(config.train, model_json := description.load(models))
    import torch

    from pipeline.base import elementary
    from pipeline.evaluation import heatmap, photos
    from pipeline.learning import determinism, inference
    from pipeline.learning.world import World
    from pipeline.models import exact, exported

    model, device = exported.load(models), torch.device(request.device)
    exact.check_device(model.net.to(device), model.view.crop, device)
    if model.arithmetic == "portable":
        determinism.make_deterministic(config.train.threads, deterministic=True)
    limit = limit_of(acceptance.read(models), model, request)
    world = World(rank=0, local_rank=0, size=1, device=device)
    sizes = size_limits(request, config)
    for image in photos.load_images(request.images, model.view, *sizes, refusals, request.folder):
        compute = partial(inference.image_logits, model, image.pixels, image.size, world)
        logits, maps = heatmap.explain(model_json.model, model.net, compute) if request.heatmap else (compute(), None)
        (log_probs,) = elementary.log_softmax(logits)
        answer = answer_for(image, model.classes, elementary.exp(log_probs), limit, request)
        if request.heatmap and maps is not None:
            picture = heatmap.picture(image, model.view, maps[model.classes.index(answer.prediction)])
            saved = heatmap.save(picture, request.heatmap, image.path.stem)
            answer = replace(answer, heatmap=as_typed(saved, request.below))
        yield answer


def answer_for(
    image: "LoadedImage", classes: Sequence[str], probabilities: "NDArray[np.float64]", limit: Limit, request: Request
) -> Answer:
    """The answer for one image, from the probabilities [classes]."""
    by_class = dict(zip(classes, probabilities.tolist(), strict=True))
    best, folder = max(by_class, key=by_class.__getitem__), image.path.absolute().parent.name
    label = request.labels.get(str(image.path), folder if folder in by_class else "")
    name, kind = image.name or as_typed(image.path, request.below), acceptance.judge(by_class[best], limit)
    return Answer(name, str(image.path), best, kind, by_class, label)


def size_limits(request: Request, config: Params) -> tuple[int, int]:
    """The most pixels and the shortest side of an image: `split` excludes other images, so no model has seen one."""
    return request.max_pixels or config.split.max_pixels, request.min_side or config.split.min_side


def check_files(models: Path, *names: str) -> None:
    """Raise UserError if one of these files in the folder of a model is another one than dvc.lock says.

    A model.json that no dvc.lock names has to have all its keys.
    """
    compared = integrity.differing(models / name for name in names)
    remedy = f"to have that of {dvc_lock.LOCK}: dvc checkout; if the change is intended: dvc commit"
    raise_if_any(
        Fault(str(path), f"not what {dvc_lock.LOCK} says", "differs", remedy=remedy)
        for path, differs in compared.items()
        if differs
    )
    if DESCRIPTION in names and models / DESCRIPTION not in compared:
        description.check_keys(models)


def limit_of(content: Acceptance, model: "ExportedModel | OnnxModel", request: Request) -> Limit:
    """The limit of a model. Stderr says why there is none. Raises UserError then, if the request has a coverage.

    Also raises it if the content is of these weights, and of another number of classes.
    """
    if content.weights == model.weights and content.classes != len(model.classes):
        value, reason = f"for {content.classes} classes", f"the model has {len(model.classes)}"
        raise UserError(Fault(acceptance.FILE, value, "differs", reason, remedy="perennial repro, or dvc checkout"))
    limit = acceptance.limit(content, model.weights, request.coverage)
    if limit.reason and request.coverage:
        raise UserError(Fault("--coverage", str(request.coverage), "missing", limit.reason, remedy="leave it out"))
    if limit.reason:
        print(f"predict: no image is answered with 'none of the classes', because {limit.reason}", file=sys.stderr)
    return limit


def set_variables(settings: Train, model: Description) -> None:
    """Set the variables that decide how this process computes, before it imports its libraries. Raises UserError.

    A model of train.arithmetic: portable gives the same bytes on every CPU with the needed features and the same
    train.threads.
    """
    if model.arithmetic == "native":
        return
    if missing_features := machine.missing_cpu_features():
        lacks = f"this CPU lacks {' and '.join(missing_features)}"
        print(f"predict: {lacks}, so the last digits may differ from another CPU's", file=sys.stderr)
        return
    os.environ.update(environment.required_variables(settings.threads, True, model.arithmetic))
