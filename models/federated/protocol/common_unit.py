"""The unit of features that are not normalised: a power of two near their size, over all gateways (ours).

Settings that are lengths, such as a radius or the step along a loss, mean something in one unit only. With
normalisation `none` that is this one. One exchange comes first, once in a training: each gateway counts the mean square
of each of its rows as it would distances for the width of a kernel, and the unit is the power of two nearest to the
root of their median. So features times a power of two give the same training to the last bit, and features of about one
stay what they are.
"""

from __future__ import annotations

import numpy as np

from fedgate.models.arrays import FEATURES, Array, Arrays, Floats
from fedgate.models.federated.protocol.algorithm import Algorithm, Phase, Trained
from fedgate.models.federated.protocol.composition import check_composition, having
from fedgate.models.federated.protocol.feature_step import begin_with
from fedgate.models.federated.protocol.kernel_width import counting
from fedgate.models.federated.protocol.namespace import hidden
from fedgate.models.units import COMMON


def in_common_unit(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm on features in a common unit, which an exchange before its first puts into
    `global_state`."""
    check_composition(algorithm, "unit")
    gather = counting(
        lambda local_state, data: (local_state, _mean_squares(data)), lambda quantile: {COMMON: _nearest(quantile(0.5))}
    )
    return begin_with(gather, having(algorithm, "unit"), [_in_unit(phase) for phase in algorithm.phases])


def _in_unit(phase: Phase) -> Phase:
    inner = hidden(phase, COMMON)

    def learn(global_state: Arrays, local_state: Arrays, data: Arrays, rng: np.random.Generator) -> Trained:
        seen = {**data, FEATURES: np.asarray(data[FEATURES], dtype=np.float64) / global_state[COMMON]}
        return inner.learn(global_state, local_state, seen, rng)

    return inner._replace(learn=learn)


def _mean_squares(data: Arrays) -> Floats:
    """Return the mean squares (m,) of rows that have one above zero."""
    squares = np.square(np.asarray(data[FEATURES], dtype=np.float64)).mean(axis=1)
    return np.asarray(squares[np.isfinite(squares) & (squares > 0.0)])


def _nearest(square: float) -> Array:
    """Return the power of two nearest to the root of a number."""
    return np.array(2.0 ** (np.frexp(square)[1] // 2))
