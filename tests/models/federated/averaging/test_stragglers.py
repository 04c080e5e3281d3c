"""A gateway that has time for fewer epochs than the others (Li et al. 2020): it sends what so many epochs make, to the
byte, and all else stays as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedgate.config.protocol.wire import encode
from fedgate.models.arrays import EPOCHS, Arrays
from fedgate.models.federated.protocol.run import run
from fedgate.models.testing.fleet import FEATURE_COUNT, fleet
from tests.support.given_width import build

SMALL = {"washout": 5, "units": 8, "task": "classify"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"fedprox {local}": ("fedprox", {"local": local, "components": 16}) for local in ("sgd", "dual", "dual-sgd")},
    "fedprox logistic": ("fedprox", {"loss": "logistic", "components": 0}),
    "recurrent": ("recurrent-fedavg", {"network": {"hidden": 3, "dense": 3}, "mu": 0.1}),
    "esn-fedavg": ("esn-fedavg", {"network": SMALL}),
    "esn-fedcurv": ("esn-fedcurv", {"network": SMALL}),
    "conditional": ("conditional-fedavg", {"components": 16}),
}


def first_updates(case: str, epochs: int, slow: Arrays) -> dict[str, bytes]:
    """Return what gateways send in the first round, of which `harbour` holds `slow` besides."""
    name, settings = CASES[case]
    algorithm = build(name, FEATURE_COUNT, {**settings, "epochs": epochs})
    data = {who: gateway.data for who, gateway in fleet(3, labelled=algorithm.labels).items()}
    sent: dict[str, bytes] = {}
    data["harbour"] = {**data["harbour"], **slow}

    def keep_first(who: str, update: Arrays) -> None:
        sent.setdefault(who, encode(update))

    run(algorithm, data, rounds=1, on_update=keep_first)
    return sent


@pytest.mark.parametrize("case", CASES)
def test_a_straggler_counts_with_the_epochs_that_it_made(case: str) -> None:
    partly, one, four = (
        first_updates(case, epochs, slow) for epochs, slow in ((4, {EPOCHS: np.array(1)}), (1, Arrays()), (4, Arrays()))
    )
    assert partly["harbour"] == one["harbour"] != four["harbour"]
    assert {**partly, "harbour": b""} == {**four, "harbour": b""}
    assert first_updates(case, 4, {EPOCHS: np.array(9)}) == four


def test_who_has_time_for_nothing_is_told_so() -> None:
    with pytest.raises(ValueError, match="epochs 0 given in the data, expected 1 or more"):
        first_updates("fedprox sgd", 4, {EPOCHS: np.array(0)})
