"""The second kind of data for an evaluation: a folder of recordings with its `evaluation.toml`.

The file says which recordings are healthy, which damaged, which channel belongs to which gateway and what to measure in
a window. So a gateway is evaluated on its own sensor, with its own healthy past.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedgate.config.protocol.messages import Id
from fedgate.config.settings import settings
from fedgate.firmware_sim.evaluate.datasets import DataError, Labelled
from fedgate.firmware_sim.recordings import ReadOptions, Recording, read
from fedgate.firmware_sim.recordings.cutting import count_lost, cut_windows
from fedgate.firmware_sim.recordings.recording import shortened
from fedgate.gateway_agent.pipeline.recurrence import count_missing_rows
from fedgate.models.arrays import Floats
from fedgate.models.features.spec import FeatureSpec, extract_many, feature_names
from fedgate.models.windows.grid import StreamSpec, Window

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


class Measured(NamedTuple):
    """The features of a recording's windows, and how many of its windows have none."""

    x: Floats  # (n, F)
    missing: NDArray[np.int64]  # (n,) windows missing before each, NEW_SERIES before the first
    lost: int  # lack samples
    not_measurable: int  # have all samples, but a feature that says nothing


class Folder(NamedTuple):
    """Rows that belong to gateways: windows of recordings, or rows of a table by their group."""

    name: str
    gateways: dict[str, GatewayRows]
    read_as: str
    lost: int | None  # windows, to gaps; rows of a table are no windows


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
    gateways, lost, not_measurable = {}, 0, 0
    for gateway in plan.gateways:
        place = f"{path / FOLDER_FILE}: gateways.{gateway}"
        gateways[gateway], parts = _gateway_rows(place, plan, plan.gateways[gateway], recordings)
        lost += sum(part.lost for part in parts)
        not_measurable += sum(part.not_measurable for part in parts)
    note = f"; {lost} windows lost to gaps" if lost else ""
    note += f"; {not_measurable} windows without a measurable value left out" if not_measurable else ""
    return Folder(path.resolve().name, gateways, _read_as(plan, gateways) + note, lost)


def _gateway_rows(
    place: str, plan: FolderSettings, roles: dict[str, str], recordings: dict[str, Recording]
) -> tuple[GatewayRows, list[Measured]]:
    """Return the windows of one gateway, and what each part of a recording came to. No window crosses the border of
    `early`.
    """
    parts, classes, early = [], [], []
    for name, recording in recordings.items():
        whole = in_roles(f"{place}: {name}", recording, plan.features, roles)
        border = round(plan.train_share * len(whole.values))
        for is_early, first, end in ((True, 0, border), (False, border, len(whole.values))):
            part = windows(f"{place}: {name}", plan.features, whole, first, end)
            parts.append(part)
            classes.append(np.full(len(part.x), int(name in plan.damaged)))
            early.append(np.full(len(part.x), is_early))
    rows = Labelled(np.concatenate([part.x for part in parts]), np.concatenate(classes))
    return GatewayRows(rows, np.concatenate(early), np.concatenate([part.missing for part in parts])), parts


def _read_as(plan: FolderSettings, gateways: dict[str, GatewayRows]) -> str:
    damaged = sum(int(gateway.rows.y.sum()) for gateway in gateways.values())
    count = sum(len(gateway.rows.y) for gateway in gateways.values())
    features = len(feature_names(plan.features))
    return (
        f"{count} windows of {plan.features.window_s:g} s, {features} features; windows of {', '.join(plan.damaged)}"
        f" read as anomaly ({damaged} windows), all others as normal ({count - damaged} windows)"
    )


def in_roles(place: str, recording: Recording, spec: FeatureSpec, roles: dict[str, str]) -> Recording:
    """Return the channels that play the roles of the features, in their order, at the rate of the features. Raises
    `DataError`.
    """
    if abs(recording.rate_hz - spec.rate_hz) > RATE_TOLERANCE * spec.rate_hz:
        expected = f"features.rate_hz, {spec.rate_hz:g} Hz"
        raise DataError(f"{place}: recorded at {recording.rate_hz:g} Hz; expected {expected}")
    wanted = [roles[role] for role in spec.channels]
    for channel in wanted:
        if channel not in recording.channel_names:
            raise DataError(f"{place}: no channel {channel!r}; expected one of {shortened(recording.channel_names)}")
    return replace(recording.select(wanted), rate_hz=spec.rate_hz)


def windows(
    place: str, spec: FeatureSpec, recording: Recording, first: int, end: int, streams: Sequence[StreamSpec] = ()
) -> Measured:
    """Return the features of the windows in the rows from `first` up to `end` of a recording as `in_roles` returns it.
    Its gaps are bridged as the streams say, by default as those of one stream of frames. Raises `DataError`.
    """
    if end - first < spec.samples:
        length_s = (end - first) / spec.rate_hz
        raise DataError(f"{place}: {length_s:g} s to cut windows from; expected at least {spec.window_s:g} s")
    if recording.t0_ns is None and any(step.needs_time for step in spec.steps):
        raise DataError(f"{place}: does not say when it was recorded; expected to, for features of kind 'calendar'")
    given = streams or (StreamSpec(name="recording", channels=spec.channels),)
    events = list(cut_windows(spec, given, recording.rows(first, end)))
    whole = [event for event in events if isinstance(event, Window)]
    if not whole:
        raise DataError(f"{place}: every window has missing samples; expected some without")
    starts_ns = np.array([window.t_ns for window in whole], dtype=np.int64)
    times_ns = None if recording.t0_ns is None else starts_ns
    x = extract_many(spec, np.stack([window.values for window in whole]), times_ns).astype(np.float64)
    is_measured = np.isfinite(x).all(axis=1)
    missing = count_missing_rows(starts_ns[is_measured].tolist(), spec.hop_s)
    return Measured(x[is_measured], missing, count_lost(spec, events), int((~is_measured).sum()))
