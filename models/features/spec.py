"""Windows to features, declared by a specification that travels with the model.

A model scores sensibly only on the features it was trained on. So the `FeatureSpec` is part of the model's manifest and
this one function, on the gateway and in training alike, turns a window into the numbers the specification lists.

The kinds of feature are in `fedgate.models.features.kinds`.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field, model_validator

from fedgate.models.arrays import Array, Floats, Integers, Singles
from fedgate.models.features.kinds import Step
from fedgate.models.features.measures import NO_TIME, Windows
from fedgate.models.features.shape import WindowShape, check_whole

LARGEST = 1e15  # in any unit; beyond it fourth powers and float32 features would lose their meaning
FEATURES_MAX = 2**18
_BLOCK_VALUES = 2**17  # about 1 MiB at a time, which fits a processor's cache and a small gateway's memory


class FeatureError(ValueError):
    """Values that are no window of the declared shape, or that hold what no sensor can have measured."""


class FeatureSpec(WindowShape):
    """Which window to cut and what to measure in it; plain JSON, the same for every gateway that shares the model.

    `channels` are role names ("deck_vertical", not "sensor 17"), so that gateways with different sensors fit one model.
    `magnitude` adds channels sqrt(x² + y² + z²) of three others, for use by steps that name them. Features come step by
    step, within a step channel by channel. A specification that contradicts itself raises pydantic.ValidationError.
    """

    hop_s: float = Field(default_factory=lambda given: given["window_s"], gt=0)
    channels: tuple[str, ...] = Field(min_length=1)
    magnitude: dict[str, tuple[str, str, str]] = Field(default_factory=dict)
    steps: tuple[Step, ...] = Field(min_length=1)

    @property
    def hop_samples(self) -> int:
        """Samples from the start of a window to the start of the next."""
        return round(self.rate_hz * self.hop_s)

    @model_validator(mode="after")
    def _consistent(self) -> FeatureSpec:
        check_whole("hop_s", self.rate_hz * self.hop_s, 1)
        if self.hop_s > self.window_s:
            raise ValueError(f"hop_s: {self.hop_s} s would skip samples; expected at most window_s = {self.window_s} s")
        _check_channels(self)
        for position, step in enumerate(self.steps):
            try:
                step.check(self)
            except ValueError as error:
                raise ValueError(f"steps[{position}].{error}") from error
        _check_count(self)
        _check_unique("steps: feature", feature_names(self))
        return self


def _check_unique(what: str, names: tuple[str, ...]) -> None:
    if len(set(names)) < len(names):
        first = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{what} {first!r} occurs {names.count(first)} times; expected every name once")


def _check_count(spec: FeatureSpec) -> None:
    count = 0
    for step in spec.steps:  # counted before they are named: some hundred bytes can ask for more than memory holds
        count += len(step.labels(spec)) * len(step.channels or spec.channels)
        if count > FEATURES_MAX:
            raise ValueError(f"steps: make more than {FEATURES_MAX} features; expected fewer, such as by wider bands")


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


def feature_names(spec: FeatureSpec) -> tuple[str, ...]:
    """Return the F names in the order of `extract`, such as `deck.level` or `deck.band[2-4Hz]`."""
    return tuple(name for step in spec.steps for name in step.names(spec, spec.channels))


def extract(spec: FeatureSpec, values: Array, t_ns: int | None = None) -> Singles:
    """Measure one window, values (T, C) in the order of `spec.channels`: (F,), NaN where a sensor that is dead leaves
    nothing to measure (`pulse`), else finite.

    :param t_ns: ns of Unix time at which the window starts; only a step of kind `calendar` needs it.

    Raises:
        FeatureError: the shape is another, a value is not finite or larger than `LARGEST`, or the time is missing.
    """
    times_ns = None if t_ns is None else np.array([t_ns], dtype=np.int64)
    features: Singles = extract_many(spec, np.asarray(values)[None], times_ns)[0]
    return features


def extract_many(spec: FeatureSpec, values: Array, t_ns: Integers | None = None) -> Singles:
    """Measure n windows, values (n, T, C) that start at t_ns (n,): (n, F), to the bit what `extract` returns for each.

    Raises FeatureError.
    """
    expected = (spec.samples, len(spec.channels))
    if values.ndim != 3 or values.shape[1:] != expected:
        raise FeatureError(f"a window has the shape {values.shape[1:]}; expected (samples, channels) = {expected}")
    if t_ns is None and any(step.needs_time for step in spec.steps):
        raise FeatureError("no time of the windows given; expected for steps of kind 'calendar' when each starts, t_ns")
    if t_ns is not None and (t_ns.shape != (len(values),) or t_ns.dtype != np.int64):
        given = f"t_ns of shape {t_ns.shape}, {t_ns.dtype}"
        raise FeatureError(f"{given}; expected a whole number of ns for each of {len(values)} windows")
    step = max(_BLOCK_VALUES // (expected[0] * expected[1]), 1)
    starts_ns = NO_TIME if t_ns is None else t_ns
    blocks = [slice(at, at + step) for at in range(0, max(len(values), 1), step)]
    return np.concatenate([_measure(spec, values[block], starts_ns[block]) for block in blocks])


def _measure(spec: FeatureSpec, values: Array, starts_ns: Integers) -> Singles:
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
            shared[chosen] = Windows(signals[:, rows], starts_ns)
        features = step.measure(spec, shared[chosen])  # (n, C, k)
        columns.append(features.reshape(len(values), features.shape[1] * features.shape[2]))
    return np.concatenate(columns, axis=1, dtype=np.float32)


def _check_values(spec: FeatureSpec, signals: Floats) -> None:
    high, low = signals.max(axis=(0, 2), initial=0.0), signals.min(axis=(0, 2), initial=0.0)
    largest = np.maximum(high, -low)  # (C,) not a number where a value is not
    for channel, value in zip(spec.channels, largest, strict=True):
        if not value <= LARGEST:
            raise FeatureError(f"channel {channel!r} holds {value}; expected finite values up to {LARGEST:g}")
