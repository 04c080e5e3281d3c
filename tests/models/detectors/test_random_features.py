"""The random map that every party draws for itself: the same numbers everywhere and for ever, of the right law."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedgate.config.protocol.wire import decode, encode
from fedgate.models.detectors.base import random_features


def test_the_same_scalars_are_the_same_map_after_travelling() -> None:
    drawn = random_features.drawn(np.random.default_rng(1), 5, 0.2)
    received, _ = decode(encode(drawn))
    assert random_features.held(received) and not random_features.held({})
    for one, other in zip(random_features.of(drawn, 16), random_features.of(received, 16), strict=True):
        np.testing.assert_array_equal(one, other)
    assert random_features.of(drawn, 16)[0].shape == (5, 16)


def test_golden_numbers() -> None:
    """A gateway with another version of numpy must draw these, or its model would be another one without a word."""
    np.testing.assert_array_equal(random_features.uniforms(7, 3), GOLDEN)


# From PCG64(7): raw >> 11, times 2^-53.
GOLDEN = np.array([0.625095466604667, 0.8972138009695755, 0.7756856902451935])


@pytest.mark.parametrize("gamma", [0.05, 2.0])
def test_frequencies_are_normal_and_phases_uniform(gamma: float) -> None:
    drawn = random_features.drawn(np.random.default_rng(2), 20, gamma)
    frequencies, phases = random_features.of(drawn, 2_000)
    normal = frequencies.ravel() / np.sqrt(2.0 * gamma)
    assert stats.kstest(normal, "norm").pvalue > 1e-3
    assert abs(float(np.corrcoef(frequencies[0], frequencies[1])[0, 1])) < 0.1
    assert stats.kstest(phases / (2.0 * np.pi), "uniform").pvalue > 1e-3


def test_a_map_cannot_be_written_to() -> None:
    frequencies, _ = random_features.of(random_features.drawn(np.random.default_rng(3), 2, 1.0), 4)
    with pytest.raises(ValueError, match="read-only"):
        frequencies[0, 0] = 1.0
