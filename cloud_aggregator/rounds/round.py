"""A round: invite -> collect (`intake`) -> close -> advance -> perhaps release -> invite again.

A round that can close does: whoever vanishes is waited for until the deadline and no longer, and where the deadline
finds no quorum among those who were drawn, everyone is asked. With fewer gateways than the quorum it waits for more.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Literal

from fedgate.cloud_aggregator.attempts import attempt
from fedgate.cloud_aggregator.context import Context, Statuses
from fedgate.cloud_aggregator.events import BuildModel, HoldUpdate, Log, Publish, RecordRound, Wanted
from fedgate.cloud_aggregator.names import list_first
from fedgate.cloud_aggregator.rounds import late_updates
from fedgate.cloud_aggregator.rounds.figures import describe_advance
from fedgate.cloud_aggregator.rounds.rounds import Rounds, increment, pack_shared, save_training
from fedgate.cloud_aggregator.rounds.set_back import describe_set_back
from fedgate.config.protocol.messages import RoundOpen, round_number
from fedgate.config.protocol.topics import ALL
from fedgate.models.arrays import alike, finite, generator, select
from fedgate.models.federated.compression_default import update_size
from fedgate.models.federated.protocol.algorithm import Server, close_round, is_silent
from fedgate.models.time_units import NS

REMIND_S = 300.0  # brokers drop messages silently: an invitation or a manifest may never have arrived
LOST_S = 600.0  # by then whoever holds an answer has sent it
ABANDONED_KEPT = 64  # rounds: a gateway that was away for more of them is wrong by a step of rounding
DOUBLINGS_MAX = 8  # of that time: ten minutes become 43 hours


def may_open(rounds: Rounds, context: Context, statuses: Statuses) -> bool:
    """Tell whether a round can be announced now: drawing a share of the gateways needs gateways to draw from."""
    table = context.settings.rounds
    is_drawn = rounds.asked_round >= rounds.server.cohort_index
    is_enough = table.fraction == 1.0 or is_drawn or len(ready_gateways(rounds, statuses)) >= table.quorum
    return is_enough and context.uptime_ns >= rounds.rest_until_ns


def open_round(rounds: Rounds, context: Context, statuses: Statuses) -> tuple[Rounds, list[Wanted]]:
    """Publish the invitation, retained for those who are away, and the shared parameters for those who are here.

    A round that is open is announced anew, and its parameters are not sent again: who lacks them asks. Where no round
    may open now, the invitation to the one before is taken back.
    """
    if not may_open(rounds, context, statuses):
        return rounds, [Publish(context.topic(ALL, "round", "open"), b"", retain=True)]
    if rounds.asked_round < rounds.server.cohort_index:  # who takes part in one phase is asked again in the next
        rounds = replace(rounds, asked=_draw(rounds, context, statuses), asked_round=rounds.server.round_index)
    text = f"round {rounds.server.round_index} of {context.settings.algorithm.name} is open"
    log = Log("info", text, _name_round(rounds))
    if rounds.opened:
        rounds = replace(rounds, invited_ns=context.uptime_ns)
        return rounds, [make_invitation(rounds, context)]
    shared = rounds.shared or pack_shared(rounds.server, context.settings.limits.max_payload_bytes)
    # Once: a service that was restarted since need not send it again, who lacks it asks.
    sent = (
        context.make_chunks(ALL, shared)
        if context.is_connected and rounds.sent_round < rounds.server.round_index
        else []
    )
    sent_round = rounds.server.round_index if sent else rounds.sent_round
    rounds = replace(rounds, opened=True, opened_ns=context.uptime_ns, invited_ns=context.uptime_ns)
    rounds = replace(rounds, shared=shared, sent_round=sent_round, rest_until_ns=0)
    return rounds, [save_training(rounds, context.anchor_ns), make_invitation(rounds, context), *sent, log]


def _name_round(rounds: Rounds) -> dict[str, object]:
    return {"run": rounds.run, "round": rounds.server.round_index}


def make_invitation(rounds: Rounds, context: Context) -> Publish:
    """Return the announcement of the open round."""
    choice = context.settings.algorithm
    shared = rounds.shared or pack_shared(rounds.server, context.settings.limits.max_payload_bytes)
    message = RoundOpen(
        run=rounds.run,
        round_index=rounds.server.round_index,
        phase=rounds.server.phase,
        algorithm=choice.name,
        settings=choice.settings,
        seed=choice.seed,
        features=context.settings.features,
        shared=shared.transfer,
        cohort=rounds.asked,
        libraries=rounds.algorithm.libraries,
        training=rounds.training,
        abandoned=rounds.abandoned,
    )
    return Publish(context.topic(ALL, "round", "open"), context.sign(message).to_bytes(), retain=True)


def _draw(rounds: Rounds, context: Context, statuses: Statuses) -> tuple[str, ...] | None:
    """Draw who is asked: everyone, or a fraction of those who could answer now, and never fewer than the quorum."""
    table, ready = context.settings.rounds, ready_gateways(rounds, statuses)
    if table.fraction == 1.0:
        return None
    fraction = max(table.fraction, table.quorum / len(ready))
    index = rounds.server.cohort_index if table.redraw else 0
    return tuple(select(context.settings.algorithm.seed, index, ready, fraction))


def remind(rounds: Rounds, context: Context, statuses: Statuses, twins: Set[str]) -> tuple[Rounds, list[Wanted]]:
    """Repeat the invitation for those who seem not to have received it."""
    if context.uptime_ns - rounds.invited_ns < REMIND_S * NS:
        return rounds, []
    return replace(rounds, invited_ns=context.uptime_ns), _repeat_invitations(rounds, context, statuses, twins)


def compare_store(rounds: Rounds, context: Context, statuses: Statuses) -> tuple[Rounds, list[Wanted]]:
    """Warn where gateways have answered later rounds of this training: this store was set back."""
    if context.uptime_ns - rounds.compared_ns < REMIND_S * NS:
        return rounds, []
    answered = {name: one.answered for name, one in statuses.items()}
    text = describe_set_back(answered, rounds.run, rounds.server.round_index) if rounds.opened else ""
    return replace(rounds, compared_ns=context.uptime_ns), [Log("warning", text)] if text else []


def _repeat_invitations(rounds: Rounds, context: Context, statuses: Statuses, twins: Set[str]) -> list[Wanted]:
    waited = sorted(find_awaited(rounds, statuses, twins)) if rounds.opened else []
    if not waited:
        return []
    count, quorum = len(rounds.counted), context.settings.rounds.quorum
    text = (
        f"round {rounds.server.round_index} waits: {count} answers, quorum {quorum}, none yet from {list_first(waited)}"
    )
    level: Literal["info", "warning"] = "info" if count >= quorum else "warning"
    return [make_invitation(rounds, context), Log(level, text, _name_round(rounds))]


def renumber(rounds: Rounds, context: Context, known: int) -> tuple[Rounds, list[Wanted]]:
    """Give the training a number above that of every one before it, and say so: gateways would take it for an earlier
    one, where this store was lost or set back. `known` is the highest number that was published or came back.
    """
    if known <= rounds.training:
        return rounds, []
    rounds = replace(rounds, training=increment(known))
    text = f"there was a training {known}, later than the one at hand, which now is {rounds.training}"
    return rounds, [
        save_training(rounds, context.anchor_ns),
        *([make_invitation(rounds, context)] if rounds.opened else []),
        Log("warning", text),
    ]


def find_awaited(rounds: Rounds, statuses: Statuses, twins: Set[str]) -> set[str]:
    """Return who could answer the open round and has not; nor has said, or been told, that nothing will come. Of
    `twins`, under whose names two devices speak, nothing is counted.
    """
    asked = (
        ready_gateways(rounds, statuses)
        if rounds.asked is None
        else set(rounds.asked).intersection(ready_gateways(rounds, statuses))
    )
    number = round_number(rounds.run, rounds.server.round_index)
    refusing = {gateway for gateway in asked if statuses[gateway].refused_round == number}
    return set(asked) - rounds.counted.keys() - rounds.turned_away - refusing - twins


def ready_gateways(rounds: Rounds, statuses: Statuses) -> list[str]:
    """Return the gateways that could answer a round now."""
    needed = rounds.algorithm.libraries
    return sorted(gateway for gateway, status in statuses.items() if status.ready(needed))


def close_if_due(rounds: Rounds, context: Context, statuses: Statuses, twins: Set[str]) -> tuple[Rounds, list[Wanted]]:
    """Close the round when all who can have answered, or when the deadline has passed, and a quorum is there."""
    table = context.settings.rounds
    if not rounds.opened or len(rounds.counted) < table.quorum or rounds.first_update_ns is None:
        return rounds, []
    is_over = context.uptime_ns - rounds.first_update_ns >= table.deadline_s * NS
    return _close(rounds, context, statuses) if is_over or not find_awaited(rounds, statuses, twins) else (rounds, [])


def widen_if_stuck(rounds: Rounds, context: Context) -> tuple[Rounds, list[Wanted]]:
    """Ask everyone where those who were drawn did not make a quorum within the deadline."""
    table = context.settings.rounds
    patient = context.uptime_ns - rounds.opened_ns < table.deadline_s * NS
    if not rounds.opened or rounds.asked is None or len(rounds.counted) >= table.quorum or patient:
        return rounds, []
    rounds = replace(rounds, asked=None, invited_ns=context.uptime_ns)
    text = f"round {rounds.server.round_index}: those drawn made no quorum of {table.quorum}, everyone is asked"
    log = Log("warning", text, _name_round(rounds))
    return rounds, [save_training(rounds, context.anchor_ns), make_invitation(rounds, context), log]


def give_up_if_lost(
    rounds: Rounds, context: Context, statuses: Statuses, twins: Set[str]
) -> tuple[Rounds, list[Wanted]]:
    """Give a round up that can have no quorum: the answers of some were refused, or they have answered and hold no
    answer any more, as where their stores were damaged, and the others are too few. Nobody answers twice, as masks and
    noise are drawn from the round. Where the algorithm remembers what was counted of whom, what is given up would be
    missing for good, and the round waits.

    Each in a row has twice the time of the one before: all the others train again, and spend of their privacy, which
    one gateway must not have them do for ever.
    """
    table, number = context.settings.rounds, round_number(rounds.run, rounds.server.round_index)
    waited = {name: statuses[name] for name in find_awaited(rounds, statuses, twins)} if rounds.opened else {}
    patience_s = max(table.deadline_s, LOST_S) * 2 ** min(rounds.given_up, DOUBLINGS_MAX)
    lost = sorted(name for name, one in waited.items() if one.answered == number and not one.outbox)
    is_early = not rounds.opened or context.uptime_ns - rounds.opened_ns < patience_s * NS
    if is_early or rounds.algorithm.remembers or not (lost or rounds.turned_away):
        return rounds, []
    if len(rounds.counted) + len(waited) - len(lost) >= table.quorum:
        return rounds, []
    why = [f"the answers of {list_first(sorted(rounds.turned_away))} were refused"] if rounds.turned_away else []
    why += [f"{list_first(lost)} answered it, and the answers were lost"] if lost else []
    text = f"round {rounds.server.round_index} is given up: {'; '.join(why)}"
    log = Log("warning", text, _name_round(rounds))
    rounds, effects = _close(replace(rounds, total={}), context, statuses, is_given_up=True)
    return rounds, [log, *effects]


def _close(
    rounds: Rounds, context: Context, statuses: Statuses, *, is_given_up: bool = False
) -> tuple[Rounds, list[Wanted]]:
    """End the round. One that is given up is none: it moves no model, nor does what was kept for it, which alone would
    be less than a quorum; it releases none, and ends no row of them, as the first of several exchanges may well close.
    """
    waited = sum(not late_updates.is_overtaken(rounds, gateway) for gateway in rounds.held)
    rounds, kept = (rounds, ()) if is_given_up else late_updates.merge_held(rounds)
    record = _record(rounds, context, () if is_given_up else tuple(rounds.counted), kept)
    rounds, dropped = late_updates.drop_held(rounds, context, kept)
    and_late = f" and {len(kept)} of earlier rounds" if kept else ""
    about = _name_round(rounds)
    closed = Log("info", f"round {record.round_index} closed with {len(record.gateways)} updates{and_late}", about)
    with warnings.catch_warnings(record=True) as caught:  # what the algorithm has to say of its result
        warnings.simplefilter("always")
        server, problem, has_failed = _advance(rounds)
    figures = {} if is_given_up or has_failed else _list_figures(rounds, server)
    remarks = sorted({str(warning.message) for warning in caught})
    algorithm, phase = rounds.algorithm, rounds.server.phase
    is_first = phase - phase % algorithm.stride <= algorithm.setup
    # Nobody will have anything else to send a second later either; what comes to nothing half way begins at once.
    is_idle = has_failed or (not rounds.total and (is_first or algorithm.stride > 1))
    wait_ns = context.uptime_ns + round(context.settings.rounds.deadline_s * NS) if is_idle else 0
    # The next phase is a round's first; but a round that failed or came to nothing half way begins anew and is none.
    is_whole = bool(rounds.total) or (is_first and is_silent(algorithm, phase, rounds.total))
    is_complete = phase >= algorithm.setup == server.phase and is_whole and not has_failed and not is_given_up
    rounds = replace(
        _empty(rounds),
        server=server,
        abandoned=_list_abandoned(rounds, waited) if has_failed or not rounds.total else rounds.abandoned,
        since_release=rounds.since_release + is_complete,
        given_up=0 if is_complete else rounds.given_up + is_given_up,
        rest_until_ns=max(rounds.rest_until_ns, wait_ns),
    )
    per_release = context.settings.rounds.per_release or rounds.algorithm.rounds
    effects: list[Wanted] = [*dropped, *([] if is_given_up else [closed])]
    if waited > len(kept):
        remarks.append(f"{waited - len(kept)} of the updates of earlier rounds cannot be counted any more")
    effects += [Log("warning", f"round {record.round_index}: {remark}", about) for remark in remarks]
    is_last = is_idle and not has_failed and not is_given_up
    if is_last and rounds.since_release > is_complete and _has_learned(rounds, context):
        per_release, problem = rounds.since_release, ""  # nobody will send more: what was learned so far is the model
    if problem and not is_given_up:
        effects.append(Log("warning", f"round {record.round_index} {problem}", about))
    if rounds.since_release >= per_release:
        rounds = _rest(rounds, context)
        effects += (
            []
            if problem
            else [BuildModel(rounds.algorithm, rounds.server, rounds.run, len(record.gateways) + len(kept))]
        )
    rounds, opening = open_round(rounds, context, statuses)
    return rounds, [replace(record, figures=figures), save_training(rounds, context.anchor_ns), *effects, *opening]


def _list_abandoned(rounds: Rounds, late: int) -> tuple[int, ...]:
    """Return which rounds came to nothing after this one has: it is among them where something was acknowledged for it,
    and so are those before it that belong together with it. `late` updates were kept for it.
    """
    index, within = rounds.server.round_index, rounds.server.phase % rounds.algorithm.stride
    is_news = within or late or rounds.counted.keys() - set(rounds.empty)
    return (*rounds.abandoned, *(range(index - within, index + 1) if is_news else ()))[-ABANDONED_KEPT:]


def _list_figures(rounds: Rounds, after: Server) -> Mapping[str, float]:
    """Return the figures of a round that is closed; none where nothing was added, for no change would look like the end
    of learning.
    """
    return describe_advance(rounds.server, after, rounds.began) if rounds.total else {}


def _empty(rounds: Rounds) -> Rounds:
    """Return the training without what belongs to the round that is over."""
    return replace(
        rounds,
        total={},
        folded={},
        unfolded_bytes=0,
        counted={},
        counted_before={**rounds.counted_before, **rounds.counted},
        refused=0,
        refusals=(),
        bytes_received=0,
        empty=(),
        turned_away=frozenset(),
        shared=None,
        first_update_ns=None,
        opened=False,
    )


def _record(rounds: Rounds, context: Context, counted: tuple[str, ...], kept: tuple[HoldUpdate, ...]) -> RecordRound:
    size = update_size(rounds.algorithm, context.settings.algorithm.settings, rounds.server)
    return RecordRound(
        run=rounds.run,
        round_index=rounds.server.round_index,
        algorithm=context.settings.algorithm.name,
        gateways=counted,
        refused=rounds.refused,
        refusals=rounds.refusals,
        closed_ns=context.now_ns,
        bytes_received=rounds.bytes_received,
        phase=rounds.server.phase,
        empty=tuple(sorted(set(rounds.empty).intersection(counted))),
        late=tuple((one.gateway, one.round_index) for one in kept),
        update_bytes=None if size is None else size.sent_bytes,
        uncompressed_bytes=None if size is None else size.plain_bytes,
        open_ms=(context.uptime_ns - rounds.opened_ns) // 10**6 if rounds.opened else 0,
    )


def _has_learned(rounds: Rounds, context: Context) -> bool:
    """Tell whether the model is another than that with which its training began."""
    server = rounds.algorithm.start(generator(context.settings.algorithm.seed, 0, "cloud"))
    return not alike(server.global_state, rounds.server.global_state) and not rounds.algorithm.lacking(rounds.server)


def _advance(rounds: Rounds) -> tuple[Server, str, bool]:
    """Return the server after the round, why it makes no model where it does not, and whether it failed: updates that
    were fine one by one may be beyond the solver together, and that must not stop the service for good.
    """
    if not rounds.total:
        return close_round(rounds.algorithm, rounds.server, {}), "changes nothing: nobody had anything to send", False
    server = attempt(lambda: close_round(rounds.algorithm, rounds.server, rounds.total))
    if isinstance(server, Exception):
        failed = f"{type(server).__name__}: {server}"
    elif finite(server.global_state):
        why = rounds.algorithm.lacking(server)
        return server, f"makes no model: {why}" if why else "", False
    else:
        failed = "its parameters are not finite"
    return close_round(rounds.algorithm, rounds.server, {}), f"changes nothing: {failed}", True


def _rest(rounds: Rounds, context: Context) -> Rounds:
    rest_ns = round(context.settings.rounds.rest_s * NS)
    return replace(rounds, since_release=0, rest_until_ns=context.uptime_ns + rest_ns)
