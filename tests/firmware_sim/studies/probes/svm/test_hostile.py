"""Gateways that lie: only those that are marked, and no farther than the lie says."""

from __future__ import annotations

import numpy as np
import pytest

from fedgate.firmware_sim.studies.probes.svm.hostile import LIAR, lying
from fedgate.models.arrays import FEATURES, LABELS, Arrays, generator
from fedgate.models.federated.defences.single_update import change_of
from fedgate.models.federated.protocol.schema import UpdateError
from tests.support.given_width import build


def rows() -> Arrays:
    x = np.random.default_rng(0).normal(size=(30, 2))
    return {FEATURES: x, LABELS: (x[:, 0] > 0).astype(np.int64)}


def test_only_the_marked_lie_and_a_replay_is_the_first_update() -> None:
    plain = build("fedavg", 2, {"loss": "logistic", "components": 0, "normalisation": "none"})
    phase, server = lying(plain, "replay").phases[0], plain.start(generator(0, 0, "cloud"))
    moved = {**server.global_state, "weights": server.global_state["weights"] + 3.0}
    own, first = phase.train(server.global_state, {}, {**rows(), LIAR: np.ones(1)}, generator(0, 0, "a"))
    _, again = phase.train(moved, own, {**rows(), LIAR: np.ones(1)}, generator(0, 1, "a"))
    _, honest = phase.train(moved, {}, rows(), generator(0, 1, "a"))
    _, expected = plain.phases[0].train(moved, {}, rows(), generator(0, 1, "a"))
    assert all(np.array_equal(again[name], first[name]) for name in first)
    assert all(np.array_equal(honest[name], expected[name]) for name in expected)
    assert not np.array_equal(again["weights"], expected["weights"])


def test_the_largest_lie_is_just_admitted() -> None:
    plain = build("fedavg", 2, {"loss": "logistic", "components": 0, "normalisation": "none", "largest_change": 5.0})
    server = plain.start(generator(0, 0, "cloud"))
    lie = lying(plain, "largest, flipped", largest_change=5.0).phases[0]
    _, update = lie.train(server.global_state, {}, {**rows(), LIAR: np.ones(1)}, generator(0, 0, "a"))
    plain.phases[0].admit(server, update)
    with pytest.raises(UpdateError, match="expected a size up to 5"):
        plain.phases[0].admit(server, {**update, "weights": 1.02 * update["weights"]})


def test_those_who_collude_send_the_same_as_far_off_as_an_honest_gateway() -> None:
    plain = build("fedavg", 2, {"loss": "logistic", "components": 0, "normalisation": "none"})
    honest = [{FEATURES: rows()[FEATURES] + way, LABELS: rows()[LABELS]} for way in (0.0, 0.5, 1.0)]
    phase, server = lying(plain, "colluding", honest=honest).phases[0], plain.start(generator(0, 0, "cloud"))
    told = [
        phase.train(server.global_state, {}, {**rows(), LIAR: np.ones(1)}, generator(0, 0, name))[1]
        for name in ("a", "b")
    ]
    assert all(np.array_equal(told[0][name], told[1][name]) for name in told[0])
    sent = [plain.phases[0].train(server.global_state, {}, each, generator(0, 0, "colluding"))[1] for each in honest]
    asked = np.stack([change_of(phase.schema, update) for update in sent])
    spread = np.sqrt(((asked - asked.mean(axis=0)) ** 2).sum(axis=1).mean())
    moved = change_of(phase.schema, told[0]) - asked.mean(axis=0)
    np.testing.assert_allclose(np.linalg.norm(moved), spread, rtol=1e-9)
    assert moved @ asked.mean(axis=0) < 0.0
    with pytest.raises(ValueError, match="'colluding' given without data of honest gateways"):
        lying(plain, "colluding")
