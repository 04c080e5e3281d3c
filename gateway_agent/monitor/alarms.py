"""Alarms as messages: an anomaly of the structure, and sensor faults as a class of their own, never to be read as
damage.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from fedgate.config.protocol.alarm_book import AlarmBook
from fedgate.config.protocol.evidence import LABEL_MAX, cut_text, fit_text
from fedgate.config.protocol.messages import Alarm, Manifest
from fedgate.config.settings.settings import GatewaySettings, Source
from fedgate.gateway_agent.context import SYNCHRONISED, Context
from fedgate.gateway_agent.events import ALARM_PRIORITY, SENSOR_PRIORITY, Deliver, Item, Log, RecordSamples, Wanted
from fedgate.gateway_agent.monitor.evidence import count_outside, queue_evidence
from fedgate.gateway_agent.monitor.monitor import ANOMALY, Monitor, save_alarms
from fedgate.gateway_agent.monitor.sentence import describe_start, format_since
from fedgate.gateway_agent.pipeline.decision import SCORE
from fedgate.gateway_agent.pipeline.pipeline import Pipeline, WindowResult, stack_rows
from fedgate.models.alarms.attribution import Columns, Evidence, evidence_of
from fedgate.models.alarms.rule_statistics import Stuck
from fedgate.models.alarms.threshold import Transition, severity
from fedgate.models.features.spec import feature_names
from fedgate.models.time_units import NS
from fedgate.models.windows.grid import Lost

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
ALARM_BYTES = 1_023  # at most: what its other values leave is for its text
BOOT_S = 900.0  # within which the first windows after a boot end
CALENDAR = "calendar."  # begins the names of features that say what the hour or the day is


class Finding(NamedTuple):
    """What is wrong with a sensor, or with the gateway itself; an empty `problem` says that it is well.

    `feature` names the one that is stuck.
    """

    cause: str
    t_ns: int
    problem: str = ""
    feature: str = ""


def list_watched_causes(settings: GatewaySettings) -> set[str]:
    """Return the causes of alarms that these settings can raise and clear while the agent runs."""
    causes = {f"silent-{source.name}" for source in settings.source} | {ANOMALY, NO_MODEL}
    causes |= {OUTDATED} if settings.alarm.drift is not None else set()
    return causes | {f"faulty-{channel}" for channel in settings.features.channels} | list_stuck_causes(settings)


def check_reading(
    monitor: Monitor, context: Context, manifest: Manifest | None, reading: WindowResult
) -> tuple[Monitor, list[Wanted]]:
    """Raise and clear alarms by what became of one window; `manifest` is that of the model in force."""
    if reading.filled:
        sums = {channel: monitor.values_filled.get(channel, 0) + count for channel, count in reading.filled.items()}
        monitor = replace(monitor, values_filled={**monitor.values_filled, **sums})
    if reading.lost is not None:
        is_first = not monitor.lost_ns  # of a run of lost windows; the count of all stands in the status
        by_channel = {name: monitor.lost_by_channel.get(name, 0) + 1 for name in reading.lost.channels}
        by_channel = {**monitor.lost_by_channel, **by_channel}
        monitor = replace(monitor, windows_lost=monitor.windows_lost + 1, lost_by_channel=by_channel)
        monitor, found = check_lost_window(monitor, context, reading.lost)
        monitor, effects = report_findings(monitor, context, found)
        text = f"window lost ({', '.join(reading.lost.channels)}): {reading.lost.reason}"
        return monitor, [Log("info", text), *effects] if is_first else effects
    monitor = replace(monitor, windows=monitor.windows + 1)
    monitor, found = check_window(monitor, context, reading.faulty, reading.t_ns)
    found += check_stuck(reading)
    if reading.height is not None:
        monitor = monitor.note_height(reading.t_ns, reading.height.value)
        found += check_drift(monitor, reading.t_ns)
    monitor, effects = report_findings(monitor, context, found)
    if reading.transition is None:
        return monitor, effects
    monitor, more = queue_anomaly(monitor, context, manifest, reading)
    return monitor, [*effects, *more]


def queue_anomaly(
    monitor: Monitor, context: Context, manifest: Manifest | None, reading: WindowResult
) -> tuple[Monitor, list[Wanted]]:
    """Queue the message of a raised or cleared anomaly, with the model, rule, level and window it comes from, and the
    features that stand out; behind one that is raised its evidence, and the samples around it.
    """
    judge, transition, height = monitor.pipeline.judge, reading.transition, reading.height
    if judge is None or manifest is None or transition is None or height is None:
        raise AssertionError("a transition needs a height, that a judge, and a judge comes with its manifest")
    measured: dict[str, Any] = {
        "severity": severity(judge.levels, transition.score),
        "score": transition.score,
        "level": transition.level,
        "window_s": context.settings.features.window_s,
        "model_version": manifest.version,
        "model_digest": manifest.model.digest,
        "baseline_windows": len(monitor.pipeline.baseline),
    }
    if transition.kind == "cleared":
        end = {**_describe_moment(context, transition.t_ns), **measured, "weather": "", "power": ""}
        return _report(monitor, context, *monitor.alarms.clear_once(ANOMALY, _describe_end(monitor, transition), **end))
    weather, power = measure_evidence(monitor.pipeline, context, transition)
    feature = height.feature or next((one.feature for one in reading.standing_out), "")
    alarm = Alarm(
        **_describe_origin(monitor, context, ANOMALY, transition.onset_ns, transition.t_ns),
        kind="anomaly",
        text="",
        rule=cut_text(height.rule, LABEL_MAX),
        feature=cut_text(feature, LABEL_MAX),
        weather=weather,
        power=power,
        **measured,
    )
    beside = _describe_evidence(weather, power, is_power_measured=bool(context.settings.alarm.covariates.power))
    text = describe_start(
        judge,
        height,
        reading.standing_out,
        settings=context.settings,
        since=format_since(transition.onset_ns, is_synchronised=context.clock == SYNCHRONISED),
        outside=count_outside(monitor, context, reading),
        most=ALARM_BYTES - len(alarm.to_bytes()) - len(beside),
    )
    book, raised = monitor.alarms.raise_once(alarm.model_copy(update={"text": text + beside}))
    monitor, effects = _report(monitor, context, book, raised)
    if raised is None:
        return monitor, effects
    recorded = RecordSamples(raised.id, raised.cause, raised.onset_ns, raised.t_ns)
    monitor, more = queue_evidence(monitor, context, raised, reading)
    return monitor, [*effects, *more, recorded]


def _describe_evidence(weather: Evidence, power: Evidence, *, is_power_measured: bool) -> str:
    does = {"explained": "accounts for it", "unusual": "goes beyond what the baseline shows of its effect"}
    measured = {"weather": weather, "power": power if is_power_measured else ""}
    found = [f"; {name} is out of the ordinary and {does[what]}" for name, what in measured.items() if what in does]
    if not is_power_measured and power in does:  # of which nothing but the start is known
        found.append(f"; it began with a start of this gateway{' and is going away' if power == 'explained' else ''}")
    return "".join(found)


def _describe_end(monitor: Monitor, transition: Transition) -> str:
    raised = monitor.alarms.active.get(ANOMALY)
    what = "score" if raised is None or raised.rule == SCORE else "height of all rules"
    return f"{what} stayed below {transition.level:.3g}; its peak was {transition.score:.3g}"


def _describe_origin(monitor: Monitor, context: Context, cause: str, onset_ns: int, t_ns: int) -> dict[str, Any]:
    """Return what an alarm that is raised at `t_ns` says of where it comes from.

    Its id names the boot and its number is among all alarms of the store, which no clock can repeat: where none is kept
    two boots begin at the same time. What a full disk does not take is published all the same, without a number, and
    the next start counts anew from before.
    """
    return {
        "id": f"{context.settings.gateway.id}.{cause}.{onset_ns}.{context.boot_id}",
        "cause": cause,
        "state": "raised",
        "onset_ns": onset_ns,
        "sequence": 0 if context.store.is_unstored else monitor.alarms.raised + 1,
        **_describe_moment(context, t_ns),
    }


def _describe_moment(context: Context, t_ns: int) -> dict[str, Any]:
    """Return what a change of an alarm at `t_ns` says of its time, so that it can be corrected."""
    return {
        "t_ns": t_ns,
        "clock": context.clock,
        "boot_id": context.boot_id,
        "monotonic_ns": context.monotonic_ns(t_ns),
        "store_id": context.store_id,
    }


def _report(monitor: Monitor, context: Context, book: AlarmBook, alarm: Alarm | None) -> tuple[Monitor, list[Wanted]]:
    """Store and deliver a change of an alarm, where there is one."""
    if alarm is None:
        return monitor, []
    monitor = replace(monitor, alarms=book)
    priority = ALARM_PRIORITY if alarm.kind == "anomaly" else SENSOR_PRIORITY
    item = Item(context.topic("alarm", alarm.cause), (alarm.to_bytes(),), retain=True, priority=priority)
    level: Literal["info", "warning"] = "warning" if alarm.state == "raised" else "info"
    return monitor, [
        save_alarms(monitor),
        Deliver(alarm.item, item),
        Log(level, f"alarm {alarm.cause} {alarm.state}: {alarm.text}"),
    ]


def report_findings(monitor: Monitor, context: Context, found: Iterable[Finding]) -> tuple[Monitor, list[Wanted]]:
    """Raise and clear sensor alarms: of a fault that goes on, and of what goes on well, nothing is reported."""
    effects: list[Wanted] = []
    for finding in found:
        if finding.problem:
            book, change = monitor.alarms.raise_once(_make_sensor_alarm(monitor, context, finding))
        else:
            end = OF_NO_SENSOR.get(finding.cause, "the sensor is well again")
            book, change = monitor.alarms.clear_once(finding.cause, end, **_describe_moment(context, finding.t_ns))
        monitor, more = _report(monitor, context, book, change)
        effects += more
    return monitor, effects


def _make_sensor_alarm(monitor: Monitor, context: Context, finding: Finding) -> Alarm:
    alarm = Alarm(
        **_describe_origin(monitor, context, finding.cause, finding.t_ns, finding.t_ns),
        kind="sensor",
        severity="warning",
        text="",
        rule=STUCK if finding.feature else "",
        feature=finding.feature,
    )
    most = ALARM_BYTES - len(alarm.to_bytes())  # a damaged store has much to say
    return alarm.model_copy(update={"text": fit_text(finding.problem, most)})


def check_drift(monitor: Monitor, t_ns: int) -> list[Finding]:
    """Say once that scores are no longer those from which the level was taken; the next level clears it."""
    change = monitor.pipeline.watching.drift.change
    text = (
        f"scores have become {change} than those of the baseline, and stay so: the level promises what it cannot keep; "
        "see whether the sensor was moved or the season changed, and commission this gateway anew"
    )
    return [] if change is None else [Finding(OUTDATED, t_ns, text)]


def name_stuck_cause(feature: str) -> str:
    """Return the cause of a feature that is stuck; one whose name is none as it is ends with a digest of that name."""
    cause = f"{STUCK}-{feature}"
    plain = NOT_IN_A_CAUSE.sub("_", cause)
    if plain == cause and len(cause) <= CAUSE_LENGTH:
        return cause
    digest = hashlib.sha256(feature.encode()).hexdigest()[:DIGEST_LENGTH]
    return f"{plain[: CAUSE_LENGTH - DIGEST_LENGTH - 1]}-{digest}"


def list_stuck_causes(settings: GatewaySettings) -> set[str]:
    """Return the causes of all features that the rules in the settings may find stuck."""
    rules = settings.alarm.active_rules
    if rules is None or not any(isinstance(rule, Stuck) for rule in rules.rules.values()):
        return set()
    return {name_stuck_cause(name) for name in rules.watched or feature_names(settings.features)}


def check_stuck(reading: WindowResult) -> list[Finding]:
    """Return what is found of features that are stuck: a bus that repeats itself is no damage, and must not hide any.
    One is well when it was seen to change.
    """
    why = "has not changed for longer than it ever did in this gateway's baseline; see to the sensor"
    stuck = [Finding(name_stuck_cause(name), reading.t_ns, f"{name} {why}", name) for name in reading.stuck]
    return [*stuck, *(Finding(name_stuck_cause(name), reading.t_ns) for name in reading.moved)]


def _list_channels(context: Context) -> list[tuple[Source, str]]:
    return [(source, channel.role) for source in context.settings.source for channel in source.channels]


def check_window(
    monitor: Monitor, context: Context, faulty: tuple[str, ...], t_ns: int
) -> tuple[Monitor, list[Finding]]:
    """Return what is found of every channel in a window that ended at `t_ns`.

    One is well again when it was so for as long as its source may be silent: a sensor that breaks and mends with every
    window is one fault.
    """
    found, faulty_ns, at_ns = list[Finding](), dict(monitor.faulty_ns), context.monotonic_ns(t_ns)
    for source, channel in _list_channels(context):
        cause = f"faulty-{channel}"
        is_active = cause in monitor.alarms.active
        if channel in faulty:
            text = f"channel {channel} is stuck, clipped or out of all range; its windows are not scored"
            found.append(Finding(cause, t_ns, text))
        if channel in faulty or (is_active and channel not in faulty_ns):
            faulty_ns[channel] = at_ns
        elif is_active and not 0 <= at_ns - faulty_ns[channel] < source.silent_after_s * NS:
            found.append(Finding(cause, t_ns))
    return replace(monitor, lost_ns={}, faulty_ns=faulty_ns), found


def check_lost_window(monitor: Monitor, context: Context, lost: Lost) -> tuple[Monitor, list[Finding]]:
    """Return what is found of channels that have kept windows from being whole for as long as their source may be
    silent: a gateway that sees nothing must not look like one at peace.
    """
    found, lost_ns, faulty_ns = list[Finding](), dict(monitor.lost_ns), dict(monitor.faulty_ns)
    at_ns = context.monotonic_ns(lost.t_ns)
    for source, channel in _list_channels(context):
        if channel not in lost.channels:
            continue
        lost_ns[channel] = min(lost_ns.get(channel, at_ns), at_ns)  # the sensor's own clock may have gone back
        blind_s = (at_ns - lost_ns[channel]) / NS
        # Where the whole source is silent that is the alarm, and one is enough.
        if blind_s >= source.silent_after_s and f"silent-{source.name}" not in monitor.alarms.active:
            text = f"channel {channel} has given no whole window for {blind_s:.0f} s: {lost.reason}"
            found.append(Finding(f"faulty-{channel}", lost.t_ns, text))
            faulty_ns[channel] = at_ns
    return replace(monitor, lost_ns=lost_ns, faulty_ns=faulty_ns), found


def check_silence(monitor: Monitor, context: Context) -> list[Finding]:
    """Return the sources that have sent nothing for too long."""
    found: list[Finding] = []
    for source in context.settings.source:
        quiet_s = (context.uptime_ns - monitor.received_ns[source.name]) / NS
        if quiet_s >= source.silent_after_s:
            text = f"source {source.name} has sent nothing usable for {quiet_s:.0f} s"
            found.append(Finding(f"silent-{source.name}", context.now_ns, text))
    return found


def check_model(context: Context, manifest: Manifest | None, newest: int) -> Finding:
    """Return whether a gateway that had a model, of version `newest` at most, has none in force: then it watches
    nothing, and looks at peace.
    """
    is_watching = manifest is not None or newest == 0
    text = f"no model is in force, so nothing is watched: {context.refusal or 'it is to come again'}"
    return Finding(NO_MODEL, context.now_ns, "" if is_watching else text)


def measure_evidence(pipeline: Pipeline, context: Context, transition: Transition) -> tuple[Evidence, Evidence]:
    """Return what weather (with load) and power say of an anomaly that is raised now."""
    onset_ns, t_ns = transition.onset_ns, transition.t_ns
    since = [seen for seen in pipeline.recent if seen.end_ns is not None and onset_ns <= seen.end_ns <= t_ns]
    if not since:
        return "", ""
    baseline, is_from_boot = stack_rows(pipeline.baseline), _is_from_boot(pipeline, context, onset_ns)
    return evidence_of(_find_columns(context), baseline, stack_rows(since), is_from_boot=is_from_boot)


def _find_columns(context: Context) -> Columns:
    names, spec = feature_names(context.settings.features), context.settings.alarm.covariates
    weather, power = (tuple(names.index(name) for name in given) for given in (spec.weather, spec.power))
    return Columns(weather, power, tuple(place for place, name in enumerate(names) if name.startswith(CALENDAR)))


def _is_from_boot(pipeline: Pipeline, context: Context, onset_ns: int) -> bool | None:
    """Tell whether an anomaly began with the first window after a boot: what was calm first did not come with it."""
    after_ns = context.monotonic_ns(onset_ns)
    if after_ns < 0:
        return None
    return after_ns <= BOOT_S * NS and pipeline.recent[0].end_ns == onset_ns
