"""`cloud-aggregator alarms`: which there are, how far each is, what was done about it, and how many there were."""

from __future__ import annotations

import argparse
import getpass
import math
import os
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fedgate.cloud_aggregator.alarms import actions, rates
from fedgate.cloud_aggregator.alarms.workflow import (
    LABELS,
    STATES,
    AlarmCondition,
    AlarmKey,
    Handled,
    Workflow,
    find_state,
    fold,
)
from fedgate.cloud_aggregator.commands.alarms.alarm_text import (
    WIDE_COLUMNS,
    format_alarm,
    format_list,
    format_rates,
    list_history,
    name_shortly,
)
from fedgate.cloud_aggregator.commands.alarms.masks import MASK_COLUMNS, list_masks
from fedgate.cloud_aggregator.commands.store import open_stated, place_order
from fedgate.config.runtime import cli
from fedgate.config.runtime.times import read_duration_s, read_moment_ns
from fedgate.models.time_units import DAY_S, NS

if TYPE_CHECKING:
    from fedgate.cloud_aggregator.storage.store import Store

Row = dict[str, Any]
TEXT = """List the alarms, the newest last, and say what is done about them. Without WHAT they are listed.

An alarm that nobody has acknowledged is unacknowledged while it stands, and returned-unacknowledged when it is over.
It is acknowledged by 'ack', which ends no alarm, and normal when it is over and somebody has acknowledged it. While it
is shelved (for a time), suppressed (it began within maintenance) or its cause is out of service, nobody is called.

An alarm is named by the beginning of its id, as the list has it, by GATEWAY/ID, or by GATEWAY/CAUSE, which is the one
of that cause that stands, else the last. All times are in UTC, but for those that you give without a time zone."""
EXAMPLES = """examples:
  cloud-aggregator alarms -c aggregator.toml --active --gateway gateway-7
  cloud-aggregator alarms show gateway-7/anomaly -c aggregator.toml
      its state, who has done what about it, and what it rests on
  cloud-aggregator alarms ack gateway-7/anomaly --note "crew is on its way" -c aggregator.toml
  cloud-aggregator alarms shelve gateway-7/anomaly --for 8h -c aggregator.toml
      nobody is called for so long; if it still stands then, it is told once more
  cloud-aggregator alarms label gateway-7/anomaly false -c aggregator.toml
      what it was: damage, work, sensor, weather or false; 'alarms rates' counts them
  cloud-aggregator alarms out-of-service gateway-7 faulty-load -c aggregator.toml
      no alarm of this cause calls anybody, until 'in-service'
  cloud-aggregator alarms masks -c aggregator.toml
      why nobody is called: what is shelved, out of service, or under maintenance now
  cloud-aggregator alarms rates -c aggregator.toml
      how many a day and in ten minutes, those that stand for long, and how many were right
"""
NEWEST_SHOWN = 10  # names in the text of an error


def add(commands: cli.Commands) -> None:
    """Add the command."""
    text = "list the alarms, newest last; acknowledge, shelve, label them"
    parts = commands.add_group("alarms", text, description=TEXT, examples=EXAMPLES, default_part="list")
    _add_filters(parts.add("list", _list, "list the alarms, newest last", description=TEXT))
    parts.add("show", _show, "show an alarm, what was done about it, and what it rests on").add_argument(
        "alarm", metavar="ALARM"
    )
    parts.add("masks", _list_masks, "list what calls nobody now: shelved, out of service, under maintenance")
    parts.add("rates", _rates, "count alarms by day, ten minutes, source and label").add_argument(
        "--days", type=float, default=30.0, help="that are looked back on (default: 30)"
    )
    for name, action, does in ACTIONS:
        part = parts.add(name, partial(_act, action), does)
        part.add_argument("alarm", nargs="+", metavar="ALARM")
        if name == "label":
            part.add_argument("label", choices=LABELS)
        if name == "note":
            part.add_argument("text", metavar="TEXT")
        else:
            part.add_argument("--note", dest="text", default="", metavar="TEXT", help="is kept with it")
        _add_who(part)
        if name == "shelve":
            until = f"such as 30m, 8h (default), 2d; at most {actions.SHELVED_MAX_S / DAY_S:g}d"
            part.add_argument("--for", dest="for_s", type=read_duration_s, metavar="TIME", help=until)
        if name == "assign":
            part.add_argument("--to", required=True, metavar="NAME", help="who sees to it; '' for nobody")
    for name, does in (("out-of-service", "call nobody for a cause"), ("in-service", "call for a cause again")):
        part = parts.add(name, partial(_act_on_cause, name), does)
        part.add_argument("gateway", metavar="GATEWAY")
        part.add_argument("cause", metavar="CAUSE")
        _add_who(part)
        part.add_argument("--note", dest="text", default="", metavar="TEXT", help="is kept with it")


ACTIONS = (
    ("ack", "acknowledge", "say that you know of alarms"),
    ("shelve", "shelve", "call nobody for alarms for some time"),
    ("unshelve", "unshelve", "end the shelving of alarms"),
    ("note", "note", "keep a text with alarms"),
    ("label", "label", "say what alarms were"),
    ("assign", "assign", "say who sees to alarms"),
)


def _add_filters(part: argparse.ArgumentParser) -> None:
    part.add_argument("--active", action="store_true", help="only those that stand")
    part.add_argument("--gateway", metavar="ID", help="of this one only; all: those of the whole site")
    part.add_argument(
        "--since", type=read_moment_ns, metavar="WHEN", help="that began since then: 2026-05-04T08:00, or 8h: ago"
    )
    part.add_argument("--state", choices=STATES, help="only those in this state")
    part.add_argument("--wide", action="store_true", help="show all columns, however wide the table gets")


def _add_who(part: argparse.ArgumentParser) -> None:
    part.add_argument("--who", metavar="NAME", help="who does it (default: your login name)")


def name_login() -> str:
    """Return the name by which somebody has logged in, also where another user's rights are used; raises `ValueError`
    where nobody has one, as in some containers.
    """
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):
        raise ValueError("--who: this user has no login name; give one") from None


def _list(arguments: argparse.Namespace) -> None:
    now_ns = time.time_ns()
    with open_stated(arguments) as store:
        rows = read_rows(store, now_ns)
    chosen = [
        row
        for row in rows
        if (not arguments.active or row["is_active"])
        and arguments.gateway in (None, row["gateway"])
        and arguments.state in (None, row["state"])
        and (arguments.since is None or row["begun_ns"] >= arguments.since)
    ]
    wide = arguments.wide and cli.format_rows(WIDE_COLUMNS, chosen)
    cli.show(arguments, chosen, wide or format_list(chosen, name_shortly(rows), now_ns))


def read_rows(store: Store, now_ns: int) -> list[Row]:
    """Return all alarms with their state at a time of day, in the order in which they began."""
    workflow = fold(store.read_alarm_events())
    rows = [_describe(row, workflow, now_ns) for row in store.read_rows("alarms")]
    return sorted(rows, key=lambda row: (row["begun_ns"], row["gateway"]))


def _describe(row: Row, workflow: Workflow, now_ns: int) -> Row:
    key = AlarmKey(row["gateway"], row["id"])
    onset_ns = row["onset_ns"] if row["begun_ns"] is None else row["begun_ns"]
    is_active = row["raised_ns"] is not None and row["cleared_ns"] is None
    handled = workflow.handled.get(key, Handled())
    state = find_state(workflow, key, AlarmCondition(row["cause"], onset_ns, is_active), now_ns)
    has_peak = row["cleared_ns"] is not None and not row["ended"]  # that of the end which its gateway has told
    return row | {
        **{name: cli.format_time(row[f"{name}_ns"]) for name in ("onset", "raised", "cleared", "received")},
        "score_of": "" if row["score"] is None else "peak" if has_peak else "raise",
        "begun_ns": onset_ns,  # the onset, as far as it can be believed
        "is_active": is_active,
        "state": state,
        "acknowledged_by": handled.acknowledged_by,
        "shelved_until": cli.format_time(handled.shelved_until_ns) if state == "shelved" else "",
        "label": handled.label,
        "assignee": handled.assignee,
    }


def find_row(rows: Sequence[Row], name: str) -> Row:
    """Return the alarm that is named by gateway and cause, or by its id or the beginning of it, with the gateway or
    without; raises `ValueError` with the names there are.
    """
    gateway, _, rest = name.partition("/")
    of_gateway = [row for row in rows if row["gateway"] == gateway]
    of_cause = [row for row in of_gateway if row["cause"] == rest]
    if of_cause:  # of a cause the one that stands, else the last
        return max(of_cause, key=lambda row: (row["is_active"], row["begun_ns"]))
    found = [row for row in of_gateway if row["id"] == rest] or [row for row in rows if row["id"] == name]
    found = found or [row for row in of_gateway if rest and row["id"].startswith(rest)]
    found = found or [row for row in rows if name and row["id"].startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        shown = ", ".join(f"{row['gateway']}/{row['id']}" for row in found[:NEWEST_SHOWN])
        raise ValueError(f"{name!r} given, with which {len(found)} alarms begin: {shown}; give more of it")
    known = sorted({f"{row['gateway']}/{row['cause']}" for row in rows if row["is_active"]})
    active = f"these stand: {', '.join(known[:NEWEST_SHOWN])}" if known else "none stands"
    raise ValueError(f"{name!r} given; expected the beginning of an id, or GATEWAY/CAUSE ({active})")


def _show(arguments: argparse.Namespace) -> None:
    with open_stated(arguments) as store:
        row = find_row(read_rows(store, time.time_ns()), arguments.alarm)
        events = store.read_alarm_events()
        evidence = store.read_evidence(row["gateway"], row["id"])
    history = list_history(events, row, fold(events))
    held = evidence.model_dump(mode="json") if evidence else None
    cli.show(arguments, row | {"history": history, "evidence": held}, format_alarm(row, history, evidence))


def _act(action: str, arguments: argparse.Namespace) -> None:
    with open_stated(arguments) as store:
        rows = read_rows(store, time.time_ns())
    names = [f"{row['gateway']}/{row['id']}" for row in (find_row(rows, name) for name in arguments.alarm)]
    body = {"action": action, "alarms": names, "text": arguments.text}
    given = {name: getattr(arguments, name, None) for name in ("for_s", "label", "to")}
    order_action(arguments, body | {name: value for name, value in given.items() if value is not None})


def _act_on_cause(action: str, arguments: argparse.Namespace) -> None:
    of_it = {"gateway": arguments.gateway, "cause": arguments.cause}
    order_action(arguments, {"action": action, **of_it, "text": arguments.text})


def order_action(arguments: argparse.Namespace, body: Row) -> None:
    """Give an action of whom the arguments name to the service and print its answer; raises as `place_order` does."""
    answer = place_order(arguments, "alarm", {**body, "who": arguments.who or name_login()})
    cli.show(arguments, answer._asdict(), answer.text)


def _list_masks(arguments: argparse.Namespace) -> None:
    now_ns = time.time_ns()
    with open_stated(arguments) as store:
        rows, events = read_rows(store, now_ns), store.read_alarm_events()
    found = list_masks([row for row in rows if row["is_active"]], events, now_ns)
    text = cli.format_rows(MASK_COLUMNS, found) if found else "nothing is shelved, out of service or under maintenance"
    cli.show(arguments, found, text)


def _rates(arguments: argparse.Namespace) -> None:
    if not (math.isfinite(arguments.days) and arguments.days > 0):
        raise ValueError(f"--days: expected more than 0, got {arguments.days:g}")
    now_ns = time.time_ns()
    with open_stated(arguments) as store:
        rows = read_rows(store, now_ns)
    found = rates.measure([_as_fact(row) for row in rows], now_ns, int(arguments.days * DAY_S * NS))
    cli.show(arguments, found, "\n".join(format_rates(found)))


def _as_fact(row: Row) -> rates.Fact:
    rule, onset_ns = row["rule"] or "", row["begun_ns"]
    return rates.Fact(row["gateway"], row["cause"], rule, onset_ns, row["is_active"], row["state"], row["label"])
