"""The pure core: samples to windows to features to scores to alarms, and the federated algorithms.

Nothing in this package reads a clock, a file, a socket or a global random generator, so the same code runs on a
gateway, in the cloud and in a simulation. Reading order for a newcomer: `arrays`, `federated.algorithm`,
`federated.run`, `federated.fedavg`.

A researcher imports four names from here (docs/reference/library.md). Those that read files or count what travels stand
in `fedgate.firmware_sim`, which a gateway need not have: they are loaded when asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedgate.firmware_sim.evaluate.estimator import Federated
    from fedgate.firmware_sim.evaluate.loading import extract_features, load_recording
    from fedgate.models.features.spec import FeatureSpec

__all__ = ["FeatureSpec", "Federated", "extract_features", "load_recording"]

_MODULES = {
    "FeatureSpec": "fedgate.models.features.spec",
    "Federated": "fedgate.firmware_sim.evaluate.estimator",
    "extract_features": "fedgate.firmware_sim.evaluate.loading",
    "load_recording": "fedgate.firmware_sim.evaluate.loading",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "fedgate.firmware_sim":
            raise
        raise ImportError(f"fedgate.models.{name} is part of fedgate.firmware_sim: install fedgate's wheel") from error
