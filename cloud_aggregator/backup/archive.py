"""The file of a backup: a manifest and the parts that it names, in a tar archive, sealed where there is a passphrase.

The first member is `manifest.json`; it names every other one in order with its size and SHA-256, but for the second,
which is its own SHA-256 in the form of `sha256sum`. A file is written
beside its name and renamed when it is whole and on the disk; it is read once, in order, and nothing that it holds
counts before its end was seen and every digest was right.
"""

from __future__ import annotations

import hashlib
import io
import json
import secrets
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO, Literal, cast

from pydantic import Field, StringConstraints, ValidationError

from fedgate.cloud_aggregator.backup.sealing import MAGIC, SALT_BYTES, Sealer, SealError, Unsealer
from fedgate.config.identity.pki import PRIVATE_MODE
from fedgate.config.runtime.files import write_whole
from fedgate.config.runtime.version import VERSION
from fedgate.config.settings.base import Table

FORMAT: Literal[1] = 1
MANIFEST, ITS_DIGEST, STORE = "manifest.json", "manifest.json.sha256", "aggregator.db"
MANIFEST_BYTES_MAX = 1 << 20
PARTS_MAX, SMALL_BYTES_MAX = 32, 4 << 20  # of each part but the store: these are held in memory while it is read
PIECE_BYTES = 1 << 20

Advance = Callable[[int], None]  # is told how many bytes more are done


class ArchiveError(ValueError):
    """A file that is no backup, or not a whole one; the message says what was expected."""


Text = Annotated[str, StringConstraints(min_length=1, max_length=4_096)]
Count = Annotated[int, Field(ge=0, lt=2**63)]


class Part(Table):
    """One file of a backup."""

    name: Text
    size_bytes: Count
    sha256: str
    mode: Count


class Facts(Table):
    """What a store holds, in numbers that can be compared with those of another day."""

    models: Count
    model_version: Count
    alarms: Count
    gateways: Count
    enrolled: Count
    revoked: Count
    rounds: Count
    training: Count


class Manifest(Table):
    """What a backup says of itself."""

    format: Literal[1] = FORMAT
    version: str = VERSION
    site: Text
    made_ns: Count
    folder: Text  # of the settings, when it was made
    has_keys: bool
    schema_version: Count
    facts: Facts
    parts: Annotated[tuple[Part, ...], Field(max_length=PARTS_MAX)]

    def to_bytes(self) -> bytes:
        """Return it as it is stored."""
        return self.model_dump_json(indent=1).encode()


def part_of(name: str, content: Path | bytes, mode: int, advance: Advance) -> Part:
    """Return what a manifest says of a file, or of bytes."""
    digest, size = hashlib.sha256(), 0
    with _open(content) as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
            size += len(piece)
            advance(len(piece))
    return Part(name=name, size_bytes=size, sha256=digest.hexdigest(), mode=mode)


def _open(content: Path | bytes) -> BinaryIO:
    return io.BytesIO(content) if isinstance(content, bytes) else content.open("rb")


def is_backup(path: Path) -> bool:
    """Tell whether a file looks like one of ours."""
    with path.open("rb") as file:
        begin = file.read(len(MAGIC))
    return begin == MAGIC or begin.startswith(MANIFEST.encode() + b"\0")


def is_sealed(path: Path) -> bool:
    """Tell whether a backup needs a passphrase."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def write(
    out: Path, manifest: Manifest, contents: Mapping[str, Path | bytes], passphrase: str | None, advance: Advance
) -> None:
    """Write a backup whole or not at all; `contents` are the parts of the manifest, by name."""
    with write_whole(out) as raw:
        sealer = None if passphrase is None else Sealer(raw, passphrase, secrets.token_bytes(SALT_BYTES))
        with tarfile.open(fileobj=cast(BinaryIO, sealer or raw), mode="w|", format=tarfile.PAX_FORMAT) as tar:
            body = manifest.to_bytes()
            for name, content in ((MANIFEST, body), (ITS_DIGEST, _digest_line(body))):
                _add(tar, part_of(name, content, PRIVATE_MODE, advance), io.BytesIO(content), manifest.made_ns, advance)
            for part in manifest.parts:
                with _open(contents[part.name]) as file:
                    _add(tar, part, file, manifest.made_ns, advance)
        if sealer is not None:
            sealer.close()


def _add(tar: tarfile.TarFile, part: Part, file: BinaryIO, made_ns: int, advance: Advance) -> None:
    member = tarfile.TarInfo(part.name)
    member.size, member.mode, member.mtime = part.size_bytes, part.mode, made_ns // 10**9
    tar.addfile(member, cast(BinaryIO, _Watched(file, lambda piece: advance(len(piece)))))


class _Watched:
    """A reader that shows each piece which is read of it."""

    def __init__(self, file: BinaryIO, show: Callable[[bytes], object]) -> None:
        self._file, self._show = file, show

    def read(self, size: int = -1) -> bytes:
        found = self._file.read(size)
        self._show(found)
        return found


@contextmanager
def open_backup(path: Path, passphrase: str | None) -> Iterator[tuple[Manifest, Iterator[tuple[Part, BinaryIO]]]]:
    """Open a backup; every part must be read to its end, in order, and its digest is checked then.

    Raises `ArchiveError` where it is no backup or not a whole one.
    """
    if not is_backup(path):
        raise ArchiveError(f"{path}: it is no backup of an aggregator; expected what 'cloud-aggregator backup' wrote")
    try:
        with path.open("rb") as raw:
            source = raw if passphrase is None else cast(BinaryIO, Unsealer(raw, passphrase))
            with tarfile.open(fileobj=source, mode="r|") as tar:
                manifest = _manifest(tar)
                yield manifest, _iterate_parts(tar, manifest)
                if tar.next() is not None:
                    raise ArchiveError("it holds more than its manifest names")
            while source.read(PIECE_BYTES):  # the last piece of what is sealed says that nothing is missing
                pass
    except (ArchiveError, SealError, tarfile.TarError, EOFError, OverflowError) as error:
        raise ArchiveError(f"{path}: {error}; take another backup") from None


def _digest_line(manifest: bytes) -> bytes:
    return f"{hashlib.sha256(manifest).hexdigest()}  {MANIFEST}\n".encode()


def _manifest(tar: tarfile.TarFile) -> Manifest:
    member = tar.next()
    if member is None or member.name != MANIFEST or not member.isreg() or member.size > MANIFEST_BYTES_MAX:
        raise ArchiveError(f"its first member is not {MANIFEST}")
    body = _open_member(tar, member).read()
    if (second := tar.next()) is None or second.name != ITS_DIGEST or not second.isreg():
        raise ArchiveError(f"its second member is not {ITS_DIGEST}")
    if _open_member(tar, second).read(MANIFEST_BYTES_MAX) != _digest_line(body):
        raise ArchiveError(f"{MANIFEST} is damaged: its SHA-256 is another")
    try:
        number = json.loads(body)["format"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ArchiveError(f"its manifest cannot be read ({error})") from None
    if number != FORMAT:
        raise ArchiveError(f"it has format {number!r}, this version reads {FORMAT}; update fedgate")
    try:
        return Manifest.model_validate_json(body, strict=True)
    except ValidationError as error:
        raise ArchiveError(f"its manifest cannot be read ({error.error_count()} faults)") from None


def _iterate_parts(tar: tarfile.TarFile, manifest: Manifest) -> Iterator[tuple[Part, BinaryIO]]:
    for part in manifest.parts:
        member = tar.next()
        if member is None or (member.name, member.size, member.isreg()) != (part.name, part.size_bytes, True):
            raise ArchiveError(f"{part.name} is missing, or not what the manifest says")
        if part.name != STORE and part.size_bytes > SMALL_BYTES_MAX:
            raise ArchiveError(f"{part.name} has {part.size_bytes} bytes, at most {SMALL_BYTES_MAX} are read")
        digest = hashlib.sha256()
        yield part, cast(BinaryIO, _Watched(_open_member(tar, member), digest.update))
        if digest.hexdigest() != part.sha256:
            raise ArchiveError(f"{part.name} is damaged: its SHA-256 is not that of the manifest")


def _open_member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> BinaryIO:
    return cast(BinaryIO, tar.extractfile(member))
