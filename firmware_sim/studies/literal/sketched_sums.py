"""Sketches of the sums that became no setting: what else could be sent in as few bytes, measured on the sums alone.

random projection       k coordinates along random directions, which a seed tells everyone
pooled directions       the range of B Ω, summed in an exchange of its own (Halko, Martinsson and Tropp 2011), then
                        the sums along it
own eigenvectors        every gateway its k largest eigenvalues and vectors of B, and all of A; the cloud takes what
                        is left out as a ridge
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fedgate.models.arrays import Arrays, Floats
from fedgate.models.detectors.base.moments import symmetric, triangle
from fedgate.models.detectors.esn.ridge_readout import CROSS, GRAM

RIDGE = 0.01  # in mean eigenvalues, as in the algorithms


class Sketched(NamedTuple):
    """The readout (c, M) that a sketch leads to, and how many numbers a gateway sends and receives for it."""

    readout: Floats
    sent: int
    received: int


# (sums of each gateway, k, generator) -> what they lead to
Sketch = Callable[[list[Arrays], int, np.random.Generator], Sketched]


def total(parts: list[Arrays]) -> Arrays:
    """Return the sum of sums."""
    return {name: np.asarray(sum(part[name] for part in parts)) for name in parts[0]}


def random_projection(parts: list[Arrays], count: int, rng: np.random.Generator) -> Sketched:
    """Return the readout along random directions of all units but the constant."""
    units = parts[0][CROSS].shape[1] - 1
    return _along(parts, np.linalg.qr(rng.normal(size=(units, count)))[0])


def pooled_directions(parts: list[Arrays], count: int, rng: np.random.Generator) -> Sketched:
    """Return the readout along the range of B Ω."""
    _, gram = _matrices(total(parts))
    units = len(gram) - 1
    found = _along(parts, np.linalg.qr(gram[:-1, :-1] @ rng.normal(size=(units, count)))[0])
    return Sketched(found.readout, found.sent + count * units, found.received + count * units)


def own_eigenvectors(parts: list[Arrays], count: int, rng: np.random.Generator) -> Sketched:
    """Return the readout of the sum of what the largest eigenvectors of each gateway make of its B."""
    del rng
    cross, gram = _matrices(total(parts))
    sketched = np.zeros_like(gram)
    for part in parts:
        values, vectors = np.linalg.eigh(_matrices(part)[1])
        sketched += (vectors[:, -count:] * values[-count:]) @ vectors[:, -count:].T
    mean = float(np.trace(gram)) / len(gram)
    left_out = mean - float(np.trace(sketched)) / len(gram)
    readout = np.linalg.solve(sketched + (RIDGE * mean + left_out) * np.eye(len(gram)), cross.T).T
    return Sketched(np.asarray(readout), count * (len(gram) + 1) + cross.size, cross.size)


SKETCHES: dict[str, Sketch] = {
    "random-projection": random_projection,
    "pooled-directions": pooled_directions,
    "own-eigenvectors": own_eigenvectors,
}


def _matrices(sums: Arrays) -> tuple[Floats, Floats]:
    """Return A (c, M) and B (M, M)."""
    return sums[CROSS], symmetric(sums[GRAM], sums[CROSS].shape[1])


def _along(parts: list[Arrays], directions: Floats) -> Sketched:
    """Return the readout of the sums along directions (N, k) of the units; the rest is kept as it is."""
    cross, gram = _matrices(total(parts))
    units, count = directions.shape
    basis = np.zeros((len(gram), count + len(gram) - units))
    basis[:units, :count], basis[units:, count:] = directions, np.eye(len(gram) - units)
    readout = _solved(cross @ basis, basis.T @ gram @ basis) @ basis.T
    return Sketched(readout, triangle(count + 1) + len(cross) * (count + 1), cross.size)


def _solved(cross: Floats, gram: Floats) -> Floats:
    beta = RIDGE * float(np.trace(gram)) / len(gram)
    return np.asarray(np.linalg.solve(gram + beta * np.eye(len(gram)), cross.T).T)
