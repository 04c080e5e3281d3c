"""FedCurv of the readout and the discriminator as the thesis lists them (A. Di Mauro, Pisa 2022, Listings 3.4 to 3.7,
Chapter 4).

Softmax over [0, z], the gradient of the whole batch squared and divided by its rows, the share taken off that of the
present batch, D of the last batch sent, λ = 1e-4; and the penalty inside the gradient. As printed, either of two faults
makes it FedAvg, and its Algorithm 2 runs away:

    Listing 3.6   log softmax of one output z is z - z = 0, so its gradient, the Fisher information, the penalty are 0
    Listing 3.4   the penalty is a number by the time the tape begins, so its gradient is 0 whatever its value
    Algorithm 2   a gateway returns u - D of the u it received; the server adds m of those, so u grows as -mᵗ
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedgate.models.arrays import Array, Arrays, Floats, generator, joined, parted
from fedgate.models.detectors.esn.gradient_readout import Descent, Examples, descended, probabilities
from fedgate.models.federated.averaging.esn_fedavg import READOUT, Averaging
from fedgate.models.federated.averaging.esn_fedcurv import (
    ALL_CURVATURE,
    ALL_CURVED,
    Part,
    curved,
    readout_fedcurv,
)
from fedgate.models.federated.defences.discriminator import CONTEXT
from fedgate.models.federated.defences.filters import network_filter
from fedgate.models.federated.protocol.algorithm import Algorithm, Server
from fedgate.models.federated.protocol.schema import UpdateError, moving

PRINTED_PENALTY = 1e-4


def batch_fisher(readout: Floats, states: Array) -> Floats:
    """Return (c, M) the thesis's D of a batch of states (b, M): the gradient of Σ log softmax, squared, over b.

    The gradient is that of all outputs together (Listing 3.6), with [0, z] in place of one output z alone.
    """
    p = probabilities(readout, states)  # (b, c)
    outputs = max(p.shape[1], 2)
    slopes = 1.0 - outputs * p  # of Σ_i log p_i with respect to each output; 1 - 2p for the one beside a zero
    return np.asarray(np.square(slopes.T @ states) / len(states))


def softmax_of_one(readout: Floats, states: Array) -> Floats:
    """Return D of Listing 3.6 for states (b, M): the squared gradient of log softmax(z) over one output z, over b."""
    z = states @ readout.T  # (b, 1)
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p = p / p.sum(axis=1, keepdims=True)  # one, whatever z is
    return np.asarray(np.square((1.0 - p).T @ states) / len(states))


def printed_fedcurv(
    step: Averaging,
    feature_count: int,
    rounds: int,
    *,
    penalty: float = PRINTED_PENALTY,
    fisher_of: Callable[[Floats, Array], Floats] = batch_fisher,
    is_in_tape: bool = True,
) -> Algorithm:
    """Return FedCurv as listed, in which a gateway may say of its curvature what it likes; without the two faults.

    :param fisher_of: `softmax_of_one` is the fault of Listing 3.6.
    :param is_in_tape: whether the penalty has a gradient; that it has none is the fault of Listing 3.4.
    """

    def local(
        shared: Arrays, _share: Part, rows: Examples, descent: Descent, rng: np.random.Generator
    ) -> tuple[Floats, Part]:
        part = Part(np.zeros_like(shared[READOUT]), np.zeros_like(shared[READOUT]))

        def pull(readout: Floats, states: Array) -> Floats:
            nonlocal part
            found = fisher_of(readout, states)
            part = Part(found, found * readout)
            curvature = shared[ALL_CURVATURE] - part.curvature
            slope = 2.0 * penalty * (curvature * readout - (shared[ALL_CURVED] - part.curved))
            return np.asarray(slope) if is_in_tape else np.zeros_like(slope)

        return descended(shared[READOUT], rows, rng, descent, pull), part

    return readout_fedcurv(step, penalty, feature_count, rounds)._replace(phases=(curved(step, local),))


def sums_of_algorithm_2(parts: list[Floats], rounds: int = 10) -> list[float]:
    """Return the number largest in size of the server's u after each round in which gateways return u - D."""
    u, found = np.zeros_like(parts[0]), []
    for _ in range(rounds):
        u = np.sum([u - part for part in parts], axis=0)
        found.append(float(u.flat[np.abs(u).argmax()]))
    return found


def passed_off(network: Arrays, algorithm: Algorithm, seed: int) -> Arrays:
    """Return a discriminator that was trained on another reservoir as if it had been on that of a training."""
    here = algorithm.start(generator(seed, 0, "cloud")).global_state
    return {**network, **joined({CONTEXT: {name: here[name] for name in parted(network)[CONTEXT]}})}


def with_printed_discriminator(algorithm: Algorithm, network: Arrays, on_rejection: Callable[[], None]) -> Algorithm:
    """Return an algorithm of one exchange, which averages, with the thesis's discriminator in front of its sum.

    A rejected gateway counts with all the rows that it claims and no change, which makes the step of the round shorter;
    in service its update is refused. Starting raises `ContextError` for a network of another training.
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
            on_rejection()
            return {**admitted, **{name: np.zeros_like(admitted[name]) for name in moving(phase.schema)}}
        return admitted

    return algorithm._replace(start=start, phases=(phase._replace(counted=counted),))
