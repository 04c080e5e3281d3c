"""Sensor streams as gateways: rows that train, rows that give the alarm level, rows that are watched.

    skab           a gateway for each file of the pump; the valve is closed in each
    keti           a gateway for each room; healthy as far as is known, so faults are put in
    z24 sensors    a gateway for each sensor, or
    z24 setups     for each setup that trains: windows of 20 s
    munich         a gateway for each of three sensors: windows of 5 s

A row is a time step. Who trains on what is settled here, so that all methods see the same: the head of a stream, the
healthy setups. Half of the files, rooms or setups is for development; Munich, which has one healthy recording, has no
such half. Bridges are judged by windows of many rows, each of them a series of its own. Traffic makes a bridge move
more or less, which is no damage, so windows of accelerations are taken in units of their own deviation; forces and
strains stay as they are, since there the level tells.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field

from fedgate.config.settings import settings
from fedgate.firmware_sim.demo.faults import SENSOR_FAULTS, sensor_fault
from fedgate.firmware_sim.studies.datasets.series import bridges, keti, skab
from fedgate.firmware_sim.studies.datasets.series.bridges import HEALTHY, TESTED, TRAINED, Recording
from fedgate.firmware_sim.studies.datasets.series.files import Whole, missing_before
from fedgate.models.arrays import FEATURES, MISSING, NEW_SERIES, Arrays, Floats, generator

DataSet = Literal["skab", "keti", "z24 sensors", "z24 setups", "munich"]
Part = Literal["development", "reported"]
IGNORED, TRAIN, CALIBRATE, WATCHED = 0, 1, 2, 3

SKAB_FREE_TRAIN, SKAB_FREE_CALIBRATE = 0.5, 0.7  # of the file without anomalies
SKAB_MERGE_ROWS = 30
KETI_STEP_S, KETI_PER_DAY, KETI_LEAST_ROWS = 300, 288, 1_800
KETI_COLUMNS, KETI_POSSIBLE_C = (0, 1, 2, 4), (5.0, 45.0)  # no motion
KETI_TRAIN_ROWS, KETI_CALIBRATE_ROWS = 4 * KETI_PER_DAY, 6 * KETI_PER_DAY
KETI_MERGE_ROWS, KETI_BEFORE_ROWS, KETI_WARM_ROWS = 12, 24, 288
# How long each fault lasts, in rows.
KETI_LASTS = {"spike": 2, "stuck": 48, "drift": 72, "offset": 36, "noise": 24, "other time": 36}
TRAINED_SHARE = 0.6  # of the windows of a training recording, from its start; the others calibrate
Z24_EVERY, Z24_WINDOW_ROWS, Z24_SKIPPED_ROWS = 2, 1_024, 50  # of 100 Hz every second sample: 50 Hz, windows of 20 s
MUNICH_EVERY, MUNICH_WINDOW_ROWS = 10, 50  # of 100 Hz: 10 Hz, windows of 5 s
BRIDGE_HZ = 100.0


class Source(settings.Table):
    """Where streams come from.

    :param folder: below the folder of data; Munich's recordings come with the package.
    :param columns: of a room, those that a gateway sees; all where not given.
    :param channels: of a room, those that faults are put into.
    :param faults: how many of each kind into each of them, where they are reported; one for development.
    """

    data_set: DataSet
    folder: str = ""
    columns: tuple[int, ...] = ()
    channels: tuple[int, ...] = ()
    faults: int = Field(default=1, ge=1)


class Stretch(NamedTuple):
    """One series of a gateway: rows (n, F), or what each scores (n,); rows missing before each, whether a row is
    anomalous, and its role.

    Rows that train are the first of a stretch. `kind` says what the anomaly in it is. The healthy rows of a `copy`,
    into which a fault was put, are those of another stretch, and count only once.
    """

    values: Floats
    missing: Whole
    label: Whole
    role: Whole
    kind: str = ""
    copy: bool = False


Stretches = tuple[Stretch, ...]
Gateway = tuple[str, Stretches]  # by its name


class Split(NamedTuple):
    """Setups of a bridge that train and that are watched, and whether each of their windows is a series of its own."""

    trained: Collection[int]
    watched: Collection[int]
    is_apart: bool = True


Z24_SPLITS = {"development": Split((1, 2), (3,)), "reported": Split((1, 2, 3), (4, 5))}
MUNICH_SPLIT = Split((TRAINED,), (TESTED,), is_apart=False)


class Streams(NamedTuple):
    """A data set: the stretches of each gateway, seconds from one judged window to the next, and how scores become
    alarms.

    Two alarms with less than `merge` judged windows between them are one. A window has `window_rows`, of which the
    first `skipped_rows` do not count. In a `fleet` all gateways watch the same.
    """

    gateways: dict[str, Stretches]
    window_s: float
    merge: int
    window_rows: int = 1
    skipped_rows: int = 0
    fleet: bool = False


def load(source: Source, data: Path, part: Part) -> Streams:
    """Return the gateways of one half of a data set.

    Raises:
        StudyError: a file is missing or laid out otherwise.
    """
    folder = data / source.folder
    if source.data_set == "skab":
        return Streams(dict(_pump_gateways(folder, part)), 1.0, SKAB_MERGE_ROWS)
    if source.data_set == "keti":
        rooms = keti.load_rooms(folder, KETI_STEP_S, KETI_POSSIBLE_C, KETI_LEAST_ROWS)
        chosen = rooms[0 if part == "development" else 1 :: 2]
        gateways = {room.name: tuple(_room_stretches(room, source, part)) for room in chosen}
        return Streams(gateways, float(KETI_STEP_S), KETI_MERGE_ROWS)
    if source.data_set == "munich":
        gateways = dict(_by_sensor(*_munich(), MUNICH_SPLIT))
        return Streams(gateways, MUNICH_WINDOW_ROWS * MUNICH_EVERY / BRIDGE_HZ, 1, MUNICH_WINDOW_ROWS, fleet=True)
    (sensors, recordings), split = _z24(folder), Z24_SPLITS[part]
    by = _by_sensor(sensors, recordings, split) if source.data_set == "z24 sensors" else _by_setup(recordings, split)
    window_s = Z24_WINDOW_ROWS * Z24_EVERY / BRIDGE_HZ
    return Streams(dict(by), window_s, 1, Z24_WINDOW_ROWS, Z24_SKIPPED_ROWS, fleet=True)


def training_data(stretches: Stretches) -> Arrays:
    """Return the rows of a gateway that train, as a federated algorithm takes them."""
    trained = [each.role == TRAIN for each in stretches]
    x = [each.values[rows] for each, rows in zip(stretches, trained, strict=True)]
    missing = [each.missing[rows] for each, rows in zip(stretches, trained, strict=True)]
    return {FEATURES: np.concatenate(x), MISSING: np.concatenate(missing)}


def _pump_gateways(folder: Path, part: Part) -> Iterator[Gateway]:
    """Yield a gateway for each file, and one for half of that without anomalies."""
    is_first, count = part == "development", skab.FILES // 2
    for index in range(count) if is_first else range(count, skab.FILES):
        rows = skab.read_pump(folder / f"valve1/{index}.csv.gz")
        yield f"valve1/{index}", (_pump_stretch(rows, skab.TRAIN, skab.CALIBRATE)._replace(kind="valve"),)
    x, label, seconds = skab.read_pump(folder / skab.FREE)
    half = slice(len(x) // 2) if is_first else slice(len(x) // 2, None)
    train, calibrate = (int(share * len(x[half])) for share in (SKAB_FREE_TRAIN, SKAB_FREE_CALIBRATE))
    yield f"anomaly-free, {part}", (_pump_stretch((x[half], label[half], seconds[half]), train, calibrate),)


def _pump_stretch(rows: tuple[Floats, Whole, Whole], train: int, calibrate: int) -> Stretch:
    x, label, seconds = rows
    return Stretch(x, missing_before(seconds), label, _roles(np.arange(len(x)), train, calibrate))


def _roles(at: Whole, train: int, calibrate: int) -> Whole:
    return np.select([at < train, at < calibrate], [TRAIN, CALIBRATE], WATCHED)


def _room_stretches(room: keti.Room, source: Source, part: Part) -> Iterator[Stretch]:
    """Yield the recording of a room, and a copy for each fault, put in at a random time that is watched."""
    x, seen = room.x[:, KETI_COLUMNS], list(source.columns) or slice(None)
    role = _roles(room.steps, KETI_TRAIN_ROWS, KETI_CALIBRATE_ROWS)
    clean = Stretch(x, missing_before(room.steps), np.zeros(len(x), dtype=np.int64), role)
    yield clean._replace(values=x[:, seen])
    each, seed = (1, 0) if part == "development" else (source.faults, 1)
    rng = generator(seed, 0, room.name)
    deviation, watched = x[role != WATCHED].std(axis=0), np.flatnonzero(role == WATCHED)
    for channel in source.channels:
        for kind in SENSOR_FAULTS * each:
            first = int(rng.integers(watched[0] + KETI_BEFORE_ROWS, watched[-1] - KETI_LASTS[kind]))
            rows, away = slice(first, first + KETI_LASTS[kind]), KETI_PER_DAY // 2
            faulty = sensor_fault(x, channel, rows, kind, float(deviation[channel]), rng, away=away)
            yield _cut_out(clean._replace(values=faulty[:, seen], kind=kind, copy=True), rows)


def _cut_out(faulty: Stretch, rows: slice) -> Stretch:
    """Return the part of a faulty copy that matters: a day for the state to settle, two hours before, and the fault."""
    cut = slice(max(rows.start - KETI_WARM_ROWS, 0), rows.stop)
    at, missing = np.arange(cut.start, cut.stop), faulty.missing[cut].copy()
    missing[0] = NEW_SERIES
    role = np.where(at < rows.start - KETI_BEFORE_ROWS, IGNORED, WATCHED)
    label = (at >= rows.start).astype(np.int64)
    return faulty._replace(values=faulty.values[cut], missing=missing, label=label, role=role)


def _by_sensor(sensors: Iterable[str], recordings: list[Recording], split: Split) -> Iterator[Gateway]:
    for index, sensor in enumerate(sensors):
        alone = [each._replace(values=each.values[:, :, index : index + 1]) for each in recordings]
        yield sensor, tuple(_bridge_stretches(alone, split))


def _by_setup(recordings: list[Recording], split: Split) -> Iterator[Gateway]:
    """Yield a gateway for each setup that trains; it has all sensors, and all watch the same."""
    for setup in split.trained:
        yield f"setup {setup}", tuple(_bridge_stretches(recordings, split._replace(trained=(setup,))))


def _bridge_stretches(recordings: list[Recording], split: Split) -> Iterator[Stretch]:
    """Yield the windows (n, rows, S) of the setups of a split, one after the other."""
    for each in recordings:
        count, rows, width = each.values.shape
        if each.label == HEALTHY and each.setup in split.trained:
            role = np.where(np.arange(count) < round(TRAINED_SHARE * count), TRAIN, CALIBRATE)
        elif each.setup in split.watched:
            role = np.full(count, WATCHED)
        else:
            continue
        missing = np.zeros((count, rows), dtype=np.int64)
        missing[: count if split.is_apart else 1, 0] = NEW_SERIES
        label, kind = np.full(count * rows, each.label, dtype=np.int64), "" if each.label == HEALTHY else each.state
        yield Stretch(each.values.reshape(-1, width), missing.reshape(-1), label, np.repeat(role, rows), kind)


@lru_cache(maxsize=1)
def _z24(folder: Path) -> tuple[tuple[str, ...], list[Recording]]:
    sensors, _, recordings = bridges.read_recordings("z24", folder)
    windows = [_windows(each.values, Z24_EVERY, Z24_WINDOW_ROWS) for each in recordings]
    windows = [each - each.mean(axis=1, keepdims=True) for each in windows]
    windows = [each / each.std(axis=1, keepdims=True) for each in windows]
    return sensors, [each._replace(values=x) for each, x in zip(recordings, windows, strict=True)]


@lru_cache(maxsize=1)
def _munich() -> tuple[tuple[str, ...], list[Recording]]:
    """Return the windows of each recording, of the healthy one as two setups: what trains, and the rest."""
    sensors, _, recordings = bridges.read_recordings("munich", Path())
    labels, parts = {each.state: each.label for each in recordings}, list[Recording]()
    for state, values in bridges.join_setups(recordings).items():
        windows = _windows(values, MUNICH_EVERY, MUNICH_WINDOW_ROWS)
        cut = round(TRAINED_SHARE * len(windows)) if labels[state] == HEALTHY else 0
        parts.append(Recording(windows[:cut], state, TRAINED, labels[state]))
        parts.append(Recording(windows[cut:], state, TESTED, labels[state]))
    return sensors, parts


def _windows(values: Floats, every: int, rows: int) -> Floats:
    """Return windows (n, rows, S) of values (T, S), thinned after a low-pass filter."""
    from scipy.signal import decimate

    thin = np.asarray(decimate(values, every, axis=0))
    count = len(thin) // rows
    return thin[: count * rows].reshape(count, rows, -1)
