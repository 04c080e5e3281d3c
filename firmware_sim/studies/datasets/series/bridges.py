"""The recordings of the bridges study as windows: features by sensor, the true state, and the setup they come from.

Three data sets, each in the layout of its npz files:

    z24      state01.npz .. state17.npz: acc (setups, T, sensors) int16, scale, setups, fs, label; 1 and 2 are healthy
    cwru     one file for each fault: acc (T, 2) int16, scale (2,), fs, label; one healthy recording
    munich   comes with the package: forces and strain (T, 3), healthy and with a support lowered twice

Setups are independent recordings of the same sensors. Where there is one healthy recording only, its early part counts
as setup 1 and the rest, like all damaged recordings, as setup 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedgate.config.settings import settings
from fedgate.firmware_sim.engine.spec import StudyError
from fedgate.firmware_sim.recordings import shipped
from fedgate.firmware_sim.studies.datasets.series.files import read_arrays
from fedgate.models.arrays import Floats
from fedgate.models.features.spec import FeatureSpec, extract_many

DataSet = Literal["z24", "cwru", "munich"]
HEALTHY, DAMAGED = 0, 1
HEALTHY_SHARE = 0.6  # of the one healthy recording, from its start, trains
TRAINED, TESTED = 1, 2  # the setups of data sets that have none


class Spectrum(settings.Table):
    """One way to cut windows and to measure them; part of a study's options."""

    window_s: float = Field(gt=0)
    low_hz: float = Field(ge=0)
    high_hz: float = Field(gt=0)
    segment_s: float = Field(gt=0)
    overlap: int = Field(default=1, ge=1)  # a training window starts every 1/overlap of a window
    levels: bool = False  # level and deviation too, for sensors whose level tells damage


class Windows(NamedTuple):
    """Windows of a bridge: features x (n, S, F) of S sensors, and of each window its state, setup and label, and where
    in its recording it starts and ends, from 0 to 1.
    """

    x: Floats
    state: NDArray[np.str_]
    setup: NDArray[np.int64]
    label: NDArray[np.int64]
    start: Floats
    end: Floats


class Bridge(NamedTuple):
    """All windows of one data set: healthy ones that overlap, to train on, and all that do not, to score."""

    sensors: tuple[str, ...]
    fine: Windows
    apart: Windows


class Recording(NamedTuple):
    """One recording of all sensors, in one state, as part of a setup."""

    values: Floats  # (T, S)
    state: str
    setup: int
    label: int


def load(name: DataSet, folder: Path, spectrum: Spectrum) -> Bridge:
    """Return the windows of a data set; raises `StudyError` where a file is missing or laid out otherwise."""
    return _load(name, folder, spectrum.model_dump_json())


@lru_cache(maxsize=8)
def _load(name: DataSet, folder: Path, spectrum_json: str) -> Bridge:
    spectrum = Spectrum.model_validate_json(spectrum_json)
    sensors, rate_hz, recordings = read_recordings(name, folder)
    healthy = tuple(each for each in recordings if each.label == HEALTHY)
    fine = _windows(healthy, _spec(spectrum, rate_hz, spectrum.overlap))
    return Bridge(sensors, fine, _windows(recordings, _spec(spectrum, rate_hz, 1)))


@lru_cache(maxsize=1)
def read_recordings(name: DataSet, folder: Path) -> tuple[tuple[str, ...], float, tuple[Recording, ...]]:
    """Return sensors, rate in Hz and recordings; raises `StudyError` where a file is missing or laid out otherwise."""
    return {"z24": _z24, "cwru": _cwru, "munich": _munich}[name](folder)


def join_setups(recordings: Iterable[Recording]) -> dict[str, Floats]:
    """Return by state the values (T, S) of its setups one after the other: of data sets without any the recording."""
    parts: dict[str, list[Floats]] = {}
    for each in recordings:
        parts.setdefault(each.state, []).append(each.values)
    return {state: np.concatenate(values) for state, values in parts.items()}


def _spec(spectrum: Spectrum, rate_hz: float, overlap: int) -> FeatureSpec:
    welch = {
        "kind": "welch",
        "segment_s": _whole_s(spectrum.segment_s, rate_hz),
        "low_hz": spectrum.low_hz,
        "high_hz": spectrum.high_hz,
        "log": True,
        "normalise": True,
    }
    window_s = _whole_s(spectrum.window_s, rate_hz)
    steps: list[dict[str, Any]] = [{"kind": "level"}, {"kind": "deviation"}] if spectrum.levels else []
    hop_s = _whole_s(window_s / overlap, rate_hz)
    given = {
        "rate_hz": rate_hz,
        "window_s": window_s,
        "hop_s": hop_s,
        "channels": ("sensor",),
        "steps": [*steps, welch],
    }
    return FeatureSpec.model_validate(given)


def _whole_s(duration_s: float, rate_hz: float) -> float:
    return round(duration_s * rate_hz) / rate_hz


def _windows(recordings: tuple[Recording, ...], spec: FeatureSpec) -> Windows:
    parts = []
    for each in recordings:
        starts = np.arange(0, len(each.values) - spec.samples + 1, spec.hop_samples)
        if len(starts) == 0:
            continue
        cut = np.lib.stride_tricks.sliding_window_view(each.values, spec.samples, axis=0)[starts]  # (n, S, T)
        x = np.stack([extract_many(spec, cut[:, sensor, :, None]) for sensor in range(cut.shape[1])], axis=1)
        same = (np.full(len(x), value) for value in (each.state, each.setup, each.label))
        places = (starts / len(each.values), (starts + spec.samples) / len(each.values))
        parts.append((x.astype(np.float64), *same, *places))
    if not parts:
        raise StudyError(f"no recording holds a window of {spec.window_s:g} s; choose a shorter one")
    return Windows(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _z24(folder: Path) -> tuple[tuple[str, ...], float, tuple[Recording, ...]]:
    paths = sorted(folder.glob("state*.npz"))
    if not paths:
        raise StudyError(f"{folder}: no state01.npz .. state17.npz there; expected the Z24 recordings")
    recordings: list[Recording] = []
    sensors: tuple[str, ...] = ()
    rate_hz = 0.0
    for path in paths:
        acc, scale, setups, label, fs, channels = read_arrays(path, "acc", "scale", "setups", "label", "fs", "channels")
        if int(label) not in (HEALTHY, DAMAGED):
            continue  # a state that is neither is left out
        sensors, rate_hz = tuple(str(channel) for channel in channels), float(fs)
        for index, setup in enumerate(setups):
            state = path.stem.removeprefix("state")
            recordings.append(Recording(acc[index] * scale[index], state, int(setup), int(label)))
    return sensors, rate_hz, tuple(recordings)


def _cwru(folder: Path) -> tuple[tuple[str, ...], float, tuple[Recording, ...]]:
    paths = sorted(folder.glob("*.npz"))
    if not paths:
        raise StudyError(f"{folder}: no normal.npz and no fault there; expected the CWRU recordings")
    recordings: list[Recording] = []
    sensors: tuple[str, ...] = ()
    rate_hz = 0.0
    for path in paths:
        acc, scale, label, fs, channels = read_arrays(path, "acc", "scale", "label", "fs", "channels")
        sensors, rate_hz = tuple(str(channel) for channel in channels), float(fs)
        recordings += _in_time(acc * scale, path.stem, int(label))
    return sensors, rate_hz, tuple(recordings)


def _munich(folder: Path) -> tuple[tuple[str, ...], float, tuple[Recording, ...]]:
    del folder  # the recordings come with the package
    recordings: list[Recording] = []
    for name, label in (("ref_load_01", HEALTHY), ("lowered_load_01", DAMAGED), ("lowered_load_02", DAMAGED)):
        data, fs, channels = read_arrays(shipped(f"munich_bridge/{name}"), "data", "fs", "channels")
        recordings += _in_time(data.astype(np.float64), name, label)
    return tuple(str(channel) for channel in channels), float(fs), tuple(recordings)


def _in_time(values: Floats, state: str, label: int) -> Iterator[Recording]:
    """Yield a recording of a data set without setups: a healthy one in two parts, so that the early one trains."""
    if label != HEALTHY:
        yield Recording(values, state, TESTED, label)
        return
    cut = int(HEALTHY_SHARE * len(values))
    yield Recording(values[:cut], state, TRAINED, label)
    yield Recording(values[cut:], state, TESTED, label)
