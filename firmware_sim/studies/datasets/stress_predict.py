"""Stress-Predict's recordings (Iqbal et al., Sensors 22 (2022) 8135) as rows of features, by the way of the field.

S02.npz .. S17.npz, one subject each: eda, bvp (times bvp_scale), temp, hr, acc (T, 3), of each its rate `*_fs` and
start `*_t0`, and label_1hz: 1 in a stress task, 0 outside, -1 where nobody said. Blocks of all streams go through the
same `fedgate.models.windows.grid` and `fedgate.models.features.spec` as on a gateway; a window has the label of its
last second.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedgate.firmware_sim.engine.spec import StudyError
from fedgate.models.arrays import FEATURES, Floats
from fedgate.models.features.physiology import CLIP, moving_standardised
from fedgate.models.features.spec import FeatureSpec, extract_many
from fedgate.models.federated.protocol.algorithm import normalise
from fedgate.models.windows.grid import Block, Lost, StreamSpec, Window, push, start

FOLDER = "streams/stress_predict_e4"  # below the folder of data
UNKNOWN = -1
BLOCK_S = 30.0
HELD_S = 3.0  # for which a reading of the device's own heart rate, one a second, stays valid
BRIDGED_S = 1.0  # between two samples of the slower streams
Units = Literal["recording", "commissioning", "moving"]
# Array in the file and the channels it brings; the arrays' rates differ.
STREAMS: dict[str, StreamSpec] = {
    "bvp": StreamSpec(name="bvp", channels=("bvp",)),
    "acc": StreamSpec(name="acc", channels=("x", "y", "z")),
    "eda": StreamSpec(name="eda", channels=("eda",), gap_s=BRIDGED_S),
    "temp": StreamSpec(name="temp", channels=("temperature",), gap_s=BRIDGED_S),
    "hr": StreamSpec(name="hr", channels=("device",), fill="hold", gap_s=HELD_S),
}


class Subject(NamedTuple):
    """One subject's windows in their order: features x (n, F), label y (n,), and the end of each since the start."""

    name: str
    elapsed_s: Floats
    x: Floats
    y: NDArray[np.int64]

    @property
    def known(self) -> NDArray[np.bool_]:
        """Which windows (n,) somebody labelled."""
        return np.asarray(self.y != UNKNOWN)


def load(folder: Path, spec: FeatureSpec) -> tuple[Subject, ...]:
    """Return all subjects; raises `StudyError` where there is none, or a file is laid out otherwise or has gaps."""
    return _load(folder, spec.model_dump_json())


@lru_cache(maxsize=2)
def _load(folder: Path, spec_json: str) -> tuple[Subject, ...]:
    paths = sorted(folder.glob("S*.npz"))
    if not paths:
        raise StudyError(f"{folder}: no S02.npz .. S17.npz there; expected the Stress-Predict recordings")
    spec = FeatureSpec.model_validate_json(spec_json)
    return tuple(_subject(path, spec) for path in paths)


def _subject(path: Path, spec: FeatureSpec) -> Subject:
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    expected = ["label_1hz", "label_t0", "bvp_scale", *(f"{n}{end}" for n in STREAMS for end in ("", "_t0", "_fs"))]
    missing = [name for name in expected if name not in arrays]
    if missing:
        raise StudyError(f"{path}: array {missing[0]!r} is missing; expected {', '.join(expected)}")
    ends_s, x = _measured(path, spec, _blocks(arrays))
    last = np.ceil(ends_s - 1e-6).astype(np.int64) - 1  # the second in which a window ends
    labels = arrays["label_1hz"].astype(np.int64)
    within = (last >= 0) & (last < len(labels))
    y = np.where(within, labels[np.clip(last, 0, len(labels) - 1)], UNKNOWN)
    if not {0, 1} <= set(y.tolist()):
        raise StudyError(f"{path}: labels {sorted(set(y.tolist()))} of its windows; expected rest, 0, and stress, 1")
    return Subject(path.stem, ends_s, x, y)


def _blocks(arrays: dict[str, Any]) -> list[Block]:
    """Return all streams in pieces, in the order of their times since the first label."""
    blocks = []
    for name in STREAMS:
        values = arrays[name].astype(np.float64).reshape(len(arrays[name]), -1)
        if name == "bvp":
            values *= float(arrays["bvp_scale"])
        rate_hz, t_s = float(arrays[f"{name}_fs"]), float(arrays[f"{name}_t0"] - arrays["label_t0"])
        count = max(round(BLOCK_S * rate_hz), 1)
        for at in range(0, len(values), count):
            t_ns = round((t_s + at / rate_hz) * 1e9)
            blocks.append(Block(name, t_ns, rate_hz, values[at : at + count]))
    return sorted(blocks, key=lambda block: block.t_ns)


def _measured(path: Path, spec: FeatureSpec, blocks: list[Block]) -> tuple[Floats, Floats]:
    """Return the ends (n,) in seconds and the features (n, F) of all windows."""
    state = start(spec, list(STREAMS.values()))
    starts_ns: list[int] = []
    rows: list[Floats] = []
    for block in blocks:
        state, events = push(state, block)
        lost = [event for event in events if isinstance(event, Lost)]
        if lost:
            raise StudyError(f"{path}: {lost[0].t_ns / 1e9:.0f} s after the start {lost[0].reason}; expected no gaps")
        windows = [event for event in events if isinstance(event, Window)]
        if windows:
            starts_ns += [window.t_ns for window in windows]
            rows.append(extract_many(spec, np.stack([window.values for window in windows])).astype(np.float64))
    if not rows:
        raise StudyError(f"{path}: shorter than one window of {spec.window_s:g} s")
    return np.array(starts_ns) / 1e9 + spec.window_s, np.concatenate(rows)


def normalised(subject: Subject, units: Units, commissioning_s: float, span_rows: float) -> Subject:
    """Return a subject in units of its own, which no label and no other subject has a part in.

    `recording` takes mean and deviation of all its windows, so it looks ahead; `commissioning` of the first, as a
    gateway does; `moving` goes along with the signal.
    """
    if units == "moving":
        return subject._replace(x=moving_standardised(subject.x, None, span_rows)[0])
    first = subject.x if units == "recording" else subject.x[subject.elapsed_s <= commissioning_s]
    if len(first) < 2:
        raise StudyError(f"{subject.name}: {len(first)} windows within {commissioning_s:g} s; expected at least 2")
    own, _ = normalise({}, {FEATURES: first}, "own")
    _, z = normalise(own, {FEATURES: subject.x}, "own")
    return subject._replace(x=np.clip(z, -CLIP, CLIP))


def with_averages(subject: Subject, hop_s: float, averages_s: list[float]) -> Subject:
    """Return a subject with exponential moving averages of its features beside them, each begun at the first row."""
    x = pd.DataFrame(subject.x)
    means = [x.ewm(alpha=1.0 - np.exp(-hop_s / each), adjust=False).mean().to_numpy() for each in averages_s]
    return subject._replace(x=np.concatenate([subject.x, *means], axis=1))


def from_late(subject: Subject, late_s: float) -> Subject:
    """Return a subject in the same units as if nothing had been recorded before `late_s`."""
    rows = subject.elapsed_s > late_s
    return Subject(subject.name, subject.elapsed_s[rows] - late_s, subject.x[rows], subject.y[rows])
