"""A training taken apart: every exchange of its first rounds with what went in and what came out.

The laws (ours) hold for every exchange of every phase, so they walk through all of them instead of looking at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from fedgate.models.arrays import SECRET, Array, Arrays, equal, exchange_secret, generator
from fedgate.models.federated.protocol.algorithm import Algorithm, Phase, Server, check_phase, close_round
from fedgate.models.federated.protocol.reducer import Reducer
from fedgate.models.federated.protocol.run import Outcome
from fedgate.models.testing.fleet import Gateway

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
        """The phase of the algorithm that the exchange is one of."""
        return self.algorithm.phases[self.server.phase]

    @property
    def sent(self) -> list[Arrays]:
        """The updates of those who had something to say."""
        return [update for update in self.updates.values() if update]

    def rng(self, name: str) -> np.random.Generator:
        """Return the generator of a gateway in this exchange, from its beginning."""
        return generator(SEED, self.server.round_index // self.algorithm.stride, name)

    def train(self, name: str, server: Server, own: Arrays, data: Arrays) -> tuple[Arrays, Arrays]:
        """Return the local state and the update of a gateway that holds `own` and `data`."""
        return self.phase.train(server.global_state, own, data, self.rng(name))

    def admit(self, update: Arrays) -> Arrays:
        """Return what the cloud counts of an update; raises `UpdateError` where that is nothing."""
        return self.phase.admit(self.server, update)

    def total(self, names: Iterable[str]) -> Arrays:
        """Return the updates of the gateways put together in this order."""
        total = Arrays()
        for name in names:
            if self.updates[name]:
                total = self.phase.reducer.merge(total, self.admit(self.updates[name]))
        return total


class Trained(NamedTuple):
    """One algorithm, trained to its end on the data of its gateways, and the exchanges of its first rounds.

    `auc_least` is the share of pairs of an anomaly and a normal row that the model must put in the right order.
    """

    algorithm: Algorithm
    gateways: Mapping[str, Gateway]
    outcome: Outcome
    exchanges: list[Exchange]
    auc_least: float

    @property
    def with_updates(self) -> list[Exchange]:
        """The exchanges in which somebody had something to say: under masks nobody has where nothing is new."""
        return [exchange for exchange in self.exchanges if exchange.sent]

    @property
    def first(self) -> str:
        """The name of the first gateway, which stands for all where one is looked at."""
        return next(iter(self.gateways))


def exchanges_of(algorithm: Algorithm, data: Mapping[str, Arrays]) -> Iterator[Exchange]:
    """Walk through the first rounds, all phases of each, and yield every exchange.

    Raises `ValueError` where one leads to an exchange that there is not.
    """
    server, own = algorithm.start(generator(SEED, 0, "cloud")), {name: Arrays() for name in data}
    check_phase(algorithm, server)
    done = 0
    while done < algorithm.exchanges(ROUNDS):
        secrets = {name: exchange_secret(b"", f"{SEED}", server.round_index, name) for name in data}
        given = {name: {**rows, SECRET: secrets[name]} for name, rows in data.items()}
        exchange = Exchange(algorithm, server, own, given, {}, {})
        for name in data:
            exchange.own_after[name], exchange.updates[name] = exchange.train(name, server, own[name], given[name])
            _check_arrays(exchange, name)
        yield exchange
        total = exchange.total(data)
        done = done + 1 if total else done - done % algorithm.stride + algorithm.stride
        server, own = close_round(algorithm, server, total), exchange.own_after


def _check_arrays(exchange: Exchange, name: str) -> None:
    """Raise `AssertionError` where a gateway keeps or sends what is no array: no other law can be asked then."""
    for key, value in (*exchange.own_after[name].items(), *exchange.updates[name].items()):
        if not isinstance(value, np.ndarray):
            place = f"exchange {exchange.server.round_index} (phase {exchange.server.phase})"
            found = type(value).__name__
            raise AssertionError(f"every state is a flat mapping of arrays: {place}: {key} of {name} is {found}")


def same(reducer: Reducer, first: Arrays, second: Arrays) -> bool:
    """Tell whether two totals are the same, as exactly as the reducer promises."""
    if reducer.additive:
        return equal(first, second, 1e-12)
    return as_bytes(reducer.closed(first)) == as_bytes(reducer.closed(second))


def locked(arrays: Mapping[str, Array]) -> Arrays:
    """Return a copy that raises `ValueError` when it is written to."""
    copies = {name: array.copy() for name, array in arrays.items()}
    for array in copies.values():
        array.flags.writeable = False
    return copies


def carried(arrays: Mapping[str, Array]) -> Arrays:
    """Return arrays as they arrive: the same types, shapes and bytes, in memory of their own and the order of names."""
    return {
        name: np.frombuffer(arrays[name].tobytes(), arrays[name].dtype).reshape(arrays[name].shape).copy()
        for name in sorted(arrays)
    }


def as_bytes(*states: Mapping[str, Array] | Server) -> list[bytes]:
    """Return states as the bytes that would travel or rest: one for each set of arrays, two for each server."""
    parts: list[bytes] = []
    for state in states:
        if isinstance(state, Server):
            place = f"{state.phase} {state.round_index} ".encode()
            parts += [place + _bytes_of(state.global_state), _bytes_of(state.server_state)]
        else:
            parts.append(_bytes_of(state))
    return parts


def _bytes_of(arrays: Mapping[str, Array]) -> bytes:
    parts = ((name, np.asarray(arrays[name])) for name in sorted(arrays))
    return b"".join(repr((name, array.dtype.str, array.shape)).encode() + array.tobytes() for name, array in parts)
