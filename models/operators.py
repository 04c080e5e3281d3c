"""The ONNX operators that our graphs are made of: a gateway runs no others, and knows them without the package onnx."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Operator(NamedTuple):
    """How our graphs use an operator: with so many inputs, and with these attributes, each of one field of
    `AttributeProto`.
    """

    inputs: range
    outputs: range = range(1, 2)
    attributes: Mapping[str, str] = MappingProxyType({})


_ONE, _TWO, _THREE, _FOUR = (Operator(range(count, count + 1)) for count in (1, 2, 3, 4))
_REDUCE = _ONE._replace(attributes={"axes": "ints", "keepdims": "i"})

OPERATORS: Mapping[str, Operator] = MappingProxyType(
    dict.fromkeys(["Sub", "Div", "Max", "Mul", "Add", "Reshape"], _TWO)
    | dict.fromkeys(["Exp", "Log", "Cos"], _ONE)
    | {
        "Gemm": Operator(range(2, 4), attributes={"transB": "i"}),
        "ReduceMax": _REDUCE,
        "Concat": Operator(range(2, 100), attributes={"axis": "i"}),
    }
    | {"MatMul": _TWO, "ReduceMean": _REDUCE, "LessOrEqual": _TWO, "Where": _THREE}  # of the ensemble
    | {  # of the echo state network
        "Scan": Operator(range(2, 3), range(1, 4), {"num_scan_inputs": "i", "body": "g"}),
        "Tanh": _ONE,
        "Identity": _ONE,
        "Clip": _THREE,
        "IsNaN": _ONE,
        "ConstantOfShape": _ONE._replace(attributes={"value": "t"}),
        "ScatterElements": _THREE._replace(attributes={"axis": "i"}),
        "Gather": _TWO._replace(attributes={"axis": "i"}),
        "Slice": Operator(range(3, 5)),
        "Split": Operator(range(1, 2), range(2, 100), {"axis": "i"}),
        "Transpose": _ONE._replace(attributes={"perm": "ints"}),
        "ReduceSum": _TWO._replace(attributes={"keepdims": "i"}),
        "ReduceSumSquare": _REDUCE,
    }
    | {  # of the recurrent network
        "LSTM": Operator(range(4, 5), range(2, 3), {"hidden_size": "i"}),
        "GRU": Operator(range(4, 5), range(2, 3), {"hidden_size": "i", "linear_before_reset": "i"}),
        "Relu": _ONE,
        "Squeeze": _TWO,
    }
)
