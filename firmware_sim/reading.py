"""How a command reads the recording that it is given."""

from __future__ import annotations

import argparse
from pathlib import Path

from pydantic import ValidationError

from config.messages import first_problem
from firmware_sim.recordings import ReadOptions, Recording, read, shipped, shipped_names

RECORDING = "a CSV, npz, mat, WAV, miniSEED or Parquet file, or a shipped one such as munich_bridge/ref_load_01"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the recording, and what it does not say of itself."""
    command.add_argument("recording", type=Path, help=RECORDING)
    text = "what the file does not say of itself, e.g. --read rate_hz=100 --read timestamp=time; the keys are below"
    command.add_argument("--read", action="append", default=[], metavar="KEY=VALUE", help=text)
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    described = (f"  {key:<18}{field.description}" for key, field in ReadOptions.model_fields.items())
    first = "keys of --read, of which each format takes some (columns=a,b units=a:kN,b:mm allow_cut=true):"
    command.epilog = "\n".join([first, *described])


def add_part(command: argparse.ArgumentParser) -> None:
    """Add which part of the recording is taken."""
    text = "from this second on, those of gaps counted (default: 0)"
    command.add_argument("--start", type=float, default=0.0, metavar="S", help=text)
    command.add_argument("--end", type=float, metavar="S", help="to this second (default: the end)")


def recording_of(arguments: argparse.Namespace) -> Recording:
    """Return the recording that is named; raises `RecordingError`, or `ValueError` for a bad --read."""
    pairs = [text.partition("=") for text in arguments.read]
    bad = next((text for text, (_, equals, _) in zip(arguments.read, pairs, strict=True) if not equals), None)
    if bad is not None:
        raise ValueError(f"--read {bad}: expected KEY=VALUE")
    given: dict[str, object] = {key: value for key, _, value in pairs}
    if "columns" in given:
        given["columns"] = str(given["columns"]).split(",")
    if "units" in given:
        given["units"] = dict(pair.partition(":")[::2] for pair in str(given["units"]).split(","))
    try:
        options = ReadOptions.model_validate(given)
    except ValidationError as error:
        raise ValueError(f"--read {first_problem(error)}; firmware-sim info --help lists the keys") from None
    path: Path = arguments.recording
    return read(shipped(str(path)) if not path.exists() and str(path) in shipped_names() else path, options)


def part_of(recording: Recording, arguments: argparse.Namespace) -> Recording:
    """Return the part of a recording between --start and --end, gaps counted; raises `RecordingError`."""
    end_s = recording.length_s if arguments.end is None else min(arguments.end, recording.length_s)
    return recording.cut(arguments.start, end_s)
