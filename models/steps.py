"""The kinds of feature: what each measures, which settings it has, and what its numbers are called.

For one channel of a window x of T samples, with z = (x - mean) / deviation:

    level       mean of x                                deviation   sqrt(mean((x - level)²))
    rms         sqrt(mean(x²))                           peak        max |x - level|
    crest       peak / deviation                         skewness    mean(z³)
    kurtosis    mean(z⁴) - 3
    bands       log10 of what each frequency band adds to the mean square of x - level, in the channel's unit squared
    spectrum    |DFT(z)| / T at the bins above 0 Hz
    welch       root mean square, in the channel's unit, at the bins above 0 Hz, its square averaged over segments

A constant channel has no shape: its crest, skewness, kurtosis and spectra are 0, and its logarithms lie at the floor.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from models.arrays import Floats
from models.measures import Windows, one_sided, ratio

ENERGY_FLOOR = 1e-24  # of `bands`, in the channel's unit squared
AMPLITUDE_FLOOR = 1e-12  # of `welch` with `log`: in the channel's unit, or as a share with `normalise`
_ON_BIN = 1e-6  # of the bins' distance: an edge meant to be on a bin must not miss it by rounding


class Frozen(BaseModel):
    """A declared value: no change, no unknown key, no infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class WindowShape(Frozen):
    """Rate and length of a window, which is all that a kind of feature depends on."""

    rate_hz: float = Field(gt=0)
    window_s: float = Field(gt=0)

    @property
    def samples(self) -> int:
        """T, the samples of a window."""
        return round(self.rate_hz * self.window_s)

    @property
    def resolution_hz(self) -> float:
        """Distance between the bins of a whole window's spectrum."""
        return self.rate_hz / self.samples

    @model_validator(mode="after")
    def _whole_window(self) -> WindowShape:
        check_whole("window_s", self.rate_hz * self.window_s, 2)
        return self


def check_whole(key: str, samples: float, least: int) -> None:
    """Raise ValueError where a duration is no whole number of samples, or fewer than `least`."""
    # 1/3 Hz has no exact decimal form, so a duration may miss a whole number of samples by a little.
    if abs(samples - round(samples)) > 1e-3 or round(samples) < least:
        raise ValueError(f"{key}: makes {samples:.6g} samples at rate_hz; expected a whole number, at least {least}")


def _check_below_half(key: str, frequency_hz: float, shape: WindowShape) -> None:
    if frequency_hz > shape.rate_hz / 2:
        raise ValueError(f"{key}: {frequency_hz} Hz is above half of rate_hz; expected at most {shape.rate_hz / 2} Hz")


class _Step(Frozen):
    """A new kind of feature is a new subclass with these three, one line in `Step` and one in the table above."""

    channels: tuple[str, ...] | None = Field(default=None, min_length=1)  # None: all channels of the specification

    def check(self, shape: WindowShape) -> None:
        """Raise ValueError, the key at fault first, where the step does not suit the window."""

    @abstractmethod
    def labels(self, shape: WindowShape) -> tuple[str, ...]:
        """Name the k features of one channel."""

    @abstractmethod
    def measure(self, shape: WindowShape, windows: Windows) -> Floats:
        """Return the features, (n, C, k)."""


class Statistic(_Step):
    """One number per channel: the measure of that name."""

    kind: Literal["level", "deviation", "rms", "peak", "crest", "skewness", "kurtosis"]

    def labels(self, _shape: WindowShape) -> tuple[str, ...]:
        return (self.kind,)

    def measure(self, _shape: WindowShape, windows: Windows) -> Floats:
        statistic: Floats = getattr(windows, self.kind)
        return statistic[..., None]


class Bands(_Step):
    """Energies between successive edges; a band holds its lower edge, the last one its upper edge as well."""

    kind: Literal["bands"]
    edges_hz: tuple[Annotated[float, Field(ge=0)], ...] = Field(min_length=2)

    def _limits(self, shape: WindowShape) -> list[int]:
        # Band i is [limit i, limit i + 1) of the bins above 0 Hz.
        lower = [max(math.ceil(edge / shape.resolution_hz - _ON_BIN), 1) - 1 for edge in self.edges_hz[:-1]]
        return [*lower, math.floor(self.edges_hz[-1] / shape.resolution_hz + _ON_BIN)]

    def check(self, shape: WindowShape) -> None:
        _check_below_half("edges_hz", self.edges_hz[-1], shape)
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
        return np.log10(np.maximum(np.add.reduceat(energies, starts, axis=-1), ENERGY_FLOOR))


class _Cropped(_Step):
    """Bins above 0 Hz, of a transform of some length, from `low_hz` to `high_hz` (default: all)."""

    low_hz: float = Field(default=0.0, ge=0)
    high_hz: float | None = None

    def length(self, shape: WindowShape) -> int:
        """Return the samples that are transformed."""
        return shape.samples

    def bins(self, shape: WindowShape) -> slice:
        """Return which of the bins above 0 Hz are wanted; raise ValueError if none is there."""
        high_hz = shape.rate_hz / 2 if self.high_hz is None else self.high_hz
        _check_below_half("high_hz", high_hz, shape)
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
        if self.normalise:
            amplitudes = ratio(amplitudes, amplitudes.sum(axis=-1, keepdims=True))
        return np.log10(np.maximum(amplitudes, AMPLITUDE_FLOOR)) if self.log else amplitudes


Step = Annotated[Statistic | Bands | Spectrum | Welch, Field(discriminator="kind")]
