"""The numbers of a training that say how far it has come."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

import numpy as np

from fedgate.cloud_aggregator.events import CHANGE, SaveTraining
from fedgate.cloud_aggregator.rounds.rounds import list_server_arrays
from fedgate.config.settings.settings import AggregatorSettings
from fedgate.models.arrays import Array, Arrays, generator
from fedgate.models.features.spec import feature_names
from fedgate.models.federated.protocol.algorithm import Server

FIGURES_MAX = 32  # that are kept of a round


def list_figures(stored: SaveTraining, settings: AggregatorSettings) -> dict[str, float]:
    """Return every single number that the algorithm of a training reports or keeps, by name; but for those that the
    settings already say.
    """
    from fedgate.models.federated import build

    choice = settings.algorithm
    server = build(choice.name, len(feature_names(settings.features)), choice.settings)
    return _select_numbers(list_server_arrays(stored), server.start(generator(choice.seed, 0, "cloud")).global_state)


def _select_numbers(arrays: Arrays, constant: Arrays) -> dict[str, float]:
    numbers = {name: array for name, array in arrays.items() if array.shape == ()}
    return {name: float(array) for name, array in numbers.items() if name not in constant or array != constant[name]}


def describe_advance(before: Server, after: Server, constant: Arrays) -> Mapping[str, float]:
    """Return the figures of a round that is closed: how much it changed, and those of `list_figures` that are finite;
    `constant` are the parameters with which the training began.
    """
    change = measure_change(before.global_state, after.global_state)
    numbers = _select_numbers({**after.global_state, **after.server_state}, constant)
    found = {name: value for name, value in sorted(numbers.items()) if np.isfinite(value)}
    own = {} if change is None else {CHANGE: change}
    return {**dict(islice(found.items(), FIGURES_MAX - 1)), **own}


def measure_change(before: Arrays, after: Arrays) -> float | None:
    """Return how much shared parameters changed, relative to what they were.

    Of each array of floating-point numbers that has the same shape before and after, |after - before| / |before|; of
    these the root of their mean square, each counted as often as its array has numbers. So no array's unit matters.
    None where there is no such array, or all of them were 0.
    """
    squares, count = 0.0, 0
    for name, array in after.items():
        known = before.get(name)
        if known is None or known.shape != array.shape or "f" not in (known.dtype.kind, array.dtype.kind):
            continue
        relative = _compare(known, array)
        if relative is not None:
            squares, count = squares + relative * relative * array.size, count + array.size
    return float(np.sqrt(squares / count)) if count and np.isfinite(squares) else None


def _compare(before: Array, after: Array) -> float | None:
    """Return |after - before| / |before|, both taken by the largest number before, so that no square overflows."""
    largest = float(np.max(np.abs(before), initial=0.0))
    if largest == 0.0 or not np.isfinite(largest):
        return None
    was = before / largest
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.linalg.norm(after / largest - was) / np.linalg.norm(was))
