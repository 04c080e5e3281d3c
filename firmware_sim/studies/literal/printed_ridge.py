"""IncFed and Partial IncFed with the ridge that the paper prints (A. Di Mauro, Pisa 2022, Eq. B.4): λ = 1e-6 as it is.

Beside sums over thousands of rows that is next to none. In service a ridge is in mean eigenvalues of the sums, and one
this small is refused where every gateway has columns of its own: there the readout collapses, as the study shows.
"""

from __future__ import annotations

import numpy as np

from fedgate.models.arrays import Arrays, Floats
from fedgate.models.detectors.base.moments import symmetric
from fedgate.models.detectors.esn.ridge_readout import CROSS, GRAM
from fedgate.models.federated.closed_form.column_masks import TRACE
from fedgate.models.federated.closed_form.incfed import solved
from fedgate.models.federated.closed_form.partial_phases import ELECTED, solved_columns, widened
from fedgate.models.federated.protocol.algorithm import Algorithm, Server
from fedgate.models.federated.protocol.contributions import STEP

PRINTED_RIDGE = 1e-6


def with_printed_ridge(algorithm: Algorithm) -> Algorithm:
    """Return `incfed`, or `partial-incfed` whose gateways choose among units, with the paper's λ in place of its ridge.

    Both solves are made: what is kept of a round does not depend on the ridge.
    """
    *others, last = algorithm.phases

    def advance(server: Server, total: Arrays) -> Server:
        after = last.advance(server, total)
        sums = after.server_state or total  # IncFed keeps what it counted in the rounds before
        made = _solved(server.global_state, sums)
        return after._replace(global_state={**made, STEP: after.global_state[STEP]})

    return algorithm._replace(phases=(*others, last._replace(advance=advance)))


def _solved(global_state: Arrays, sums: Arrays) -> Arrays:
    size = sums[CROSS].shape[1]
    if TRACE in sums:
        return solved_columns(global_state, sums, PRINTED_RIDGE * size / float(sums[TRACE]))
    mean = float(np.trace(symmetric(sums[GRAM], size))) / size
    return solved(global_state, sums, PRINTED_RIDGE / mean, widen=_widened)


def _widened(global_state: Arrays, weights: Floats) -> Floats:
    if ELECTED not in global_state:
        return weights
    left_out = global_state["readout"].shape[1] - weights.shape[1]
    return widened(global_state, weights, left_out + len(global_state[ELECTED]))
