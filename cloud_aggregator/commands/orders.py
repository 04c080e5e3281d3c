"""`cloud-aggregator orders`: what operators have ordered of the service, and what became of it."""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from pathlib import Path
from typing import Any

from fedgate.config.runtime import cli
from fedgate.config.settings.settings import SiteSettings, load

NEWEST = 20
COLUMNS = ("number", "kind", "what", "state", "answer")
UNSHOWN = ("digest", "key", "serial")  # of use to programs only
TEXT = """List what operators have ordered of the service, the newest last, and what became of it.

An order that waited for the service is carried out, or refused, when that is started: nobody sees its answer but here
and in the log."""
EPILOG = """examples:
  cloud-aggregator orders -c aggregator.toml
  cloud-aggregator orders -c aggregator.toml --all --json
"""


def add(commands: Any) -> None:
    """Add the command."""
    command = commands.add_parser(
        "orders",
        help="list what was ordered of the service, and what became of it",
        description=TEXT,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("-c", "--config", type=Path, required=True, metavar="FILE", help="aggregator.toml")
    command.add_argument("--all", action="store_true", help=f"not only the newest {NEWEST}")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(act=_orders)


def _orders(arguments: argparse.Namespace) -> int:
    from fedgate.cloud_aggregator.storage.store import Store

    with closing(Store(load(arguments.config, SiteSettings).aggregator.store, create=False)) as store:
        rows = store.rows("orders")
    shown = [_order(row) for row in (rows if arguments.all else rows[-NEWEST:])]
    if arguments.json:
        print(json.dumps(shown, indent=2))
    else:
        print(cli.table(COLUMNS, ([row[name] or "-" for name in COLUMNS] for row in shown)))
    return 0


def _order(row: dict[str, Any]) -> dict[str, Any]:
    """Return an order as it is shown."""
    body = {name: value for name, value in json.loads(row["body"]).items() if name not in UNSHOWN}
    words = (f"{name}={','.join(value) if isinstance(value, list) else value}" for name, value in body.items())
    state = {None: "waits", "": "at the broker", "refused": "refused"}.get(row["answer"], "done")
    answer = row["problem"] or (row["answer"] if state == "done" else "")
    return {"number": row["number"], "kind": row["kind"], "what": " ".join(words), "state": state, "answer": answer}
