"""`gateway-agent models`: which model is in force, which was before, what was refused or gone back from, and why."""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from pathlib import Path
from typing import Any

from fedgate.config.runtime import cli

TEXT = "Show the model in force, the one before it, how long its probation lasts, and what was refused and why."
EPILOG = """examples:
  gateway-agent models -c gateway.toml          as a table; also while the agent runs
  gateway-agent models -c gateway.toml --json   for machines
"""
OF_A_MANIFEST = ("algorithm", "detector", "run", "round_index", "gateways")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = commands.add_parser(
        "models",
        help="show the models: in force, before, refused, and why",
        description=TEXT,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("-c", "--config", type=Path, required=True, metavar="FILE", help="gateway.toml")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(act=_models)


def _models(arguments: argparse.Namespace) -> int:
    from fedgate.config.settings.settings import GatewaySettings, load
    from fedgate.gateway_agent.storage.store import Store

    settings = load(arguments.config, GatewaySettings)
    if not settings.gateway.store.exists():
        raise FileNotFoundError(f"{settings.gateway.store}: there is no store yet; the agent has not run here")
    with closing(Store(settings.gateway.store, read_only=True)) as store:
        summary = shown(store.read().blobs, settings.models.probation_s, settings.features.hop_s)
    print(json.dumps(summary, indent=2) if arguments.json else _text(summary))
    return 0


def shown(blobs: dict[str, bytes], probation_s: float, hop_s: float) -> dict[str, Any]:
    """Return, as JSON-able values, what the store says of models."""
    from fedgate.gateway_agent.deployment.deployment import restore_models

    models = restore_models(blobs)
    left_s = max(probation_s - models.windows * hop_s, 0.0) if models.previous.version else 0.0
    candidates = [digest for digest in models.trying if digest not in (models.current.digest, models.previous.digest)]
    return {
        "current": _model(blobs.get(models.slot)) if models.current.version else None,
        "previous": _model(blobs.get(models.other)) if models.previous.version else None,
        "candidate": candidates[-1] if candidates else None,
        "newest_version": models.newest,
        "windows": models.windows,
        "alarms": models.alarms,
        "probation_s": left_s,
        "loads_not_finished": {digest: one.in_all for digest, one in models.trying.items()},
        "rejected": [{"version": one.version, "why": one.why, "final": one.is_final} for one in models.rejected],
    }


def _model(stored: bytes | None) -> dict[str, Any] | None:
    from fedgate.gateway_agent.deployment.deployment import UNREADABLE, read

    if stored is None:
        return None
    try:
        manifest = read(stored).manifest
    except UNREADABLE:
        return None
    known = {"version": manifest.version, "digest": manifest.model.digest}
    return known | {name: getattr(manifest, name) for name in OF_A_MANIFEST}


def _text(summary: dict[str, Any]) -> str:
    left_s = summary["probation_s"]
    rows = [
        ("in force", _named(summary["current"]) or "none"),
        ("before", _named(summary["previous"]) or "none to go back to"),
        ("candidate", f"digest {summary['candidate'][:12]}, being tried" if summary["candidate"] else "none"),
        ("probation", f"{left_s / 3600:.1f} h of watching left" if left_s else "none"),
        ("under this model", f"{summary['windows']} windows, {summary['alarms']} alarms"),
        ("newest ever in force", str(summary["newest_version"] or "none")),
    ]
    rows += [(f"not taken: {one['version']}", one["why"]) for one in summary["rejected"]]
    return cli.table(("what", "value"), rows)


def _named(model: dict[str, Any] | None) -> str:
    return f"version {model['version']} ({model['algorithm']}, {model['digest'][:12]})" if model else ""
