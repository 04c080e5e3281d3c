"""What becomes of an alarm: the registry, its receipt, the fleet alarm, and those who are notified of it.

Whatever others are notified of goes out after the step in which it was stored; see `events`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, get_args

from fedgate.cloud_aggregator.alarms import actions, alarm_states, fleet, home_assistant, register
from fedgate.cloud_aggregator.alarms.records import ALARMS_REFUSED, Alarms, CauseKey, mark_unpublished
from fedgate.cloud_aggregator.alarms.register import Cards
from fedgate.cloud_aggregator.alarms.workflow import MASKS, AlarmCondition, AlarmKey, Handled, find_state
from fedgate.cloud_aggregator.context import Context, Statuses, find_device
from fedgate.cloud_aggregator.events import (
    AlarmEvent,
    ClearAlarm,
    Effect,
    Log,
    Posted,
    Publish,
    RaiseAlarm,
    RecordAlarm,
    RecordCount,
    RecordFleet,
    Severity,
)
from fedgate.cloud_aggregator.limits import Allowance
from fedgate.cloud_aggregator.notifications import notices, post_queue, webhook
from fedgate.config.protocol.messages import Alarm, Device, FleetAlarm, MessageError, ServiceRequest, Status
from fedgate.config.protocol.topics import ALL
from fedgate.config.settings.notifications import WEBHOOK, NotifyChannel, Receiver
from fedgate.models.time_units import NS

Result = tuple[Alarms, list[Effect]]
# Changes of a gateway's alarms that are taken as they come, and in which time one more is; the last of them are for
# what is no trouble of a sensor.
CHANGES, CHANGE_S, RESERVED = 1_000, 3.0, 200
LOOK_S = 5.0  # between two looks for masks that have ended
SEVERITIES = get_args(Severity)
DESCRIBED_S = 60.0  # between two times at which others are notified of what a gateway says of its device


def receive_alarm(
    alarms: Alarms, context: Context, statuses: Statuses, gateway: str, alarm: Alarm, cards: Cards
) -> Result:
    """Take in a change of a gateway's alarm; one that was received before only gets its receipt again. `cards` are
    those of the boots under its name.

    Raises `MessageError` where too many came lately. Such a change has no answer, so its gateway keeps it and sends it
    again until it is taken.
    """
    alarms = _put_quiet(alarms, gateway, None)
    if reason := register.find_refusal(alarms.book, gateway, alarm):
        return _refuse(alarms, context, gateway, alarm, reason)
    if not register.is_known(alarms.book.get(gateway, {}).get(alarm.id), alarm):
        alarms = _count_change(alarms, context, gateway, alarm)
    alarms, effects = apply_change(alarms, context, statuses, gateway, alarm, cards)
    return alarms, [*effects, context.receipt(gateway, alarm.item)]


def _count_change(alarms: Alarms, context: Context, gateway: str, alarm: Alarm) -> Alarms:
    """Count one more change of a gateway's alarms; raises `MessageError` where it has to wait."""
    before = alarms.changed.get(gateway, Allowance()).compute_used(context.uptime_ns, CHANGE_S)
    most = CHANGES - RESERVED if alarm.kind == "sensor" else CHANGES
    if before + 1 > most:
        raise MessageError(f"{gateway} raises and clears more than {most} at once, and more than one in {CHANGE_S:g} s")
    return replace(alarms, changed={**alarms.changed, gateway: Allowance(before + 1, context.uptime_ns)})


def apply_change(
    alarms: Alarms, context: Context, statuses: Statuses, gateway: str, alarm: Alarm, cards: Cards
) -> Result:
    """Store a change of an alarm and notify of it: one that the gateway reported, or that is about itself."""
    book, known, is_news = register.take(alarms.book, gateway, alarm, context.now_ns, cards)
    stored = RecordAlarm(gateway, alarm, context.now_ns, known.onset_ns)
    if not is_news:
        return alarms, [stored]
    alarms = mark_unpublished(replace(alarms, book=book), CauseKey(gateway, alarm.cause))
    ends = register.find_superseded(book, gateway)
    its_own = [end for end in ends if end.id == alarm.id]  # it came late, and was over before
    alarms, others = _end(alarms, context, statuses, gateway, [end for end in ends if end.id != alarm.id], "superseded")
    alarms, posts = _post(alarms, context, statuses, gateway, alarm, active=known.active and not its_own)
    alarms, discovery = home_assistant.publish(alarms, context, statuses, gateway, only_new=True)
    published = [] if its_own else [_notify_building_of_change(alarms, context, statuses, gateway, known)]
    alarms, late = _end(alarms, context, statuses, gateway, its_own, "superseded")
    return alarms, [stored, *others, *posts, *published, *discovery, _log(gateway, alarm), *late]


def change_ours(
    alarms: Alarms, context: Context, statuses: Statuses, wanted: RaiseAlarm | ClearAlarm, cards: Cards
) -> Result:
    """Raise or clear an alarm of our own of a gateway, where that is a change."""
    book, gateway, now_ns = register.select_ours(alarms.book, wanted.gateway), wanted.gateway, context.now_ns
    if isinstance(wanted, ClearAlarm):
        _, change = book.clear_once(wanted.cause, wanted.text, t_ns=now_ns)
    else:
        alarm = Alarm(
            id=f"{gateway}.{wanted.cause}.{now_ns}",
            cause=wanted.cause,
            kind="sensor",
            state="raised",
            severity=wanted.severity,
            text=wanted.text,
            onset_ns=now_ns,
            t_ns=now_ns,
        )
        _, change = book.raise_once(alarm)
    return (alarms, []) if change is None else apply_change(alarms, context, statuses, gateway, change, cards)


def _refuse(alarms: Alarms, context: Context, gateway: str, alarm: Alarm, reason: str) -> Result:
    refused, reason = alarms.refused + 1, f"alarm {alarm.cause}: {reason}"
    alarms = replace(alarms, refused=refused)
    effects: list[Effect] = [
        RecordCount(ALARMS_REFUSED, refused),
        context.receipt(gateway, alarm.item, reason),
    ]
    if refused.bit_count() == 1:  # logged at 1, 2, 4, 8, ...: who raises without end would fill the log
        effects.append(Log("warning", f"{gateway}: {reason}; refused, as {refused} were so far"))
    return alarms, effects


def _end(
    alarms: Alarms, context: Context, statuses: Statuses, gateway: str, ends: list[Alarm], how: register.Ended
) -> Result:
    """End alarms whose end their gateway has not reported; they are stored and notified of as any other change."""
    effects: list[Effect] = []
    for end in ends:
        book, known = register.end_alarm(alarms.book, gateway, end, how)
        alarms = mark_unpublished(replace(alarms, book=book), CauseKey(gateway, end.cause))
        alarms, posts = _post(alarms, context, statuses, gateway, end, active=False)
        stored = RecordAlarm(gateway, end, context.now_ns, known.onset_ns, how)
        effects += [
            stored,
            *posts,
            _notify_building_of_change(alarms, context, statuses, gateway, known),
            _log(gateway, end),
        ]
    return alarms, effects


def _put_quiet(alarms: Alarms, gateway: str, quiet: register.Quiet | None) -> Alarms:
    others = {name: one for name, one in alarms.quiet.items() if name != gateway}
    return replace(alarms, quiet=others if quiet is None else {**others, gateway: quiet})


def _end_forgotten(alarms: Alarms, context: Context, statuses: Statuses, gateway: str) -> Result:
    """End what a gateway no longer knows of, where its statuses have said so for long enough."""
    quiet = register.note_quiet(alarms.quiet.get(gateway), statuses[gateway], context.uptime_ns)
    alarms = _put_quiet(alarms, gateway, quiet)
    if quiet is None or not quiet.is_over(context.uptime_ns):
        return alarms, []
    ends = register.end_forgotten(alarms.book, gateway, context.now_ns)
    return _end(alarms, context, statuses, gateway, ends, "forgotten")


def end_alarms_of_device(
    alarms: Alarms, context: Context, statuses: Statuses, gateway: str, how: Literal["removed", "replaced"]
) -> Result:
    """End the alarms of a device that is gone, taken away or replaced, and take back what it retained of them."""
    ends = register.end_of_device(alarms.book, gateway, context.now_ns, how)
    alarms, effects = _end(_put_quiet(alarms, gateway, None), context, statuses, gateway, ends, how)
    causes = sorted({known.alarm.cause for known in alarms.book.get(gateway, {}).values()})
    cleared = [Publish(context.topic(gateway, "alarm", cause), b"", retain=True) for cause in causes]
    return alarms, [*effects, *cleared]


def follow_status(alarms: Alarms, context: Context, statuses: Statuses, gateway: str, before: Status | None) -> Result:
    """End the alarms that a gateway no longer knows of, and tell of a change in what it says of its device."""
    after = statuses[gateway]
    alarms, ends = _end_forgotten(alarms, context, statuses, gateway)
    if before is not None and (before.device, before.version) == (after.device, after.version):
        return alarms, ends
    alarms, published = _describe_device(alarms, context, statuses, gateway)
    return alarms, [*ends, *published]


def _describe_device(alarms: Alarms, context: Context, statuses: Statuses, gateway: str) -> Result:
    """Tell others of a gateway's device, with each of its alarms: now, or where that was done just now a little later,
    since a status of a few bytes may ask for thousands of messages.
    """
    last_ns = alarms.described_ns.get(gateway)
    if last_ns is not None and context.uptime_ns - last_ns < DESCRIBED_S * NS:
        return replace(alarms, undescribed=alarms.undescribed | {gateway}), []
    described_ns = {**alarms.described_ns, gateway: context.uptime_ns}
    alarms = replace(alarms, described_ns=described_ns, undescribed=alarms.undescribed - {gateway})
    if gateway not in statuses:  # it was taken away meanwhile
        return alarms, []
    alarms, effects = home_assistant.publish(alarms, context, statuses, gateway)
    return alarms, [*effects, *_notify_building_of_gateway(alarms, context, statuses, gateway)]


def publish_alarms(alarms: Alarms, context: Context, statuses: Statuses) -> Result:
    """Tell again how every alarm is now: brokers forget, and not every message arrived."""
    alarms = alarm_states.mark_all(replace(alarms, quiet={}))
    alarms, effects = home_assistant.publish_all(alarms, context, statuses)
    for gateway in alarms.book:
        effects += _notify_building_of_gateway(alarms, context, statuses, gateway)
    return alarms, [*effects, *_publish_fleet(alarms, context, statuses)]


def judge_fleet(alarms: Alarms, context: Context, statuses: Statuses) -> Result:
    """Judge the fleet, and tell of devices whose turn it is."""
    before, settings = alarms.fleet, context.settings.fleet
    now = fleet.judge(settings, before, statuses, alarms.book, context.now_ns, context.uptime_ns)
    alarms = replace(alarms, fleet=now)
    effects: list[Effect] = []
    if now.alarm is not None and now.alarm != before.alarm:
        alarms, effects = _report_fleet(alarms, context, statuses, before.alarm, now.alarm)
    for gateway in sorted(alarms.undescribed):
        alarms, published = _describe_device(alarms, context, statuses, gateway)
        effects += published
    return alarms, effects


def note_posted(alarms: Alarms, context: Context, event: Posted) -> Result:
    """Take in how an attempt to post went."""
    spec, queue = _list_receivers(context).get(event.channel), alarms.queues.get(event.channel)
    if spec is None or queue is None:
        return alarms, []
    return _put_queue(alarms, event.channel, post_queue.receive_result(queue, spec, event, context.uptime_ns))


def _report_fleet(
    alarms: Alarms, context: Context, statuses: Statuses, before: FleetAlarm | None, now: FleetAlarm
) -> Result:
    alarms = mark_unpublished(alarms, CauseKey(ALL, now.cause))
    effects: list[Effect] = [RecordFleet(now, context.now_ns)]
    # Who joins is stored and shown; whom the webhook wakes wants to hear of the beginning and the end.
    if before is None or (before.id, before.state) != (now.id, now.state):
        alarms, posts = _post(alarms, context, statuses, ALL, now, active=now.state == "raised")
        effects += [*posts, _log("site", now)]
    return alarms, [*effects, *_publish_fleet(alarms, context, statuses)]


def _log(who: str, alarm: Alarm) -> Log:
    level: Literal["info", "warning"] = "warning" if alarm.state == "raised" else "info"
    return Log(level, f"{who}: {alarm.cause} {alarm.state}: {alarm.text}")


def _publish_fleet(alarms: Alarms, context: Context, statuses: Statuses) -> list[Effect]:
    alarm = alarms.fleet.alarm
    if alarm is None:
        return []
    shown = Publish(context.topic(ALL, "alarm", fleet.CAUSE), alarm.to_bytes(), retain=True)
    return [shown, _notify_building(context, statuses, ALL, alarm)]


def _notify_building(
    context: Context, statuses: Statuses, gateway: str, alarm: Alarm, *, retain: bool = True
) -> Publish:
    device = find_device(statuses, gateway) or Device()  # of a gateway that says nothing of it, and of a whole site
    message = ServiceRequest.of(alarm, context.settings.aggregator.site, gateway, device)
    return Publish(context.topic(gateway, "service-request", alarm.cause), message.to_bytes(), retain=retain)


def _notify_building_of_change(
    alarms: Alarms, context: Context, statuses: Statuses, gateway: str, known: register.AlarmRecord
) -> Publish:
    """Return the message to a building of an alarm that has changed.

    It is retained where it says how its cause is now: the late end of an earlier alarm is published, but must not hide
    that another one stands.
    """
    is_current = register.list_current(alarms.book, gateway).get(known.alarm.cause) == known
    return _notify_building(context, statuses, gateway, known.alarm, retain=is_current)


def _notify_building_of_gateway(alarms: Alarms, context: Context, statuses: Statuses, gateway: str) -> list[Publish]:
    """Return how each cause of a gateway is now, for a broker or a listener that may have missed it."""
    return [
        _notify_building(context, statuses, gateway, known.alarm)
        for known in register.list_current(alarms.book, gateway).values()
    ]


def _list_receivers(context: Context) -> dict[str, Receiver]:
    """Return who is sent changes of alarms, by name: the webhook and the channels."""
    settings = context.settings
    webhook_alone: dict[str, Receiver] = {} if settings.webhook is None else {WEBHOOK: settings.webhook}
    return {**webhook_alone, **{channel.name: channel for channel in settings.notify}}


def _post(alarms: Alarms, context: Context, statuses: Statuses, gateway: str, alarm: Alarm, *, active: bool) -> Result:
    """Tell of a change; of one that is masked nobody is told, nor of the end of one of which nobody was told."""
    key = AlarmKey(gateway, alarm.id)
    standing = actions.find_alarm(alarms, key) or AlarmCondition(alarm.cause, alarm.onset_ns, active)
    state = find_state(alarms.workflow, key, standing._replace(is_active=active), context.now_ns)
    if state in ("suppressed", "out-of-service"):
        event = AlarmEvent(gateway, alarm.id, "", context.now_ns, "", "suppress", {"is_notified": False, "by": state})
        return actions.note_events(alarms, [event]), [event]
    handled = alarms.workflow.handled.get(key)
    if handled is not None and not handled.is_notified:
        return alarms, []
    return _put_post(alarms, context, statuses, gateway, alarm, active=active)


def _put_post(
    alarms: Alarms,
    context: Context,
    statuses: Statuses,
    gateway: str,
    alarm: Alarm,
    *,
    active: bool,
    again: AlarmEvent | None = None,
) -> Result:
    """Put a change into the queue of each receiver that it is for; `again` is why one is told of once more."""
    site, device, effects = context.settings.aggregator.site, find_device(statuses, gateway), list[Effect]()
    for name, spec in _list_receivers(context).items():
        if not isinstance(spec, NotifyChannel):
            post = webhook.post_of(site, gateway, alarm, device, active=active, again=again)
        elif notices.is_wanted(spec, gateway, alarm):
            post = notices.post_of(name, site, gateway, alarm, device, active=active, again=again)
        else:
            continue
        queue = alarms.queues.get(name, post_queue.Queue())
        alarms, more = _put_queue(alarms, name, post_queue.enqueue(queue, spec, post))
        effects += more
    return alarms, effects


def follow_masks(alarms: Alarms, context: Context, statuses: Statuses) -> Result:
    """Tell once more of alarms that stand when their mask has ended, and of those that nobody has acknowledged."""
    if alarms.looked_ns is not None and context.uptime_ns - alarms.looked_ns < LOOK_S * NS:
        return alarms, []
    alarms, effects = actions.forget_old(replace(alarms, looked_ns=context.uptime_ns)), list[Effect]()
    unacknowledged, changed, events = dict[AlarmKey, int](), list[CauseKey](), list[AlarmEvent]()
    for key, alarm, onset_ns, received_ns in list(_list_active(alarms)):
        state = find_state(alarms.workflow, key, AlarmCondition(alarm.cause, onset_ns, True), context.now_ns)
        handled, where = alarms.workflow.handled.get(key, Handled()), CauseKey(key.gateway, alarm.cause)
        if alarm_states.has_changed(alarms, where, key.alarm, state):  # the time alone may have done that
            changed.append(where)
        event = None
        if state in MASKS and not handled.is_masked:  # its cause was taken out of service while it stood
            event = AlarmEvent(
                *key, "", context.now_ns, "", "suppress", {"is_notified": handled.is_notified, "by": state}
            )
        elif state not in MASKS and handled.is_masked:
            is_notified = handled.is_notified or state == "unacknowledged"
            event = AlarmEvent(*key, "", context.now_ns, "", "resume", {"is_notified": is_notified})
        elif state == "unacknowledged":
            unacknowledged[key] = alarms.unacknowledged_ns.get(
                key, _place_on_uptime(context, max(received_ns, handled.renotified_ns))
            )
            if _must_escalate(context, alarm, handled, unacknowledged[key]):
                event = AlarmEvent(*key, "", context.now_ns, "", "escalate")
        if event is None:
            continue
        events.append(event)
        posts = list[Effect]()
        if event.kind == "escalate" or (event.kind == "resume" and state == "unacknowledged"):
            alarms, posts = _put_post(alarms, context, statuses, key.gateway, alarm, active=True, again=event)
            why = "nobody has acknowledged it" if event.kind == "escalate" else "its mask has ended, and it stands"
            posts = [*posts, Log("warning", f"{key.gateway}: {alarm.cause}: {why}")]
        effects += [event, *posts]
    # Together, and not one by one: a mask may end over all alarms of a site at once.
    alarms = mark_unpublished(actions.note_events(alarms, events), *changed)
    return replace(alarms, unacknowledged_ns=unacknowledged), effects


def _list_active(alarms: Alarms) -> Iterator[tuple[AlarmKey, Alarm, int, int]]:
    """Yield of each alarm that stands its onset, and when it became known here."""
    for gateway, of_gateway in alarms.book.items():
        for name, known in of_gateway.items():
            if known.active:
                yield AlarmKey(gateway, name), known.alarm, known.onset_ns, known.received_ns
    one = alarms.fleet.alarm
    if one is not None and one.state == "raised":
        yield AlarmKey(ALL, one.id), one, one.onset_ns, one.t_ns


def _place_on_uptime(context: Context, t_ns: int) -> int:
    """Return a time of day by the uptime, not later than now: a clock that was set meanwhile moves no deadline on."""
    return context.uptime_ns - max(context.now_ns - t_ns, 0)


def _must_escalate(context: Context, alarm: Alarm, handled: Handled, unacknowledged_ns: int) -> bool:
    spec = context.settings.escalation
    if spec is None or handled.escalated_ns or SEVERITIES.index(alarm.severity) < SEVERITIES.index(spec.severity):
        return False
    return context.uptime_ns - unacknowledged_ns >= spec.after_s * NS


def send_posts(alarms: Alarms, context: Context) -> Result:
    """Send what is due of what waits for the receivers that the site has."""
    effects = list[Effect]()
    for name in _list_receivers(context) if alarms.queues else ():
        if name in alarms.queues:
            alarms, more = _put_queue(alarms, name, post_queue.send_due(alarms.queues[name], context.uptime_ns))
            effects += more
    return alarms, effects


def _put_queue(alarms: Alarms, name: str, changed: tuple[post_queue.Queue, list[Effect]]) -> Result:
    queue, effects = changed
    if queue is alarms.queues.get(name):
        return alarms, effects
    return replace(alarms, queues={**alarms.queues, name: queue}), effects
