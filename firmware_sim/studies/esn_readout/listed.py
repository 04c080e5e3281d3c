"""FedCurv of the readout as the thesis lists it (Listings 3.4 to 3.7), with the two faults mended that make it FedAvg;
and how its discriminator rejects (Chapter 4).

Softmax over [0, z], the gradient of the whole batch squared and divided by its rows, the share taken off that of the
present batch, D of the last batch sent, λ = 1e-4; and the penalty inside the gradient. A rejected gateway counts with
all its rows and no change, which makes the step of the round shorter; in service its update is refused.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.detectors.esn.gradient_readout import Descent, Examples, descended, probabilities
from fedgate.models.federated.averaging.esn_fedavg import READOUT, Averaging
from fedgate.models.federated.averaging.esn_fedcurv import (
    ALL_CURVATURE,
    ALL_CURVED,
    Part,
    curved,
    readout_fedcurv,
)
from fedgate.models.federated.defences.filters import network_filter
from fedgate.models.federated.protocol.algorithm import Algorithm, Server
from fedgate.models.federated.protocol.schema import UpdateError, moving

PAPER_PENALTY = 1e-4


class Printed:
    """The penalty as the thesis lists it, but inside the gradient; `part` is that of the last batch."""

    def __init__(self, global_state: Arrays, penalty: float, fisher_of: Callable[[Floats, Array], Floats]) -> None:
        nothing = np.zeros_like(global_state[READOUT])
        self._shared, self._penalty, self._fisher_of, self.part = (
            global_state,
            penalty,
            fisher_of,
            Part(nothing, nothing),
        )

    def pull(self, readout: Floats, states: Array) -> Floats:
        """Return the gradient (classes, S) of the penalty at a readout of that shape, of regressors `states` (n, S)."""
        found = self._fisher_of(readout, states)
        self.part = Part(found, found * readout)
        curvature = self._shared[ALL_CURVATURE] - self.part.curvature
        return np.asarray(2.0 * self._penalty * (curvature * readout - (self._shared[ALL_CURVED] - self.part.curved)))


def batch_fisher(readout: Floats, states: Array) -> Floats:
    """Return (c, M) the thesis's D of a batch of states (b, M): the gradient of Σ log softmax, squared, over b.

    The gradient is that of all outputs together (Listing 3.6), with [0, z] in place of one output z alone.
    """
    p = probabilities(readout, states)  # (b, c)
    outputs = max(p.shape[1], 2)
    slopes = 1.0 - outputs * p  # of Σ_i log p_i with respect to each output; 1 - 2p for the one beside a zero
    return np.asarray(np.square(slopes.T @ states) / len(states))


def listed_fedcurv(step: Averaging, penalty: float, feature_count: int, rounds: int) -> Algorithm:
    """Return the listed form, in which no bound is set to what a gateway says of its curvature."""

    def local(
        shared: Arrays, _share: Part, rows: Examples, descent: Descent, rng: np.random.Generator
    ) -> tuple[Floats, Part]:
        printed = Printed(shared, penalty, batch_fisher)
        return descended(shared[READOUT], rows, rng, descent, printed.pull), printed.part

    return readout_fedcurv(step, penalty, feature_count, rounds)._replace(phases=(curved(step, local),))


def with_listed_discriminator(algorithm: Algorithm, network: Arrays) -> Algorithm:
    """Return an algorithm of one exchange, which averages, with the thesis's discriminator in front of its sum.

    Every gateway counts with the rows that it claims. Starting raises `ContextError` for a network of another training.
    """
    (phase,), update_filter = algorithm.phases, network_filter(network)

    def start(rng: np.random.Generator) -> Server:
        server = algorithm.start(rng)
        update_filter.check(server.global_state)
        return server

    def counted(server: Server, update: Arrays) -> Arrays:
        admitted = phase.counted(server, update)
        try:
            update_filter.notes(phase, server, {}, admitted)
        except UpdateError:
            return {**admitted, **{name: np.zeros_like(admitted[name]) for name in moving(phase.schema)}}
        return admitted

    return algorithm._replace(start=start, phases=(phase._replace(counted=counted),))
