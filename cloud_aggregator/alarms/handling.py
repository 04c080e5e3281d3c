"""What becomes of an alarm: the registry, its receipt, the fleet alarm, and those who are told of it.

Whatever is told goes out after the step in which it was stored; see `events`.
"""

from __future__ import annotations

from typing import Literal

from fedgate.cloud_aggregator.access import device_sessions
from fedgate.cloud_aggregator.alarms import building, fleet, home_assistant, register, webhook
from fedgate.cloud_aggregator.alarms.records import ALARMS_REFUSED
from fedgate.cloud_aggregator.events import Effect, Log, Posted, Publish, RecordAlarm, RecordCount, RecordFleet
from fedgate.cloud_aggregator.state import NS, Spent, State, topic
from fedgate.config.protocol.messages import Alarm, FleetAlarm, MessageError, Receipt, Status
from fedgate.config.protocol.topics import ALL
from fedgate.models.records import replace

Result = tuple[State, list[Effect]]
Severity = Literal["warning", "major", "critical"]
# Changes of a gateway's alarms that are taken as they come, and in which time one more is; the last of them are for
# what is no trouble of a sensor.
CHANGES, CHANGE_S, RESERVED = 1_000, 3.0, 200
DESCRIBED_S = 60.0  # between two times at which others are told of what a gateway says of its device


def receive_alarm(state: State, gateway: str, alarm: Alarm) -> Result:
    """Take in a change of a gateway's alarm; one that was told before only gets its receipt again.

    Raises `MessageError` where too many came lately. Such a change has no answer, so its gateway keeps it and sends it
    again until it is taken.
    """
    state = _with_quiet(state, gateway, None)
    if reason := register.refusal(state.outward.alarms, gateway, alarm):
        return _refused(state, gateway, alarm, reason)
    if not register.is_known(state.outward.alarms.get(gateway, {}).get(alarm.id), alarm):
        state = _with_change(state, gateway, alarm)
    state, effects = apply_change(state, gateway, alarm)
    receipt = Publish(topic(state, gateway, "receipt", alarm.item), Receipt(accepted=True).to_bytes())
    return state, [*effects, receipt]


def _with_change(state: State, gateway: str, alarm: Alarm) -> State:
    """Count one more change of a gateway's alarms; raises `MessageError` where it has to wait."""
    before = state.alarmed.get(gateway, Spent()).after(state.now_ns, CHANGE_S)
    most = CHANGES - RESERVED if alarm.kind == "sensor" else CHANGES
    if before + 1 > most:
        raise MessageError(f"{gateway} raises and clears more than {most} at once, and more than one in {CHANGE_S:g} s")
    return replace(state, alarmed={**state.alarmed, gateway: Spent(before + 1, state.now_ns)})


def apply_change(state: State, gateway: str, alarm: Alarm) -> Result:
    """Store a change of an alarm and tell of it: one that the gateway told, or that is about the gateway itself."""
    cards = device_sessions.cards(state.sessions[gateway]) if gateway in state.sessions else {}
    alarms, known, is_news = register.take(state.outward.alarms, gateway, alarm, state.now_ns, cards)
    stored = RecordAlarm(gateway, alarm, state.now_ns, known.onset_ns)
    if not is_news:
        return state, [stored]
    state = replace(state, outward=replace(state.outward, alarms=alarms))
    ends = register.superseded(alarms, gateway)
    its_own = [end for end in ends if end.id == alarm.id]  # it came late, and was over before
    state, others = _ended(state, gateway, [end for end in ends if end.id != alarm.id], "superseded")
    state, posts = _post(state, gateway, alarm, active=known.active and not its_own)
    state, discovery = home_assistant.cause_seen(state, gateway)
    published = [] if its_own else building.of_change(state, gateway, known)
    state, late = _ended(state, gateway, its_own, "superseded")
    return state, [stored, *others, *posts, *published, *discovery, _log(gateway, alarm), *late]


def of_ours(state: State, gateway: str, cause: str) -> list[Alarm]:
    """Return the active alarms of a cause that this aggregator raised of a gateway."""
    known = state.outward.alarms.get(gateway, {}).values()
    return [one.alarm for one in known if one.active and one.alarm.cause == cause]


def raise_ours(state: State, gateway: str, cause: str, severity: Severity, text: str) -> Result:
    """Raise an alarm of our own of a gateway, unless it stands."""
    if of_ours(state, gateway, cause):
        return state, []
    now_ns = state.now_ns
    named = {"id": f"{gateway}.{cause}.{now_ns}", "cause": cause, "kind": "sensor", "state": "raised"}
    alarm = Alarm.model_validate(named | {"severity": severity, "text": text, "onset_ns": now_ns, "t_ns": now_ns})
    return apply_change(state, gateway, alarm)


def end_ours(state: State, gateway: str, alarm: Alarm, text: str) -> Result:
    """End an alarm of our own, and say why."""
    return apply_change(
        state, gateway, alarm.model_copy(update={"state": "cleared", "t_ns": state.now_ns, "text": text})
    )


def _refused(state: State, gateway: str, alarm: Alarm, reason: str) -> Result:
    refused = state.outward.alarms_refused + 1
    state = replace(state, outward=replace(state.outward, alarms_refused=refused))
    receipt = Receipt(accepted=False, reason=f"alarm {alarm.cause}: {reason}")
    effects: list[Effect] = [
        RecordCount(ALARMS_REFUSED, refused),
        Publish(topic(state, gateway, "receipt", alarm.item), receipt.to_bytes()),
    ]
    if refused.bit_count() == 1:  # told at 1, 2, 4, 8, ...: who raises without end would fill the log
        effects.append(Log("warning", f"{gateway}: {receipt.reason}; refused, as {refused} were so far"))
    return state, effects


def _ended(state: State, gateway: str, ends: list[Alarm], how: register.Ended) -> Result:
    """End alarms whose end their gateway has not told; they are stored and told of as any other change."""
    effects: list[Effect] = []
    for end in ends:
        alarms, known = register.ended(state.outward.alarms, gateway, end, how)
        state = replace(state, outward=replace(state.outward, alarms=alarms))
        state, posts = _post(state, gateway, end, active=False)
        stored = RecordAlarm(gateway, end, state.now_ns, known.onset_ns, how)
        effects += [stored, *posts, *building.of_change(state, gateway, known), _log(gateway, end)]
    return state, effects


def _with_quiet(state: State, gateway: str, quiet: register.Quiet | None) -> State:
    others = {name: one for name, one in state.outward.quiet.items() if name != gateway}
    return replace(state, outward=replace(state.outward, quiet=others if quiet is None else {**others, gateway: quiet}))


def _forgotten(state: State, gateway: str) -> Result:
    """End what a gateway no longer knows of, where its statuses have said so for long enough."""
    quiet = register.quieted(state.outward.quiet.get(gateway), state.gateways[gateway], state.now_ns)
    state = _with_quiet(state, gateway, quiet)
    if quiet is None or not quiet.is_over(state.now_ns):
        return state, []
    ends = register.forgotten(state.outward.alarms, gateway, state.now_ns)
    return _ended(state, gateway, ends, "forgotten")


def end_alarms_of_device(state: State, gateway: str, how: Literal["removed", "replaced"]) -> Result:
    """End the alarms of a device that is gone: taken away, or another has its name."""
    state = _with_quiet(state, gateway, None)
    return _ended(state, gateway, register.end_of_device(state.outward.alarms, gateway, state.now_ns, how), how)


def status_changed(state: State, gateway: str, before: Status | None) -> Result:
    """End the alarms that a gateway no longer knows of, and tell of a change in what it says of its device."""
    after = state.gateways[gateway]
    state, ends = _forgotten(state, gateway)
    if before is not None and (before.device, before.version) == (after.device, after.version):
        return state, ends
    state, published = _described(state, gateway)
    return state, [*ends, *published]


def _described(state: State, gateway: str) -> Result:
    """Tell others of a gateway's device, with each of its alarms: now, or where that was done just now a little later,
    since a status of a few bytes may ask for thousands of messages.
    """
    last_ns = state.described_ns.get(gateway)
    if last_ns is not None and 0 <= state.now_ns - last_ns < DESCRIBED_S * NS:
        return replace(state, undescribed=state.undescribed | {gateway}), []
    described_ns = {**state.described_ns, gateway: state.now_ns}
    state = replace(state, described_ns=described_ns, undescribed=state.undescribed - {gateway})
    if gateway not in state.gateways:  # it was taken away meanwhile
        return state, []
    state, effects = home_assistant.gateway_changed(state, gateway)
    return state, [*effects, *building.of_gateway(state, gateway)]


def publish_alarms(state: State) -> Result:
    """Tell again how every alarm is now: brokers forget, and not every message arrived."""
    state = replace(state, outward=replace(state.outward, quiet={}))
    state, effects = home_assistant.sync(state)
    for gateway in state.outward.alarms:
        effects += building.of_gateway(state, gateway)
    return state, [*effects, *_publish_fleet(state)]


def judge_fleet(state: State) -> Result:
    """Judge the fleet, and send what waits for the webhook."""
    before, settings = state.outward.fleet, state.settings.fleet
    now = fleet.judge(settings, before, state.gateways, state.outward.alarms, state.now_ns)
    state = replace(state, outward=replace(state.outward, fleet=now))
    effects: list[Effect] = []
    if now.alarm is not None and now.alarm != before.alarm:
        state, effects = _fleet_changed(state, before.alarm, now.alarm)
    for gateway in sorted(state.undescribed):
        state, published = _described(state, gateway)
        effects += published
    state, sends = _send(state)
    return state, [*effects, *sends]


def note_posted(state: State, event: Posted) -> Result:
    """Take in how an attempt to post went."""
    if state.settings.webhook is None:
        return state, []
    queue, effects = webhook.receive_result(state.outward.queue, state.settings.webhook, event, state.now_ns)
    return replace(state, outward=replace(state.outward, queue=queue)), effects


def _fleet_changed(state: State, before: FleetAlarm | None, now: FleetAlarm) -> Result:
    effects: list[Effect] = [RecordFleet(now, state.now_ns)]
    # Who joins is stored and shown; whom the webhook wakes wants to hear of the beginning and the end.
    if before is None or (before.id, before.state) != (now.id, now.state):
        state, posts = _post(state, ALL, now, active=now.state == "raised")
        effects += [*posts, _log("site", now)]
    return state, [*effects, *_publish_fleet(state)]


def _log(who: str, alarm: Alarm) -> Log:
    level: Literal["info", "warning"] = "warning" if alarm.state == "raised" else "info"
    return Log(level, f"{who}: {alarm.cause} {alarm.state}: {alarm.text}")


def _publish_fleet(state: State) -> list[Effect]:
    alarm = state.outward.fleet.alarm
    if alarm is None:
        return []
    return [
        Publish(topic(state, ALL, "alarm", fleet.CAUSE), alarm.to_bytes(), retain=True),
        *building.of_fleet(state),
    ]


def _post(state: State, gateway: str, alarm: Alarm, *, active: bool) -> Result:
    spec = state.settings.webhook
    if spec is None:
        return state, []
    device = building.device_of(state, gateway)
    post = webhook.post_of(state.settings.aggregator.site, gateway, alarm, device, active=active)
    queue, effects = webhook.enqueue(state.outward.queue, spec, post)
    state = replace(state, outward=replace(state.outward, queue=queue))
    state, sends = _send(state)
    return state, [*effects, *sends]


def _send(state: State) -> Result:
    if state.settings.webhook is None:
        return state, []
    queue, effects = webhook.due(state.outward.queue, state.settings.webhook, state.now_ns)
    return replace(state, outward=replace(state.outward, queue=queue)), effects
