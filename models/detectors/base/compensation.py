"""Features as they would be in the usual weather: what covariates explain is taken off them before they are judged.

The frequencies of a bridge follow its temperature by more than by most damage, and so do the features of a room (Sohn
2007, Phil. Trans. R. Soc. A 365:539). With c the covariate columns of a row and x all others,

    e = (x - (c - mean) B) / deviation          (n, F - q), without the covariates themselves

B (q, F - q) are the slopes of a linear regression on healthy rows (Peeters and De Roeck 2001, Earthquake Eng. Struct.
Dyn. 30:149; Cross et al. 2013, Mech. Syst. Signal Process. 35:16), `deviation` is what is left of each feature there.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedgate.models.arrays import Array, Arrays, Floats, under
from fedgate.models.detectors.base.graph_builder import Node, node

COMPENSATION = "compensation."  # before the names of a compensation step
COLUMNS, OTHERS = "columns", "others"  # (q,) and (F - q,) int64: which columns are covariates, which are features
MEAN, SLOPES, DEVIATION = "mean", "slopes", "deviation"
USED = (COLUMNS, OTHERS, MEAN, SLOPES, DEVIATION)


def compensated(step: Mapping[str, Array], z: Array) -> Floats:
    """Return features (n, F) as (n, F - q), without what their covariates explain."""
    covariates, features = z[:, step[COLUMNS]], z[:, step[OTHERS]]
    return np.asarray((features - (covariates - step[MEAN]) @ step[SLOPES]) / step[DEVIATION], dtype=np.float64)


def graph_tensors(params: Mapping[str, Array]) -> Arrays:
    """Return the constants of `compensation_nodes` by their full names, none where the parameters hold no step."""
    return {COMPENSATION + name: array for name, array in under(COMPENSATION, params).items() if name in USED}


def compensation_nodes(source: str, result: str) -> list[Node]:
    """Nodes that map the tensor `source` (n, F) to `result` (n, F - q), as `compensated` does."""
    return [
        node("Gather", f"{source} {COMPENSATION}{COLUMNS}", f"{COMPENSATION}covariates", axis=1),
        node("Gather", f"{source} {COMPENSATION}{OTHERS}", f"{COMPENSATION}features", axis=1),
        node("Sub", f"covariates {MEAN}", "offset", within=COMPENSATION),
        node("Gemm", f"offset {SLOPES}", "explained", within=COMPENSATION),
        node("Sub", "features explained", "rest", within=COMPENSATION),
        node("Div", f"{COMPENSATION}rest {COMPENSATION}{DEVIATION}", result),
    ]
