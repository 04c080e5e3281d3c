"""`firmware-sim label`: turn recordings of known condition into the table that a gateway learns its labels from."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path

from fedgate.config.settings.labelled import head
from fedgate.config.settings.settings import ENCODING, AggregatorSettings, GatewaySettings, load
from fedgate.firmware_sim.evaluate.datasets import DataError
from fedgate.firmware_sim.evaluate.folders import Measured, in_roles, windows
from fedgate.firmware_sim.recordings import Recording
from fedgate.models.features.spec import FeatureSpec
from fedgate.models.windows.grid import StreamSpec


def measures_of(config: Path) -> tuple[FeatureSpec, tuple[StreamSpec, ...]]:
    """Return the features that a gateway measures by its settings and the streams that it cuts windows from, or the
    features of an aggregator, whose tables are the ones that it trusts, and no streams. Raises `SettingsError`.
    """
    try:
        is_aggregators = "aggregator" in tomllib.loads(config.read_text(encoding=ENCODING))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        is_aggregators = False  # `load` says what is wrong with it
    if is_aggregators:
        return load(config, AggregatorSettings).features, ()
    settings = load(config, GatewaySettings)
    return settings.features, settings.streams


def append(
    table: Path,
    place: str,
    recording: Recording,
    channels: Sequence[str],
    spec: FeatureSpec,
    streams: Sequence[StreamSpec],
    label: int,
) -> Measured:
    """Append the windows of a recording, measured as the gateway measures them, each with the label.

    `channels` are those of the recording in the order of `spec.channels`; none where the names are the same. `streams`
    say which gaps are bridged, as `windows` takes them. Returns what was written and what was left out.

    Raises:
        DataError: the recording has other channels or another rate, or is too short; the table was measured with other
            features or holds these windows already.
    """
    chosen = channels or spec.channels
    if len(chosen) != len(spec.channels):
        raise DataError(f"{place}: {len(chosen)} channels given; expected one for each of {', '.join(spec.channels)}")
    whole = in_roles(place, recording, spec, dict(zip(spec.channels, chosen, strict=True)))
    measured = windows(place, spec, whole, 0, len(whole.values), streams)
    if not len(measured.x):
        raise DataError(f"{place}: no window has a value for every feature; expected one at least")
    rows = zip(measured.x.tolist(), measured.missing.tolist(), strict=True)
    lines = [",".join((*map(repr, row), str(missing), str(label))) for row, missing in rows]
    with table.open("a+", encoding="utf-8", newline="") as file:
        file.seek(0)
        found = file.read().splitlines()
        if found and found[:2] != head(spec):
            raise DataError(f"{table}: was measured with other [features]; name another file, or remove this one")
        if lines[0] in found:
            raise DataError(f"{table}: holds the windows of this recording with label {label} already")
        file.writelines(f"{line}\n" for line in ([] if found else head(spec)) + lines)
    return measured
