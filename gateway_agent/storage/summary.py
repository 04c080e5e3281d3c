"""What a store says of its agent, as JSON-able values: for `gateway-agent status`, `models` and the gateway's page."""

from __future__ import annotations

import time
from typing import Any

from fedgate.config.runtime import store_lock
from fedgate.config.runtime.cli import format_time
from fedgate.config.settings.settings import GatewaySettings, Source
from fedgate.gateway_agent.deployment.deployment import (
    UNREADABLE,
    compute_probation_left_s,
    find_in_force,
    read,
    restore_models,
)
from fedgate.gateway_agent.storage.rows import Found
from fedgate.gateway_agent.storage.store import Store
from fedgate.models.time_units import NS

OF_A_MANIFEST = ("algorithm", "detector", "run", "round_index", "gateways")


def summarise(settings: GatewaySettings, store: Store, found: Found) -> dict[str, Any]:
    """Return whether the agent runs, and what it has stored; raises `StoreError`."""
    summary = store.summarise(found)
    summary |= {
        "gateway": settings.gateway.id,
        "site": settings.gateway.site,
        "model": describe_model(summary["model"]),
        "baseline_needed": settings.baseline.windows,
        "running": store_lock.find_holder(settings.gateway.store) is not None,
        "flash_budget": settings.store.flash_bytes_per_day,
    }
    summary["link"] = _find_link(summary, time.time_ns() - time.monotonic_ns())
    summary["sources"] = {source.name: _find_source(summary, source) for source in settings.source}
    return summary | {"sentence": describe_doing(summary)}


def _find_link(summary: dict[str, Any], anchor_ns: int) -> dict[str, Any]:
    """Return how the link to the broker is and since when; `anchor_ns` is the time of the boot, in ns of Unix time."""
    link = summary["link"]
    if link is None or not summary["running"]:
        return {"state": "unknown", "since": ""}
    return {"state": "up" if link["is_up"] else "down", "since": format_time(anchor_ns + link["uptime_ns"])}


def _find_source(summary: dict[str, Any], source: Source) -> dict[str, Any]:
    """Return since when nothing was received of a source, by the alarm of its silence, which never waits to be stored;
    what is received is not stored at all.
    """
    raised_ns = summary["sensor_alarms"].get(f"silent-{source.name}")
    if raised_ns is None:
        state = "received" if summary["running"] else "unknown"
        return {"state": state, "since": "", "silent_after_s": source.silent_after_s}
    since = format_time(raised_ns - round(source.silent_after_s * NS))
    return {"state": "silent", "since": since, "silent_after_s": source.silent_after_s}


def describe_doing(summary: dict[str, Any]) -> str:
    """Return in one sentence what the agent does, by the facts of `summarise`."""
    windows, needed = summary["baseline_windows"], summary["baseline_needed"]
    if not summary["running"]:
        return "The agent does not run; this is what it stored."
    if summary["model"] is not None:
        return f"The agent watches with model {summary['model']['version']}: {list_alarms(summary) or 'no alarm'}."
    if windows < needed:
        return f"The agent learns what is normal: {windows} of {needed} windows."
    return "The agent has its baseline and waits for a model."


def list_alarms(summary: dict[str, Any]) -> str:
    """Return the causes of the alarms that stand."""
    return ", ".join([*(["anomaly"] if summary["anomaly_active"] else []), *summary["sensor_alarms"]])


def describe_models(blobs: dict[str, bytes], settings: GatewaySettings) -> dict[str, Any]:
    """Return what the store says of models."""
    models = restore_models(blobs)
    candidates = [digest for digest in models.trying if digest not in (models.current.digest, models.previous.digest)]
    return {
        "current": describe_model(find_in_force(blobs)),
        "previous": describe_model(blobs.get(models.other)) if models.previous.version else None,
        "candidate": candidates[-1] if candidates else None,
        "newest_version": models.newest,
        "windows": models.windows,
        "alarms": models.alarms,
        "probation_s": compute_probation_left_s(models, settings) if models.previous.version else 0.0,
        "loads_not_finished": {digest: one.in_all for digest, one in models.trying.items()},
        "rejected": [{"version": one.version, "why": one.why, "final": one.is_final} for one in models.rejected],
    }


def describe_model(stored: bytes | None) -> dict[str, Any] | None:
    """Return what is shown of a stored model; None where there is none that can be read."""
    if stored is None:
        return None
    try:
        manifest = read(stored).manifest
    except UNREADABLE:
        return None
    known = {"version": manifest.version, "digest": manifest.model.digest}
    return known | {name: getattr(manifest, name) for name in OF_A_MANIFEST}
