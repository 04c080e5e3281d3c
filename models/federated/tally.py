"""How updates are put together: two ways to merge, each with `{}` as its zero.

The kind decides what may be composed: whatever is additive can be summed under a mask by secure aggregation, and a
bounded tally costs the cloud the same memory for ten gateways as for ten thousand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from models.arrays import Arrays


class Tally(NamedTuple):
    """A commutative, associative merge with `{}` as identity.

    `bears` says what may be done to an update on its way: `nothing`, where a system of equations is solved from the sum
    or its numbers belong together; `rounding`, where every update says everything anew; or `error` of any kind, where
    the model takes a step along the sum, so that what is left out of one update can be made good by the next.
    """

    name: str
    merge: Callable[[Arrays, Arrays], Arrays]
    additive: bool
    bounded: bool
    bears: Literal["nothing", "rounding", "error"] = "nothing"


def _add(total: Arrays, update: Arrays) -> Arrays:
    if not total or not update:
        return dict(total or update)
    return {name: np.asarray(total[name] + update[name]) for name in total}


def _stack(total: Arrays, update: Arrays) -> Arrays:
    """Join rows and keep them in the order of their bytes, so that the order of arrival cannot be seen in the
    result.
    """
    if not total or not update:
        return _in_order(total or update)
    return _in_order({name: np.concatenate([total[name], update[name]]) for name in total})


def _in_order(rows: Arrays) -> Arrays:
    if not rows:
        return {}
    count = len(next(iter(rows.values())))
    if count == 0:
        return dict(rows)
    # Bytes, not values: they order all that could differ, also 0.0 from -0.0, and sort many times faster than columns.
    blocks = [np.ascontiguousarray(rows[name]).view(np.uint8).reshape(count, -1) for name in sorted(rows)]
    joined = np.concatenate(blocks, axis=1)  # (n, bytes of a row)
    order = np.argsort(joined.view(np.dtype((np.void, joined.shape[1]))).ravel())
    return {name: array[order] for name, array in rows.items()}


SUM = Tally("sum", _add, additive=True, bounded=True)
CONTRIBUTIONS = SUM._replace(name="sum of contributions", bears="rounding")
CHANGES = SUM._replace(name="sum of changes", bears="error")
# Beside the changes means of the gateway's rows, such as squared residuals: one bound on all of it would be theirs.
MEASURED_CHANGES = CHANGES._replace(name="sum of changes and of means beside them")
# Of how the model scores, at the end of a round: it makes no model.
SURVEY_SUM = SUM._replace(name="sum of a survey")
STACK = Tally("stack", _stack, additive=False, bounded=False)
ROBUST_STACK = STACK._replace(name="stack of changes")  # of which a robust mean is taken
