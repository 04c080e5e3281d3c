"""The ONNX operators that our graphs are made of: a gateway runs no others, and knows them without the package onnx."""

OPERATORS = frozenset(
    {"Sub", "Div", "Gemm", "ReduceMax", "Exp", "Log", "Max", "Mul", "Add", "Cos", "Reshape", "Concat"}
    | {"MatMul", "ReduceMean", "LessOrEqual", "Where"}  # of the ensemble
    | {"Scan", "Tanh", "Identity", "Clip", "IsNaN", "ConstantOfShape", "ScatterElements"}  # of the echo state network
    | {"Gather", "Slice", "Split", "Transpose", "ReduceSum", "ReduceSumSquare"}
    | {"LSTM", "GRU", "Relu", "Squeeze"}  # of the recurrent network
)
