"""What happens in prepared stories: four kinds of causes, two stories each, with magnitudes drawn by the seed.

Each cause is put into recordings by a rule of its own that knows nothing of alarms. Sensors that are stuck or clipped
are left out: the gateway names these by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple, get_args

import numpy as np
from scipy.signal import butter, sosfilt

from fedgate.firmware_sim.backtest.story_sites import (
    HOURS_BEFORE,
    RATE_HZ,
    TEST_BRIDGE_BASELINE_S,
    Bridge,
    play_bridge,
    read_test_bridge,
    spread_air,
    start_bridge,
)
from fedgate.models.arrays import Floats

Kind = Literal["damage", "sensor", "work", "weather"]
KINDS: tuple[Kind, ...] = get_args(Kind)
TEST_BRIDGE_HZ = 100.0
REFERENCE_S = 720.0
WORKING_H = (7.0, 11.0)  # between these work begins
ANY_H = (1.0, 11.0)  # and all else, at night as by day
LASTS_H = 3.0
TO_THE_COLD_H, TO_THE_STORM_H = 4.0, 2.5
BLOW_S = 0.5


class Played(NamedTuple):
    """What the sensors of a story say, and what was done to it."""

    values: Floats  # (T, 3) of the test bridge, (T, 4) of the footbridge with the air
    kind: Kind
    what: str
    onset_s: float
    disturbed: tuple[int, ...]  # columns
    end_s: float | None = None  # of the cause


Cause = Callable[[np.random.Generator, float], Played]


def _row_of(bridge: Bridge, onset_h: float) -> int:
    return round(onset_h * bridge.hour_s * RATE_HZ)


def _finish(bridge: Bridge, values: Floats) -> Floats:
    return np.column_stack([values, spread_air(bridge)[: len(values)]])


def _draw_onset_h(rng: np.random.Generator, between_h: tuple[float, float]) -> float:
    return float(HOURS_BEFORE + rng.uniform(*between_h))


def lower_support(_rng: np.random.Generator, _hour_s: float) -> Played:
    """Lower a support of the test bridge, as it was recorded."""
    values = read_test_bridge("ref_load_01", "lowered_load_01")
    return Played(values, "damage", "a support was lowered, as recorded", REFERENCE_S, (0, 1, 2))


def lose_stiffness(rng: np.random.Generator, hour_s: float) -> Played:
    """Take 10 to 20 % of the footbridge's stiffness: its frequencies fall by the root of it, from one piece to the
    next.
    """
    bridge, onset_h, loss = start_bridge(rng, hour_s), _draw_onset_h(rng, ANY_H), rng.uniform(0.1, 0.2)
    softness = np.where(bridge.at_h >= onset_h, np.sqrt(1.0 - loss), 1.0)
    bridge = replace(bridge, softness=softness)
    values = _finish(bridge, play_bridge(bridge, rng))
    return Played(values, "damage", f"{loss:.0%} of the stiffness lost", onset_h * hour_s, (0, 1, 2))


def shift_sensor(rng: np.random.Generator, _hour_s: float) -> Played:
    """Shift a sensor of the test bridge, at once or over two minutes, by 4 to 8 of its deviations."""
    values = read_test_bridge("ref_load_01")
    onset_s, column = TEST_BRIDGE_BASELINE_S + rng.uniform(30.0, 90.0), int(rng.integers(3))
    row, is_drift = round(onset_s * TEST_BRIDGE_HZ), bool(rng.integers(2))
    size = rng.choice((-1.0, 1.0)) * rng.uniform(4.0, 8.0) * values[:row, column].std()
    over = np.arange(len(values) - row) / (120.0 * TEST_BRIDGE_HZ)
    values[row:, column] += size * (np.minimum(over, 1.0) if is_drift else 1.0)
    what = f"{'drift' if is_drift else 'offset'} of one sensor"
    return Played(values, "sensor", what, onset_s, (column,))


def spoil_sensor(rng: np.random.Generator, hour_s: float) -> Played:
    """Make a sensor of the footbridge loose, noisy, or lose most of its gain."""
    bridge, onset_h = start_bridge(rng, hour_s), _draw_onset_h(rng, ANY_H)
    values, row, column = play_bridge(bridge, rng), _row_of(bridge, onset_h), int(rng.integers(3))
    healthy = values[row:, column]
    deviation, what = values[:row, column].std(), rng.choice(("noise", "loose", "gain"))
    match what:
        case "noise":
            values[row:, column] += rng.uniform(0.3, 0.6) * deviation * rng.normal(size=len(healthy))
        case "loose":  # it rattles: single samples, a few a minute
            is_hit = rng.random(len(healthy)) < 5.0 / 60.0 / RATE_HZ
            values[row:, column] += is_hit * rng.normal(size=len(healthy)) * rng.uniform(15.0, 30.0) * deviation
        case _:
            values[row:, column] *= rng.uniform(0.2, 0.35)
    names = {"noise": "noise floor", "loose": "loose, with spikes", "gain": "loss of gain"}
    return Played(_finish(bridge, values), "sensor", f"{names[str(what)]} of one sensor", onset_h * hour_s, (column,))


def run_machine(rng: np.random.Generator, hour_s: float) -> Played:
    """Run a machine at a fixed frequency on the footbridge for some hours from the morning on."""
    bridge, onset_h = start_bridge(rng, hour_s), _draw_onset_h(rng, WORKING_H)
    values, row, hz = play_bridge(bridge, rng), _row_of(bridge, onset_h), rng.uniform(9.0, 19.0)
    rows = np.arange(row, min(_row_of(bridge, onset_h + LASTS_H), len(values)))
    phase = 2.0 * np.pi * (hz * rows / RATE_HZ + 0.02 * np.cumsum(rng.normal(size=len(rows))) / np.sqrt(RATE_HZ))
    for column, share in enumerate(rng.uniform(0.8, 1.6, size=3)):
        values[rows, column] += share * values[:row, column].std() * np.sin(phase + column)
    what = f"a machine at {hz:.1f} Hz"
    return Played(_finish(bridge, values), "work", what, onset_h * hour_s, (0, 1, 2), (onset_h + LASTS_H) * hour_s)


def hammer(rng: np.random.Generator, hour_s: float) -> Played:
    """Hammer at the footbridge every few seconds for some hours from the morning on."""
    bridge, onset_h = start_bridge(rng, hour_s), _draw_onset_h(rng, WORKING_H)
    values, row = play_bridge(bridge, rng), _row_of(bridge, onset_h)
    end = min(_row_of(bridge, onset_h + LASTS_H), len(values))
    blows = np.cumsum(rng.uniform(1.5, 4.0, size=int((end - row) / RATE_HZ))) * RATE_HZ + row
    blows = blows[blows < end - BLOW_S * RATE_HZ].astype(int)
    decay = np.exp(-np.arange(int(BLOW_S * RATE_HZ)) / (0.08 * RATE_HZ))
    for column, share in enumerate(rng.uniform(0.6, 1.0, size=3)):
        size = 6.0 * share * values[:row, column].std()
        for blow in blows:
            values[blow : blow + len(decay), column] += size * rng.normal(size=len(decay)) * decay
    end_s = (onset_h + LASTS_H) * hour_s
    return Played(_finish(bridge, values), "work", "hammering", onset_h * hour_s, (0, 1, 2), end_s)


def freeze(rng: np.random.Generator, hour_s: float) -> Played:
    """Let the air become 35 to 50 degrees Fahrenheit colder within some hours; the bridge gets stiffer with it."""
    bridge, onset_h, fall = start_bridge(rng, hour_s), _draw_onset_h(rng, ANY_H), rng.uniform(35.0, 50.0)
    share = np.clip((bridge.at_h - onset_h) / TO_THE_COLD_H, 0.0, 1.0)
    colder = replace(bridge, air=bridge.air - fall * share)
    values = _finish(colder, play_bridge(colder, rng))
    return Played(values, "weather", f"cold air, {fall:.0f} degrees Fahrenheit less", onset_h * hour_s, (0, 1, 2))


def storm(rng: np.random.Generator, hour_s: float) -> Played:
    """Let wind rise within some hours: all amplitudes grow three to five times, in gusts, the low ones more."""
    bridge, onset_h, most = start_bridge(rng, hour_s), _draw_onset_h(rng, ANY_H), rng.uniform(3.0, 5.0)
    share = np.clip((bridge.at_h - onset_h) / TO_THE_STORM_H, 0.0, 1.0)
    gusts = np.exp(0.25 * rng.normal(size=bridge.count))
    windy = replace(bridge, loudness=bridge.loudness * (1.0 + share * (most * gusts - 1.0)))
    values = play_bridge(windy, rng)
    wide = np.repeat(share, len(values) // bridge.count)[:, None]
    low = sosfilt(butter(2, 4.0, fs=RATE_HZ, output="sos"), rng.normal(size=values.shape), axis=0)
    values += wide * low * values[: _row_of(bridge, onset_h)].std(axis=0)
    return Played(_finish(windy, values), "weather", "a storm", onset_h * hour_s, (0, 1, 2))


CAUSES: tuple[Cause, ...] = (
    lower_support,
    lose_stiffness,
    shift_sensor,
    spoil_sensor,
    run_machine,
    hammer,
    freeze,
    storm,
)
WORKS = (run_machine, hammer)
