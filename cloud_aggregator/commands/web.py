"""`cloud-aggregator web`: serve the page in which operators see the site and give orders."""

from __future__ import annotations

import argparse

from fedgate.config.runtime import cli, logs
from fedgate.config.settings.settings import AggregatorSettings, load

NAME = "cloud-aggregator"
TEXT = """Serve the page: what is wrong, where, since when, the proof, and buttons for what is done about it.

It is a process of its own, which opens the store to read it and can write nothing there: its buttons become orders of
the service, through a socket beside the store. It needs none of the keys of the site. Who may see it:
'cloud-aggregator users'."""
EXAMPLES = """examples:
  cloud-aggregator users add ada --role admin -c aggregator.toml
  cloud-aggregator web -c aggregator.toml
      http://127.0.0.1:8470, until SIGTERM or Ctrl-C; [web] listen = "ADDRESS:PORT" is another place
  ssh -L 8470:127.0.0.1:8470 aggregator.example.org
      from elsewhere, where there is no proxy with a certificate
"""


def add(commands: cli.Commands) -> None:
    """Add the command."""
    text = "serve the page in which operators see the site and give orders"
    command = commands.add("web", _serve, text, description=TEXT, examples=EXAMPLES, shows_facts=False)
    logs.add_options(command)


def _serve(arguments: argparse.Namespace) -> int:
    from fedgate.cloud_aggregator.runtime import freed_memory
    from fedgate.cloud_aggregator.web.app import make_server

    freed_memory.share_one_arena()
    return cli.start_and_serve(
        NAME, arguments, lambda: make_server(load(arguments.config, AggregatorSettings)), OSError
    )
