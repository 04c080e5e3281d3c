"""Noise that nobody can draw again: normal, of secret and purpose alone, and on a grid."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedgate.models.arrays import Array, exchange_secret
from fedgate.models.secret_noise import noised, normal

SECRETS = [exchange_secret(b"s", "run", index, "a") for index in range(2)]


def test_noise_is_normal_and_follows_from_secret_and_purpose_alone() -> None:
    drawn = normal(SECRETS[0], "a", 200_001)
    assert drawn.shape == (200_001,) and np.isfinite(drawn).all()
    assert abs(drawn.mean()) < 0.01 and abs(drawn.std() - 1.0) < 0.01
    for level in (-2.0, -0.5, 0.0, 1.0, 2.5):
        assert np.mean(drawn < level) == pytest.approx(0.5 * math.erfc(-level / math.sqrt(2.0)), abs=0.005)
    assert np.corrcoef(drawn[:100_000], drawn[100_001:])[0, 1] == pytest.approx(0.0, abs=0.02)
    assert np.array_equal(drawn, normal(SECRETS[0].copy(), "a", 200_001))
    others = (normal(SECRETS[1], "a", 9), normal(SECRETS[0], "b", 9))
    assert not any(np.isclose(drawn[:9], other).any() for other in others)


def test_the_way_from_a_secret_to_noise_is_pinned() -> None:
    """A gateway that repeats a training after a power cut must send the same noise, or it tells twice."""
    golden = [-0.9286036693592392, 0.1849161248134711, -1.3329580334743896]
    assert normal(np.arange(32, dtype=np.uint8), "golden", 3) == pytest.approx(golden, rel=1e-12)


@pytest.mark.parametrize("secret", [np.zeros(31, dtype=np.uint8), np.zeros(32), np.zeros((1, 32), dtype=np.uint8)])
def test_a_secret_has_32_bytes(secret: Array) -> None:
    with pytest.raises(ValueError, match="expected 32 bytes, got"):
        normal(secret, "a", 1)


def test_what_is_noised_lies_on_a_grid_that_hides_its_last_bits() -> None:
    grid = 2.0 ** (math.floor(math.log2(0.3)) - 20)
    first, second = (noised(np.array([value]), 0.3, SECRETS[0], "a") for value in (1.0, 1.0 + grid / 1e3))
    assert float(first[0] / grid).is_integer() and float(second[0] / grid).is_integer()
    assert abs(float(first[0] - second[0])) <= grid
