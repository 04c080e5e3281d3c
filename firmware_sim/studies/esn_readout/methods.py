"""The algorithms of the study as they are in service, with what only a study may do to them.

A median in place of the sum, reservoirs that differ (the cloud refuses those, by their digest) and a discriminator that
was trained on another one are made here, around the algorithm, and nowhere else.
"""

from __future__ import annotations

import numpy as np

from fedgate.firmware_sim.studies.esn_readout.listed import PAPER_PENALTY, listed_fedcurv, with_listed_discriminator
from fedgate.firmware_sim.studies.esn_readout.memory import Memory
from fedgate.firmware_sim.studies.esn_readout.options import Answer, Method, Options
from fedgate.models.arrays import Array, Arrays, Floats, generator, joined, parted
from fedgate.models.detectors.esn import reservoir
from fedgate.models.detectors.esn.gradient_readout import Descent
from fedgate.models.detectors.esn.network import Network
from fedgate.models.detectors.esn.reservoir import IDENTITY, PREFIX
from fedgate.models.federated.averaging.averaging import SAMPLES
from fedgate.models.federated.averaging.esn_fedavg import READOUT, Averaging, averaging, readout_fedavg
from fedgate.models.federated.averaging.esn_fedcurv import DEFAULT_PENALTY, readout_fedcurv
from fedgate.models.federated.defences.discriminator import CONTEXT, train_discriminator
from fedgate.models.federated.defences.wrapper import with_update_filter
from fedgate.models.federated.protocol.algorithm import MAX_SAMPLES, Algorithm, Server
from fedgate.models.federated.protocol.reducer import STACK
from fedgate.models.federated.protocol.schema import UpdateError

LARGEST_CHANGE = 1e3


def step_of(options: Options, memory: Memory, method: Method, rate: float) -> Averaging:
    """Return what all methods have in common at a rate of the server, with states that are computed once."""
    training = {"epochs": 1, "batch": 20, "optimiser": "adam", "learning_rate": 0.1, **options.training}
    weights = training.pop("class_weights", None)
    step = averaging(
        options.network_of(method),
        Descent(**training),
        None if weights is None else tuple(weights),
        rate=rate,
        largest_change=LARGEST_CHANGE,
        max_samples=MAX_SAMPLES,
        normalisation="none",
    )
    return step._replace(teach=memory.lesson)


def algorithm_of(options: Options, memory: Memory, method: Method, rate: float, feature_count: int) -> Algorithm:
    """Return a method at a rate of the server, without a defence."""
    step = step_of(options, memory, method, rate)
    if method.algorithm == "esn-fedavg":
        return readout_fedavg(step, feature_count, options.rounds)
    is_listed = bool(method.settings.get("paper", False))
    penalty = float(method.settings.get("penalty", PAPER_PENALTY if is_listed else DEFAULT_PENALTY))
    return (listed_fedcurv if is_listed else readout_fedcurv)(step, penalty, feature_count, options.rounds)


def answered(
    options: Options, memory: Memory, algorithm: Algorithm, answer: Answer, trusted: list[Arrays], seed: int
) -> Algorithm:
    """Return the algorithm with what meets the attack in front of, or in place of, its sum."""
    if answer.means == "median":
        return median(algorithm)
    if answer.defence is None:
        return algorithm
    network = None
    if answer.defence.kind == "network":
        network = discriminator(options, algorithm, trusted, seed, other_reservoir=answer.other_reservoir)
        if answer.rejected_count:
            return with_listed_discriminator(algorithm, network)
    return with_update_filter(algorithm, answer.defence, trusted, network, memory.score)


def discriminator(
    options: Options, algorithm: Algorithm, trusted: list[Arrays], seed: int, *, other_reservoir: bool
) -> Arrays:
    """Return the thesis's network for a training, or one of another reservoir that is passed off as its own."""
    whose = "other cloud" if other_reservoir else "cloud"
    rng = generator(seed, 0, whose)
    network = train_discriminator(algorithm, trusted, rng, noise=options.noise, rounds=options.noise_rounds)
    if not other_reservoir:
        return network
    here = algorithm.start(generator(seed, 0, "cloud")).global_state
    passed_off = {name: here[name] for name in parted(network)[CONTEXT]}
    return {**network, **joined({CONTEXT: passed_off})}


def median(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm with the median of each coordinate in place of the weighted mean; no sum, so no masks."""
    (phase,) = algorithm.phases

    def counted(server: Server, update: Arrays) -> Arrays:
        return {name: array[None] for name, array in phase.counted(server, update).items()}

    def advance(server: Server, total: Arrays) -> Server:
        weights = total[SAMPLES].reshape(-1, *[1] * (total[READOUT].ndim - 1))
        count = float(total[SAMPLES].sum())
        middle = {READOUT: count * np.median(total[READOUT] / weights, axis=0), SAMPLES: np.array(count)}
        sums = {name: rows.sum(axis=0) for name, rows in total.items()}
        return phase.advance(server, {**sums, **middle})

    return algorithm._replace(phases=(phase._replace(reducer=STACK, counted=counted, advance=advance),))


def reservoirs_of(network: Network, names: list[str], feature_count: int, seed: int) -> dict[str, Arrays]:
    """Return a reservoir of its own for each gateway."""
    inputs = network.input_count(feature_count)
    return {name: reservoir.initial(generator(seed, 0, f"reservoir/{name}"), network, inputs) for name in names}


def with_own_reservoirs(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm for gateways whose data holds a reservoir of their own, passed off as the common one."""
    (phase,) = algorithm.phases

    def learn(shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> tuple[Arrays, Arrays]:
        reservoir_ = {name: array for name, array in data.items() if name.startswith(PREFIX)}
        rows = {name: array for name, array in data.items() if name not in reservoir_}
        own, update = phase.train({**shared, **reservoir_}, own, rows, rng)
        return own, {**update, IDENTITY: reservoir.identity(shared)} if update else {}

    return algorithm._replace(phases=(phase._replace(learn=learn),))


class Watch:
    """Sees every round of a training: the readout after it, and whose update counted."""

    def __init__(self, algorithm: Algorithm) -> None:
        (self._phase,) = algorithm.phases
        self.algorithm = algorithm._replace(
            phases=(self._phase._replace(counted=self._counted, advance=self._advance),)
        )
        self._sender = ""
        self._readouts: dict[int, Floats] = {}
        self.verdicts: list[tuple[str, bool]] = []

    def on_update(self, name: str, update: Arrays) -> None:
        del update
        self._sender = name

    def on_refusal(self, name: str, error: UpdateError) -> None:
        del error
        self.verdicts.append((name, False))

    def _counted(self, server: Server, update: Arrays) -> Arrays:
        found = self._phase.counted(server, update)
        self.verdicts.append((self._sender, bool(np.any(found[READOUT]))))  # the thesis's rejected do not move
        return found

    def _advance(self, server: Server, total: Arrays) -> Server:
        after = self._phase.advance(server, total)
        self._readouts[server.round_index] = after.global_state[READOUT]
        return after

    def readouts(self, rounds: int, untrained: Array) -> Floats:
        """Return the readout (rounds, M) after every round, of one output; a round that nobody counted in keeps it."""
        found, last = [], np.asarray(untrained)
        for index in range(rounds):
            last = self._readouts.get(index, last)
            found.append(last[0])
        return np.array(found)
