"""What each page shows: a function of the settings, of what the agent says and has stored, and of the time."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from fedgate.config.protocol.evidence import AlarmEvidence
from fedgate.config.protocol.messages import Alarm
from fedgate.config.runtime.version import VERSION
from fedgate.config.settings.settings import GatewaySettings
from fedgate.config.web.charts import Facts, describe_evidence, draw_scores, list_points
from fedgate.config.web.status_facts import (
    compare_promise,
    describe_channels,
    describe_doing,
    describe_status,
    list_problems,
)
from fedgate.gateway_agent.snapshot import Snapshot
from fedgate.gateway_agent.web.reading import Stored, View
from fedgate.models.time_units import DAY_S, NS

SOON_S = 14 * DAY_S  # before its end a certificate is due
Read = Callable[[GatewaySettings, View, int], Facts]


class Page(NamedTuple):
    """A page: its address, its template, and what it shows."""

    path: str
    template: str
    title: str
    read: Read


def read_overview(settings: GatewaySettings, view: View, now_ns: int) -> Facts:
    """Return how the gateway is: what it does, which alarms stand and why, its sensors and its scores."""
    snapshot, stored = view.snapshot, view.stored
    alarms = stored.alarms if snapshot is None else snapshot.alarms
    evidence = None if snapshot is None else snapshot.evidence
    return {
        **describe_state(view, now_ns),
        "problems": [] if snapshot is None else list(list_problems(snapshot.status)),
        "alarms": [describe_alarm(one) for one in sorted(alarms, key=lambda one: (one.kind != "anomaly", -one.t_ns))],
        **describe_evidence(evidence),
        "is_over": evidence is not None and evidence.alarm not in {one.id for one in alarms},
        "channels": [] if snapshot is None else read_channels(settings, snapshot, alarms, evidence),
        "stored_sources": stored.summary.get("sources", {}) if snapshot is None else {},
        "chart": None if snapshot is None else draw_trail(snapshot, settings.features.hop_s),
        "promise": None if snapshot is None else compare_promise(snapshot.status, settings.features.hop_s),
    }


def describe_state(view: View, now_ns: int) -> Facts:
    """Return in one sentence what the agent does, with its status, and how old all of it is."""
    snapshot, stored = view.snapshot, view.stored
    facts = {"reported": None, "is_live": snapshot is not None, "notice": explain_silence(view), "now_ns": now_ns}
    if snapshot is None:
        sentence = stored.summary.get("sentence", "The agent does not answer, and its store says nothing.")
        return facts | {"sentence": sentence, "is_well": False}
    status = snapshot.status
    causes = ", ".join(one.cause for one in sorted(snapshot.alarms, key=lambda one: (one.kind != "anomaly", one.cause)))
    problems = len(list(list_problems(status)))
    more = f"; it reports {problems} problem{'s' if problems > 1 else ''}" if problems else ""
    sentence = f"The agent {describe_doing(status)}: {causes or 'no alarm'}{more}."
    is_well = status.watching and not snapshot.alarms and not problems
    return facts | {"sentence": sentence, "is_well": is_well, "reported": describe_status(status)}


def explain_silence(view: View) -> str:
    """Return why nothing is live, and what to do; empty where all is."""
    if view.snapshot is not None:
        return ""
    shown = view.stored.problem or "What follows is what it stored last."
    if view.is_running is None:
        return f"Whether the agent runs cannot be seen from here: start this page as the user of the agent. {shown}"
    if not view.is_running:
        return (
            f"The agent does not run: 'journalctl -u gateway-agent' says why it ended, and 'systemctl start "
            f"gateway-agent' starts it. {shown}"
        )
    return (
        "The agent runs, and does not answer at its socket: it was started before [web] was in the settings, is of "
        f"another version, or hangs. Restart it. {shown}"
    )


def describe_alarm(alarm: Alarm) -> Facts:
    """Return what is shown of an alarm that stands."""
    shown = ("id", "cause", "kind", "severity", "text", "onset_ns", "t_ns", "score", "level", "rule")
    return {name: getattr(alarm, name) for name in shown} | {"is_clock_set": alarm.clock != "unsynchronised"}


def read_channels(
    settings: GatewaySettings, snapshot: Snapshot, alarms: Iterable[Alarm], evidence: AlarmEvidence | None
) -> list[Facts]:
    """Return the sensors with their last values."""
    faults = {one.cause: one.text for one in alarms if one.kind == "sensor"}
    seen_ns = None if evidence is None else evidence.t_ns
    channels = settings.features.channels
    return describe_channels(channels, snapshot.status, snapshot.sources, faults, evidence, seen_ns)


def draw_trail(snapshot: Snapshot, hop_s: float) -> Facts | None:
    """Return scores and levels of the latest windows as a chart; None before the first is judged."""
    trail = snapshot.trail
    if trail is None:
        return None
    return draw_scores(list_points(trail), hop_s)


def read_device(settings: GatewaySettings, view: View, now_ns: int) -> Facts:
    """Return the models of the gateway, its link, its store and flash, its certificate and its versions."""
    snapshot, stored = view.snapshot, view.stored
    waiting: Facts = stored.summary.get("waiting", {})
    return {
        **describe_state(view, now_ns),
        "models": list_models(stored, snapshot),
        "rejected": {str(one["version"]): one["why"] for one in stored.models.get("rejected", ())},
        "probation_s": stored.models.get("probation_s", 0.0),
        "link": describe_link(settings, snapshot, stored),
        "store": stored.summary | {"waiting": {kind: held for kind, held in waiting.items() if held["items"]}},
        "store_problem": stored.problem,
        "max_bytes": settings.store.max_bytes,
        "certificate": read_certificate(settings.broker.certificate_file, now_ns),
        "versions": {"page": VERSION, "python": platform.python_version(), "machine": platform.machine()},
    }


def list_models(stored: Stored, snapshot: Snapshot | None) -> list[Facts]:
    """Return the models: in force, on its way there, and to go back to."""
    held, status = stored.models, None if snapshot is None else snapshot.status
    named = (("in force", "current"), ("before", "previous"))
    found = [{"role": role, **held[name]} for role, name in named if held.get(name)]
    if status is not None and status.candidate_version:
        found.insert(1, {"role": "candidate", "version": status.candidate_version, "digest": held.get("candidate")})
    elif held.get("candidate"):
        found.insert(1, {"role": "candidate", "version": None, "digest": held["candidate"]})
    return found


def describe_link(settings: GatewaySettings, snapshot: Snapshot | None, stored: Stored) -> Facts:
    """Return how the link to the broker is, and since when as far as that is stored."""
    kept = stored.summary.get("link") or {"state": "unknown", "since": ""}
    state = kept["state"] if snapshot is None else "up" if snapshot.is_connected else "down"
    since = kept["since"] if state == kept["state"] else ""
    return {"broker": f"{settings.broker.host}:{settings.broker.port}", "state": state, "since": since}


def read_certificate(path: Path | None, now_ns: int) -> Facts | None:
    """Return until when the certificate of the gateway is good, by its file; None where the settings name none."""
    if path is None:
        return None
    from fedgate.config.identity.pki import IdentityError, load_certificate, read_common_name

    facts: dict[str, Any] = {"file": str(path), "problem": ""}
    try:
        shown = load_certificate(path)
    except IdentityError as error:
        return facts | {"problem": str(error)}
    until_s = shown.not_valid_after_utc.timestamp()
    return facts | {
        "name": read_common_name(shown),
        "issued_ns": round(shown.not_valid_before_utc.timestamp() * NS),
        "not_after_ns": round(until_s * NS),
        "is_due": until_s - now_ns / NS < SOON_S,
    }


PAGES = (
    Page("/", "overview.html", "Overview", read_overview),
    Page("/device", "device.html", "Device", read_device),
)
