"""Any sums without the summands: secure aggregation of every exchange of an additive algorithm (Bonawitz et al. 2017,
"Practical Secure Aggregation for Privacy-Preserving Machine Learning", Figure 4; Bell et al. 2020, "Secure
Single-Server Aggregation with (Poly)Logarithmic Overhead", for the graph of masks).

Five exchanges stand in the place of one. What is sent, and what stays:

    0  keys     three public keys, a commitment to the seed of a mask of one's own; the private keys stay
    1  shares   for every neighbour, sealed, its Shamir share of that seed and of one private key
    2  input    what the inner algorithm sends, in a ring, under its own mask and one shared with every neighbour
    3  confirm  a signature of whose inputs are said to be in the sum (Figure 4, round 3, with keys of the round)
    4  unmask   where enough neighbours signed the same: of every neighbour one share, of the seed if its input is here,
                of the private key if it dropped out

Shared masks cancel in the sum. Those of gateways that dropped out after exchange 1 are computed from their private key
and taken off, and the own masks of the others by their seeds. Of nobody both are ever known, so an input that comes too
late stays hidden for good. Who has nothing new sends no input, and a sum is opened only if `fewest` have. The inner
algorithm's `admit` is asked on the gateway, where the update can still be read, and again of nobody: the cloud sees the
sum. What this holds against and what not: docs/decisions/11.
"""

from __future__ import annotations

import numpy as np

from fedgate.models.federated.protocol.algorithm import Algorithm, Phase, Server
from fedgate.models.federated.protocol.composition import check_composition, having
from fedgate.models.federated.protocol.reducer import STACK, SUM
from fedgate.models.federated.secure_aggregation.client import STEPS, Gateway
from fedgate.models.federated.secure_aggregation.options import LeftOutWarning, Masking, prefixed, split
from fedgate.models.federated.secure_aggregation.recovery import ShareWarning
from fedgate.models.federated.secure_aggregation.server import (
    CONFIRMATION,
    KEYS,
    Cloud,
    masked_input,
    restore,
    revealed_shares,
    sealed_shares,
)

__all__ = ["LeftOutWarning", "Masking", "ShareWarning", "with_secure_aggregation"]


def with_secure_aggregation(algorithm: Algorithm, masking: Masking) -> Algorithm:
    """Return the algorithm with every exchange replaced by five, in which the cloud learns the sum and nothing else.

    The result is that of the algorithm within `masking.quantum` / 2 for every gateway that was summed. It needs
    `fedgate.models.arrays.SECRET` in the data.

    Raises `ValueError` for an algorithm that does not add up, or that must see single updates.
    """
    check_composition(algorithm, "masking")

    def start(rng: np.random.Generator) -> Server:
        server = algorithm.start(rng)
        return server._replace(phase=STEPS * server.phase)

    def restart(server: Server) -> Server:
        server = restore(server, masking)
        inner_state, mine = split(server.server_state)
        inner = algorithm.restore(server._replace(server_state=inner_state, phase=server.phase // STEPS))
        return inner._replace(server_state={**inner.server_state, **prefixed(mine)}, phase=server.phase)

    remembers = algorithm.remembers
    phases = [step for index, phase in enumerate(algorithm.phases) for step in _steps(masking, phase, index, remembers)]
    setup = STEPS * algorithm.setup
    return having(algorithm, "masking", start=start, phases=tuple(phases), setup=setup, stride=STEPS, restore=restart)


def _steps(masking: Masking, phase: Phase, index: int, remembers: bool) -> tuple[Phase, ...]:
    """Return the five exchanges. Who leaves goes along in each, since the sum that it leaves must be unmasked."""
    gateway, cloud = Gateway(masking, phase, remembers), Cloud(masking, phase, index, remembers)
    sealed, masked, revealed = sealed_shares(masking), masked_input(phase.schema), revealed_shares(masking)
    steps = (
        Phase(gateway.keys, STACK._replace(check=masking.check), cloud.begin, KEYS, check=cloud.check_keys),
        Phase(gateway.shares, STACK, cloud.pass_on, sealed, counted=cloud.count_shares),
        Phase(gateway.masked_input, SUM, cloud.add_up, masked, counted=cloud.count_input),
        Phase(gateway.confirm, STACK, cloud.hand_out, CONFIRMATION, counted=cloud.count_confirmation),
        Phase(gateway.reveal, STACK, cloud.unmask, revealed, counted=cloud.count_reveal),
    )
    return tuple(step._replace(takes_back=True) for step in steps)
