"""`cloud-aggregator models`, `alarms`, `rounds`, `losses`, `orders`: what is in the store, the newest last."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from fedgate.cloud_aggregator.commands.store import open_stated
from fedgate.config.protocol.messages import escape_text
from fedgate.config.runtime import cli

if TYPE_CHECKING:
    from fedgate.cloud_aggregator.storage.store import Store

Row = dict[str, Any]
NEWEST = 20  # orders
UNSHOWN = ("digest", "key", "serial")  # of an order: of use to programs only
ORDERS = """List what operators have ordered of the service, the newest last, and what became of it.

An order that waited for the service is carried out, or refused, when that is started: nobody sees its answer but here
and in the log."""
LOSSES_EXAMPLES = """examples:
  cloud-aggregator losses -c aggregator.toml
      which items of which class are lost for good, how many, from when to when, and why
  cloud-aggregator losses -c aggregator.toml --gateway gateway-7 --json
"""
ORDERS_EXAMPLES = """examples:
  cloud-aggregator orders -c aggregator.toml
  cloud-aggregator orders -c aggregator.toml --all --json
"""


class List(NamedTuple):
    """A list of what is in the store."""

    text: str
    columns: tuple[str, ...]
    rows_of: Callable[[Store, argparse.Namespace], list[Row]]
    description: str = ""
    examples: str = ""
    shorten: Callable[[Row], Row] = dict  # as people read a row; as JSON it is whole


def add(commands: cli.Commands) -> None:
    """Add the commands."""
    made = {}
    for name, one in LISTS.items():
        act = partial(_list, one)
        made[name] = commands.add(name, act, one.text, description=one.description, examples=one.examples)
    made["losses"].add_argument("--gateway", metavar="ID", help="of this one only")
    made["orders"].add_argument("--all", action="store_true", help=f"not only the newest {NEWEST}")


def _list(one: List, arguments: argparse.Namespace) -> None:
    with open_stated(arguments) as store:
        rows = one.rows_of(store, arguments)
    cli.show(arguments, rows, cli.format_rows(one.columns, map(one.shorten, rows)))


def _format_moments(row: Row, *names: str) -> Row:
    """Return moments of a row as text, under the names that they have without their unit."""
    return {name: cli.format_time(row[f"{name}_ns"]) for name in names}


def _list_models(store: Store, _arguments: argparse.Namespace) -> list[Row]:
    from fedgate.cloud_aggregator.storage.models_table import state_of

    rows, release = (
        store.read_rows("models", "version", "manifest", "canary_ns", "released_ns", "stopped_ns"),
        store.models.read_rollout(),
    )
    return [_model(row, state_of(row, release, rows[-1]["version"])) for row in rows]


def _model(row: Row, state: str) -> Row:
    manifest = json.loads(row["manifest"])
    return {
        "version": row["version"],
        "state": state,
        "made": cli.format_time(manifest["created_ns"]),
        **_format_moments(row, "canary", "released", "stopped"),
        **{name: manifest["model"][name] for name in ("digest", "size_bytes")},
        **{name: manifest[name] for name in ("algorithm", "detector", "run", "round_index", "gateways")},
    }


def _list_rounds(store: Store, _arguments: argparse.Namespace) -> list[Row]:
    return [row | _format_moments(row, "closed") for row in store.read_rows("rounds")]


def _shorten_round(row: Row) -> Row:
    """Return a round as it is shown to people: how many gateways, and not which."""
    counts = {name: len(row[name].split()) for name in ("gateways", "empty", "late")}
    short = {"round": "round_index", "received": "bytes_received", "update": "update_bytes"}
    short["uncompressed"] = "uncompressed_bytes"
    return row | counts | {name: row[long] for name, long in short.items()}


def _list_losses(store: Store, arguments: argparse.Namespace) -> list[Row]:
    rows = [row for row in store.read_rows("losses") if arguments.gateway in (None, row["gateway"])]
    return [row | _format_moments(row, "first", "last", "received") for row in rows]


def _list_orders(store: Store, arguments: argparse.Namespace) -> list[Row]:
    rows = store.read_rows("orders")
    return [_order(row) for row in (rows if arguments.all else rows[-NEWEST:])]


def _order(row: Row) -> Row:
    """Return an order as it is shown."""
    body = {name: value for name, value in json.loads(row["body"]).items() if name not in UNSHOWN}
    words = (
        f"{name}={','.join(map(str, value)) if isinstance(value, list) else value}" for name, value in body.items()
    )
    state = {None: "waits", "": "at the broker", "refused": "refused"}.get(row["answer"], "done")
    answer = row["problem"] or (row["answer"] if state == "done" else "")
    what = escape_text(" ".join(words))  # also of one that was refused for what a terminal would obey
    return {"number": row["number"], "kind": row["kind"], "what": what, "state": state, "answer": answer}


LISTS = {
    "models": List(
        "list the released models",
        (
            *("version", "state", "made", "canary", "released", "stopped", "algorithm", "detector", "gateways"),
            *("size_bytes", "digest"),
        ),
        _list_models,
    ),
    "rounds": List(
        "list the closed rounds",
        (
            *("round", "phase", "closed", "gateways", "empty", "late"),
            *("refused", "received", "update", "uncompressed"),
        ),
        _list_rounds,
        shorten=_shorten_round,
    ),
    "losses": List(
        "list what gateways had to give up, newest last",
        ("gateway", "kind", "items", "size_bytes", "first", "last", "why", "received"),
        _list_losses,
        examples=LOSSES_EXAMPLES,
    ),
    "orders": List(
        "list what was ordered of the service, and what became of it",
        ("number", "kind", "what", "state", "answer"),
        _list_orders,
        ORDERS,
        ORDERS_EXAMPLES,
    ),
}
