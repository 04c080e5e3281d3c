"""FedAvg of updates that are no longer than the median length of the round's (norm clipping: Sun et al. 2019, "Can You
Really Backdoor Federated Learning?", arXiv 1911.07963; with the median as the bound: Andrew et al. 2021,
"Differentially Private Learning with Adaptive Clipping", where it is tracked over rounds).

What a gateway sends and keeps is as in FedAvg; of the one-class loss it sends the solution of its own rows. A liar is
counted, but pulls no farther than an honest gateway can: f of n who all pull backwards leave (n - 2 f) / n of the step
(`robust_rules`, `robustly`).
"""

from __future__ import annotations

from typing import Any

from fedgate.models.federated.algorithm import Algorithm, Count
from fedgate.models.federated.fedavg import fedavg
from fedgate.models.federated.robustly import Robust, robust_fedavg, with_settings_of


@with_settings_of(fedavg)
def fedavg_clipped(feature_count: Count, **settings: Any) -> Algorithm:
    """FedAvg with clipped updates; the settings are those of `fedavg`."""
    return robust_fedavg(feature_count, Robust(rule="clipped"), settings)
