"""How a command reads the recording that it is given."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from fedgate.config.protocol.messages import find_first_problem
from fedgate.firmware_sim.recordings import ReadOptions, Recording, read, shipped, shipped_names

RECORDING = "a CSV, npz, mat, WAV, miniSEED or Parquet file, or a shipped one such as munich_bridge/ref_load_01"
READ = "what the file does not say of itself, e.g. --read rate_hz=100 --read timestamp=time; the keys are below"


def add_arguments(command: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add the recording, or `several` of them, and what they do not say of themselves."""
    if several:
        command.add_argument("recordings", nargs="+", type=Path, metavar="recording", help=RECORDING)
    else:
        command.add_argument("recording", type=Path, help=RECORDING)
    command.add_argument("--read", action="append", default=[], metavar="KEY=VALUE", help=READ)
    command.epilog = f"{command.epilog or ''}\n\n{keys()}"


def keys() -> str:
    """Return what --read takes, a line for each key."""
    described = (f"  {key:<18}{field.description}" for key, field in ReadOptions.model_fields.items())
    first = "keys of --read, of which each format takes some (columns=a,b units=a:kN,b:mm allow_cut=true):"
    return "\n".join([first, *described])


def add_part(command: argparse.ArgumentParser) -> None:
    """Add which part of the recording is taken."""
    text = "from this second on, those of gaps counted (default: 0)"
    command.add_argument("--start", type=float, default=0.0, metavar="S", help=text)
    command.add_argument("--end", type=float, metavar="S", help="to this second (default: the end)")


def options_of(texts: Sequence[str]) -> dict[str, object]:
    """Return the keys and values that --read was given; raises `ValueError` for what is none."""
    given: dict[str, object] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--read {text}: expected KEY=VALUE")
        several = [part.partition(":")[::2] for part in value.split(",")]
        given[key] = value.split(",") if key == "columns" else dict(several) if key == "units" else value
    return given


def recording_of(arguments: argparse.Namespace) -> Recording:
    """Return the recording that is named; raises `RecordingError`, or `ValueError` for a bad --read."""
    return read_recording(arguments.recording, arguments.read)


def read_recording(path: Path, texts: Sequence[str]) -> Recording:
    """Return the recording at a path, or the shipped one of this name; `texts` are those of --read. Raises
    `RecordingError`, or `ValueError` for a bad text.
    """
    try:
        options = ReadOptions.model_validate(options_of(texts))
    except ValidationError as error:
        raise ValueError(f"--read {find_first_problem(error)}; firmware-sim info --help lists the keys") from None
    return read(shipped(str(path)) if not path.exists() and str(path) in shipped_names() else path, options)


def part_of(recording: Recording, arguments: argparse.Namespace) -> Recording:
    """Return the part of a recording between --start and --end, gaps counted; raises `RecordingError`."""
    end_s = recording.length_s if arguments.end is None else min(arguments.end, recording.length_s)
    return recording.cut(arguments.start, end_s)
