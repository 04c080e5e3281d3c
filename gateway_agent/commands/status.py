"""`gateway-agent status`: whether the agent runs, what it watches with, what stands and what waits to be sent."""

from __future__ import annotations

import argparse
from typing import Any

from fedgate.config.runtime import cli
from fedgate.gateway_agent.commands import models
from fedgate.gateway_agent.commands.store import open_store


def add(commands: cli.Commands) -> None:
    """Add the command."""
    commands.add("status", _status, "show whether the agent runs, and what it has stored")


def _status(arguments: argparse.Namespace) -> None:
    from fedgate.config.runtime import store_lock
    from fedgate.config.settings.settings import GatewaySettings, load

    settings = load(arguments.config, GatewaySettings)
    with open_store(settings) as store:
        summary = store.summary()
    summary |= {
        "gateway": settings.gateway.id,
        "site": settings.gateway.site,
        "model": models.describe_model(summary["model"]),
        "baseline_needed": settings.baseline.windows,
        "running": store_lock.holder_of(settings.gateway.store) is not None,
        "flash_budget": settings.store.flash_bytes_per_day,
    }
    summary["sentence"] = _sentence(summary)
    cli.show(arguments, summary, f"{summary['sentence']}\n{cli.table(('what', 'value'), _rows(summary))}")


def _sentence(summary: dict[str, Any]) -> str:
    """Return in one sentence what the agent does."""
    windows, needed = summary["baseline_windows"], summary["baseline_needed"]
    if not summary["running"]:
        return "The agent does not run; this is what it stored."
    if summary["model"] is not None:
        return f"The agent watches with model {summary['model']['version']}: {_alarms(summary) or 'no alarm'}."
    if windows < needed:
        return f"The agent learns what is normal: {windows} of {needed} windows."
    return "The agent has its baseline and waits for a model."


def _alarms(summary: dict[str, Any]) -> str:
    """Return the causes of the alarms that stand."""
    return ", ".join([*(["anomaly"] if summary["anomaly_active"] else []), *summary["sensor_alarms"]])


def _rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    waiting, epsilon = summary["waiting"], summary["privacy_epsilon"]
    spent = f"{epsilon:.4g}" if isinstance(epsilon, float) else epsilon
    items, size = (sum(held[what] for held in waiting.values()) for what in ("items", "bytes"))
    return [
        ("gateway", f"{summary['gateway']} of site {summary['site']}"),
        ("store", f"{summary['store']} ({summary['store_bytes'] / 1024:.0f} KiB)"),
        ("baseline", f"{summary['baseline_windows']} of {summary['baseline_needed']} windows"),
        ("model in force", models.name_model(summary["model"]) or "none yet"),
        ("active alarms", _alarms(summary) or "none"),
        *([] if spent is None else [("privacy spent", f"epsilon {spent}")]),
        ("waiting to be sent", f"{items} items, {size} bytes of the store"),
        *((f"  {kind}", f"{held['items']}, {held['bytes']} bytes") for kind, held in waiting.items()),
        ("written today", f"{summary['flash_bytes_written'] / 2**20:.1f} MiB of {summary['flash_budget'] / 2**20:.0f}"),
        ("damage", "; ".join(summary["damage"]) or "none"),
        ("set aside", ", ".join(summary["set_aside"]) or "none"),
    ]
