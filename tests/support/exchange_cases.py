"""The algorithms of `test_exchange` with settings that make them quick; how exact and how settled each of them is."""

from __future__ import annotations

from typing import Any

import pytest
from _pytest.mark import ParameterSet

from fedgate.models.federated import ALGORITHMS

SMALL = {"units": 12, "leak": 0.5, "washout": 4}  # 40 rows are all that a gateway trains on
SETTLING = ("fedavg-median", "fedavg-trimmed-mean", "fedavg-krum", "fedavg-multi-krum")  # of the same rows: the same
ROBUST = (*SETTLING, "fedavg-clipped")  # one algorithm with another rule each
QUICK: dict[str, dict[str, Any]] = {
    **{name: {"rounds": 3, "components": 16} for name in ("fedavg", "fedper", "fedprox")},
    **{name: {"rounds": 2, "components": 16} for name in ("conditional-fedavg", *ROBUST)},
    "fedavg-trimmed-mean": {"rounds": 2, "components": 16, "liars": 0.34},  # one of three
    **{name: {"rounds": 3} for name in ("robust-svm-admm", "robust-svm-subgradient")},
    **{name: {"network": SMALL} for name in ("incfed", "partial-incfed")},
    **{name: {"rounds": 3, "network": SMALL | {"task": "classify"}} for name in ("esn-fedavg", "esn-fedcurv")},
    "recurrent-fedavg": {"rounds": 2, "network": {"hidden": 3, "dense": 3}, "epochs": 1},
}
LINEAR = {"rounds": 2, "components": 16}
LOGISTIC = {"rounds": 2, "components": 0, "loss": "logistic"}
# What may be done to updates on their way, and between rounds.
WRAPPED: dict[str, dict[str, Any]] = {
    "fedavg masked": LINEAR | {"masking": {"fewest": 3}},
    "incfed masked": {"network": SMALL, "masking": {"fewest": 3}},
    "fedavg compressed": LOGISTIC | {"compression": {"number": "float32", "share": 0.5}},
    "fedavg compensated": LOGISTIC | {"compensate": [1]},
    "support-vector-election searched": {"rounds": 3},
    "federated-subspace surveyed masked": {"survey": {"profile": {}}, "masking": {"fewest": 3}},
}
CASES = [*ALGORITHMS, *WRAPPED]
QUICK |= WRAPPED
# An interior-point solver stops where it is near enough, and rounding in what it starts from moves that place.
# So does a sum that is divided by another, and a number on the edge of being rounded the other way.
SOLVED_TO = {"robust-svm-admm": 1e-8, "compensate": 1e-8, "compression": 1e-6}
NOTHING_NEW = "incfed masked"  # of the same rows: no sum is opened
UNCHANGED_BY_THE_SAME_ROWS = {
    *("federated-subspace", "incfed", "partial-incfed", *SETTLING),
    "federated-subspace surveyed masked",
}


def one_of_a_rule(names: list[str]) -> list[ParameterSet]:
    """Return the cases once each; of algorithms that are one but for a rule, one is in every run."""
    return [pytest.param(name, marks=pytest.mark.soak if name in ROBUST[1:] else ()) for name in names]


def seeded(seeds: int) -> list[ParameterSet]:
    """Return every case with so many seeds, one of them in every run and the others in soak.

    Of algorithms that are one but for a rule, which no link and no power cut meets, one is in every run.
    """
    found = []
    for place, name in enumerate(CASES):
        first = place % seeds
        found.append(pytest.param(name, first, marks=pytest.mark.soak if name in ROBUST[1:] else ()))
        others = (seed for seed in range(seeds) if seed != first and name not in ROBUST)
        found += [pytest.param(name, seed, marks=pytest.mark.soak) for seed in others]
    return found
