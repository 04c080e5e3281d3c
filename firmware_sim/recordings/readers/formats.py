"""Which reader takes which file. To add a format: one file with a `read_x`, one line in `FORMATS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedgate.config.settings import extras
from fedgate.firmware_sim.recordings.errors import ChoiceError, MissingLibraryError, RecordingError, UnknownFormatError
from fedgate.firmware_sim.recordings.options import ReadOptions
from fedgate.firmware_sim.recordings.readers.csv_file import read_csv
from fedgate.firmware_sim.recordings.readers.mat_file import read_mat
from fedgate.firmware_sim.recordings.readers.mseed_file import read_mseed
from fedgate.firmware_sim.recordings.readers.npz_file import read_npz
from fedgate.firmware_sim.recordings.readers.parquet_file import read_parquet
from fedgate.firmware_sim.recordings.readers.wav_file import read_wav
from fedgate.firmware_sim.recordings.recording import Channel, Recording, positions, shortened
from fedgate.firmware_sim.recordings.source import Source, open_file, unpack


@dataclass(frozen=True)
class Format:
    """A reader, the endings it takes, and the options that mean something to it."""

    read: Callable[[Source, ReadOptions], Recording]
    suffixes: tuple[str, ...]
    options: frozenset[str]


_ALWAYS = frozenset({"columns", "units"})
_TABLE = _ALWAYS | {"rate_hz", "timestamp", "timestamp_format", "label", "state"}
_TEXT = _TABLE | {"delimiter", "decimal", "encoding", "header_line", "allow_cut"}
_ARRAYS = _ALWAYS | {"rate_hz", "array", "array_index"}
_DECLARED_BY_LVM = {"delimiter", "decimal", "header_line"}

FORMATS = (
    Format(read_csv, (".csv", ".tsv", ".txt"), _TEXT),
    Format(read_csv, (".lvm",), _TEXT - _DECLARED_BY_LVM),
    Format(read_npz, (".npz",), _ARRAYS),
    Format(read_mat, (".mat",), _ARRAYS),
    Format(read_wav, (".wav",), _ALWAYS | {"rate_hz"}),
    Format(read_mseed, (".mseed", ".mseed2", ".mseed3", ".miniseed"), _ALWAYS),
    Format(read_parquet, (".parquet",), _TABLE),
)
SUFFIXES = {suffix: each for each in FORMATS for suffix in each.suffixes}


def read(path: Path, options: ReadOptions | None = None) -> Recording:
    """Read a recording in the format its ending names; .gz and .zip around it are unpacked.

    Args:
        path: the file.
        options: what the file does not say itself; everything is detected without.

    Raises:
        RecordingError: one of its kinds, naming file, place, what was found, and what to do.
    """
    options = ReadOptions() if options is None else options
    source = Source(str(path), "", "", b"")
    try:
        opened = open_file(path)
        source = unpack(opened, options, SUFFIXES)
        if source.suffix not in SUFFIXES:
            known = f"known endings: {', '.join(SUFFIXES)}, and .gz or .zip around them"
            raise UnknownFormatError("", f"ending {source.suffix!r}", known)
        chosen = SUFFIXES[source.suffix]
        check_options(options, chosen, source.suffix, is_zip=opened.suffix == ".zip")
        return _finish(chosen.read(source, options), options)
    except ModuleNotFoundError as error:
        needed = f"this format needs the package {error.name}, which is not installed"
        raise MissingLibraryError(source.title, needed, extras.advise_install(error.name)) from error
    except RecordingError as error:
        error.file = source.title
        raise


def check_options(options: ReadOptions, chosen: Format, suffix: str, *, is_zip: bool) -> None:
    """Refuse what would do nothing, as its author expects it to do something."""
    usable = chosen.options | ({"member"} if is_zip else set())
    idle = sorted(options.model_dump(exclude_defaults=True).keys() - usable)
    if idle:
        problem = f"{', '.join(idle)} means nothing for {suffix}{'' if is_zip else ' outside a zip'}"
        raise ChoiceError("options", problem, f"leave it out; this format takes {', '.join(sorted(usable))}")


def _finish(recording: Recording, options: ReadOptions) -> Recording:
    """What holds for every format: declared units, and no infinities, so that a value is a number or is missing."""
    positions(recording.channel_names, list(options.units) or recording.channel_names)
    channels = tuple(Channel(c.name, options.units.get(c.name, c.unit)) for c in recording.channels)
    values = np.ascontiguousarray(recording.values, dtype=np.float64)
    infinite = np.isinf(values)
    found = list(recording.found)
    if infinite.any():
        values = np.where(infinite, np.nan, values)
        found.append(f"{int(infinite.sum())} infinite values set to NaN")
    missing = np.isnan(values).sum(axis=0)  # (C,)
    if missing.any():
        holed = [c.name for c, n in zip(channels, missing.tolist(), strict=True) if n]
        found.append(f"{int(missing.sum())} of {values.size} values missing (NaN), in {shortened(holed)}")
    return replace(recording, channels=channels, values=values, found=tuple(found))
