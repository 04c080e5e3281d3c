"""Orders as the pages list them: who wanted what, and what became of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedgate.cloud_aggregator.events import ACTION
from fedgate.config.protocol.messages import escape_text
from fedgate.models.time_units import NS, format_duration, format_moment

UNSHOWN = ("digest", "key", "serial", "who", "request")  # of use to programs only, or shown beside it
WHAT_MAX, NAMED = 300, 3  # characters; of a list
SECONDS_MAX = 1e11  # beyond which no calendar goes


def describe_order(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of orders as it is shown; `who` is empty where the command line gave it, which names nobody."""
    body: dict[str, Any] = json.loads(row["body"])
    kind, _, user = row["kind"].partition(":") if row["kind"].startswith(ACTION) else (row["kind"], "", "")
    shown = {name: value for name, value in body.items() if name not in UNSHOWN and value not in ("", [], False, None)}
    words = (_describe_part(name, value) for name, value in shown.items())
    state = {None: "waits", "": "at the broker", "refused": "refused"}.get(row["answer"], "done")
    what = escape_text(", ".join(words))
    return {
        "number": row["number"],
        "kind": kind,
        "who": escape_text(str(body.get("who") or user)),
        "what": what if len(what) <= WHAT_MAX else f"{what[:WHAT_MAX]}…",
        "state": state,
        "answer": escape_text(row["problem"] or (row["answer"] if state == "done" else "") or ""),
    }


def _describe_part(name: str, value: object) -> str:
    """Return a part of an order in words; moments and durations, which orders have in seconds, as such."""
    if value is True:
        return name
    if isinstance(value, int | float) and abs(value) < SECONDS_MAX:
        if name in ("from_s", "to_s"):
            return f"{name[:-2]} {format_moment(round(value * NS))}"
        if name == "for_s":
            return f"for {format_duration(value)}"
    return f"{name} {_join(value)}"


def _join(value: object) -> str:
    if not isinstance(value, list):
        return str(value)
    more = f" and {len(value) - NAMED} more" if len(value) > NAMED else ""
    return ", ".join(map(str, value[:NAMED])) + more
