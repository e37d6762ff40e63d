"""The model as ONNX: the same bytes on every machine.

The graph takes pixels of 0 to 255 and normalizes them. The export does no arithmetic, because CPUs round differently:
the weights are those of model.safetensors, and only operators that move values are applied to constants. torch writes
the path of the code and its version into the graph; they are removed.
"""

import json
import logging
import warnings
from dataclasses import asdict
from typing import Any

import onnx
import torch

from pipeline.base.errors import Fault, UserError, one_line
from pipeline.evaluation import onnx_exact
from pipeline.evaluation.acceptance import MISSING, Acceptance
from pipeline.models.description import INPUT, OUTPUT, Description
from pipeline.models.exact import Exact
from pipeline.models.exported import ExportedModel, with_normalization

OPSET = 18  # the version of ONNX's operators; runtimes of 2023 and later know it
MOST_BYTES = 2**31 - 2**20  # a file of protobuf has at most 2 GiB
MOVING_OPERATORS = frozenset({  # operators that round nothing
    "Cast", "CastLike", "Concat", "Expand", "Gather", "Identity", "Reshape", "Shape", "Size", "Slice", "Squeeze",
    "Transpose", "Unsqueeze",
})  # fmt: skip
BATCH = "batch"
INPUT_FORM = "float32 [batch, 3, crop, crop]: RGB, 0 to 255, not normalized"
REMEDY = "set evaluate.onnx: false, then perennial repro"


def content(model: ExportedModel, description: Description, weights: str, acceptance: Acceptance = MISSING) -> bytes:
    """The content of model.onnx. `weights` is the SHA-256 of model.safetensors; `acceptance` is in its metadata.

    Raises UserError if torch cannot write the model as ONNX, or if it is too large.
    """
    if (size := sum(value.nbytes for value in model.net.state_dict().values())) > MOST_BYTES:
        raise _refusal(description.model, f"{size:,} bytes; an ONNX file has at most {MOST_BYTES:,}")
    if isinstance(model.net, Exact):
        graph = onnx_exact.model_proto(model, model.net, OPSET, BATCH)
    else:
        try:
            graph = trace(model)
        except Exception as error:  # any error is possible inside torch's exporter
            raise _refusal(description.model, f"torch cannot write it as ONNX ({one_line(error)})") from None
    clean(graph)
    notes = {
        "acceptance": json.dumps(asdict(acceptance), sort_keys=True) if acceptance.weights else "",
        "arithmetic": description.arithmetic,
        "classes": json.dumps(description.classes, ensure_ascii=False),
        "input": INPUT_FORM,
        "model": description.model,
        "view": json.dumps(asdict(description.view), sort_keys=True),
        "weights": weights,
    }
    graph.metadata_props.extend(onnx.StringStringEntryProto(key=key, value=notes[key]) for key in sorted(notes))
    return bytes(graph.SerializeToString(deterministic=True))


def _refusal(model: str, reason: str) -> UserError:
    return UserError(Fault("train.model", model, "pair", reason, remedy=REMEDY))


def trace(model: ExportedModel) -> onnx.ModelProto:
    """The graph of the model as torch exports it, for any number of images."""
    from onnxscript import optimizer  # its import takes a second

    crop, logger = model.view.crop, logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():  # about interfaces that torch and onnxscript use of each other
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                with_normalization(model.net, model.normalization),
                (torch.zeros(2, 3, crop, crop),),
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes=({0: torch.export.Dim(BATCH)},),
                opset_version=OPSET,
                optimize=False,
                verbose=False,
                dynamo=True,
            )
            assert program is not None
            optimizer.fold_constants(program.model, should_fold=should_fold)
            optimizer.remove_unused_nodes(program.model)
    finally:
        logger.setLevel(level)
    proto: onnx.ModelProto = program.model_proto
    return proto


def should_fold(node: Any) -> bool | None:
    """Whether the optimizer may compute this node: None leaves it to the optimizer, False forbids it."""
    return None if node.op_type in MOVING_OPERATORS else False


def clean(model: onnx.ModelProto) -> None:
    """Remove what no runtime needs: the path and the versions of the exporter, and the shapes of inner values."""
    model.producer_name, model.producer_version, model.doc_string = "perennial", "", ""
    graph = model.graph
    del graph.value_info[:]
    parts = [model, graph, *graph.input, *graph.output, *graph.node, *graph.initializer]
    for function in model.functions:
        parts += [function, *function.node]
        del function.value_info[:]
    for part in parts:
        part.doc_string = ""
        del part.metadata_props[:]
