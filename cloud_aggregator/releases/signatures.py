"""What the release key signs, for whom and until when."""

from __future__ import annotations

from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedgate.cloud_aggregator.alarms.register import SET_NS
from fedgate.config.identity import signing
from fedgate.config.protocol.messages import Signed

WEEK_NS = 7 * 86_400 * 1_000_000_000
WEEKS = 5  # the one at hand among them: a gateway that was off for a month takes what the broker has kept
S = TypeVar("S", bound=Signed)


def week(now_ns: int) -> int:
    """Return the number of a week: in each, what is retained is signed anew, and not oftener."""
    return now_ns // WEEK_NS


def signed(message: S, key: Ed25519PrivateKey, audience: str, now_ns: int) -> S:
    """Return a message signed for an audience (`audience_of`), good until the end of four weeks after this one.

    Where the clock of the aggregator is not set nobody can say until when, and it does not expire.
    """
    expires_ns = (week(now_ns) + WEEKS) * WEEK_NS if now_ns >= SET_NS else 0
    message = message.changed(audience=audience, expires_ns=expires_ns)
    return message.changed(signature=signing.sign(key, message.signed_bytes()))
