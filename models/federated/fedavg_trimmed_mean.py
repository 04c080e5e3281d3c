"""FedAvg with the trimmed mean of each coordinate (Yin et al. 2018, arXiv 1803.01498, Algorithm 1, option II).

What a gateway sends and keeps is as in FedAvg; of the one-class loss it sends the solution of its own rows. Without its
f least and f most values each coordinate stays within what honest gateways ask for, where no more than f lie
(`robust_rules`, `robustly`).
"""

from __future__ import annotations

from typing import Any

from fedgate.models.federated.algorithm import Algorithm, Count
from fedgate.models.federated.fedavg import fedavg
from fedgate.models.federated.robustly import LIARS, Liars, Robust, robust_fedavg, with_settings_of


@with_settings_of(fedavg)
def fedavg_trimmed_mean(feature_count: Count, *, liars: Liars = LIARS, **settings: Any) -> Algorithm:
    """FedAvg by trimmed mean; all settings but `liars` are those of `fedavg`.

    :param liars: share of a round's updates cut off at either end; of 4 or fewer 0.2 is nobody, which is refused.
    """
    return robust_fedavg(feature_count, Robust(rule="trimmed-mean", liars=liars), settings)
