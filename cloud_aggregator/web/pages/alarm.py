"""One alarm: what it is, the proof, what was done about it, and where its model comes from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from fedgate.cloud_aggregator.alarms.workflow import LABELS, Workflow
from fedgate.cloud_aggregator.events import AlarmEvent
from fedgate.cloud_aggregator.samples.clip_charts import draw_clip
from fedgate.cloud_aggregator.web.pages.alarm_list import Listed, shorten
from fedgate.cloud_aggregator.web.pages.buttons import SHELVED_H
from fedgate.cloud_aggregator.web.pages.page import Context, NotThereError, Page
from fedgate.cloud_aggregator.web.pages.score_chart import read_points
from fedgate.config.protocol.evidence import AlarmEvidence
from fedgate.config.protocol.messages import MessageError, Status
from fedgate.config.protocol.samples import decode_clip
from fedgate.config.protocol.topics import ALL
from fedgate.config.runtime import cli
from fedgate.config.web.charts import Facts, Point, describe_evidence, list_points
from fedgate.models.time_units import DAY_NS, HOUR_S, NS

BEFORE_SHOWN, BESIDE_SHOWN, ROUNDS_SHOWN = 10, 20, 20
DRAWN = "drawn"
BESIDE_NS = int(HOUR_S * NS)  # around an onset: what began at other gateways within it
OF_ROW = (
    *("raised_ns", "rule", "feature", "model_version", "model_digest", "ended", "weather", "power", "clock"),
    *("onset_ns", "received_ns", "gateways"),
)


def read_alarm(context: Context, address: Mapping[str, str]) -> Facts:
    """Return an alarm by its gateway and id, with its raw samples drawn where `samples` is "drawn"; raises
    `NotThereError`.
    """
    alarms, store = context.alarms.read(context.store, context.now_ns), context.store
    key = (address["gateway"], address["alarm"])
    one = next((known for known in alarms if (known.gateway, known.id) == key), None)
    row = store.read_alarm(*key)
    if one is None or row is None:
        raise NotThereError(f"there is no alarm {key[1]} of {key[0]}; old ones that are over are removed")
    evidence = store.read_evidence(*key)
    spoke = next(iter(store.read_newest("gateways", 1, "status", "seen_ns", gateway=one.gateway)), None)
    seen_ns = None if spoke is None else spoke["seen_ns"] or None
    status = None if spoke is None else Status.model_validate_json(spoke["status"])
    later = [] if evidence is None else list_later(context, evidence, one, status)
    end_ns = one.cleared_ns if one.is_clock_set else None
    beside = find_beside(alarms, one)
    return {
        "alarm": one._asdict() | {name: row[name] for name in OF_ROW},
        **describe_evidence(evidence, later, end_ns),
        "seen_ns": seen_ns,
        "of_site": next((other.id for other in beside if other.gateway == ALL), ""),
        "location": "" if status is None or status.device is None else status.device.location,
        "stood_s": measure_stood_s(one, row["raised_ns"], seen_ns),
        "newest": later[-1]._asdict() if later and one.is_active else None,
        "history": [describe_event(event) for event in store.read_alarm_events(gateway=key[0], alarm=key[1])],
        "maintenance": find_maintenance(context.alarms.workflow, one, context.now_ns),
        "before": context.alarms.show(store, find_before(alarms, one)),
        "beside": context.alarms.show(store, shorten(beside, BESIDE_SHOWN)),
        "lineage": read_lineage(context, row["model_version"]),
        "samples": read_samples(context, *key, is_drawn=address.get("samples") == DRAWN),
        "choices": {"hours": SHELVED_H, "labels": LABELS},
        "can_fetch": context.settings.samples.fetch,
    }


def list_later(context: Context, evidence: AlarmEvidence, one: Listed, status: Status | None) -> list[Point]:
    """Return the windows behind those of the evidence of an alarm, as far as they are known and by the same clock;
    `status` is what its gateway said last.
    """
    if not one.is_clock_set:
        return []
    last_ns = evidence.t_ns if evidence.trail is None else list_points(evidence.trail)[-1].t_ns
    found = read_points(context.store, one.gateway, status)
    known = {point.t_ns: point for point in found if last_ns < point.t_ns < context.now_ns + DAY_NS}
    return [known[t_ns] for t_ns in sorted(known)]


def measure_stood_s(one: Listed, raised_ns: int | None, seen_ns: int | None) -> float | None:
    """Return how long after its begin an alarm that stands is known to have stood: until its gateway last spoke, where
    that was after it was raised and both by a clock that is set.
    """
    if raised_ns is None or seen_ns is None or seen_ns <= raised_ns or not (one.is_active and one.is_clock_set):
        return None
    return (seen_ns - one.begun_ns) / NS


def describe_event(event: AlarmEvent) -> Facts:
    """Return what was done about an alarm: when, by whom, and what."""
    body = event.body
    what = {
        "shelve": f"until {cli.format_time(body.get('until_ns'))}",
        "label": str(body.get("label", "")),
        "assign": f"to {body.get('to') or 'nobody'}",
    }.get(event.kind, "")
    return {"t_ns": event.t_ns, "who": event.who, "what": f"{event.kind} {what}".strip(), "text": body.get("text", "")}


def find_maintenance(workflow: Workflow, one: Listed, now_ns: int) -> list[Facts]:
    """Return the maintenance windows of a gateway, and of all, within which an alarm stood or stands."""
    until_ns = now_ns if one.cleared_ns is None else max(one.cleared_ns, one.begun_ns)  # of two clocks
    own = (window for window in workflow.windows if window.gateway in (ALL, one.gateway))
    real = (window for window in own if window.from_ns < window.to_ns)
    return [vars(window) for window in real if window.from_ns <= until_ns and one.begun_ns < window.to_ns]


def find_before(alarms: Sequence[Listed], one: Listed) -> list[Listed]:
    """Return the alarms of the same cause that began before, the newest first."""
    same = [known for known in alarms if (known.gateway, known.cause) == (one.gateway, one.cause)]
    return [known for known in reversed(same) if known.begun_ns < one.begun_ns][:BEFORE_SHOWN]


def find_beside(alarms: Sequence[Listed], one: Listed) -> list[Listed]:
    """Return what began at other gateways at the time, the nearest in time first."""
    near = [
        known for known in alarms if known.gateway != one.gateway and abs(known.begun_ns - one.begun_ns) <= BESIDE_NS
    ]
    return sorted(near, key=lambda known: abs(known.begun_ns - one.begun_ns))


def read_lineage(context: Context, version: int) -> Facts | None:
    """Return where a model comes from: its training, and who took part in which of its rounds; None where that is not
    known any more, or for a gateway's own model.
    """
    manifests = {row["version"]: row["manifest"] for row in context.store.read_rows("models", "version", "manifest")}
    if version not in manifests:
        return None
    manifest = json.loads(manifests[version])
    rounds = [
        {"round": row["round_index"], "closed_ns": row["closed_ns"], "gateways": row["gateways"].split()}
        for row in context.store.read_rows("rounds")
        if row["run"] == manifest["run"] and row["round_index"] <= manifest["round_index"]
    ]
    wanted = ("algorithm", "detector", "run", "round_index", "gateways", "created_ns")
    return {name: manifest.get(name) for name in wanted} | {"version": version, "rounds": rounds[-ROUNDS_SHOWN:]}


def read_samples(context: Context, gateway: str, alarm: str, *, is_drawn: bool) -> Facts | None:
    """Return what became of the raw samples around an alarm, `drawn` where that is wanted and they are here; None where
    nobody has asked for them. `damage` says why what is here cannot be read, or nothing.
    """
    columns = ("gateway", "alarm", "requested_ns", "received_ns", "problem", "size_bytes")
    rows = context.store.read_rows("samples", *columns)
    row = next((row for row in rows if (row["gateway"], row["alarm"]) == (gateway, alarm)), None)
    body = context.store.read_samples(gateway, alarm) if is_drawn else None
    try:
        drawn, damage = [] if body is None else draw_clip(decode_clip(body, len(body))), ""
    except MessageError as error:  # damaged on the disk: the rest of the page stands
        drawn, damage = [], str(error)
    return row and row | {"drawn": drawn, "damage": damage}


PAGE = Page("/alarms/{gateway}/{alarm}", "alarm.html", "Alarm", read_alarm)
