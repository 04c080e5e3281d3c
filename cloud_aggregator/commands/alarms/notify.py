"""`cloud-aggregator notify test`: send a real message to the channels of `[[notify]]`, and say what each answered."""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fedgate.cloud_aggregator.notifications.notices import Notice
from fedgate.config.runtime import cli
from fedgate.config.settings.notifications import NotifyChannel
from fedgate.config.settings.settings import AggregatorSettings, load

TEXT = """Send a real message to the channels of [[notify]] and say what each answered.

It goes from here straight to the receivers, past the queue, so the service need not run, and is not disturbed where it
does. With url_env the variable must be set here as it is for the service."""
EXAMPLES = """examples:
  cloud-aggregator notify test -c aggregator.toml
  cloud-aggregator notify test -c aggregator.toml --channel NAME --json

Exit code 0 where all have taken it, 1 where one has not, 2 where settings or addresses cannot be used.
"""
COLUMNS = ("channel", "address", "service", "answer", "seconds")


def add(commands: cli.Commands) -> None:
    """Add the command."""
    group = commands.add_group("notify", "send a test message to the channels of [[notify]]", examples=EXAMPLES)
    command = group.add("test", _test, "send a message and say what each channel answered", description=TEXT)
    command.add_argument("--channel", metavar="NAME", help="to this one only, by its name in [[notify]]")


def _test(arguments: argparse.Namespace) -> None:
    settings = load(arguments.config, AggregatorSettings)
    specs = [one for one in settings.notify if arguments.channel in (None, one.name)]
    if not specs:
        known = ", ".join(one.name for one in settings.notify)
        if not known:
            raise ValueError(f"{arguments.config}: no channel is set up; a table [[notify]] with a name makes one")
        raise ValueError(f"--channel: {arguments.channel!r} given; expected one that {arguments.config} has ({known})")
    with ThreadPoolExecutor(len(specs)) as pool:
        rows = [row for found in pool.map(lambda spec: _try(settings.aggregator.site, spec), specs) for row in found]
    text, facts = cli.format_rows(COLUMNS, rows), {"ok": all(row["ok"] for row in rows), "answers": rows}
    if not facts["ok"]:
        raise cli.NotDoneError(f"not every channel has taken the message\n{text}", facts)
    cli.show(arguments, facts, text)


def _try(site: str, spec: NotifyChannel) -> list[dict[str, Any]]:
    from fedgate.cloud_aggregator.runtime.notify_client import NotifyClient

    title = f"{site}: test of channel {spec.name}"
    body = (
        f"This is a test of fedgate's channel {spec.name} for site {site}. Nothing is wrong, and nothing is to be done."
    )
    start_s = time.monotonic()
    answers = NotifyClient(spec, lambda _posted: None).deliver(Notice(title, body))
    seconds = round(time.monotonic() - start_s, 1)
    return [
        {
            "channel": spec.name,
            "address": one.place,
            "service": one.service,
            "ok": not one.problem,
            "answer": one.problem or "taken",
            "seconds": seconds,
        }
        for one in answers
    ]
