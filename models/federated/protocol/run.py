"""The definition of a federated training: a loop over data sets, as Algorithm 1 of McMahan et al. (2017) is one, for
protocols of any number of exchanges.

The service over MQTT must end in the same model as this loop; everything else it does is about getting the same updates
to the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from fedgate.models.arrays import COUNTED, SECRET, Arrays, exchange_secret, generator, select
from fedgate.models.federated.protocol.algorithm import (
    NOTHING_TO_SEND,
    Algorithm,
    RoundFailedError,
    Server,
    close_round,
    is_silent,
)
from fedgate.models.federated.protocol.schema import UpdateError

REPEATED = 3  # times as many exchanges as needed may be run, so that rounds that fail by chance are made good


class Outcome(NamedTuple):
    """The server after the last round and what each gateway keeps for itself, by gateway name."""

    server: Server
    local_states: dict[str, Arrays]


def _ignore(_name: str, _update: Arrays) -> None:
    """Look at no update."""


def _ignore_shared(_global_state: Arrays) -> None:
    """Look at no exchange."""


def run(
    algorithm: Algorithm,
    data: Mapping[str, Arrays],
    *,
    seed: int = 0,
    rounds: int | None = None,
    fraction: float = 1.0,
    redraw: bool = True,
    secrets: Mapping[str, bytes] = MappingProxyType({}),
    on_exchange: Callable[[Arrays], None] = _ignore_shared,
    on_update: Callable[[str, Arrays], None] = _ignore,
    on_refusal: Callable[[str, UpdateError], None] | None = None,
) -> Outcome:
    """Train `algorithm` over the data sets of named gateways for `rounds` times all phases and return the outcome.

    `secrets` are those that gateways mix into their random numbers, none where they do not matter. `fraction` of the
    gateways take part in each round, others each time or, without `redraw`, always the same.
    `on_exchange(global_state)` sees what goes down to all when an exchange begins, `on_update(gateway, update)` what
    each of them would send. An update that is not admitted ends the training, or where `on_refusal(gateway, error)` is
    given only does not count.

    A round in which nobody has anything to send goes by; one that fails is repeated. What gateways without a secret
    draw follows from the seed: right for a simulation, while masks and noise of a service need real ones.

    Raises `RoundFailedError` with the last reason where rounds fail three times as often as they may, and where nobody
    had anything to send in an exchange that the training begins with.
    """
    server = algorithm.start(generator(seed, 0, "cloud"))
    local_states: dict[str, Arrays] = {name: {} for name in data}
    refused: set[str] = set()  # of the gateways' latest updates, or counted in a round that failed
    wanted, done, failed = algorithm.exchanges(rounds), 0, RoundFailedError("nobody answered in its last exchange")
    while done < wanted:
        if server.round_index >= (REPEATED * wanted + REPEATED * algorithm.stride):
            raise RoundFailedError(f"{done} of {wanted} exchanges in {server.round_index}, the last failed: {failed}")
        phase, index = algorithm.phases[server.phase], server.round_index
        total, counted = Arrays(), set[str]()
        on_exchange(server.global_state)
        for name in select(seed, server.cohort_index if redraw else 0, data, fraction):
            secret = secrets.get(name, b"")
            extra = {COUNTED: np.array(name not in refused), SECRET: exchange_secret(secret, f"{seed}", index, name)}
            rng = generator(seed, index // algorithm.stride, name, secret)  # as without masks
            local_states[name], update = phase.train(server.global_state, local_states[name], data[name] | extra, rng)
            on_update(name, update)
            if not update:
                continue
            refused.discard(name)
            try:
                total = phase.reducer.merge(total, phase.admit(server, update))
                counted.add(name)
            except UpdateError as error:
                if on_refusal is None:
                    raise
                refused.add(name)
                on_refusal(name, error)
        round_start, silent = done - done % algorithm.stride, is_silent(algorithm, server.phase, total)
        try:
            server, done = close_round(algorithm, server, total), done + 1 if total else round_start
        except RoundFailedError as error:
            server, done, failed = close_round(algorithm, server, {}), round_start, error
            refused |= counted
        done += algorithm.stride if silent else 0
    if server.phase < algorithm.setup:
        raise RoundFailedError(f"the training never began: each of {len(data)} gateways had {NOTHING_TO_SEND}")
    return Outcome(server, local_states)
