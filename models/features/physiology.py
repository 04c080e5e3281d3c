"""Wrist signals to numbers: skin conductance slow and fast, heart rate and its variability, moving normalisation.

Numpy alone, so that a gateway's base install measures them: no state is kept from one window to the next, and the same
window gives the same numbers on every machine. Method of the beats: M. Elgendi et al., PLoS ONE 8 (2013) e76585, two
moving means of the squared pulse wave; of skin conductance: a slow part below some 0.05 Hz and the rest.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedgate.models.arrays import Array, Arrays, Booleans, Floats
from fedgate.models.features.measures import ratio

PULSE_HZ = (0.5, 8.0)  # what a pulse wave holds
ORDER = 3  # of the band's edges, as a Butterworth filter run forwards and backwards
MARGIN_S = 2.0  # by which a window is continued at both ends, so that the band does not ring there
SYSTOLE_S, BEAT_S = 0.111, 0.667  # the two moving means: one wave, one beat
NOISE_SHARE = 0.02  # of the mean square, by which the first mean must be above the second
INTERVALS_S = (0.33, 1.5)  # what can be the time between two beats
IRREGULAR = 0.3  # an interval further from the window's median, as a share, is a missed or an extra beat
LEAST_CHANGES = 4  # changes from one interval to the next that make a variability

MISSING = (float("nan"), float("nan"))

SPREAD_SHARE = 0.1  # of the largest spread so far, below which a moving spread does not fall
CLIP = 8.0  # spreads: what lies further is a fault of the sensor, and must not be louder than that


def electrodermal(values: Floats, rate_hz: float, cutoff_hz: float) -> Floats:
    """Return tonic and phasic part at the end of skin conductance values (..., T): (..., 2), in the unit of the values.

    Tonic is a low-pass of second order, of gain 1/2 at `cutoff_hz`, as it stands at the last sample; phasic is the mean
    of the last second less that. So their sum is the latest value, and neither needs more than the window.
    """
    start = values[..., :1]  # without it a constant is zero to the bit, and small changes keep their digits
    changes = values - start
    delay = np.arange(values.shape[-1], 0, -1) * (2.0 * np.pi * cutoff_hz / rate_hz)  # (T,) in time constants
    weights = delay * np.exp(-delay)
    slow = np.vecdot(changes, weights / weights.sum())
    latest = changes[..., -max(round(rate_hz), 1) :].mean(axis=-1)
    return np.stack([start[..., 0] + slow, latest - slow], axis=-1)


def pulse(values: Floats, rate_hz: float, unknown: tuple[float, float]) -> Floats:
    """Return heart rate (1/min) and RMSSD (ms) of a blood volume pulse, values (..., T): (..., 2).

    Where a window shows too few beats for both, as of a sensor that is dead, `unknown` stands instead.
    """
    waves = band_passed(values, rate_hz)
    rows = [_rate_and_variability(beats_s(wave, rate_hz)) or unknown for wave in waves.reshape(-1, waves.shape[-1])]
    return np.array(rows, dtype=np.float64).reshape(*values.shape[:-1], 2)


def band_passed(values: Floats, rate_hz: float) -> Floats:
    """Return what lies in `PULSE_HZ` of values (..., T), without delay, at most 1 in size.

    Gain 1 / (1 + (low / f)^6) / (1 + (f / high)^6): that of a Butterworth filter of third order, applied twice.
    """
    count = values.shape[-1]
    margin = min(round(MARGIN_S * rate_hz), count - 1)
    before = 2.0 * values[..., :1] - values[..., margin:0:-1]
    after = 2.0 * values[..., -1:] - values[..., -2 : -margin - 2 : -1]
    longer = np.concatenate([before, values, after], axis=-1)
    frequencies_hz = np.fft.rfftfreq(longer.shape[-1], 1.0 / rate_hz)[1:]
    low_hz, high_hz = PULSE_HZ
    gain = 1.0 / (1.0 + (low_hz / frequencies_hz) ** (2 * ORDER)) / (1.0 + (frequencies_hz / high_hz) ** (2 * ORDER))
    bins = np.fft.rfft(longer - longer[..., :1]) * np.concatenate([[0.0], gain])
    waves = np.fft.irfft(bins, longer.shape[-1])[..., margin : margin + count]
    return ratio(waves, np.abs(waves).max(axis=-1, keepdims=True))


def beats_s(wave: Floats, rate_hz: float) -> Floats:
    """Return the times of the beats in a band-passed pulse wave (T,), between samples by a parabola through three."""
    squares = np.square(np.maximum(wave, 0.0))
    narrow = max(round(SYSTOLE_S * rate_hz), 1)
    above = (
        _moving_mean(squares, narrow) > _moving_mean(squares, round(BEAT_S * rate_hz)) + NOISE_SHARE * squares.mean()
    )
    borders = np.flatnonzero(np.diff(above, prepend=False, append=False))
    blocks = borders.reshape(-1, 2)
    blocks = blocks[blocks[:, 1] - blocks[:, 0] >= narrow]
    tops = np.array([start + np.argmax(wave[start:stop]) for start, stop in blocks], dtype=np.int64)
    tops = tops[(tops > 0) & (tops < len(wave) - 1)]
    left, top, right = wave[tops - 1], wave[tops], wave[tops + 1]
    bend = 2.0 * top - left - right  # 0 where three samples lie on a line; at a top no less
    return np.asarray((tops + ratio(right - left, 2.0 * bend)) / rate_hz)


def _moving_mean(values: Floats, width: int) -> Floats:
    """Return the mean of `width` values around each of (T,), zeros beyond both ends."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    first = np.arange(len(values)) - width // 2
    return np.asarray((sums[np.minimum(first + width, len(values))] - sums[np.maximum(first, 0)]) / width)


def _rate_and_variability(times_s: Floats) -> tuple[float, float] | None:
    intervals_s = np.diff(times_s)
    shortest_s, longest_s = INTERVALS_S
    kept: Booleans = (intervals_s >= shortest_s) & (intervals_s <= longest_s)
    if not kept.any():
        return None
    median_s = float(np.median(intervals_s[kept]))
    kept &= np.abs(intervals_s - median_s) <= IRREGULAR * median_s
    changes_s = np.diff(intervals_s)[kept[1:] & kept[:-1]]
    if len(changes_s) < LEAST_CHANGES:
        return None
    return 60.0 / median_s, 1e3 * float(np.sqrt(np.mean(np.square(changes_s))))


def moving_standardised(x: Array, carried: Mapping[str, Array] | None, span_rows: float) -> tuple[Floats, Arrays]:
    """Return rows (n, F) in spreads from their own moving mean, and what to carry on with: rows in parts or as a whole
    come out alike.

    In mean and variance (West, Communications of the ACM 22 (1979) 532) a row weighs 1 - 1 / `span_rows` of the next.
    The spread is floored at `SPREAD_SHARE` of the largest so far, since a signal that rests for a span has none, and
    the result clipped to `CLIP`.
    """
    rows = np.asarray(x, dtype=np.float64)
    none = np.zeros(rows.shape[1])
    state = carried or {"weight": np.array(0.0), "mean": none, "variance": none, "largest": none}
    weight, mean, variance, largest = (state[name] for name in ("weight", "mean", "variance", "largest"))
    standardised = np.empty_like(rows)
    for index, row in enumerate(rows):
        weight = weight * (1.0 - 1.0 / span_rows) + 1.0
        share, change = 1.0 / weight, row - mean
        mean = mean + share * change  # the first row itself, since its share is 1
        variance = (1.0 - share) * (variance + share * np.square(change))
        spread = np.sqrt(variance)
        largest = np.maximum(largest, spread)
        standardised[index] = ratio(row - mean, np.maximum(spread, SPREAD_SHARE * largest))
    state = {"weight": np.asarray(weight), "mean": mean, "variance": variance, "largest": largest}
    return np.clip(standardised, -CLIP, CLIP), state
