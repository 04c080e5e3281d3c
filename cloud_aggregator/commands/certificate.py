"""`cloud-aggregator certificate`: lets those look on whom the broker's access list names and who are no gateways."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from fedgate.cloud_aggregator.access.registry import ROLES
from fedgate.cloud_aggregator.commands.store import place_order
from fedgate.cloud_aggregator.pki.authority import OWN_VALIDITY, Authority
from fedgate.config.identity import pki
from fedgate.config.runtime import cli
from fedgate.config.settings.settings import AggregatorSettings, load
from fedgate.models.time_units import NS

EXAMPLES = """examples:
  cloud-aggregator certificate operator -c aggregator.toml --out operator
      makes operator.key and operator.pem; mosquitto_sub takes them with --key, --cert and --cafile ca.pem
  cloud-aggregator gateways revoke operator -c aggregator.toml
      shuts out all operators that have a certificate until now; make new ones for those who stay
"""


def add(commands: cli.Commands) -> None:
    """Add the command."""
    text = "make key and certificate for an operator, a building or Home Assistant"
    command = commands.add("certificate", _make, text, examples=EXAMPLES, shows_facts=False)
    command.add_argument("role", choices=sorted(ROLES), help="what mosquitto.acl calls it")
    command.add_argument("--out", type=Path, required=True, metavar="NAME", help="of the files, without .key and .pem")


def _make(arguments: argparse.Namespace) -> None:

    settings = load(arguments.config, AggregatorSettings)
    if settings.identity is None:
        raise ValueError(f"{arguments.config}: a certificate needs [identity]; 'cloud-aggregator init' makes it")
    authority, now = Authority(settings.identity.folder), datetime.now(UTC)
    key_file, file = (arguments.out.with_name(f"{arguments.out.name}.{end}") for end in ("key", "pem"))
    key, serial, until = pki.make_key(key_file), x509.random_serial_number(), now + OWN_VALIDITY
    body = {"name": arguments.role, "serial": f"{serial:x}", "key": pki.key_digest(key.public_key())}
    body |= {"authority": authority.fingerprint, "not_after_ns": round(until.timestamp()) * NS}
    place_order(arguments, "certified", body)
    made = authority.issue(arguments.role, key.public_key(), serial, now, until)
    pki.write(file, made, pki.PUBLIC_MODE)
    print(f"{key_file} and {file}: {arguments.role}, until {until:%Y-%m-%d}; the key is for its owner only")
