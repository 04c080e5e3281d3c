"""Detectors by name: each scores features, higher meaning more anomalous, and exports the same scores as an ONNX
graph.
"""

from fedgate.models.detectors.detector import PERSONAL, Detector
from fedgate.models.detectors.ensemble import ENSEMBLE
from fedgate.models.detectors.esn import ESN
from fedgate.models.detectors.fault_classes import FAULT_CLASSES
from fedgate.models.detectors.linear import LINEAR
from fedgate.models.detectors.ocsvm import OCSVM
from fedgate.models.detectors.recurrent import RECURRENT
from fedgate.models.detectors.subspace import SUBSPACE
from fedgate.models.detectors.svdd import SVDD

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
