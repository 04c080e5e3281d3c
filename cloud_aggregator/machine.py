"""The aggregator as a function: `step(state, now_ns, event) -> (state, effects)`. It reads no clock and does no I/O."""

from __future__ import annotations

from fedgate.cloud_aggregator import containment, orders
from fedgate.cloud_aggregator.access import admission, duplicates, new_keys, registry_sync
from fedgate.cloud_aggregator.access.registry import Barred, CertificateRequested, Listed, NotStated, Stated
from fedgate.cloud_aggregator.alarms import handling, reports
from fedgate.cloud_aggregator.events import Answered, Connection, Effect, Event, Log, Ordered, Posted, Received, Tick
from fedgate.cloud_aggregator.releases import announce, deploy, newest, signatures
from fedgate.cloud_aggregator.rounds import intake, round, uploads
from fedgate.cloud_aggregator.runtime import presence
from fedgate.cloud_aggregator.state import State
from fedgate.config.protocol import topics
from fedgate.config.protocol.losses import Tombstone
from fedgate.config.protocol.messages import Alarm, MessageError, Status, Want
from fedgate.models.records import replace

Result = tuple[State, list[Effect]]
SENDERS_MAX = 10_000  # whose messages that make no sense are counted
LINES_MAX = 200  # of the log that follow from messages of one gateway within an hour, before most are left out


def step(state: State, now_ns: int, event: Event) -> Result:
    """Take in one event at `now_ns`, and do what follows from it."""
    state, effects = take_in(state, now_ns, event)
    state, more = advance(state, event)
    return state, [*effects, *more]


def advance(state: State, event: Event) -> Result:
    """Close a round and go on with a release where a message has made that due; that is no sender's doing."""
    if not isinstance(event, Received):
        return state, []
    state, closing = round.close_if_due(state)
    state, staged = deploy.watch_rollout(state)
    return state, [*closing, *staged]


def take_in(state: State, now_ns: int, event: Event) -> Result:
    """Take in one event: what its sender can make fail."""
    state = replace(state, now_ns=now_ns)
    match event:
        case Received(topic=where, payload=payload, is_retained=is_retained):
            try:
                parsed = topics.parse(where)
                return _logged(*_receive(state, parsed, payload, is_retained), parsed.gateway)
            except topics.TopicError as error:
                return _dropped(state, ("", ""), f"{where!r} dropped: {error}")
            except MessageError as error:
                parsed = topics.parse(where)
                return _dropped(state, (parsed.gateway, parsed.channel), f"{where} dropped: {error}")
        case Connection(up=up):
            return _connection(state, up)
        case Tick():
            return _tick(state)
        case Posted():
            return handling.note_posted(state, event)
        case Ordered():
            return orders.carry_out(state, event)
        case CertificateRequested():
            return admission.decide_request(state, event)
        case Barred():
            return orders.answer_order(state, event)
        case Listed():
            return registry_sync.take_list(state, event)
        case Stated():
            return new_keys.take_keys(state, event)
        case NotStated(order=order, problem=problem):
            return state, [Answered(order, "the keys before are in force", problem)] if order else []


def _logged(state: State, effects: list[Effect], gateway: str) -> Result:
    """Leave out what would fill the log: of a gateway so many lines within an hour, then the 256th, the 512th, ..."""
    kept: list[Effect] = []
    for effect in effects:
        if not isinstance(effect, Log):
            kept.append(effect)
            continue
        tally = containment.one_more(state.logged.get(gateway), state.now_ns)
        state = replace(state, logged={**state.logged, gateway: tally})
        if tally.count <= LINES_MAX:
            kept.append(effect)
        elif tally.count.bit_count() == 1:
            kept.append(Log(effect.level, f"{effect.text} (line {tally.count} of {gateway} within an hour)"))
    return state, kept


def _dropped(state: State, sender: tuple[str, str], text: str) -> Result:
    """Tell of a message that makes no sense, or says what cannot be: the 1st, 2nd, 4th, 8th, ... on a channel of a
    gateway in an hour.
    """
    tally = containment.one_more(state.dropped.get(sender), state.now_ns)
    others = state.dropped if len(state.dropped) < SENDERS_MAX or sender in state.dropped else {}
    state = replace(state, dropped={**others, sender: tally})
    is_logged = tally.count.bit_count() == 1  # all of them would fill the log
    return state, [Log("warning", f"{text} (number {tally.count})")] if is_logged else []


def _connection(state: State, up: bool) -> Result:
    state, beat = presence.connection_changed(state, up)
    if not up:
        return state, beat
    state, opening = round.open_round(replace(state, announced_week=signatures.week(state.now_ns)))
    state, published = handling.publish_alarms(state)
    state, numbers = newest.publish(state)
    return state, [*beat, *announce.keys(state), *numbers, *announce.known(state), *opening, *published]


def _renew_signatures(state: State) -> Result:
    """Announce what is retained again in a new week, and with a new key: what was signed expires."""
    week = signatures.week(state.now_ns)
    if not state.connected or week == state.announced_week:
        return state, []
    invited = [round.invitation(state)] if state.opened else []
    state, numbers = newest.publish(replace(state, announced_week=week))
    return state, [*numbers, *announce.known(state), *invited]


def _tick(state: State) -> Result:
    effects: list[Effect] = []
    in_turn = (
        uploads.ask_for_missing,
        presence.write_heartbeat_if_due,
        duplicates.end_conflicts,
        containment.unblock,
        round.close_if_due,
        round.widen_if_stuck,
        round.give_up_if_lost,
        round.remind,
    )
    for act in (
        round.renumber,
        *in_turn,
        deploy.watch_rollout,
        handling.judge_fleet,
        newest.publish_if_changed,
        _renew_signatures,
    ):
        state, more = act(state)
        effects += more
    if not state.opened and state.connected and round.may_open(state):
        state, opening = round.open_round(state)
        effects += opening
    return state, effects


def _receive(state: State, where: topics.Topic, payload: bytes, is_retained: bool) -> Result:
    is_ours = where.gateway == topics.ALL and where.channel == "newest"  # that the broker has kept
    if where.site != state.settings.aggregator.site or (where.gateway == topics.ALL and not is_ours):
        raise MessageError(f"it is not from a gateway of site {state.settings.aggregator.site}")
    if is_ours:
        return newest.learn(state, payload)
    if not payload and (where.item == topics.TRIED or where.channel in ("status", "alarm")):
        return state, []  # what was retained is taken away, or the broker is tried
    admission.check(state, where.gateway)
    if containment.is_blocked(state, where.gateway) and not _is_last_will(where.channel, payload):
        return state, []
    match where.channel:
        case "status":
            status = Status.from_bytes(payload).compact()
            return _status(
                presence.note_seen(state, where.gateway, status, is_retained=is_retained), where.gateway, status
            )
        case "update":
            return intake.chunk_arrived(state, where.gateway, payload)
        case "alarm":
            return handling.receive_alarm(state, where.gateway, Alarm.from_bytes(payload))
        case "tombstone":
            return state, reports.lost(state, where.gateway, Tombstone.from_bytes(payload))
        case "telemetry":
            return state, reports.scored(state, where.gateway, where.item, payload)
        case "newest":
            return newest.learn(state, payload)
        case "want":
            return announce.send_due_chunks(state, where.gateway, where.item, Want.from_bytes(payload).missing)
    raise MessageError(f"channel {where.channel!r} is not for the aggregator")


def _is_last_will(channel: str, payload: bytes) -> bool:
    return channel == "status" and Status.from_bytes(payload).state == "offline"


def _status(state: State, gateway: str, status: Status) -> Result:
    known = state.gateways.get(gateway)
    if status.state == "offline" and known is not None:  # a last will knows nothing but that; the rest is still true
        status = known.model_copy(update={"state": "offline"})
    state, status, noticed = _with_all_spent(state, gateway, status)
    state, found, is_news = duplicates.note_status(state, gateway, status)
    if not is_news:
        state, kept = _keep_spent(state, gateway)
        return state, [*kept, *found, Log("info", f"status of {gateway}: it was said before one that is here already")]
    state = replace(state, gateways={**state.gateways, gateway: status})
    state, published = handling.status_changed(state, gateway, known)
    return state, [duplicates.record(state, gateway), *noticed, *found, *published]


def _with_all_spent(state: State, gateway: str, status: Status) -> tuple[State, Status, list[Effect]]:
    """Return a status with the most that this gateway has ever said of what it spent of its privacy, and notice one
    that says less: its account was begun anew, or is an older one.
    """
    most, stated = state.spent.get(gateway), status.privacy_epsilon
    if stated is not None and (most is None or stated >= most):
        return replace(state, spent={**state.spent, gateway: stated}), status, []
    if most is None:
        return state, status, []
    text = f"{gateway} says that it has spent epsilon {stated or 0.0:.4g} of its privacy, and said {most:.4g} before"
    state, noticed = _dropped(state, (gateway, "privacy"), f"{text}: its store is new, or an older one")
    return state, status.model_copy(update={"privacy_epsilon": most}), noticed


def _keep_spent(state: State, gateway: str) -> Result:
    """Return the state with what a late status told of a gateway's privacy; the rest of that status is over."""
    known, most = state.gateways.get(gateway), state.spent.get(gateway)
    if known is None or known.privacy_epsilon == most:
        return state, []
    known = known.model_copy(update={"privacy_epsilon": most})
    state = replace(state, gateways={**state.gateways, gateway: known})
    return state, [duplicates.record(state, gateway)]
