"""A model.onnx that `export` wrote: its classes, view and answers; without torch. The one owner of onnxruntime."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from pipeline.base import elementary, schema
from pipeline.base.errors import Fault, UserError, damaged, missing, one_line
from pipeline.evaluation.acceptance import MISSING, Acceptance
from pipeline.models.description import INPUT, OUTPUT, View

REMEDY = "give a model.onnx that the stage export wrote (perennial repro export, or dvc pull)"
FATAL = 4  # onnxruntime's level of messages: it would also print the errors that it raises


@dataclass(frozen=True)
class OnnxModel:
    """An opened model."""

    path: Path
    session: Any  # onnxruntime.InferenceSession
    classes: tuple[str, ...]
    view: View
    weights: str  # SHA-256 of the model.safetensors that it was exported from; empty if the file does not say it
    acceptance: Acceptance = MISSING

    def log_probabilities(self, pixels: NDArray[np.float32]) -> NDArray[np.float64]:
        """The log-probabilities [n, classes] of pixels of 0 to 255 [n, 3, crop, crop].

        Raises UserError if the model cannot be computed, or if an answer is not finite.
        """
        try:
            (logits,) = self.session.run([OUTPUT], {INPUT: pixels})
        except Exception as error:  # onnxruntime has a class of its own for every fault
            raise _foreign(self.path, f"cannot be computed: {one_line(error)}") from None
        expected = (len(pixels), len(self.classes))
        if logits.shape != expected:
            raise _foreign(self.path, f"answers of the shape {list(logits.shape)}; allowed: {list(expected)}")
        if not np.isfinite(logits).all():
            remedy = "train again with a lower train.lr (perennial repro), or restore the file (dvc checkout)"
            raise damaged(self.path, "the model's outputs are not finite numbers", remedy)
        return elementary.log_softmax(logits.astype(np.float64))


def load(path: Path, threads: int) -> OnnxModel:
    """Open a model on the CPU. Raises UserError if there is none, or if `export` did not write it."""
    if not path.is_file():
        raise missing(path, REMEDY)
    if path.stat().st_size == 0:
        raise missing(path, "set evaluate.onnx: true, then perennial repro", "empty, because evaluate.onnx is false")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = FATAL
    onnxruntime.set_default_logger_severity(FATAL)
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        notes = session.get_modelmeta().custom_metadata_map
    except OSError:
        raise
    except Exception as error:  # onnxruntime has a class of its own for every fault
        raise _foreign(path, one_line(error)) from None
    with schema.reading(path, REMEDY, KeyError):
        classes, view = schema.of_json(notes["classes"], schema.Names), schema.of_json(notes["view"], View)
        scores = notes.get("acceptance", "")
        content = schema.of_json(scores, Acceptance) if scores else MISSING
    return OnnxModel(path, session, classes, view, notes.get("weights", ""), content)


def _foreign(path: Path, reason: str) -> UserError:
    return UserError(Fault(str(path), "damaged, or not written by export", "damaged", reason, remedy=REMEDY))
