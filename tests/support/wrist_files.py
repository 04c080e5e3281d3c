"""Small synthetic recordings of a wrist, in the layout of Stress-Predict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedgate.firmware_sim.studies.datasets.stress_predict import FOLDER
from fedgate.models.arrays import Floats, generator

DURATION_S = 960
STRESSED = ((300, 480), (720, 840))
RATES_HZ = {"bvp": 64.0, "acc": 32.0, "eda": 4.0, "temp": 4.0, "hr": 1.0}


def write_wrists(folder: Path, count: int) -> Path:
    """Write so many subjects below a folder, S02.npz and on, and return it."""
    (folder / FOLDER).mkdir(parents=True)
    for number in range(count):
        np.savez(folder / FOLDER / f"S{number + 2:02d}.npz", **wrist(number))
    return folder


def wrist(number: int) -> dict[str, Any]:
    """Return the arrays of a subject whose skin conductance and heart rate rise under stress."""
    rng = generator(0, 0, f"wrist-{number}")
    second = np.arange(DURATION_S)
    label = np.zeros(DURATION_S, dtype=np.int8)
    for start_s, stop_s in STRESSED:
        label[(second >= start_s + 5 * number) & (second < stop_s)] = 1
    felt = np.convolve(label, np.exp(-np.arange(60) / 20.0) / 20.0)[:DURATION_S]

    def at(rate_hz: float) -> Floats:
        return np.asarray(np.interp(np.arange(round(DURATION_S * rate_hz)) / rate_hz, second, felt))

    rate = 65.0 + 2.0 * number + 12.0 * at(64.0) + np.repeat(rng.normal(0.0, 3.0, DURATION_S), 64)
    wave = 40.0 * np.sin(2.0 * np.pi * np.cumsum(rate / 60.0) / 64.0) + rng.normal(0.0, 3.0, len(rate))
    drift = rng.normal(0.0, 0.02, DURATION_S * 4).cumsum()
    arrays: dict[str, Any] = {
        "bvp": np.round(wave / 0.05).astype(np.int16),
        "acc": rng.normal(0.0, 2.0, (DURATION_S * 32, 3)).astype(np.int8),
        "eda": (number + 2.0 + 1.5 * at(4.0) + drift).astype(np.float32),
        "temp": (33.0 - 0.5 * at(4.0)).astype(np.float32),
        "hr": (65.0 + 2.0 * number + 12.0 * felt[10:]).astype(np.float32),
    }
    label[:9] = -1
    arrays |= {f"{name}_fs": rate_hz for name, rate_hz in RATES_HZ.items()}
    arrays |= {f"{name}_t0": 1.5e9 + (10.0 if name == "hr" else 0.0) for name in RATES_HZ}
    return {**arrays, "label_1hz": label, "label_t0": 1.5e9, "bvp_scale": 0.05}
