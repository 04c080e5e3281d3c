"""Alarms and what was done about them in plain words, as tables and lines for a terminal."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from fedgate.cloud_aggregator.alarms.workflow import LABELS, Workflow
from fedgate.cloud_aggregator.events import AlarmEvent
from fedgate.config.evidence.text import WIDTH, render_evidence
from fedgate.config.protocol.evidence import cut_text
from fedgate.config.protocol.topics import ALL
from fedgate.config.runtime import cli
from fedgate.models.time_units import NS, format_duration

if TYPE_CHECKING:
    from fedgate.config.protocol.evidence import AlarmEvidence

Row = dict[str, Any]
COLUMNS = ("alarm", "state", "severity", "began [UTC]", "lasted", "label", "assignee")
WIDE_COLUMNS = (
    *("gateway", "cause", "state", "severity", "onset", "clock", "received", "cleared", "ended", "rule", "score"),
    *("score_of", "level", "label", "assignee", "common", "gateways", "id"),
)
HISTORY = ("time", "who", "what")
SHOWN = (
    *("cause", "severity", "began", "onset", "raised", "received", "cleared", "ended", "rule", "score", "level"),
    *("label", "assignee", "shelved_until"),
)
ONSET_DIGITS = 10  # of the onset in an id: the seconds of it, which tell alarms of a cause apart at a glance
NAME_WIDTH = 12  # of an assignee
LATE_NS = 60 * NS  # after it was raised: an arrival that is later is shown
UNSURE = "?"  # behind a time that is not what its gateway's clock said
SERVICE = "the service"


def name_shortly(rows: Sequence[Row]) -> dict[tuple[str, str], str]:
    """Return by gateway and id the shortest name of each alarm that no other one begins with, and that shows gateway,
    cause and second of the onset where the id has them.
    """
    ids = sorted(row["id"] for row in rows)
    needed, counts = dict.fromkeys(ids, 1), Counter(ids)
    for one, other in pairwise(ids):
        least = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one)) + 1
        needed[one], needed[other] = max(needed[one], least), max(needed[other], least)
    names = dict[tuple[str, str], str]()
    for row in rows:
        prefix = f"{row['gateway']}.{row['cause']}."
        has_prefix = row["id"].startswith(prefix)
        short = row["id"][: max(needed[row["id"]], len(prefix) + ONSET_DIGITS)] if has_prefix else row["id"]
        names[row["gateway"], row["id"]] = short if counts[row["id"]] == 1 else f"{row['gateway']}/{row['id']}"
    return names


def format_list(rows: Sequence[Row], names: Mapping[tuple[str, str], str], now_ns: int) -> str:
    """Return a table of alarms that fits a terminal, and below it what concerns some of them."""
    lines = [cli.format_rows(COLUMNS, [_select(row, names, now_ns) for row in rows])]
    for row in rows:
        if row["gateway"] == ALL:
            note = f"{names[row['gateway'], row['id']]}: cause {row['common']}; gateways {row['gateways']}"
            lines.append(textwrap.fill(note, WIDTH, subsequent_indent="    "))
    if any(_is_unsure(row) for row in rows):
        lines.append(
            f"{UNSURE}: the clock of its gateway is wrong, so it counts from its arrival; 'alarms show' has both"
        )
    return "\n".join(lines)


def _select(row: Row, names: Mapping[tuple[str, str], str], now_ns: int) -> Row:
    began = cli.format_time(row["begun_ns"]).replace("T", " ")[:16]
    end_ns = now_ns if row["is_active"] else row["cleared_ns"]
    start_ns = row["begun_ns"] if row["is_active"] else row["onset_ns"]  # the end is of the gateway's clock
    return {
        "alarm": names[row["gateway"], row["id"]],
        "state": row["state"],
        "severity": row["severity"],
        "began [UTC]": f"{began}{UNSURE if _is_unsure(row) else ''}",
        "lasted": format_duration((end_ns - start_ns) / NS) if end_ns is not None and end_ns >= start_ns else None,
        "label": row["label"],
        "assignee": cut_text(row["assignee"], NAME_WIDTH),
    }


def _is_unsure(row: Row) -> bool:
    return _is_adrift(row) or bool(row["begun_ns"] != row["onset_ns"])


def _is_adrift(row: Row) -> bool:
    return row.get("clock") == "unsynchronised"


def format_alarm(row: Row, history: Sequence[Row], evidence: AlarmEvidence | None) -> str:
    """Return an alarm with what was done about it and what it rests on, as lines for a terminal."""
    lines = [f"{row['gateway']}/{row['id']}: {row['state']}", *textwrap.wrap(row["text"], WIDTH)]
    facts = row | _describe_times(row) | _describe_score(row)
    lines += [f"  {name.replace('_', ' ')}: {facts[name]}" for name in SHOWN if facts.get(name) not in (None, "")]
    if history:
        shown = [{"time": one["time"], "who": one["who"], "what": one["text"]} for one in history]
        lines.append(cli.format_rows(HISTORY, shown))
    lines += ["", render_evidence(evidence)] if evidence else []
    return "\n".join(lines)


def _describe_score(row: Row) -> Row:
    """Return score and level as they are shown: of which moment the score is, too."""
    moment = {"raise": ", the highest until it was raised", "peak": ", its peak"}.get(row.get("score_of", ""), "")
    found = {name: row[name] for name in ("score", "level") if row.get(name) is not None}
    return {name: f"{value:.4g}{moment if name == 'score' else ''}" for name, value in found.items()}


def _describe_times(row: Row) -> Row:
    """Return the times of an alarm as they are shown: as far as they can be believed, and where that is not as far as
    the clock of its gateway says, what that said too.
    """
    received = {"received": _describe_arrival(row)}
    if not _is_unsure(row):
        return received | {"began": row["onset"], "onset": ""}
    clock = "by the clock of its gateway"
    times = {name: f"{row[name]} {clock}" for name in ("raised", "cleared") if row.get(name)}
    began = f"{cli.format_time(row['begun_ns'])}, as far as it can be believed"
    onset = f"{row['onset']} {clock}{', which is not synchronised' if _is_adrift(row) else ''}"
    return received | times | {"began": began, "onset": onset}


def _describe_arrival(row: Row) -> str:
    """Return when the last word of an alarm came, where that was not at once by the clock of its gateway."""
    sent_ns = row.get("raised_ns") if row.get("is_active") else row.get("cleared_ns")
    if sent_ns is None or row.get("received_ns") is None or abs(row["received_ns"] - sent_ns) < LATE_NS:
        return ""
    return f"{row['received']}{'' if row['is_active'] else ', its end'}"


def list_history(events: Iterable[AlarmEvent], row: Row, workflow: Workflow) -> list[Row]:
    """Return what was done about an alarm, its cause while it stood, and the maintenance that suppresses it."""
    known = list(events)
    windows = {window.number for window in workflow.list_windows(row["gateway"], row["begun_ns"])}
    until_ns = row["received_ns"] if row["cleared_ns"] is not None else None
    of_cause = [one for one in known if one.cause and (one.gateway, one.cause) == (row["gateway"], row["cause"])]
    before = [one for one in of_cause if one.t_ns < row["begun_ns"]][-1:]
    beside = [one for one in before if one.kind == "out-of-service"]
    beside += [one for one in of_cause if row["begun_ns"] <= one.t_ns and (until_ns is None or one.t_ns <= until_ns)]
    touching = [
        one
        for one in known
        if (one.alarm and (one.gateway, one.alarm) == (row["gateway"], row["id"]))
        or one in beside
        or one.body.get("window") in windows
    ]
    return [describe_event(one) for one in touching]


def describe_event(event: AlarmEvent) -> Row:
    """Return an event in plain words, with its kind and what it holds for programs."""
    text = event.body.get("text", "")
    done = _describe_kind(event)
    return {
        "time": cli.format_time(event.t_ns),
        "who": event.who or SERVICE,
        "what": event.kind,
        "text": f"{done}: {text}" if text else done,
        "body": event.body,
    }


def _describe_kind(event: AlarmEvent) -> str:
    body, of_cause = event.body, f"{event.gateway}/{event.cause}"
    match event.kind:
        case "acknowledge":
            return "acknowledged"
        case "shelve":
            return f"shelved until {cli.format_time(body['until_ns'])}"
        case "unshelve":
            return "no longer shelved"
        case "label":
            return f"labelled {body['label']}"
        case "assign":
            return f"assigned to {body['to'] or 'nobody'}"
        case "suppress":
            why = {"suppressed": "maintenance", "out-of-service": "its cause is out of service", "shelved": "shelved"}
            return f"nobody is called ({why.get(body['by'], body['by'])})"
        case "resume":
            return "calls again"
        case "escalate":
            return "escalated, since nobody has acknowledged it"
        case "out-of-service":
            return f"{of_cause} taken out of service"
        case "in-service":
            return f"{of_cause} back in service"
        case "window":
            times = f"from {cli.format_time(body['from_ns'])} to {cli.format_time(body['to_ns'])}"
            return f"maintenance {body['window']} announced, {times}"
        case "window-end":
            return f"maintenance {body['window']} ended"
    return "note"


def format_rates(found: dict[str, Any]) -> Iterable[str]:
    """Yield the lines of what `rates.measure` has found."""
    yield (
        f"{found['alarms']} alarms in {found['days']:g} days: {found['per_day']:.3g} a day, at most "
        f"{found['peak_per_10_min']} within 10 minutes; {found['standing']} stand, {found['standing_over_24_h']} "
        f"of them for more than 24 hours"
    )
    if found["sources"]:
        yield cli.format_rows(("gateway", "cause", "alarms", "share"), found["sources"])
    if found["precision"]:
        yield cli.format_rows(("gateway", "rule", "precision", *LABELS), found["precision"])
    else:
        yield "no alarm has a label yet; 'cloud-aggregator alarms label ALARM damage' gives one"
