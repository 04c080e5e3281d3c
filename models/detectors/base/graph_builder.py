"""Builds ONNX graphs beside their detectors; `onnx` is imported when a model is made, since gateways lack it (ours)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from fedgate.models.arrays import Array, Arrays

if TYPE_CHECKING:
    from onnx import NodeProto

Node: TypeAlias = "NodeProto"


def node(operator: str, inputs: str, output: str, *, within: str = "", **attributes: Any) -> Node:
    """Return a node with one output; names of inputs stand side by side, and `within` before each name."""
    from onnx import helper

    return helper.make_node(operator, [within + name for name in inputs.split()], [within + output], **attributes)


def model_of(
    name: str, params: Arrays, personal: Collection[str], nodes: list[Node], tensors: Arrays, feature_count: int
) -> bytes:
    """Return a checked model `x (n, F) -> score (n,)` of nodes that begin at `z`, the features in normalised units.

    What the nodes name is a constant of `tensors`, or else the parameter of that name.
    """
    from fedgate.models.detectors.base.graph import model_bytes, standardise_nodes, standardise_tensors

    named = {key: params[key] for one in nodes for key in one.input if key in params}
    nodes = [*standardise_nodes(params, personal), *nodes]
    return model_bytes(name, nodes, named | tensors | standardise_tensors(params), personal, feature_count)


class GraphBuilder:
    """A graph in the making, from the nodes that make `z` on: its nodes in order and its constants."""

    def __init__(self, params: Arrays, personal: Collection[str], tensors: Arrays | None = None) -> None:
        from fedgate.models.detectors.base.graph import standardise_nodes, standardise_tensors

        self.nodes, self.tensors = standardise_nodes(params, personal), (tensors or {}) | standardise_tensors(params)

    def add(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add a node with one output and return the name of that."""
        return self.add_many(operator, inputs, [output], **attributes)[0]

    def add_many(self, operator: str, inputs: list[str], outputs: list[str], **attributes: Any) -> list[str]:
        """Add a node and return the names of its outputs."""
        from onnx import helper

        self.nodes.append(helper.make_node(operator, inputs, outputs, **attributes))
        return outputs

    def constant(self, name: str, values: Array | float | list[int]) -> str:
        """Add a constant of any shape and return its name; whole numbers stay whole."""
        self.tensors[name] = np.asarray(values)
        return name

    def model(
        self,
        name: str,
        personal: Collection[str],
        feature_count: int,
        more_outputs: Mapping[str, Sequence[int | str]],
        metadata: Mapping[str, str] = MappingProxyType({}),
    ) -> bytes:
        """Return the checked model, as `fedgate.models.detectors.base.graph.model_bytes` does."""
        from fedgate.models.detectors.base.graph import model_bytes

        return model_bytes(
            name, self.nodes, self.tensors, personal, feature_count, more_outputs=more_outputs, metadata=metadata
        )

    def guard(self) -> str:
        """Add a number for each row (n,): zero where it holds numbers alone, NaN elsewhere. What is clipped or
        squashed in a gate would look like a number.
        """
        nothing = self.add("Mul", ["z", self.constant("nothing", 0.0)], "nothing_of_each")
        return self.add("ReduceSum", [nothing, self.constant("columns", [1])], "guard", keepdims=0)

    def margin(self, outputs: str, count: int) -> str:
        """Add how far the largest of `outputs` (n, count) of the classes from 1 on is above that of class 0, (n,)."""
        normal = self.add("Gather", [outputs, self.constant("normal", 0)], "voice_of_normal", axis=1)
        bounds = [self.constant("second", [1]), self.constant("stop", [count]), self.constant("axis", [1])]
        others = self.add("Slice", [outputs, *bounds], "voices_of_others")
        highest = self.add("ReduceMax", [others], "highest", axes=[1], keepdims=0)
        return self.add("Sub", [highest, normal], "lead")
