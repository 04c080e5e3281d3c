"""Alarms as messages: an anomaly of the structure, and sensor faults as a class of their own, never to be read as
damage.
"""

from __future__ import annotations

import hashlib
import re
from typing import Literal

from fedgate.config.protocol.messages import Alarm
from fedgate.config.settings.settings import GatewaySettings, Source
from fedgate.gateway_agent.events import ALARM_PRIORITY, SENSOR_PRIORITY, Effect, Item, Log
from fedgate.gateway_agent.monitor import evidence
from fedgate.gateway_agent.monitor.decision import SCORE
from fedgate.gateway_agent.monitor.monitor import RaisedBy, RaisedIn
from fedgate.gateway_agent.state import ANOMALY, State, alarm_id, deliver, save_alarms
from fedgate.models.attribution import Evidence
from fedgate.models.features import feature_names
from fedgate.models.records import replace
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


def of_transition(state: State, transition: Transition, height: Height) -> tuple[State, list[Effect]]:
    """Queue the message of a raised or cleared anomaly, with the model, rule, level and window it comes from."""
    judge, manifest = state.monitor.pipeline.judge, state.deployment.manifest
    if judge is None or manifest is None:  # a transition needs a judge, and a judge comes with its manifest
        raise AssertionError("a transition without a model in force")
    weather, power = UNMEASURED
    if transition.kind == "raised":
        state = _begun(
            replace(state, monitor=replace(state.monitor, raised_by=RaisedBy(height.rule, height.feature or ""))),
            ANOMALY,
        )
        weather, power = evidence.measured(state, transition)
    by = state.monitor.raised_by
    alarm = Alarm(
        id=alarm_id(state, ANOMALY, transition.onset_ns),
        cause=ANOMALY,
        kind="anomaly",
        state=transition.kind,
        severity=severity(judge.levels, transition.score),
        text=_text(state, transition, height) + _accounted(weather=weather, power=power),
        rule=by.rule,
        feature=by.feature,
        onset_ns=transition.onset_ns,
        t_ns=transition.t_ns,
        score=transition.score,
        level=transition.level,
        window_s=state.context.settings.features.window_s,
        model_version=manifest.version,
        model_digest=manifest.model.digest,
        baseline_windows=len(state.monitor.pipeline.baseline),
        clock=state.context.clock,
        boot_id=state.context.boot_id,
        monotonic_ns=state.context.monotonic_ns(transition.t_ns),
        sequence=_sequence(state, ANOMALY),
        store_id=state.context.store_id,
        weather=weather,
        power=power,
    )
    return _queue(state, alarm)


def _accounted(**measured: Evidence) -> str:
    does = {"explained": "accounts for it", "unusual": "does not account for it"}
    found = {cause: does[said] for cause, said in measured.items() if said in does}
    return "".join(f"; {cause} is out of the ordinary and {what}" for cause, what in found.items())


def _begun(state: State, cause: str) -> State:
    """Return the state that knows when an alarm was raised, whatever the clock says."""
    # What a full disk does not take is told all the same, and the next start counts anew from before.
    sequence = 0 if state.context.store.is_unstored else state.outbox.sequence + 1
    return replace(
        state,
        monitor=replace(
            state.monitor, raised_in={**state.monitor.raised_in, cause: RaisedIn(state.context.boot_id, sequence)}
        ),
    )


def _sequence(state: State, cause: str) -> int:
    return state.monitor.raised_in[cause].sequence if cause in state.monitor.raised_in else 0  # 0.5 kept none


def _text(state: State, transition: Transition, height: Height) -> str:
    if transition.kind == "cleared":
        what = "score" if state.monitor.raised_by.rule == SCORE else "height of all rules"
        return f"{what} stayed below {transition.level:.3g}; its peak was {transition.score:.3g}"
    judge = state.monitor.pipeline.judge
    whose = "the site" if judge is not None and judge.watch.is_borrowed else "this gateway's own baseline"
    what = f"{height.rule} of {height.feature}" if height.feature else height.rule
    return f"{what} {height.statistic:.3g} is above the level {height.level:.3g} of {whose}"


def outdated(state: State, t_ns: int) -> tuple[State, list[Effect]]:
    """Say once that scores are no longer those from which the level was taken; the next level clears it."""
    change = state.monitor.pipeline.watching.drift.change
    if change is None:
        return state, []
    text = (
        f"scores have become {change} than those of the baseline, and stay so: the level promises what it cannot keep; "
        "see whether the sensor was moved or the season changed, and commission this gateway anew"
    )
    return sensor(state, OUTDATED, text, t_ns)


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


def stuck(state: State, features: tuple[str, ...], moved: tuple[str, ...], t_ns: int) -> tuple[State, list[Effect]]:
    """Raise a sensor fault for every feature that is stuck: a bus that repeats itself is no damage, and must not hide
    any. It clears when the feature was seen to change.
    """
    effects: list[Effect] = []
    for feature in features:
        text = f"{feature} has not changed for longer than it ever did in this gateway's baseline; see to the sensor"
        state, raised = sensor(state, stuck_cause(feature), text, t_ns, feature)
        effects += raised
    for feature in moved:
        state, cleared = sensor_well(state, stuck_cause(feature), t_ns, feature)
        effects += cleared
    return state, effects


def sensor(state: State, cause: str, text: str, t_ns: int, feature: str = "") -> tuple[State, list[Effect]]:
    """Raise a sensor fault once, of a stuck `feature` where one is named; one that is active changes nothing."""
    if cause in state.monitor.sensor_alarms:
        return state, []
    state = _begun(
        replace(state, monitor=replace(state.monitor, sensor_alarms={**state.monitor.sensor_alarms, cause: t_ns})),
        cause,
    )
    return _queue(state, _sensor_alarm(state, cause, "raised", text, (t_ns, t_ns), feature))


def sensor_well(state: State, cause: str, t_ns: int, feature: str = "") -> tuple[State, list[Effect]]:
    """Clear a sensor fault where it is active."""
    if cause not in state.monitor.sensor_alarms:
        return state, []
    onset_ns = state.monitor.sensor_alarms[cause]
    state = replace(
        state,
        monitor=replace(
            state.monitor, sensor_alarms={key: at for key, at in state.monitor.sensor_alarms.items() if key != cause}
        ),
    )
    text = OF_NO_SENSOR.get(cause, "the sensor is well again")
    return _queue(state, _sensor_alarm(state, cause, "cleared", text, (onset_ns, t_ns), feature))


def _sensor_alarm(
    state: State, cause: str, kind: Literal["raised", "cleared"], text: str, span_ns: tuple[int, int], feature: str
) -> Alarm:
    """Return the message of a fault from an onset to now, both in `span_ns`."""
    onset_ns, t_ns = span_ns
    return Alarm(
        id=alarm_id(state, cause, onset_ns),
        cause=cause,
        kind="sensor",
        state=kind,
        severity="warning",
        text=text,
        rule=STUCK if feature else "",
        feature=feature,
        onset_ns=onset_ns,
        t_ns=t_ns,
        clock=state.context.clock,
        boot_id=state.context.boot_id,
        monotonic_ns=state.context.monotonic_ns(t_ns),
        sequence=_sequence(state, cause),
        store_id=state.context.store_id,
    )


def _queue(state: State, alarm: Alarm) -> tuple[State, list[Effect]]:
    priority = ALARM_PRIORITY if alarm.kind == "anomaly" else SENSOR_PRIORITY
    item = Item(state.context.topic("alarm", alarm.cause), (alarm.to_bytes(),), retain=True, priority=priority)
    if alarm.state == "cleared":
        state = replace(
            state,
            monitor=replace(
                state.monitor,
                raised_in={key: boot for key, boot in state.monitor.raised_in.items() if key != alarm.cause},
            ),
        )
    saved = save_alarms(state)
    state, effects = deliver(state, alarm.item, item)
    level: Literal["info", "warning"] = "warning" if alarm.state == "raised" else "info"
    return state, [saved, *effects, Log(level, f"alarm {alarm.cause} {alarm.state}: {alarm.text}")]


def _channels(state: State) -> list[tuple[Source, str]]:
    return [(source, channel.role) for source in state.context.settings.source for channel in source.channels]


def window_whole(state: State, faulty: tuple[str, ...], t_ns: int) -> tuple[State, list[Effect]]:
    """Raise a fault for every channel whose window, which ended at `t_ns`, was faulty.

    It clears when the channel was well for as long as its source may be silent: a sensor that breaks and mends with
    every window is one fault.
    """
    state = replace(state, monitor=replace(state.monitor, lost_ns={}))
    effects: list[Effect] = []
    for source, channel in _channels(state):
        cause = f"faulty-{channel}"
        if channel in faulty:
            text = f"channel {channel} is stuck, clipped or out of all range; its windows are not scored"
            state, more = sensor(state, cause, text, t_ns)
            effects += more
        if channel in faulty or (cause in state.monitor.sensor_alarms and channel not in state.monitor.faulty_ns):
            state = replace(state, monitor=replace(state.monitor, faulty_ns={**state.monitor.faulty_ns, channel: t_ns}))
        elif (
            cause in state.monitor.sensor_alarms
            and not 0 <= t_ns - state.monitor.faulty_ns[channel] < source.silent_after_s * NS
        ):
            state, more = sensor_well(state, cause, t_ns)
            effects += more
    return state, effects


def window_lost(state: State, lost: Lost) -> tuple[State, list[Effect]]:
    """Raise a fault for every channel that has kept windows from being whole for as long as its source may be silent:
    a gateway that sees nothing must not look like one at peace.
    """
    effects: list[Effect] = []
    for source, channel in _channels(state):
        if channel in lost.channels:
            since_ns = min(state.monitor.lost_ns.get(channel, lost.t_ns), lost.t_ns)  # the clock may have gone back
            state = replace(state, monitor=replace(state.monitor, lost_ns={**state.monitor.lost_ns, channel: since_ns}))
            blind_s = (lost.t_ns - since_ns) / NS
            # Where the whole source is silent that is the alarm, and one is enough.
            if blind_s >= source.silent_after_s and f"silent-{source.name}" not in state.monitor.sensor_alarms:
                text = f"channel {channel} has given no whole window for {blind_s:.0f} s: {lost.reason}"
                state, raised = sensor(state, f"faulty-{channel}", text, lost.t_ns)
                state = replace(
                    state, monitor=replace(state.monitor, faulty_ns={**state.monitor.faulty_ns, channel: lost.t_ns})
                )
                effects += raised
    return state, effects


def silent_sources(state: State) -> tuple[State, list[Effect]]:
    """Raise a fault for every source that has said nothing for too long."""
    effects: list[Effect] = []
    for source in state.context.settings.source:
        quiet_s = (state.context.now_ns - state.monitor.heard_ns[source.name]) / NS
        if quiet_s >= source.silent_after_s:
            text = f"source {source.name} has sent nothing usable for {quiet_s:.0f} s"
            state, raised = sensor(state, f"silent-{source.name}", text, state.context.now_ns)
            effects += raised
    return state, effects


def without_model(state: State) -> tuple[State, list[Effect]]:
    """Raise a fault where a gateway that had a model has none in force: it watches nothing, and looks at peace."""
    if (
        state.deployment.manifest is not None
        or max(state.deployment.models.newest, state.deployment.models.current.version) == 0
    ):
        return sensor_well(state, NO_MODEL, state.context.now_ns)
    text = f"no model is in force, so nothing is watched: {state.refusal or 'it is to come again'}"
    return sensor(state, NO_MODEL, text, state.context.now_ns)
