"""What the tables of smart buildings are made of: streams of steps, each with its part in the study, cut into windows.

Every method sees the same steps: an echo state network runs along a stream, all others get the windows that end at the
same steps. A part is an inner fold of the rows that train, by which settings are chosen, or what is reported; no row is
both. Where a value is forecast the end of the rows that train is a part of its own, so that settings are chosen on days
after those that an inner training saw, as what is reported is after all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgate.models.arrays import FEATURES, LABELS, MISSING, NEW_SERIES, Arrays, Floats
from fedgate.models.federated.protocol.algorithm import normalise

REPORT, IGNORED = -1, -2  # parts beside the inner folds 0, 1
FOLDS = 2
LATER = FOLDS  # added to the fold of what comes after all days of the folds 0, 1
BETWEEN = 2 * FOLDS  # days of the folds 0, 1 whose values are later ones: they only train in the end
TRAINS = tuple(range(BETWEEN + 1))
MAX_GAP = 2  # missing steps that are bridged, as in the networks' default; more begin a new series
Steps = NDArray[np.int64]


class Stream(NamedTuple):
    """One sensor's steps in units of its own: values z (m, C), rows missing before each, what is to be told y (m,), nan
    where nobody knows, and the part (m,) of each.

    `gateway` is who holds it in a training, `place` what a table of sensors calls it. `seen` tells whether any row of
    the place may train.
    """

    gateway: str
    place: str
    z: Floats
    missing: Steps
    y: Floats
    part: Steps
    seen: bool = True


class Task(NamedTuple):
    """Streams of one table. A window is the last `window` steps; y is a class, or column 0 `horizon` steps later.

    What trains ends at every `every`-th step, so that windows overlap less and a training takes less time. A day has
    `per_day` steps, where that matters. Methods tell a value as its `change` over the last one, or as it is.
    """

    streams: tuple[Stream, ...]
    window: int
    horizon: int
    every: int
    per_day: int = 0
    change: bool = True

    @property
    def classify(self) -> bool:
        """Whether y is a class."""
        return self.horizon == 0

    @property
    def inner(self) -> tuple[tuple[int, int], ...]:
        """The part that trains and the part that chooses, of each inner fold: of other rooms, runs or days, and of
        values on later ones.
        """
        after = 0 if self.classify else LATER
        return tuple((FOLDS - 1 - fold, fold + after) for fold in range(FOLDS))

    @property
    def channels(self) -> int:
        """C, the values of one step."""
        return int(self.streams[0].z.shape[1])


class Windows(NamedTuple):
    """Windows of a stream by the step (n,) at which each ends."""

    stream: Stream
    at: Steps

    @property
    def y(self) -> Floats:
        """What is to be told (n,)."""
        return np.asarray(self.stream.y[self.at])


def begins(missing: Steps) -> NDArray[np.bool_]:
    """Return before which steps (m,) a series begins."""
    found = (missing == NEW_SERIES) | (missing > MAX_GAP)
    found[:1] = True
    return np.asarray(found)


def since(missing: Steps) -> Steps:
    """Return how many steps (m,) of its series come before each."""
    place = np.arange(len(missing))
    return np.asarray(place - np.maximum.accumulate(np.where(begins(missing), place, 0)))


def later(values: Floats, missing: Steps, horizon: int) -> Floats:
    """Return what values (m,) are `horizon` steps later, nan where that is beyond the series."""
    found = np.full(len(values), np.nan)
    inside = since(missing)[horizon:] >= horizon
    found[: len(values) - horizon][inside] = values[horizon:][inside]
    return found


def own_units(x: Floats, commissioning: NDArray[np.bool_], clip: float) -> Floats:
    """Return rows (m, C) in units of the gateway's commissioning rows, clipped."""
    own, _ = normalise({}, {FEATURES: x[commissioning]}, "own")
    _, z = normalise(own, {FEATURES: x}, "own")
    return np.asarray(np.clip(z, -clip, clip))


def windows(task: Task, stream: Stream, parts: Iterable[int], every: int = 1) -> Windows:
    """Return the windows of a stream that lie in one series, whose y is known and whose last step is in `parts`."""
    whole = since(stream.missing) >= task.window - 1
    ends = np.flatnonzero(whole & np.isfinite(stream.y) & np.isin(stream.part, list(parts)))
    return Windows(stream, ends[::every])


def training(task: Task, parts: Iterable[int]) -> list[Windows]:
    """Return the windows that train, of every stream that has some in `parts`."""
    wanted = list(parts)
    found = (windows(task, stream, wanted, task.every) for stream in task.streams if stream.seen)
    return [each for each in found if len(each.at)]


def inputs(task: Task, each: Windows) -> Floats:
    """Return windows as rows (n, C * window), channel after channel; without windows none."""
    return _rows(each, task.window, 0)


def rows(task: Task, each: Windows) -> Floats:
    """Return windows with the steps up to the horizon behind them (n, C * (window + horizon)): a row that holds its own
    target, as the recurrent network of task `predict` takes it.
    """
    return _rows(each, task.window, task.horizon)


def _rows(each: Windows, before: int, after: int) -> Floats:
    at = each.at[:, None] + np.arange(1 - before, after + 1)  # (n, T)
    return np.asarray(each.stream.z[at].transpose(0, 2, 1).reshape(len(at), -1))


def labelled(task: Task, each: Windows) -> Arrays:
    """Return windows as the data of a gateway."""
    data = {FEATURES: rows(task, each)}
    return {**data, LABELS: each.y.astype(np.int64)} if task.classify else data


def series(task: Task, stream: Stream, parts: Iterable[int]) -> Arrays:
    """Return the steps of a stream in `parts` as a series for a network that runs along it.

    Classes are labels; a value to come, or its change over the last one, is one column more, which the network is to
    tell from the others. Steps without it are left out at the end of a series only, so that nothing is bridged.
    """
    known = np.isin(stream.part, list(parts)) & np.isfinite(stream.y)
    broken = known & ~np.concatenate([[False], known[:-1]])
    missing = np.where(broken, NEW_SERIES, stream.missing)[known]
    if task.classify:
        return {FEATURES: stream.z[known], LABELS: stream.y[known].astype(np.int64), MISSING: missing}
    target = stream.y - stream.z[:, 0] if task.change else stream.y
    return {FEATURES: np.concatenate([stream.z, target[:, None]], axis=1)[known], MISSING: missing}


def places(streams: Iterable[Stream]) -> list[str]:
    """Return the places of streams, each once, in order."""
    return list(dict.fromkeys(stream.place for stream in streams))
