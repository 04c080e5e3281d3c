"""What calls nobody at the moment: alarms that are shelved, causes that are out of service, maintenance at hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fedgate.cloud_aggregator.alarms.workflow import SHELVED_MAX_NS, AlarmKey, Handled, Workflow, fold
from fedgate.cloud_aggregator.events import AlarmEvent
from fedgate.config.runtime import cli

Row = dict[str, Any]
MASK_COLUMNS = ("mask", "gateway", "of", "since", "until", "who", "why")


def list_masks(standing: Sequence[Row], events: Sequence[AlarmEvent], now_ns: int) -> list[Row]:
    """Return the masks that hold at a time of day: of which gateway, alarm or cause, since when, until when where that
    is known, and who has set each and why.

    :param standing: the alarms that stand.
    """
    workflow = fold(events)
    return [
        *_list_shelved(standing, events, workflow, now_ns),
        *(
            _describe("out-of-service", event, event.cause, None)
            for _, event in sorted(workflow.out.items(), key=lambda one: one[0])
        ),
        *(
            {
                "mask": "maintenance",
                "gateway": window.gateway,
                "of": f"window {window.number}",
                "since": cli.format_time(window.from_ns),
                "until": cli.format_time(window.to_ns),
                "who": window.who,
                "why": window.why,
            }
            for window in workflow.windows
            if window.from_ns <= now_ns < window.to_ns
        ),
    ]


def _list_shelved(
    standing: Sequence[Row], events: Sequence[AlarmEvent], workflow: Workflow, now_ns: int
) -> Iterator[Row]:
    by = {AlarmKey(event.gateway, event.alarm): event for event in events if event.kind == "shelve"}
    for row in standing:
        key = AlarmKey(row["gateway"], row["id"])
        until_ns = workflow.handled.get(key, Handled()).shelved_until_ns
        if now_ns < until_ns <= now_ns + SHELVED_MAX_NS:
            yield _describe("shelved", by[key], row["cause"], until_ns) | {"alarm": row["id"]}


def _describe(mask: str, event: AlarmEvent, of: str, until_ns: int | None) -> Row:
    return {
        "mask": mask,
        "gateway": event.gateway,
        "of": of,
        "since": cli.format_time(event.t_ns),
        "until": cli.format_time(until_ns),
        "who": event.who,
        "why": event.body.get("text", ""),
    }
