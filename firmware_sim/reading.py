"""How a command reads the recording that it is given."""

from __future__ import annotations

import argparse
from pathlib import Path

from pydantic import ValidationError

from config.messages import first_problem
from firmware_sim.recordings import Recording

RECORDING = "a CSV, npz, mat, WAV, miniSEED or Parquet file, or a shipped one such as munich_bridge/ref_load_01"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the recording, and what it does not say of itself."""
    command.add_argument("recording", type=Path, help=RECORDING)
    text = "how to read the file where it does not say, e.g. rate_hz=100 timestamp=time (repeat for more)"
    command.add_argument("--read", action="append", default=[], metavar="KEY=VALUE", help=text)


def recording_of(arguments: argparse.Namespace) -> Recording:
    """Return the recording that is named; raises `RecordingError`, or `ValueError` for a bad --read."""
    from firmware_sim.recordings import ReadOptions, read, shipped, shipped_names

    pairs = [text.partition("=") for text in arguments.read]
    bad = next((text for text, (_, equals, _) in zip(arguments.read, pairs, strict=True) if not equals), None)
    if bad is not None:
        raise ValueError(f"--read {bad}: expected KEY=VALUE")
    try:
        options = ReadOptions.model_validate({key: value for key, _, value in pairs})
    except ValidationError as error:
        raise ValueError(f"--read {first_problem(error)}") from None
    path: Path = arguments.recording
    return read(shipped(str(path)) if not path.exists() and str(path) in shipped_names() else path, options)
