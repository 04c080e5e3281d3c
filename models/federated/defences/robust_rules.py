"""Means that a minority of liars cannot move at will, of rows (n, D): what each of n gateways asks for.

    rule           of n rows                                     f liars of n     source
    median         the median of each coordinate                 n >= 2 f + 1     Yin et al. 2018, Definition 1
    trimmed mean   each coordinate without its f least and most  n >= 2 f + 1     Yin et al. 2018, Definition 2
    Krum           the row nearest to its n - f - 2 neighbours   n >= 2 f + 3     Blanchard et al. 2017, Section 4
    Multi-Krum     the mean of the n - f - 2 best such rows      n >= 2 f + 3     the same, which leaves the number open
    clipped mean   the mean of rows no longer than the median    n >= 2 f + 1     Sun et al. 2019; the bound is ours
                   length of them

Yin et al., "Byzantine-Robust Distributed Learning", arXiv 1803.01498; Blanchard et al., "Machine Learning with
Adversaries", NIPS 2017; Sun et al., "Can You Really Backdoor Federated Learning?", arXiv 1911.07963, where the bound is
a constant. A plain mean stands no liar at all. What the others promise differs, and none that the result is right:

- Median and trimmed mean: every coordinate stays within what honest rows span in it. Where they differ, that is wide.
- Clipped mean: each row pulls by the bound / n at most, and the bound is no longer than the longest honest row.
- Krum and Multi-Krum: no row is chosen that lies farther from every honest one than sqrt((n - f - 2) / (n - 2 f - 1))
  times the greatest distance between two honest ones. Liars nearer than that may be, and who all ask for the same have
  each other for neighbours: they are chosen, though one coordinate, or the direction, be far from all honest ones.
  Blanchard et al. (Proposition 1) prove of Krum, not of Multi-Krum, that its mean over draws of honest rows, alike in
  distribution, is off the true gradient by an angle below 90 degrees, where sqrt(2 (n - f + (f (n - f - 2) + f^2
  (n - f - 1)) / (n - 2 f - 2))) times the spread of honest rows (root mean square distance from the gradient) is less
  than its length: 9.1 spreads for 3 liars of 10. A training that settles, or gateways that differ, are not there.
"""

from __future__ import annotations

import numpy as np

from fedgate.models.arrays import Array, Floats


class TooFewRowsError(ValueError):
    """Fewer rows than a rule needs to stand so many liars."""


def coordinate_median(rows: Array) -> Floats:
    """Return the median (D,) of each coordinate of rows (n, D)."""
    return np.asarray(np.median(rows, axis=0), dtype=np.float64)


def trimmed_mean(rows: Array, liars: int) -> Floats:
    """Return the mean (D,) of each coordinate of rows (n, D) without its `liars` smallest and largest values.

    Raises `TooFewRowsError` where none would be left.
    """
    count = len(rows)
    _check_count("trimmed mean", count, liars, 2 * liars + 1)
    return np.asarray(np.sort(rows, axis=0)[liars : count - liars].mean(axis=0), dtype=np.float64)


def krum_scores(rows: Array, liars: int) -> Floats:
    """Return of each of the rows (n, D) the sum of the squared distances to its n - f - 2 nearest others, (n,).

    Raises `TooFewRowsError` for fewer than 2 f + 3 rows.
    """
    count = len(rows)
    _check_count("Krum", count, liars, 2 * liars + 3)
    centred = rows - coordinate_median(rows)  # or what all have in common costs the digits in which they differ
    products = centred @ centred.T
    squares = np.diag(products)
    distances = np.maximum(squares[:, None] + squares[None, :] - 2.0 * products, 0.0)
    np.fill_diagonal(distances, np.inf)  # nobody is a neighbour of himself
    return np.asarray(np.sort(distances, axis=1)[:, : count - liars - 2].sum(axis=1), dtype=np.float64)


def krum_chosen(rows: Array, liars: int, *, many: bool) -> Array:
    """Return which rows Krum (one) or Multi-Krum (`many`: n - f - 2) takes of rows (n, P): places (m,), best first."""
    order = np.argsort(krum_scores(rows, liars), kind="stable")
    return np.asarray(order[: len(rows) - liars - 2 if many else 1])


def clipped_mean(rows: Array) -> Floats:
    """Return the mean (D,) of rows (n, D), each scaled down to the median of their lengths where it is longer."""
    lengths = np.linalg.norm(rows, axis=1)
    bound = float(np.median(lengths))
    factors = np.where(lengths > bound, bound / np.where(lengths > 0.0, lengths, 1.0), 1.0)
    return np.asarray((factors[:, None] * rows).mean(axis=0), dtype=np.float64)


def _check_count(what: str, count: int, liars: int, fewest: int) -> None:
    if count < fewest:
        raise TooFewRowsError(
            f"{what}: expected {fewest} updates or more against {liars} liars, got {count}; ask more gateways "
            "(quorum), or lower 'liars'"
        )
