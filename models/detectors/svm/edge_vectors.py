"""Which support vectors lie on the edge of a gateway's data (Anaissi and Suleiman, Algorithm 3 and Eq. 10 to 13).

Of an edge vector all or nearly all neighbours lie on one side of the tangent plane: with v_j the unit vectors to its k
nearest neighbours and n = Σ v_j the normal, l = share of neighbours with v_j·n >= 0 is near 1. The listing calls
l <= 1 - γ an edge, the text at least 1 - γ on one side; the normal points to where the neighbours are, so an inner
point has l near 1/2 and an edge l near 1. We read: an edge iff l >= 1 - γ.

In many dimensions nearly every point passes, since the neighbours of any point span a cone around their own mean. So
the test is done in the first principal directions of the rows, few by default.
"""

from __future__ import annotations

import numpy as np

from fedgate.models.arrays import Array, Booleans, Floats
from fedgate.models.detectors.svm.kernel import squared_distances

ROUNDING = 1e-9  # of a unit vector: a neighbour in the tangent plane counts as on the positive side


def edges(x: Array, candidates: Array, *, neighbours: int, tolerance: float, dimensions: int) -> Booleans:
    """Return for each of the `candidates`, indices (S,) into rows x (n, F), whether it lies on the edge of the rows.

    :param neighbours: k; where fewer rows differ from a candidate, all of them.
    :param tolerance: γ, the share of neighbours that may lie on the other side.
    :param dimensions: principal directions that are looked at.

    A candidate that no row differs from has no sides; it counts as an edge.
    """
    z = principal_coordinates(x, dimensions)
    squares = squared_distances(z[candidates], z)  # (S, n)
    found = [_is_edge(z - z[row], squares[i], neighbours, tolerance) for i, row in enumerate(candidates)]
    return np.array(found, dtype=np.bool_)


def _is_edge(away: Floats, squares: Floats, neighbours: int, tolerance: float) -> bool:
    """Tell whether the point from which the rows are `away` (n, d) is an edge of them."""
    others = np.flatnonzero((away != 0.0).any(axis=1))
    nearest = others[np.argsort(squares[others], kind="stable")[:neighbours]]
    if len(nearest) == 0:
        return True
    units = away[nearest] / np.linalg.norm(away[nearest], axis=1, keepdims=True)  # (k, d), Eq. 11
    sides = units @ units.sum(axis=0)  # (k,), Eq. 10 and 12
    return bool((sides >= -ROUNDING).mean() >= 1.0 - tolerance - ROUNDING)  # Eq. 13


def principal_coordinates(x: Array, dimensions: int) -> Floats:
    """Return rows (n, F) along their strongest `dimensions` directions, (n, d); as they are where F is no more."""
    centred = np.asarray(x, dtype=np.float64) - np.mean(x, axis=0)
    if centred.shape[1] <= dimensions:
        return np.asarray(centred)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)  # (min(n, F), F)
    return np.asarray(centred @ directions[:dimensions].T)
