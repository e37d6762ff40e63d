"""The model as ONNX: the same bytes on every machine. The one owner of onnx.

The graph takes pixels of 0 to 255 and normalizes them. The export does no arithmetic, because CPUs round differently:
the weights are those of model.safetensors, and only operators that move values are applied to constants. torch writes
the path of the code and its version into the graph; they are removed.

The graph computes no shape: only the number of images is free. Not every program computes shapes (OpenCV does not).
"""

import json
import logging
import warnings
from dataclasses import asdict
from typing import Any

import numpy as np
import onnx
import torch
from onnxscript import optimizer

from pipeline.base.errors import Fault, UserError, one_line
from pipeline.models.acceptance import MISSING, Acceptance
from pipeline.models.description import INPUT, OUTPUT, Description
from pipeline.models.exported import ExportedModel, with_normalization

OPSET = 18  # the version of ONNX's operators; runtimes of 2023 and later know it
MOST_BYTES = 2**31 - 2**20  # a file of protobuf has at most 2 GiB
MOVING_OPERATORS = frozenset({  # operators that round nothing
    "Cast", "CastLike", "Concat", "Expand", "Gather", "Identity", "Reshape", "Shape", "Size", "Slice", "Squeeze",
    "Transpose", "Unsqueeze",
})  # fmt: skip
BATCH = "batch"
FREE = -1  # a side that follows from the number of images
INPUT_FORM = "float32 [batch, 3, crop, crop]: RGB, 0 to 255, not normalized"
REMEDY = "set evaluate.onnx: false, then perennial repro"


def content(model: ExportedModel, description: Description, weights: str, acceptance: Acceptance = MISSING) -> bytes:
    """The content of model.onnx. `weights` is the SHA-256 of model.safetensors; `acceptance` is in its metadata.

    Raises UserError if torch cannot write the model as ONNX, or if it is too large.
    """
    size = sum(value.numel() * value.element_size() for value in model.net.state_dict().values())
    if size > MOST_BYTES:
        raise _refusal(description.model, f"{size:,} bytes; an ONNX file has at most {MOST_BYTES:,}")
    try:
        graph = trace(model)
    except Exception as error:  # any error is possible inside torch's exporter
        raise _refusal(description.model, f"torch cannot write it as ONNX ({one_line(error)})") from None
    fix_shapes(graph)
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
    crop, logger = model.view.crop, logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    hooks = [
        module.register_forward_pre_hook(as_contiguous)
        for module in model.net.modules()
        if isinstance(module, torch.nn.AdaptiveAvgPool2d)
    ]
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
            optimizer.fold_constants(program.model, should_fold=should_fold)
            optimizer.remove_unused_nodes(program.model)
    finally:
        logger.setLevel(level)
        for hook in hooks:
            hook.remove()
    proto: onnx.ModelProto = program.model_proto
    return proto


def should_fold(node: Any) -> bool | None:
    """Whether the optimizer may compute this node: None leaves it to the optimizer, False forbids it."""
    return None if node.op_type in MOVING_OPERATORS else False


def as_contiguous(_: torch.nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
    """The input of a pooling in contiguous memory.

    For another memory format (ConvNeXt), torch would compute the output's addresses in the graph from the number of
    images.
    """
    return (inputs[0].contiguous(),)


def fix_shapes(model: onnx.ModelProto) -> None:
    """Replace each computed shape by a constant, in which the number of images is -1.

    A shape with more than one free side stays. No value changes.
    """
    graph, inferred_graph = model.graph, onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    sides = {
        value.name: [
            side.dim_value if side.HasField("dim_value") else FREE for side in value.type.tensor_type.shape.dim
        ]
        for value in (*inferred_graph.value_info, *inferred_graph.output)
    }
    constants = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    constants |= {name: [] for node in graph.node if node.op_type == "Constant" for name in node.output}
    nodes = list[onnx.NodeProto]()
    for node in graph.node:
        shape = sides.get(node.output[0], [])
        if node.op_type in ("Reshape", "Expand") and node.input[1] not in constants and shape.count(FREE) == 1:
            name = f"{node.output[0]}.shape"
            if node.op_type == "Reshape":
                graph.initializer.append(onnx.numpy_helper.from_array(np.array(shape, np.int64), name))
                node.input[1] = name
                del node.attribute[:]  # allowzero: no side is 0
            elif shape[0] == FREE and constants.get(node.input[0]) == [1, *shape[1:]]:
                nodes += repeat_constant(graph, node, len(shape))
                continue
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    optimizer.remove_unused_nodes(model)


def repeat_constant(graph: onnx.GraphProto, node: onnx.NodeProto, rank: int) -> list[onnx.NodeProto]:
    """Nodes that repeat a constant for each image, as `node` (Expand) does: Where(true, the constant, the image)."""
    (name,) = node.output
    parts = {
        "start": np.zeros(3, np.int64), "end": np.ones(3, np.int64), "axes": np.arange(1, 4),
        "shape": np.array([FREE] + [1] * (rank - 1)), "true": np.ones([1] * rank, np.bool_),
    }  # fmt: skip
    graph.initializer.extend(onnx.numpy_helper.from_array(part, f"{name}.{key}") for key, part in parts.items())
    return [
        onnx.helper.make_node(
            "Slice", [INPUT, *(f"{name}.{key}" for key in ("start", "end", "axes"))], [f"{name}.pixel"]
        ),
        onnx.helper.make_node("Reshape", [f"{name}.pixel", f"{name}.shape"], [f"{name}.each"]),
        onnx.helper.make_node("Where", [f"{name}.true", node.input[0], f"{name}.each"], [name]),
    ]


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
