"""The page of `perennial share`: one file that classifies photos in a browser, from model.onnx, without a network.

The page computes the network by scripts of its own (templates/network.js): a browser takes no file of a library from a
page that is opened from a disk, and onnxruntime-web alone has 11 MB. Before its first answer the page
computes fixed pixels, and compares the result with that of onnxruntime here.
"""

import base64
import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np

from pipeline.answers import classify, page_network
from pipeline.base.errors import Fault, UserError
from pipeline.dataset.squares import PAD_COLOUR
from pipeline.evaluation import acceptance
from pipeline.reporting import rendering
from pipeline.reporting.rendering import Html


def page(path: Path) -> str:
    """The page of a model.onnx as HTML.

    Raises UserError without a model, for a file that `export` did not write or that dvc.lock does not name, and for an
    operator that the page has not.
    """
    classify.check_files(path.parent, path.name)
    model, content = classify.open_onnx(path), path.read_bytes()
    try:
        steps, arrays = page_network.read(content)
    except NotImplementedError as error:
        reason = "a page computes convolutional networks"
        remedy = "send model.onnx itself, or train a resnet or an efficientnet"
        raise UserError(Fault(str(path), f"the operator {error}", "pair", reason, remedy=remedy)) from None
    limit = acceptance.limit(model.acceptance, model.weights)
    pixels = (np.arange(3 * model.view.crop**2) * 7919 % 1021 / 4).astype(np.float32)  # as in share.js
    (logs,) = model.log_probabilities(pixels.reshape(1, 3, model.view.crop, model.view.crop))
    settings = {
        "view": asdict(model.view), "classes": model.classes, "limit": limit.highest, "pad": PAD_COLOUR,
        "check": logs.tolist(), "steps": steps,
        "constants": [
            {"name": name, "kind": str(array.dtype), "shape": array.shape, "size": array.nbytes}
            for name, array in arrays.items()
        ],
    }  # fmt: skip
    return rendering.page(
        "share.html.jinja",
        model=model,
        limit=limit,
        sha256=hashlib.sha256(content).hexdigest(),
        settings=Html(json.dumps(settings).replace("<", r"\u003c")),  # in a name of a class it could end the script
        content=Html(base64.b64encode(b"".join(array.tobytes() for array in arrays.values())).decode()),
    )
