"""A masked round taken apart: who came to which exchange, what the cloud was sent, and what it knew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from fedgate.models.arrays import COUNTED, FEATURES, SECRET, Array, Arrays, exchange_secret, generator
from fedgate.models.federated.protocol.algorithm import Algorithm, Phase, RoundFailedError, Server, close_round
from fedgate.models.federated.protocol.reducer import SUM
from fedgate.models.federated.protocol.schema import Field
from fedgate.models.federated.secure_aggregation.client import STEPS
from fedgate.models.federated.secure_aggregation.wrapper import Masking, with_secure_aggregation

SEED = 3
QUANTUM = Masking().quantum
SUMMED = "summed"
KEYS, SHARES, INPUT, CONFIRM, UNMASK = range(STEPS)

Damage = Callable[[int, str, Arrays], Arrays]  # (step, gateway, update) -> what arrives of it


class Round(NamedTuple):
    """One round: the server before each exchange and after the last, and what every gateway sent and kept in each."""

    servers: list[Server]
    updates: list[dict[str, Arrays]]
    own: dict[str, Arrays]

    @property
    def server(self) -> Server:
        return self.servers[-1]

    @property
    def places(self) -> dict[str, int]:
        """The place in the roster of each gateway that sent its keys."""
        keys = sorted(update["agreement"].tobytes() for update in self.updates[KEYS].values())
        return {name: keys.index(update["agreement"].tobytes()) for name, update in self.updates[KEYS].items()}


def adding(size: int) -> Algorithm:
    """Return an algorithm whose model is the sum of the gateways' rows, and how many rounds made one."""

    def learn(shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> tuple[Arrays, Arrays]:
        return own, {SUMMED: data[FEATURES].sum(axis=0)}

    def advance(server: Server, total: Arrays) -> Server:
        return server._replace(
            global_state={SUMMED: total[SUMMED], "rounds": server.global_state["rounds"] + np.ones(())}
        )

    first = {SUMMED: np.zeros(size), "rounds": np.zeros(())}
    return Algorithm(
        "linear", lambda rng: Server(first, {}), (Phase(learn, SUM, advance, {SUMMED: Field((size,), "sum")}),)
    )


def rows_of(names: Iterable[str], size: int, seed: int = SEED) -> dict[str, Arrays]:
    """Return data of one row for each gateway."""
    return {name: {FEATURES: generator(seed, 0, name).normal(size=(1, size))} for name in names}


def names_of(count: int) -> list[str]:
    return [f"gateway-{index:03d}" for index in range(count)]


def secret_of(name: str, index: int) -> Array:
    """Return the secret of a gateway in an exchange, from bytes of its own."""
    return exchange_secret(generator(SEED, 0, f"secret/{name}").bytes(32), "run", index, name)


def everybody(step: int, name: str) -> bool:
    return True


def nobody(step: int, name: str) -> bool:
    return False


def ignored(server: Server) -> None:
    return None


def unharmed(step: int, name: str, update: Arrays) -> Arrays:
    return update


def took_part(
    algorithm: Algorithm,
    data: Mapping[str, Arrays],
    *,
    comes: Callable[[int, str], bool] = everybody,
    loses: Callable[[int, str], bool] = nobody,
    arrives: Damage = unharmed,
    server: Server | None = None,
    own: Mapping[str, Arrays] | None = None,
    watch: Callable[[Server], None] = ignored,
    goes_on: bool = False,
) -> Round:
    """Run one round of five exchanges, or those up to one that nobody answers; `watch` sees the server before each.

    `comes` says who takes part in which step, and whoever does not hears nothing of it; `loses` whose update
    comes too late, and `arrives` what of it does. A round that fails raises; where the training `goes_on` it ends with
    the server that begins the next one.
    """
    server = algorithm.start(generator(SEED, 0, "cloud")) if server is None else server
    made = Round([server], [], {name: dict((own or {}).get(name, {})) for name in data})
    for step in range(STEPS):
        watch(server)
        phase, updates, total = algorithm.phases[server.phase], dict[str, Arrays](), Arrays()
        for name in data:
            if comes(step, name):
                told = {COUNTED: np.array(True), SECRET: secret_of(name, server.round_index), **data[name]}
                rng = generator(SEED, server.round_index, name)
                made.own[name], update = phase.train(server.global_state, made.own[name], told, rng)
                if update:
                    updates[name] = update
        for name, update in updates.items():
            if not loses(step, name):
                total = phase.reducer.merge(total, phase.admit(server, arrives(step, name, update)))
        made.updates.append(updates)
        try:
            server, is_over = close_round(algorithm, server, total), not total
        except RoundFailedError:
            if not goes_on:
                raise
            server, is_over = failed(algorithm, server), True
        made.servers.append(server)
        if is_over:
            break
    return made


def failed(algorithm: Algorithm, server: Server) -> Server:
    """Return the server as it goes on after a round that failed."""
    return close_round(algorithm, server, {})


def expected_sum(data: Mapping[str, Arrays], names: Iterable[str]) -> Array:
    return np.asarray(np.sum([data[name][FEATURES].sum(axis=0) for name in names], axis=0))


def masked_adding(size: int, **options: object) -> Algorithm:
    return with_secure_aggregation(adding(size), Masking.model_validate({"fewest": 3} | options))
