"""What chosen features of a gateway were within an hour, as one message: kept and acknowledged, like what is scored
without a link.

The owner of a structure asks how it changes over months. That needs no samples and no window of its own to leave a
gateway: how many windows there were, and of each feature the mean, the standard deviation, the least and the most.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Self

from pydantic import Field, model_validator

from fedgate.config.protocol.messages import FARTHEST, ClockQuality, Count, Message, Moment, Name, NotNegative, Number

FEATURES_MAX = 16  # of one gateway
DIGITS = 6  # significant ones: a natural frequency moves by a thousandth

Values = Annotated[tuple[Number, ...], Field(max_length=FEATURES_MAX)]


class Spread(NamedTuple):
    """Values of one feature, as far as it is told."""

    windows: int
    mean: float
    deviation: float  # standard deviation of the population
    least: float
    most: float


@dataclass(frozen=True)
class Gathered:
    """Windows so far: the ends of the first and the last, and what each feature was in them."""

    t_ns: int
    last_ns: int
    spreads: tuple[Spread, ...]


def join(spreads: Sequence[Spread]) -> Spread:
    """Return what holds of the values of all of them, one at least."""
    windows = sum(one.windows for one in spreads)
    mean = sum(one.windows * one.mean for one in spreads) / windows
    # Products, and not powers, whose last bit differs between machines and units.
    offsets = [one.mean - mean for one in spreads]
    squares = sum(
        one.windows * (one.deviation * one.deviation + offset * offset)
        for one, offset in zip(spreads, offsets, strict=True)
    )
    least, most = min(one.least for one in spreads), max(one.most for one in spreads)
    return Spread(windows, mean, math.sqrt(squares / windows), least, most)


class FeatureSummary(Message):
    """Windows of one hour, or of a part of it: the ends of the first and the last, and what each feature was."""

    t_ns: Moment
    last_ns: Moment
    windows: Annotated[Count, Field(ge=1)]
    features: Annotated[tuple[Name, ...], Field(min_length=1, max_length=FEATURES_MAX)]
    units: Annotated[tuple[Name, ...], Field(max_length=FEATURES_MAX)]  # empty where there is none
    means: Values
    deviations: Annotated[tuple[NotNegative, ...], Field(max_length=FEATURES_MAX)]
    least: Values
    most: Values
    clock: ClockQuality = "unknown"
    boot_id: Name = ""

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        count = len(self.features)
        if {len(one) for one in (self.units, self.means, self.deviations, self.least, self.most)} != {count}:
            raise ValueError(f"expected {count} values of each kind, one of each feature")
        if self.last_ns < self.t_ns:
            raise ValueError(f"last_ns: the last window ends at {self.last_ns}, before the first at {self.t_ns}")
        return self

    def by_feature(self) -> dict[str, Spread]:
        """Return what each feature was, by its name."""
        values = zip(self.means, self.deviations, self.least, self.most, strict=True)
        return {name: Spread(self.windows, *each) for name, each in zip(self.features, values, strict=True)}


def summarise(
    gathered: Gathered, features: Sequence[str], units: Sequence[str], clock: ClockQuality, boot: str
) -> FeatureSummary:
    """Return what was gathered of these features, in these units, as a message."""
    spreads = gathered.spreads
    return FeatureSummary(
        t_ns=gathered.t_ns,
        last_ns=gathered.last_ns,
        windows=spreads[0].windows,
        features=tuple(features),
        units=tuple(units),
        means=_round(one.mean for one in spreads),
        deviations=_round(one.deviation for one in spreads),
        least=_round(one.least for one in spreads),
        most=_round(one.most for one in spreads),
        clock=clock,
        boot_id=boot,
    )


def _round(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(float(f"{min(max(value, -FARTHEST), FARTHEST):.{DIGITS}g}") for value in values)
