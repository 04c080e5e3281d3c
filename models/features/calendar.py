"""The time of a window as features: what is normal at three in the morning is not at noon, nor on a Sunday.

Times are those of the window, in the time zone of the building with its summer time. They are as right as the clock
that stamped the samples; whether that was synchronised is said by the alarm, not by the features
(docs/reference/features.md).
"""

from __future__ import annotations

from datetime import date
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from fedgate.models.arrays import Floats, Integers
from fedgate.models.features.local_time import MONDAY, local_ns, zone
from fedgate.models.features.measures import Windows
from fedgate.models.features.shape import Kind, WindowShape, block_of
from fedgate.models.time_units import DAY_NS

What = Literal["hour", "weekday", "workday", "year"]
NAMES: dict[What, tuple[str, ...]] = {
    "hour": ("hour_sin", "hour_cos"),
    "weekday": ("weekday_sin", "weekday_cos"),
    "workday": ("workday",),
    "year": ("year_sin", "year_cos"),
}


class Calendar(Kind):
    """Where in the day, the week or the year a window lies, on a circle so that midnight is no edge; `workday` is 1
    from Monday to Friday and 0 at weekends and on `holidays`.

    One value for each sample, calendar channel after calendar channel as of kind `samples`, or for each block of them
    where `rate_hz` is below the window's; `per = "window"` gives one, for its middle.
    """

    kind: Literal["calendar"]
    zone: str = "UTC"
    values: tuple[What, ...] = Field(default=("hour", "workday"), min_length=1)
    per: Literal["sample", "window"] = "sample"
    rate_hz: float | None = Field(default=None, gt=0)
    holidays: tuple[date, ...] = ()

    needs_time: ClassVar[bool] = True

    @field_validator("zone")
    @classmethod
    def _known(cls, name: str) -> str:
        zone(name)
        return name

    def check(self, shape: WindowShape) -> None:
        if self.channels is not None:
            raise ValueError(f"channels: {list(self.channels)} given; expected none, the time belongs to all of them")
        if len(set(self.values)) < len(self.values):
            raise ValueError(f"values: {list(self.values)} given; expected every one once")
        if self.per == "window" and self.rate_hz is not None:
            raise ValueError(
                f"rate_hz: {self.rate_hz} Hz given; expected none with per = 'window', which has one value"
            )
        self._block(shape)

    def _block(self, shape: WindowShape) -> int:
        return shape.samples if self.per == "window" else block_of(shape, self.rate_hz)

    def labels(self, shape: WindowShape) -> tuple[str, ...]:
        count = shape.samples // self._block(shape)
        return ("",) if self.per == "window" else tuple(f"[{k}]" for k in range(count))

    def names(self, shape: WindowShape, _channels: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"calendar.{n}{at}" for what in self.values for n in NAMES[what] for at in self.labels(shape))

    def measure(self, shape: WindowShape, windows: Windows) -> Floats:
        walls_ns = local_ns(self.zone, self._moments_ns(shape, windows.starts_ns))  # (n, T')
        columns = [column for what in self.values for column in self._columns(what, walls_ns)]
        return np.stack(columns, axis=1)  # (n, K, T')

    def _moments_ns(self, shape: WindowShape, starts_ns: Integers) -> Integers:
        """Return the middle of each block of samples, (n, T')."""
        block = self._block(shape)
        middles = (np.arange(shape.samples // block) * block + (block - 1) / 2) / shape.rate_hz  # (T',) seconds
        return np.asarray(starts_ns[:, None] + np.round(middles * 1e9).astype(np.int64))

    def _columns(self, what: What, walls_ns: Integers) -> tuple[Floats, ...]:
        days = walls_ns // DAY_NS
        weekday = (days + MONDAY) % 7
        part_of_day = (walls_ns % DAY_NS) / DAY_NS
        if what == "workday":
            free = [(day - date(1970, 1, 1)).days for day in self.holidays]
            return (((weekday < 5) & ~np.isin(days, free)).astype(np.float64),)
        if what == "hour":
            part = part_of_day
        elif what == "weekday":
            part = (weekday + part_of_day) / 7
        else:
            years = days.astype("datetime64[D]").astype("datetime64[Y]")
            first, following = (y.astype("datetime64[D]").astype(np.int64) for y in (years, years + 1))
            part = (days - first + part_of_day) / (following - first)
        return np.sin(2 * np.pi * part), np.cos(2 * np.pi * part)
