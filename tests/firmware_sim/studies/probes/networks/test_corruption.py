"""Bad gateways: what is changed, and that nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

from fedgate.config.protocol.wire import encode
from fedgate.firmware_sim.studies.probes.networks.corruption import Attack, corrupt
from fedgate.models.arrays import FEATURES, LABELS, Arrays

DATA: Arrays = {
    FEATURES: np.random.default_rng(0).normal(size=(200, 6)) * np.array([1e-3, 1.0, 5.0, 1.0, 1.0, 1e6]),
    LABELS: np.arange(200) % 4 - 1,
}
ATTACKS = [Attack(), Attack(kind="noise", amount=0.5), Attack(kind="stuck"), Attack(kind="flipped")]


def corrupted(attack: Attack) -> Arrays:
    return corrupt(DATA, attack, np.random.default_rng(1))


def test_half_of_the_channels_never_leave_their_first_value() -> None:
    found = corrupted(Attack(kind="stuck"))
    constant = (found[FEATURES] == DATA[FEATURES][0]).all(axis=0)
    assert constant.sum() == 3
    np.testing.assert_array_equal(found[FEATURES][:, ~constant], DATA[FEATURES][:, ~constant])
    np.testing.assert_array_equal(found[LABELS], DATA[LABELS])


def test_labels_are_turned_round_and_unknown_ones_stay() -> None:
    found = corrupted(Attack(kind="flipped"))
    assert found[LABELS][:4].tolist() == [-1, 1, 0, 0]
    assert found[LABELS].dtype == DATA[LABELS].dtype
    np.testing.assert_array_equal(found[FEATURES], DATA[FEATURES])


def test_noise_is_in_deviations_of_each_feature() -> None:
    noise = corrupted(Attack(kind="noise", amount=0.5))[FEATURES] - DATA[FEATURES]
    np.testing.assert_allclose(noise.std(axis=0) / DATA[FEATURES].std(axis=0), 0.5, rtol=0.2)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.kind)
def test_data_is_not_changed_in_place_and_the_same_generator_gives_the_same_bytes(attack: Attack) -> None:
    before = encode(DATA)
    found = [corrupted(attack) for _ in range(2)]
    assert encode(DATA) == before
    assert encode(found[0]) == encode(found[1])
    assert (encode(found[0]) == before) == (attack.kind == "none")
