"""What a robust classifier is hedged against: all distributions near the data, near in the sense of a transport cost.

A ball holds every distribution to which the samples can be moved at a mean cost of at most the radius ε, where moving
(x, y) to (x', y') costs |x - x'| + κ 1[y ≠ y'] (FDR-SVM paper, Eqs. 2 and 3). Weights w are a vector (P,); rows z_i =
y_i x_i, (N, P), hold all a hinge loss max(0, 1 - z_i·w) has to know.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import BeforeValidator, Field

from fedgate.models.arrays import Array, Floats

Norm = Literal["1", "2", "inf"]
# As settings: a file may say 1 for "1", and has no word for nothing but "none".
NormSetting = Annotated[Norm, BeforeValidator(lambda value: str(value) if value in (1, 2) else value)]
LabelCost = Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["none"] | None
ORDERS: dict[str, float] = {"1": 1.0, "2": 2.0, "inf": np.inf}
DUAL_ORDERS: dict[str, float] = {"1": np.inf, "2": 2.0, "inf": 1.0}


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


def ball_of_settings(radius: float, kappa: float | str | None, norm: Norm) -> Ball:
    """Return the ball that settings describe, where a cost "none" says that labels are certain."""
    return Ball(radius, None if kappa is None or isinstance(kappa, str) else kappa, norm)


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
