"""`gateway-agent status`: whether the agent runs, what it watches with, what stands and what waits to be sent."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from fedgate.config.runtime import cli
from fedgate.gateway_agent.commands import models
from fedgate.gateway_agent.commands.store import open_store
from fedgate.models.time_units import NS

if TYPE_CHECKING:
    from fedgate.config.settings.settings import Source


UNKNOWN = "unknown since the agent's last commit"


def add(commands: cli.Commands) -> None:
    """Add the command."""
    commands.add("status", _run, "show whether the agent runs, and what it has stored")


def _run(arguments: argparse.Namespace) -> None:
    from fedgate.config.runtime import store_lock
    from fedgate.config.settings.settings import GatewaySettings, load

    settings = load(arguments.config, GatewaySettings)
    with open_store(settings) as store:
        summary = store.summarise()
    summary |= {
        "gateway": settings.gateway.id,
        "site": settings.gateway.site,
        "model": models.describe_model(summary["model"]),
        "baseline_needed": settings.baseline.windows,
        "running": store_lock.find_holder(settings.gateway.store) is not None,
        "flash_budget": settings.store.flash_bytes_per_day,
    }
    summary["link"] = _find_link(summary, time.time_ns() - time.monotonic_ns())
    summary["sources"] = {source.name: _find_source(summary, source) for source in settings.source}
    summary["sentence"] = _sentence(summary)
    cli.show(arguments, summary, f"{summary['sentence']}\n{cli.table(('what', 'value'), _list_rows(summary))}")


def _find_link(summary: dict[str, Any], anchor_ns: int) -> dict[str, Any]:
    """Return how the link to the broker is and since when; `anchor_ns` is the time of the boot, in ns of Unix time."""
    link = summary["link"]
    if link is None or not summary["running"]:
        return {"state": "unknown", "since": ""}
    return {"state": "up" if link["is_up"] else "down", "since": cli.format_time(anchor_ns + link["uptime_ns"])}


def _find_source(summary: dict[str, Any], source: Source) -> dict[str, Any]:
    """Return since when nothing was received of a source, by the alarm of its silence, which never waits to be stored;
    what is received is not stored at all.
    """
    raised_ns = summary["sensor_alarms"].get(f"silent-{source.name}")
    if raised_ns is None:
        state = "received" if summary["running"] else "unknown"
        return {"state": state, "since": "", "silent_after_s": source.silent_after_s}
    since = cli.format_time(raised_ns - round(source.silent_after_s * NS))
    return {"state": "silent", "since": since, "silent_after_s": source.silent_after_s}


def _describe_link(summary: dict[str, Any]) -> str:
    link = summary["link"]
    if link["state"] == "unknown":
        return "not up yet, or not stored yet" if summary["running"] else UNKNOWN
    return f"{link['state']} since {link['since']}, by the agent's last commit"


def _describe_source(source: dict[str, Any]) -> str:
    within = f"within the last {source['silent_after_s']:g} s, or the agent has just started"
    return {"received": within, "silent": f"nothing since {source['since']}", "unknown": UNKNOWN}[source["state"]]


def _sentence(summary: dict[str, Any]) -> str:
    """Return in one sentence what the agent does."""
    windows, needed = summary["baseline_windows"], summary["baseline_needed"]
    if not summary["running"]:
        return "The agent does not run; this is what it stored."
    if summary["model"] is not None:
        return f"The agent watches with model {summary['model']['version']}: {_list_alarms(summary) or 'no alarm'}."
    if windows < needed:
        return f"The agent learns what is normal: {windows} of {needed} windows."
    return "The agent has its baseline and waits for a model."


def _list_alarms(summary: dict[str, Any]) -> str:
    """Return the causes of the alarms that stand."""
    return ", ".join([*(["anomaly"] if summary["anomaly_active"] else []), *summary["sensor_alarms"]])


def _list_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    waiting, epsilon = summary["waiting"], summary["privacy_epsilon"]
    spent = f"{epsilon:.4g}" if isinstance(epsilon, float) else epsilon
    items, size = (sum(held[what] for held in waiting.values()) for what in ("items", "bytes"))
    return [
        ("gateway", f"{summary['gateway']} of site {summary['site']}"),
        ("store", f"{summary['store']} ({summary['store_bytes'] / 1024:.0f} KiB)"),
        ("baseline", f"{summary['baseline_windows']} of {summary['baseline_needed']} windows"),
        ("model in force", models.name_model(summary["model"]) or "none yet"),
        ("link to the broker", _describe_link(summary)),
        *((f"received of {name}", _describe_source(source)) for name, source in summary["sources"].items()),
        ("active alarms", _list_alarms(summary) or "none"),
        *([] if spent is None else [("privacy spent", f"epsilon {spent}")]),
        ("waiting to be sent", f"{items} items, {size} bytes of the store"),
        *((f"  {kind}", f"{held['items']}, {held['bytes']} bytes") for kind, held in waiting.items()),
        ("written today", f"{summary['flash_bytes_written'] / 2**20:.1f} MiB of {summary['flash_budget'] / 2**20:.0f}"),
        ("damage", "; ".join(summary["damage"]) or "none"),
        ("set aside", ", ".join(summary["set_aside"]) or "none"),
    ]
