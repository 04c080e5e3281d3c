"""What detectors share, and the small ones: the record of a detector, ONNX nodes, subspaces, planes."""
