"""A network of whole numbers (models/exact.py) as an ONNX graph: each of its operations is one node, in its order.

torch's exporter takes 8 of the 37 seconds of a first answer for it [measured].
"""

from dataclasses import dataclass, field
from typing import Any, cast

import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from pipeline.models import exact
from pipeline.models.description import INPUT, OUTPUT
from pipeline.models.exported import ExportedModel, with_normalization


@dataclass(frozen=True)
class Graph:
    """The nodes and the constants of a graph, which grows."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[onnx.TensorProto] = field(default_factory=list)

    def add(self, operator: str, *inputs: str | Tensor, output: str = "", **attributes: Any) -> str:
        """Add a node; a tensor among its inputs becomes a constant. Returns the name of its output."""
        name, names = output or f"{operator}_{len(self.nodes)}", list[str]()
        for value in inputs:
            if isinstance(value, Tensor):
                array = value.detach().numpy()
                self.constants.append(numpy_helper.from_array(array, f"constant_{len(self.constants)}"))
            names.append(value if isinstance(value, str) else self.constants[-1].name)
        self.nodes.append(helper.make_node(operator, names, [name], **attributes))
        return name

    def limited(self, values: str, low: int, high: int) -> str:
        """The values, at least `low` and at most `high`."""
        return self.add("Clip", values, torch.tensor(float(low)), torch.tensor(float(high)))


def model_proto(model: ExportedModel, net: exact.Exact, opset: int, batch: str) -> onnx.ModelProto:
    """The graph of a model with its network `net`, for any number of images. `batch` names this number."""
    crop, graph = model.view.crop, Graph()
    normalizing: Any = with_normalization(net, model.normalization)[0]  # type: ignore[index]
    values = graph.add("Mul", graph.add("Sub", INPUT, normalizing.mean), normalizing.scale)
    values, side = graph.limited(graph.add("Round", values), -exact.RELU_LEVELS, exact.RELU_LEVELS), crop
    for block in net.blocks:
        entry = values
        for layer in cast(exact.Block, block).layers:
            values, side = add_layer(graph, cast(exact.Layer, layer), values, side)
        shares = cast(exact.Block, block).shares
        if len(shares):
            scaled = [graph.add("Mul", value, shares[place]) for place, value in enumerate((values, entry))]
            parts = [graph.add("Round", value) for value in scaled]
            values = graph.limited(graph.add("Add", *parts), -exact.LEVELS, exact.LEVELS)
    places, unit = side * side, exact.UNIT
    maps = graph.add("Mul", values, torch.tensor(places / unit))
    sums = graph.add("ReduceSum", maps, torch.tensor([2, 3]), keepdims=0)
    features = graph.add("Round", graph.add("Mul", sums, torch.tensor(unit / places)))
    features = graph.add("Div", features, torch.tensor(float(unit)))
    parts_of_head: list[str | Tensor] = [features, net.classifier.weight, net.classifier.bias]
    head = [graph.add("Cast", part, to=TensorProto.DOUBLE) for part in parts_of_head]
    graph.add("Cast", graph.add("Gemm", *head, transB=1), output=OUTPUT, to=TensorProto.FLOAT)
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, *shape])
        for name, shape in ((INPUT, (3, crop, crop)), (OUTPUT, (len(model.classes),)))
    ]
    whole = helper.make_graph(graph.nodes, "exact", ends[:1], ends[1:], graph.constants)
    return helper.make_model(whole, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def add_layer(graph: Graph, layer: exact.Layer, values: str, side: int) -> tuple[str, int]:
    """The output of a layer for images of `side` × `side` values, and the side of the output."""
    missing = layer.missing(side)
    pads = [missing // 2, missing - missing // 2] if layer.padding is None else [layer.padding] * 2
    weight = graph.add("Cast", layer.weight, to=TensorProto.FLOAT)
    sums = graph.add(
        "Conv", values, weight, group=layer.groups, strides=[layer.stride] * 2, pads=[pads[0]] * 2 + [pads[1]] * 2
    )
    # This rounding changes no whole number. Without it, a runtime would multiply the weights by the factor.
    sums = graph.add("Round", graph.add("Add", sums, layer.offset[:, None, None]))
    result = graph.add("Round", graph.add("Mul", sums, layer.factor[:, None, None]))
    return graph.limited(result, layer.low, layer.high), (side + sum(pads) - layer.kernel) // layer.stride + 1
