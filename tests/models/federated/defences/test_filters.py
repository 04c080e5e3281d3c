"""The judges: a loss that is that of a plain count, and what a statistic of changes sees and does not."""

from __future__ import annotations

import numpy as np
import pytest

from fedgate.models.arrays import Array, Floats, generator
from fedgate.models.federated.defences.filters import ranking_and_border
from fedgate.models.federated.defences.wrapper import JUDGE
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.protocol.schema import UpdateError
from fedgate.models.testing.exchanges import SEED
from fedgate.models.testing.fleet import NAMES
from tests.models.federated.defences.test_defended import behind, data_of, flipped, plain, refusals


def naive_loss(scores: Floats, anomalous: Array) -> float:
    pairs = [(a, b) for a in scores[anomalous] for b in scores[~anomalous]]
    misranked = sum((a < b) + 0.5 * (a == b) for a, b in pairs) / len(pairs)
    wrong = [np.mean(scores[~anomalous] > 0.0), np.mean(scores[anomalous] <= 0.0)]
    return float((misranked + np.mean(wrong)) / 2.0)


def test_the_loss_is_that_of_a_count_over_all_pairs() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        anomalous = np.arange(20) < rng.integers(1, 19)
        scores = rng.integers(-3, 4, 20).astype(np.float64)  # with ties
        assert ranking_and_border(scores, anomalous) == pytest.approx(naive_loss(scores, anomalous), abs=1e-12)
    assert ranking_and_border(np.zeros(20), anomalous) == 0.5


def test_shouting_and_turning_round_is_refused_by_the_statistic() -> None:
    algorithm = behind(plain("fedavg"), "statistic")
    data, phase = data_of(algorithm), algorithm.phases[0]
    server = run(algorithm, data, seed=SEED, rounds=5).server
    _, update = phase.train(server.global_state, {}, data[NAMES[0]], generator(0, 0, "a"))
    phase.admit(server, update)
    for factor, reason in ((50.0, "size: expected"), (-1.0, "cosine with the mean change: expected")):
        loud = {name: factor * array if name != "samples" else array for name, array in update.items()}
        with pytest.raises(UpdateError, match=reason):
            phase.admit(server, loud)
    none = {name: 0.0 * array if name != "samples" else array for name, array in update.items()}
    assert float(phase.admit(server, none)[f"{JUDGE}count"]) == 0.0


def test_what_the_statistic_cannot_see() -> None:
    """Half of the gateways with flipped labels are as usual as the others."""
    algorithm = plain("esn-fedavg")
    data = {who: flipped(each) if who in NAMES[:2] else each for who, each in data_of(algorithm).items()}
    refused, _ = refusals(behind(algorithm, "statistic"), data)
    assert len([name for name in refused if name in NAMES[:2]]) < len(NAMES[:2]) * algorithm.rounds / 2
