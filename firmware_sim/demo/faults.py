"""Faults put into a recording on purpose, at a known time; whoever shows the result must say that they were
injected.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from fedgate.models.arrays import Floats

SensorFault = Literal["spike", "stuck", "drift", "offset", "noise", "other time"]
SENSOR_FAULTS: tuple[SensorFault, ...] = get_args(SensorFault)
# In deviations of the healthy channel.
SPIKE, DRIFT, OFFSET, NOISE = 6.0, 3.0, 2.0, 0.7


def stiffness_loss(values: Floats, rate_hz: float, start_s: float, duration_s: float, loss: float) -> Floats:
    """Return samples (T', C) in which the structure loses the share `loss` of its stiffness for a while.

    A natural frequency goes with the square root of stiffness, so for `duration_s` the recording is played slower by
    sqrt(1 - loss), which moves every line of the spectrum down by that factor: the lines of the structure and, unlike
    in real damage, those of the mains and of machines too. After it the recording goes on where it was; nothing is
    used twice.
    """
    if not 0.0 < loss < 1.0:
        raise ValueError(f"loss {loss}: expected a share of the stiffness between 0 and 1")
    slowed = np.sqrt(1.0 - loss)
    first, count = round(start_s * rate_hz), round(duration_s * rate_hz)
    positions = first + slowed * np.arange(count)  # in samples of the recording
    if first < 0 or positions[-1] > len(values) - 1:
        raise ValueError(
            f"{start_s:g} s + {duration_s:g} s: reaches outside the recording of {len(values) / rate_hz:g} s"
        )
    whole = np.arange(len(values))
    warped = np.stack([np.interp(positions, whole, column) for column in values.T], axis=1)
    resumed = int(np.ceil(positions[-1] + slowed))
    return np.concatenate([values[:first], warped, values[resumed:]])


def sensor_fault(
    values: Floats,
    channel: int,
    rows: slice,
    kind: SensorFault,
    deviation: float,
    rng: np.random.Generator,
    *,
    away: int = 0,
) -> Floats:
    """Return samples (T, C) in which one channel is wrong in some `rows`, all others as they were.

    `spike` and `offset` add 6 and 2 deviations to all of them, `drift` grows to 3, `noise` adds normal noise of 0.7,
    with `stuck` the channel keeps its first value. `other time` puts in the channel's own values of `away` rows later
    (or earlier, where there are none later): nothing is out of range, only out of place.
    """
    first, stop, _ = rows.indices(len(values))
    count = stop - first
    if count <= 0:
        raise ValueError(f"rows {rows.start} to {rows.stop} of {len(values)} given; expected at least one row")
    healthy, faulty = values[first:stop, channel], values.copy()
    if kind == "other time":
        source = next((at for at in (first + away, first - away) if 0 <= at <= len(values) - count), None)
        if source is None or away == 0:
            raise ValueError(
                f"{count} rows lie nowhere {away} rows from row {first} of {len(values)}; give a nearer one"
            )
        faulty[first:stop, channel] = values[source : source + count, channel]
        return faulty
    added = {
        "spike": np.full(count, SPIKE),
        "stuck": (healthy[0] - healthy) / deviation,
        "drift": np.linspace(0.0, DRIFT, count),
        "offset": np.full(count, OFFSET),
        "noise": NOISE * rng.normal(size=count),
    }
    faulty[first:stop, channel] = healthy + deviation * added[kind]
    return faulty
