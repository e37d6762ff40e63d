"""The page of `perennial share`: one file that classifies photos in a browser, from model.onnx, without a network.

The page has model.onnx as it is, and computes it by scripts of its own (templates/onnx.js): a browser takes no file of
a library from a page that is opened from a disk, and onnxruntime-web alone has 11 MB. Before its first answer the page
computes fixed pixels, and compares the result with that of onnxruntime here.
"""

import base64
import hashlib
import json
from pathlib import Path

import numpy as np

from pipeline.answers import classify
from pipeline.base.errors import Fault, UserError
from pipeline.dataset.squares import PAD_COLOUR
from pipeline.evaluation import acceptance, onnx_export
from pipeline.reporting import rendering
from pipeline.reporting.rendering import Html

# Of onnx.js; a test compares them.
OPERATORS = frozenset({
    "Add", "BatchNormalization", "Cast", "Clip", "Concat", "Constant", "Conv", "Div", "Flatten", "Gemm",
    "HardSigmoid", "HardSwish", "Identity", "Max", "MaxPool", "Min", "Mul", "Pad", "ReduceMean", "ReduceSum",
    "Relu", "Reshape", "Round", "Shape", "Sigmoid", "Squeeze", "Sub",
})  # fmt: skip


def page(path: Path) -> str:
    """The page of a model.onnx as HTML.

    Raises UserError without a model, for a file that `export` did not write or that dvc.lock does not name, and for an
    operator that the page has not.
    """
    classify.check_files(path.parent, path.name)
    model, content = classify.open_onnx(path), path.read_bytes()
    if others := sorted(onnx_export.operators(content) - OPERATORS):
        reason = "a page computes convolutional networks"
        remedy = "send model.onnx itself, or train a resnet or an efficientnet"
        raise UserError(
            Fault(str(path), f"operators {', '.join(others)}", "pair", reason, ", ".join(sorted(OPERATORS)), remedy)
        )
    limit = acceptance.limit(model.acceptance, model.weights)
    pixels = (np.arange(3 * model.view.crop**2) * 7919 % 1021 / 4).astype(np.float32)  # as in share.js
    (logs,) = model.log_probabilities(pixels.reshape(1, 3, model.view.crop, model.view.crop))
    return rendering.page(
        "share.html.jinja",
        model=model,
        limit=limit,
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        settings=Html(json.dumps({"limit": limit.highest, "pad": PAD_COLOUR, "check": logs.tolist()})),
        content=Html(base64.b64encode(content).decode()),
    )
