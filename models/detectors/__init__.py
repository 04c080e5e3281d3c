"""Detectors by name: each scores features, higher meaning more anomalous, and exports the same scores as an ONNX
graph.
"""

from models.detectors.detector import PERSONAL, Detector
from models.detectors.linear import LINEAR
from models.detectors.ocsvm import OCSVM
from models.detectors.svdd import SVDD

DETECTORS: dict[str, Detector] = {"linear": LINEAR, "ocsvm": OCSVM, "svdd": SVDD}

__all__ = ["DETECTORS", "PERSONAL", "Detector"]
