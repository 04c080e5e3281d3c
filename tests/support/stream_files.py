"""Small synthetic files in the layouts of the pump, the rooms, the Z24 bridge, an air handling unit, bearings and an
office.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from fedgate.firmware_sim.studies.datasets.series import hvac, skab
from fedgate.firmware_sim.studies.datasets.series.memory_tasks import AIR_INPUTS, AIR_TARGET, BEARING_STATES
from fedgate.models.arrays import Floats, generator

SKAB_ROWS, SKAB_FAULT = 620, slice(520, 600)
ROOMS, ROOM_ROWS = 4, 1_900
SETUPS, WINDOWS, WINDOW_SAMPLES = 5, 10, 2_048
STATES = {1: 0, 2: 0, 5: 1, 8: -1}


def waves(rng: np.random.Generator, count: int, width: int, period: float) -> Floats:
    """Waves of one period with noise, (count, width)."""
    phases = rng.uniform(0.0, 6.3, width)
    angle = 2.0 * np.pi * np.arange(count)[:, None] / period + phases
    return np.asarray(np.sin(angle) + 0.1 * rng.normal(size=(count, width)))


def write_table(path: Path, header: list[str], rows: list[list[str]], separator: str = ",") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(separator.join(line) + "\n" for line in (header, *rows))


def write_skab(folder: Path) -> None:
    """Sixteen files in which the flow drops while the valve is closed, a second missing in each, and one without."""
    rng = generator(0, 0, "pump")
    for index in range(skab.FILES + 1):
        x, label = waves(rng, SKAB_ROWS, len(skab.CHANNELS), 40.0), np.zeros(SKAB_ROWS, dtype=np.int64)
        free = index == skab.FILES
        if not free:
            x[SKAB_FAULT, -1] -= 4.0
            label[SKAB_FAULT] = 1
        seconds = np.arange(SKAB_ROWS) + (np.arange(SKAB_ROWS) >= 300)
        stamps = (np.datetime64("2020-03-01T12:00:00") + seconds).astype(str).tolist()
        rows = [
            [stamp.replace("T", " "), *(f"{value:.5f}" for value in row), *([] if free else [f"{each}.0"])]
            for stamp, row, each in zip(stamps, x.tolist(), label.tolist(), strict=True)
        ]
        path = folder / ("anomaly-free/anomaly-free.csv.gz" if free else f"valve1/{index}.csv.gz")
        write_table(path, ["datetime", *skab.CHANNELS, *([] if free else ["anomaly"])], rows, ";")


def write_keti(folder: Path) -> None:
    """Rooms of five channels, a row every five minutes, with an hour missing on the second day."""
    folder.mkdir(parents=True)
    rng = generator(0, 0, "rooms")
    place = np.concatenate([np.arange(400), np.arange(412, ROOM_ROWS + 12)])
    for index in range(ROOMS):
        x = 20.0 + waves(rng, ROOM_ROWS + 12, 5, 288.0)[place]
        np.savez(folder / f"room{index}.npz", t=1_000 + 300 * place, x=x.astype(np.float32))


def write_z24(folder: Path) -> None:
    """Two healthy states, a damaged one with other periods, and one that is neither."""
    folder.mkdir(parents=True)
    rng = generator(0, 0, "bridge")
    for state, label in STATES.items():
        period = 20.0 if label < 1 else 9.0
        acc = np.stack([waves(rng, WINDOWS * WINDOW_SAMPLES, 2, period) for _ in range(SETUPS)])
        scale = np.full((SETUPS, 2), 1e-4)
        np.savez(
            folder / f"state{state:02d}.npz",
            acc=np.round(acc / 1e-4).astype(np.int16),
            scale=scale,
            label=label,
            setups=np.arange(1, SETUPS + 1),
            fs=100.0,
            channels=["ref1", "ref2"],
        )


def write_memory(folder: Path) -> None:
    """An air handling unit whose output lags its valve, bearings that differ in their tone, and a room that is used."""
    rng = generator(0, 0, "memory")
    rows = []
    for day in range(8):
        x = rng.normal(size=(1_440, len(AIR_INPUTS)))
        y = np.convolve(x[:, 9], np.exp(-np.arange(60) / 10.0))[:1_440]
        stamps = (np.datetime64(f"2009-01-{1 + 2 * day:02d}T00:00") + np.arange(1_440)).astype(str).tolist()
        truth, fault = ("1", "stuck") if day == 0 else ("0", hvac.HEALTHY)
        for stamp, inputs, output in zip(stamps[:360], x[:360].tolist(), y[:360].tolist(), strict=True):
            rows.append([stamp, *(f"{value:.4f}" for value in inputs), f"{output:.4f}", truth, fault])
    header = [hvac.TIME, *AIR_INPUTS, AIR_TARGET, hvac.TRUTH, hvac.KIND]
    write_table(folder / "hvac_fdd" / hvac.UNITS["multi-zone"], header, rows)
    (folder / "cwru_bearing").mkdir()
    for index, name in enumerate(BEARING_STATES):
        acc = np.round(1_000.0 * waves(rng, 10_000, 2, 16.0 + 5.0 * index)).astype(np.int16)
        np.savez(
            folder / f"cwru_bearing/{name}.npz",
            acc=acc,
            scale=np.full(2, 1e-3),
            label=int(index > 0),
            fs=48_000.0,
            channels=["drive", "fan"],
        )
    for name, count in (("datatraining", 900), ("datatest", 400)):
        used = (np.arange(count) // 90) % 2
        co2 = np.convolve(used, np.exp(-np.arange(200) / 15.0))[:count] + 0.1 * rng.normal(size=count)
        room = [
            [str(k), f"2015-02-04 {k}", "21.5", f"{rng.normal():.3f}", "0", f"{co2[k]:.3f}", "0", str(used[k])]
            for k in range(count)
        ]
        header = ["date", "Temperature", "Humidity", "Light", "CO2", "HumidityRatio", "Occupancy"]
        write_table(folder / f"uci_occupancy/{name}.csv.gz", header, room)
