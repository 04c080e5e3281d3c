"""Small synthetic files in the layouts that the studies of smart buildings read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedgate.firmware_sim.studies.datasets.convert import write_lines
from fedgate.firmware_sim.studies.datasets.series.building import AIR_POINTS
from fedgate.firmware_sim.studies.datasets.series.hvac import HEALTHY, INTENSITY, KIND, TIME, TRUTH, UNITS
from fedgate.firmware_sim.studies.datasets.tiny import waves
from fedgate.models.arrays import Floats, generator

ROOMS, ROOM_DAYS, FIVE_MIN_S = 7, 5, 300
GAP = slice(700, 760)  # rows of five minutes that are missing
NODES, RUNS, RUN_S = {"A": 2, "C": 3}, 8, 2_400
DISPUTED = "2007-08-30"
DAYS = {
    "multi-zone": [("2007-08-28", "leak"), ("2007-08-29", "leak"), (DISPUTED, "disputed")]
    + [(f"2008-09-{day:02d}", HEALTHY) for day in range(1, 9)],
    "single-zone": [("2017-04-01", HEALTHY)] + [(f"2017-03-{day:02d}", "stuck") for day in range(11, 19)],
}


def write_buildings(folder: Path) -> Path:
    """Write all of them below a folder and return it."""
    _write_rooms(folder / "keti_rooms")
    _write_sites(folder / "room_climate")
    _write_office(folder / "uci_occupancy")
    _write_air(folder / "hvac_fdd")
    return folder


def _write_rooms(folder: Path) -> None:
    """Rooms whose CO2 swings with the day, so that where it goes can be told; one room is too short."""
    folder.mkdir(parents=True)
    rng = generator(0, 0, "rooms")
    for index in range(ROOMS + 1):
        count = ROOM_DAYS * 288 if index < ROOMS else 288
        t = np.delete(np.arange(count), GAP) if index == 0 else np.arange(count)
        swing = np.sin(2.0 * np.pi * (t / 48.0 + index / 9.0))
        x = np.stack([500.0 + 100.0 * swing, 40.0 + swing, 50.0 + 40.0 * swing, swing > 0.5, 22.0 + swing], axis=1)
        x += np.array([5.0, 0.1, 0.5, 0.0, 0.05]) * rng.normal(size=x.shape)
        np.savez(folder / f"room{index:02d}.npz", t=1_000_000 + FIVE_MIN_S * t, x=x.astype(np.float32))


def _write_sites(folder: Path) -> None:
    """Runs in which somebody comes half-way: it gets lighter and slowly warmer."""
    folder.mkdir(parents=True)
    rng = generator(0, 0, "sites")
    for site, nodes in NODES.items():
        columns: dict[str, list[Floats]] = {}
        for run in range(1, RUNS + 1):
            seconds = np.arange(0, RUN_S, 4.0)
            there = seconds >= RUN_S * rng.uniform(0.3, 0.6)
            for node in range(1, nodes + 1):
                warm = 21.0 + np.cumsum(there) * 0.005 + 0.05 * rng.normal(size=len(seconds))
                light = np.where(there, 300.0, 20.0) * rng.uniform(0.8, 1.2, len(seconds))
                x = np.stack([warm, 40.0 + rng.normal(size=len(seconds)), light, light], axis=1)
                named: dict[str, Any] = {
                    "measurement": run,
                    "t_ms": 1e6 * run + 1e3 * seconds,
                    "node": node,
                    "occupants": there,
                }
                for name, value in named.items():
                    columns.setdefault(name, []).append(np.broadcast_to(value, seconds.shape))
                columns.setdefault("x", []).append(x)
        arrays = {name: np.concatenate(parts) for name, parts in columns.items()}
        whole: dict[str, Any] = {name: arrays[name].astype(np.int64) for name in arrays if name != "x"}
        np.savez(folder / f"location_{site}.npz", x=arrays["x"].astype(np.float32), **whole)


def _write_office(folder: Path) -> None:
    rng = generator(0, 0, "office")
    for name, minutes in (("datatraining", 900), ("datatest", 500)):
        there = np.arange(minutes) // 120 % 2 == 1
        stamps = (np.datetime64("2015-02-04T17:51:00") + 60 * np.arange(minutes)).astype(str).tolist()
        rows = [
            [
                str(row),
                stamp.replace("T", " "),
                f"{21 + at + rng.normal() / 9:.3f}",
                "30",
                f"{300 * at}",
                "500",
                f"{at}",
            ]
            for row, (stamp, at) in enumerate(zip(stamps, there.astype(int).tolist(), strict=True))
        ]
        write_lines(
            folder / f"{name}.csv.gz", [["date", "Temperature", "Humidity", "Light", "CO2", "Occupancy"], *rows]
        )


def _write_air(folder: Path) -> None:
    """Units whose valves say something else on faulty days; an empty cell, and a day with contradicting labels."""
    rng = generator(0, 0, "air")
    for unit, days in DAYS.items():
        rows = []
        for day, kind in days:
            faulty = kind not in (HEALTHY, "disputed")
            x = rng.normal(size=(480, len(AIR_POINTS)))
            x[:, 9] += 3.0 * faulty
            stamps = (np.datetime64(f"{day}T00:00") + 3 * np.arange(480)).astype(str).tolist()
            for stamp, row in zip(stamps, x.tolist(), strict=True):
                rows.append([stamp, *(f"{value:.3f}" for value in row), str(int(faulty)), kind])
        rows[5][3] = ""
        write_lines(folder / UNITS[unit], [[TIME, *AIR_POINTS, TRUTH, KIND], *rows])


HOURS, WATCHED_DAYS = 1_600, 10
FAILURE = (1_200, 1_260)


def write_nab(folder: Path) -> None:
    """Two temperatures by the hour, that of the machine by five minutes, and when each fails."""
    rng, windows = generator(0, 0, "nab"), {}
    for name, step in (("machine", 5), ("ambient", 60)):
        values = 70.0 + waves(rng, HOURS, 1, 24.0)[:, 0]
        values[slice(*FAILURE)] += 9.0
        stamps = np.datetime64("2013-07-04T00:00:00") + np.arange(HOURS) * np.timedelta64(step, "m")
        told = [str(stamp).replace("T", " ") for stamp in stamps]
        stem = f"realKnownCause_{name}_temperature_system_failure.csv"
        rows = [[stamp, f"{value:.4f}"] for stamp, value in zip(told, values.tolist(), strict=True)]
        write_lines(folder / f"{stem}.gz", [["timestamp", "value"], *rows])
        windows[stem] = [[f"{told[FAILURE[0]]}.000000", f"{told[FAILURE[1]]}.000000"]]
    (folder / "anomaly_windows.json").write_text(json.dumps(windows), encoding="utf-8")


def write_watched_air(folder: Path) -> None:
    """Days of an air handler by the minute: one faulty, then healthy ones, one of them disputed."""
    rng, rows = generator(0, 0, "watched air"), []
    for day in range(WATCHED_DAYS):
        x = 70.0 + waves(rng, 1_440, 2, 1_440.0) + (8.0 if day == 0 else 0.0)
        fault, truth = ("leak", int(day == 0)) if day in (0, 4) else (HEALTHY, 0)
        for minute, (supply, mixed) in enumerate(x.tolist()):
            stamp = f"2009-05-{day + 1:02d}T{minute // 60:02d}:{minute % 60:02d}"
            rows.append([stamp, f"{supply:.3f}", "55", f"{mixed:.3f}", str(truth), fault, ""])
    names = ["AHU: Supply Air Temperature", "AHU: Set Point", "AHU: Mixed Air Temperature"]
    write_lines(folder / UNITS["multi-zone"], [[TIME, *names, TRUTH, KIND, INTENSITY], *rows])
