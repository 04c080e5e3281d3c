"""How updates are put together: two ways to merge, each with `{}` as its zero (ours).

The kind decides what may be composed: whatever is additive can be summed under a mask by secure aggregation, and costs
the cloud the same memory for ten gateways as for ten thousand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedgate.models.arrays import Arrays

RUN = "#"  # in the names of a stack's total, before the number of a run


def _any_number(_updates: int) -> None:
    """Let any number of updates make a round."""


class Reducer(NamedTuple):
    """A commutative, associative merge with `{}` as identity, up to what `closed` makes of a total when its exchange
    ends: the same arrays whatever came first. `check` raises `ValueError` for so few updates that a round of them comes
    to nothing.
    """

    name: str
    merge: Callable[[Arrays, Arrays], Arrays]
    additive: bool
    closed: Callable[[Arrays], Arrays] = dict
    check: Callable[[int], None] = _any_number


def _add(total: Arrays, update: Arrays) -> Arrays:
    if not total or not update:
        return dict(total or update)
    return {name: np.asarray(total[name] + update[name]) for name in total}


def _stack(total: Arrays, update: Arrays) -> Arrays:
    """Keep rows side by side in runs, each more than twice as long as the next, so that of n rows none is copied more
    than log n times.
    """
    runs = sorted([*_runs(total), *_runs(update)], key=_length, reverse=True)
    merged: list[Arrays] = []
    for run in runs:
        merged.append(run)
        while len(merged) > 1 and _length(merged[-2]) <= 2 * _length(merged[-1]):
            merged[-2:] = [_joined(merged[-2:])]
    return {f"{name}{RUN}{index}": array for index, run in enumerate(merged) for name, array in run.items()}


def _runs(rows: Arrays) -> list[Arrays]:
    """Return the runs of a total; an update is one."""
    runs: dict[str, Arrays] = {}
    for name, array in rows.items():
        known_as, _, index = name.partition(RUN)
        runs.setdefault(index, {})[known_as] = array
    return list(runs.values())


def _length(run: Arrays) -> int:
    return len(next(iter(run.values())))


def _joined(runs: list[Arrays]) -> Arrays:
    return {name: np.concatenate([run[name] for run in runs]) for name in runs[0]}


def _in_order(total: Arrays) -> Arrays:
    """Return the rows of all runs in the order of their bytes, so that the order of arrival cannot be seen."""
    if not total:
        return {}
    rows = _joined(_runs(total))
    count = _length(rows)
    if count == 0:
        return rows
    # Bytes, not values: they order all that could differ, also 0.0 from -0.0, and sort many times faster than columns.
    blocks = [np.ascontiguousarray(rows[name]).view(np.uint8).reshape(count, -1) for name in sorted(rows)]
    joined = np.concatenate(blocks, axis=1)  # (n, bytes of a row)
    order = np.argsort(joined.view(np.dtype((np.void, joined.shape[1]))).ravel())
    return {name: array[order] for name, array in rows.items()}


SUM = Reducer("sum", _add, additive=True)
STACK = Reducer("stack", _stack, additive=False, closed=_in_order)
