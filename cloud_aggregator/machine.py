"""The aggregator as a function: `step(state, uptime_ns, event) -> (state, effects)`. It reads no clock and does no I/O.

Each event goes to one component, which takes its own record and the context; what it wants of another is a request,
see `apply`. After every event a round that can close does, and a release goes on where it can.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from typing import Any

from fedgate.cloud_aggregator import containment, new_keys, orders, presence
from fedgate.cloud_aggregator.access import admission, attendance, duplicates, registry_sync, statuses
from fedgate.cloud_aggregator.access.access import Access
from fedgate.cloud_aggregator.access.registry import Registry
from fedgate.cloud_aggregator.alarms import alarm_states, evidence, handling, maintenance, remote_actions, reports
from fedgate.cloud_aggregator.alarms.records import Alarms
from fedgate.cloud_aggregator.enrolment import CertificateRequested, Denied, Listed, NotStated, Revoked, Stated
from fedgate.cloud_aggregator.events import (
    Answered,
    BuildModel,
    ClearAlarm,
    ClockSet,
    Connection,
    DropUploads,
    Effect,
    Event,
    ForgetDevice,
    Log,
    NoteDropped,
    Ordered,
    Posted,
    RaiseAlarm,
    Received,
    RecordDenied,
    RecordPresence,
    StatusChanged,
    Tick,
    Wanted,
)
from fedgate.cloud_aggregator.limits import count_one_more
from fedgate.cloud_aggregator.presence import Presence
from fedgate.cloud_aggregator.releases import announce, deploy, newest
from fedgate.cloud_aggregator.releases.releases import Releases
from fedgate.cloud_aggregator.rounds import intake, round
from fedgate.cloud_aggregator.rounds.intake import Sender
from fedgate.cloud_aggregator.rounds.rounds import Rounds, save_training
from fedgate.cloud_aggregator.samples import fetches
from fedgate.cloud_aggregator.samples.fetches import Fetches
from fedgate.cloud_aggregator.state import State
from fedgate.config.protocol import topics
from fedgate.config.protocol.losses import Tombstone
from fedgate.config.protocol.messages import Alarm, MessageError, Status, Want

Result = tuple[State, list[Effect]]
Ended = tuple[State, list[RecordPresence]]
Record = Rounds | Access | Releases | Alarms | Fetches | Presence
FIELDS: dict[type[Record], str] = {
    Rounds: "rounds",
    Access: "access",
    Releases: "releases",
    Alarms: "alarms",
    Fetches: "fetches",
    Presence: "presence",
}
SENDERS_MAX = 10_000  # whose messages that make no sense are counted
LINES_MAX = 200  # of the log that follow from messages of one gateway within an hour, before most are left out


def start_with_registry(state: State, registry: Registry, present: Container[str]) -> Ended:
    """Return a state that goes on with this registry where the site has one, who is not in it counting no more, and
    that those of them are gone who are `present` by the record: the last status of who was revoked is kept.
    """
    if state.context.settings.identity is None:
        return state, []
    state, ended = _forget_strangers(replace(state, access=replace(state.access, registry=registry)))
    return state, [one for one in ended if one.gateway in present]


def _forget_strangers(state: State) -> Ended:
    access, rounds, effects = state.access, state.rounds, list[RecordPresence]()
    if access.registry is not None:
        for gateway in sorted((access.gateways.keys() | rounds.held.keys()) - access.registry.admitted):
            access, ended = attendance.note_end(access, state.context, gateway)
            access, rounds = access.without(gateway), rounds.without(gateway)
            effects += ended
    return replace(state, access=access, rounds=rounds), effects


def step(state: State, uptime_ns: int, event: Event) -> Result:
    """Take in one event, so long after the boot, and do what follows from it."""
    state, effects = take_in(state, uptime_ns, event)
    state, more = advance(state, event)
    return state, [*effects, *more]


def advance(state: State, event: Event) -> Result:
    """Close a round and go on with a release where an event has made that due, and send what waits for receivers of
    alarms; that is no sender's doing. A tick does the former in its own order.
    """
    effects: list[Effect] = []
    is_tick = isinstance(event, Tick)
    if state.rounds.opened and not is_tick:
        state, effects = _put(
            state, round.close_if_due(state.rounds, state.context, state.access.gateways, state.access.twins)
        )
    if state.releases.rollout.stage == "watching" and not is_tick:
        state, staged = _put(state, deploy.watch_rollout(state.releases, state.context, state.access.gateways))
        effects = [*effects, *staged]
    state, posts = _put(state, handling.send_posts(state.alarms, state.context))
    return state, [*effects, *posts]


def take_in(state: State, uptime_ns: int, event: Event) -> Result:
    """Take in one event: what its sender can make fail."""
    if uptime_ns != state.context.uptime_ns:  # the same for all events that share a commit
        state = replace(state, context=replace(state.context, uptime_ns=uptime_ns))
    match event:
        case Received(topic=where, payload=payload, is_retained=is_retained):
            try:
                parsed = topics.parse(where)
                return _limit_log(*_receive(state, parsed, payload, is_retained), parsed.gateway)
            except topics.TopicError as error:
                return note_dropped(state, ("", ""), f"{where!r} dropped: {error}")
            except MessageError as error:
                parsed = topics.parse(where)
                return note_dropped(state, (parsed.gateway, parsed.channel), f"{where} dropped: {error}")
        case Connection(up=up):
            return _change_connection(state, up)
        case Tick():
            return _tick(state)
        case ClockSet(anchor_ns=anchor_ns):
            return _follow_clock(state, anchor_ns)
        case Posted():
            return _put(state, handling.note_posted(state.alarms, state.context, event))
        case Ordered():
            return apply(*orders.carry_out(state, event))
        case CertificateRequested():
            return _put(state, admission.decide_request(state.access, state.context, event))
        case Revoked():
            return state, orders.answer_order(event)
        case Denied(gateways=gateways):
            return state, [RecordDenied(gateways)]
        case Listed():
            access, effects = registry_sync.take_list(state.access, event)
            state, ended = _forget_strangers(replace(state, access=access))
            return state, [*effects, *ended]
        case Stated():
            return new_keys.take_keys(state, event)
        case NotStated(order=order, problem=problem):
            return state, [Answered(order, "the keys before are in force", problem)] if order else []


def _limit_log(state: State, effects: list[Effect], gateway: str) -> Result:
    """Leave out what would fill the log: of a gateway so many lines within an hour, then the 256th, the 512th, ..."""
    kept: list[Effect] = []
    for effect in effects:
        if not isinstance(effect, Log):
            kept.append(effect)
            continue
        tally = count_one_more(state.logged.get(gateway), state.context.uptime_ns)
        state = replace(state, logged={**state.logged, gateway: tally})
        if tally.count <= LINES_MAX:
            kept.append(effect)
        elif tally.count.bit_count() == 1:
            kept.append(Log(effect.level, f"{effect.text} (line {tally.count} of {gateway} within an hour)"))
    return state, kept


def _put(state: State, result: tuple[Record, Sequence[Wanted]]) -> Result:
    """Return the state with the record that a component has returned, and its effects."""
    record, wanted = result
    if not wanted and record is getattr(state, FIELDS[type(record)]):
        return state, []
    changed: dict[str, Any] = {FIELDS[type(record)]: record}
    return apply(replace(state, **changed), wanted)


def _change_connection(state: State, up: bool) -> Result:
    context = replace(state.context, is_connected=up)
    state, beat = _put(replace(state, context=context), presence.note_connection(state.presence, context))
    if not up:
        return state, beat
    state = replace(state, releases=replace(state.releases, announced_week=context.week))
    state, opening = _open_round(state)
    state, published = _put(state, handling.publish_alarms(state.alarms, context, state.access.gateways))
    state, numbers = _put(state, newest.publish(state.releases, context, state.rounds.training))
    known = announce.list_announcements(state.releases, context)
    announced = [*known, *maintenance.publish_windows(state.alarms.workflow, context), *opening]
    return state, [*beat, *announce.announce_keys(context), *numbers, *announced, *published]


def _follow_clock(state: State, anchor_ns: int) -> Result:
    """Go on after the wall clock was set: what is signed by the week and what expires follow it, and no pause does.

    What is stored of pauses is stored anew, for it is by the wall clock.
    """
    by_ns = anchor_ns - state.context.anchor_ns
    context = replace(state.context, anchor_ns=anchor_ns)
    state, beat = _put(replace(state, context=context), presence.follow_clock(state.presence, by_ns, context))
    state, repeated = _put(state, attendance.follow_clock(state.access, context))
    saved: list[Effect] = [save_training(state.rounds, anchor_ns), deploy.save(state.releases, context)]
    return state, [*beat, *repeated, *saved, Log("warning", f"the wall clock was set by {by_ns / 1e9:+.0f} s")]


def _tick(state: State) -> Result:
    """Do what may be due without anything having happened; each does nothing where there is nothing to do."""
    effects: list[Effect] = []

    def then(result: Result) -> None:
        nonlocal state
        state, more = result
        effects.extend(more)

    then(_put(state, round.renumber(state.rounds, state.context, state.releases.newest.training)))
    then(_put(state, intake.ask_for_missing(state.rounds, state.context)))
    then(_put(state, presence.write_heartbeat_if_due(state.presence, state.context)))
    then(_put(state, duplicates.end_conflicts(state.access, state.context)))
    then(apply(state, containment.unblock(state)))
    then(_put(state, round.close_if_due(state.rounds, state.context, state.access.gateways, state.access.twins)))
    then(_put(state, round.widen_if_stuck(state.rounds, state.context)))
    then(_put(state, round.give_up_if_lost(state.rounds, state.context, state.access.gateways, state.access.twins)))
    then(_put(state, round.remind(state.rounds, state.context, state.access.gateways, state.access.twins)))
    then(_put(state, round.compare_store(state.rounds, state.context, state.access.gateways)))
    then(_put(state, deploy.remind(state.releases, state.context, state.access.gateways)))
    then(_put(state, deploy.watch_rollout(state.releases, state.context, state.access.gateways)))
    then(_put(state, handling.judge_fleet(state.alarms, state.context, state.access.gateways)))
    then(_put(state, handling.follow_masks(state.alarms, state.context, state.access.gateways)))
    then(_put(state, alarm_states.publish_changed(state.alarms, state.context)))
    then(_put(state, fetches.follow_up(state.fetches, state.context)))
    then(_put(state, newest.publish_if_changed(state.releases, state.context, state.rounds.training)))
    then(_renew_signatures(state))
    then(_put(state, maintenance.remind(state.alarms, state.context)))
    then(_open_if_due(state))
    return state, effects


def _renew_signatures(state: State) -> Result:
    """Announce what is retained again in a new week, and with a new key: what was signed expires."""
    context = state.context
    if not context.is_connected or context.week == state.releases.announced_week:
        return state, []
    invited = [round.make_invitation(state.rounds, context)] if state.rounds.opened else []
    state = replace(state, releases=replace(state.releases, announced_week=context.week))
    state = replace(state, alarms=replace(state.alarms, announced_ns=None))
    state, numbers = _put(state, newest.publish(state.releases, context, state.rounds.training))
    return state, [*numbers, *announce.list_announcements(state.releases, context), *invited]


def _open_if_due(state: State) -> Result:
    rounds, context = state.rounds, state.context
    if rounds.opened or not context.is_connected or not round.may_open(rounds, context, state.access.gateways):
        return state, []
    return _open_round(state)


def _open_round(state: State) -> Result:
    return _put(state, round.open_round(state.rounds, state.context, state.access.gateways))


def _receive(state: State, where: topics.Topic, payload: bytes, is_retained: bool) -> Result:
    context, access, gateway = state.context, state.access, where.gateway
    is_ours = gateway == topics.ALL and where.channel == "newest"  # that the broker has kept
    if where.site != context.settings.aggregator.site or (gateway == topics.ALL and not is_ours):
        raise MessageError(f"it is not from a gateway of site {context.settings.aggregator.site}")
    if is_ours:
        return _put(state, newest.learn(state.releases, context, state.rounds.training, payload))
    if gateway == topics.CLOUD and where.channel == "action":
        return _receive_action(state, where.item, payload, is_retained=is_retained)
    if not payload and (where.item == topics.TRIED or where.channel in ("status", "alarm")):
        return state, []  # what was retained is taken away, or the broker is tried
    access.check(gateway)
    if containment.is_blocked(state, gateway) and not _is_last_will(where.channel, payload):
        return state, []
    match where.channel:
        case "status":
            status = Status.from_bytes(payload).compact()
            seen_ns = presence.find_seen_ns(state.presence, context, status, is_retained=is_retained)
            state, effects = _put(state, statuses.receive_status(access, context, gateway, status, seen_ns))
            state, repeated = _put(state, fetches.repeat_requests(state.fetches, context, gateway))
            return state, [*effects, *repeated]
        case "update":
            return _put(state, intake.receive_chunk(state.rounds, context, _find_sender(access, gateway), payload))
        case "alarm":
            alarm = Alarm.from_bytes(payload)
            return _put(
                state,
                handling.receive_alarm(
                    state.alarms, context, access.gateways, gateway, alarm, access.find_cards(gateway)
                ),
            )
        case "evidence":
            received = evidence.receive_evidence(state.alarms, context, access.gateways, gateway, where.item, payload)
            return _put(state, received)
        case "samples":
            return _put(state, fetches.receive(state.fetches, context, gateway, where.item, payload))
        case "tombstone":
            return state, reports.record_loss(context, access.gateways, gateway, Tombstone.from_bytes(payload))
        case "telemetry" | "summary":
            return state, reports.record_batch(context, access.gateways, gateway, where.channel, where.item, payload)
        case "newest":
            return _put(state, newest.learn(state.releases, context, state.rounds.training, payload))
        case "want":
            missing = Want.from_bytes(payload).missing
            sent = announce.send_due_chunks(state.releases, context, state.rounds.shared, gateway, where.item, missing)
            return _put(state, sent)
    raise MessageError(f"channel {where.channel!r} is not for the aggregator")


def _receive_action(state: State, user: str, payload: bytes, *, is_retained: bool) -> Result:
    access, registry = state.access, state.access.registry
    is_gateway = user in access.gateways or (registry is not None and user in registry.admitted)
    received = remote_actions.receive_action(
        state.alarms, state.context, user, payload, is_retained=is_retained, is_gateway=is_gateway
    )
    return _put(state, received)


def _find_sender(access: Access, gateway: str) -> Sender:
    members = None if access.registry is None else access.registry.keys.get(gateway, frozenset())
    return Sender(gateway, gateway in access.gateways, gateway in access.twins, members)


def _is_last_will(channel: str, payload: bytes) -> bool:
    return channel == "status" and Status.from_bytes(payload).state == "offline"


def apply(state: State, wanted: Sequence[Wanted]) -> Result:
    """Return the state after the requests among what a component wants, and all effects in their order."""
    effects: list[Effect] = []
    for one in wanted:
        context, statuses, alarms = state.context, state.access.gateways, state.alarms
        more = list[Effect]()
        match one:
            case BuildModel():
                releases, more = deploy.build_model(state.releases, context, statuses, one)
                state = replace(state, releases=releases)
            case RaiseAlarm() | ClearAlarm():
                alarms, more = handling.change_ours(
                    alarms, context, statuses, one, state.access.find_cards(one.gateway)
                )
            case StatusChanged(gateway=gateway, before=before):
                alarms, more = handling.follow_status(alarms, context, statuses, gateway, before)
            case ForgetDevice(gateway=gateway, how=how):
                alarms, more = handling.end_alarms_of_device(alarms, context, statuses, gateway, how)
                asked, ended = fetches.forget_gateway(state.fetches, context, gateway)
                state = replace(state, rounds=state.rounds.without(gateway), fetches=asked)
                more = [*more, *ended]
            case DropUploads(gateway=gateway):
                uploads = fetches.drop_uploads(state.fetches, gateway)
                state = replace(state, rounds=state.rounds.without(gateway), fetches=uploads)
            case NoteDropped(sender=sender, text=text):
                state, more = note_dropped(state, sender, text)
            case _:
                more = [one]
        if alarms is not state.alarms:
            state = replace(state, alarms=alarms)
        effects += more
    return state, effects


def note_dropped(state: State, sender: tuple[str, str], text: str) -> Result:
    """Log a message that makes no sense, or says what cannot be: the 1st, 2nd, 4th, 8th, ... on a channel of a gateway
    in an hour.
    """
    tally = count_one_more(state.dropped.get(sender), state.context.uptime_ns)
    others = state.dropped if len(state.dropped) < SENDERS_MAX or sender in state.dropped else {}
    state = replace(state, dropped={**others, sender: tally})
    is_logged = tally.count.bit_count() == 1  # all of them would fill the log
    return state, [Log("warning", f"{text} (number {tally.count})")] if is_logged else []
