"""Faults of sensors: wrong rates, stuck and clipped channels."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgate.models.windows.sensor_health import RateMeter, clipped_channels, meter, stuck_channels


def test_a_long_outage_does_not_bias_the_measured_rate() -> None:
    state, true_rate_hz = RateMeter(), 600.3
    for second in [*range(600), *range(4200, 4260)]:  # an hour's rows cannot be counted to one at the declared rate
        state = meter(state, round(second * 600 / true_rate_hz * 1e9), 600.0, 600)
    assert state.measured_rate_hz == pytest.approx(true_rate_hz, rel=1e-7)


def test_stuck_channels_never_change() -> None:
    values = np.column_stack([np.full(100, 9.81), np.arange(100.0), [*np.zeros(99), 1e-9]])
    assert stuck_channels(("x", "y", "z"), values) == ("x",)


@given(st.integers(0, 2**32 - 1), st.floats(0.3, 1.5), st.integers(6, 14))
def test_clipping_is_seen_at_either_end(seed: int, limit: float, bits: int) -> None:
    noise = np.random.default_rng(seed).normal(size=1200)
    coarse = np.round(noise * 2**bits) / 2**bits
    values = np.column_stack([noise, coarse, np.minimum(coarse, limit), np.maximum(noise, -limit), -np.abs(noise)])
    assert clipped_channels(tuple("abcde"), values) == ("c", "d")


@given(st.integers(10, 5000), st.floats(0, 1))
def test_healthy_channels_are_not_called_clipped(levels: int, phase: float) -> None:
    t = np.arange(4800)
    sine = np.round(levels * np.sin(math.pi * math.sqrt(5) * t + phase) + phase)
    few = np.round(2 * np.sin(t / 300))  # a slow channel in whole degrees
    switch = (t > 2000).astype(float)
    constant = np.zeros(len(t))
    assert clipped_channels(tuple("abcd"), np.column_stack([sine, few, switch, constant])) == ()
