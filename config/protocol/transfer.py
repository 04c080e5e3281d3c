"""Bodies larger than one message: split into chunks, put together again in any order, ask for what is missing.

A body is named by its SHA-256, so repeats, strays and chunks of an older body can do no harm, and a transfer can go on
after either side was restarted. A chunk is one JSON header line and the bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from fedgate.config.protocol.messages import CHUNKS_MAX, Count, Digest, Message, MessageError, Transfer, Want

HEADER_BYTES = 256
PAYLOAD_BYTES_MIN = 1_024
PAYLOAD_BYTES_START = 65_536  # while nothing is known of a line; at 20 kB/s an alarm waits 3.3 s for it
PACKET_BYTES_MAX = 262_144  # of one message with its topic, as config/mosquitto.conf has it
FRAMING_BYTES = 16  # what the protocol adds to these, at most
TOPIC_BYTES_MAX = 256  # more than any of ours has
PIECE_BYTES_MIN = PAYLOAD_BYTES_MIN - HEADER_BYTES  # in each chunk but the last
ASK_MAX = 100  # indices in one request: it must fit into the smallest message, and the rest is asked for later


class ChunkHeader(Message):
    """What a chunk says of itself; every chunk but the last is as long as the first."""

    digest: Digest
    index: Count
    chunks: Annotated[int, Field(ge=0, le=CHUNKS_MAX)]
    size_bytes: Count

    @property
    def transfer(self) -> Transfer:
        """What it says of the body."""
        return Transfer(digest=self.digest, size_bytes=self.size_bytes, chunks=self.chunks)


def digest_of(body: bytes) -> str:
    """Return the name of a body: its SHA-256."""
    return hashlib.sha256(body).hexdigest()


def describe(body: bytes, max_payload_bytes: int) -> Transfer:
    """Return the description of `body` cut to messages of at most `max_payload_bytes` (at least 1 KiB)."""
    if max_payload_bytes < PAYLOAD_BYTES_MIN:
        raise ValueError(f"max_payload_bytes: expected at least {PAYLOAD_BYTES_MIN}, got {max_payload_bytes}")
    step = max_payload_bytes - HEADER_BYTES
    return Transfer(digest=digest_of(body), size_bytes=len(body), chunks=max(-(-len(body) // step), 1))


def split(body: bytes, max_payload_bytes: int) -> list[bytes]:
    """Return the chunks of `body`, none longer than `max_payload_bytes` (at least 1 KiB)."""
    transfer = describe(body, max_payload_bytes)
    return cut_pieces(transfer, body, max_payload_bytes, range(transfer.chunks))


def cut_pieces(transfer: Transfer, body: bytes, max_payload_bytes: int, indices: Iterable[int]) -> list[bytes]:
    """Return some chunks of a body whose description is known, so that nothing is hashed again."""
    step = max_payload_bytes - HEADER_BYTES
    return [
        ChunkHeader(
            digest=transfer.digest, index=index, chunks=transfer.chunks, size_bytes=transfer.size_bytes
        ).to_bytes()
        + b"\n"
        + body[index * step : (index + 1) * step]
        for index in indices
    ]


def list_requested(missing: Collection[int], chunks: int) -> Sequence[int]:
    """Return which of so many chunks are asked for, each once: all where none is named."""
    return sorted({index for index in missing if index < chunks}) if missing else range(chunks)


def parse_chunk(payload: bytes) -> tuple[ChunkHeader, bytes]:
    """Return a chunk's header and bytes; raises `MessageError`."""
    line, found, piece = payload.partition(b"\n")
    if not found or len(line) > HEADER_BYTES:
        raise MessageError(f"chunk: no header line within {HEADER_BYTES} bytes")
    header = ChunkHeader.from_bytes(line)
    if not header.index < header.chunks or len(piece) > header.size_bytes:
        raise MessageError(f"chunk: index {header.index} of {header.chunks}, {len(piece)} of {header.size_bytes} bytes")
    if (header.chunks - 1) * PIECE_BYTES_MIN >= max(header.size_bytes, 1):  # each costs the same, also an empty one
        raise MessageError(
            f"chunk: {header.size_bytes} bytes in {header.chunks} chunks, {PIECE_BYTES_MIN} in each expected"
        )
    return header, piece


@dataclass(frozen=True)
class Assembly:
    """The chunks of one transfer seen so far."""

    transfer: Transfer
    pieces: dict[int, bytes] = field(default_factory=dict)
    held_bytes: int = 0  # of the pieces, so that a chunk costs the same however many are here

    @property
    def is_whole(self) -> bool:
        """True where no chunk lacks any more."""
        return len(self.pieces) == self.transfer.chunks

    @property
    def missing(self) -> tuple[int, ...]:
        """Indices of the chunks not seen yet."""
        return tuple(index for index in range(self.transfer.chunks) if index not in self.pieces)

    @property
    def want(self) -> Want:
        """What to ask for of it: all, where nothing is here."""
        return Want(missing=self.missing[:ASK_MAX] if self.pieces else ())

    def add(self, header: ChunkHeader, piece: bytes) -> Assembly:
        """Return the assembly with one more chunk; a repeat changes nothing, a stranger raises `MessageError`."""
        want = self.transfer
        if (header.digest, header.chunks, header.size_bytes) != (want.digest, want.chunks, want.size_bytes):
            raise MessageError(f"chunk of {header.digest[:12]} does not belong to transfer {want.digest[:12]}")
        if header.index in self.pieces:
            return self
        held = self.held_bytes + len(piece)
        if held > want.size_bytes:
            raise MessageError(f"transfer {want.digest[:12]}: {held} bytes so far, {want.size_bytes} expected in all")
        return Assembly(want, {**self.pieces, header.index: piece}, held)

    def join(self) -> bytes:
        """Return the whole body; raises `MessageError` where a chunk lacks or the digest does not fit."""
        if not self.is_whole:
            raise MessageError(f"transfer {self.transfer.digest[:12]}: {len(self.missing)} chunks are missing")
        whole = b"".join(self.pieces[index] for index in range(self.transfer.chunks))
        if len(whole) != self.transfer.size_bytes or digest_of(whole) != self.transfer.digest:
            raise MessageError(f"transfer {self.transfer.digest[:12]}: size or digest differs; fetch it again")
        return whole
