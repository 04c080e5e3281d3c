"""A step on the features before an algorithm: one exchange makes its tensors, which then travel within the shared model
under a prefix, out of the algorithm's sight (ours).
"""

from __future__ import annotations

from collections.abc import Iterable

from fedgate.models.arrays import Arrays
from fedgate.models.federated.protocol.algorithm import Algorithm, Phase, Server


def begin_with(first: Phase, algorithm: Algorithm, phases: Iterable[Phase]) -> Algorithm:
    """Return the algorithm with one exchange more at the beginning of a training, before `phases` of its own."""
    return algorithm._replace(phases=(first, *map(_following, phases)), setup=1 + algorithm.setup)


def _following(phase: Phase) -> Phase:
    """Return a phase of the inner algorithm that is one place further on."""

    def advance(server: Server, total: Arrays) -> Server:
        advanced = phase.advance(server._replace(phase=server.phase - 1), total)
        return advanced._replace(phase=advanced.phase + 1)

    return phase._replace(advance=advance)
