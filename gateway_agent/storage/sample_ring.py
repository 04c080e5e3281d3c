"""The file of clips: a ring of fixed size beside the store, in which the oldest clip makes way for the newest.

A clip is one run of slots, which goes on at the beginning where the file ends: a header that names it, its alarm and
its checksum, and its bytes. The first slot holds a random key that every header repeats, so that nothing a sensor sends
can pass for a header. Each write begins where the one before ended, which is at the oldest clip, and touches no other;
what a power cut leaves half-written does not fit the checksum of its header, and is no clip. No index is stored: the
headers are read when the file is first used.
"""

from __future__ import annotations

import os
import secrets
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

from fedgate.config.runtime.files import PRIVATE_MODE
from fedgate.gateway_agent.samples.ring_layout import (
    CLIP,
    NAME_BYTES_MAX,
    SLOT_BYTES,
    SUM,
    count_slots,
)

KEY_BYTES = 16
MAGIC = b"fedgate samples\n1"
HEAD = struct.Struct("<17s16sQ")  # magic, key, slots of the file; a checksum follows


class RingError(OSError):
    """A clip that cannot be kept or read; the message says why."""


class Place(NamedTuple):
    """Where a clip is, in slots, and what its header says."""

    first: int  # behind that of the key
    slots: int
    number: int
    alarm: str
    offset: int  # of the body, within the first slot
    body_bytes: int
    checksum: int


class SampleRing:
    """The file of clips. Use it from one thread; every method raises `OSError` where the disk does."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        """Take a file of so many bytes at most; it is opened, or made, when it is first used."""
        self.path = path
        self._slots = max_bytes // SLOT_BYTES - 1  # for clips
        self._file: int | None = None
        self._key = b""
        self._places: list[Place] = []  # the oldest first
        self.written_bytes = 0

    def keep(self, alarm: str, body: bytes) -> None:
        """Write a clip, and return when it is on the disk; raises `RingError` where it is larger than the file."""
        file, name = self._open(), alarm.encode()
        number = self._places[-1].number + 1 if self._places else 1
        head = CLIP.pack(self._key, number, len(name), len(body), zlib.crc32(body)) + name
        head += SUM.pack(zlib.crc32(head))
        slots = count_slots(len(name), len(body))
        if slots > self._slots or len(name) > NAME_BYTES_MAX:
            raise RingError(f"{self.path}: a clip of {len(body)} bytes does not fit into {self._slots} slots")
        first = (self._places[-1].first + self._places[-1].slots) % self._slots if self._places else 0
        place = Place(first, slots, number, alarm, len(head), len(body), zlib.crc32(body))
        self._places = [*(one for one in self._places if not self._overlap(one, place)), place]
        data, until_end = head + body, (self._slots - first) * SLOT_BYTES
        self.written_bytes += slots * SLOT_BYTES
        self._write(file, data[:until_end], (1 + first) * SLOT_BYTES)
        self._write(file, data[until_end:], SLOT_BYTES)
        os.fdatasync(file)

    def read(self, alarm: str) -> bytes | None:
        """Return the clip of an alarm; None where there is none that is whole."""
        file = self._open()
        bodies = (self._read_body(file, place) for place in reversed(self._places) if place.alarm == alarm)
        return next((body for body in bodies if body is not None), None)

    def list_alarms(self) -> list[str]:
        """Return the alarms of all clips that are whole, the oldest first."""
        file = self._open()
        return [place.alarm for place in self._places if self._read_body(file, place) is not None]

    def close(self) -> None:
        """Close the file, where it is open."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        if self._file is None:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_MODE)
            try:
                self._begin(file)
            except BaseException:
                os.close(file)
                raise
            self._file = file
        return self._file

    def _begin(self, file: int) -> None:
        """Read the headers of the file; make it anew where it is new, damaged, or of another size."""
        head = os.pread(file, HEAD.size + SUM.size, 0)
        is_whole = len(head) == HEAD.size + SUM.size and SUM.unpack(head[HEAD.size :])[0] == zlib.crc32(
            head[: HEAD.size]
        )
        magic, key, slots = HEAD.unpack(head[: HEAD.size]) if is_whole else (b"", b"", 0)
        if (magic, slots) == (MAGIC, self._slots):
            self._key = key
            self._places = self._find_places(file)
            return
        self._key, self._places = secrets.token_bytes(KEY_BYTES), []
        head = HEAD.pack(MAGIC, self._key, self._slots)
        os.ftruncate(file, 0)
        self._write(file, head + SUM.pack(zlib.crc32(head)), 0)
        self.written_bytes += SLOT_BYTES
        os.fdatasync(file)

    def _find_places(self, file: int) -> list[Place]:
        """Return what the headers say, the oldest first; of two that claim one slot the newer holds."""
        found = [place for first in range(self._slots) if (place := self._read_header(file, first)) is not None]
        places, taken = list[Place](), bytearray(self._slots)
        for place in sorted(found, key=lambda one: -one.number):
            end = place.first + place.slots
            runs = (slice(place.first, end), slice(0, max(end - self._slots, 0)))
            if not any(any(taken[run]) for run in runs):
                places.append(place)
                for run in runs:
                    taken[run] = b"\1" * len(taken[run])
        return places[::-1]

    def _read_header(self, file: int, first: int) -> Place | None:
        head = os.pread(file, CLIP.size, (1 + first) * SLOT_BYTES)
        if len(head) < CLIP.size or not head.startswith(self._key):
            return None
        _, number, name_bytes, body_bytes, checksum = CLIP.unpack(head)
        rest = os.pread(file, min(name_bytes, NAME_BYTES_MAX) + SUM.size, (1 + first) * SLOT_BYTES + CLIP.size)
        name = rest[: -SUM.size]
        slots = count_slots(len(name), body_bytes)
        if len(name) != name_bytes or SUM.unpack(rest[-SUM.size :])[0] != zlib.crc32(head + name):
            return None
        return Place(first, slots, number, name.decode(), CLIP.size + len(rest), body_bytes, checksum)

    def _read_body(self, file: int, place: Place) -> bytes | None:
        """Return the bytes of a clip; None where they are not those that its header is for."""
        offset, until_end = place.first * SLOT_BYTES + place.offset, (self._slots - place.first) * SLOT_BYTES
        size = min(place.body_bytes, until_end - place.offset)
        body = os.pread(file, size, SLOT_BYTES + offset) + os.pread(file, place.body_bytes - size, SLOT_BYTES)
        return body if len(body) == place.body_bytes and zlib.crc32(body) == place.checksum else None

    def _overlap(self, one: Place, other: Place) -> bool:
        apart = (other.first - one.first) % self._slots
        return apart < one.slots or self._slots - apart < other.slots

    def _write(self, file: int, data: bytes, offset: int) -> None:
        view = memoryview(data)
        while view:
            done = os.pwrite(file, view, offset)
            view, offset = view[done:], offset + done
