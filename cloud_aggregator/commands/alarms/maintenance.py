"""`cloud-aggregator maintenance`: windows in which somebody mends what gateways watch, so that nobody is called."""

from __future__ import annotations

import argparse
import time

from fedgate.cloud_aggregator.alarms.workflow import fold
from fedgate.cloud_aggregator.commands.alarms.alarms import order_action
from fedgate.cloud_aggregator.commands.store import open_stated
from fedgate.config.protocol.topics import ALL
from fedgate.config.runtime import cli
from fedgate.config.runtime.times import read_coming
from fedgate.models.time_units import NS

TEXT = """Say when somebody mends what gateways watch: in which maintenance windows.

An alarm that begins within a window is suppressed while that lasts: it is stored and listed, and nobody is called.
What still stands at the end is told then. A window that overlaps or adjoins another prolongs it.

WHEN is 'now', a time such as 2026-05-04T08:00 (of this machine's time zone) or 2026-05-04T06:00Z (of UTC), or how long
later: --from 2h begins in two hours, --to 3h ends three hours after the beginning. Times are printed in UTC."""
EXAMPLES = """examples:
  cloud-aggregator maintenance add --gateway gateway-7 --from 2026-05-04T08:00 --to 2026-05-04T16:00 \\
      --why "new bearings" -c aggregator.toml
  cloud-aggregator maintenance add --all --to 3h --why "storm" -c aggregator.toml
      from now on, for three hours; the same is --from now --to 3h
  cloud-aggregator maintenance list -c aggregator.toml
  cloud-aggregator maintenance end 12 -c aggregator.toml
      it is over now; the number is that of the list
"""
COLUMNS = ("number", "gateway", "state", "from", "to", "who", "why")


def add(commands: cli.Commands) -> None:
    """Add the command."""
    text = "say when somebody mends what gateways watch, so that nobody is called"
    parts = commands.add_group("maintenance", text, description=TEXT, examples=EXAMPLES)
    window = parts.add("add", _add, "suppress the alarms that begin within a time", description=TEXT)
    whose = window.add_mutually_exclusive_group(required=True)
    whose.add_argument("--gateway", metavar="ID", help="of this gateway")
    whose.add_argument("--all", dest="gateway", action="store_const", const=ALL, help="of all gateways")
    begin = "when it begins: a time, or 2h: in two hours (default: now)"
    window.add_argument("--from", dest="begin", type=read_coming, metavar="WHEN", default="now", help=begin)
    end = "when it ends: a time, or 3h: three hours after the beginning"
    window.add_argument("--to", dest="end", type=read_coming, metavar="WHEN", required=True, help=end)
    window.add_argument("--why", required=True, metavar="TEXT", help="is shown with it")
    parts.add("list", _list, "list the maintenance windows")
    ending = parts.add("end", _end, "end one now, or take back one to come")
    ending.add_argument("number", type=int, metavar="NUMBER", help="as the list has it")
    for part in (window, ending):
        part.add_argument("--who", metavar="NAME", help="who does it (default: your login name)")


def _add(arguments: argparse.Namespace) -> None:
    from_ns = arguments.begin.find_ns(time.time_ns())
    body = {"action": "window", "gateway": arguments.gateway, "text": arguments.why}
    order_action(arguments, body | {"from_s": from_ns / NS, "to_s": arguments.end.find_ns(from_ns) / NS})


def _list(arguments: argparse.Namespace) -> None:
    now_ns = time.time_ns()
    with open_stated(arguments) as store:
        windows = fold(store.read_alarm_events()).windows
    rows = [
        {
            "number": window.number,
            "gateway": window.gateway,
            "state": "over" if window.to_ns <= now_ns else "to come" if now_ns < window.from_ns else "at hand",
            "from": cli.format_time(window.from_ns),
            "to": cli.format_time(window.to_ns),
            "who": window.who,
            "why": window.why,
        }
        for window in windows
    ]
    cli.show(arguments, rows, cli.format_rows(COLUMNS, rows))


def _end(arguments: argparse.Namespace) -> None:
    order_action(arguments, {"action": "window-end", "window": arguments.number})
