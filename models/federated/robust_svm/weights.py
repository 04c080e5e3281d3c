"""What the cloud asks of gateways that carry a weight: how much one may count, and how far it may pull (ours).

Sums of `weight * values` and of `weight` may travel masked, so a single gateway is bounded by settings alone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedgate.models.arrays import Arrays
from fedgate.models.federated.protocol.algorithm import MAX_SAMPLES, Server
from fedgate.models.federated.protocol.schema import UpdateError
from fedgate.models.federated.robust_svm.gateway import Weighting


def most_weight(weighting: Weighting, max_weight: float | None) -> float:
    """Return how much a gateway counts at most: as set, else one where all count alike and the longest baseline where
    each counts by its rows.
    """
    if max_weight is not None:
        return max_weight
    return float(MAX_SAMPLES) if weighting == "samples" else 1.0


def check_weighed(values: str, weight: str, *, max_weight: float, largest: float) -> Callable[[Server, Arrays], None]:
    """Return what raises `UpdateError` where a gateway claims too much weight, or its `values` exceed `largest` times
    it.
    """

    def check(_server: Server, update: Arrays) -> None:
        claimed = float(update[weight])
        if not 0.0 < claimed <= max_weight:
            raise UpdateError(f"{weight}: expected a number above 0 and up to {max_weight:g}, got {claimed:g}")
        found = float(np.abs(update[values]).max())
        if found > largest * claimed:  # no quotient, which a tiny weight would let overflow
            raise UpdateError(
                f"{values}: expected values up to {largest:g} (setting 'largest_weight') times the weight {claimed:g}, "
                f"got {found:g}"
            )

    return check
