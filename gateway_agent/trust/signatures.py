"""Whether a signed message counts on this gateway: signed by the site, for this gateway, and not expired."""

from __future__ import annotations

from datetime import UTC, datetime

from fedgate.config.protocol.messages import Signed, audience_of
from fedgate.gateway_agent.context import Context
from fedgate.gateway_agent.trust.trust import Trust
from fedgate.models.time_units import NS

SYNCHRONISED = "synchronised"


def check_signed(trust: Trust, context: Context, message: Signed, gateway: str) -> str:
    """Return why a message that was announced to a gateway, or to `topics.ALL`, does not count; else an empty string.

    Whether it has expired is asked of a clock that is known to be right alone.
    """
    audience = audience_of(context.settings.gateway.site, gateway)
    if not trust.verified(message.signed_bytes(), message.signature):
        return "its signature is not the release key's"
    if message.audience != audience:
        return f"it is for {message.audience!r} and was announced to {audience!r}"
    if context.clock == SYNCHRONISED and 0 < message.expires_ns < context.now_ns:
        return f"it expired on {date(message.expires_ns)}"
    return ""


def date(t_ns: int) -> str:
    """Return the day of a moment, in UTC."""
    return f"{datetime.fromtimestamp(t_ns // NS, UTC):%Y-%m-%d}"
