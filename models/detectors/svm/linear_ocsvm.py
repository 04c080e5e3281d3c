"""The one-class SVM with a linear kernel: a plane that leaves the origin on the other side of the data.

    score(x) = ρ - w·z,   w = Σ β_i z_i, Σβ = 1, 0 <= β_i <= 1 / (ν n)                     (Schölkopf et al. 2001)

zero on the border and rising towards the origin and beyond. It says something only of features that keep to one side of
the origin, as spectra and root mean squares do: standardised ones surround it, and then no such plane exists.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.detectors.base import dual_ascent
from fedgate.models.detectors.base.checks import DataError, Solver
from fedgate.models.detectors.base.detector import standardised
from fedgate.models.detectors.base.graph_builder import model_of, node
from fedgate.models.detectors.svm.kernel import multipliers_of, one_class

NORMAL = "plane.normal"
OFFSET = "plane.offset"
# Of the longest row: a shorter normal is what the solver's tolerance leaves of none.
SHORTEST_NORMAL = 1e-3


def score(params: Arrays, x: Array) -> Floats:
    """Return (n,) scores of features (n, F); zero on the border, positive on the side of the origin."""
    return np.asarray(params[OFFSET] - standardised(params, x) @ params[NORMAL])


def graph(params: Arrays, personal: Collection[str]) -> bytes:
    """Return `score` as ONNX."""
    nodes = [
        node("MatMul", f"z {NORMAL}", "products"),
        node("Sub", f"{OFFSET} products", "score"),
    ]
    return model_of("plane", params, personal, nodes, {}, len(params[NORMAL]))


def fit(z: Floats, nu: float, solver: Solver, step: float | None = None) -> Arrays:
    """Return the plane of rows (n, F); raises `DataError` where the origin lies among them."""
    longest = float(np.sqrt((z * z).sum(axis=1).max()))
    unit = z / (longest or 1.0)  # so that tolerances mean the same in all units
    reported: Arrays = {}
    if solver == "sgd":
        ascent = dual_ascent.ascend(unit @ unit.T, nu, step=step)
        total = float(ascent.multipliers.sum())
        beta, border = ascent.multipliers / total, 1.0 / total
        reported = {dual_ascent.EFFECTIVE_NU: np.array(ascent.effective_nu)}
    else:
        beta, border = _solved(unit, nu)
    normal = beta @ unit  # (F,)
    if float(np.linalg.norm(normal)) < SHORTEST_NORMAL:
        raise DataError(
            "no plane parts the rows from the origin, which lies among them as it does with every standardised "
            "feature: use kernel 'rbf', the svdd detector, or features that keep their level"
        )
    return {NORMAL: normal * longest, OFFSET: np.array(border * longest**2), **reported}


def _solved(unit: Floats, nu: float) -> tuple[Floats, float]:
    """Return β (n,) and ρ by libsvm."""
    if nu == 1.0:  # as for the RBF kernel: no row is inside and the innermost is the border
        beta = np.full(len(unit), 1.0 / len(unit))
        return beta, float((unit @ (beta @ unit)).max())
    solved = one_class(unit, nu, kernel="linear")
    beta = multipliers_of(solved, len(unit))
    total = float(beta.sum())
    return beta / total, float(solved.offset_[0]) / total
