"""A masked round beside a plain one: 16 gateways with an update of 1.3 MB each, from its making to the advanced model.

All of them run one after the other on one core here. What a fleet waits for, where each gateway has a processor of its
own, is in every exchange the slowest gateway and then the cloud: both are timed apart.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
from pytest_benchmark.fixture import BenchmarkFixture

from fedgate.config.protocol import wire
from fedgate.models.arrays import FEATURES, SECRET, Arrays, equal, generator
from fedgate.models.federated.protocol.algorithm import Algorithm, Server, close_round
from fedgate.models.federated.secure_aggregation.wrapper import Masking, with_secure_aggregation
from tests.benchmarks.conftest import Note
from tests.benchmarks.timing import repeat
from tests.support.masked_rounds import QUANTUM, adding, names_of, secret_of

GATEWAYS = names_of(16)
PARAMETERS = 325_000  # float32: 1.3 MB
AT_MOST_OF_PLAIN = 2.0
TRAINING_S = 2.0  # of a small recurrent network on a gateway's baseline


def rows() -> dict[str, Arrays]:
    rng = np.random.default_rng(0)
    return {name: {FEATURES: rng.normal(size=(1, PARAMETERS)).astype(np.float32)} for name in GATEWAYS}


class Spent(NamedTuple):
    """What one round took: all of it, what a fleet waits for of it, and the bytes that went up."""

    all_s: float
    waited_s: float
    sent_bytes: int


def one_round(algorithm: Algorithm, data: dict[str, Arrays]) -> tuple[Server, Spent]:
    """Return the server after one round over the wire, and what it took."""
    server, own = algorithm.start(generator(0, 0, "cloud")), {name: Arrays() for name in data}
    all_s, waited_s, sent_bytes = 0.0, 0.0, 0
    for phase in algorithm.phases:
        total, body = Arrays(), wire.encode(server.global_state)
        gateway_s, cloud_s = [], [0.0]
        for name in data:
            told = {**data[name], SECRET: secret_of(name, server.round_index)}
            began_s = time.process_time()
            shared, _ = wire.decode(body)
            own[name], update = phase.train(shared, own[name], told, generator(0, server.round_index, name))
            sent = wire.encode(update)
            sent_s = time.process_time()
            total = phase.reducer.merge(total, phase.admit(server, wire.decode(sent)[0]))
            gateway_s.append(sent_s - began_s)
            cloud_s.append(time.process_time() - sent_s)
            sent_bytes += len(sent)
        began_s = time.process_time()
        server = close_round(algorithm, server, total)
        cloud_s.append(time.process_time() - began_s)
        all_s, waited_s = all_s + sum(gateway_s) + sum(cloud_s), waited_s + max(gateway_s) + sum(cloud_s)
    return server, Spent(all_s, waited_s, sent_bytes)


def typical(algorithm: Algorithm, data: dict[str, Arrays], rounds: int) -> tuple[Server, Spent]:
    """Return the server after a round, and what the median of some rounds took."""
    made = [one_round(algorithm, data) for _ in range(rounds)]
    spent = [each for _, each in made]
    all_s, waited_s = (float(np.median([part[at] for part in spent])) for at in (0, 1))
    return made[-1][0], Spent(all_s, waited_s, spent[-1].sent_bytes)


def test_a_masked_round(benchmark: BenchmarkFixture, note: Note) -> None:
    data, algorithm, rounds = rows(), adding(PARAMETERS), 7 if benchmark.enabled else 1
    expected, plain = typical(algorithm, data, rounds)
    server, hidden = repeat(benchmark, typical, with_secure_aggregation(algorithm, Masking()), data, rounds, rounds=1)
    assert equal(server.global_state, expected.global_state, len(GATEWAYS) * QUANTUM)
    if not benchmark.enabled:
        return
    what = "masked round, peer a plain one, 16 gateways x 1.3 MB"
    note(f"{what}: all on one core", 1e3 * hidden.all_s, "ms", peer=1e3 * plain.all_s)
    for training_s, more in ((0.0, ""), (TRAINING_S, f", after a training of {TRAINING_S:g} s")):
        masked_ms, plain_ms = (1e3 * (training_s + spent.waited_s) for spent in (hidden, plain))
        waited = f"{what}: slowest gateway, then the cloud{more}"
        note(waited, masked_ms, "ms", at_most_of_peer=AT_MOST_OF_PLAIN, peer=plain_ms)
    note(f"{what}: bytes up", hidden.sent_bytes / 1e6, "MB", peer=plain.sent_bytes / 1e6)
