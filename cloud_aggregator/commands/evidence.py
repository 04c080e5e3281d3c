"""`cloud-aggregator evidence`: what an alarm rests on."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fedgate.cloud_aggregator.alarms.evidence_text import render_evidence
from fedgate.cloud_aggregator.commands.store import open_stated
from fedgate.config.runtime import cli

if TYPE_CHECKING:
    from fedgate.cloud_aggregator.storage.store import Store

TEXT = """Show what an alarm rests on: the features that stand out, the scores before it, the spectrum of its worst
window beside healthy ones, how the sensors were, and the model and rule that raised it."""
EXAMPLES = """examples:
  cloud-aggregator evidence north.anomaly.17 -c aggregator.toml
      of the alarm with this id, of which a beginning will do that no other has
  cloud-aggregator evidence north anomaly -c aggregator.toml
      of the newest of this gateway and cause
  cloud-aggregator evidence north anomaly -c aggregator.toml --json
"""


def add(commands: cli.Commands) -> None:
    """Add the command."""
    text = "show what an alarm rests on"
    command = commands.add("evidence", _run, text, description=TEXT, examples=EXAMPLES)
    command.add_argument("alarm", metavar="ALARM_ID", help="the beginning of an id, or the name of a gateway")
    command.add_argument("cause", metavar="CAUSE", nargs="?", help="with the name of a gateway")


def _run(arguments: argparse.Namespace) -> None:
    with open_stated(arguments) as store:
        gateway, alarm = find_alarm(store, arguments.alarm, arguments.cause)
        evidence = store.read_evidence(gateway, alarm)
    if evidence is None:
        raise cli.NotDoneError(f"the evidence of {alarm} has just gone: newer ones took its place")
    facts = {"gateway": gateway, **evidence.model_dump(mode="json")}
    cli.show(arguments, facts, render_evidence(gateway, evidence))


def find_alarm(store: Store, given: str, cause: str | None) -> tuple[str, str]:
    """Return gateway and id of the alarm that is meant: the newest with evidence of a gateway and cause, or the one
    whose id begins so. Raises `NotDoneError` where there is none, or more than one.
    """
    if cause is not None:
        newest = store.find_newest_evidence(given, cause)
        if newest is None:
            raise cli.NotDoneError(f"there is no evidence of an alarm {cause!r} of {given!r}; see 'alarms'")
        return given, newest
    found = store.find_evidence(given)
    exact = [one for one in found if one[1] == given]
    if len(found) == 1 or len(exact) == 1:
        return (exact or found)[0]
    if not found:
        raise cli.NotDoneError(f"no alarm with evidence has an id that begins with {given!r}; see 'alarms'")
    listed = ", ".join(alarm for _, alarm in found[:3])
    raise cli.NotDoneError(f"{len(found)} alarms with evidence begin with {given!r}, expected one: {listed}, ...")
