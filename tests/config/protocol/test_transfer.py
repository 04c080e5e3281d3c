"""Transfers: whatever order, repeats and strangers the network offers, the body is the body or there is a reason."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgate.config.protocol.messages import MessageError, Transfer
from fedgate.config.protocol.transfer import (
    HEADER_BYTES,
    PAYLOAD_BYTES_MIN,
    Assembly,
    ChunkHeader,
    describe,
    parse_chunk,
    split,
)

LIMIT = PAYLOAD_BYTES_MIN
STEP = LIMIT - HEADER_BYTES
BODY = bytes(range(256)) * 12
bodies = st.integers(0, 5 * STEP).map(lambda size: hashlib.shake_128(size.to_bytes(4, "big")).digest(size))


def gathered(transfer: Transfer, payloads: list[bytes]) -> Assembly:
    assembly = Assembly(transfer)
    for payload in payloads:
        assembly = assembly.add(*parse_chunk(payload))
    return assembly


@given(st.data())
def test_chunks_in_any_order_with_repeats_are_the_body(data: st.DataObject) -> None:
    body = data.draw(bodies)
    chunks = split(body, LIMIT)
    order = data.draw(st.permutations(chunks + data.draw(st.lists(st.sampled_from(chunks), max_size=5))))
    assert gathered(describe(body, LIMIT), order).join() == body


@given(st.data())
def test_a_transfer_says_what_is_missing_and_goes_on(data: st.DataObject) -> None:
    body = data.draw(bodies)
    chunks = split(body, LIMIT)
    seen = data.draw(st.sets(st.integers(0, len(chunks) - 1)))
    assembly = gathered(describe(body, LIMIT), [chunks[index] for index in seen])
    assert assembly.missing == tuple(sorted(set(range(len(chunks))) - seen))
    if assembly.missing:
        with pytest.raises(MessageError, match=f"{len(assembly.missing)} chunks are missing"):
            assembly.join()
    for index in assembly.missing:
        assembly = assembly.add(*parse_chunk(chunks[index]))
    assert assembly.join() == body


@pytest.mark.parametrize("limit", [LIMIT, LIMIT + 1, 4_000, 120 * 1024])
@pytest.mark.parametrize("size", [0, 1, STEP - 1, STEP, STEP + 1, 2 * STEP, 100_000, 1_000_000])
def test_no_chunk_is_larger_than_a_message_may_be(limit: int, size: int) -> None:
    body = b"\n" * size  # the byte that also ends a header
    chunks = split(body, limit)
    assert max(map(len, chunks)) <= limit
    assert len(chunks) == describe(body, limit).chunks == max(-(-size // (limit - HEADER_BYTES)), 1)
    assert gathered(describe(body, limit), chunks).join() == body


def test_the_longest_header_fits_into_its_room() -> None:
    header = ChunkHeader(digest="f" * 64, index=99_999, chunks=100_000, size_bytes=2**50)
    assert len(header.to_bytes()) < HEADER_BYTES
    assert parse_chunk(header.to_bytes() + b"\nbytes") == (header, b"bytes")


@pytest.mark.parametrize("limit", [-1, 0, HEADER_BYTES, PAYLOAD_BYTES_MIN - 1])
def test_a_limit_that_leaves_no_room_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match=f"max_payload_bytes: expected at least 1024, got {limit}"):
        split(BODY, limit)


def test_an_assembly_is_a_value() -> None:
    first, *_ = split(BODY, LIMIT)
    empty = Assembly(describe(BODY, LIMIT))
    one = empty.add(*parse_chunk(first))
    assert (empty.pieces, list(one.pieces)) == ({}, [0])
    assert one.add(*parse_chunk(first)) is one


@pytest.mark.parametrize("change", [{"digest": "0" * 64}, {"chunks": 9}, {"size_bytes": 9_999}])
def test_a_chunk_of_something_else_is_refused(change: dict[str, Any]) -> None:
    header, piece = parse_chunk(split(BODY, LIMIT)[0])
    with pytest.raises(MessageError, match="does not belong to transfer"):
        Assembly(describe(BODY, LIMIT)).add(header.model_copy(update=change), piece)


def test_a_body_with_another_digest_is_refused() -> None:
    chunks = split(BODY, LIMIT)
    damaged = [*chunks[:-1], chunks[-1][:-1] + b"?"]
    with pytest.raises(MessageError, match="size or digest differs; fetch it again"):
        gathered(describe(BODY, LIMIT), damaged).join()


def test_a_body_that_lost_bytes_is_refused() -> None:
    chunks = split(BODY, LIMIT)
    with pytest.raises(MessageError, match="size or digest differs"):
        gathered(describe(BODY, LIMIT), [*chunks[:-1], chunks[-1][:-1]]).join()


def test_a_body_of_another_size_than_was_said_is_refused() -> None:
    honest = describe(BODY, LIMIT)
    liar = honest.model_copy(update={"size_bytes": len(BODY) + 1})
    assembly = Assembly(liar)
    for chunk in split(BODY, LIMIT):
        header, piece = parse_chunk(chunk)
        assembly = assembly.add(header.model_copy(update={"size_bytes": len(BODY) + 1}), piece)
    with pytest.raises(MessageError, match="size or digest differs"):
        assembly.join()


def test_chunks_never_hold_more_than_the_body_was_said_to_have() -> None:
    """A thousand chunks that are each as long as the whole body would fill a gateway's memory."""
    transfer = describe(BODY, LIMIT)
    header, _ = parse_chunk(split(BODY, LIMIT)[0])
    assembly = Assembly(transfer).add(header, BODY)
    with pytest.raises(MessageError, match=f"{len(BODY) + 1} bytes so far, {len(BODY)} expected in all"):
        assembly.add(header.model_copy(update={"index": 1}), b"x")


def with_header(**change: Any) -> bytes:
    header = {"digest": "a" * 64, "index": 0, "chunks": 2, "size_bytes": 10, **change}
    return json.dumps({key: value for key, value in header.items() if value is not None}).encode() + b"\npiece"


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "no header line within 256 bytes"),
        (b"no newline", "no header line"),
        (b" " * 300 + b"\n", "no header line within 256 bytes"),
        (b"\n", "ChunkHeader: payload: "),
        (b"[]\n", "ChunkHeader: payload: "),
        (b"\xff\n", "ChunkHeader: payload: "),
        (with_header(digest=None), "digest: Field required"),
        (with_header(digest="A" * 64), "digest: .*pattern"),
        (with_header(digest="a" * 63), "digest: .*pattern"),
        (with_header(index=-1), "index: .*greater than or equal to 0.*-1"),
        (with_header(index=1.5), "index: .*integer"),
        (with_header(index=2), "index 2 of 2"),
        (with_header(chunks=0), "index 0 of 0"),
        (with_header(size_bytes=4), "5 of 4 bytes"),
        (with_header(size_bytes="many"), "size_bytes: .*many"),
    ],
)
def test_a_refusal_says_what_was_wrong_with_the_chunk(payload: bytes, reason: str) -> None:
    with pytest.raises(MessageError, match=reason):
        parse_chunk(payload)


@given(st.binary(max_size=400) | st.binary(max_size=40).map(lambda tail: split(BODY, LIMIT)[1][:150] + tail))
def test_random_bytes_are_refused_or_read(payload: bytes) -> None:
    try:
        header, piece = parse_chunk(payload)
    except MessageError:
        return
    assert header.index < header.chunks
    assert payload.endswith(b"\n" + piece)


@given(st.data())
def test_a_mutated_chunk_never_makes_another_body(data: st.DataObject) -> None:
    chunks = split(BODY, LIMIT)
    index = data.draw(st.integers(0, len(chunks) - 1))
    start = data.draw(st.integers(0, len(chunks[index]) - 1))
    end = data.draw(st.integers(start, min(start + 8, len(chunks[index]))))
    mutated = chunks[index][:start] + data.draw(st.binary(max_size=8)) + chunks[index][end:]
    try:
        body = gathered(describe(BODY, LIMIT), [*chunks[:index], mutated, *chunks[index + 1 :]]).join()
    except MessageError:
        return
    assert body == BODY
