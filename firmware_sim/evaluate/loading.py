"""Recordings as a researcher wants them: a file read by its ending, and the features of its windows as one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedgate.firmware_sim.evaluate.datasets import DataError
from fedgate.firmware_sim.evaluate.folders import in_roles, windows
from fedgate.firmware_sim.recordings import ReadOptions, Recording, read, shipped, shipped_names
from fedgate.models.arrays import Floats
from fedgate.models.features.spec import FeatureSpec


def load_recording(path: str | Path, **options: Any) -> Recording:
    """Read a recording: `values` (T, C) in the channels' units, NaN where samples are missing, at `rate_hz`.

    Args:
        path: a CSV, npz, mat, WAV, miniSEED or Parquet file, or the name of one that comes with fedgate, such as
            "munich_bridge/ref_load_01".
        **options: what the file does not say of itself, such as `rate_hz=100.0` (docs/reference/replay.md).

    Raises:
        RecordingError: the file cannot be read, with place and remedy, or its format needs a package that is missing.
        pydantic.ValidationError: an option that there is not, a `ValueError`.
    """
    path = Path(path)
    is_shipped = not path.exists() and str(path) in shipped_names()
    return read(shipped(str(path)) if is_shipped else path, ReadOptions.model_validate(options))


def extract_features(recording: Recording, spec: FeatureSpec, channels: Sequence[str] | None = None) -> Floats:
    """Return the features (n, F) of a recording's whole windows, cut and measured as a gateway does; their names are
    `fedgate.models.features.spec.feature_names(spec)`. Windows that lack samples are left out.

    :param channels: the recording's channels that play the roles `spec.channels`, in their order; without, those of the
        same names.

    Raises:
        DataError: no such channel, another rate, too short, or no whole window; a `ValueError`.
        FeatureError: values that no sensor can have measured; a `ValueError`.
    """
    chosen = spec.channels if channels is None else tuple(channels)
    if len(chosen) != len(spec.channels):
        raise DataError(f"channels: {len(chosen)} given, expected one for each of the roles {list(spec.channels)}")
    whole = in_roles(recording.name, recording, spec, dict(zip(spec.channels, chosen, strict=True)))
    return windows(recording.name, spec, whole, 0, len(whole.values)).x
