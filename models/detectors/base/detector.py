"""What a detector is: pure functions from parameters and features to scores, and the same scores as an ONNX graph
(ours).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np

from fedgate.models.arrays import Array, Arrays, Floats, under
from fedgate.models.detectors.base import compensation, pca
from fedgate.models.units import COMMON, in_own_units

# Tensors that stay on a gateway. The graph takes them as inputs with a neutral default, so the cloud ships one file to
# all and a gateway feeds its own values.
PERSONAL = ("center", "scale")


class Detector(NamedTuple):
    """A way to score windows: higher means more anomalous, zero is the model's own border.

    `score(params, x)` maps (n, F) features to (n,) scores. `graph(params, personal)` returns the same function as ONNX
    bytes, with the `personal` tensors as overridable inputs. `fit(x, ...)` trains on one data set, without
    federation.
    """

    score: Callable[[Arrays, Array], Floats]
    graph: Callable[[Arrays, Collection[str]], bytes]
    fit: Callable[..., Arrays]


def standardised(params: Arrays, x: Array) -> Floats:
    """Return what a detector scores, of features (n, F): in the gateway's own units (`fedgate.models.units`) or in a
    common one where the parameters hold such, compensated, (n, F - q), where they hold a compensation step, and then
    whitened, (n, k) or (n, k + 1), where they hold a whitening step.
    """
    z = np.asarray(x, dtype=np.float64)
    if "center" in params:
        z = in_own_units(params, z)
    elif COMMON in params:
        z = z / params[COMMON]
    weather = under(compensation.COMPENSATION, params)
    if weather:
        z = compensation.compensated(weather, z)
    step = under(pca.WHITENING, params)
    return pca.whitened(step, z) if step else z
