"""Checks the structure of a MATLAB 5 file before scipy reads it.

scipy's reader takes type codes and counts on trust: with one wrong byte it reads outside its tables and the process
dies of a segmentation fault, which no `except` catches. A power cut on a logger is enough to write such a byte.

Structure after The MathWorks, "MAT-File Format", chapter "Level 5 MAT-File Format": a 128-byte header, then elements,
each a tag (type, byte count) and a body padded to 8 bytes; a matrix is an element made of elements.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from fedgate.firmware_sim.recordings.errors import DamagedError
from fedgate.firmware_sim.recordings.source import MAX_BYTES

HEADER_BYTES = 128
_INT8, _INT32, _UINT32, _MATRIX, _COMPRESSED = 1, 5, 6, 14, 15
# Bytes per item of each numeric type: int8, uint8, int16, uint16, int32, uint32, single, double, int64, uint64.
_ITEM_BYTES = {1: 1, 2: 1, 3: 2, 4: 2, 5: 4, 6: 4, 7: 4, 9: 8, 12: 8, 13: 8}
# int8, uint8, uint16 and the three UTF encodings.
_TEXT_TYPES = {1, 2, 4, 16, 17, 18}
_CELL_CLASS, _CHAR_CLASS, _NUMERIC_CLASSES = 1, 4, range(6, 16)
_COMPLEX_FLAG = 0x0800


@dataclass(frozen=True)
class _Element:
    kind: int
    body: memoryview
    at: int  # first byte in the file, or in the unpacked body it is part of


def readable_variables(data: bytes) -> tuple[list[str], list[str]]:
    """Names of the variables that hold numbers or texts, and of those that hold anything else.

    Raises:
        DamagedError: the structure is broken; the place is the byte of the variable.
    """
    order = {b"IM": "<", b"MI": ">"}.get(data[126:HEADER_BYTES])
    if order is None:
        raise DamagedError("byte 126", f"byte order mark {data[126:HEADER_BYTES]!r}, expected IM or MI", _REMEDY)
    readable: list[str] = []
    others: list[str] = []
    left = MAX_BYTES  # of all variables together: each may be a thousandth of its size in the file
    for variable in _elements(memoryview(data), HEADER_BYTES, order):
        try:
            name, sound, size = _variable(variable, order, left)
            left -= size
        except _BrokenError as error:
            raise DamagedError(f"variable at byte {variable.at}", str(error), _REMEDY) from error
        if name in readable or name in others:
            raise DamagedError(f"variable at byte {variable.at}", f"second variable of the name {name!r}", _REMEDY)
        (readable if sound and name else others).append(name)
    return readable, others


_REMEDY = "the file is cut or garbled; copy it again"


class _BrokenError(ValueError):
    """A rule of the format is broken; the caller knows the place."""


def _elements(data: memoryview, start: int, order: str) -> Iterator[_Element]:
    at = start
    while at < len(data):
        if len(data) - at < 8:
            raise DamagedError(f"byte {at}", f"{len(data) - at} bytes left, expected a tag of 8", _REMEDY)
        kind, size = struct.unpack_from(order + "II", data, at)
        body_at = at + 8
        if kind >> 16:
            kind, size, body_at = kind & 0xFFFF, kind >> 16, at + 4
        short = size > 4 if body_at == at + 4 else body_at + size > len(data)
        if short:
            raise DamagedError(f"byte {at}", f"an element of {size} bytes, more than there are", _REMEDY)
        yield _Element(kind, data[body_at : body_at + size], at)
        end = at + 8 if body_at == at + 4 else body_at + size
        # Packed elements stand without padding.
        at = end if kind == _COMPRESSED else end + -end % 8


def _variable(element: _Element, order: str, most_bytes: int) -> tuple[str, bool, int]:
    """Name of a variable, whether it is one of numbers or texts, and how many bytes it unpacks to."""
    if element.kind == _COMPRESSED:
        stream = zlib.decompressobj()
        try:
            body = memoryview(stream.decompress(element.body, max(most_bytes, 1)))
        except zlib.error as error:
            raise _BrokenError(f"cannot be unpacked ({error})") from error
        if not stream.eof:
            raise _BrokenError(f"the packed stream is cut, or all unpack to more than {MAX_BYTES} bytes")
        inner = list(_elements(body, 0, order))
        if len(inner) != 1:
            raise _BrokenError(f"{len(inner)} elements in a packed variable, expected 1")
        element = inner[0]
    return *_matrix(element, order), len(element.body)


def _matrix(element: _Element, order: str, *, in_cell: bool = False) -> tuple[str, bool]:
    if element.kind != _MATRIX:
        raise _BrokenError(f"element of type {element.kind}, expected a matrix ({_MATRIX})")
    if in_cell and not element.body:
        return "", True  # how MATLAB writes an empty cell
    parts = list(_elements(element.body, 0, order))
    if [part.kind for part in parts[:3]] != [_UINT32, _INT32, _INT8]:
        raise _BrokenError(f"matrix begins with types {[p.kind for p in parts[:3]]}, expected flags, shape, name")
    flags, shape, name = (part.body for part in parts[:3])
    if len(flags) != 8 or len(shape) % 4 or not 8 <= len(shape) <= 128:
        raise _BrokenError(f"{len(flags)} bytes of flags and {len(shape)} of shape, expected 8 and 8 to 128")
    sizes = struct.unpack(f"{order}{len(shape) // 4}i", shape)
    if min(sizes) < 0:
        raise _BrokenError(f"negative size in shape {sizes}")
    (mark,) = struct.unpack_from(order + "I", flags)
    count, matrix_class = math.prod(sizes), mark & 0xFF
    if matrix_class == _CELL_CLASS:
        # Cells within cells hold no samples and stay unread, so their depth is nobody's concern.
        if len(parts) != 3 + count:
            raise _BrokenError(f"{len(parts) - 3} cells, expected {count}")
        return bytes(name).decode("latin1"), not in_cell and all(_matrix(p, order, in_cell=True)[1] for p in parts[3:])
    return bytes(name).decode("latin1"), _is_sound(parts[3:], matrix_class, count, bool(mark & _COMPLEX_FLAG))


def _is_sound(parts: list[_Element], matrix_class: int, count: int, is_complex: bool) -> bool:
    """Check the elements after the name; False for a class that is not numbers or texts, which stays unread."""
    if matrix_class in _NUMERIC_CLASSES:
        if len(parts) != 1 + is_complex or any(p.kind not in _ITEM_BYTES for p in parts):
            raise _BrokenError(f"numbers in elements of types {[p.kind for p in parts]}")
        if any(len(part.body) != count * _ITEM_BYTES[part.kind] for part in parts):
            raise _BrokenError(f"{len(parts[0].body)} bytes for {count} numbers")
        return True
    if matrix_class == _CHAR_CLASS:
        if len(parts) != 1 or parts[0].kind not in _TEXT_TYPES or len(parts[0].body) < count:
            raise _BrokenError(f"a text of {count} characters in elements of types {[p.kind for p in parts]}")
        return True
    return False
