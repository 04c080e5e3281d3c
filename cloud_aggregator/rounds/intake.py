"""An update's way in: chunks -> whole -> judged -> counted once -> acknowledged.

An update is counted in the transaction that also remembers its sender, and acknowledged after it; so it is counted
exactly once whatever is sent again and whenever the power fails.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from fedgate.cloud_aggregator.context import Context
from fedgate.cloud_aggregator.events import Effect, HoldUpdate, Log, Publish
from fedgate.cloud_aggregator.rounds import late_updates
from fedgate.cloud_aggregator.rounds.rounds import Rounds, save_training, store_counted
from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import Keys, MessageError
from fedgate.config.protocol.transfer import parse_chunk
from fedgate.models.arrays import Arrays
from fedgate.models.federated.protocol.schema import UpdateError
from fedgate.models.federated.secure_aggregation.server import member_of

REASON_LENGTH = 500
REFUSALS_MAX = 10  # gateways, of which a round keeps why


class Sender(NamedTuple):
    """A gateway that sends an update, as the site knows it."""

    gateway: str
    has_reported: bool  # its status
    is_twin: bool  # two devices speak under its name
    members: frozenset[str] | None  # its keys, as masked sums name them; None: the site keeps no registry


def receive_chunk(rounds: Rounds, context: Context, sender: Sender, payload: bytes) -> tuple[Rounds, list[Effect]]:
    """Take in a chunk of a gateway's update; raises `MessageError` for one that makes no sense.

    Chunks of a gateway that never reported its status are dropped without a receipt: it sends them again, and by then
    its status is here; a stranger's would only fill the memory.
    """
    header, piece, gateway = *parse_chunk(payload), sender.gateway
    if not sender.has_reported:
        raise MessageError(f"{gateway} has not reported its status yet")
    received = rounds.bytes_received + len(payload)
    digest, is_last = header.digest, header.index + 1 == header.chunks
    held = rounds.held.get(gateway)
    if digest in (rounds.counted.get(gateway), rounds.counted_before.get(gateway), held.digest if held else None):
        rounds = replace(rounds, bytes_received=received)
        counts_in = late_updates.counts_in(rounds, gateway, digest)
        return rounds, [context.receipt(gateway, digest, counts_in=counts_in)] if is_last else []
    if header.size_bytes > context.settings.limits.max_update_bytes:
        rounds = replace(rounds, bytes_received=received)
        reason = f"update of {header.size_bytes} bytes, at most {context.settings.limits.max_update_bytes} are taken"
        return _refuse(rounds, context, gateway, digest, reason) if is_last else (rounds, [])
    # A gateway works on one update at a time, so another takes the place of the one before.
    uploads = rounds.uploads.expect(gateway, header.transfer, context.uptime_ns, _budget_bytes(rounds, context))
    uploads, body = uploads.add(gateway, header, piece, context.uptime_ns)
    rounds = replace(rounds, uploads=uploads, bytes_received=received)
    if body is None:
        return rounds, []
    rounds, effects = _receive_update(rounds, context, sender, digest, body)
    rounds, asked = ask_for_missing(rounds, context)
    return rounds, [*effects, *asked]


def _budget_bytes(rounds: Rounds, context: Context) -> int:
    """Return how much may come at once: a thousand gateways that answer at once cost the memory of a few.

    What is held goes only when a round closes, so one update has space beside it however much that is: also where the
    limits were wider when it was kept.
    """
    limits = context.settings.limits
    return max(limits.incoming_bytes - sum(len(one.body) for one in rounds.held.values()), limits.max_update_bytes)


def ask_for_missing(rounds: Rounds, context: Context) -> tuple[Rounds, list[Effect]]:
    """Ask gateways for the chunks of updates that have paused, or that were parked and have space now."""
    uploads, asked = rounds.uploads.ask(context.uptime_ns, _budget_bytes(rounds, context))
    wants: list[Effect] = [
        Publish(context.topic(gateway, "resend", one.transfer.digest), one.want.to_bytes())
        for gateway, one in asked.items()
    ]
    return replace(rounds, uploads=uploads), wants


def _receive_update(
    rounds: Rounds, context: Context, sender: Sender, digest: str, body: bytes
) -> tuple[Rounds, list[Effect]]:
    gateway = sender.gateway
    try:
        update, meta = wire.decode(body, context.settings.limits.max_update_bytes, is_verified=True)
    except wire.WireError as error:
        return _refuse(rounds, context, gateway, digest, str(error))
    expected = {"run": rounds.run, "round_index": rounds.server.round_index, "phase": rounds.server.phase}
    answers = {key: meta.get(key) for key in sorted(expected)}
    if reason := _find_hindrance(rounds, sender, is_present=answers == expected):
        about = {"gateway": gateway, "digest": digest}
        return rounds, [Log("warning", f"update of {gateway} is not taken now: {reason}", about)]
    try:
        if late_updates.is_kept(rounds, context) and late_updates.age(rounds, meta) > 0:
            held = HoldUpdate(gateway, rounds.run, int(meta["round_index"]), digest, body)
            rounds, effects = late_updates.hold(rounds, context, gateway, update, held)
            return rounds, [*effects, context.receipt(gateway, digest, counts_in=rounds.server.round_index)]
        if answers != expected:
            raise UpdateError(
                f"it answers {answers}, the present round is {expected}{_explain_later_round(answers, expected)}"
            )
    except UpdateError as error:
        return _refuse(rounds, context, gateway, digest, str(error))
    held = HoldUpdate(gateway, rounds.run, rounds.server.round_index, digest, body)
    return _answer(rounds, context, sender, held, update, meta)


def _answer(
    rounds: Rounds, context: Context, sender: Sender, held: HoldUpdate, update: Arrays, meta: dict[str, Any]
) -> tuple[Rounds, list[Effect]]:
    """Count an update that answers the present round, or refuse it; then this gateway is not waited for."""
    gateway, digest = held.gateway, held.digest
    if gateway in rounds.counted:
        return _refuse(rounds, context, gateway, digest, "another update of this gateway was counted in this round")
    phase = rounds.algorithm.phases[rounds.server.phase]
    try:
        if reason := _unfit(rounds, gateway, meta):
            raise UpdateError(reason)
        arrived = phase.unpacked(rounds.server, update) if update else {}
        admitted = phase.admit_unpacked(rounds.server, arrived) if update else {}
        if reason := _find_foreign_key(context, sender, admitted):
            raise UpdateError(reason)
        total = phase.reducer.merge(rounds.total, admitted) if update else rounds.total
    except UpdateError as error:
        rounds = replace(rounds, turned_away=rounds.turned_away | {gateway})
        return _refuse(rounds, context, gateway, digest, str(error))
    rounds = replace(
        rounds,
        total=total,
        counted={**rounds.counted, gateway: digest},
        answered={**rounds.answered, gateway: rounds.server.round_index},
        remembered={**rounds.remembered, gateway: digest} if update else rounds.remembered,
        turned_away=rounds.turned_away - {gateway},
        empty=rounds.empty if update else (*rounds.empty, gateway),
        first_update_ns=context.uptime_ns if rounds.first_update_ns is None else rounds.first_update_ns,
    )
    rounds, stored = store_counted(rounds, held, arrived, admitted) if update else (rounds, [])
    return rounds, [*stored, save_training(rounds, context.anchor_ns), context.receipt(gateway, digest)]


def _find_hindrance(rounds: Rounds, sender: Sender, *, is_present: bool) -> str:
    """Return why nothing of a gateway can be counted for a while; empty where it can.

    That is no refusal, which is for good: its sender has no other answer to this round. It sends this one again.
    """
    if is_present and not rounds.opened:
        return f"round {rounds.server.round_index} is not open"
    if sender.is_twin:
        return "two devices speak under this gateway's id; nothing is counted of it while they do"
    return ""


def _explain_later_round(answers: dict[str, Any], expected: dict[str, Any]) -> str:
    """Return what it means that an update answers a later round of the training; nothing where it does not."""
    index, present = answers["round_index"], int(expected["round_index"])
    if answers["run"] != expected["run"] or type(index) is not int or index <= present:
        return ""
    return ": this store is older than what its gateways answered, see docs/reference/operations.md, How to restore"


def _unfit(rounds: Rounds, gateway: str, meta: dict[str, Any]) -> str:
    """Return why the answer of a gateway to this round cannot be counted whatever is in it; empty where it can."""
    index = rounds.server.round_index
    if rounds.asked is not None and gateway not in rounds.asked:
        return f"this gateway is not asked in round {index}"
    remembered = rounds.remembered.get(gateway, "")
    after = str(meta.get("after", ""))
    if rounds.algorithm.remembers and after != remembered:
        return (
            f"it goes on after {after[:12] or 'none'}, and the last of it that was counted here is "
            f"{remembered[:12] or 'none'}: one of the two stores was lost or set back, so rows would count twice or "
            "not at all; put the store back, or begin a new training with another seed"
        )
    return ""


def _find_foreign_key(context: Context, sender: Sender, update: Arrays) -> str:
    """Return why the keys of a masked round are not taken of a gateway; empty where they are, and for other updates."""
    member = member_of(update)
    if member is None:
        return ""
    if member and sender.members is not None and member not in sender.members:
        return "what it sends is vouched for by a key that is not its own"
    members = Keys.from_bytes(context.keys).members if context.keys else ()
    if members and member not in members:
        return "its key is none of those that may take part in masked sums, see 'cloud-aggregator keys members'"
    return ""


def _refuse(rounds: Rounds, context: Context, gateway: str, digest: str, reason: str) -> tuple[Rounds, list[Effect]]:
    refusals = rounds.refusals
    if len(refusals) < REFUSALS_MAX and gateway not in dict(refusals):  # one of each: who sends on hides nobody's
        refusals = (*refusals, (gateway, reason[:REASON_LENGTH]))
    rounds = replace(rounds, refused=rounds.refused + 1, refusals=refusals)
    about = {"gateway": gateway, "digest": digest}
    log = Log("warning", f"update of {gateway} refused: {reason[:REASON_LENGTH]}", about)
    return rounds, [context.receipt(gateway, digest, reason[:REASON_LENGTH]), log]
