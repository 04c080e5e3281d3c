"""The second kind of data for an evaluation: a folder of recordings with its `evaluation.toml`.

The file says which recordings are healthy, which damaged, which channel belongs to which gateway and what to measure in
a window. So a gateway is evaluated on its own sensor, with its own healthy past.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from pydantic import Field, model_validator

from config import settings
from config.messages import Id
from firmware_sim.datasets import DataError, Labelled
from firmware_sim.recordings import ReadOptions, Recording, read
from firmware_sim.recordings.recording import shortened
from models.arrays import NEW_SERIES, Floats
from models.features import FeatureSpec, extract_many, feature_names

FOLDER_FILE = "evaluation.toml"
# A recorder's clock is a little off; a model trained at one rate bears that, but not another rate.
RATE_TOLERANCE = 1e-3


class GatewayRows(NamedTuple):
    """The windows of one gateway, in time; `early` marks those from the first part of each recording, `gaps` says how
    many windows are missing before each, NEW_SERIES where a part of a recording begins.
    """

    rows: Labelled
    early: NDArray[np.bool_]  # (n,)
    gaps: NDArray[np.int64]  # (n,)


class Folder(NamedTuple):
    """Recordings whose channels belong to gateways."""

    name: str
    gateways: dict[str, GatewayRows]
    read_as: str


class FolderSettings(settings.Table):
    """evaluation.toml: file names are relative to it, `gateways` maps each role of the features to a channel."""

    healthy: Annotated[tuple[str, ...], Field(min_length=1)]
    damaged: Annotated[tuple[str, ...], Field(min_length=1)]
    train_share: Annotated[float, Field(gt=0, lt=1)] = 0.6
    gateways: Annotated[dict[Id, dict[str, str]], Field(min_length=1)]
    read: ReadOptions = ReadOptions()
    features: FeatureSpec

    @model_validator(mode="after")
    def _whole(self) -> FolderSettings:
        for gateway, channels in self.gateways.items():
            if sorted(channels) != sorted(self.features.channels):
                expected = f"the roles {sorted(self.features.channels)} of features.channels"
                raise ValueError(f"gateways.{gateway} gives channels for {sorted(channels)}; expected {expected}")
        twice = sorted(set(self.healthy) & set(self.damaged))
        if twice:
            raise ValueError(f"{twice[0]!r} is both in healthy and in damaged; expected it in one of them")
        return self


def load_folder(path: Path) -> Folder:
    """Read the recordings that `evaluation.toml` in the folder names and measure their windows.

    Raises:
        SettingsError: `evaluation.toml` is absent or wrong.
        RecordingError: a recording cannot be read.
        DataError: a recording does not suit the features: no such channel, another rate, too short.
        FeatureError: a recording holds values that no sensor can have measured.
    """
    plan = settings.load(path / FOLDER_FILE, FolderSettings)
    recordings = {name: read(path / name, plan.read) for name in (*plan.healthy, *plan.damaged)}
    gateways, missing = {}, 0
    for gateway in plan.gateways:
        place = f"{path / FOLDER_FILE}: gateways.{gateway}"
        gateways[gateway], left_out = _gateway_rows(place, plan, plan.gateways[gateway], recordings)
        missing += left_out
    note = f"; {missing} windows with missing samples left out" if missing else ""
    return Folder(path.resolve().name, gateways, _read_as(plan, gateways) + note)


def _gateway_rows(
    place: str, plan: FolderSettings, roles: dict[str, str], recordings: dict[str, Recording]
) -> tuple[GatewayRows, int]:
    """Return the windows of one gateway and how many were left out. No window crosses the border of `early`."""
    parts, early, gaps, missing = [], [], [], 0
    for name, recording in recordings.items():
        values = values_of(f"{place}: {name}", recording, plan.features, roles)  # (T, C)
        border = round(plan.train_share * len(values))
        for is_early, part in ((True, slice(border)), (False, slice(border, None))):
            start_ns = later(recording, plan.features, part.start or 0)
            x, whole = windows(f"{place}: {name}", plan.features, values[part], start_ns)
            parts.append(Labelled(x, np.full(len(x), int(name in plan.damaged))))
            early.append(np.full(len(x), is_early))
            gaps.append(gaps_between(whole))
            missing += int((~whole).sum())
    rows = Labelled(np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]))
    return GatewayRows(rows, np.concatenate(early), np.concatenate(gaps)), missing


def gaps_between(whole: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return how many windows are missing before each of those that are whole, NEW_SERIES before the first."""
    return np.concatenate([[NEW_SERIES], np.diff(np.flatnonzero(whole)) - 1])


def _read_as(plan: FolderSettings, gateways: dict[str, GatewayRows]) -> str:
    damaged = sum(int(gateway.rows.y.sum()) for gateway in gateways.values())
    count = sum(len(gateway.rows.y) for gateway in gateways.values())
    features = len(feature_names(plan.features))
    return (
        f"{count} windows of {plan.features.window_s:g} s, {features} features; windows of {', '.join(plan.damaged)}"
        f" read as anomaly ({damaged} windows), all others as normal ({count - damaged} windows)"
    )


def values_of(place: str, recording: Recording, spec: FeatureSpec, roles: dict[str, str]) -> Floats:
    """Return the values (T, C) of the channels that play the roles of the features. Raises `DataError`."""
    if abs(recording.rate_hz - spec.rate_hz) > RATE_TOLERANCE * spec.rate_hz:
        expected = f"features.rate_hz, {spec.rate_hz:g} Hz"
        raise DataError(f"{place}: recorded at {recording.rate_hz:g} Hz; expected {expected}")
    wanted = [roles[role] for role in spec.channels]
    for channel in wanted:
        if channel not in recording.channel_names:
            raise DataError(f"{place}: no channel {channel!r}; expected one of {shortened(recording.channel_names)}")
    return recording.values[:, [recording.channel_names.index(channel) for channel in wanted]]


def later(recording: Recording, spec: FeatureSpec, rows: int) -> int | None:
    """Return when a row of a recording was taken, in ns of Unix time; None where the recording does not know."""
    return None if recording.t0_ns is None else recording.t0_ns + round(rows * 1e9 / spec.rate_hz)


def windows(place: str, spec: FeatureSpec, values: Floats, start_ns: int | None) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the features (n, F) of the windows of values (T, C), the first taken at `start_ns`, and which of all had
    every sample and are among them; one in which nothing could be measured is not.
    """
    if len(values) < spec.samples:
        length_s = len(values) / spec.rate_hz
        raise DataError(f"{place}: {length_s:g} s to cut windows from; expected at least {spec.window_s:g} s")
    cut = sliding_window_view(values, spec.samples, axis=0)[:: spec.hop_samples].swapaxes(1, 2)  # (n, T, C)
    whole = np.asarray(np.isfinite(cut).all(axis=(1, 2)))
    if not whole.any():
        raise DataError(f"{place}: every window has missing samples; expected some without")
    if start_ns is None and any(step.needs_time for step in spec.steps):
        raise DataError(f"{place}: does not say when it was recorded; expected to, for features of kind 'calendar'")
    hops_s = np.arange(len(whole)) * spec.hop_samples / spec.rate_hz
    starts_ns = None if start_ns is None else start_ns + np.round(hops_s * 1e9).astype(np.int64)
    times_ns = None if starts_ns is None else starts_ns[whole]
    x = extract_many(spec, cut[whole], times_ns).astype(np.float64)
    is_measured = np.isfinite(x).all(axis=1)
    whole[whole] = is_measured
    return x[is_measured], whole
