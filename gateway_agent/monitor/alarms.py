"""Alarms as messages: an anomaly of the structure, and sensor faults as a class of their own, never to be read as
damage.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import Literal

from fedgate.config.protocol.messages import Alarm, Manifest
from fedgate.config.settings.settings import GatewaySettings, Source
from fedgate.gateway_agent.context import Context
from fedgate.gateway_agent.events import ALARM_PRIORITY, SENSOR_PRIORITY, Deliver, Item, Log, Wanted
from fedgate.gateway_agent.monitor import evidence
from fedgate.gateway_agent.monitor.decision import SCORE
from fedgate.gateway_agent.monitor.monitor import ANOMALY, Monitor, RaisedBy, RaisedIn, alarm_id, save_alarms
from fedgate.gateway_agent.monitor.pipeline import Reading
from fedgate.models.attribution import Evidence
from fedgate.models.features import feature_names
from fedgate.models.rule_statistics import Stuck
from fedgate.models.rules import Height
from fedgate.models.signal import Lost
from fedgate.models.threshold import Transition, severity

NS = 1_000_000_000
UNMEASURED: tuple[Evidence, Evidence] = ("", "")
OUTDATED = "level-outdated"
STUCK = "stuck"
NO_MODEL = "no-model"
OF_NO_SENSOR = {  # causes that are no sensor's, and what is said at their end
    NO_MODEL: "a model is in force again",
    "disk-full": "the store has room again",
    "store-damaged": "the store that was made anew is in use",
}
NOT_IN_A_CAUSE = re.compile(r"[^A-Za-z0-9_.-]")
CAUSE_LENGTH, DIGEST_LENGTH = 64, 8  # characters


def watched_causes(settings: GatewaySettings) -> set[str]:
    """Return the causes of sensor alarms that these settings can raise and clear while the agent runs."""
    causes = {f"silent-{source.name}" for source in settings.source} | {NO_MODEL}
    causes |= {OUTDATED} if settings.alarm.drift is not None else set()
    return causes | {f"faulty-{channel}" for channel in settings.features.channels} | stuck_causes(settings)


def check_reading(
    monitor: Monitor, context: Context, manifest: Manifest | None, reading: Reading
) -> tuple[Monitor, list[Wanted]]:
    """Raise and clear alarms by what became of one window; `manifest` is that of the model in force."""
    if reading.filled:
        sums = {channel: monitor.values_filled.get(channel, 0) + count for channel, count in reading.filled.items()}
        monitor = replace(monitor, values_filled={**monitor.values_filled, **sums})
    if reading.lost is not None:
        is_first = not monitor.lost_ns  # of a run of lost windows; the count of all stands in the status
        monitor = replace(monitor, windows_lost=monitor.windows_lost + 1)
        monitor, effects = check_lost_window(monitor, context, reading.lost)
        text = f"window lost ({', '.join(reading.lost.channels)}): {reading.lost.reason}"
        return monitor, [Log("info", text), *effects] if is_first else effects
    monitor = replace(monitor, windows=monitor.windows + 1)
    monitor, effects = check_window(monitor, context, reading.faulty, reading.t_ns)
    monitor, more = check_stuck(monitor, context, reading.stuck, reading.moved, reading.t_ns)
    effects += more
    if reading.height is None:
        return monitor, effects
    if reading.transition is not None:
        monitor, more = queue_anomaly(monitor, context, manifest, reading.transition, reading.height)
        effects += more
    monitor, more = check_drift(monitor, context, reading.t_ns)
    return monitor, [*effects, *more]


def queue_anomaly(
    monitor: Monitor, context: Context, manifest: Manifest | None, transition: Transition, height: Height
) -> tuple[Monitor, list[Wanted]]:
    """Queue the message of a raised or cleared anomaly, with the model, rule, level and window it comes from."""
    judge = monitor.pipeline.judge
    if judge is None or manifest is None:  # a transition needs a judge, and a judge comes with its manifest
        raise AssertionError("a transition without a model in force")
    weather, power = UNMEASURED
    if transition.kind == "raised":
        monitor = _number(replace(monitor, raised_by=RaisedBy(height.rule, height.feature or "")), context, ANOMALY)
        weather, power = evidence.measured(monitor.pipeline, context, transition)
    by = monitor.raised_by
    alarm = Alarm(
        id=alarm_id(monitor, context, ANOMALY, transition.onset_ns),
        cause=ANOMALY,
        kind="anomaly",
        state=transition.kind,
        severity=severity(judge.levels, transition.score),
        text=_text(monitor, transition, height) + _accounted(weather=weather, power=power),
        rule=by.rule,
        feature=by.feature,
        onset_ns=transition.onset_ns,
        t_ns=transition.t_ns,
        score=transition.score,
        level=transition.level,
        window_s=context.settings.features.window_s,
        model_version=manifest.version,
        model_digest=manifest.model.digest,
        baseline_windows=len(monitor.pipeline.baseline),
        clock=context.clock,
        boot_id=context.boot_id,
        monotonic_ns=context.monotonic_ns(transition.t_ns),
        sequence=_sequence(monitor, ANOMALY),
        store_id=context.store_id,
        weather=weather,
        power=power,
    )
    return _queue(monitor, context, alarm)


def _accounted(**measured: Evidence) -> str:
    does = {"explained": "accounts for it", "unusual": "does not account for it"}
    found = {cause: does[outcome] for cause, outcome in measured.items() if outcome in does}
    return "".join(f"; {cause} is out of the ordinary and {what}" for cause, what in found.items())


def _number(monitor: Monitor, context: Context, cause: str) -> Monitor:
    """Return the monitor that knows when an alarm was raised, whatever the clock says."""
    # What a full disk does not take is published all the same, and the next start counts anew from before.
    number = 0 if context.store.is_unstored else monitor.alarms_raised + 1
    raised_in = {**monitor.raised_in, cause: RaisedIn(context.boot_id, number)}
    return replace(monitor, raised_in=raised_in, alarms_raised=number or monitor.alarms_raised)


def _sequence(monitor: Monitor, cause: str) -> int:
    return monitor.raised_in[cause].sequence if cause in monitor.raised_in else 0


def _text(monitor: Monitor, transition: Transition, height: Height) -> str:
    if transition.kind == "cleared":
        what = "score" if monitor.raised_by.rule == SCORE else "height of all rules"
        return f"{what} stayed below {transition.level:.3g}; its peak was {transition.score:.3g}"
    judge = monitor.pipeline.judge
    whose = "the site" if judge is not None and judge.is_borrowed else "this gateway's own baseline"
    what = f"{height.rule} of {height.feature}" if height.feature else height.rule
    return f"{what} {height.statistic:.3g} is above the level {height.level:.3g} of {whose}"


def check_drift(monitor: Monitor, context: Context, t_ns: int) -> tuple[Monitor, list[Wanted]]:
    """Say once that scores are no longer those from which the level was taken; the next level clears it."""
    change = monitor.pipeline.watching.drift.change
    if change is None:
        return monitor, []
    text = (
        f"scores have become {change} than those of the baseline, and stay so: the level promises what it cannot keep; "
        "see whether the sensor was moved or the season changed, and commission this gateway anew"
    )
    return raise_fault(monitor, context, OUTDATED, text, t_ns)


def stuck_cause(feature: str) -> str:
    """Return the cause of a feature that is stuck; one whose name is none as it is ends with a digest of that name."""
    cause = f"{STUCK}-{feature}"
    plain = NOT_IN_A_CAUSE.sub("_", cause)
    if plain == cause and len(cause) <= CAUSE_LENGTH:
        return cause
    digest = hashlib.sha256(feature.encode()).hexdigest()[:DIGEST_LENGTH]
    return f"{plain[: CAUSE_LENGTH - DIGEST_LENGTH - 1]}-{digest}"


def stuck_causes(settings: GatewaySettings) -> set[str]:
    """Return the causes of all features that the rules in the settings may find stuck."""
    rules = settings.alarm.active_rules
    if rules is None or not any(isinstance(rule, Stuck) for rule in rules.rules.values()):
        return set()
    return {stuck_cause(name) for name in rules.watched or feature_names(settings.features)}


def check_stuck(
    monitor: Monitor, context: Context, features: tuple[str, ...], moved: tuple[str, ...], t_ns: int
) -> tuple[Monitor, list[Wanted]]:
    """Raise a sensor fault for every feature that is stuck: a bus that repeats itself is no damage, and must not hide
    any. It clears when the feature was seen to change.
    """
    effects: list[Wanted] = []
    for feature in features:
        text = f"{feature} has not changed for longer than it ever did in this gateway's baseline; see to the sensor"
        monitor, raised = raise_fault(monitor, context, stuck_cause(feature), text, t_ns, feature)
        effects += raised
    for feature in moved:
        monitor, cleared = clear_fault(monitor, context, stuck_cause(feature), t_ns, feature)
        effects += cleared
    return monitor, effects


def raise_fault(
    monitor: Monitor, context: Context, cause: str, text: str, t_ns: int, feature: str = ""
) -> tuple[Monitor, list[Wanted]]:
    """Raise a sensor fault once, of a stuck `feature` where one is named; one that is active changes nothing."""
    if cause in monitor.sensor_alarms:
        return monitor, []
    sensor_alarms = {**monitor.sensor_alarms, cause: t_ns}
    monitor = _number(replace(monitor, sensor_alarms=sensor_alarms), context, cause)
    return _queue(monitor, context, _sensor_alarm(monitor, context, cause, "raised", text, (t_ns, t_ns), feature))


def clear_fault(
    monitor: Monitor, context: Context, cause: str, t_ns: int, feature: str = ""
) -> tuple[Monitor, list[Wanted]]:
    """Clear a sensor fault where it is active."""
    if cause not in monitor.sensor_alarms:
        return monitor, []
    onset_ns = monitor.sensor_alarms[cause]
    monitor = replace(monitor, sensor_alarms={key: at for key, at in monitor.sensor_alarms.items() if key != cause})
    text = OF_NO_SENSOR.get(cause, "the sensor is well again")
    return _queue(monitor, context, _sensor_alarm(monitor, context, cause, "cleared", text, (onset_ns, t_ns), feature))


def _sensor_alarm(
    monitor: Monitor,
    context: Context,
    cause: str,
    kind: Literal["raised", "cleared"],
    text: str,
    span_ns: tuple[int, int],
    feature: str,
) -> Alarm:
    """Return the message of a fault from an onset to now, both in `span_ns`."""
    onset_ns, t_ns = span_ns
    return Alarm(
        id=alarm_id(monitor, context, cause, onset_ns),
        cause=cause,
        kind="sensor",
        state=kind,
        severity="warning",
        text=text,
        rule=STUCK if feature else "",
        feature=feature,
        onset_ns=onset_ns,
        t_ns=t_ns,
        clock=context.clock,
        boot_id=context.boot_id,
        monotonic_ns=context.monotonic_ns(t_ns),
        sequence=_sequence(monitor, cause),
        store_id=context.store_id,
    )


def _queue(monitor: Monitor, context: Context, alarm: Alarm) -> tuple[Monitor, list[Wanted]]:
    priority = ALARM_PRIORITY if alarm.kind == "anomaly" else SENSOR_PRIORITY
    item = Item(context.topic("alarm", alarm.cause), (alarm.to_bytes(),), retain=True, priority=priority)
    if alarm.state == "cleared":
        raised_in = {key: boot for key, boot in monitor.raised_in.items() if key != alarm.cause}
        monitor = replace(monitor, raised_in=raised_in)
    level: Literal["info", "warning"] = "warning" if alarm.state == "raised" else "info"
    return monitor, [
        save_alarms(monitor),
        Deliver(alarm.item, item),
        Log(level, f"alarm {alarm.cause} {alarm.state}: {alarm.text}"),
    ]


def _channels(context: Context) -> list[tuple[Source, str]]:
    return [(source, channel.role) for source in context.settings.source for channel in source.channels]


def check_window(
    monitor: Monitor, context: Context, faulty: tuple[str, ...], t_ns: int
) -> tuple[Monitor, list[Wanted]]:
    """Raise a fault for every channel whose window, which ended at `t_ns`, was faulty.

    It clears when the channel was well for as long as its source may be silent: a sensor that breaks and mends with
    every window is one fault.
    """
    monitor = replace(monitor, lost_ns={})
    effects: list[Wanted] = []
    for source, channel in _channels(context):
        cause = f"faulty-{channel}"
        if channel in faulty:
            text = f"channel {channel} is stuck, clipped or out of all range; its windows are not scored"
            monitor, more = raise_fault(monitor, context, cause, text, t_ns)
            effects += more
        if channel in faulty or (cause in monitor.sensor_alarms and channel not in monitor.faulty_ns):
            monitor = replace(monitor, faulty_ns={**monitor.faulty_ns, channel: t_ns})
        elif cause in monitor.sensor_alarms and not 0 <= t_ns - monitor.faulty_ns[channel] < source.silent_after_s * NS:
            monitor, more = clear_fault(monitor, context, cause, t_ns)
            effects += more
    return monitor, effects


def check_lost_window(monitor: Monitor, context: Context, lost: Lost) -> tuple[Monitor, list[Wanted]]:
    """Raise a fault for every channel that has kept windows from being whole for as long as its source may be silent:
    a gateway that sees nothing must not look like one at peace.
    """
    effects: list[Wanted] = []
    for source, channel in _channels(context):
        if channel in lost.channels:
            since_ns = min(monitor.lost_ns.get(channel, lost.t_ns), lost.t_ns)  # the clock may have gone back
            monitor = replace(monitor, lost_ns={**monitor.lost_ns, channel: since_ns})
            blind_s = (lost.t_ns - since_ns) / NS
            # Where the whole source is silent that is the alarm, and one is enough.
            if blind_s >= source.silent_after_s and f"silent-{source.name}" not in monitor.sensor_alarms:
                text = f"channel {channel} has given no whole window for {blind_s:.0f} s: {lost.reason}"
                monitor, raised = raise_fault(monitor, context, f"faulty-{channel}", text, lost.t_ns)
                monitor = replace(monitor, faulty_ns={**monitor.faulty_ns, channel: lost.t_ns})
                effects += raised
    return monitor, effects


def check_silence(monitor: Monitor, context: Context) -> tuple[Monitor, list[Wanted]]:
    """Raise a fault for every source that has said nothing for too long."""
    effects: list[Wanted] = []
    for source in context.settings.source:
        quiet_s = (context.now_ns - monitor.received_ns[source.name]) / NS
        if quiet_s >= source.silent_after_s:
            text = f"source {source.name} has sent nothing usable for {quiet_s:.0f} s"
            monitor, raised = raise_fault(monitor, context, f"silent-{source.name}", text, context.now_ns)
            effects += raised
    return monitor, effects


def check_model(
    monitor: Monitor, context: Context, manifest: Manifest | None, newest: int
) -> tuple[Monitor, list[Wanted]]:
    """Raise a fault where a gateway that had a model, of version `newest` at most, has none in force: it watches
    nothing, and looks at peace.
    """
    if manifest is not None or newest == 0:
        return clear_fault(monitor, context, NO_MODEL, context.now_ns)
    text = f"no model is in force, so nothing is watched: {context.refusal or 'it is to come again'}"
    return raise_fault(monitor, context, NO_MODEL, text, context.now_ns)
