"""The building that the demo plays: five rooms on one clock, and in each of them one fault at a known time.

The rooms are real recordings, the faults are not: they are put in by `fedgate.firmware_sim.demo.faults`, one kind a
room, so that a table can say which was found, how late and by what.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedgate.firmware_sim.demo.faults import SensorFault, sensor_fault
from fedgate.firmware_sim.demo.outcome import Scenario
from fedgate.firmware_sim.demo.scenarios import HEALTHY, Span, Story
from fedgate.firmware_sim.recordings import Recording, read, shipped
from fedgate.firmware_sim.recordings.recording import shortened
from fedgate.models.arrays import Floats, generator
from fedgate.models.time_units import NS

ROLE = "temperature"
ROOMS = 5
WEEK_NS = 7 * 86_400 * NS
TUESDAY_NS = 1_699_920_000 * NS  # a midnight (UTC) of 2023: profiles know no time before 2020
HOUR_S, QUARTER_S = 3_600.0, 900.0  # of the grid: hourly recordings hour by hour, faster ones by quarters
WINDOW_PLACES = 24
WATCHED_FROM = 0.5  # share of the recording that commissions
REPLAY_S = 24.0  # how long the whole replay takes
SEED = 0
FLEET_S = 900.0  # within which anomalies of most rooms are one of the building
PROMISED = 0.1  # false alarms a room and day, where a day has 24 windows

# Kind of fault, where it begins as a share of the watched half, how long it lasts in places of the grid.
PLAN: tuple[tuple[SensorFault, float, int], ...] = (
    ("stuck", 0.22, 24),
    ("drift", 0.30, 72),
    ("offset", 0.45, 48),
    ("noise", 0.60, 24),
    ("spike", 0.75, 3),
)
ALGORITHM, SETTINGS = "federated-subspace", {"components": 3}


class RoomsError(ValueError):
    """A folder from which no rooms can be taken; the message says what was found and what was expected."""


@dataclass(frozen=True, eq=False)
class Room:
    """What was measured in a room, (T,), what its sensor says with the fault in it, and when that is, in seconds."""

    name: str
    healthy: Floats
    reported: Floats
    fault: SensorFault
    start_s: float
    end_s: float


@dataclass(frozen=True, eq=False)
class Building:
    """Rooms on one clock, and the story in which they are played."""

    rooms: tuple[Room, ...]
    story: Story
    place_s: float

    @property
    def watched_s(self) -> float:
        """From when on the rooms are watched."""
        return self.story.scenario.commissioning[1]


def shipped_rooms() -> Building:
    """Return the building of the recordings that come with the package."""
    recording = read(shipped("nab_office/temperature"))
    return building(
        [recording.select([name]) for name in recording.channel_names],
        "Hourly air temperature of an office (Numenta Anomaly Benchmark, numenta/NAB, MIT-style licence). Five "
        "stretches of four weeks, each from a Tuesday on, stand for five rooms. The faults are injected.",
        (
            "All five stretches are from one sensor: rooms of one building would have more in common than its seasons.",
            "The times of the rules were set with these recordings at hand; on others they are a first guess.",
        ),
    )


def rooms_of(folder: Path, channel: str | None) -> Building:
    """Return the building of the first five recordings in a folder that hold the channel, by default the first whose
    name begins with "temp".

    Raises:
        RoomsError: there are fewer, or they do not go together.
        RecordingError: one of them cannot be read.
    """
    found: list[Recording] = []
    seen: list[str] = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_file() and len(found) < ROOMS:
            recording = read(path)
            seen += recording.channel_names
            wanted = [name for name in recording.channel_names if name == channel or _is_temperature(name, channel)]
            found += [recording.select(wanted[:1])] if wanted else []
    if len(found) < ROOMS:
        raise RoomsError(
            f"{folder}: {len(found)} recordings with the channel {channel or 'temp...'!r}; expected {ROOMS} rooms. "
            f"Name another with --channel; there are {shortened(tuple(dict.fromkeys(seen)))}"
        )
    rates = {recording.rate_hz for recording in found}
    if max(rates) > min(rates) * 1.001:
        raise RoomsError(f"{folder}: recorded at {sorted(rates)} Hz; expected rooms of one rate")
    text = f"Channel {found[0].channel_names[0]} of {', '.join(r.name for r in found)}. The faults are injected."
    holed = [recording for recording in found if len(recording.gaps.rows)]
    notes = [f"{recording.name}: {len(recording.gaps.rows)} gaps in time; the parts are joined" for recording in holed]
    return building(found, text, tuple(notes))


def _is_temperature(name: str, channel: str | None) -> bool:
    return channel is None and name.lower().startswith("temp")


def building(recordings: list[Recording], data: str, notes: tuple[str, ...]) -> Building:
    """Return rooms with their faults, all as long as the shortest recording, in whole places of the grid.

    Raises `RoomsError` where that is too short.
    """
    rate_hz = recordings[0].rate_hz
    place_s = QUARTER_S if rate_hz * QUARTER_S > 0.999 else HOUR_S
    per_place = max(round(place_s * rate_hz), 1)
    places = min(len(recording.values) for recording in recordings) // per_place
    watched = round(WATCHED_FROM * places)
    if watched < 5 * WINDOW_PLACES:
        raise RoomsError(
            f"{places} places of {place_s:g} s in the shortest recording; expected {10 * WINDOW_PLACES} or more"
        )
    rooms = []
    for number, (recording, (kind, share, lasts)) in enumerate(zip(recordings, PLAN, strict=True), start=1):
        values = recording.values[: places * per_place]
        first = (watched + round(share * (places - watched))) * per_place
        rows = slice(first, first + lasts * per_place)
        deviation = float(np.nanstd(values[: watched * per_place]))
        reported = sensor_fault(values, 0, rows, kind, deviation, generator(SEED, number, kind))
        start_s, end_s = rows.start / rate_hz, rows.stop / rate_hz
        rooms.append(Room(f"room-{number}", values[:, 0], reported[:, 0], kind, start_s, end_s))
    scenario = Scenario("A building: five rooms, five faults", data, (), (0.0, watched * place_s), notes)
    return Building(tuple(rooms), _story(recordings, rooms, scenario, place_s, places), place_s)


def _story(recordings: list[Recording], rooms: list[Room], scenario: Scenario, place_s: float, places: int) -> Story:
    start_ns = recordings[0].t0_ns or TUESDAY_NS
    length_s = places * place_s
    sensors = tuple(
        Recording(room.name, recording.channels, recording.rate_hz, room.reported[:, None])
        for room, recording in zip(rooms, recordings, strict=True)
    )
    aggregate = {"aggregate": "mean"} if recordings[0].rate_hz * place_s > 1.5 else {}
    return Story(
        scenario,
        sensors,
        (Span(0.0, length_s, HEALTHY, "one fault a room"),),
        features(place_s),
        round(scenario.commissioning[1] / place_s) - WINDOW_PLACES + 1,
        alarm(place_s),
        speed=length_s / REPLAY_S,
        t0_ns=start_ns + max(-((start_ns - TUESDAY_NS) // WEEK_NS), 0) * WEEK_NS,  # the same hour and day of the week
        frame_s=place_s,
        source={"gap_s": 4 * place_s, **aggregate},
        aggregator={"fleet": {"window_s": FLEET_S * REPLAY_S / length_s}},  # by the wall clock, on which all is faster
        settings=SETTINGS,
    )


def features(place_s: float) -> dict[str, Any]:
    """Return the [features] of the building: what was measured in the last 24 places, and when that is."""
    return {
        "rate_hz": 1.0 / place_s,
        "window_s": WINDOW_PLACES * place_s,
        "hop_s": place_s,
        "channels": [ROLE],
        "steps": [{"kind": "samples"}, {"kind": "calendar", "per": "window"}],
    }


def alarm(place_s: float) -> dict[str, Any]:
    """Return the [alarm] of every room: a rule for each way in which a sensor of a room goes wrong."""
    rules = {
        "model": {"kind": "point"},
        "step": {"kind": "point", "on": "values"},
        "noise": {"kind": "noise", "time_s": 6 * place_s},
        "slow": {"kind": "slow", "on": "level", "time_s": 12 * place_s},
        "stuck": {"kind": "stuck", "least_s": 3 * place_s},
        "profile": {"kind": "given"},
    }
    watched = [f"{ROLE}.sample[{WINDOW_PLACES - 1}]"]
    return {
        "false_alarms_per_day": PROMISED * HOUR_S / place_s,
        "rules": {"watched": watched, "lags": 6, "merge_s": 6 * place_s, "promise": "alarms", "rules": rules},
        "contextual": profile(),
    }


def profile() -> dict[str, Any]:
    """Return the [alarm.contextual] of every room, and the profile that is drawn."""
    return {"category": "thermostats", "least": 6}
