"""Features of a recording, healthy against damaged, and what a band does not show: a frequency that moves inside it."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgate.config.settings.settings import GatewaySettings
from fedgate.firmware_sim import metrics
from fedgate.firmware_sim.backtest.backtest import start_pipeline
from fedgate.firmware_sim.backtest.inputs import label_of
from fedgate.firmware_sim.evaluate.datasets import DataError
from fedgate.firmware_sim.recordings import Recording
from fedgate.firmware_sim.recordings.cutting import begin_of, cut_windows
from fedgate.firmware_sim.recordings.recording import DAMAGED, HEALTHY
from fedgate.gateway_agent.pipeline.pipeline import find_faulty_channels
from fedgate.models.arrays import Floats
from fedgate.models.features.kinds import Bands
from fedgate.models.features.spec import FeatureSpec, extract_many, feature_names
from fedgate.models.time_units import NS
from fedgate.models.windows.grid import Window

FEWEST = 5  # windows of each state: fewer have no spread
TELLING, BLIND = 0.8, 0.7  # AUC from which a figure tells the states apart, and up to which it does not
ERRORS = 2.0  # standard errors that an AUC must be above
QUARTILES_TO_SPREAD = 1.349  # of a normal distribution


class Measured(NamedTuple):
    """The windows of a recording that are wholly of one state."""

    values: Floats  # (n, T, C)
    x: Floats  # (n, F)
    is_damaged: NDArray[np.bool_]  # (n,)
    left_out: int  # windows with missing samples or a faulty channel, of which a gateway scores none


class Comparison(NamedTuple):
    """One feature, healthy against damaged."""

    feature: str
    healthy: float  # median
    spread: float  # of healthy windows: their quartiles, as a deviation
    damaged: float  # median
    auc: float  # 0.5 to 1, whichever way it moves; nan where one of the states is absent
    auc_error: float  # its standard error, of windows that overlap as fewer; nan as well


class Shift(NamedTuple):
    """A frequency that moves inside a band whose energy does not tell."""

    channel: str
    low_hz: float
    high_hz: float
    healthy_hz: float  # median of the windows' centroids
    damaged_hz: float
    auc: float


def measure(settings: GatewaySettings, recording: Recording) -> Measured:
    """Return the windows of a recording that a gateway of these settings would score, with their features; those of no
    or of two states are left out.

    Raises `DataError` where too few windows are healthy, or some but too few damaged.
    """
    spec, pipeline = settings.features, start_pipeline(settings)
    begin_ns = begin_of(recording)
    windows, labels, left_out = list[Window](), list[int](), 0
    for window in cut_windows(spec, settings.streams, recording):
        if not isinstance(window, Window) or find_faulty_channels(pipeline, window):
            left_out += 1
            continue
        start_s = (window.t_ns - begin_ns) / NS
        label = label_of(recording.states, start_s, start_s + spec.window_s)
        if label in (HEALTHY, DAMAGED):
            windows.append(window)
            labels.append(label)
    counts = labels.count(HEALTHY), labels.count(DAMAGED)
    if counts[0] < FEWEST or 0 < counts[1] < FEWEST:
        found = f"{counts[0]} healthy and {counts[1]} damaged windows"
        raise DataError(f"{found}; expected {FEWEST} or more of each, or no damaged ones")
    values = np.stack([window.values for window in windows]).astype(np.float64)
    x = extract_many(spec, values, np.array([window.t_ns for window in windows])).astype(np.float64)
    return Measured(values, x, np.array(labels) == DAMAGED, left_out)


def compare(spec: FeatureSpec, measured: Measured) -> list[Comparison]:
    """Return the features, those first that tell the states apart best."""
    columns = zip(feature_names(spec), measured.x.T, strict=True)
    found = [_compare(spec, name, x, measured.is_damaged) for name, x in columns]
    return sorted(found, key=lambda one: -np.nan_to_num(one.auc))


def _compare(spec: FeatureSpec, name: str, x: Floats, is_damaged: NDArray[np.bool_]) -> Comparison:
    is_known = np.isfinite(x)
    healthy, damaged = x[is_known & ~is_damaged], x[is_known & is_damaged]
    low, median, high = np.quantile(healthy, (0.25, 0.5, 0.75)) if len(healthy) else (np.nan,) * 3
    there = float(np.median(damaged)) if len(damaged) else np.nan
    area = _area(spec, x, is_damaged)
    return Comparison(name, float(median), float(high - low) / QUARTILES_TO_SPREAD, there, *area)


def _area(spec: FeatureSpec, x: Floats, is_damaged: NDArray[np.bool_]) -> tuple[float, float]:
    """Return the AUC of a figure (n,), whichever way it moves, and its standard error: windows that overlap count as
    what they cover.
    """
    is_known = np.isfinite(x)
    auc = metrics.roc_auc(is_damaged[is_known].astype(np.int64), x[is_known])
    counts = [
        int(count * spec.hop_s / spec.window_s) for count in (is_damaged[is_known].sum(), (~is_damaged)[is_known].sum())
    ]
    return max(auc, 1.0 - auc), metrics.auc_error(max(auc, 1.0 - auc), *counts)


def spectra(spec: FeatureSpec, values: Floats) -> tuple[Floats, Floats]:
    """Return the frequencies (m,) in Hz, without 0, and the power (n, m, C) of windows (n, T, C), tapered by Hann."""
    taper = np.hanning(values.shape[1])[:, None]
    power: Floats = np.square(np.abs(np.fft.rfft((values - values.mean(axis=1, keepdims=True)) * taper, axis=1)))
    hz = np.fft.rfftfreq(values.shape[1], 1.0 / spec.rate_hz).astype(np.float64)
    return hz[1:], power[:, 1:]


def find_shifts(spec: FeatureSpec, measured: Measured) -> list[Shift]:
    """Return the bands whose energy does not tell healthy from damaged, while the frequency in them does."""
    if not measured.is_damaged.any():
        return []
    hz, power = spectra(spec, measured.values)
    energies = dict(zip(feature_names(spec), measured.x.T, strict=True))
    found = list[Shift]()
    for step in spec.steps:
        if not isinstance(step, Bands):
            continue
        for channel in step.channels or spec.channels:
            if channel not in spec.channels:  # a magnitude, whose spectrum is not that of a sensor
                continue
            for low_hz, high_hz in pairwise(step.edges_hz):
                energy = energies[f"{channel}.band[{low_hz:g}-{high_hz:g}Hz]"]
                inside = (hz >= low_hz) & (hz <= high_hz)
                part = power[:, inside, spec.channels.index(channel)]
                centroids = part @ hz[inside] / np.maximum(part.sum(axis=1), np.finfo(np.float64).tiny)
                auc, error = _area(spec, centroids, measured.is_damaged)
                if auc - ERRORS * error >= TELLING and _area(spec, energy, measured.is_damaged)[0] <= BLIND:
                    healthy_hz, damaged_hz = (
                        float(np.median(centroids[measured.is_damaged == state])) for state in (False, True)
                    )
                    found.append(Shift(channel, low_hz, high_hz, healthy_hz, damaged_hz, auc))
    return found
