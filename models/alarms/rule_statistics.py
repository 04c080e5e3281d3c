"""The statistics that alarm rules judge, one window after the other in constant memory.

    point        the value itself                                            sudden, and large
    collective   the count-th largest of the last `of` values                several of the last timesteps are high
    slow         weighted mean of the values, exponentially forgetting       a small shift that stays: drift, offset
    cumulative   sum of what exceeds `slack` (Page 1954), both ways          a small shift, however slowly it grows
    noise        root of the weighted mean of squares                        unrest around the same level
    stuck        for how many windows each feature has not changed           a sensor or bus that repeats itself
    given        what the caller says: how far from a profile                out of place though not out of range

Weighted means are those of Roberts, Control chart tests based on geometric moving averages, Technometrics 1, 1959;
sums those of Page, Continuous inspection schemes, Biometrika 41, 1954. Deviations enter in units of their own healthy
spread and clipped, so that one wild window does not fill a memory of hours: it is the point rule's. What they deviate
from is, of the score, its median; `on = "values"` what the windows before and beside let expect of each feature, which
shows changes; `on = "level"` the mean of each feature over the baseline, which shows where it has come to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from pydantic import BaseModel, Field, model_validator

from fedgate.models.arrays import Floats

CLIP = 4.0  # spreads, for what is remembered
HIGHEST_SUM = 2.0  # levels: a sum rises no higher, so that it can come down again
STUCK_FACTOR = 1.5  # of the longest healthy run

Of = Literal["score", "values", "level"]
Share = Annotated[float | None, Field(gt=0, le=1)]


class _Sharing(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    share: Share = None


class Point(_Sharing):
    """Raises on a single window."""

    kind: Literal["point"] = "point"
    on: Of = "score"


class Collective(_Sharing):
    """Raises where at least `count` of the last `of` windows are above a level of their own."""

    kind: Literal["collective"]
    on: Of = "score"
    count: int = Field(default=3, ge=1)
    of: int = Field(default=6, ge=1, le=1000)

    @model_validator(mode="after")
    def _no_more_than_there_are(self) -> Self:
        if self.count > self.of:
            raise ValueError(f"count {self.count} of the last {self.of} windows; expected no more than there are")
        return self


class Slow(_Sharing):
    """Raises on the mean deviation of about the last `time_s`."""

    kind: Literal["slow"]
    on: Of = "values"
    time_s: float = Field(default=5_400.0, gt=0)


class Cumulative(_Sharing):
    """Raises on the sum of deviations beyond `slack` spreads."""

    kind: Literal["cumulative"]
    on: Of = "values"
    slack: float = Field(default=0.5, gt=0, lt=CLIP)


class Noise(_Sharing):
    """Raises on the unrest of about the last `time_s`."""

    kind: Literal["noise"]
    on: Of = "values"
    time_s: float = Field(default=3_600.0, gt=0)


class Stuck(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Names each watched feature that is unchanged for 1.5 times its longest healthy run and `least_s` more.

    It has no height, since what stands for days would hide all other rules. It promises nothing and takes no share: of
    what never happened in the baseline no rate can be told.
    """

    kind: Literal["stuck"]
    least_s: float = Field(default=3_600.0, gt=0)


class Given(_Sharing):
    """Raises on a statistic that the caller takes: how far a window is from the profile of its hour and occupancy."""

    kind: Literal["given"]


Judging = Point | Collective | Slow | Cumulative | Noise | Given  # rules with a height
Rule = Annotated[Point | Collective | Slow | Cumulative | Noise | Stuck | Given, Field(discriminator="kind")]


def looks_at(rule: Rule) -> Literal["score", "values", "level", "features", "extra"]:
    """Return what of a window a rule judges."""
    if isinstance(rule, Stuck):
        return "features"
    return "extra" if isinstance(rule, Given) else rule.on


@dataclass(frozen=True, slots=True)
class Part:
    """What one rule remembers: of how many windows in a row, and the numbers it keeps."""

    seen: int = 0
    values: tuple[float, ...] = ()


FRESH = Part()


class Seen(NamedTuple):
    """One window as the rules see it; None what nothing can be said of."""

    score: float | None
    score_deviation: float | None  # in spreads of the baseline's scores
    deviations: Floats | None  # (W,) of the watched features from what was expected, in spreads
    levels: Floats | None  # (W,) of the watched features from their mean, in deviations
    values: Floats | None  # (W,) the watched features as they are
    extra: Mapping[str, float | None]  # what the caller says, by rule


class Reading(NamedTuple):
    """What a rule with a height says of a window: its statistic, and of which watched feature, None where the score."""

    statistic: float
    feature: int | None


def evaluate(
    name: str, rule: Judging, part: Part, seen: Seen, hop_s: float, level: float = math.inf
) -> tuple[Part, Reading | None]:
    """Return what a rule remembers after one window more, and what it says; None where it has nothing to go by.

    A rule that gets nothing to see begins anew: what was not seen cannot have lasted.
    """
    match rule:
        case Point():
            return FRESH, _largest(rule.on, seen)
        case Collective():
            return _collective(rule, part, _largest(rule.on, seen))
        case Given():
            statistic = seen.extra.get(name)
            return FRESH, None if statistic is None else Reading(statistic, None)
        case Slow() | Cumulative() | Noise():
            return _summed(rule, part, seen, hop_s, level)


def _largest(on: Of, seen: Seen) -> Reading | None:
    if on == "score":
        return None if seen.score is None else Reading(seen.score, None)
    found = _deviations(on, seen)
    return None if found is None else _worst(np.abs(found), on)


def _deviations(on: Of, seen: Seen) -> Floats | None:
    """Return the deviations (k,) that a rule goes by."""
    if on == "score":
        return None if seen.score_deviation is None else np.array([seen.score_deviation])
    return seen.deviations if on == "values" else seen.levels


def _worst(statistics: Floats, on: Of) -> Reading:
    worst = int(statistics.argmax())
    return Reading(float(statistics[worst]), None if on == "score" else worst)


def _collective(rule: Collective, part: Part, latest: Reading | None) -> tuple[Part, Reading | None]:
    """`count` of the last `of` are at or above a level exactly where the count-th largest of them is."""
    if latest is None:
        return FRESH, None
    last = (*part.values, latest.statistic)[-rule.of :]
    reading = Reading(sorted(last)[-rule.count], latest.feature) if len(last) == rule.of else None
    return Part(part.seen + 1, last), reading


def unchanged(part: Part, values: Floats | None) -> tuple[Part, Floats | None]:
    """Return what a `Stuck` rule remembers, and for how many windows each watched feature has not changed (W,)."""
    if values is None:
        return FRESH, None
    count = len(values)
    before, runs = np.array(part.values[:count]), np.array(part.values[count:])
    runs = np.where(values == before, runs + 1.0, 0.0) if part.seen else np.zeros(count)
    return Part(part.seen + 1, (*values.tolist(), *runs.tolist())), np.asarray(runs)


def _summed(
    rule: Slow | Cumulative | Noise, part: Part, seen: Seen, hop_s: float, level: float
) -> tuple[Part, Reading | None]:
    found = _deviations(rule.on, seen)
    if found is None:
        return FRESH, None
    z, both = np.clip(found, -CLIP, CLIP), rule.on != "score"  # a score is anomalous upwards only
    match rule:
        case Slow():
            sums = _forgetting(part, z, rule.time_s, hop_s)
            statistics, needed = np.abs(sums) if both else sums, rule.time_s / hop_s
        case Noise():
            sums = _forgetting(part, z * z, rule.time_s, hop_s)
            statistics, needed = np.sqrt(sums), rule.time_s / hop_s
        case Cumulative():
            steps = np.concatenate([z, -z]) if both else z
            before = np.array(part.values) if part.seen else np.zeros(len(steps))
            sums = np.clip(before + steps - rule.slack, 0.0, HIGHEST_SUM * level)
            statistics, needed = sums.reshape(-1, len(z)).max(axis=0), 1.0
    now = Part(part.seen + 1, tuple(sums.tolist()))
    return now, _worst(statistics, rule.on) if now.seen >= needed else None


def _forgetting(part: Part, z: Floats, time_s: float, hop_s: float) -> Floats:
    """Return means (k,) that forget with `time_s`, from 0 at the beginning."""
    weight = -math.expm1(-hop_s / time_s)
    before = np.array(part.values) if part.seen else np.zeros(len(z))
    return np.asarray(before + weight * (z - before))
