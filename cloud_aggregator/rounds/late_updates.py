"""Updates that come after their round was closed: kept for the next one, where the algorithm bears that.

A step along a sum of changes may take in a change that started from the parameters of a round before; a system of
equations, or rows that belong together, may not. What is kept is on disk before it is acknowledged. It is counted when
the next round is closed, unless its gateway was counted in that round itself: its newer word stands for both, and the
receipts tell the gateway, which may have left something of either for the next (`wrappers.error_feedback`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedgate.cloud_aggregator.context import Context
from fedgate.cloud_aggregator.events import DropHeld, Effect, HoldUpdate
from fedgate.cloud_aggregator.rounds.rounds import Rounds, save_training
from fedgate.config.protocol import wire
from fedgate.models.arrays import Arrays
from fedgate.models.federated.protocol.algorithm import Algorithm
from fedgate.models.federated.protocol.schema import UpdateError


def can_wait(algorithm: Algorithm) -> bool:
    """Tell whether updates of an algorithm may be counted a round later: changes, of rounds that are one exchange."""
    phases = algorithm.phases[algorithm.setup :]
    return len(phases) == 1 and phases[0].bears == "error"


def is_kept(rounds: Rounds, context: Context) -> bool:
    """Tell whether late updates are kept in this training."""
    is_round = rounds.server.phase >= rounds.algorithm.setup
    return context.settings.rounds.late == "next-round" and is_round and can_wait(rounds.algorithm)


def age(rounds: Rounds, meta: dict[str, Any]) -> int:
    """Return how many rounds ago the round was closed that an update answers; 0 for one that answers no such round."""
    index, server = meta.get("round_index"), rounds.server
    is_of_training = meta.get("run") == rounds.run and meta.get("phase") == server.phase
    return server.round_index - index if is_of_training and type(index) is int and index < server.round_index else 0


def hold(
    rounds: Rounds, context: Context, gateway: str, update: Arrays, held: HoldUpdate
) -> tuple[Rounds, list[Effect]]:
    """Keep an update for the round that is open, or will be next.

    Raises `UpdateError` with the reason where it is too old, was not asked for, is a second one, or cannot count.
    """
    most, index = context.settings.rounds.late_rounds, held.round_index
    found = rounds.server.round_index - index
    if found > most:
        raise UpdateError(
            f"it answers round {index}, {found} rounds ago; updates are kept for {most} at most, see rounds.late_rounds"
        )
    if rounds.answered.get(gateway, -1) >= index:
        raise UpdateError(f"another update of this gateway was counted or kept since round {index}")
    asked = rounds.asked_before.get(index, ())
    if asked is not None and gateway not in asked:
        raise UpdateError(f"this gateway was not asked in round {index}")
    if update:
        # As it will be when the round is closed: by this server.
        rounds.algorithm.phases[rounds.server.phase].admit(rounds.server, update)
    others = {name: one for name, one in rounds.held.items() if name != gateway}
    limits = context.settings.limits  # half of all, and never what one update of those on their way needs
    most_bytes = min(limits.incoming_bytes // 2, limits.incoming_bytes - limits.max_update_bytes)
    if sum(len(one.body) for one in others.values()) + len(held.body) > most_bytes:
        raise UpdateError(f"of late updates {most_bytes} bytes are kept at most, see limits.incoming_bytes")
    rounds = replace(rounds, held={**others, gateway: held}, answered={**rounds.answered, gateway: index})
    return rounds, [held, save_training(rounds, context.anchor_ns)]


def counts_in(rounds: Rounds, gateway: str, digest: str) -> int | None:
    """Return the round in which an update that came late counts; None for one that came in time."""
    if digest == rounds.counted.get(gateway):
        return None
    return rounds.server.round_index if gateway in rounds.held else rounds.counted_late.get(gateway)


def merge_held(rounds: Rounds) -> tuple[Rounds, tuple[HoldUpdate, ...]]:
    """Return the training with what was kept in the sum of the round that closes, in the order of arrival, and which.

    Those whose gateway said something in the round itself are left out, and those that the server, which has gone on
    since they were kept, no longer admits.
    """
    reducer, total = rounds.algorithm.phases[rounds.server.phase].reducer, rounds.total
    counted: list[HoldUpdate] = []
    for gateway, held in rounds.held.items():
        if is_overtaken(rounds, gateway):
            continue
        update = _admit(rounds, held)
        if update is not None:
            total = reducer.merge(total, update) if update else total
            counted.append(held)
    return replace(rounds, total=total), tuple(counted)


def is_overtaken(rounds: Rounds, gateway: str) -> bool:
    """Tell whether a gateway's answer to the round at hand stands for its late update too."""
    return gateway in rounds.counted and gateway not in rounds.empty


def _admit(rounds: Rounds, held: HoldUpdate) -> Arrays | None:
    """Return what an update that came late adds to the sum of the phase at hand; None where it is not admitted now."""
    update, _ = wire.decode(held.body, len(held.body), is_verified=True)
    if not update:
        return update
    try:
        return rounds.algorithm.phases[rounds.server.phase].admit(rounds.server, update)
    except UpdateError:
        return None


def drop_held(rounds: Rounds, context: Context, counted: tuple[HoldUpdate, ...]) -> tuple[Rounds, list[Effect]]:
    """Return the training after the close: nothing is kept, what was counted is known as such, and who may still answer
    the round that was closed.
    """
    dropped: list[Effect] = [DropHeld()] if rounds.held or rounds.counted else []
    before = {**rounds.counted_before, **{one.gateway: one.digest for one in counted}}
    late = {name: index for name, index in rounds.counted_late.items() if name not in rounds.counted}
    late |= {one.gateway: rounds.server.round_index for one in counted}
    asked_before: dict[int, tuple[str, ...] | None] = {}
    if is_kept(rounds, context):
        oldest = rounds.server.round_index + 1 - context.settings.rounds.late_rounds
        asked_before = {index: asked for index, asked in rounds.asked_before.items() if index >= oldest}
        asked_before[rounds.server.round_index] = rounds.asked
    rounds = replace(rounds, held={}, counted_before=before, counted_late=late, asked_before=asked_before)
    return rounds, dropped
