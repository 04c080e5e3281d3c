"""`firmware-sim demo-building`: five rooms watched by five gateways, a fault in each, and what became of it.

The same processes over the same broker as in `firmware-sim demo`; here a room is judged by rules and by the profile of
its hours, and the table says for each fault whether it was found, how late, by which rule and as what.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedgate.config.protocol.messages import Alarm
from fedgate.config.runtime import cli
from fedgate.firmware_sim.demo.rooms import ALGORITHM, Building, Room, RoomsError, rooms_of, shipped_rooms
from fedgate.models.arrays import Floats
from fedgate.models.time_units import DAY_S, HOUR_S

if TYPE_CHECKING:
    from fedgate.firmware_sim.demo.stage import Watch

OUT = Path("out/demo-building")


@dataclass(frozen=True)
class RoomAlarm:
    """One alarm of a room, in seconds of the replay; `by` is the rule that raised it, or the cause."""

    raised_s: float
    cleared_s: float | None
    by: str
    kind: str
    severity: str


@dataclass(frozen=True)
class Verdict:
    """What became of the fault in a room; `limits_*` is what fixed limits would have made of it, the range of the
    commissioning.
    """

    room: str
    fault: str
    start_s: float
    end_s: float
    found_by: str
    kind: str
    severity: str
    delay_s: float | None
    false_alarms: int
    healthy_days: float
    limits_delay_s: float | None
    limits_false_alarms: int


def alarms_of(building: Building, received: Sequence[Alarm]) -> tuple[RoomAlarm, ...]:
    """Return the alarms of a room in the order in which they were raised."""
    seconds = building.story.seconds
    cleared = {alarm.id: seconds(alarm.t_ns) for alarm in received if alarm.state == "cleared"}
    raised = [alarm for alarm in received if alarm.state == "raised"]
    return tuple(
        RoomAlarm(seconds(alarm.t_ns), cleared.get(alarm.id), alarm.rule or alarm.cause, alarm.kind, alarm.severity)
        for alarm in sorted(raised, key=lambda alarm: alarm.t_ns)
    )


def judged(building: Building, room: Room, alarms: Sequence[RoomAlarm]) -> Verdict:
    """Return what became of a fault: it is found by the first alarm raised while a window holds some of it, and every
    alarm raised at another time is a false one.
    """
    window_s = building.story.features["window_s"]
    until_s = room.end_s + window_s
    during = [alarm for alarm in alarms if room.start_s <= alarm.raised_s <= until_s]
    limits = beyond_limits(building, room)
    limits_during = [at_s for at_s in limits if room.start_s <= at_s <= room.end_s]
    watched_s = building.story.length_s - building.watched_s
    return Verdict(
        room=room.name,
        fault=room.fault,
        start_s=room.start_s,
        end_s=room.end_s,
        found_by=during[0].by if during else "",
        kind=during[0].kind if during else "",
        severity=during[0].severity if during else "",
        delay_s=during[0].raised_s - room.start_s if during else None,
        false_alarms=len(alarms) - len(during),
        healthy_days=(watched_s - (until_s - room.start_s)) / DAY_S,
        limits_delay_s=limits_during[0] - room.start_s if limits_during else None,
        limits_false_alarms=len(limits) - len(limits_during),
    )


def beyond_limits(building: Building, room: Room) -> list[float]:
    """Return when values left the range of the commissioning, the trivial detector; what is less than a window after
    the one before is not told again.
    """
    x, rate_hz = room.reported, building.story.sensors[0].rate_hz
    border = round(building.watched_s * rate_hz)
    watched: Floats = x[:border]
    outside = np.flatnonzero((x[border:] < np.nanmin(watched)) | (x[border:] > np.nanmax(watched)))
    told: list[float] = []
    last_s = -np.inf
    for at_s in ((border + outside + 1) / rate_hz).tolist():
        if at_s - last_s > building.story.features["window_s"]:
            told.append(at_s)
        last_s = at_s
    return told


def table(verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts as aligned text."""
    columns = [
        "room",
        "fault",
        "from day",
        "lasts",
        "found after",
        "by",
        "as",
        "false alarms",
        "a day",
        "limits: after",
    ]
    return cli.table([*columns, "false"], [_row(verdict) for verdict in verdicts])


def _row(verdict: Verdict) -> list[str]:
    return [
        verdict.room,
        verdict.fault,
        f"{verdict.start_s / DAY_S:.1f}",
        f"{(verdict.end_s - verdict.start_s) / HOUR_S:g} h",
        _hours(verdict.delay_s),
        verdict.found_by or "-",
        f"{verdict.kind}, {verdict.severity}" if verdict.kind else "-",
        str(verdict.false_alarms),
        f"{verdict.false_alarms / verdict.healthy_days:.2f}",
        _hours(verdict.limits_delay_s),
        str(verdict.limits_false_alarms),
    ]


def _hours(delay_s: float | None) -> str:
    return "not found" if delay_s is None else f"{delay_s / HOUR_S:.3g} h"


def add_arguments(demo: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    demo.add_argument(
        "--data", type=Path, metavar="FOLDER", help="rooms of your own: five recordings (default: shipped)"
    )
    demo.add_argument("--channel", help="which channel of them (default: the first whose name begins with temp)")
    demo.add_argument("--out", type=Path, default=OUT, metavar="FOLDER", help=f"where the report goes (default: {OUT})")
    demo.add_argument("--speed", type=float, help="times real time (default: all of it in about half a minute)")
    demo.add_argument("--broker", choices=("auto", "mosquitto", "embedded"), default="auto", help="default: auto")
    demo.add_argument("--keep", action="store_true", help="let all of it run on after the report, until Ctrl-C")


def main(arguments: argparse.Namespace) -> int:
    """Play the building; return 0 where every fault was found, 1 where one was not or the demo failed."""
    from fedgate.firmware_sim.broker import BrokerError
    from fedgate.firmware_sim.demo import demo, stage

    started_s = time.monotonic()

    def say(text: str) -> None:
        sys.stdout.write(f"[{time.monotonic() - started_s:5.1f} s] {text}\n")
        sys.stdout.flush()

    try:
        building = shipped_rooms() if arguments.data is None else rooms_of(arguments.data, arguments.channel)
        story, names = building.story, [room.name for room in building.rooms]
        say(f"{story.scenario.title}. {story.scenario.data}")
        setup = demo.Setup(arguments.out, arguments.broker, arguments.speed or story.speed)
        with demo.perform(story, names, setup, ALGORITHM, say) as performed:
            verdicts = report(building, performed.received, performed.facts, arguments.out)
            sys.stdout.write(f"{performed.page.describe(is_kept=arguments.keep)}\n")
            sys.stdout.flush()
            if arguments.keep:
                performed.stay()
    except (stage.DemoError, BrokerError, RoomsError) as error:
        sys.stderr.write(f"firmware-sim: demo-building failed: {error}\n")
        return 1
    return 1 if any(verdict.delay_s is None for verdict in verdicts) else 0


def report(building: Building, received: Watch, facts: dict[str, object], folder: Path) -> list[Verdict]:
    """Write what became of the faults as a picture and as JSON, print it as a table, and return it."""
    from fedgate.firmware_sim.demo import building_picture

    story, names = building.story, [room.name for room in building.rooms]
    alarms = {name: alarms_of(building, received.alarms.get(name, [])) for name in names}
    verdicts = [judged(building, room, alarms[room.name]) for room in building.rooms]
    png, figures = folder / "building.png", folder / "building.json"
    png.write_bytes(building_picture.draw(building, received.scores, alarms, verdicts))
    rooms = [asdict(verdict) for verdict in verdicts]
    notes = story.scenario.notes
    text = json.dumps({"data": story.scenario.data, "notes": notes, "rooms": rooms, "run": facts}, indent=2)
    figures.write_text(f"{text}\n", encoding="utf-8")
    sys.stdout.write(f"\n{table(verdicts)}\n\n{_explained(building, verdicts)}\n\nreport: {png}, {figures}\n")
    return verdicts


def _explained(building: Building, verdicts: Sequence[Verdict]) -> str:
    days, alarms = sum(v.healthy_days for v in verdicts), sum(v.false_alarms for v in verdicts)
    promised = building.story.alarm["false_alarms_per_day"]
    found = sum(verdict.delay_s is not None for verdict in verdicts)
    lines = [
        f"{found} of {len(verdicts)} faults found; {alarms} false alarms in {days:.0f} healthy room-days, "
        f"{alarms / days:.2f} a room and day, {promised:g} promised.",
        "limits: an alarm wherever a value leaves the range of the commissioning, without any model.",
        "The faults are injected, and the size of each is that of its kind in firmware_sim/demo/faults.py.",
    ]
    return "\n".join([*lines, *building.story.scenario.notes])
