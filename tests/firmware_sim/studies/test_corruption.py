"""Bad gateways: what is changed, and that nothing else is."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from fedgate.config.protocol.wire import encode
from fedgate.firmware_sim.studies.engine.corruption import Kind, corrupted, flipped, stuck
from fedgate.models.arrays import FEATURES, LABELS, Arrays

DATA: Arrays = {
    FEATURES: np.random.default_rng(0).normal(size=(200, 6)) * np.array([1e-3, 1.0, 5.0, 1.0, 1.0, 1e6]),
    LABELS: np.arange(200) % 4 - 1,
}


def test_half_of_the_channels_never_leave_their_first_value() -> None:
    found = stuck(DATA, 0.5, np.random.default_rng(1))
    constant = (found[FEATURES] == DATA[FEATURES][0]).all(axis=0)
    assert constant.sum() == 3
    np.testing.assert_array_equal(found[FEATURES][:, ~constant], DATA[FEATURES][:, ~constant])
    assert encode(stuck(DATA, 0.0, np.random.default_rng(1))) == encode(DATA)
    with pytest.raises(ValueError, match=r"share 1\.5 given, expected"):
        stuck(DATA, 1.5, np.random.default_rng(1))


def test_labels_are_turned_round_and_unknown_ones_stay() -> None:
    labels = flipped(DATA)[LABELS]
    assert labels[:4].tolist() == [-1, 1, 0, 0]
    assert labels.dtype == DATA[LABELS].dtype


def test_noise_is_in_deviations_of_each_feature() -> None:
    noise = corrupted(DATA, "noise", 0.5, np.random.default_rng(2))[FEATURES] - DATA[FEATURES]
    np.testing.assert_allclose(noise.std(axis=0) / DATA[FEATURES].std(axis=0), 0.5, rtol=0.2)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_data_is_not_changed_in_place_and_the_same_generator_gives_the_same_bytes(kind: Kind) -> None:
    before = encode(DATA)
    found = [corrupted(DATA, kind, 1.0, np.random.default_rng(3)) for _ in range(2)]
    assert encode(DATA) == before
    assert encode(found[0]) == encode(found[1])
    assert (encode(found[0]) == before) == (kind == "none")
