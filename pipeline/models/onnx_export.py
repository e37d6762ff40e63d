"""The model as ONNX: the same bytes on every machine. The one owner of onnx.

The graph takes pixels of 0 to 255 and normalizes them itself. Nothing is computed here, because another kind of CPU
could round in another way: the weights are those of model.safetensors, and only operators that move values are applied
to constants. torch puts the path of the code and its own version into the graph; they are removed.
"""

import json
import logging
import warnings
from dataclasses import asdict

import onnx
import torch
from onnxscript import optimizer

from pipeline.base.errors import UserError
from pipeline.models.description import INPUT, OUTPUT, Description
from pipeline.models.exported import ExportedModel, with_normalization

OPSET = 18  # the version of ONNX's operators; runtimes of 2023 and later know it
MOST_BYTES = 2**31 - 2**20  # a file of protobuf has at most 2 GiB
MOVING = frozenset({  # operators that round nothing
    "Cast", "CastLike", "Concat", "Expand", "Gather", "Identity", "Reshape", "Shape", "Size", "Slice", "Squeeze",
    "Transpose", "Unsqueeze",
})  # fmt: skip
BATCH = "batch"
INPUT_FORM = "float32 [batch, 3, crop, crop]: RGB, 0 to 255, not normalized"
REMEDY = "set evaluate.onnx: false, then dvc repro"


def content(model: ExportedModel, described: Description) -> bytes:
    """The file model.onnx. Raises UserError if torch cannot write the model as ONNX, or if it is too large."""
    named = f"train.model: {described.model!r}"
    size = sum(value.numel() * value.element_size() for value in model.net.state_dict().values())
    if size > MOST_BYTES:
        raise UserError(f"{named}: {size:,} bytes; an ONNX file has at most {MOST_BYTES:,}; {REMEDY}")
    try:
        graph = traced(model)
    except Exception as error:  # any error is possible inside torch's exporter
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"{named}: torch cannot write it as ONNX ({reason}); {REMEDY}") from None
    clean(graph)
    notes = {
        "arithmetic": described.arithmetic,
        "classes": json.dumps(described.classes, ensure_ascii=False),
        "input": INPUT_FORM,
        "model": described.model,
        "view": json.dumps(asdict(described.view), sort_keys=True),
    }
    graph.metadata_props.extend(onnx.StringStringEntryProto(key=key, value=notes[key]) for key in sorted(notes))
    return bytes(graph.SerializeToString(deterministic=True))


def traced(model: ExportedModel) -> onnx.ModelProto:
    """The graph of the model as torch gives it, for any number of images."""
    crop, logger = model.view.crop, logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():  # about interfaces that torch and onnxscript use of each other
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                with_normalization(model.net),
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
            optimizer.fold_constants(program.model, should_fold=lambda node: None if node.op_type in MOVING else False)
            optimizer.remove_unused_nodes(program.model)
    finally:
        logger.setLevel(level)
    proto: onnx.ModelProto = program.model_proto
    return proto


def clean(model: onnx.ModelProto) -> None:
    """Remove what no runtime needs: where and with what it was written, and the shapes inside."""
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
