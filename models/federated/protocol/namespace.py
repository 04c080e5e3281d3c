"""State of one's own beside that of others: names under a prefix, out of sight of the exchange inside (ours)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedgate.models.arrays import Array, Arrays, under
from fedgate.models.federated.protocol.algorithm import Phase, Server, Trained


def split(arrays: Mapping[str, Array], prefix: str) -> tuple[Arrays, Arrays]:
    """Return what belongs to others, and what stands under the prefix, without it."""
    others = {name: array for name, array in arrays.items() if not name.startswith(prefix)}
    return others, under(prefix, arrays)


def prefixed(prefix: str, arrays: Mapping[str, Array]) -> Arrays:
    """Return arrays under the names by which they stand beside others."""
    return {prefix + name: array for name, array in arrays.items()}


def hidden(phase: Phase, prefix: str) -> Phase:
    """Return an exchange that sees nothing under the prefix, in the state of the cloud or of a gateway; it stays there
    as it is.
    """

    def inner(server: Server) -> Server:
        global_state, server_state = split(server.global_state, prefix)[0], split(server.server_state, prefix)[0]
        return server._replace(global_state=global_state, server_state=server_state)

    def learn(global_state: Arrays, local_state: Arrays, data: Arrays, rng: np.random.Generator) -> Trained:
        others, mine = split(local_state, prefix)
        after, update = phase.learn(split(global_state, prefix)[0], others, data, rng)
        return {**after, **prefixed(prefix, mine)}, update

    def advance(server: Server, total: Arrays) -> Server:
        advanced = phase.advance(inner(server), total)
        shown, hidden_state = (
            prefixed(prefix, split(state, prefix)[1]) for state in (server.global_state, server.server_state)
        )
        return advanced._replace(
            global_state={**advanced.global_state, **shown}, server_state={**advanced.server_state, **hidden_state}
        )

    return phase._replace(
        learn=learn,
        advance=advance,
        unpacked=lambda server, update: phase.unpacked(inner(server), update),
        check=lambda server, update: phase.check(inner(server), update),
        counted=lambda server, update: phase.counted(inner(server), update),
    )
