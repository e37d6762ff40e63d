"""The network of a model.onnx as the page of `perennial share` computes it, for one image (templates/network.js).

Of one image a vector is a map of 1 × 1 places, so no step is about shapes. The page adds in float64, and rounds each
result to float32, so no step converts numbers. A network of whole numbers keeps its bits.
"""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from pipeline.models.description import OUTPUT

OPERATORS = frozenset({  # of network.js; a test compares them
    "Add", "Clip", "Concat", "Conv", "Div", "HardSigmoid", "HardSwish", "Max", "MaxPool", "Min", "Mul", "ReduceMean",
    "ReduceSum", "Relu", "Round", "Sigmoid", "Sub",
})  # fmt: skip
ONE_IMAGE = ("Cast", "Flatten", "Identity", "Reshape")  # do nothing to the numbers of one image

Arrays = dict[str, NDArray[Any]]


def read(content: bytes) -> tuple[list[dict[str, Any]], Arrays]:
    """The steps in their order, of which the last one gives the logits, and the constants, with four sides each.

    A step has operator, inputs, output, and the attributes of ONNX. Raises NotImplementedError for another operator.
    """
    graph = onnx.load_from_string(content).graph
    arrays = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    same, zeros = dict[str, str](), dict[str, list[int]]()  # zeros: around a value, at the top, left, bottom, right
    steps = list[dict[str, Any]]()
    for node in _needed(graph):
        operator, output = node.op_type, node.output[0]
        notes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        inputs = [same.get(name, name) for name in node.input]
        if operator == "Constant":
            arrays[output] = numpy_helper.to_array(notes["value"])
        elif operator in ONE_IMAGE:
            same[output] = inputs[0]
        elif operator == "Pad" and notes["mode"] == b"constant" and not any(arrays[n].any() for n in inputs[2:3] if n):
            same[output], zeros[output] = inputs[0], arrays[inputs[1]][[2, 3, 6, 7]].tolist()
        else:
            if operator == "Conv":
                notes["pads"] = np.add(notes.get("pads", 0), zeros.get(node.input[0], [0] * 4)).tolist()
            elif operator == "Gemm" and notes.get("transB"):
                arrays[f"{output}.weight"] = arrays[inputs[1]][..., None, None]
                operator, inputs[1], notes = "Conv", f"{output}.weight", {}
            elif operator == "BatchNormalization":
                scale, offset, mean, variance = (arrays[name].astype(np.float64) for name in inputs[1:])
                factor = scale / np.sqrt(variance + notes.get("epsilon", 1e-5))
                arrays |= {f"{output}.weight": factor[:, None, None, None], f"{output}.bias": offset - mean * factor}
                operator, notes = "Conv", {"group": len(factor)}
                inputs[1:] = f"{output}.weight", f"{output}.bias"
            if operator not in OPERATORS or (node.op_type != "Conv" and zeros.keys() & node.input):
                raise NotImplementedError(operator)
            inputs = inputs[:1] if operator.startswith("Reduce") else inputs
            numbers = {key: value for key, value in notes.items() if not isinstance(value, bytes)}
            steps.append({**numbers, "operator": operator, "inputs": inputs, "output": output})
    used = {name for step in steps for name in step["inputs"]}
    shapes = {name: (1,) * (4 - array.ndim) + array.shape for name, array in arrays.items() if name in used}
    return steps, {name: arrays[name].reshape(shape) for name, shape in shapes.items()}


def _needed(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes that the logits need; of what is about shapes, none."""
    names, nodes = {OUTPUT}, []
    for node in reversed(graph.node):
        if node.output[0] in names:
            nodes.append(node)
            names.update(node.input[:1] if node.op_type in ONE_IMAGE else node.input)
    return nodes[::-1]
