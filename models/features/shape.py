"""What every kind of feature builds on: a window's rate and length, and what a kind has to say of itself."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from pydantic import BaseModel, Field, model_validator

from fedgate.models.arrays import Floats
from fedgate.models.features.measures import Windows

SAMPLES_MAX = 2**20  # of a window: ten minutes at more than 1.7 kHz


class Frozen(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """A declared value: no change, no unknown key, no infinity."""


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


class Kind(Frozen):
    """A new kind of feature is a subclass with `check`, `labels` and `measure`, one line in
    `fedgate.models.features.kinds.Step` and one in its table.
    """

    needs_time: ClassVar[bool] = False  # whether it must be told when a window starts

    channels: tuple[str, ...] | None = Field(default=None, min_length=1)  # None: all channels of the specification

    def check(self, shape: WindowShape) -> None:
        """Raise ValueError, the key at fault first, where the step does not suit the window."""

    @abstractmethod
    def labels(self, shape: WindowShape) -> tuple[str, ...]:
        """Name the k features of one channel."""

    def names(self, shape: WindowShape, channels: tuple[str, ...]) -> tuple[str, ...]:
        """Name all features of the step, where the specification declares `channels`."""
        return tuple(f"{channel}.{label}" for channel in self.channels or channels for label in self.labels(shape))

    @abstractmethod
    def measure(self, shape: WindowShape, windows: Windows) -> Floats:
        """Return the features, (n, C, k)."""


def check_whole(key: str, samples: float, least: int) -> None:
    """Raise ValueError where a duration is no whole number of samples, fewer than `least` or more than any window may
    have: a specification comes in messages too, and is understood before a signature is looked at.
    """
    if samples > SAMPLES_MAX:
        raise ValueError(f"{key}: makes {samples:.6g} samples at rate_hz; expected at most {SAMPLES_MAX}")
    # 1/3 Hz has no exact decimal form, so a duration may miss a whole number of samples by a little.
    if abs(samples - round(samples)) > 1e-3 or round(samples) < least:
        raise ValueError(f"{key}: makes {samples:.6g} samples at rate_hz; expected a whole number, at least {least}")


def check_below_half(key: str, frequency_hz: float, shape: WindowShape) -> None:
    """Raise ValueError for a frequency that the rate cannot show."""
    if frequency_hz > shape.rate_hz / 2:
        raise ValueError(f"{key}: {frequency_hz} Hz is above half of rate_hz; expected at most {shape.rate_hz / 2} Hz")


def block_of(shape: WindowShape, rate_hz: float | None) -> int:
    """Return how many samples make one value at `rate_hz`, one where it is not given; raise ValueError where no whole
    number does that divides the window.
    """
    block = shape.rate_hz / (rate_hz or shape.rate_hz)
    if abs(block - round(block)) > 1e-6 * block or block < 0.5 or shape.samples % round(block):
        raise ValueError(
            f"rate_hz: {rate_hz} Hz would average {block:.6g} of the {shape.samples} samples of a window;"
            " expected a whole number that divides them"
        )
    return round(block)
