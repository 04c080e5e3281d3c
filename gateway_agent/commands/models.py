"""`gateway-agent models`: which model is in force, which was before, what was refused or gone back from, and why."""

from __future__ import annotations

import argparse
from typing import Any

from fedgate.config.runtime import cli
from fedgate.gateway_agent.storage.reading import open_store
from fedgate.models.time_units import HOUR_S

TEXT = "Show the model in force, the one before it, how long its probation lasts, and what was refused and why."
EXAMPLES = """examples:
  gateway-agent models -c gateway.toml          as a table; also while the agent runs
  gateway-agent models -c gateway.toml --json   for machines
"""


def add(commands: cli.Commands) -> None:
    """Add the command."""
    text = "show the models: in force, before, refused, and why"
    commands.add("models", _run, text, description=TEXT, examples=EXAMPLES)


def _run(arguments: argparse.Namespace) -> None:
    from fedgate.config.settings.settings import GatewaySettings, load
    from fedgate.gateway_agent.storage.summary import describe_models

    settings = load(arguments.config, GatewaySettings)
    with open_store(settings) as store:
        summary = describe_models(store.read().blobs, settings)
    cli.show(arguments, summary, _format(summary))


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
