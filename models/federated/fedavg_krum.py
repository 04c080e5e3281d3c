"""FedAvg with Krum or Multi-Krum in place of the mean (Blanchard et al. 2017, "Machine Learning with Adversaries",
Section 4).

Krum takes one update, that which lies nearest to its neighbours, and Multi-Krum the mean of the best n - f - 2. What a
gateway sends and keeps is as in FedAvg; of the one-class loss it sends the solution of its own rows. Against f liars of
n it needs n >= 2 f + 3 updates in every round; with fewer the round comes to nothing and says so (`robustly`). Liars
far from all others are never taken; liars who agree on something near by may be, and where gateways differ that ruins
the model (`robust_rules`, docs/results/attacks.md).
"""

from __future__ import annotations

from typing import Any

from fedgate.models.federated.algorithm import Algorithm, Count
from fedgate.models.federated.fedavg import fedavg
from fedgate.models.federated.robustly import LIARS, Liars, Robust, robust_fedavg, with_settings_of


@with_settings_of(fedavg)
def fedavg_krum(feature_count: Count, *, liars: Liars = LIARS, **settings: Any) -> Algorithm:
    """FedAvg by Krum; all settings but `liars` are those of `fedavg`.

    :param liars: share of a round's updates that may be lies; of 4 or fewer 0.2 is nobody, which is refused.
    """
    return robust_fedavg(feature_count, Robust(rule="krum", liars=liars), settings)


@with_settings_of(fedavg)
def fedavg_multi_krum(feature_count: Count, *, liars: Liars = LIARS, **settings: Any) -> Algorithm:
    """FedAvg by Multi-Krum; all settings but `liars` are those of `fedavg`.

    :param liars: share of a round's updates that may be lies; of 4 or fewer 0.2 is nobody, which is refused.
    """
    return robust_fedavg(feature_count, Robust(rule="multi-krum", liars=liars), settings)
