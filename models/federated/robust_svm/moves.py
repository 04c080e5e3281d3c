"""How far a sample is best moved inside a box when a unit of way costs γ, in closed form for each norm (ours).

A move of sizes d in the directions that raise the loss brings a·d, with a = |w|, and costs γ |d|; no coordinate can go
farther than its room. Of equally good moves the shortest is taken.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedgate.models.arrays import Array, Floats
from fedgate.models.federated.robust_svm.ball import Norm

Moves = Callable[[float], Floats]


def best_moves(a: Array, room: Array, norm: Norm) -> Moves:
    """Return the function from the price γ >= 0 to the best sizes (N, P), for slopes a >= 0 (P,) and rooms (N, P)."""
    room = np.where(a > 0.0, room, 0.0)
    return {"1": _along_axes, "2": _along_slope, "inf": _together}[norm](a, room)


def _along_axes(a: Array, room: Array) -> Moves:
    """Norm 1: each coordinate pays by itself, all the way or not at all."""

    def moves(price: float) -> Floats:
        return np.where(a > price, room, 0.0)

    return moves


def _together(a: Array, room: Array) -> Moves:
    """Norm inf: all coordinates go the same way t or stop at their room; t ends where those left bring too little."""
    order = np.argsort(room, axis=1)
    stops = np.concatenate([np.zeros((len(room), 1)), np.take_along_axis(room, order, axis=1)], axis=1)  # (N, P + 1)
    slopes = np.cumsum(a[order][:, ::-1], axis=1)[:, ::-1]  # (N, P) of a stretch that ends at the stop of its column

    def moves(price: float) -> Floats:
        reached = (slopes > price).sum(axis=1)
        return np.asarray(np.minimum(room, np.take_along_axis(stops, reached[:, None], axis=1)))

    return moves


def _along_slope(a: Array, room: Array) -> Moves:
    """Norm 2: d_j = min(room_j, σ a_j), where γ σ = |d|: the farther, the more coordinates have used up their room."""
    ends = np.divide(room, a, out=np.zeros_like(room), where=a > 0.0)  # (N, P) the σ at which the room is used up
    order = np.argsort(ends, axis=1)
    ends = np.take_along_axis(ends, order, axis=1)
    used = np.cumsum(np.take_along_axis(room, order, axis=1) ** 2, axis=1)  # (N, P)
    free = np.cumsum((a[order] ** 2)[:, ::-1], axis=1)[:, ::-1] - a[order] ** 2  # (N, P) of those that still go
    pull = free + np.divide(used, ends**2, out=np.zeros_like(used), where=ends > 0.0)  # |d|² / σ² at the end
    whole = np.concatenate([np.full((len(room), 1), a @ a), free], axis=1)  # (N, P + 1)
    spent = np.concatenate([np.zeros((len(room), 1)), used], axis=1)

    def moves(price: float) -> Floats:
        if price == 0.0:
            return np.asarray(room)
        count = (pull > price**2).sum(axis=1)[:, None]
        left = price**2 - np.take_along_axis(whole, count, axis=1)  # (N, 1)
        squared = np.take_along_axis(spent, count, axis=1)
        sigma = np.sqrt(np.divide(squared, left, out=np.zeros_like(squared), where=left > 0.0))
        return np.asarray(np.minimum(room, sigma * a))

    return moves
