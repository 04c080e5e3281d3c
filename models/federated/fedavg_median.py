"""FedAvg with the median of each coordinate in place of the mean (Yin et al. 2018, arXiv 1803.01498, Algorithm 1).

What a gateway sends and keeps is as in FedAvg; of the one-class loss it sends the solution of its own rows. Any
minority of gateways may lie, each coordinate stays within what honest ones ask for (`robust_rules`, `robustly`).
"""

from __future__ import annotations

from typing import Any

from fedgate.models.federated.algorithm import Algorithm, Count
from fedgate.models.federated.fedavg import fedavg
from fedgate.models.federated.robustly import Robust, robust_fedavg, with_settings_of


@with_settings_of(fedavg)
def fedavg_median(feature_count: Count, **settings: Any) -> Algorithm:
    """FedAvg by coordinate-wise median; the settings are those of `fedavg`."""
    return robust_fedavg(feature_count, Robust(rule="median"), settings)
