"""How far float32 may move the score of an echo state network, from the number of operations behind it."""

from __future__ import annotations

import numpy as np

from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.detectors.base.detector import standardised
from fedgate.models.detectors.base.pca import RESIDUAL_FLOOR
from fedgate.models.detectors.esn import esn


def rounding(params: Arrays, x: Array) -> Floats:
    """Return how far float32 may move each score (n,).

    A readout is a sum of m terms, which rounding moves by about sqrt(m) units in the last place of their sizes together
    (Higham and Mary 2019): the less of the terms is left in a residual, the less exactly its score is known.
    """
    way, share = esn.passed(params, standardised(params, x)), np.sqrt(params["readout"].shape[1] + 2) * 2.0**-24
    said, sizes = (kind(way.regressors) @ kind(params["readout"]).T for kind in (np.asarray, np.abs))
    if "targets" not in params:
        return np.asarray(2.0 * share * sizes.reshape(len(x), -1).max(axis=1))
    wanted, border = way.inputs[:, params["targets"]], float(params["border"])
    unit = np.sqrt(params["variance"] * border)
    left, moved = np.abs(wanted - said) / unit, share * (np.abs(wanted) + sizes) / unit
    mean, most = (np.square(part).reshape(len(x), -1).mean(axis=1) for part in (left, left + moved))
    return np.asarray(np.log(most + RESIDUAL_FLOOR / border) - np.log(mean + RESIDUAL_FLOOR / border))
