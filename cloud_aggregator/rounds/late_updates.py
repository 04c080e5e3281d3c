"""Updates that come after their round was closed: kept for the next one, where the algorithm bears that.

A step along a sum of changes may take in a change that started from the parameters of a round before; a system of
equations, or rows that belong together, may not. What is kept is on disk before it is acknowledged. It is counted when
the next round is closed, unless its gateway was counted in that round itself: its newer word stands for both.
"""

from __future__ import annotations

from typing import Any

from fedgate.cloud_aggregator.events import DropHeld, Effect, HoldUpdate
from fedgate.cloud_aggregator.rounds.uploads import held_most_bytes
from fedgate.cloud_aggregator.state import State, admitted, is_growing, save_training
from fedgate.models.arrays import Arrays
from fedgate.models.federated.algorithm import Algorithm, UpdateError
from fedgate.models.records import replace


def bears(algorithm: Algorithm) -> bool:
    """Tell whether updates of an algorithm may be counted a round later: changes, of rounds that are one exchange."""
    phases = algorithm.phases[algorithm.setup :]
    return len(phases) == 1 and phases[0].tally.additive and phases[0].tally.bears == "error"


def is_kept(state: State) -> bool:
    """Tell whether late updates are kept in this training.

    Not where they are compressed: what a gateway left out of one it puts into the next, if told that it was counted.
    """
    is_compressed = state.settings.algorithm.settings.get("compression") is not None
    is_round = state.server.phase >= state.algorithm.setup
    return state.settings.rounds.late == "next-round" and is_round and bears(state.algorithm) and not is_compressed


def age(state: State, meta: dict[str, Any]) -> int:
    """Return how many rounds ago the round was closed that an update answers; 0 for one that answers no such round."""
    index, server = meta.get("round_index"), state.server
    is_of_training = meta.get("run") == state.run and meta.get("phase") == server.phase
    return server.round_index - index if is_of_training and type(index) is int and index < server.round_index else 0


def hold(state: State, gateway: str, update: Arrays, held: HoldUpdate) -> tuple[State, list[Effect]]:
    """Keep an update for the round that is open, or will be next.

    Raises `UpdateError` with the reason where it is too old, was not asked for, is a second one, or cannot count.
    """
    most, index = state.settings.rounds.late_rounds, held.round_index
    found = state.server.round_index - index
    if found > most:
        raise UpdateError(
            f"it answers round {index}, {found} rounds ago; updates are kept for {most} at most, see rounds.late_rounds"
        )
    if state.answered.get(gateway, -1) >= index:
        raise UpdateError(f"another update of this gateway was counted or kept since round {index}")
    asked = state.asked_before.get(index, ())
    if asked is not None and gateway not in asked:
        raise UpdateError(f"this gateway was not asked in round {index}")
    if update:
        # As it will be when the round is closed: by this server.
        state.algorithm.phases[state.server.phase].admit(state.server, update)
    others = {name: one for name, one in state.held.items() if name != gateway}
    most_bytes = held_most_bytes(state.settings.limits)
    if sum(len(one.body) for one in others.values()) + len(held.body) > most_bytes:
        raise UpdateError(f"of late updates {most_bytes} bytes are kept at most, see limits.incoming_bytes")
    state = replace(state, held={**others, gateway: held}, answered={**state.answered, gateway: index})
    return state, [held, save_training(state)]


def merged(state: State) -> tuple[State, tuple[HoldUpdate, ...]]:
    """Return the state with what was kept in the sum of the round that closes, in the order of arrival, and which.

    Those whose gateway was counted in the round itself are left out, and those that the server, which has gone on since
    they were kept, no longer admits.
    """
    tally, total = state.algorithm.phases[state.server.phase].tally, state.total
    counted: list[HoldUpdate] = []
    for gateway, held in state.held.items():
        if gateway in state.counted:
            continue
        update = admitted(state, held)
        if update is not None:
            total = tally.merge(total, update) if update else total
            counted.append(held)
    return replace(state, total=total), tuple(counted)


def emptied(state: State, counted: tuple[HoldUpdate, ...]) -> tuple[State, list[Effect]]:
    """Return the state after the close: nothing is kept, what was counted is known as such, and who may still answer
    the round that was closed.
    """
    dropped: list[Effect] = [DropHeld()] if state.held or (is_growing(state) and state.counted) else []
    before = {**state.counted_before, **{one.gateway: one.digest for one in counted}}
    asked_before: dict[int, tuple[str, ...] | None] = {}
    if is_kept(state):
        oldest = state.server.round_index + 1 - state.settings.rounds.late_rounds
        asked_before = {index: asked for index, asked in state.asked_before.items() if index >= oldest}
        asked_before[state.server.round_index] = state.asked
    return replace(state, held={}, counted_before=before, asked_before=asked_before), dropped
