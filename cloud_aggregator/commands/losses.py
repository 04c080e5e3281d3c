"""`cloud-aggregator losses`: what gateways had to give up, as they told."""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedgate.config.runtime import cli
from fedgate.config.settings.settings import AggregatorSettings, load
from fedgate.models.time_units import NS

EPILOG = """examples:
  cloud-aggregator losses -c aggregator.toml
      which items of which class are lost for good, how many, from when to when, and why
  cloud-aggregator losses -c aggregator.toml --gateway gateway-7 --json
"""
COLUMNS = ("gateway", "kind", "items", "size_bytes", "first", "last", "why", "received")


def add(commands: Any) -> None:
    """Add the command to the parser."""
    text = "list what gateways had to give up, newest last"
    command = commands.add_parser("losses", help=text, description=text, epilog=EPILOG)
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.add_argument("-c", "--config", type=Path, required=True, metavar="FILE", help="aggregator.toml")
    command.add_argument("--gateway", metavar="ID", help="of this one only")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(act=_losses)


def _losses(arguments: argparse.Namespace) -> int:
    from fedgate.cloud_aggregator.storage.store import Store

    with closing(Store(load(arguments.config, AggregatorSettings).aggregator.store, create=False)) as store:
        rows = store.rows("losses")
    found = [row for row in rows if arguments.gateway in (None, row["gateway"])]
    for row in found:
        row |= {name: _time(row[f"{name}_ns"]) for name in ("first", "last", "received")}
    lines = ([str(row[name]) for name in COLUMNS] for row in found)
    print(json.dumps(found, indent=2) if arguments.json else cli.table(COLUMNS, lines))
    return 0


def _time(t_ns: int) -> str:
    return datetime.fromtimestamp(t_ns / NS, UTC).isoformat(timespec="seconds")
