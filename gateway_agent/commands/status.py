"""`gateway-agent status`: whether the agent runs, what it watches with, what stands and what waits to be sent."""

from __future__ import annotations

import argparse
from typing import Any

from fedgate.config.runtime import cli
from fedgate.gateway_agent.commands import models
from fedgate.gateway_agent.storage.reading import open_store

UNKNOWN = "unknown since the agent's last commit"


def add(commands: cli.Commands) -> None:
    """Add the command."""
    commands.add("status", _run, "show whether the agent runs, and what it has stored")


def _run(arguments: argparse.Namespace) -> None:
    from fedgate.config.settings.settings import GatewaySettings, load
    from fedgate.gateway_agent.storage.summary import list_alarms, summarise

    settings = load(arguments.config, GatewaySettings)
    with open_store(settings) as store:
        summary = summarise(settings, store, store.look())
    rows = _list_rows(summary, list_alarms(summary))
    cli.show(arguments, summary, f"{summary['sentence']}\n{cli.table(('what', 'value'), rows)}")


def _describe_link(summary: dict[str, Any]) -> str:
    link = summary["link"]
    if link["state"] == "unknown":
        return "not up yet, or not stored yet" if summary["running"] else UNKNOWN
    return f"{link['state']} since {link['since']}, by the agent's last commit"


def _describe_source(source: dict[str, Any]) -> str:
    within = f"within the last {source['silent_after_s']:g} s, or the agent has just started"
    return {"received": within, "silent": f"nothing since {source['since']}", "unknown": UNKNOWN}[source["state"]]


def _list_rows(summary: dict[str, Any], alarms: str) -> list[tuple[str, str]]:
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
        ("active alarms", alarms or "none"),
        *([] if spent is None else [("privacy spent", f"epsilon {spent}")]),
        ("waiting to be sent", f"{items} items, {size} bytes of the store"),
        *((f"  {kind}", f"{held['items']}, {held['bytes']} bytes") for kind, held in waiting.items()),
        ("written today", f"{summary['flash_bytes_written'] / 2**20:.1f} MiB of {summary['flash_budget'] / 2**20:.0f}"),
        ("damage", "; ".join(summary["damage"]) or "none"),
        ("set aside", ", ".join(summary["set_aside"]) or "none"),
    ]
