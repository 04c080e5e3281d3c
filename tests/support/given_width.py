"""Algorithms and detectors with the width of their kernel given and features in the unit that they are in, for tests of
all but how these are found.

A width that nobody gave costs an exchange of its own and hangs on the rows
(`fedgate.models.federated.protocol.kernel_width`), and so does a common unit
(`fedgate.models.federated.protocol.common_unit`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fedgate.models import federated
from fedgate.models.arrays import Array, Arrays
from fedgate.models.federated.protocol.algorithm import Algorithm


def build(name: str, feature_count: int, settings: Mapping[str, Any]) -> Algorithm:
    """Return the named algorithm with γ = 1 / F where it has a kernel and no other width is given, and without a common
    unit of features that are not normalised.
    """
    has_width = "gamma" in inspect.signature(federated.ALGORITHMS[name]).parameters
    width = {"gamma": 1.0 / feature_count} if has_width else {}
    return federated.build(name, feature_count, {"unit": "feature", **width, **settings})


def fitted(fit: Callable[..., Arrays]) -> Callable[..., Arrays]:
    """Return a detector's `fit` with γ = 1 / F where no other width is given."""

    def with_width(x: Array, **settings: Any) -> Arrays:
        width = {} if settings.get("kernel") == "linear" else {"gamma": 1.0 / x.shape[1]}
        return fit(x, **{**width, **settings})

    return with_width


def with_width(algorithm: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table [algorithm] of settings with γ = 1 / 3 where it has a kernel and no other width is given."""
    name = algorithm.get("name", "support-vector-election")
    has_width = "gamma" in inspect.signature(federated.ALGORITHMS[name]).parameters
    width = {"gamma": 1.0 / 3.0} if has_width else {}
    return {**algorithm, "name": name, "settings": {**width, **algorithm.get("settings", {})}}
