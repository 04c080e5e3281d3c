"""Whether a signed message counts on this gateway: signed by the site, for this gateway, and not expired."""

from __future__ import annotations

from datetime import UTC, datetime

from fedgate.config.protocol.messages import Signed, audience_of
from fedgate.gateway_agent.state import State

NS = 1_000_000_000
SYNCHRONISED = "synchronised"


def problem(state: State, message: Signed, gateway: str) -> str:
    """Return why a message that was announced to a gateway, or to `topics.ALL`, does not count; else an empty string.

    Whether it has expired is asked of a clock that is known to be right alone.
    """
    audience = audience_of(state.settings.gateway.site, gateway)
    if not state.verified(message.signed_bytes(), message.signature):
        return "its signature is not the release key's"
    if message.audience != audience:
        return f"it is for {message.audience!r} and was announced to {audience!r}"
    if state.clock == SYNCHRONISED and 0 < message.expires_ns < state.now_ns:
        return f"it expired on {date(message.expires_ns)}"
    return ""


def date(t_ns: int) -> str:
    """Return the day of a moment, in UTC."""
    return f"{datetime.fromtimestamp(t_ns // NS, UTC):%Y-%m-%d}"
