"""Echo state networks: the reservoir, its readouts, and both as an ONNX graph."""
