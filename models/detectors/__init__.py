"""Detectors by name: each scores features, higher meaning more anomalous, and exports the same scores as an ONNX
graph.
"""

from fedgate.models.detectors.base.detector import PERSONAL, Detector
from fedgate.models.detectors.base.fault_classes import FAULT_CLASSES
from fedgate.models.detectors.base.linear import LINEAR
from fedgate.models.detectors.base.subspace import SUBSPACE
from fedgate.models.detectors.esn.esn import ESN
from fedgate.models.detectors.recurrent.recurrent import RECURRENT
from fedgate.models.detectors.svm.ensemble import ENSEMBLE
from fedgate.models.detectors.svm.ocsvm import OCSVM
from fedgate.models.detectors.svm.svdd import SVDD
from fedgate.models.installed import Registry

OURS: dict[str, Detector] = {
    "ensemble": ENSEMBLE,
    "esn": ESN,
    "linear": LINEAR,
    "linear-svm": FAULT_CLASSES,
    "ocsvm": OCSVM,
    "recurrent": RECURRENT,
    "subspace": SUBSPACE,
    "svdd": SVDD,
}
DETECTORS = Registry("detector", OURS, Detector)

__all__ = ["DETECTORS", "PERSONAL", "Detector"]
