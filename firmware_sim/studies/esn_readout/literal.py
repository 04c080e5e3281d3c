"""The thesis's FedCurv as printed: that it is FedAvg, by either of two faults, and where its Algorithm 2 goes.

    Listing 3.6   log softmax of one output z is z - z = 0, so its gradient, the Fisher information, the penalty are 0
    Listing 3.4   the penalty is a number by the time the tape begins, so its gradient is 0 whatever its value
    Algorithm 2   a gateway returns u - D of the u it received; the server adds m of those, so u grows as -mᵗ

The first two are trained here beside FedAvg and compared bit for bit; the third is a sum that is followed by rounds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from fedgate.firmware_sim.studies.engine.study import Figures
from fedgate.firmware_sim.studies.esn_readout.data import Roles, gateways_of, rows_of
from fedgate.firmware_sim.studies.esn_readout.listed import PAPER_PENALTY, Printed, batch_fisher
from fedgate.firmware_sim.studies.esn_readout.memory import Memory
from fedgate.firmware_sim.studies.esn_readout.methods import algorithm_of, step_of
from fedgate.firmware_sim.studies.esn_readout.options import Attack, Method, Options
from fedgate.models.arrays import FEATURES, Array, Arrays, Floats, generator
from fedgate.models.detectors.esn.gradient_readout import Descent, Examples, descended, fisher
from fedgate.models.federated.averaging.esn_fedavg import READOUT, Averaging
from fedgate.models.federated.averaging.esn_fedcurv import Part, curved
from fedgate.models.federated.protocol.algorithm import Algorithm, Server
from fedgate.models.federated.protocol.run import run

Fault = Literal["softmax", "tape"]
ROUNDS_FOLLOWED = 10


def softmax_of_one(readout: Floats, states: Array) -> Floats:
    """Return D of Listing 3.6 for states (b, M): the squared gradient of log softmax(z) over one output z, over b."""
    z = states @ readout.T  # (b, 1)
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p = p / p.sum(axis=1, keepdims=True)  # one, whatever z is
    return np.asarray(np.square((1.0 - p).T @ states) / len(states))


def literal(step: Averaging, plain: Algorithm, fault: Fault) -> Algorithm:
    """Return FedCurv with one of the two faults and the other one mended, made from FedAvg of the same settings."""

    def local(
        shared: Arrays, share: Part, rows: Examples, descent: Descent, rng: np.random.Generator
    ) -> tuple[Floats, Part]:
        del share
        printed = Printed(shared, PAPER_PENALTY, softmax_of_one if fault == "softmax" else batch_fisher)

        def outside_of_the_tape(readout: Floats, states: Array) -> Floats:
            return np.zeros_like(printed.pull(readout, states))  # computed, and a constant to the gradient

        pull = printed.pull if fault == "softmax" else outside_of_the_tape
        return descended(shared[READOUT], rows, rng, descent, pull), printed.part

    def start(rng: np.random.Generator) -> Server:
        server = plain.start(rng)
        nothing = np.zeros_like(server.global_state[READOUT])
        return server._replace(
            global_state={**server.global_state, "fleet.curvature": nothing, "fleet.curved_readout": nothing}
        )

    return plain._replace(start=start, phases=(curved(step, local),))


def sums_of_algorithm_2(parts: list[Floats], rounds: int) -> list[float]:
    """Return the number largest in size of the server's u after each round in which gateways return u - D."""
    u, found = np.zeros_like(parts[0]), []
    for _ in range(rounds):
        u = np.sum([u - part for part in parts], axis=0)
        found.append(float(u.flat[np.abs(u).argmax()]))
    return found


def literal_figures(options: Options, data: Path, who: Roles, seed: int) -> Figures:
    """Return the largest difference of the readout to that of FedAvg under each fault, and the sums of Algorithm 2."""
    memory, rate = Memory(), options.tables.rates[0]
    clients = gateways_of(options, data, who, Attack(kind="none"), seed)
    count = rows_of(options, data, who.gateways[0])[FEATURES].shape[1]
    fedavg = Method(algorithm="esn-fedavg")
    step = step_of(options, memory, fedavg, rate)
    plain = algorithm_of(options, memory, fedavg, rate, count)
    fraction = options.take_part / len(clients)
    expected = run(plain, clients, seed=seed, fraction=min(fraction, 1.0)).server.global_state[READOUT]
    figures: Figures = {}
    faults: tuple[Fault, ...] = ("softmax", "tape")
    for fault in faults:
        found = run(literal(step, plain, fault), clients, seed=seed, fraction=min(fraction, 1.0)).server.global_state[
            READOUT
        ]
        figures[f"{fault}.bits_differ"] = float(np.count_nonzero(found.view(np.uint64) != expected.view(np.uint64)))
    shared = plain.start(generator(seed, 0, "cloud")).global_state
    taught = [step.teach(step.network, shared, {}, rows, step.normalisation) for rows in clients.values()]
    states = [each.regressors.astype(np.float64) for each in taught[: options.take_part]]
    sums = sums_of_algorithm_2([fisher(expected, each) for each in states], ROUNDS_FOLLOWED)
    return figures | {f"sum.{index + 1}": value for index, value in enumerate(sums)}
