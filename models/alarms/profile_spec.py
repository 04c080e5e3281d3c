"""Which context a profile tells apart: the table [alarm.contextual], and what is sensible for which kind of device.

More context is not better. Whatever explains a fault hides it: people explain running water, so a leak must not be
judged by the hour at which they are there, and who is in a building says nothing about whether that is unusual.

    category       block   days      occupancy  outdoor   why
    lights         1 h     workday   counts     -         people and the clock switch light, temperature does not
    thermostats    3 h     workday   counts     counts    heating follows a plan, people and the weather
    occupancy      1 h     weekday   -          -         people are what is measured; only the week explains them
    water-leakage  24 h    same      counts     -         water runs where people are; a leak runs at any hour
    access         1 h     weekday   -          -         the hour is the anomaly; people inside would excuse it
    other          3 h     workday   counts     counts    nothing is known
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, field_validator, model_validator

from fedgate.models.features.local_time import zone
from fedgate.models.options import Listed, Options

Category = Literal["lights", "thermostats", "occupancy", "water-leakage", "access", "other"]
DayKinds = Literal["same", "workday", "weekday"]
Edges = Annotated[tuple[float, ...], Field(min_length=1)]

MOST_CELLS = 10_000  # a profile of ten features then is 1.6 MB of sums
OCCUPIED: Edges = (0.5,)  # people, or a detector's 0 and 1
OUTDOOR: Edges = (0.0, 10.0, 20.0)  # degrees Celsius: frost, heating, neither, cooling


class _Preset(NamedTuple):
    block_h: int
    days: DayKinds
    counts: tuple[str, ...]  # of occupancy and outdoor
    why: str


_PRESETS: Mapping[Category, _Preset] = MappingProxyType(
    {
        "lights": _Preset(1, "workday", ("occupancy",), "temperature switches no light"),
        "thermostats": _Preset(3, "workday", ("occupancy", "outdoor"), ""),
        "occupancy": _Preset(1, "weekday", (), "people are what is measured, and would explain themselves"),
        "water-leakage": _Preset(24, "same", ("occupancy",), "a leak runs in any weather"),
        "access": _Preset(1, "weekday", (), "whoever came in at an unusual hour would be excused by being there"),
        "other": _Preset(3, "workday", ("occupancy", "outdoor"), ""),
    }
)


class ProfileSpec(Options):
    """What a profile tells apart; an operator's settings.

    :param category: kind of device; presets `block_h` and `days` and says whether occupancy and outdoor count.
    :param timezone: name in the IANA database; hours and days are local ones, summer time included.
    :param block_h: hours of the day that are one block; a divisor of 24, which stands for no difference.
    :param days: whether all days are the same, Saturday and Sunday differ from the others, or each day of the week.
    :param occupancy: name of the feature that says how many people are there; bins 0 and more.
    :param outdoor: name of the feature with the outdoor temperature in degrees Celsius; bins to 0, 10, 20 and above.
    :param context: further features by name, each with the ascending edges of its bins.
    :param least: windows that a cell needs before it is judged by its own mean and deviation.
    :param floor: the smallest deviation, in the units of the features that are judged.
    """

    category: Category = "other"
    timezone: str = "UTC"
    block_h: int | None = Field(default=None, ge=1, le=24)
    days: DayKinds | None = None
    occupancy: str | None = None
    outdoor: str | None = None
    context: dict[str, Listed[Edges]] = Field(default_factory=dict)
    least: int = Field(default=200, ge=2)
    floor: float = Field(default=0.1, gt=0)

    @property
    def hours(self) -> int:
        """Hours of a block, given or preset."""
        return _PRESETS[self.category].block_h if self.block_h is None else self.block_h

    @property
    def day_kinds(self) -> DayKinds:
        """Which days differ, given or preset."""
        return _PRESETS[self.category].days if self.days is None else self.days

    @property
    def bins(self) -> dict[str, Edges]:
        """The edges of all context, by name of feature, in the order in which cells count it."""
        named = {self.occupancy: OCCUPIED, self.outdoor: OUTDOOR}
        return {name: edges for name, edges in named.items() if name is not None} | self.context

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many blocks, kinds of day and bins of each context there are, one of them for the unknown."""
        days = {"same": 1, "workday": 2, "weekday": 7}[self.day_kinds]
        return (24 // self.hours, days, *(len(edges) + 2 for edges in self.bins.values()))

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, name: str) -> str:
        zone(name)
        return name

    @field_validator("block_h")
    @classmethod
    def _divides_the_day(cls, hours: int | None) -> int | None:
        if hours is not None and 24 % hours:
            raise ValueError(f"{hours} h given; expected a divisor of 24: 1, 2, 3, 4, 6, 8, 12 or 24")
        return hours

    @field_validator("context")
    @classmethod
    def _ascending(cls, context: dict[str, Edges]) -> dict[str, Edges]:
        for name, edges in context.items():
            if any(not first < second for first, second in pairwise(edges)):
                raise ValueError(f"{name}: edges {edges} given; expected ascending ones")
        return context

    @model_validator(mode="after")
    def _consistent(self) -> ProfileSpec:
        preset = _PRESETS[self.category]
        for kind, name in (("occupancy", self.occupancy), ("outdoor", self.outdoor)):
            if name is not None and kind not in preset.counts:
                raise ValueError(
                    f"{kind}: does not count for category {self.category!r}, as {preset.why}; leave it out"
                )
        names = [name for name in (self.occupancy, self.outdoor, *self.context) if name is not None]
        if len(set(names)) < len(names):
            raise ValueError(f"context: {names} given; expected every feature once")
        cells = math.prod(self.sizes)
        if cells > MOST_CELLS:
            raise ValueError(f"context: {cells} cells, at most {MOST_CELLS} are kept; use longer blocks or fewer bins")
        return self
