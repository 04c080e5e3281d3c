"""From a path to the bytes of one recording: opens the file, unpacks .gz, picks the member of a .zip.

Readers get bytes, never a path, so compression is solved once and for every format.
"""

from __future__ import annotations

import gzip
import lzma
import zipfile
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath

from fedgate.firmware_sim.recordings.errors import ChoiceError, DamagedError, FileAccessError
from fedgate.firmware_sim.recordings.options import ReadOptions
from fedgate.firmware_sim.recordings.recording import shortened

# A recording is held in memory as a whole; this also stops a small archive that unpacks to a huge file.
MAX_BYTES = 2**30
_CHUNK_BYTES = 2**20
_SIZE_REMEDY = f"cut the recording into pieces below {MAX_BYTES // 2**20} MiB"


@dataclass(frozen=True)
class Source:
    """The unpacked bytes of one recording."""

    title: str  # for error messages
    name: str
    suffix: str  # lower case, of the unpacked file
    data: bytes
    is_cut: bool = False  # the packed stream ended before its end mark


def open_file(path: Path) -> Source:
    """Read the whole file.

    Raises:
        FileAccessError: no such file, no ordinary file, not permitted, or larger than `MAX_BYTES`.
    """
    try:
        if not path.is_file():
            problem = "no ordinary file" if path.exists() else "no such file"
            raise FileAccessError("", problem, "check the path")
        if path.stat().st_size > MAX_BYTES:
            raise FileAccessError("", f"{path.stat().st_size} bytes", _SIZE_REMEDY)
        data = path.read_bytes()
    except OSError as error:
        raise FileAccessError("", error.strerror or str(error), "check path and permissions") from error
    except ValueError as error:
        raise FileAccessError("", str(error), "check the path") from error
    return Source(str(path), path.stem, path.suffix.lower(), data)


def unpack(source: Source, options: ReadOptions, known: Collection[str]) -> Source:
    """Remove .gz and .zip, until the bytes are those of a format itself.

    Args:
        source: the file as it is on disk.
        options: `member` chooses inside a zip, `allow_cut` admits a gzip stream without its end.
        known: endings of the formats, to find the members that may be meant.

    Raises:
        DamagedError: the packed stream is cut or garbled.
        ChoiceError: several members may be meant, or the chosen one is absent.
    """
    if source.suffix == ".gz":
        return _gunzip(source, options.allow_cut)
    if source.suffix == ".zip":
        source = _unzip(source, options.member, known)
        return _gunzip(source, options.allow_cut) if source.suffix == ".gz" else source
    return source


def _gunzip(source: Source, allow_cut: bool) -> Source:
    packed = BytesIO(source.data)
    unpacked = bytearray()
    is_cut = False
    try:
        with gzip.GzipFile(fileobj=packed) as stream:
            # read1 and not read, which on a cut stream loses what it had already unpacked.
            while (chunk := stream.read1(_CHUNK_BYTES)) and len(unpacked) <= MAX_BYTES:
                unpacked += chunk
    except EOFError:
        is_cut = True
    except (gzip.BadGzipFile, zlib.error) as error:
        place = f"gzip stream, before byte {packed.tell()}"
        raise DamagedError(place, f"cannot be unpacked ({error})", "copy the file again") from error
    if len(unpacked) > MAX_BYTES:
        raise FileAccessError("gzip stream", f"unpacks to more than {MAX_BYTES} bytes", _SIZE_REMEDY)
    if is_cut and not allow_cut:
        remedy = "copy the file again, or set allow_cut to read a table up to there"
        raise DamagedError(f"byte {len(source.data)}", "the gzip stream ends before its end mark", remedy)
    inner = PurePosixPath(source.name)
    return Source(source.title, inner.stem, inner.suffix.lower(), bytes(unpacked), is_cut)


def _unzip(source: Source, wanted: str | None, known: Collection[str]) -> Source:
    try:
        with zipfile.ZipFile(BytesIO(source.data)) as archive:
            member = _member(archive, wanted, known)
            if member.file_size > MAX_BYTES:
                raise FileAccessError(f"member {member.filename}", f"{member.file_size} bytes", _SIZE_REMEDY)
            data = archive.read(member)
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError) as error:
        raise DamagedError("zip archive", f"cannot be unpacked ({error})", "copy the file again") from error
    except (RuntimeError, NotImplementedError) as error:
        raise DamagedError("zip archive", str(error), "pack it again with deflate and without a password") from error
    inner = PurePosixPath(member.filename)
    return Source(f"{source.title}, member {member.filename}", inner.stem, inner.suffix.lower(), data)


def _member(archive: zipfile.ZipFile, wanted: str | None, known: Collection[str]) -> zipfile.ZipInfo:
    names = [name for name in archive.namelist() if not name.startswith("__MACOSX/")]
    if wanted is not None:
        if wanted not in names:
            raise ChoiceError("zip archive", f"no member {wanted!r}", f"choose among {shortened(names)}")
        return archive.getinfo(wanted)
    fitting = [name for name in names if PurePosixPath(name.removesuffix(".gz")).suffix.lower() in known]
    if not fitting:
        raise ChoiceError("zip archive", f"no recording among {shortened(names)}", "pack a recording, or choose member")
    if len(fitting) > 1:
        remedy = f"set member to one of {shortened(fitting)}"
        raise ChoiceError("zip archive", f"{len(fitting)} recordings inside", remedy)
    return archive.getinfo(fitting[0])
