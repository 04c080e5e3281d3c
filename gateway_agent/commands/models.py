"""`gateway-agent models`: which model is in force, which was before, what was refused or gone back from, and why."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from fedgate.config.runtime import cli
from fedgate.gateway_agent.commands.store import open_store
from fedgate.models.time_units import HOUR_S

if TYPE_CHECKING:
    from fedgate.config.settings.settings import GatewaySettings

TEXT = "Show the model in force, the one before it, how long its probation lasts, and what was refused and why."
EXAMPLES = """examples:
  gateway-agent models -c gateway.toml          as a table; also while the agent runs
  gateway-agent models -c gateway.toml --json   for machines
"""
OF_A_MANIFEST = ("algorithm", "detector", "run", "round_index", "gateways")


def add(commands: cli.Commands) -> None:
    """Add the command."""
    text = "show the models: in force, before, refused, and why"
    commands.add("models", _run, text, description=TEXT, examples=EXAMPLES)


def _run(arguments: argparse.Namespace) -> None:
    from fedgate.config.settings.settings import GatewaySettings, load

    settings = load(arguments.config, GatewaySettings)
    with open_store(settings) as store:
        summary = describe_models(store.read().blobs, settings)
    cli.show(arguments, summary, _format(summary))


def describe_models(blobs: dict[str, bytes], settings: GatewaySettings) -> dict[str, Any]:
    """Return, as JSON-able values, what the store says of models."""
    from fedgate.gateway_agent.deployment.deployment import compute_probation_left_s, find_in_force, restore_models

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
    from fedgate.gateway_agent.deployment.deployment import UNREADABLE, read

    if stored is None:
        return None
    try:
        manifest = read(stored).manifest
    except UNREADABLE:
        return None
    known = {"version": manifest.version, "digest": manifest.model.digest}
    return known | {name: getattr(manifest, name) for name in OF_A_MANIFEST}


def _format(summary: dict[str, Any]) -> str:
    left_s = summary["probation_s"]
    rows = [
        ("in force", name_model(summary["current"]) or "none"),
        ("before", name_model(summary["previous"]) or "none to go back to"),
        ("candidate", f"digest {summary['candidate'][:12]}, being tried" if summary["candidate"] else "none"),
        ("probation", f"{left_s / HOUR_S:.1f} h of watching left" if left_s else "none"),
        ("under this model", f"{summary['windows']} windows, {summary['alarms']} alarms"),
        ("newest ever in force", str(summary["newest_version"] or "none")),
    ]
    rows += [(f"not taken: {one['version']}", one["why"]) for one in summary["rejected"]]
    return cli.table(("what", "value"), rows)


def name_model(model: dict[str, Any] | None) -> str:
    """Return a model's version, algorithm and the beginning of its digest; empty for none."""
    return f"version {model['version']} ({model['algorithm']}, {model['digest'][:12]})" if model else ""
