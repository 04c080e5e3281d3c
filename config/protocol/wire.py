"""How arrays travel and rest: one JSON header line, then the raw little-endian arrays.

    {"arrays": [["x", "<f8", [3, 2]]], "format": "fedgate/1", "meta": {...}, "sha256": "..."}\n<bytes of x>

`sha256` comes last and is the digest of all of the line before it and of the arrays, so no damaged byte goes unseen.
Shapes, types and total length are checked against the bytes at hand before anything is allocated, and nothing that is
read can run code. The same bytes are a file, a database blob or the body of a chunked transfer; what a survey of a site
found, counts that are mostly zero, travels packed as text in the manifest of a model.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgate.models.arrays import DTYPES

FORMAT = "fedgate/1"
HEADER_BYTES_MAX = 64 * 1024
ARRAYS_MAX = 1_000
DIMENSIONS_MAX = 8
ITEMS_MAX = 2**40  # beyond any message, and small enough for numpy's own arithmetic
DIGITS_MAX = 40  # of a whole number in the header: 128 bits have 39, and a sign
SEAL = b',"sha256":"'
UNPACKED_MAX = 1024 * 1024  # of a survey: some ten times the largest there is

Arrays = dict[str, NDArray[Any]]


class WireError(ValueError):
    """Bytes that are not a whole, unharmed fedgate message; the message says what was found and what was expected."""


def encode(arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any] | None = None) -> bytes:
    """Return arrays and a JSON-able `meta` as bytes; equal input gives equal bytes.

    Raises `WireError` for what `decode` would refuse.
    """
    listed, bodies = [], []
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        entry = [name, little.dtype.str, list(array.shape)]
        _parse_entry(entry)
        listed.append(entry)
        bodies.append(little.reshape(-1).view(np.uint8).data)
    header = {"arrays": listed, "format": FORMAT, "meta": meta or {}}
    try:
        head = json.dumps(header, sort_keys=True, separators=(",", ":"), allow_nan=False).encode().removesuffix(b"}")
    except (TypeError, ValueError) as error:
        raise WireError(f"meta: cannot be written as JSON ({error})") from None
    line = head + SEAL + _digest(head, bodies) + b'"}'
    if len(line) >= HEADER_BYTES_MAX:
        raise WireError(f"header: {len(line)} bytes given, at most {HEADER_BYTES_MAX} expected")
    _parse_header(line)
    return b"".join([line, b"\n", *bodies])


def decode(
    payload: bytes, size_max: int = 64 * 1024 * 1024, *, is_verified: bool = False
) -> tuple[Arrays, dict[str, Any]]:
    """Return (arrays, meta) of `encode`. Raises `WireError` for anything else and never any other error.

    With `is_verified` the digest is not computed: the caller has compared that of the whole payload.
    """
    if len(payload) > size_max:
        raise WireError(f"message: {len(payload)} bytes given, at most {size_max} expected")
    end = payload.find(b"\n", 0, HEADER_BYTES_MAX)
    if end < 0:
        raise WireError(f"header: no line end within the first {HEADER_BYTES_MAX} bytes")
    header = _parse_header(payload[:end])
    body = memoryview(payload)[end + 1 :]
    layout = [_parse_entry(entry) for entry in header["arrays"]]
    expected = sum(size for _, _, _, size in layout)
    if expected != len(body):
        raise WireError(f"body: {len(body)} bytes given, {expected} expected from the header")
    if len({name for name, _, _, _ in layout}) != len(layout):
        raise WireError("header: an array is named twice")
    head, _, tail = payload[:end].rpartition(SEAL)
    if not is_verified and tail != _digest(head, [body]) + b'"}':
        raise WireError("message: its digest differs from the header's sha256; it was damaged")
    arrays, offset = Arrays(), 0
    for name, dtype, shape, size in layout:
        arrays[name] = np.frombuffer(body[offset : offset + size], dtype=dtype).reshape(shape).copy()
        offset += size
    return arrays, header["meta"]


def _digest(head: bytes, bodies: Iterable[memoryview]) -> bytes:
    digest = hashlib.sha256(head)
    for body in bodies:
        digest.update(body)
    return digest.hexdigest().encode()


def _number(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is no JSON number")
    return number


def _parse_whole_number(text: str) -> int:
    if len(text) > DIGITS_MAX:
        raise ValueError(f"{text[:DIGITS_MAX]}... has {len(text)} digits, at most {DIGITS_MAX} expected")
    return int(text)


def _parse_header(line: bytes) -> dict[str, Any]:
    try:
        header = json.loads(line, parse_int=_parse_whole_number, parse_float=_number, parse_constant=_number)
        json.dumps(header, ensure_ascii=False).encode()  # half of a surrogate pair is no text, and fits in no message
    except (ValueError, RecursionError) as error:
        raise WireError(f"header: not JSON ({error})") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise WireError(f"header: expected format {FORMAT!r}, got {line[:60]!r}")
    kinds = {"meta": dict, "arrays": list, "sha256": str}
    for key, kind in kinds.items():
        if not isinstance(header.get(key), kind):
            raise WireError(f"header: {key} should be a {kind.__name__}, got {type(header.get(key)).__name__}")
    if len(header["arrays"]) > ARRAYS_MAX:
        raise WireError(f"header: {len(header['arrays'])} arrays given, at most {ARRAYS_MAX} expected")
    return header


def _parse_entry(entry: object) -> tuple[str, str, tuple[int, ...], int]:
    match entry:
        case [str(name), str(dtype), [*sides]] if dtype in DTYPES and len(sides) <= DIMENSIONS_MAX:
            shape = tuple(side for side in sides if type(side) is int and side >= 0)
            # Sides of 0 count as 1: numpy refuses (0, 2**62), empty as it is.
            if len(shape) == len(sides) and math.prod(max(side, 1) for side in shape) <= ITEMS_MAX:
                return name, dtype, shape, math.prod(shape) * np.dtype(dtype).itemsize
    expected = f"[name, type of {sorted(DTYPES)}, shape of up to {DIMENSIONS_MAX} sides]"
    raise WireError(f"header: expected {expected}, got {str(entry)[:80]}")


def pack_survey(site: Arrays) -> str:
    """Return the arrays of a survey as text."""
    return base64.b64encode(zlib.compress(encode(site))).decode("ascii")


def unpack_survey(text: str) -> Arrays:
    """Return the arrays of `pack_survey`; raises `WireError` for anything else, however large it would become."""
    try:
        rest = zlib.decompressobj()
        body = rest.decompress(base64.b64decode(text, validate=True), UNPACKED_MAX)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise WireError(f"survey: cannot be unpacked ({error})") from None
    if rest.unconsumed_tail or not rest.eof:
        raise WireError(f"survey: expected up to {UNPACKED_MAX} bytes, whole, got more or less")
    return decode(body)[0]
