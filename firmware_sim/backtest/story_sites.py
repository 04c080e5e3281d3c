"""The two structures that prepared stories are played on, made of the recordings that come with the package.

A footbridge: its ambient runs of 44 s are cut into pieces, which are put one behind the other in random order with
crossfades for as many hours as a story lasts. Traffic makes all pieces louder and quieter, and the air makes the
bridge softer when it is warm, in all stories alike. A test bridge: its reference run, and the run after a support was
lowered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.signal import butter, resample, sosfiltfilt

from fedgate.firmware_sim.recordings import read, shipped
from fedgate.models.arrays import Floats

RATE_HZ = 50.0
PIECE_S = 8.0
SENSOR_DRIFT_HZ = 1.5  # below it the runs hold the drift of their sensors alone
SOFTENING = 0.0015  # of a natural frequency for each degree Fahrenheit of the air
EDGE_HZ = 22.0  # above it nothing moves, or modes from beyond half of the rate would come into sight
FACTOR_STEP = 0.001  # in which natural frequencies move
TRAFFIC, TRAFFIC_MEMORY = 0.12, 0.98  # deviation of the logarithm of all amplitudes, and from piece to piece
DAY_TRAFFIC = 0.15  # how much more of it there is at noon, and less at midnight
HOURS_BEFORE, HOURS_WATCHED, WINDOWS_AN_HOUR = 24, 14, 30
AIR = "air-temperature"

FOOTBRIDGE_FEATURES: dict[str, Any] = {
    "rate_hz": RATE_HZ,
    "steps": [
        {"kind": "deviation"},
        {"kind": "crest"},
        {"kind": "bands", "edges_hz": [2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24]},
    ],
}
TEST_BRIDGE_FEATURES: dict[str, Any] = {
    "rate_hz": 100.0,
    "window_s": 10.0,
    "hop_s": 2.5,
    "steps": [
        {"kind": "level"},
        {"kind": "deviation"},
        {"kind": "bands", "edges_hz": [0.5, 2, 5, 10, 20, 30, 40, 49]},
    ],
}
TEST_BRIDGE_BASELINE_S = 432.0


@dataclass(frozen=True, eq=False)
class Bridge:
    """Hours of a footbridge: what it is played with, piece by piece, and how warm the air is."""

    hour_s: float  # seconds of the story that count as an hour: less than 3,600 makes it shorter
    middle: float  # temperature at which it is as recorded
    air: Floats  # (P,) degrees Fahrenheit, at each piece
    loudness: Floats  # (P,)
    softness: Floats  # (P,) factor of all natural frequencies that is not of the air

    @property
    def count(self) -> int:
        """How many pieces there are."""
        return len(self.air)

    @property
    def at_h(self) -> Floats:
        """When each piece begins, in hours."""
        return _list_hours(self.count, self.hour_s)


def _list_hours(count: int, hour_s: float) -> Floats:
    hours: Floats = np.arange(count, dtype=np.float64) * (PIECE_S / 2.0) / hour_s
    return hours


def start_bridge(rng: np.random.Generator, hour_s: float) -> Bridge:
    """Return a healthy footbridge for the hours of a story."""
    hours = HOURS_BEFORE + HOURS_WATCHED
    count = int(hours * hour_s / (PIECE_S / 2.0))
    at_h = _list_hours(count, hour_s)
    office = read(shipped("nab_office/temperature")).values
    column, day = rng.integers(office.shape[1]), rng.integers(20)
    air = np.interp(at_h, np.arange(len(office)) - 24.0 * day, office[:, column])
    steps = rng.normal(size=count) * TRAFFIC * np.sqrt(1.0 - TRAFFIC_MEMORY**2)
    traffic = np.empty(count)
    level = 0.0
    for place, step in enumerate(steps):
        level = TRAFFIC_MEMORY * level + step
        traffic[place] = level
    daily = -DAY_TRAFFIC * np.cos(2.0 * np.pi * at_h / 24.0)
    return Bridge(hour_s, float(np.median(air)), air, np.exp(traffic + daily), np.ones(count))


def play_bridge(bridge: Bridge, rng: np.random.Generator) -> Floats:
    """Return what the accelerometers of a footbridge measure (T, 3)."""
    runs = read(shipped("usc_footbridges/bridge_A_ambient"))
    filtered = butter(4, SENSOR_DRIFT_HZ, "high", fs=runs.rate_hz, output="sos")
    healthy = sosfiltfilt(filtered, runs.values - runs.values.mean(axis=0), axis=0)
    half = int(PIECE_S * RATE_HZ / 2)
    factors = np.round(bridge.softness * (1.0 - SOFTENING * (bridge.air - bridge.middle)) / FACTOR_STEP)
    low_pass, high_pass = (butter(8, EDGE_HZ, kind, fs=RATE_HZ, output="sos") for kind in ("low", "high"))
    still = sosfiltfilt(high_pass, resample(healthy, round(len(healthy) * RATE_HZ / runs.rate_hz)), axis=0)
    fade = np.sin(np.pi * (np.arange(2 * half) + 0.5) / (2 * half))  # squares of neighbours add up to 1
    values = np.zeros((half * (bridge.count + 1), healthy.shape[1]))
    for factor in np.unique(factors):
        length = round(len(healthy) * RATE_HZ / runs.rate_hz / (factor * FACTOR_STEP))
        library = sosfiltfilt(low_pass, resample(healthy, length), axis=0)
        for place in np.flatnonzero(factors == factor):
            for column in range(healthy.shape[1]):
                begin = rng.integers(length - 2 * half)
                above = min(round(begin / length * len(still)), len(still) - 2 * half)
                piece = library[begin : begin + 2 * half, column] + still[above : above + 2 * half, column]
                piece = piece * fade * bridge.loudness[place]
                values[half * place : half * (place + 2), column] += piece * rng.choice((-1.0, 1.0))
    return values[: half * bridge.count]


def spread_air(bridge: Bridge) -> Floats:
    """Return the temperature of the air at each sample (T,)."""
    return np.repeat(bridge.air, int(PIECE_S * RATE_HZ / 2))


def read_test_bridge(*names: str) -> Floats:
    """Return runs of the test bridge one behind the other (T, 3): two forces and a strain."""
    return np.concatenate([read(shipped(f"munich_bridge/{name}")).values for name in names])
