"""`firmware-sim label`: turn recordings of known condition into the table that a gateway learns its labels from."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

from config.labelled import head
from config.settings import AggregatorSettings, GatewaySettings, load
from firmware_sim.datasets import DataError
from firmware_sim.folders import gaps_between, values_of, windows
from firmware_sim.recordings import Recording
from models.features import FeatureSpec


def features_of(config: Path) -> FeatureSpec:
    """Return the features that a gateway measures by its settings, or by those of an aggregator, whose tables are the
    ones that it trusts. Raises `SettingsError`.
    """
    try:
        is_aggregators = "aggregator" in tomllib.loads(config.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        is_aggregators = False  # `load` says what is wrong with it
    return load(config, AggregatorSettings).features if is_aggregators else load(config, GatewaySettings).features


def append(
    table: Path, place: str, recording: Recording, channels: Sequence[str], spec: FeatureSpec, label: int
) -> tuple[int, int]:
    """Append the windows of a recording, measured as the gateway measures them, each with the label.

    `channels` are those of the recording in the order of `spec.channels`; none where the names are the same. Returns
    how many windows were written, and how many were left out for missing samples.

    Raises:
        DataError: the recording has other channels or another rate, or is too short; the table was measured with other
            features or holds these windows already.
    """
    chosen = channels or spec.channels
    if len(chosen) != len(spec.channels):
        raise DataError(f"{place}: {len(chosen)} channels given; expected one for each of {', '.join(spec.channels)}")
    values = values_of(place, recording, spec, dict(zip(spec.channels, chosen, strict=True)))
    rows, whole = windows(place, spec, values, recording.t0_ns)
    measured = zip(rows.tolist(), gaps_between(whole).tolist(), strict=True)
    lines = [",".join((*map(repr, row), str(gap), str(label))) for row, gap in measured]
    with table.open("a+", encoding="utf-8", newline="") as file:
        file.seek(0)
        found = file.read().splitlines()
        if found and found[:2] != head(spec):
            raise DataError(f"{table}: was measured with other [features]; name another file, or remove this one")
        if lines[0] in found:
            raise DataError(f"{table}: holds the windows of this recording with label {label} already")
        file.writelines(f"{line}\n" for line in ([] if found else head(spec)) + lines)
    return len(rows), int((~whole).sum())
