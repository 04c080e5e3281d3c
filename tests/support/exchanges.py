"""A training taken apart: every exchange of its first rounds with what went in and what came out.

The laws hold for every exchange of every phase, so the tests walk through all of them instead of looking at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fedgate.config.protocol.wire import encode
from fedgate.models.arrays import SECRET, Arrays, equal, exchange_secret, generator
from fedgate.models.federated.protocol.algorithm import Algorithm, Phase, Server, close_round
from fedgate.models.federated.protocol.reducer import Reducer
from fedgate.models.federated.protocol.run import Outcome
from tests.support.toy import Gateway

SEED = 11
ROUNDS = 2  # in the second one the gateways have state of their own and the server a model


class Exchange(NamedTuple):
    """One exchange of a training: what everyone had before it and what each gateway made of it."""

    algorithm: Algorithm
    server: Server
    own: dict[str, Arrays]
    data: dict[str, Arrays]
    own_after: dict[str, Arrays]
    updates: dict[str, Arrays]

    @property
    def phase(self) -> Phase:
        return self.algorithm.phases[self.server.phase]

    def rng(self, name: str) -> np.random.Generator:
        return generator(SEED, self.server.round_index // self.algorithm.stride, name)

    @property
    def sent(self) -> list[Arrays]:
        """The updates of those who had something to say."""
        return [update for update in self.updates.values() if update]


class Trained(NamedTuple):
    """One case, trained to its end."""

    algorithm: Algorithm
    gateways: dict[str, Gateway]
    outcome: Outcome
    exchanges: list[Exchange]

    @property
    def heard(self) -> list[Exchange]:
        """The exchanges in which somebody had something to say: under masks nobody has where nothing is new."""
        return [exchange for exchange in self.exchanges if exchange.sent]


def exchanges_of(algorithm: Algorithm, data: dict[str, Arrays]) -> Iterator[Exchange]:
    """Walk through the first rounds, all phases of each, and yield every exchange."""
    server, own = algorithm.start(generator(SEED, 0, "cloud")), {name: Arrays() for name in data}
    done = 0
    while done < algorithm.exchanges(ROUNDS):
        secrets = {name: exchange_secret(b"", f"{SEED}", server.round_index, name) for name in data}
        told = {name: {**rows, SECRET: secrets[name]} for name, rows in data.items()}
        exchange = Exchange(algorithm, server, own, told, {}, {})
        for name in data:
            exchange.own_after[name], exchange.updates[name] = exchange.phase.train(
                server.global_state, own[name], told[name], exchange.rng(name)
            )
        yield exchange
        total = total_of(exchange, tuple(data))
        done = done + 1 if total else done - done % algorithm.stride + algorithm.stride
        server, own = close_round(algorithm, server, total), exchange.own_after


def total_of(exchange: Exchange, names: tuple[str, ...]) -> Arrays:
    total = Arrays()
    for name in names:
        if exchange.updates[name]:
            admitted = exchange.phase.admit(exchange.server, exchange.updates[name])
            total = exchange.phase.reducer.merge(total, admitted)
    return total


def same(reducer: Reducer, first: Arrays, second: Arrays) -> bool:
    """Tell whether two totals are the same, as exactly as the reducer promises."""
    return (
        equal(first, second, 1e-12)
        if reducer.additive
        else encode(reducer.closed(first)) == encode(reducer.closed(second))
    )


def locked(arrays: Arrays) -> Arrays:
    """Return a copy that raises when it is written to."""
    copies = {name: array.copy() for name, array in arrays.items()}
    for array in copies.values():
        array.flags.writeable = False
    return copies


def as_bytes(*states: Arrays | Server) -> list[bytes]:
    """Return states as the bytes that would travel or rest."""
    parts: list[bytes] = []
    for state in states:
        if isinstance(state, Server):
            place = {"phase": state.phase, "round_index": state.round_index}
            parts += [encode(state.global_state, place), encode(state.server_state)]
        else:
            parts.append(encode(state))
    return parts
