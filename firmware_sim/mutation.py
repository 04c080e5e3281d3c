"""How sound bytes are broken: pieces cut out, put in, doubled, swapped for what is known to hurt."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from fedgate.config.protocol.wire import SEAL

SCALE = 2**16  # positions are drawn as shares of the length, so that shrinking works whatever the seed
KINDS = ("replace", "flip", "insert", "delete", "double", "cut")  # of edits of bytes; of values there is "token"
NASTY = (
    *(b"", b"\0", b"\xff", b"\n", b"\r", b"{", b"}", b"[", b"]", b'"', b",", b"=", b"-", b"/", b"..", b"+", b"#", b"'"),
    *(b"1e999", b"-1e999", b"1e-320", b"NaN", b"Infinity", b"inf", b"null", b"true", b"-1", b"0", b"0x10", b"1_000"),
    *(b"9" * 30, b"9" * 5_000, b"18446744073709551616", b"1979-05-27", b"[" * 2_000, b'{"a":' * 2_000, b'"""'),
    *(b"\xed\xa0\x80", b"\\ud800", b"\\u0000", b"\xef\xbb\xbf", b"<f8", b"|b1", b"|O"),
    *(b"\xff" * 8, b"\x7f" + b"\xff" * 3, b"\x80" + b"\0" * 3),
)  # fmt: skip

# A value in JSON or TOML, and what may stand in its place without the rest becoming unreadable.
TOKEN = re.compile(rb'-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|"[^"\\\n]*"|true|false|null')
VALUES = (
    *(b"0", b"-1", b"1.5", b"1e30", b"1e308", b"1e999", b"1e-320", b"NaN", b"9" * 18, b"9" * 30, b"9" * 400),
    *(b"9" * 5_000, b"null", b"true", b'""', b'"x"', b'"/"', b'"\\ud800"', b'"\\u0000"', b'"' + b"x" * 500 + b'"'),
    *(b"[]", b"{}", b"[[]]", b'[""]', b"[0]", b'{"a":0}', b"1979-05-27", b"[" * 2_000, b"[" * 2_000 + b"]" * 2_000),
    b'{"a":' * 2_000 + b"0" + b"}" * 2_000,
)  # fmt: skip

Edit = tuple[str, int, int, bytes]  # kind, where, how much, what


def changed(data: bytes, edits: Sequence[Edit]) -> bytes:
    """Return the bytes after each edit in turn."""
    for kind, where, amount, piece in edits:
        at = where * len(data) // SCALE
        match kind:
            case "token" if found := list(TOKEN.finditer(data)):
                chosen = found[where * len(found) // (SCALE + 1)]
                data = data[: chosen.start()] + piece + data[chosen.end() :]
            case "insert":
                data = data[:at] + piece + data[at:]
            case "replace":
                data = data[:at] + piece + data[at + max(len(piece), 1) :]
            case "delete":
                data = data[:at] + data[at + amount :]
            case "double":
                data = data[: at + amount] + data[at:]
            case "cut":
                data = data[:at]
            case "flip" if at < len(data):
                data = data[:at] + bytes([data[at] ^ (1 << amount % 8)]) + data[at + 1 :]
    return data


def resealed(data: bytes) -> bytes:
    """Return a wire message whose digest fits again, so that what lies behind the digest is reached too."""
    line, _, body = data.partition(b"\n")
    before, sealed, _ = line.rpartition(SEAL)
    head = before if sealed else line.removesuffix(b"}")
    return head + SEAL + hashlib.sha256(head + body).hexdigest().encode() + b'"}\n' + body
