"""A round: invite -> collect -> judge -> count once -> close -> advance -> perhaps release -> invite again.

An update is counted in the transaction that also remembers its sender, and acknowledged after it; so it is counted
exactly once whatever is sent again and whenever the power fails.
"""

from __future__ import annotations

from dataclasses import replace

from cloud_aggregator import release
from cloud_aggregator.events import Effect, Log, Publish, RecordModel, RecordRound
from cloud_aggregator.state import Incoming, State, save_training, topic
from config import wire
from config.messages import MessageError, Receipt, RoundOpen, Transfer, Want
from config.topics import ALL
from config.transfer import Assembly, describe, parse_chunk, split
from models.arrays import select
from models.federated.algorithm import UpdateError, close_round

NS = 1_000_000_000
RESEND_S = 5.0  # how long the chunks of an update may pause before the missing ones are asked for


def open_round(state: State) -> tuple[State, list[Effect]]:
    """Publish the invitation, retained for those who are away, and the shared parameters for those who are here."""
    choice, body = state.settings.algorithm, state.shared_body
    message = RoundOpen(
        run=state.run,
        round_index=state.server.round_index,
        phase=state.server.phase,
        algorithm=choice.name,
        settings=choice.settings,
        seed=choice.seed,
        features=state.settings.features,
        shared=describe(body, state.settings.limits.max_payload_bytes),
        cohort=_cohort(state),
    )
    invitation = Publish(topic(state, ALL, "round", "open"), message.to_bytes(), retain=True)
    told = Log("info", f"round {state.server.round_index} of {choice.name} is open")
    return replace(state, opened=True), [invitation, *chunks(state, ALL, body), told]


def _cohort(state: State) -> tuple[str, ...] | None:
    """Return who is asked: everyone, or a fraction of those who could answer now."""
    rounds = state.settings.rounds
    if rounds.fraction == 1.0:
        return None
    seed = state.settings.algorithm.seed
    return tuple(select(seed, state.server.round_index, ready_gateways(state), rounds.fraction))


def ready_gateways(state: State) -> list[str]:
    """Return the gateways that could answer a round now."""
    return sorted(gateway for gateway, status in state.gateways.items() if status.ready)


def chunks(state: State, gateway: str, body: bytes, missing: tuple[int, ...] = ()) -> list[Effect]:
    """Return the chunks of a body for one gateway or all of them; all chunks where none are named."""
    pieces = split(body, state.settings.limits.max_payload_bytes)
    digest = describe(body, state.settings.limits.max_payload_bytes).digest
    wanted = [index for index in missing if index < len(pieces)] or range(len(pieces))
    return [Publish(topic(state, gateway, "chunk", digest), pieces[index]) for index in wanted]


def chunk_arrived(state: State, gateway: str, payload: bytes) -> tuple[State, list[Effect]]:
    """Take in a chunk of a gateway's update; raises `MessageError` for one that makes no sense."""
    header, piece = parse_chunk(payload)
    if header.size_bytes > state.settings.limits.max_update_bytes:
        reason = f"update of {header.size_bytes} bytes, at most {state.settings.limits.max_update_bytes} are taken"
        return state, _receipt(state, gateway, header.digest, reason)
    known = state.incoming.get(gateway)
    if known is None or known.assembly.transfer.digest != header.digest:  # a gateway works on one update at a time
        transfer = Transfer(digest=header.digest, size_bytes=header.size_bytes, chunks=header.chunks)
        known = Incoming(Assembly(transfer), state.now_ns)
    assembly = known.assembly.add(header, piece)
    if assembly.missing:
        incoming = {**state.incoming, gateway: Incoming(assembly, state.now_ns)}
        return replace(state, incoming=incoming), []
    rest = {other: value for other, value in state.incoming.items() if other != gateway}
    return _update(replace(state, incoming=rest), gateway, header.digest, assembly.body())


def _update(state: State, gateway: str, digest: str, body: bytes) -> tuple[State, list[Effect]]:
    try:
        update, meta = wire.decode(body, state.settings.limits.max_update_bytes)
    except wire.WireError as error:
        return _refuse(state, gateway, digest, str(error))
    expected = {"run": state.run, "round_index": state.server.round_index, "phase": state.server.phase}
    if meta != expected or not state.opened:
        return _refuse(state, gateway, digest, f"it answers {meta}, the open round is {expected}")
    if gateway in state.counted:
        return state, _receipt(state, gateway, digest)
    phase = state.algorithm.phases[state.server.phase]
    try:
        total = phase.tally.merge(state.total, phase.admit(state.server, update)) if update else state.total
    except UpdateError as error:
        return _refuse(state, gateway, digest, str(error))
    first_ns = state.now_ns if state.first_update_ns is None else state.first_update_ns
    state = replace(state, total=total, counted=(*state.counted, gateway), first_update_ns=first_ns)
    saved, receipt = save_training(state), _receipt(state, gateway, digest)
    state, closing = close_if_due(state)
    return state, [saved, *receipt, *closing]


def _refuse(state: State, gateway: str, digest: str, reason: str) -> tuple[State, list[Effect]]:
    state = replace(state, refused=state.refused + 1)
    text = f"update of {gateway} refused: {reason}"
    return state, [*_receipt(state, gateway, digest, reason), Log("warning", text)]


def _receipt(state: State, gateway: str, item: str, reason: str = "") -> list[Effect]:
    receipt = Receipt(accepted=not reason, reason=reason[:500])
    return [Publish(topic(state, gateway, "receipt", item), receipt.to_bytes())]


def ask_for_missing(state: State) -> tuple[State, list[Effect]]:
    """Ask gateways for the chunks of updates that have paused."""
    effects: list[Effect] = []
    incoming = dict(state.incoming)
    for gateway, known in state.incoming.items():
        if state.now_ns - known.heard_ns >= RESEND_S * NS:
            digest = known.assembly.transfer.digest
            want = Want(missing=known.assembly.missing)
            effects.append(Publish(topic(state, gateway, "resend", digest), want.to_bytes()))
            incoming[gateway] = replace(known, heard_ns=state.now_ns)
    return replace(state, incoming=incoming), effects


def close_if_due(state: State) -> tuple[State, list[Effect]]:
    """Close the round when all who can have answered, or when the deadline has passed, and a quorum is there."""
    rounds = state.settings.rounds
    if not state.opened or len(state.counted) < rounds.quorum or state.first_update_ns is None:
        return state, []
    asked = _cohort(state) or tuple(ready_gateways(state))
    late = state.now_ns - state.first_update_ns >= rounds.deadline_s * NS
    if not late and not set(asked) <= set(state.counted):
        return state, []
    return _close(state)


def _close(state: State) -> tuple[State, list[Effect]]:
    record = RecordRound(
        run=state.run,
        round_index=state.server.round_index,
        algorithm=state.settings.algorithm.name,
        gateways=tuple(sorted(state.counted)),
        refused=state.refused,
        closed_ns=state.now_ns,
    )
    told = Log("info", f"round {record.round_index} closed with {len(record.gateways)} updates")
    useful = bool(state.total)
    state = replace(
        state,
        server=close_round(state.algorithm, state.server, state.total),
        total={},
        counted=(),
        refused=0,
        first_update_ns=None,
        opened=False,
        since_release=state.since_release + 1,
    )
    per_release = (state.settings.rounds.per_release or state.algorithm.rounds) * len(state.algorithm.phases)
    if state.since_release >= per_release and state.server.phase == 0:
        state, effects = _release(state, len(record.gateways)) if useful else (_rested(state), [])
        return state, [record, save_training(state), *effects, told]
    saved = save_training(state)
    state, opening = open_round(state)
    return state, [record, saved, told, *opening]


def _release(state: State, gateways: int) -> tuple[State, list[Effect]]:
    manifest, body = release.make(
        state.algorithm,
        state.server,
        state.key,
        version=state.manifest.version + 1 if state.manifest else 1,
        name=state.settings.algorithm.name,
        run=state.run,
        features=state.settings.features,
        max_payload_bytes=state.settings.limits.max_payload_bytes,
        gateways=gateways,
        created_ns=state.now_ns,
    )
    state = _rested(replace(state, manifest=manifest, model=body))
    told = Log("info", f"model {manifest.version} released: {len(body)} bytes, {manifest.model.digest[:12]}")
    return state, [RecordModel(manifest, body), *announce_model(state), told]


def _rested(state: State) -> State:
    rest_ns = round(state.settings.rounds.rest_s * NS)
    return replace(state, since_release=0, rest_until_ns=state.now_ns + rest_ns)


def announce_model(state: State) -> list[Effect]:
    """Return the retained manifest of the model in force and its chunks for all."""
    if state.manifest is None:
        return []
    manifest = Publish(topic(state, ALL, "manifest", "current"), state.manifest.to_bytes(), retain=True)
    return [manifest, *chunks(state, ALL, state.model)]


def wanted(state: State, gateway: str, digest: str, missing: tuple[int, ...]) -> list[Effect]:
    """Return the chunks a gateway asks for, of the model or of the shared parameters; raises `MessageError`."""
    if state.manifest is not None and digest == state.manifest.model.digest:
        return chunks(state, gateway, state.model, missing)
    body = state.shared_body
    if digest == describe(body, state.settings.limits.max_payload_bytes).digest:
        return chunks(state, gateway, body, missing)
    raise MessageError(f"{gateway} asks for {digest[:12]}, which is neither the model nor the shared parameters")
