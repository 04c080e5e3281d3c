"""`firmware-sim label`: turn recordings of known condition into the table that a gateway learns its labels from."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from firmware_sim.datasets import DataError
from firmware_sim.folders import values_of, windows
from firmware_sim.recordings import Recording
from gateway_agent.labelled import LABEL
from models.features import FeatureSpec, feature_names


def append(
    table: Path, place: str, recording: Recording, channels: Sequence[str], spec: FeatureSpec, label: int
) -> tuple[int, int]:
    """Append the windows of a recording, measured as the gateway measures them, each with the label.

    `channels` are those of the recording in the order of `spec.channels`; none where the names are the same. Returns
    how many windows were written, and how many were left out for missing samples.

    Raises:
        DataError: the recording has other channels or another rate, or is too short; the table has other columns.
    """
    chosen = channels or spec.channels
    if len(chosen) != len(spec.channels):
        raise DataError(f"{place}: {len(chosen)} channels given; expected one for each of {', '.join(spec.channels)}")
    values = values_of(place, recording, spec, dict(zip(spec.channels, chosen, strict=True)))
    rows, left_out = windows(place, spec, values)
    header = ",".join((*feature_names(spec), LABEL)) + "\n"
    with table.open("a+", encoding="utf-8", newline="") as file:
        file.seek(0)
        found = file.readline()
        if found not in ("", header):
            raise DataError(f"{table}: holds columns of other [features]; name another file, or remove this one")
        file.write("" if found else header)
        csv.writer(file, lineterminator="\n").writerows([*map(repr, row), label] for row in rows.tolist())
    return len(rows), left_out
