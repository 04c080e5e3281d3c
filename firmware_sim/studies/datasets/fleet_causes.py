"""Simulated sites with alarms of a fleet: what weather, supply and structure do to the features of gateways.

A site has a temperature that follows the day and the week, a load that comes in gusts, and a supply. Each gateway
measures six features of the structure, and these three. What they do to a feature differs from gateway to gateway and
is not quite a straight line. The structure changes by a step or within an hour; all of its sensors show it, each in
another measure.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from fedgate.models.arrays import Floats

HOP_S = 300.0
DAY = 288  # windows
FEATURES = 6  # of the structure; the first three follow the temperature most, the last three the load
TEMPERATURE, LOAD, SUPPLY = FEATURES, FEATURES + 1, FEATURES + 2  # columns behind them
WATCHED = 2 * DAY

Truth = Literal["weather", "power", "structure"]


class Cause(NamedTuple):
    """What happens to a site. Where its structure changes, that is the `truth`, whatever happens beside it."""

    truth: Truth
    front: bool = False  # it becomes colder or warmer
    gust: bool = False  # there is more load
    dip: bool = False  # the supply falls
    cut: Literal["", "before", "during", "after"] = ""  # the power is lost: when, as seen from the change
    warm_up: bool = False  # sensors need a while after it
    offline: bool = False  # the network is lost after the change
    is_steady: bool = False  # the supply hardly moves in the baseline, which then teaches nothing of it


CAUSES: dict[str, Cause] = {
    "front": Cause("weather", front=True),
    "gust": Cause("weather", gust=True),
    "front and gust": Cause("weather", front=True, gust=True),
    "supply dips": Cause("power", dip=True),
    "power cut, sensors warm up": Cause("power", cut="during", warm_up=True),
    "steady supply dips": Cause("power", dip=True, is_steady=True),
    "change": Cause("structure"),
    "change in a front": Cause("structure", front=True),
    "change in a gust": Cause("structure", gust=True),
    "change as the supply dips": Cause("structure", dip=True),
    "change as a steady supply dips": Cause("structure", dip=True, is_steady=True),
    "change, network lost after": Cause("structure", offline=True),
    "change, power cut after": Cause("structure", cut="after"),
    "change, power cut before": Cause("structure", cut="before"),
    "change during a power cut": Cause("structure", cut="during"),
    "change during a power cut, sensors warm up": Cause("structure", cut="during", warm_up=True),
}
# By how many deviations of their noise features move with a deviation of temperature, of load and of the supply.
REACH = np.array([[3.0, 3.0, 3.0, 1.0, 1.0, 1.0], [0.5, 0.5, 0.5, 2.0, 2.0, 2.0], [1.0] * FEATURES])
BEND = 0.015  # of the slope, with the square: at three deviations up to a twentieth of what is straight
STEADY = 0.1  # of that, which a steady supply moves in the baseline


class Site(NamedTuple):
    """One draw: rows (n, F) of each gateway, of its baseline and of what it watches, and what happened when."""

    baseline: list[Floats]
    watched: list[Floats]
    begin: int  # the window from which on it happens
    cut: tuple[int, int] | None  # windows that no gateway measured for want of power
    offline: tuple[int, int] | None  # windows in which no gateway was heard


def draw_site(cause: Cause, rng: np.random.Generator) -> Site:
    """Return a site and what a cause does to it."""
    n, begin = int(rng.integers(3, 8)) * DAY, int(rng.integers(DAY // 2, WATCHED - DAY // 2))
    beside = _beside(rng, n + WATCHED)  # in deviations of the baseline
    beside = (beside - beside[:n].mean(axis=0)) / beside[:n].std(axis=0)
    known = beside[:n].max(axis=0) - beside[:n].min(axis=0)
    beside[:, 2] *= STEADY if cause.is_steady else 1.0
    beside[n:] += _excursion(rng, cause, begin, known)
    change, directions = _change(rng, cause, begin), rng.normal(size=FEATURES)
    cut = _cut(rng, cause, begin)
    slopes = REACH * rng.normal(size=REACH.shape)
    sites = []
    for _ in range(int(rng.integers(3, 9))):
        x = _features(rng, beside, slopes)
        x[n:] += np.outer(change, _strength(rng, directions))
        if cause.warm_up and cut is not None:
            x[n:] += _warming(rng, cut[1])
        sites.append(np.column_stack([x, beside + rng.normal(size=beside.shape) * [0.05, 0.05, 0.05 * STEADY]]))
    lost = begin + int(rng.integers(2, 6))
    offline = (lost, lost + int(rng.integers(1, 6))) if cause.offline else None
    return Site([rows[:n] for rows in sites], [rows[n:] for rows in sites], begin, cut, offline)


def _wandering(rng: np.random.Generator, count: int, length: float) -> Floats:
    """Return noise (count,) of deviation one that forgets itself over `length` windows."""
    keep = float(np.exp(-1.0 / length))
    steps = rng.normal(size=count) * np.sqrt(1.0 - keep**2)
    state, found = float(rng.normal()), np.empty(count)
    for index, step in enumerate(steps.tolist()):
        state = keep * state + step
        found[index] = state
    return found


def _beside(rng: np.random.Generator, count: int) -> Floats:
    """Return temperature, load and supply (count, 3)."""
    day = np.sin(2.0 * np.pi * (np.arange(count) / DAY + rng.uniform()))
    temperature = rng.uniform(2.0, 6.0) * day + rng.uniform(1.0, 4.0) * _wandering(rng, count, DAY)
    load = np.exp(0.4 * _wandering(rng, count, DAY / 6))
    supply = rng.uniform(0.0, 2.0) * day + _wandering(rng, count, DAY / 8)
    return np.column_stack([temperature, load, supply])


def _excursion(rng: np.random.Generator, cause: Cause, begin: int, known: Floats) -> Floats:
    """Return what is added to temperature, load and supply (WATCHED, 3), of which the baseline knows such a range."""
    added = np.zeros((WATCHED, 3))
    signs = (float(rng.choice([-1.0, 1.0])), 1.0, -1.0)
    for column, happens in enumerate((cause.front, cause.gust, cause.dip)):
        ramp = 1 if column == SUPPLY - FEATURES else int(rng.integers(6, 24))
        early = int(rng.integers(0, ramp)) * (cause.truth == "structure")  # the change comes with it
        rise = np.clip((np.arange(WATCHED) - begin + early + 1) / ramp, 0.0, 1.0)
        added[:, column] = rise * signs[column] * rng.uniform(0.5, 1.25) * known[column] * happens
    return added


def _change(rng: np.random.Generator, cause: Cause, begin: int) -> Floats:
    """Return the share (WATCHED,) of the change of the structure that has happened."""
    ramp = 1 if cause.cut or rng.uniform() < 0.5 else int(rng.integers(2, 12))
    return np.clip((np.arange(WATCHED) - begin + 1) / ramp, 0.0, 1.0) * (cause.truth == "structure")


def _strength(rng: np.random.Generator, directions: Floats) -> Floats:
    """Return by how many deviations of its noise a change moves each feature of one gateway."""
    moved = directions + 0.5 * rng.normal(size=FEATURES)
    return np.asarray(rng.uniform(5.0, 20.0) * moved / np.linalg.norm(moved))


def _cut(rng: np.random.Generator, cause: Cause, begin: int) -> tuple[int, int] | None:
    if not cause.cut:
        return None
    length = int(rng.integers(1, 5))
    starts = {
        "before": begin - length - int(rng.integers(1, DAY // 4)),
        "during": begin - length + 1,
        "after": begin + int(rng.integers(1, DAY // 24)),
    }
    return starts[cause.cut], starts[cause.cut] + length


def _features(rng: np.random.Generator, beside: Floats, shared: Floats) -> Floats:
    """Return the features (count, FEATURES) of one healthy gateway, whose site has such slopes on what is beside."""
    slopes = shared * rng.uniform(0.5, 1.5, size=shared.shape)
    bend = slopes * rng.uniform(-BEND, BEND, size=shared.shape)
    noise = [_wandering(rng, len(beside), rng.uniform(0.5, 3.0)) for _ in range(FEATURES)]
    return np.asarray(beside @ slopes + np.square(beside) @ bend + np.column_stack(noise))


def _warming(rng: np.random.Generator, end: int) -> Floats:
    """Return what a cold sensor adds (WATCHED, FEATURES) from the first window after a cut on."""
    after_s = (np.arange(WATCHED) - end) * HOP_S
    decay = np.exp(-np.maximum(after_s, 0.0) / rng.uniform(300.0, 1800.0)) * (after_s >= 0.0)
    return np.outer(decay, rng.uniform(10.0, 40.0) * rng.normal(size=FEATURES))
