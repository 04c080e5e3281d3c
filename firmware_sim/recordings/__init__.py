"""Recorded sensor streams: readers for the formats they come in, and a few that are shipped with the project."""

from fedgate.firmware_sim.recordings.errors import (
    ChoiceError,
    DamagedError,
    FileAccessError,
    MissingLibraryError,
    RecordingError,
    UnknownFormatError,
)
from fedgate.firmware_sim.recordings.info import describe, render
from fedgate.firmware_sim.recordings.options import ReadOptions
from fedgate.firmware_sim.recordings.readers.formats import read
from fedgate.firmware_sim.recordings.recording import DAMAGED, HEALTHY, UNKNOWN, Channel, Recording, State
from fedgate.firmware_sim.recordings.shipped import shipped, shipped_names

__all__ = [
    "DAMAGED",
    "HEALTHY",
    "UNKNOWN",
    "Channel",
    "ChoiceError",
    "DamagedError",
    "FileAccessError",
    "MissingLibraryError",
    "ReadOptions",
    "Recording",
    "RecordingError",
    "State",
    "UnknownFormatError",
    "describe",
    "read",
    "render",
    "shipped",
    "shipped_names",
]
