"""What is measured beside a peer is what it claims: the same task, whole rounds, and no silence about what failed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.benchmarks.exchange import GATEWAYS, ROUNDS, UPDATE_BYTES, check
from tests.benchmarks.peers.compare import run_peer
from tests.benchmarks.peers.loopback import round_s, sealing_s
from tests.benchmarks.peers.simulated_task import first_model, improved, rows_of
from tests.benchmarks.peers.simulation import NAMES, fedavg, same_task, trained


def test_our_loop_runs_the_task_of_the_peer() -> None:
    model, nodes, rounds = first_model(), 5, 3
    fit, _ = trained(same_task(), nodes, rounds)
    for _ in range(rounds):
        answers = [improved(model, rows_of(number)) for number in range(nodes)]
        model = [np.mean(arrays, axis=0) for arrays in zip(*answers, strict=True)]
    for name, expected in zip(NAMES, model, strict=True):
        np.testing.assert_allclose(fit.shared[name], expected, rtol=1e-12, atol=1e-15)
    assert np.abs(model[1]).min() > 0.0


def test_fedavg_is_trained_in_as_many_exchanges_as_rounds() -> None:
    fit, taken_s = trained(fedavg(), 3, 2)
    assert fit.exchanges == 2 and taken_s > 0.0


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"opened_s": [0.0] * ROUNDS}, "rounds opened"),
        ({"counted": [ROUNDS] * (GATEWAYS - 1)}, "30"),
        ({"counted": [ROUNDS] * (GATEWAYS - 1) + [ROUNDS - 1]}, "29"),
        ({"refused": ["too late"]}, "too late"),
        ({"sent": ROUNDS * GATEWAYS * UPDATE_BYTES - 1}, "sent: "),
    ],
)
def test_an_exchange_that_was_not_whole_is_not_measured(wrong: dict[str, Any], complaint: str) -> None:
    size = ROUNDS * GATEWAYS * UPDATE_BYTES
    whole = {"opened_s": [0.0] * (ROUNDS + 1), "counted": [ROUNDS] * GATEWAYS, "refused": [], "sent": size}
    check({**whole, "received": size})
    with pytest.raises(AssertionError, match=complaint):
        check({**whole, "received": size, **wrong})


def test_a_peer_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="No module named"):
        run_peer(tmp_path, [sys.executable, "-m", "tests.benchmarks.peers.flower_exchange", 0, 1, 1, 1])


def test_bytes_go_through_bare_sockets() -> None:
    assert round_s(2, 100_000) > 0.0
    assert sealing_s(100_000) > 0.0
