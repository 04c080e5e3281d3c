"""The kinds of feature: what each measures, which settings it has, and what its numbers are called.

For one channel of a window x of T samples, with z = (x - mean) / deviation:

    level       mean of x                                deviation   sqrt(mean((x - level)²))
    rms         sqrt(mean(x²))                           peak        max |x - level|
    crest       peak / deviation                         skewness    mean(z³)
    kurtosis    mean(z⁴) - 3
    bands       log10 of what each frequency band adds to the mean square of x - level, in the channel's unit squared
    spectrum    |DFT(z)| / T at the bins above 0 Hz
    welch       root mean square, in the channel's unit, at the bins above 0 Hz, its square averaged over segments
    samples     x itself, or means of blocks of it
    moving      the latest value in deviations from the window's own mean
    eda         tonic and phasic part of a skin conductance at the end of x
    pulse       heart rate in beats a minute and RMSSD in ms of a blood volume pulse

and for the window itself, whatever its channels:

    calendar    hour, weekday, workday, time of year

A constant channel has no shape: its crest, skewness, kurtosis and spectra are 0, its logarithms lie at the floor, far
below those of whatever moves, and it has no pulse.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedgate.models.arrays import Floats
from fedgate.models.features.calendar import Calendar
from fedgate.models.features.measures import Windows, one_sided, ratio
from fedgate.models.features.physiology import MISSING, electrodermal, pulse
from fedgate.models.features.shape import Kind, WindowShape, block_of, check_below_half, check_whole

ENERGY_FLOOR = 1e-24  # of `bands`: a share of the window's variance, below which a Fourier transform leaves rounding
AMPLITUDE_FLOOR = 1e-12  # of `welch` with `log`: a share of its deviation, or with `normalise` of the sum
LEAST = float(np.finfo(np.float64).tiny)  # of either, in the channel's unit: what a constant channel has
FARTHEST = 8.0  # deviations of `moving`: beyond it lies a fault of the sensor
LEAST_PULSE_HZ = 25.0  # of `pulse`: slower samples miss the top of a beat by more than its variability
LEAST_PULSE_S = 25.0  # of `pulse`: shorter windows hold too few beats for a variability
_ON_BIN = 1e-6  # of the bins' distance: an edge meant to be on a bin must not miss it by rounding


class Statistic(Kind):
    """One number per channel: the measure of that name."""

    kind: Literal["level", "deviation", "rms", "peak", "crest", "skewness", "kurtosis"]

    def labels(self, _shape: WindowShape) -> tuple[str, ...]:
        return (self.kind,)

    def measure(self, _shape: WindowShape, windows: Windows) -> Floats:
        statistic: Floats = getattr(windows, self.kind)
        return statistic[..., None]


class Bands(Kind):
    """Energies between successive edges; a band holds its lower edge, the last one its upper edge as well."""

    kind: Literal["bands"]
    edges_hz: tuple[Annotated[float, Field(ge=0)], ...] = Field(min_length=2)

    def _limits(self, shape: WindowShape) -> list[int]:
        # Band i is [limit i, limit i + 1) of the bins above 0 Hz.
        lower = [max(math.ceil(edge / shape.resolution_hz - _ON_BIN), 1) - 1 for edge in self.edges_hz[:-1]]
        return [*lower, math.floor(self.edges_hz[-1] / shape.resolution_hz + _ON_BIN)]

    def check(self, shape: WindowShape) -> None:
        check_below_half("edges_hz", self.edges_hz[-1], shape)
        for edges_hz, (start, stop) in zip(pairwise(self.edges_hz), pairwise(self._limits(shape)), strict=True):
            if start >= stop:
                raise ValueError(
                    f"edges_hz: no bin above 0 Hz lies between {edges_hz[0]} and {edges_hz[1]} Hz; expected"
                    f" rising edges at least 1 / window_s = {shape.resolution_hz:g} Hz apart"
                )

    def labels(self, _shape: WindowShape) -> tuple[str, ...]:
        return tuple(f"band[{low_hz:g}-{high_hz:g}Hz]" for low_hz, high_hz in pairwise(self.edges_hz))

    def measure(self, shape: WindowShape, windows: Windows) -> Floats:
        *starts, stop = self._limits(shape)
        energies = one_sided(windows.energies, windows.samples)[..., :stop]
        floor = np.maximum(ENERGY_FLOOR * np.square(windows.deviation), LEAST)
        return np.log10(np.maximum(np.add.reduceat(energies, starts, axis=-1), floor[..., None]))


class _Cropped(Kind):
    """Bins above 0 Hz, of a transform of some length, from `low_hz` to `high_hz` (default: all)."""

    low_hz: float = Field(default=0.0, ge=0)
    high_hz: float | None = None

    def length(self, shape: WindowShape) -> int:
        """Return the samples that are transformed."""
        return shape.samples

    def bins(self, shape: WindowShape) -> slice:
        """Return which of the bins above 0 Hz are wanted; raise ValueError if none is there."""
        high_hz = shape.rate_hz / 2 if self.high_hz is None else self.high_hz
        check_below_half("high_hz", high_hz, shape)
        resolution_hz = shape.rate_hz / self.length(shape)
        first = max(math.ceil(self.low_hz / resolution_hz - _ON_BIN), 1)
        last = math.floor(high_hz / resolution_hz + _ON_BIN)
        if first > last:
            raise ValueError(
                f"low_hz: no bin above 0 Hz lies from {self.low_hz} to {high_hz} Hz; expected room for a multiple of"
                f" {resolution_hz:g} Hz"
            )
        return slice(first - 1, last)

    def check(self, shape: WindowShape) -> None:
        self.bins(shape)

    def labels(self, shape: WindowShape) -> tuple[str, ...]:
        bins, resolution_hz = self.bins(shape), shape.rate_hz / self.length(shape)
        return tuple(f"{self.name()}[{(k + 1) * resolution_hz:.9g}Hz]" for k in range(bins.start, bins.stop))

    @abstractmethod
    def name(self) -> str:
        """Name the spectrum."""


class Spectrum(_Cropped):
    """Shape of the spectrum, whatever gain and offset (PC-FedAvg paper, section 4.1.1: 2 s at 600 Hz give 600 bins)."""

    kind: Literal["spectrum"]

    def name(self) -> str:
        return self.kind

    def measure(self, shape: WindowShape, windows: Windows) -> Floats:
        return ratio(np.sqrt(windows.energies[..., self.bins(shape)]), windows.deviation[..., None])


class Welch(_Cropped):
    """Averaged spectrum of segments, Hann-windowed and half overlapping, each less its own mean.

    `normalise` divides by the sum over the bins from `low_hz` to `high_hz`; `log` then takes log10.
    """

    kind: Literal["welch"]
    segment_s: float = Field(gt=0)
    log: bool = False
    normalise: bool = False

    def length(self, shape: WindowShape) -> int:
        return round(self.segment_s * shape.rate_hz)

    def name(self) -> str:
        return f"{'log_' * self.log}{'share_' * self.normalise}welch_{self.segment_s:g}s"

    def check(self, shape: WindowShape) -> None:
        check_whole("segment_s", self.segment_s * shape.rate_hz, 2)
        if self.segment_s > shape.window_s:
            raise ValueError(f"segment_s: {self.segment_s} s is longer than window_s = {shape.window_s} s")
        self.bins(shape)

    def measure(self, shape: WindowShape, windows: Windows) -> Floats:
        length = self.length(shape)
        amplitudes = np.sqrt(one_sided(windows.segment_energies(length), length)[..., self.bins(shape)])
        whole = windows.deviation[..., None]
        if self.normalise:
            amplitudes, whole = ratio(amplitudes, amplitudes.sum(axis=-1, keepdims=True)), np.ones(1)
        return np.log10(np.maximum(amplitudes, np.maximum(AMPLITUDE_FLOOR * whole, LEAST))) if self.log else amplitudes


class Samples(Kind):
    """The values themselves, for a model that runs along them; `rate_hz` below the window's averages blocks of them."""

    kind: Literal["samples"]
    rate_hz: float | None = Field(default=None, gt=0)

    def check(self, shape: WindowShape) -> None:
        block_of(shape, self.rate_hz)

    def labels(self, shape: WindowShape) -> tuple[str, ...]:
        return tuple(f"sample[{k}]" for k in range(shape.samples // block_of(shape, self.rate_hz)))

    def measure(self, shape: WindowShape, windows: Windows) -> Floats:
        block = block_of(shape, self.rate_hz)
        blocks = windows.values.reshape(*windows.values.shape[:-1], shape.samples // block, block)
        means: Floats = blocks.mean(axis=-1)
        return means


class Moving(Kind):
    """Moving normalisation: the mean of the last `latest_s` in deviations from the window's own mean, at most 8.

    The window is the span that is moved along, so no state is kept; where it stands still, the feature is 0.
    """

    kind: Literal["moving"]
    latest_s: float = Field(default=1.0, gt=0)

    def check(self, shape: WindowShape) -> None:
        check_whole("latest_s", self.latest_s * shape.rate_hz, 1)
        if self.latest_s >= shape.window_s:
            raise ValueError(f"latest_s: {self.latest_s} s is no part of window_s = {shape.window_s} s")

    def labels(self, _shape: WindowShape) -> tuple[str, ...]:
        return (f"moving_{self.latest_s:g}s",)

    def measure(self, shape: WindowShape, windows: Windows) -> Floats:
        latest = windows.values[..., -round(self.latest_s * shape.rate_hz) :].mean(axis=-1)
        distance = ratio(latest - windows.level, windows.deviation)
        return np.clip(distance, -FARTHEST, FARTHEST)[..., None]


class Electrodermal(Kind):
    """Skin conductance: the slow part, below `cutoff_hz`, as it stands at the window's end, and the last second's rest.

    Without state, so the window must be as long as one period of `cutoff_hz`; the part of the past that is then missing
    weighs 1.4 %, and 0.1 % in a window of one and a half periods.
    """

    kind: Literal["eda"]
    cutoff_hz: float = Field(default=0.05, gt=0)

    def check(self, shape: WindowShape) -> None:
        check_below_half("cutoff_hz", self.cutoff_hz, shape)
        if self.cutoff_hz * shape.window_s < 1.0:
            raise ValueError(
                f"cutoff_hz: a period of {self.cutoff_hz} Hz is longer than window_s = {shape.window_s} s; expected at"
                f" least {1.0 / shape.window_s:g} Hz"
            )

    def labels(self, _shape: WindowShape) -> tuple[str, ...]:
        return ("tonic", "phasic")

    def measure(self, shape: WindowShape, windows: Windows) -> Floats:
        return electrodermal(windows.values, shape.rate_hz, self.cutoff_hz)


class Pulse(Kind):
    """Heart rate and its variability from a blood volume pulse (Elgendi et al. 2013).

    Intervals between beats count from 0.33 s to 1.5 s and within 30 % of the window's median. Where too few are left,
    fewer than four changes from one interval to the next, both features are missing (NaN), or those of `unknown`.
    """

    kind: Literal["pulse"]
    unknown: tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]] | None = None

    def check(self, shape: WindowShape) -> None:
        if shape.rate_hz < LEAST_PULSE_HZ:
            raise ValueError(f"kind: rate_hz = {shape.rate_hz} is too slow for 'pulse'; expected {LEAST_PULSE_HZ:g} Hz")
        if shape.window_s < LEAST_PULSE_S:
            raise ValueError(
                f"kind: window_s = {shape.window_s} holds too few beats for 'pulse'; expected {LEAST_PULSE_S:g} s"
            )

    def labels(self, _shape: WindowShape) -> tuple[str, ...]:
        return ("heart_rate", "rmssd")

    def measure(self, shape: WindowShape, windows: Windows) -> Floats:
        return pulse(windows.values, shape.rate_hz, self.unknown or MISSING)


Step = Annotated[
    Statistic | Bands | Spectrum | Welch | Samples | Moving | Electrodermal | Pulse | Calendar,
    Field(discriminator="kind"),
]
