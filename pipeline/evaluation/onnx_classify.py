"""Answers of a model.onnx for image files: what `predict` prints, without torch."""

from collections.abc import Iterable, Iterator

import numpy as np

from pipeline.evaluation import photos
from pipeline.evaluation.photos import Answer, LoadedImage
from pipeline.loader import center
from pipeline.models import onnx_file
from pipeline.models.onnx_file import OnnxModel


def answers(model: OnnxModel, loaded: Iterable[LoadedImage]) -> Iterator[Answer]:
    """The answer of a model.onnx for each image. They go through one by one, so none depends on another."""
    view = model.view
    for image in loaded:
        sizes = np.array([image.size], np.int32)
        (box,) = center.eval_boxes(sizes, view.packed_size, view.resize, view.crop)
        pixels = center.cut(image.pixels, box, view.crop)[None]
        with onnx_file.ended_by_ctrl_c():
            (log_probabilities,) = model.log_probabilities(pixels)
        yield photos.answer(image, model.classes, np.exp(log_probabilities))
