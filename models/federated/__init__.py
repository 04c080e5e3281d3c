"""Federated algorithms by name: a factory takes the number of features and the settings and returns an `Algorithm`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import validate_call

from models.federated.algorithm import Algorithm
from models.federated.fedavg import fedavg
from models.federated.support_vector_election import support_vector_election

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "fedavg": fedavg,
    "support-vector-election": support_vector_election,
}


def build(name: str, feature_count: int, settings: Mapping[str, Any]) -> Algorithm:
    """Return the named algorithm for F features with its settings checked against the factory's own signature.

    Raises `ValueError` (pydantic's `ValidationError`) naming the setting, its value and what was expected.
    """
    factory = ALGORITHMS.get(name)
    if factory is None:
        raise ValueError(f"algorithm {name!r} is unknown; expected one of {', '.join(ALGORITHMS)}")
    known = [key for key in inspect.signature(factory).parameters if key != "feature_count"]
    unknown = sorted(settings.keys() - set(known))
    if unknown:
        raise ValueError(f"setting {unknown[0]!r} is unknown to {name}; expected one of {', '.join(known)}")
    return validate_call(factory)(feature_count, **settings)


__all__ = ["ALGORITHMS", "build"]
