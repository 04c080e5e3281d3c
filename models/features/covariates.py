"""Linear regression of features on covariates from sums: what adds up over gateways, and what a gateway has of its own.

Kept apart from the federated step that uses it (`fedgate.models.federated.wrappers.compensation`), so that a test can
hold each solution against least squares on the rows themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.detectors.base.compensation import COLUMNS, DEVIATION, MEAN, OTHERS, SLOPES
from fedgate.models.detectors.base.moments import PRODUCTS, SAMPLES, SUM_OF_ROWS, deviations
from fedgate.models.detectors.base.pca import SMALLEST_SHARE
from fedgate.models.units import ROUNDING

SQUARES = "squares"
COVARIANCE = "covariance"  # (q, q) of the fleet's covariates: the unit in which the prior counts rows
RIDGE = 1e-6  # of each covariate's variance: two that move together share what they explain


class Moments(NamedTuple):
    """Rows by their mean (F,), variance (F,) and covariance of covariates with all columns (q, F)."""

    rows: float
    mean: Floats
    variance: Floats
    covariance: Floats


class Covariates(NamedTuple):
    """What gateways and cloud agree on: the columns of covariates (q,) and of features (F - q,), whether rows are in
    own units, and for how many rows the fleet's regression counts.
    """

    columns: Array
    others: Array
    own_units: bool
    prior: float

    @property
    def noise(self) -> float:
        """What counts as constant, beside rounding: in own units float32 leaves as much."""
        return ROUNDING if self.own_units else 0.0

    def moving(self, found: Moments) -> Array:
        """Return which columns (F,) move."""
        return deviations(found.mean, found.variance, self.noise) > 0.0

    def sums(self, z: Array) -> Arrays:
        """Return what rows z (n, F) add to the fleet's sums."""
        return {
            SAMPLES: np.array(float(len(z))),
            SUM_OF_ROWS: z.sum(axis=0),
            SQUARES: np.square(z).sum(axis=0),
            PRODUCTS: z[:, self.columns].T @ z,
        }

    def moments(self, total: Mapping[str, Array]) -> Moments:
        """Return mean and covariances of the rows behind sums."""
        count = float(total[SAMPLES])
        mean = total[SUM_OF_ROWS] / count
        covariance = total[PRODUCTS] / count - np.outer(mean[self.columns], mean)
        return Moments(count, mean, np.maximum(total[SQUARES] / count - np.square(mean), 0.0), covariance)

    def of_fleet(self, total: Mapping[str, Array]) -> Arrays:
        """Return the fleet's step: least squares on all rows behind the sums."""
        found = self.moments(total)
        moves = self.moving(found)
        among, across = found.covariance[:, self.columns], found.covariance[:, self.others]
        slopes = solved(among, across, moves[self.columns])
        explained = np.einsum("qp,qp->p", slopes, 2.0 * across - among @ slopes)
        return {
            COLUMNS: self.columns,
            OTHERS: self.others,
            MEAN: found.mean[self.columns],
            SLOPES: slopes,
            DEVIATION: self.unit(found, found.variance[self.others] - explained),
            COVARIANCE: among,
        }

    def of_gateway(self, fleet: Mapping[str, Array], z: Array) -> Arrays:
        """Return slopes and deviations of healthy rows z (n, F), drawn towards the fleet's."""
        if len(z) == 0:
            return {SLOPES: fleet[SLOPES], DEVIATION: fleet[DEVIATION]}
        centred = z - z.mean(axis=0)
        c, x = centred[:, self.columns], centred[:, self.others]
        found = Moments(float(len(z)), z.mean(axis=0), z.var(axis=0), c.T @ centred / len(z))
        moves, prior = self.moving(found), self.prior * fleet[COVARIANCE]
        # In own units what never moved here has no unit, so that slopes of others say nothing of it.
        borrowed = (fleet[SLOPES] != 0.0).any(axis=1) & (self.prior > 0.0) & (not self.own_units)
        slopes = solved(c.T @ c + prior, c.T @ x + prior @ fleet[SLOPES], moves[self.columns] | borrowed)
        slopes[:, ~moves[self.others] & self.own_units] = 0.0
        squares = np.square(x - c @ slopes).sum(axis=0) + self.prior * np.square(fleet[DEVIATION])
        return {SLOPES: slopes, DEVIATION: self.unit(found, squares / (len(z) + self.prior))}

    def unit(self, found: Moments, variance: Array) -> Floats:
        """Return the deviation of what is left of each feature, one where features keep their units or never move; a
        feature that its covariates explain wholly leaves rounding, which must not be blown up.
        """
        if not self.own_units:
            return np.ones(len(self.others))
        left = np.sqrt(np.maximum(variance, SMALLEST_SHARE * found.variance[self.others]))
        return np.where(self.moving(found)[self.others], left, 1.0)


def solved(among: Array, across: Array, known: Array) -> Floats:
    """Return the slopes (q, p) with `among` @ slopes = `across`, zero for covariates (q,) that are not `known`."""
    slopes, unit = np.zeros(across.shape), np.sqrt(np.diag(among)[known])
    correlation = among[np.ix_(known, known)] / np.outer(unit, unit) + RIDGE * np.eye(len(unit))
    slopes[known] = np.linalg.solve(correlation, across[known] / unit[:, None]) / unit[:, None]
    return slopes
