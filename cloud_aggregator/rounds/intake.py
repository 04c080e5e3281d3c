"""An update's way in: chunks -> whole -> judged -> counted once -> acknowledged.

An update is counted in the transaction that also remembers its sender, and acknowledged after it; so it is counted
exactly once whatever is sent again and whenever the power fails.
"""

from __future__ import annotations

from typing import Any

from fedgate.cloud_aggregator.events import Effect, HoldUpdate, Log, Publish
from fedgate.cloud_aggregator.rounds import late_updates, uploads
from fedgate.cloud_aggregator.state import State, is_growing, save_training, topic
from fedgate.config.identity.pki import MEMBER_DIGITS
from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import Keys, MessageError, Receipt
from fedgate.config.protocol.transfer import parse_chunk
from fedgate.models.arrays import Arrays
from fedgate.models.federated.algorithm import UpdateError
from fedgate.models.federated.masking_cloud import member_of
from fedgate.models.records import replace

REASON_LENGTH = 500


def chunk_arrived(state: State, gateway: str, payload: bytes) -> tuple[State, list[Effect]]:
    """Take in a chunk of a gateway's update; raises `MessageError` for one that makes no sense.

    Chunks of a gateway that never told its status are dropped without a receipt: it sends them again, and by then its
    status is here; a stranger's would only fill the memory.
    """
    header, piece = parse_chunk(payload)
    if gateway not in state.gateways:
        raise MessageError(f"{gateway} has not told its status yet")
    state = replace(state, bytes_received=state.bytes_received + len(payload))
    digest, is_last = header.digest, header.index + 1 == header.chunks
    held = state.held.get(gateway)
    if digest in (state.counted.get(gateway), state.counted_before.get(gateway), held.digest if held else None):
        return state, _receipt(state, gateway, digest) if is_last else []
    if header.size_bytes > state.settings.limits.max_update_bytes:
        reason = f"update of {header.size_bytes} bytes, at most {state.settings.limits.max_update_bytes} are taken"
        return _refuse(state, gateway, digest, reason) if is_last else (state, [])
    state, body = uploads.add(state, gateway, header, piece)
    if body is None:
        return state, []
    state, effects = _receive_update(state, gateway, digest, body)
    state, asked = uploads.unpark(state)
    return state, [*effects, *asked]


def _receive_update(state: State, gateway: str, digest: str, body: bytes) -> tuple[State, list[Effect]]:
    try:
        update, meta = wire.decode(body, state.settings.limits.max_update_bytes)
    except wire.WireError as error:
        return _refuse(state, gateway, digest, str(error))
    expected = {"run": state.run, "round_index": state.server.round_index, "phase": state.server.phase}
    answers = {key: meta.get(key) for key in sorted(expected)}
    if reason := _not_now(state, gateway, is_present=answers == expected):
        return state, [Log("warning", f"update of {gateway} is not taken now: {reason}")]
    try:
        if late_updates.is_kept(state) and late_updates.age(state, meta) > 0:
            held = HoldUpdate(gateway, state.run, int(meta["round_index"]), digest, body)
            state, effects = late_updates.hold(state, gateway, update, held)
            return state, [*effects, *_receipt(state, gateway, digest)]
        if answers != expected:
            raise UpdateError(f"it answers {answers}, the present round is {expected}{_older_store(answers, expected)}")
    except UpdateError as error:
        return _refuse(state, gateway, digest, str(error))
    held = HoldUpdate(gateway, state.run, state.server.round_index, digest, body)
    return _answer(state, held, update, meta)


def _answer(state: State, held: HoldUpdate, update: Arrays, meta: dict[str, Any]) -> tuple[State, list[Effect]]:
    """Count an update that answers the present round, or refuse it; then this gateway is not waited for."""
    gateway, digest = held.gateway, held.digest
    if gateway in state.counted:
        return _refuse(state, gateway, digest, "another update of this gateway was counted in this round")
    phase = state.algorithm.phases[state.server.phase]
    try:
        if reason := _unfit(state, gateway, meta):
            raise UpdateError(reason)
        admitted = phase.admit(state.server, update) if update else {}
        if reason := _not_its_own(state, gateway, admitted):
            raise UpdateError(reason)
        total = phase.tally.merge(state.total, admitted) if update else state.total
    except UpdateError as error:
        state = replace(state, turned_away=state.turned_away | {gateway})
        return _refuse(state, gateway, digest, str(error))
    state = replace(
        state,
        total=total,
        counted={**state.counted, gateway: digest},
        answered={**state.answered, gateway: state.server.round_index},
        remembered={**state.remembered, gateway: digest} if update else state.remembered,
        turned_away=state.turned_away - {gateway},
        empty=state.empty if update else (*state.empty, gateway),
        first_update_ns=state.now_ns if state.first_update_ns is None else state.first_update_ns,
    )
    stored = [held] if update and is_growing(state) else []
    return state, [*stored, save_training(state), *_receipt(state, gateway, digest)]


def _not_now(state: State, gateway: str, *, is_present: bool) -> str:
    """Return why nothing of a gateway can be counted for a while; empty where it can.

    That is no refusal, which is for good: its sender has no other answer to this round. It sends this one again.
    """
    if is_present and not state.opened:
        return f"round {state.server.round_index} is not open"
    sessions = state.sessions.get(gateway)
    if sessions is not None and sessions.is_twin:
        return "two devices speak under this gateway's id; nothing is counted of it while they do"
    return ""


def _older_store(answers: dict[str, Any], expected: dict[str, Any]) -> str:
    """Return what it means that an update answers a later round of the training; nothing where it does not."""
    index, present = answers["round_index"], int(expected["round_index"])
    if answers["run"] != expected["run"] or type(index) is not int or index <= present:
        return ""
    return ": this store is older than what its gateways answered, see docs/reference/operations.md, How to restore"


def _unfit(state: State, gateway: str, meta: dict[str, Any]) -> str:
    """Return why the answer of a gateway to this round cannot be counted whatever is in it; empty where it can."""
    index = state.server.round_index
    if state.asked is not None and gateway not in state.asked:
        return f"this gateway is not asked in round {index}"
    remembered = state.remembered.get(gateway, "")
    after = str(meta.get("after", ""))
    if state.algorithm.remembers and after != remembered:
        return (
            f"it goes on after {after[:12] or 'none'}, and the last of it that was counted here is "
            f"{remembered[:12] or 'none'}: one of the two stores was lost or set back, so rows would count twice or "
            "not at all; put the store back, or begin a new training with another seed"
        )
    return ""


def _not_its_own(state: State, gateway: str, update: Arrays) -> str:
    """Return why the keys of a masked round are not taken of a gateway; empty where they are, and for other updates."""
    member = member_of(update)
    if member is None:
        return ""
    registry = state.registry
    if member and registry is not None and member not in {one.key[:MEMBER_DIGITS] for one in registry.of(gateway)}:
        return "what it sends is vouched for by a key that is not its own"
    members = Keys.from_bytes(state.keys).members if state.keys else ()
    if members and member not in members:
        return "its key is none of those that may take part in masked sums, see 'cloud-aggregator keys members'"
    return ""


def _refuse(state: State, gateway: str, digest: str, reason: str) -> tuple[State, list[Effect]]:
    state = replace(state, refused=state.refused + 1)
    log = Log("warning", f"update of {gateway} refused: {reason[:REASON_LENGTH]}")
    return state, [*_receipt(state, gateway, digest, reason), log]


def _receipt(state: State, gateway: str, item: str, reason: str = "") -> list[Effect]:
    receipt = Receipt(accepted=not reason, reason=reason[:REASON_LENGTH])
    return [Publish(topic(state, gateway, "receipt", item), receipt.to_bytes())]
