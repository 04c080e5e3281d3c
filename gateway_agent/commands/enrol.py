"""`gateway-agent enrol`: makes this gateway one of a site."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from datetime import UTC, datetime

from fedgate.config.runtime import cli

EXAMPLES = """examples:
  gateway-agent enrol --token fedgate1.eyJ... -c gateway.toml
      with the token that 'cloud-aggregator gateways token' printed for the id in gateway.toml
  gateway-agent enrol --token - -c gateway.toml
      the same, the token read from standard input, where no other user of this machine sees it
  gateway-agent enrol --token fedgate1.eyJ... -c gateway.toml --new-key
      with another key, after the old one was revoked or may have been copied
"""
NEW_KEY = """make another key where there is one; the one before is shut out, and until the broker is restarted this
gateway too"""


def add(commands: cli.Commands) -> None:
    """Add the command."""
    text = "make this gateway's key and get its certificate, with a token from the aggregator"
    description = f"{text}. The key never leaves this machine. Where it was interrupted, call it again."
    command = commands.add("enrol", _enrol, text, description=description, examples=EXAMPLES)
    command.add_argument("--token", required=True, help="from 'cloud-aggregator gateways token'; - reads it from stdin")
    command.add_argument("--new-key", action="store_true", help=NEW_KEY)


def _enrol(arguments: argparse.Namespace) -> None:
    # Late: only this command needs what these load.
    from fedgate.config.identity.pki import load_key, name_member, read_token
    from fedgate.config.settings.settings import GatewaySettings, load
    from fedgate.gateway_agent.runtime import enrolment
    from fedgate.gateway_agent.runtime.membership import find_files

    settings = load(arguments.config, GatewaySettings)
    token = read_token(sys.stdin.readline() if arguments.token == "-" else arguments.token)  # noqa: S105 - stands for stdin
    if token.gateway != settings.gateway.id:
        raise enrolment.EnrolmentError(
            f"the token is for gateway {token.gateway!r}, and gateway.id is {settings.gateway.id!r}; make them one"
        )
    files = find_files(settings)
    validity = enrolment.enrol(token, files, new_key=arguments.new_key)
    until = datetime.fromtimestamp(validity.not_after_s, UTC).isoformat(timespec="seconds")
    key = name_member(load_key(files.key).public_key())
    paths = {name: str(path) for name, path in asdict(files).items()}
    facts = {"gateway": token.gateway, "until": until, "key": key, "files": paths, "notice": validity.notice}
    text = f"{token.gateway} is enrolled; its certificate is good until {until} and is renewed by itself"
    text += f"\nits key is {key}"
    text += f"\nNOT YET: {validity.notice}" if validity.notice else ""
    cli.show(arguments, facts, text)
