"""What a survey of a site found, as text in a model's manifest: counts that are mostly zero, so they travel packed."""

from __future__ import annotations

import base64
import binascii
import zlib

from fedgate.config.protocol import wire
from fedgate.config.protocol.wire import Arrays, WireError

UNPACKED_MAX = 1024 * 1024  # some ten times the largest survey there is


def pack_survey(site: Arrays) -> str:
    """Return the arrays of a survey as text."""
    return base64.b64encode(zlib.compress(wire.encode(site))).decode("ascii")


def unpack_survey(text: str) -> Arrays:
    """Return the arrays of `packed`; raises `WireError` for anything else, however large it would become."""
    try:
        rest = zlib.decompressobj()
        body = rest.decompress(base64.b64decode(text, validate=True), UNPACKED_MAX)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise WireError(f"survey: cannot be unpacked ({error})") from None
    if rest.unconsumed_tail or not rest.eof:
        raise WireError(f"survey: expected up to {UNPACKED_MAX} bytes, whole, got more or less")
    return wire.decode(body)[0]
