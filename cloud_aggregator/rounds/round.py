"""A round: invite -> collect (`intake`) -> close -> advance -> perhaps release -> invite again.

A round that can close does: whoever vanishes is waited for until the deadline and no longer, and where the deadline
finds no quorum among those who were drawn, everyone is asked. With fewer gateways than the quorum it waits for more.
"""

from __future__ import annotations

import warnings

from fedgate.cloud_aggregator.containment import attempt
from fedgate.cloud_aggregator.events import Effect, HoldUpdate, Log, Publish, RecordRound
from fedgate.cloud_aggregator.names import first_of
from fedgate.cloud_aggregator.releases import build, deploy, signatures
from fedgate.cloud_aggregator.releases.announce import chunks
from fedgate.cloud_aggregator.releases.rollout import BuiltModel
from fedgate.cloud_aggregator.rounds import late_updates, numbering, set_back
from fedgate.cloud_aggregator.state import State, packed, save_training, topic
from fedgate.config.protocol.messages import RoundOpen, audience_of, round_number
from fedgate.config.protocol.topics import ALL
from fedgate.models.arrays import alike, finite, generator, select
from fedgate.models.federated.algorithm import Server, close_round, is_silent, lacking
from fedgate.models.records import replace

NS = 1_000_000_000
REMIND_S = 300.0  # brokers drop messages silently: an invitation or a manifest may never have arrived
LOST_S = 600.0  # by then whoever holds an answer has sent it
DOUBLINGS_MAX = 8  # of that time: ten minutes become 43 hours


def may_open(state: State) -> bool:
    """Tell whether a round can be announced now: drawing a share of the gateways needs gateways to draw from."""
    rounds = state.settings.rounds
    is_drawn = state.asked_round >= state.server.cohort_index
    is_enough = rounds.fraction == 1.0 or is_drawn or len(ready_gateways(state)) >= rounds.quorum
    return is_enough and state.now_ns >= state.rest_until_ns


def open_round(state: State) -> tuple[State, list[Effect]]:
    """Publish the invitation, retained for those who are away, and the shared parameters for those who are here.

    A round that is open is announced anew, and its parameters are not sent again: who lacks them asks. Where no round
    may open now, the invitation to the one before is taken back.
    """
    if not may_open(state):
        return state, [Publish(topic(state, ALL, "round", "open"), b"", retain=True)]
    if state.asked_round < state.server.cohort_index:  # who takes part in one phase is asked again in the next
        state = replace(state, asked=_drawn(state), asked_round=state.server.round_index)
    log = Log("info", f"round {state.server.round_index} of {state.settings.algorithm.name} is open")
    if state.opened:
        state = replace(state, invited_ns=state.now_ns)
        return state, [invitation(state)]
    shared = state.shared or packed(state.server, state.settings.limits.max_payload_bytes)
    # Once: a service that was restarted since need not send it again, who lacks it asks.
    sent = chunks(state, ALL, shared) if state.connected and state.sent_round < state.server.round_index else []
    sent_round = state.server.round_index if sent else state.sent_round
    state = replace(state, opened=True, opened_ns=state.now_ns, invited_ns=state.now_ns)
    # The rest is over for good: a clock that goes back must not close a round to those who have answered it.
    state = replace(state, shared=shared, sent_round=sent_round, rest_until_ns=0)
    return state, [save_training(state), invitation(state), *sent, log]


def invitation(state: State) -> Publish:
    """Return the announcement of the open round."""
    choice = state.settings.algorithm
    shared = state.shared or packed(state.server, state.settings.limits.max_payload_bytes)
    message = RoundOpen(
        run=state.run,
        round_index=state.server.round_index,
        phase=state.server.phase,
        algorithm=choice.name,
        settings=choice.settings,
        seed=choice.seed,
        features=state.settings.features,
        shared=shared.transfer,
        cohort=state.asked,
        libraries=state.algorithm.libraries,
        training=state.training,
    )
    for_whom = audience_of(state.settings.aggregator.site, ALL)
    signed = signatures.signed(message, state.key, for_whom, state.now_ns)
    return Publish(topic(state, ALL, "round", "open"), signed.to_bytes(), retain=True)


def _drawn(state: State) -> tuple[str, ...] | None:
    """Draw who is asked: everyone, or a fraction of those who could answer now, and never fewer than the quorum."""
    rounds, ready = state.settings.rounds, ready_gateways(state)
    if rounds.fraction == 1.0:
        return None
    fraction = max(rounds.fraction, rounds.quorum / len(ready))
    index = state.server.cohort_index if rounds.redraw else 0
    return tuple(select(state.settings.algorithm.seed, index, ready, fraction))


def remind(state: State) -> tuple[State, list[Effect]]:
    """Repeat what some gateway seems not to have heard: the invitation, or the manifest of the model.

    Each on a clock of its own: a round that opens is an invitation, and says nothing of the model.
    """
    effects: list[Effect] = []
    if state.now_ns - state.invited_ns >= REMIND_S * NS:
        state, effects = replace(state, invited_ns=state.now_ns), _repeat_invitations(state)
    if state.now_ns - state.reminded_ns < REMIND_S * NS:
        return state, effects
    if state.opened and (text := set_back.describe_set_back(state.gateways, state.run, state.server.round_index)):
        effects.append(Log("warning", text))
    return replace(state, reminded_ns=state.now_ns), [*effects, *deploy.reminders(state)]


def _repeat_invitations(state: State) -> list[Effect]:
    waited = sorted(waited_for(state)) if state.opened else []
    if not waited:
        return []
    count, quorum = len(state.counted), state.settings.rounds.quorum
    text = f"round {state.server.round_index} waits: {count} answers, quorum {quorum}, none yet from {first_of(waited)}"
    return [invitation(state), Log("info" if count >= quorum else "warning", text)]


def renumber(state: State) -> tuple[State, list[Effect]]:
    """Give the training a number above that of every one before it, and say so: gateways would take it for an earlier
    one, where this store was lost or set back.
    """
    known = state.newest.training
    if known <= state.training:
        return state, []
    state = replace(state, training=numbering.above(known))
    text = f"there was a training {known}, later than the one at hand, which now is {state.training}"
    return state, [save_training(state), *([invitation(state)] if state.opened else []), Log("warning", text)]


def waited_for(state: State) -> set[str]:
    """Return who could answer the open round and has not; nor has said, or been told, that nothing will come."""
    asked = ready_gateways(state) if state.asked is None else set(state.asked).intersection(ready_gateways(state))
    number = round_number(state.run, state.server.round_index)
    refusing = {gateway for gateway in asked if state.gateways[gateway].refused_round == number}
    twins = {gateway for gateway, sessions in state.sessions.items() if sessions.is_twin}
    return set(asked) - state.counted.keys() - state.turned_away - refusing - twins


def ready_gateways(state: State) -> list[str]:
    """Return the gateways that could answer a round now."""
    needed = state.algorithm.libraries
    return sorted(gateway for gateway, status in state.gateways.items() if status.ready(needed))


def close_if_due(state: State) -> tuple[State, list[Effect]]:
    """Close the round when all who can have answered, or when the deadline has passed, and a quorum is there."""
    rounds = state.settings.rounds
    if not state.opened or len(state.counted) < rounds.quorum or state.first_update_ns is None:
        return state, []
    is_over = state.now_ns - state.first_update_ns >= rounds.deadline_s * NS
    return _close(state) if is_over or not waited_for(state) else (state, [])


def widen_if_stuck(state: State) -> tuple[State, list[Effect]]:
    """Ask everyone where those who were drawn did not make a quorum within the deadline."""
    rounds = state.settings.rounds
    patient = state.now_ns - state.opened_ns < rounds.deadline_s * NS
    if not state.opened or state.asked is None or len(state.counted) >= rounds.quorum or patient:
        return state, []
    state = replace(state, asked=None, invited_ns=state.now_ns)
    text = f"round {state.server.round_index}: those drawn made no quorum of {rounds.quorum}, everyone is asked"
    return state, [save_training(state), invitation(state), Log("warning", text)]


def give_up_if_lost(state: State) -> tuple[State, list[Effect]]:
    """Give a round up that can have no quorum: the answers of some were refused, or they have answered and hold no
    answer any more, as where their stores were damaged, and the others are too few. Nobody answers twice, as masks and
    noise are drawn from the round. Where the algorithm remembers what was counted of whom, what is given up would be
    missing for good, and the round waits.

    Each in a row has twice the time of the one before: all the others train again, and spend of their privacy, which
    one gateway must not have them do for ever.
    """
    rounds, number = state.settings.rounds, round_number(state.run, state.server.round_index)
    waited = {name: state.gateways[name] for name in waited_for(state)} if state.opened else {}
    patience_s = max(rounds.deadline_s, LOST_S) * 2 ** min(state.given_up, DOUBLINGS_MAX)
    lost = sorted(name for name, one in waited.items() if one.answered == number and not one.outbox)
    is_early = not state.opened or state.now_ns - state.opened_ns < patience_s * NS
    if is_early or state.algorithm.remembers or not (lost or state.turned_away):
        return state, []
    if len(state.counted) + len(waited) - len(lost) >= rounds.quorum:
        return state, []
    why = [f"the answers of {first_of(sorted(state.turned_away))} were refused"] if state.turned_away else []
    why += [f"{first_of(lost)} answered it, and the answers were lost"] if lost else []
    text = f"round {state.server.round_index} is given up: {'; '.join(why)}"
    state, effects = _close(replace(state, total={}), is_given_up=True)
    return state, [Log("warning", text), *effects]


def _close(state: State, *, is_given_up: bool = False) -> tuple[State, list[Effect]]:
    """End the round. One that is given up is none: it moves no model, nor does what was kept for it, which alone would
    be less than a quorum; it releases none, and ends no row of them, as the first of several exchanges may well close.
    """
    waited = len(state.held.keys() - state.counted.keys())
    state, kept = (state, ()) if is_given_up else late_updates.merged(state)
    record = _record(state, () if is_given_up else tuple(state.counted), kept)
    state, dropped = late_updates.emptied(state, kept)
    and_late = f" and {len(kept)} of earlier rounds" if kept else ""
    closed = Log("info", f"round {record.round_index} closed with {len(record.gateways)} updates{and_late}")
    with warnings.catch_warnings(record=True) as caught:  # what the algorithm has to say of its result
        warnings.simplefilter("always")
        server, problem, has_failed = _advanced(state)
    remarks = sorted({str(warning.message) for warning in caught})
    algorithm, phase = state.algorithm, state.server.phase
    is_first = phase - phase % algorithm.stride <= algorithm.setup
    # Nobody will have anything else to send a second later either; what comes to nothing half way begins at once.
    is_idle = has_failed or (not state.total and (is_first or algorithm.stride > 1))
    wait_ns = state.now_ns + round(state.settings.rounds.deadline_s * NS) if is_idle else 0
    # The next phase is a round's first; but a round that failed or came to nothing half way begins anew and is none.
    is_whole = bool(state.total) or (is_first and is_silent(algorithm, phase, state.total))
    is_complete = phase >= algorithm.setup == server.phase and is_whole and not has_failed and not is_given_up
    state = replace(
        _emptied(state),
        server=server,
        since_release=state.since_release + is_complete,
        given_up=0 if is_complete else state.given_up + is_given_up,
        rest_until_ns=max(state.rest_until_ns, wait_ns),
    )
    per_release = state.settings.rounds.per_release or state.algorithm.rounds
    effects: list[Effect] = [*dropped, *([] if is_given_up else [closed])]
    if waited > len(kept):
        remarks.append(f"{waited - len(kept)} of the updates of earlier rounds cannot be counted any more")
    effects += [Log("warning", f"round {record.round_index}: {remark}") for remark in remarks]
    is_last = is_idle and not has_failed and not is_given_up
    if is_last and state.since_release > is_complete and _has_learned(state):
        per_release, problem = state.since_release, ""  # nobody will send more: what was learned so far is the model
    if problem and not is_given_up:
        effects.append(Log("warning", f"round {record.round_index} {problem}"))
    if state.since_release >= per_release:
        state, released = (_rested(state), []) if problem else _release(state, len(record.gateways) + len(kept))
        effects += released
    state, opening = open_round(state)
    return state, [record, save_training(state), *effects, *opening]


def _emptied(state: State) -> State:
    """Return the state without what belongs to the round that is over."""
    return replace(
        state,
        total={},
        counted={},
        counted_before={**state.counted_before, **state.counted},
        refused=0,
        bytes_received=0,
        empty=(),
        turned_away=frozenset(),
        shared=None,
        first_update_ns=None,
        opened=False,
    )


def _record(state: State, counted: tuple[str, ...], kept: tuple[HoldUpdate, ...]) -> RecordRound:
    return RecordRound(
        run=state.run,
        round_index=state.server.round_index,
        algorithm=state.settings.algorithm.name,
        gateways=counted,
        refused=state.refused,
        closed_ns=state.now_ns,
        bytes_received=state.bytes_received,
        phase=state.server.phase,
        empty=tuple(sorted(set(state.empty).intersection(counted))),
        late=tuple((one.gateway, one.round_index) for one in kept),
    )


def _has_learned(state: State) -> bool:
    """Tell whether the model is another than that with which its training began."""
    server = state.algorithm.start(generator(state.settings.algorithm.seed, 0, "cloud"))
    return not alike(server.shared, state.server.shared) and not lacking(state.server)


def _advanced(state: State) -> tuple[Server, str, bool]:
    """Return the server after the round, why it makes no model where it does not, and whether it failed: updates that
    were fine one by one may be beyond the solver together, and that must not stop the service for good.
    """
    if not state.total:
        return close_round(state.algorithm, state.server, {}), "changes nothing: nobody had anything to send", False
    server = attempt(lambda: close_round(state.algorithm, state.server, state.total))
    if isinstance(server, Exception):
        failed = f"{type(server).__name__}: {server}"
    elif finite(server.shared):
        why = lacking(server)
        return server, f"makes no model: {why}" if why else "", False
    else:
        failed = "its parameters are not finite"
    return close_round(state.algorithm, state.server, {}), f"changes nothing: {failed}", True


def _release(state: State, gateways: int) -> tuple[State, list[Effect]]:
    made = attempt(
        lambda: build.make(
            state.algorithm,
            state.server,
            version=deploy.next_version(state),
            name=state.settings.algorithm.name,
            run=state.run,
            features=state.settings.features,
            max_payload_bytes=state.settings.limits.max_payload_bytes,
            gateways=gateways,
            created_ns=state.now_ns,
        )
    )
    if isinstance(made, Exception):  # the same parameters would be there after a restart
        return _rested(state), [Log("warning", f"no model can be made: {type(made).__name__}: {made}")]
    state, effects = deploy.receive_model(_rested(state), BuiltModel(*made))
    return state, effects


def _rested(state: State) -> State:
    rest_ns = round(state.settings.rounds.rest_s * NS)
    return replace(state, since_release=0, rest_until_ns=state.now_ns + rest_ns)
