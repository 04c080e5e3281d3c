"""The aggregator as a function: `step(state, now_ns, event) -> (state, effects)`. It reads no clock and does no I/O."""

from __future__ import annotations

from cloud_aggregator import (
    admission,
    alarms,
    announcing,
    containment,
    impostors,
    incoming,
    new_keys,
    orders,
    relisting,
    rounds,
    staging,
    telemetry,
    updates,
)
from cloud_aggregator.events import (
    Answered,
    Connection,
    Effect,
    Event,
    Heard,
    Log,
    Ordered,
    Posted,
    RecordGateway,
    Tick,
)
from cloud_aggregator.registry import Asked, Barred, Listed, NotStated, Stated
from cloud_aggregator.state import State
from config import topics
from config.loss_messages import Tombstone
from config.messages import Alarm, MessageError, Status, Want
from models.records import replace

Result = tuple[State, list[Effect]]
SENDERS_MAX = 10_000  # whose messages that make no sense are counted


def step(state: State, now_ns: int, event: Event) -> Result:
    """Take in one event at `now_ns`, and do what follows from it."""
    state, effects = take_in(state, now_ns, event)
    state, more = advance(state, event)
    return state, [*effects, *more]


def advance(state: State, event: Event) -> Result:
    """Close a round and go on with a release where a message has made that due; that is no sender's doing."""
    if not isinstance(event, Heard):
        return state, []
    state, closing = rounds.close_if_due(state)
    state, staged = staging.watched(state)
    return state, [*closing, *staged]


def take_in(state: State, now_ns: int, event: Event) -> Result:
    """Take in one event: what its sender can make fail."""
    state = replace(state, now_ns=now_ns)
    match event:
        case Heard(topic=where, payload=payload):
            try:
                return _heard(state, topics.parse(where), payload)
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
            return alarms.posted(state, event)
        case Ordered():
            return orders.obeyed(state, event)
        case Asked():
            return admission.asked(state, event)
        case Barred():
            return orders.told(state, event)
        case Listed():
            return relisting.taken(state, event)
        case Stated():
            return new_keys.taken(state, event)
        case NotStated(order=order, problem=problem):
            return state, [Answered(order, "the keys before are in force", problem)] if order else []


def _dropped(state: State, sender: tuple[str, str], text: str) -> Result:
    """Tell of a message that makes no sense: the 1st, 2nd, 4th, 8th, ... on a channel of a gateway in an hour."""
    tally = containment.one_more(state.dropped.get(sender), state.now_ns)
    others = state.dropped if len(state.dropped) < SENDERS_MAX or sender in state.dropped else {}
    state = replace(state, dropped={**others, sender: tally})
    told = tally.count.bit_count() == 1  # all of them would fill the log
    return state, [Log("warning", f"{text} (number {tally.count})")] if told else []


def _connection(state: State, up: bool) -> Result:
    state = replace(state, connected=up)
    if not up:
        return state, []
    state, opening = rounds.open_round(state)
    state, told = alarms.connected(state)
    return state, [*announcing.known(state), *opening, *told]


def _tick(state: State) -> Result:
    effects: list[Effect] = []
    in_turn = (
        incoming.ask_for_missing,
        impostors.ticked,
        containment.unblock,
        rounds.close_if_due,
        rounds.widen_if_stuck,
        rounds.begin_anew_if_lost,
        rounds.remind,
    )
    for act in (rounds.renumber, *in_turn, staging.watched, alarms.ticked):
        state, more = act(state)
        effects += more
    if not state.opened and state.connected and rounds.may_open(state):
        state, opening = rounds.open_round(state)
        effects += opening
    return state, effects


def _heard(state: State, where: topics.Topic, payload: bytes) -> Result:
    if where.site != state.settings.aggregator.site or where.gateway == topics.ALL:
        raise MessageError(f"it is not from a gateway of site {state.settings.aggregator.site}")
    if where.item == topics.TRIED and not payload:
        return state, []
    admission.check(state, where.gateway)
    if containment.is_blocked(state, where.gateway) and not _is_last_will(where.channel, payload):
        return state, []
    match where.channel:
        case "status":
            return _status(state, where.gateway, Status.from_bytes(payload).compact())
        case "update":
            return updates.chunk_arrived(state, where.gateway, payload)
        case "alarm":
            return alarms.heard(state, where.gateway, Alarm.from_bytes(payload))
        case "tombstone":
            return state, telemetry.lost(state, where.gateway, Tombstone.from_bytes(payload))
        case "telemetry":
            return state, telemetry.scored(state, where.gateway, where.item, payload)
        case "want":
            return announcing.wanted(state, where.gateway, where.item, Want.from_bytes(payload).missing)
    raise MessageError(f"channel {where.channel!r} is not for the aggregator")


def _is_last_will(channel: str, payload: bytes) -> bool:
    return channel == "status" and Status.from_bytes(payload).state == "offline"


def _status(state: State, gateway: str, status: Status) -> Result:
    known = state.gateways.get(gateway)
    if status.state == "offline" and known is not None:  # a last will knows nothing but that; the rest is still true
        status = known.model_copy(update={"state": "offline"})
    state, found, is_news = impostors.heard(state, gateway, status)
    if not is_news:
        return state, [*found, Log("info", f"status of {gateway}: it was said before one that is here already")]
    state = replace(state, gateways={**state.gateways, gateway: status})
    state, told = alarms.status_changed(state, gateway, known)
    record = RecordGateway(gateway, status, state.now_ns, impostors.stored(state, gateway))
    return state, [record, *found, *told]
