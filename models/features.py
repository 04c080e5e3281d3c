"""Windows to features, declared by a specification that travels with the model.

A model scores sensibly only on the features it was trained on. So the `FeatureSpec` is part of the model's manifest and
this one function, on the gateway and in training alike, turns a window into the numbers the specification lists.

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
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from models.arrays import Array, Floats
from models.measures import Windows, one_sided, ratio

LARGEST = 1e15  # in any unit; beyond it fourth powers and float32 features would lose their meaning
ENERGY_FLOOR = 1e-24  # of `bands`, in the channel's unit squared
AMPLITUDE_FLOOR = 1e-12  # of `welch` with `log`: in the channel's unit, or as a share with `normalise`
_BLOCK_VALUES = 2**17  # about 1 MiB at a time, which fits a processor's cache and a small gateway's memory
_ON_BIN = 1e-6  # of the bins' distance: an edge meant to be on a bin must not miss it by rounding


class FeatureError(ValueError):
    """Values that are no window of the declared shape, or that hold what no sensor can have measured."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class _Step(_Frozen):
    """A new kind of feature is a new subclass with these three, one line in `Step` and one in the module's table."""

    channels: tuple[str, ...] | None = Field(default=None, min_length=1)  # None: all channels of the specification

    def check(self, spec: FeatureSpec) -> None:
        """Raise ValueError, the key at fault first, where the step does not suit the window."""

    def labels(self, spec: FeatureSpec) -> tuple[str, ...]:
        """Name the k features of one channel."""
        raise NotImplementedError

    def measure(self, spec: FeatureSpec, windows: Windows) -> Floats:
        """Return the features, (n, C, k)."""
        raise NotImplementedError


class Statistic(_Step):
    """One number per channel: the measure of that name."""

    kind: Literal["level", "deviation", "rms", "peak", "crest", "skewness", "kurtosis"]

    def labels(self, _spec: FeatureSpec) -> tuple[str, ...]:
        return (self.kind,)

    def measure(self, _spec: FeatureSpec, windows: Windows) -> Floats:
        statistic: Floats = getattr(windows, self.kind)
        return statistic[..., None]


class Bands(_Step):
    """Energies between successive edges; a band holds its lower edge, the last one its upper edge as well."""

    kind: Literal["bands"]
    edges_hz: tuple[Annotated[float, Field(ge=0)], ...] = Field(min_length=2)

    def _limits(self, spec: FeatureSpec) -> list[int]:
        # Band i is [limit i, limit i + 1) of the bins above 0 Hz.
        lower = [max(math.ceil(edge / spec.resolution_hz - _ON_BIN), 1) - 1 for edge in self.edges_hz[:-1]]
        return [*lower, math.floor(self.edges_hz[-1] / spec.resolution_hz + _ON_BIN)]

    def check(self, spec: FeatureSpec) -> None:
        _check_below_half("edges_hz", self.edges_hz[-1], spec)
        for edges_hz, (start, stop) in zip(pairwise(self.edges_hz), pairwise(self._limits(spec)), strict=True):
            if start >= stop:
                raise ValueError(
                    f"edges_hz: no bin above 0 Hz lies between {edges_hz[0]} and {edges_hz[1]} Hz; expected"
                    f" rising edges at least 1 / window_s = {spec.resolution_hz:g} Hz apart"
                )

    def labels(self, _spec: FeatureSpec) -> tuple[str, ...]:
        return tuple(f"band[{low_hz:g}-{high_hz:g}Hz]" for low_hz, high_hz in pairwise(self.edges_hz))

    def measure(self, spec: FeatureSpec, windows: Windows) -> Floats:
        *starts, stop = self._limits(spec)
        energies = one_sided(windows.energies, windows.samples)[..., :stop]
        return np.log10(np.maximum(np.add.reduceat(energies, starts, axis=-1), ENERGY_FLOOR))


class Spectrum(_Step):
    """Shape of the spectrum, whatever gain and offset, from `low_hz` to `high_hz` (default: all bins above 0 Hz).

    PC-FedAvg paper, section 4.1.1: 2 s at 600 Hz give 600 bins.
    """

    kind: Literal["spectrum"]
    low_hz: float = Field(default=0.0, ge=0)
    high_hz: float | None = None

    def check(self, spec: FeatureSpec) -> None:
        _bins(spec, spec.samples, self.low_hz, self.high_hz)

    def labels(self, spec: FeatureSpec) -> tuple[str, ...]:
        bins = _bins(spec, spec.samples, self.low_hz, self.high_hz)
        return tuple(f"spectrum[{(k + 1) * spec.resolution_hz:.9g}Hz]" for k in range(bins.start, bins.stop))

    def measure(self, spec: FeatureSpec, windows: Windows) -> Floats:
        bins = _bins(spec, spec.samples, self.low_hz, self.high_hz)
        return ratio(np.sqrt(windows.energies[..., bins]), windows.deviation[..., None])


class Welch(_Step):
    """Averaged spectrum of segments, Hann-windowed and half overlapping, each less its own mean.

    `normalise` divides by the sum over the bins from `low_hz` to `high_hz`; `log` then takes log10.
    """

    kind: Literal["welch"]
    segment_s: float = Field(gt=0)
    low_hz: float = Field(default=0.0, ge=0)
    high_hz: float | None = None
    log: bool = False
    normalise: bool = False

    def _length(self, spec: FeatureSpec) -> int:
        return round(self.segment_s * spec.rate_hz)

    def check(self, spec: FeatureSpec) -> None:
        _check_whole("segment_s", self.segment_s * spec.rate_hz, 2)
        if self.segment_s > spec.window_s:
            raise ValueError(f"segment_s: {self.segment_s} s is longer than window_s = {spec.window_s} s")
        _bins(spec, self._length(spec), self.low_hz, self.high_hz)

    def labels(self, spec: FeatureSpec) -> tuple[str, ...]:
        length = self._length(spec)
        bins = _bins(spec, length, self.low_hz, self.high_hz)
        name = f"{'log_' * self.log}{'share_' * self.normalise}welch_{self.segment_s:g}s"
        return tuple(f"{name}[{(k + 1) * spec.rate_hz / length:.9g}Hz]" for k in range(bins.start, bins.stop))

    def measure(self, spec: FeatureSpec, windows: Windows) -> Floats:
        length = self._length(spec)
        bins = _bins(spec, length, self.low_hz, self.high_hz)
        amplitudes = np.sqrt(one_sided(windows.segment_energies(length), length)[..., bins])
        if self.normalise:
            amplitudes = ratio(amplitudes, amplitudes.sum(axis=-1, keepdims=True))
        return np.log10(np.maximum(amplitudes, AMPLITUDE_FLOOR)) if self.log else amplitudes


Step = Annotated[Statistic | Bands | Spectrum | Welch, Field(discriminator="kind")]


class FeatureSpec(_Frozen):
    """Which window to cut and what to measure in it; plain JSON, the same for every gateway that shares the model.

    `channels` are role names ("deck_vertical", not "sensor 17"), so that gateways with different sensors fit one model.
    `magnitude` adds channels sqrt(x² + y² + z²) of three others, for use by steps that name them. Features come step by
    step, within a step channel by channel. A specification that contradicts itself raises pydantic.ValidationError.
    """

    rate_hz: float = Field(gt=0)
    window_s: float = Field(gt=0)
    hop_s: float = Field(default_factory=lambda given: given["window_s"], gt=0)
    channels: tuple[str, ...] = Field(min_length=1)
    magnitude: dict[str, tuple[str, str, str]] = Field(default_factory=dict)
    steps: tuple[Step, ...] = Field(min_length=1)

    @property
    def samples(self) -> int:
        """T, the samples of a window."""
        return round(self.rate_hz * self.window_s)

    @property
    def hop_samples(self) -> int:
        """Samples from the start of a window to the start of the next."""
        return round(self.rate_hz * self.hop_s)

    @property
    def resolution_hz(self) -> float:
        """Distance between the bins of a whole window's spectrum."""
        return self.rate_hz / self.samples

    @model_validator(mode="after")
    def _consistent(self) -> FeatureSpec:
        _check_whole("window_s", self.rate_hz * self.window_s, 2)
        _check_whole("hop_s", self.rate_hz * self.hop_s, 1)
        if self.hop_s > self.window_s:
            raise ValueError(f"hop_s: {self.hop_s} s would skip samples; expected at most window_s = {self.window_s} s")
        _check_channels(self)
        for position, step in enumerate(self.steps):
            try:
                step.check(self)
            except ValueError as error:
                raise ValueError(f"steps[{position}].{error}") from error
        _check_unique("steps: feature", feature_names(self))
        return self


def _check_whole(key: str, samples: float, least: int) -> None:
    # 1/3 Hz has no exact decimal form, so a duration may miss a whole number of samples by a little.
    if abs(samples - round(samples)) > 1e-3 or round(samples) < least:
        raise ValueError(f"{key}: makes {samples:.6g} samples at rate_hz; expected a whole number, at least {least}")


def _check_below_half(key: str, frequency_hz: float, spec: FeatureSpec) -> None:
    if frequency_hz > spec.rate_hz / 2:
        raise ValueError(f"{key}: {frequency_hz} Hz is above half of rate_hz; expected at most {spec.rate_hz / 2} Hz")


def _check_unique(what: str, names: tuple[str, ...]) -> None:
    if len(set(names)) < len(names):
        first = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{what} {first!r} occurs {names.count(first)} times; expected every name once")


def _check_channels(spec: FeatureSpec) -> None:
    _check_unique("channels and magnitude: name", (*spec.channels, *spec.magnitude))
    used = {name for step in spec.steps for name in step.channels or ()}
    unknown = sorted(used - {*spec.channels, *spec.magnitude})
    if unknown:
        raise ValueError(f"steps: {unknown} are neither in channels nor in magnitude; known are {spec.channels}")
    for name, axes in spec.magnitude.items():
        if not set(axes) <= set(spec.channels) or len(set(axes)) < 3:
            raise ValueError(f"magnitude.{name}: {axes} given; expected three different names of channels")
        if name not in used:
            raise ValueError(f"magnitude.{name}: no step names it among its channels; use it or leave it out")


def _bins(spec: FeatureSpec, length: int, low_hz: float, high_hz: float | None) -> slice:
    """Return which of the bins above 0 Hz of a transform of `length` samples lie from low_hz to high_hz."""
    top_hz = spec.rate_hz / 2 if high_hz is None else high_hz
    _check_below_half("high_hz", top_hz, spec)
    first = max(math.ceil(low_hz * length / spec.rate_hz - _ON_BIN), 1)
    last = math.floor(top_hz * length / spec.rate_hz + _ON_BIN)
    if first > last:
        raise ValueError(
            f"low_hz: no bin above 0 Hz lies from {low_hz} to {top_hz} Hz; the bins are every"
            f" {spec.rate_hz / length:g} Hz"
        )
    return slice(first - 1, last)


def feature_names(spec: FeatureSpec) -> tuple[str, ...]:
    """Return the F names in the order of `extract`, such as `deck.level` or `deck.band[2-4Hz]`."""
    return tuple(
        f"{channel}.{label}"
        for step in spec.steps
        for channel in step.channels or spec.channels
        for label in step.labels(spec)
    )


def extract(spec: FeatureSpec, values: Array) -> NDArray[np.float32]:
    """Measure one window, values (T, C) in the order of `spec.channels`: (F,), always finite.

    Raises:
        FeatureError: the shape is another, or a value is not finite or larger than `LARGEST`.
    """
    features: NDArray[np.float32] = extract_many(spec, np.asarray(values)[None])[0]
    return features


def extract_many(spec: FeatureSpec, values: Array) -> NDArray[np.float32]:
    """Measure n windows, values (n, T, C): (n, F), to the bit what `extract` returns for each. Raises FeatureError."""
    expected = (spec.samples, len(spec.channels))
    if values.ndim != 3 or values.shape[1:] != expected:
        raise FeatureError(f"a window has the shape {values.shape[1:]}; expected (samples, channels) = {expected}")
    step = max(_BLOCK_VALUES // (expected[0] * expected[1]), 1)
    return np.concatenate([_measure(spec, values[at : at + step]) for at in range(0, max(len(values), 1), step)])


def _measure(spec: FeatureSpec, values: Array) -> NDArray[np.float32]:
    signals = np.ascontiguousarray(values.swapaxes(1, 2), dtype=np.float64)  # (n, C, T): sums run along memory
    _check_values(spec, signals)
    names = (*spec.channels, *spec.magnitude)
    for axes in spec.magnitude.values():
        squares = np.square(signals[:, [spec.channels.index(axis) for axis in axes]])
        signals = np.concatenate([signals, np.sqrt(squares.sum(axis=1, keepdims=True))], axis=1)
    shared: dict[tuple[str, ...], Windows] = {}  # one transform for each selection of channels, not for each step
    columns = []
    for step in spec.steps:
        chosen = step.channels or spec.channels
        if chosen not in shared:
            rows = [names.index(name) for name in step.channels] if step.channels else slice(len(spec.channels))
            shared[chosen] = Windows(signals[:, rows])
        features = step.measure(spec, shared[chosen])  # (n, C, k)
        columns.append(features.reshape(len(values), features.shape[1] * features.shape[2]))
    return np.concatenate(columns, axis=1, dtype=np.float32)


def _check_values(spec: FeatureSpec, signals: Floats) -> None:
    high, low = signals.max(axis=(0, 2), initial=0.0), signals.min(axis=(0, 2), initial=0.0)
    largest = np.maximum(high, -low)  # (C,) not a number where a value is not
    for channel, value in zip(spec.channels, largest, strict=True):
        if not value <= LARGEST:
            raise FeatureError(f"channel {channel!r} holds {value}; expected finite values up to {LARGEST:g}")
