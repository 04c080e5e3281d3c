"""Detectors by name: each scores features, higher meaning more anomalous, and exports the same scores as an ONNX
graph.
"""

from models.detectors.detector import PERSONAL, Detector
from models.detectors.ensemble import ENSEMBLE
from models.detectors.esn import ESN
from models.detectors.fault_classes import FAULT_CLASSES
from models.detectors.linear import LINEAR
from models.detectors.ocsvm import OCSVM
from models.detectors.recurrent import RECURRENT
from models.detectors.subspace import SUBSPACE
from models.detectors.svdd import SVDD

DETECTORS: dict[str, Detector] = {
    "ensemble": ENSEMBLE,
    "esn": ESN,
    "linear": LINEAR,
    "linear-svm": FAULT_CLASSES,
    "ocsvm": OCSVM,
    "recurrent": RECURRENT,
    "subspace": SUBSPACE,
    "svdd": SVDD,
}

__all__ = ["DETECTORS", "PERSONAL", "Detector"]
