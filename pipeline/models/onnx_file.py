"""A model.onnx that `export` wrote: its classes, view and answers; without torch. The one owner of onnxruntime."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from pipeline.base.errors import UserError
from pipeline.models.description import View

REMEDY = "give a model.onnx that the stage export wrote (dvc repro export, or dvc pull)"
ERRORS_ONLY = 3  # onnxruntime's level of messages


@dataclass(frozen=True)
class OnnxModel:
    """An opened model."""

    session: Any  # onnxruntime.InferenceSession
    classes: tuple[str, ...]
    view: View

    def log_probabilities(self, pixels: NDArray[np.float32]) -> NDArray[np.float64]:
        """The log-probabilities [n, classes] of pixels of 0 to 255 [n, 3, crop, crop]."""
        (logits,) = self.session.run(None, {self.session.get_inputs()[0].name: pixels})
        shifted = logits.astype(np.float64) - logits.max(1, keepdims=True)
        found: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
        return found


def load(path: Path, threads: int) -> OnnxModel:
    """Open a model on the CPU. Raises UserError if there is none, or if `export` did not write it."""
    if not path.is_file():
        raise UserError(f"{path}: not found; {REMEDY}")
    if path.stat().st_size == 0:
        raise UserError(f"{path}: empty, because evaluate.onnx is false; set it to true, then dvc repro")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = ERRORS_ONLY
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        notes = session.get_modelmeta().custom_metadata_map
        classes, view = tuple(json.loads(notes["classes"])), View(**json.loads(notes["view"]))
    except OSError:
        raise
    except Exception as error:  # onnxruntime has a class of its own for every fault
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"{path}: damaged, or not written by export: {reason}; {REMEDY}") from None
    return OnnxModel(session, classes, view)
