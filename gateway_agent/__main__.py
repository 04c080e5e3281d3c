"""`gateway-agent`: run the agent on a gateway, look at its state, check its settings.

What a command needs is imported when it runs: the doctor must be there too where numpy ends every process it is in.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from fedgate.config.runtime import cli
from fedgate.gateway_agent.commands import doctor, enrol, models

NAME = "gateway-agent"
DESCRIPTION = (
    "Watch sensors on a gateway: windows, features, score, alarm; learn with the fleet; run only signed models."
)
EPILOG = """examples:
  gateway-agent doctor -c gateway.toml    what works here and what does not: machine, libraries, settings, broker
  gateway-agent check -c gateway.toml     is the file right? names file, line, key, value, what was expected
  gateway-agent run -c gateway.toml       run until SIGTERM or Ctrl-C
  gateway-agent status -c gateway.toml    does it run, baseline, model in force, alarms, what waits to be sent
  gateway-agent models -c gateway.toml    models: in force, before, refused or gone back from, and why
"""


def main(argv: list[str] | None = None) -> int:
    """Entry point of the command."""
    parser = cli.parser(NAME, DESCRIPTION, EPILOG)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, act, text in (
        ("run", _run, "run the agent"),
        ("status", _status, "show whether the agent runs, and what it has stored"),
        ("check", _check, "check the settings and the release key"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("-c", "--config", type=Path, required=True, metavar="FILE", help="gateway.toml")
        command.set_defaults(act=act)
        if name == "run":
            command.add_argument("-q", "--quiet", action="store_true", help="log warnings only")
        else:
            command.add_argument("--json", action="store_true", help="print JSON")
    doctor.add(commands)
    enrol.add(commands)
    models.add(commands)
    arguments = parser.parse_args(argv)
    return cli.run(NAME, arguments.act, arguments)


def _run(arguments: argparse.Namespace) -> int:
    from fedgate.config.runtime.supervisor import Supervisor
    from fedgate.config.settings.settings import GatewaySettings, load
    from fedgate.gateway_agent.runtime import renewal
    from fedgate.gateway_agent.runtime.agent import Agent
    from fedgate.gateway_agent.storage.store import StoreError

    cli.log_to_stderr(verbose=not arguments.quiet)
    Supervisor().starting()
    settings = load(arguments.config, GatewaySettings)
    if settings.identity is not None:
        renewal.put_in_place(renewal.files_of(settings))  # where 'enrol' was interrupted
    renewal.require(settings)
    try:
        agent = Agent(settings)
    except StoreError as error:
        return cli.again(NAME, error)
    cli.on_terminate(agent.stop)
    return cli.serve(NAME, agent.run)


def _check(arguments: argparse.Namespace) -> int:
    from fedgate.config.settings import labelled
    from fedgate.config.settings.settings import GatewaySettings, load
    from fedgate.config.transport import mqtt
    from fedgate.gateway_agent.runtime import renewal, signature_worker

    settings = load(arguments.config, GatewaySettings)
    labelled.of(settings)
    if settings.sensors.broker is not None:
        mqtt.check(settings.sensors.broker)
    try:
        renewal.require(settings)
    except renewal.MembershipError as error:  # what enrolment brings cannot be looked at yet
        raise renewal.MembershipError(f"{arguments.config}: the file is good, but {error}") from None
    signature_worker.check(settings.trust.release_key)
    mqtt.check(settings.broker)
    if arguments.json:
        print(json.dumps({"ok": True, "file": str(arguments.config)}))
    else:
        print(f"{arguments.config}: good; gateway {settings.gateway.id} of site {settings.gateway.site}")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    from fedgate.config.runtime import store_lock
    from fedgate.config.settings.settings import GatewaySettings, load
    from fedgate.gateway_agent.storage.store import Store

    settings = load(arguments.config, GatewaySettings)
    if not settings.gateway.store.exists():
        raise FileNotFoundError(f"{settings.gateway.store}: there is no store yet; the agent has not run here")
    with closing(Store(settings.gateway.store, read_only=True)) as store:
        summary = store.summary()
    summary |= {"gateway": settings.gateway.id, "site": settings.gateway.site, "model": _model(summary["model"])}
    summary["baseline_needed"] = settings.baseline.windows
    summary["running"] = store_lock.holder_of(settings.gateway.store) is not None
    summary["flash_budget"] = settings.store.flash_bytes_per_day
    summary["sentence"] = _sentence(summary)
    if arguments.json:
        print(json.dumps(summary, indent=2))
    else:
        print(f"{summary['sentence']}\n{cli.table(('what', 'value'), _rows(summary))}")
    return 0


def _sentence(summary: dict[str, Any]) -> str:
    """Return in one sentence what the agent does."""
    windows, needed = summary["baseline_windows"], summary["baseline_needed"]
    if not summary["running"]:
        return "The agent does not run; this is what it stored."
    if summary["model"] is not None:
        alarms = _alarms(summary)
        return f"The agent watches with model {summary['model']['version']}: {alarms or 'no alarm'}."
    if windows < needed:
        return f"The agent learns what is normal: {windows} of {needed} windows."
    return "The agent has its baseline and waits for a model."


def _alarms(summary: dict[str, Any]) -> str:
    """Return the causes of the alarms that stand."""
    return ", ".join([*(["anomaly"] if summary["anomaly_active"] else []), *summary["sensor_alarms"]])


def _model(body: bytes | None) -> dict[str, Any] | None:
    from fedgate.config.protocol import wire

    if body is None:
        return None
    arrays, _ = wire.decode(body, size_max=len(body))
    manifest = json.loads(arrays["manifest"].tobytes())
    return {key: manifest[key] for key in ("version", "algorithm", "detector", "run", "round_index", "gateways")} | {
        "digest": manifest["model"]["digest"]
    }


def _rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    model = summary["model"]
    in_force = f"version {model['version']} ({model['algorithm']}, {model['digest'][:12]})" if model else "none yet"
    spent = f"{held:.4g}" if isinstance(held := summary["privacy_epsilon"], float) else held

    def waiting(what: str) -> int:
        return sum(held[what] for held in summary["waiting"].values())

    return [
        ("gateway", f"{summary['gateway']} of site {summary['site']}"),
        ("store", f"{summary['store']} ({summary['store_bytes'] / 1024:.0f} KiB)"),
        ("baseline", f"{summary['baseline_windows']} of {summary['baseline_needed']} windows"),
        ("model in force", in_force),
        ("active alarms", _alarms(summary) or "none"),
        *([] if spent is None else [("privacy spent", f"epsilon {spent}")]),
        ("waiting to be sent", f"{waiting('items')} items, {waiting('bytes')} bytes of the store"),
        *((f"  {kind}", f"{held['items']}, {held['bytes']} bytes") for kind, held in summary["waiting"].items()),
        ("written today", f"{summary['flash_bytes_written'] / 2**20:.1f} MiB of {summary['flash_budget'] / 2**20:.0f}"),
        ("damage", "; ".join(summary["damage"]) or "none"),
        ("set aside", ", ".join(summary["set_aside"]) or "none"),
    ]


if __name__ == "__main__":
    sys.exit(main())
