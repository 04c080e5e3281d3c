"""Accelerations, forces and strains of two bridges as streams: windows of raw samples, each a series of its own.

Traffic makes a bridge move more or less, which is no damage, so windows of accelerations are taken in units of their
own deviation: what is left is how the bridge moves. Forces and strains stay as they are, since there the level tells.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from fedgate.firmware_sim.recordings import shipped
from fedgate.firmware_sim.studies.datasets.bridges import DAMAGED, HEALTHY
from fedgate.firmware_sim.studies.engine.study import StudyError
from fedgate.firmware_sim.studies.esn_streams.rows import CALIBRATE, TRAIN, WATCHED, Gateway, Streams, Stretch
from fedgate.models.arrays import NEW_SERIES, Floats

Bridge = Literal["sensors", "setups", "munich"]

RATE_HZ = 100.0
TRAINED_SHARE = 0.6  # of the windows of a training recording, from its start; the others calibrate
Z24_EVERY, Z24_WINDOW_ROWS, Z24_SKIPPED_ROWS = 2, 1_024, 50  # of 100 Hz every second sample: 50 Hz, windows of 20 s
Z24_SETUPS = {True: ((1, 2), (3,)), False: ((1, 2, 3), (4, 5))}  # in development or not: trained on, watched
MUNICH_EVERY, MUNICH_WINDOW_ROWS, MUNICH_SKIPPED_ROWS = 10, 50, 0  # of 100 Hz: 10 Hz, windows of 5 s
MUNICH_HEALTHY = "ref_load_01"
MUNICH_DAMAGED = ("lowered_load_01", "lowered_load_02")


class _Recording(NamedTuple):
    """Windows of one recording; where they are `apart` each is in units of its own, and a series of its own."""

    windows: Floats  # (n, rows, S)
    setup: int
    state: str
    label: int
    apart: bool


def bridge_gateways(name: Bridge, folder: Path, *, development: bool) -> Streams:
    """Return the gateways of a bridge; of Munich, which has one healthy recording, there is no development half."""
    if name == "munich":
        channels, recordings = _munich()
        gateways = _by_sensor(channels, recordings, (1,), (2,))
        return Streams(gateways, MUNICH_EVERY / RATE_HZ, 1, MUNICH_WINDOW_ROWS, MUNICH_SKIPPED_ROWS, fleet=True)
    channels, recordings = _z24(folder)
    trained, watched = Z24_SETUPS[development]
    if name == "sensors":
        gateways = _by_sensor(channels, recordings, trained, watched)
    else:  # all sensors in each gateway, all of which watch the same setups
        gateways = tuple(Gateway(f"setup {k}", tuple(_stretches(recordings, (k,), watched))) for k in trained)
    return Streams(gateways, Z24_EVERY / RATE_HZ, 1, Z24_WINDOW_ROWS, Z24_SKIPPED_ROWS, fleet=True)


def _by_sensor(
    channels: tuple[str, ...], recordings: list[_Recording], trained: tuple[int, ...], watched: tuple[int, ...]
) -> tuple[Gateway, ...]:
    """Return a gateway for each sensor, with the recordings of all setups."""
    gateways = []
    for index, channel in enumerate(channels):
        narrow = [each._replace(windows=each.windows[:, :, index : index + 1]) for each in recordings]
        gateways.append(Gateway(channel, tuple(_stretches(narrow, trained, watched))))
    return tuple(gateways)


def _stretches(recordings: list[_Recording], trained: tuple[int, ...], watched: tuple[int, ...]) -> Iterator[Stretch]:
    for each in recordings:
        count, rows, width = each.windows.shape
        if each.label == HEALTHY and each.setup in trained:
            role = np.where(np.arange(count) < round(TRAINED_SHARE * count), TRAIN, CALIBRATE)
        elif each.setup in watched:
            role = np.full(count, WATCHED)
        else:
            continue
        missing = np.zeros((count, rows), dtype=np.int64)
        missing[: count if each.apart else 1, 0] = NEW_SERIES
        label = np.full(count * rows, each.label, dtype=np.int64)
        x = each.windows.reshape(count * rows, width)
        kind = "" if each.label == HEALTHY else each.state
        yield Stretch(x, missing.reshape(-1), label, np.repeat(role, rows), kind)


def _cut(values: Floats, every: int, rows: int, *, own_units: bool) -> Floats:
    """Return windows (n, rows, S) of values (T, S), thinned after a low-pass filter."""
    from scipy.signal import decimate

    thin = np.asarray(decimate(values, every, axis=0))
    count = len(thin) // rows
    windows = thin[: count * rows].reshape(count, rows, -1)
    if own_units:
        windows = windows - windows.mean(axis=1, keepdims=True)
        windows = windows / windows.std(axis=1, keepdims=True)
    return np.asarray(windows)


@lru_cache(maxsize=1)
def _z24(folder: Path) -> tuple[tuple[str, ...], list[_Recording]]:
    paths = sorted(folder.glob("state*.npz"))
    if not paths:
        raise StudyError(f"{folder}: no state01.npz .. state17.npz there; expected the Z24 recordings")
    recordings: list[_Recording] = []
    channels: tuple[str, ...] = ()
    for path in paths:
        with np.load(path) as file:
            acc, scale, label, setups = (file[key] for key in ("acc", "scale", "label", "setups"))
            channels = tuple(str(channel) for channel in file["channels"])
        if int(label) not in (HEALTHY, DAMAGED):
            continue  # a state that is neither is left out
        for index, setup in enumerate(setups):
            windows = _cut(acc[index] * scale[index], Z24_EVERY, Z24_WINDOW_ROWS, own_units=True)
            recordings.append(_Recording(windows, int(setup), path.stem.removeprefix("state"), int(label), apart=True))
    return channels, recordings


@lru_cache(maxsize=1)
def _munich() -> tuple[tuple[str, ...], list[_Recording]]:
    recordings: list[_Recording] = []
    channels: tuple[str, ...] = ()
    for name in (MUNICH_HEALTHY, *MUNICH_DAMAGED):
        with np.load(shipped(f"munich_bridge/{name}")) as file:
            values, channels = file["data"].astype(np.float64), tuple(str(channel) for channel in file["channels"])
        windows = _cut(values, MUNICH_EVERY, MUNICH_WINDOW_ROWS, own_units=False)
        if name != MUNICH_HEALTHY:
            recordings.append(_Recording(windows, 2, name, DAMAGED, apart=False))
            continue
        cut = round(TRAINED_SHARE * len(windows))
        for setup, part in ((1, windows[:cut]), (2, windows[cut:])):
            recordings.append(_Recording(part, setup, name, HEALTHY, apart=False))
    return channels, recordings
