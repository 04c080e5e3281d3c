"""From a gateway's rows to what the readout of an echo state network is taught: regressors and targets (ours).

All algorithms on such a readout begin alike: normalise, send the series through the reservoir, drop what must not
teach, and go on with regressors S and targets Y. Labels matter for task `classify` only; what is to be predicted or
reconstructed is in the rows themselves, so that the other tasks do not look at labels at all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedgate.models.arrays import FEATURES, LABELS, MISSING, NEW_SERIES, Array, Arrays, Floats, Integers, Singles
from fedgate.models.detectors.base.checks import finite_rows, whole_classes
from fedgate.models.detectors.esn import esn
from fedgate.models.detectors.esn.network import Network
from fedgate.models.detectors.esn.reservoir import contraction, identity
from fedgate.models.federated.protocol.algorithm import normalise
from fedgate.models.federated.protocol.composition import WINDOWS
from fedgate.models.federated.protocol.schema import Field

# In every update: sums over another reservoir have no meaning here.
OF_RESERVOIR = Field((64,), "identity", of=identity)
STEP = "step"  # in `global_state`: how many models the training has made


def without_gaps(x: Array) -> tuple[Floats, Integers]:
    """Return the finite rows of a recording (n, F), and how many rows are missing before each, as `MISSING` says it."""
    rows = np.asarray(x, dtype=np.float64)
    whole = np.flatnonzero(np.isfinite(rows).all(axis=1))
    missing = np.diff(whole, prepend=-1) - 1
    missing[:1] = NEW_SERIES
    return rows[whole], missing


def traits_of(network: Network) -> frozenset[str]:
    """Return what is to be known of rows of such a network."""
    return frozenset({WINDOWS} if network.steps > 1 else ())


class Lesson(NamedTuple):
    """The gateway's state and what its rows teach: regressors (r, M), targets (r, c), and the rows (r,) of the data
    that they come from. Of task `classify` the targets are one-hot, and `classes` (r,) the same as numbers, so that
    `weights[classes]` are the weights of the rows.
    """

    local_state: Arrays
    regressors: Singles
    targets: Floats
    rows: Integers
    classes: Integers


def lesson(network: Network, global_state: Arrays, local_state: Arrays, data: Arrays, normalisation: str) -> Lesson:
    """Return what a gateway's data teaches; without a single row that does, `regressors` is empty.

    Warns with `EchoStateWarning`, in the first round of a training, where the state does not forget its start on these
    rows. Raises `ValueError` where task `classify` finds no labels, or one that is no class.
    """
    given = {name: array for name, array in data.items() if name != LABELS or network.task == "classify"}
    finite_rows(given[FEATURES], esn.GAPS)  # before they can spoil the scale
    local_state, z = normalise(local_state, given, normalisation)
    way = esn.taught(global_state, z, given.get(MISSING))
    if int(global_state.get(STEP, 0)) == 0:
        contraction(global_state, way.inputs[:, global_state["observed"] > 0.0])
    rows = np.repeat(np.arange(len(z)), network.steps)
    usable = way.usable
    if network.task == "classify":
        if LABELS not in given:
            raise ValueError("task 'classify' needs labels in the data and found none; without labels take 'predict'")
        labels = np.asarray(given[LABELS])[rows]
        usable = usable & (labels >= 0)
        classes = whole_classes(labels[usable], network.classes)
        targets = np.eye(network.classes)[classes]
    else:
        targets = esn.targets_of(global_state, way.inputs)[usable]
        classes = np.zeros(len(targets), dtype=np.int64)
    return Lesson(local_state, way.regressors[usable], targets, rows[usable], classes)
