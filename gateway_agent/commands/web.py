"""`gateway-agent web`: serve the gateway's own page, to who is on the gateway."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fedgate.config.runtime import cli, logs

if TYPE_CHECKING:
    from fedgate.config.web.server import Server

NAME = "gateway-agent"
TEXT = """Serve the gateway's own page: what it does now, alarms that stand and why, sensors with their last values,
scores, models, link, store, certificate. It can change nothing, and is served on this machine alone.

It is a process of its own, which asks the running agent through a socket beside its store; while the agent does not run
it shows what was stored. The settings must have the table [web], and the agent must have been started with it."""
EXAMPLES = """examples:
  gateway-agent web -c gateway.toml
      http://127.0.0.1:8471, until SIGTERM or Ctrl-C; [web] listen = "127.0.0.1:PORT" is another place
  ssh -L 8471:127.0.0.1:8471 gateway.example.org
      from elsewhere, and then http://127.0.0.1:8471 there
"""


def add(commands: cli.Commands) -> None:
    """Add the command."""
    text = "serve the gateway's own page on this machine"
    command = commands.add("web", _serve, text, description=TEXT, examples=EXAMPLES, shows_facts=False)
    logs.add_options(command)


def _serve(arguments: argparse.Namespace) -> int:
    from fedgate.config.settings.settings import GatewaySettings, SettingsError, load

    def start() -> Server:
        settings = load(arguments.config, GatewaySettings)
        if settings.web is None:
            raise SettingsError(
                f"{arguments.config}: there is no table [web], so this gateway has no page; add the line [web], and "
                "restart the agent"
            )
        from fedgate.config.web.server import Server
        from fedgate.gateway_agent.web.app import Web

        return Server(Web(settings), settings.web.listen)

    return cli.start_and_serve(NAME, arguments, start, OSError)
