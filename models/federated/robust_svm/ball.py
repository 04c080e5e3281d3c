"""What a robust classifier is hedged against: all distributions near the data, near in the sense of a transport cost.

A ball holds every distribution to which the samples can be moved at a mean cost of at most the radius ε, where moving
(x, y) to (x', y') costs |x - x'| + κ 1[y ≠ y'] (FDR-SVM paper, Eqs. 2 and 3). Weights w are a vector (P,); rows z_i =
y_i x_i, (N, P), hold all a hinge loss max(0, 1 - z_i·w) has to know.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import BeforeValidator, Field

from fedgate.models.arrays import KAPPA, RADIUS, Array, Arrays, Floats, number_of
from fedgate.models.federated.protocol.algorithm import Count, Positive
from fedgate.models.options import Options

Norm = Literal["1", "2", "inf"]
# As settings: a file may say 1 for "1", and has no word for nothing but "none".
NormSetting = Annotated[Norm, BeforeValidator(lambda value: str(value) if value in (1, 2) else value)]
LabelCost = Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["none"] | None
ORDERS: dict[str, float] = {"1": 1.0, "2": 2.0, "inf": np.inf}
DUAL_ORDERS: dict[str, float] = {"1": np.inf, "2": 2.0, "inf": 1.0}


class Confidence(Options):
    """A radius that shrinks with the number of rows N (Proposition 1, after Theorem 18 of Kuhn et al. 2019):

        ε = q^(1 / max(m, 2)) where q <= 1, else q^(1 / a),        q = log(c1 / β) / (c2 N)

    With it the ball of one gateway holds the true distribution of its data with a probability of at least 1 - β, and
    the mixture that of the fleet with at least the product over gateways; so for 1 - β of K gateways together each
    takes (1 - β)^(1 / K). The theorem only says that there are such c1 and c2, which hang on a, on E exp |x|^a, on m
    and on the transport cost; so they are settings, and 1 is no more than a beginning. It leaves m = 2 out.
    """

    confidence: Annotated[float, Field(ge=1e-3, lt=1)]  # 1 - β
    c1: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    c2: Positive = 1.0
    tail: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 2.0  # a: how light the tails are, 2 for normal ones
    dimension: Count | None = None  # m: not given, the number of features; 1 or 2 lets it shrink as 1 / √N

    def radius(self, rows: int, feature_count: int) -> float:
        """Return ε for so many rows and features."""
        share = math.log(self.c1 / (1.0 - self.confidence)) / (self.c2 * rows)
        dimension = self.dimension or feature_count
        return float(share ** (1.0 / max(dimension, 2) if share <= 1.0 else 1.0 / self.tail))


Radius = Positive | Confidence


class SolverError(ArithmeticError):
    """A problem that was not solved to its tolerance; the message names the solver and what it reached."""


class Ball(NamedTuple):
    """Radius ε > 0, cost κ > 0 of a changed label (`None`: labels are certain) and the norm that features move in."""

    radius: float
    kappa: float | None
    norm: Norm

    def checked(self) -> Ball:
        """Return itself; raise `ValueError` where nothing would be hedged against."""
        if not 0.0 < self.radius < np.inf:
            hint = "without a ball it is the plain SVM, which detector 'linear-svm' fits"
            raise ValueError(f"radius: expected a number above 0, got {self.radius:g}; {hint}")
        if self.kappa is not None and not 0.0 < self.kappa < np.inf:
            raise ValueError(f"kappa: expected a number above 0, or None for certain labels, got {self.kappa:g}")
        return self


class Balls(NamedTuple):
    """What settings say of the balls of all gateways; a cost "none" says that labels are certain."""

    radius: float | Confidence
    kappa: float | str | None
    norm: Norm

    def around(self, data: Arrays, rows: int, feature_count: int) -> Ball:
        """Return the ball around so many rows of a gateway, with its own radius and label cost where its data holds
        them.
        """
        common = self.radius.radius(rows, feature_count) if isinstance(self.radius, Confidence) else self.radius
        cost = number_of(data, KAPPA, np.inf if self.kappa is None or isinstance(self.kappa, str) else self.kappa)
        kappa = None if cost == np.inf else cost
        return Ball(number_of(data, RADIUS, common), kappa, self.norm).checked()


def length(vector: Array, order: float) -> float:
    """Return the norm of a vector (P,)."""
    return float(np.linalg.norm(vector, order)) if len(vector) else 0.0


def steepest(w: Array, norm: Norm) -> Floats:
    """Return a subgradient (P,) of the dual norm |w|_*: the unit move that lowers w·x most, turned round; 0 at 0."""
    if not w.any():
        return np.zeros(len(w))
    if norm == "inf":
        return np.sign(w)
    if norm == "2":
        return np.asarray(w / np.linalg.norm(w))
    largest = int(np.abs(w).argmax())
    return np.where(np.arange(len(w)) == largest, np.sign(w), 0.0)
