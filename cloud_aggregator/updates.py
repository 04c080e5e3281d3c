"""An update's way in: chunks -> whole -> judged -> counted once -> acknowledged.

An update is counted in the transaction that also remembers its sender, and acknowledged after it; so it is counted
exactly once whatever is sent again and whenever the power fails.
"""

from __future__ import annotations

from dataclasses import replace

from cloud_aggregator.events import Effect, Log, Publish
from cloud_aggregator.state import Incoming, State, save_training, topic
from config import wire
from config.messages import MessageError, Receipt, Transfer, Want
from config.transfer import ASK_MAX, Assembly, ChunkHeader, parse_chunk
from models.federated.algorithm import UpdateError

NS = 1_000_000_000
RESEND_S = 5.0  # how long the chunks of an update may pause before the missing ones are asked for
ASKS_MAX = 10  # without an answer; its sender will begin anew when it can
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
    if digest in (state.counted.get(gateway), state.counted_before.get(gateway)):
        return state, _receipt(state, gateway, digest) if is_last else []
    if header.size_bytes > state.settings.limits.max_update_bytes:
        reason = f"update of {header.size_bytes} bytes, at most {state.settings.limits.max_update_bytes} are taken"
        return _refuse(state, gateway, digest, reason) if is_last else (state, [])
    assembly, body = _assembled(state, gateway, header, piece)
    others = {other: value for other, value in state.incoming.items() if other != gateway}
    if body is None:
        return replace(state, incoming={**others, gateway: Incoming(assembly, state.now_ns)}), []
    return _update(replace(state, incoming=others), gateway, digest, body)


def _assembled(state: State, gateway: str, header: ChunkHeader, piece: bytes) -> tuple[Assembly, bytes | None]:
    """Return the transfer with one more chunk, and its body where it is whole; a damaged transfer begins anew."""
    transfer = Transfer(digest=header.digest, size_bytes=header.size_bytes, chunks=header.chunks)
    known = state.incoming.get(gateway)
    assembly = Assembly(transfer)
    if known is not None and known.assembly.transfer == transfer:  # a gateway works on one update at a time
        assembly = known.assembly
    try:
        assembly = assembly.add(header, piece)
        return assembly, None if assembly.missing else assembly.body()
    except MessageError:
        return Assembly(transfer), None


def _update(state: State, gateway: str, digest: str, body: bytes) -> tuple[State, list[Effect]]:
    try:
        update, meta = wire.decode(body, state.settings.limits.max_update_bytes)
    except wire.WireError as error:
        return _refuse(state, gateway, digest, str(error))
    expected = {"run": state.run, "round_index": state.server.round_index, "phase": state.server.phase}
    if meta != expected:
        return _refuse(state, gateway, digest, f"it answers {meta}, the present round is {expected}")
    if not state.opened:
        return _refuse(state, gateway, digest, f"round {state.server.round_index} is not open")
    if gateway in state.counted:
        return _refuse(state, gateway, digest, "another update of this gateway was counted in this round")
    if state.asked is not None and gateway not in state.asked:
        return _refuse(state, gateway, digest, f"this gateway is not asked in round {state.server.round_index}")
    phase = state.algorithm.phases[state.server.phase]
    try:
        total = phase.tally.merge(state.total, phase.admit(state.server, update)) if update else state.total
    except UpdateError as error:
        return _refuse(state, gateway, digest, str(error))
    first_ns = state.now_ns if state.first_update_ns is None else state.first_update_ns
    empty = state.empty if update else (*state.empty, gateway)
    counted = {**state.counted, gateway: digest}
    state = replace(state, total=total, counted=counted, empty=empty, first_update_ns=first_ns)
    return state, [save_training(state), *_receipt(state, gateway, digest)]


def _refuse(state: State, gateway: str, digest: str, reason: str) -> tuple[State, list[Effect]]:
    state = replace(state, refused=state.refused + 1)
    told = Log("warning", f"update of {gateway} refused: {reason[:REASON_LENGTH]}")
    return state, [*_receipt(state, gateway, digest, reason), told]


def _receipt(state: State, gateway: str, item: str, reason: str = "") -> list[Effect]:
    receipt = Receipt(accepted=not reason, reason=reason[:REASON_LENGTH])
    return [Publish(topic(state, gateway, "receipt", item), receipt.to_bytes())]


def ask_for_missing(state: State) -> tuple[State, list[Effect]]:
    """Ask gateways for the chunks of updates that have paused; forget those that do not answer."""
    effects: list[Effect] = []
    incoming = dict(state.incoming)
    for gateway, known in state.incoming.items():
        if state.now_ns - known.heard_ns < RESEND_S * NS:
            continue
        if known.asks >= ASKS_MAX:
            del incoming[gateway]
            continue
        want = Want(missing=known.assembly.missing[:ASK_MAX])
        effects.append(Publish(topic(state, gateway, "resend", known.assembly.transfer.digest), want.to_bytes()))
        incoming[gateway] = replace(known, heard_ns=state.now_ns, asks=known.asks + 1)
    return replace(state, incoming=incoming), effects
