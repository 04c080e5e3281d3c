"""LSTM and GRU networks: their settings, their scores, their ONNX graph, and their training with torch."""
