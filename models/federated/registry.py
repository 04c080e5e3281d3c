"""The list of all federated algorithms, and how one is built from its name and settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import validate_call

from models.federated.algorithm import Algorithm
from models.federated.conditional_fedavg import conditional_fedavg
from models.federated.ensemble_svdd import ensemble_svdd
from models.federated.esn_fedavg import esn_fedavg
from models.federated.esn_fedcurv import esn_fedcurv
from models.federated.fedavg import fedavg
from models.federated.fedper import fedper
from models.federated.fedprox import fedprox
from models.federated.incfed import incfed
from models.federated.partial_incfed import partial_incfed
from models.federated.robust_svm_admm import robust_svm_admm
from models.federated.robust_svm_subgradient import robust_svm_subgradient
from models.federated.subspace import federated_subspace
from models.federated.support_vector_election import support_vector_election
from models.federated.whitened import whitened

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "fedavg": fedavg,
    "esn-fedavg": esn_fedavg,
    "esn-fedcurv": esn_fedcurv,
    "ensemble-svdd": ensemble_svdd,
    "federated-subspace": federated_subspace,
    "fedper": fedper,
    "incfed": incfed,
    "partial-incfed": partial_incfed,
    "fedprox": fedprox,
    "conditional-fedavg": conditional_fedavg,
    "robust-svm-admm": robust_svm_admm,
    "robust-svm-subgradient": robust_svm_subgradient,
    "support-vector-election": support_vector_election,
}

# What every algorithm takes besides its own settings: see `models.federated.whitened`.
WHITENING_SETTINGS: dict[str, Any] = {"whiten": None, "whiten_residual": 1.0}


def build(name: str, feature_count: int, settings: Mapping[str, Any]) -> Algorithm:
    """Return the named algorithm for F features with its settings checked against the factory's own signature, on
    features whitened first where the setting `whiten` gives a number of directions.

    Raises `ValueError` (pydantic's `ValidationError`) naming the setting, its value and what was expected.
    """
    factory = ALGORITHMS.get(name)
    if factory is None:
        raise ValueError(f"algorithm {name!r} is unknown; expected one of {', '.join(ALGORITHMS)}")
    known = [key for key in inspect.signature(factory).parameters if key != "feature_count"] + [*WHITENING_SETTINGS]
    unknown = sorted(settings.keys() - set(known))
    if unknown:
        raise ValueError(f"setting {unknown[0]!r} is unknown to {name}; expected one of {', '.join(known)}")
    own = {key: value for key, value in settings.items() if key not in WHITENING_SETTINGS}
    step = {key: settings[key] for key in WHITENING_SETTINGS if key in settings}
    if step.get("whiten") is None:
        return validate_call(factory)(feature_count, **own)
    return validate_call(whitened)(factory, feature_count, own, **step)
