"""A step on the features before an algorithm: one exchange makes its tensors, which then travel within the shared model
under a prefix, out of the algorithm's sight (ours).
"""

from __future__ import annotations

from fedgate.models.arrays import Arrays
from fedgate.models.federated.protocol.algorithm import Phase, Server, Train


def behind(phase: Phase, prefix: str | tuple[str, ...], train: Train) -> Phase:
    """Return a phase of the inner algorithm as one behind a step: `train` shows it the features as the step makes them,
    and the step's tensors stay in `global_state` while it advances.
    """

    def advance(server: Server, total: Arrays) -> Server:
        if not total:
            return server
        advanced = phase.advance(inner(server), total)
        step = {name: array for name, array in server.global_state.items() if name.startswith(prefix)}
        return advanced._replace(global_state={**advanced.global_state, **step}, phase=advanced.phase + 1)

    def inner(server: Server) -> Server:
        return server._replace(global_state=without(server.global_state, prefix), phase=server.phase - 1)

    return Phase(train, phase.reducer, advance, lambda server, update: phase.admit(inner(server), update))


def without(global_state: Arrays, prefix: str | tuple[str, ...]) -> Arrays:
    """Return the shared arrays without those of the step, as the inner algorithm knows them."""
    return {name: array for name, array in global_state.items() if not name.startswith(prefix)}
