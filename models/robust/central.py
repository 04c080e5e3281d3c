"""The robust SVM on data in one place (Shafieezadeh-Abadeh et al. 2019, Corollary 3.12): the baseline "Central".

It is the gateway's problem with one gateway and nothing to agree with.
"""

from __future__ import annotations

import numpy as np

from models.arrays import LABELS, Array, Arrays
from models.robust.ball import Ball
from models.robust.gateway import exported, signs_of, with_bias
from models.robust.interior_point import solve
from models.robust.problem import Proximal


def central(x: Array, y: Array, ball: Ball, *, classes: int = 1) -> Arrays:
    """Fit on features (n, F) and labels (n,) of 0 (normal) to K; return parameters of detector `linear-svm`.

    Raises:
        ValueError: labels out of range, or a ball that hedges against nothing.
        SolverError: the optimum was not reached.
    """
    features = with_bias(x)
    nothing = Proximal(np.zeros(features.shape[1]))
    signs = signs_of({LABELS: y}, classes)
    return exported(np.array([solve(features * sign[:, None], ball, nothing).w for sign in signs]))
