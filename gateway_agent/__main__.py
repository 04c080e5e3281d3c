"""`gateway-agent`: run the agent on a gateway, look at its state, check its settings.

What a command needs is imported when it runs: the doctor must be there too where numpy ends every process it is in.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from fedgate.config.runtime import cli, logs
from fedgate.gateway_agent.commands import doctor, enrol, models, status, web

if TYPE_CHECKING:
    from fedgate.gateway_agent.runtime.agent import Agent

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
  gateway-agent web -c gateway.toml       its own page, on this machine alone
"""


def main(argv: list[str] | None = None) -> int:
    """Entry point of the command."""
    return cli.run(NAME, build_parser().parse_args(argv))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = cli.make_parser(NAME, DESCRIPTION, EPILOG)
    commands = cli.add_commands(parser, "gateway.toml")
    run = commands.add("run", _run, "run the agent", shows_facts=False)
    logs.add_options(run)
    commands.add("check", _check, "check the settings and the release key")
    for module in (status, doctor, enrol, models, web):
        module.add(commands)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    from fedgate.config.runtime.sqlite import StoreError
    from fedgate.config.settings.settings import GatewaySettings, load
    from fedgate.gateway_agent.runtime import agent, membership

    def start() -> Agent:
        settings = load(arguments.config, GatewaySettings)
        if settings.identity is not None:
            membership.find_files(settings).put_in_place()  # where 'enrol' was interrupted
        membership.require(settings)
        return agent.Agent(settings)

    return cli.start_and_serve(NAME, arguments, start, StoreError)


def _check(arguments: argparse.Namespace) -> None:
    from fedgate.config.settings import labelled
    from fedgate.config.settings.settings import GatewaySettings, load
    from fedgate.config.transport import mqtt
    from fedgate.gateway_agent.runtime import membership, signature_worker

    settings = load(arguments.config, GatewaySettings)
    labelled.read_labelled(settings)
    if settings.sensors.broker is not None:
        mqtt.check(settings.sensors.broker)
    try:
        membership.require(settings)
    except membership.MembershipError as error:  # what enrolment brings cannot be looked at yet
        raise membership.MembershipError(f"{arguments.config}: the file is good, but {error}") from None
    signature_worker.check(settings.trust.release_key)
    mqtt.check(settings.broker)
    text = f"{arguments.config}: good; gateway {settings.gateway.id} of site {settings.gateway.site}"
    cli.show(arguments, {"ok": True, "file": str(arguments.config)}, text)


if __name__ == "__main__":
    sys.exit(main())
