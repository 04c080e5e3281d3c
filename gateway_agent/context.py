"""What every component of the agent may read, and none of them owns."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from fedgate.config.protocol.losses import Reason
from fedgate.config.protocol.messages import ClockQuality, Signed, name_audience
from fedgate.config.protocol.topics import Topic, topic_of
from fedgate.config.protocol.transfer import PAYLOAD_BYTES_START
from fedgate.config.settings.settings import GatewaySettings
from fedgate.gateway_agent.events import Save
from fedgate.models.time_units import NS

STARTS = "starts"  # key of a stored blob
STORE_ID_LENGTH = 32
SYNCHRONISED = "synchronised"
Verified = Callable[[bytes, str], bool]  # (message, signature): whether the release key made it


@dataclass(frozen=True)
class StoreHealth:
    """How the store is, as the service says it, which alone can know."""

    problem: str = ""  # see `events.StoreState`
    is_unstored: bool = False  # what was to be stored is in memory alone, for the disk takes nothing
    written_bytes: int = 0  # to the flash, of the budget of the day at hand


@dataclass(frozen=True)
class Context:
    """The gateway between two events: its settings, its time, its store and its link."""

    settings: GatewaySettings
    boot_id: str
    uptime_ns: int  # since the boot, which no setting of a clock changes: what deadlines, pauses and ages go by
    verified: Verified  # tells whether the release key signed some bytes
    anchor_ns: int = 0  # the time of the boot by the wall clock, as it was followed last
    clock: ClockQuality = "unknown"  # of the wall clock
    secret: bytes = b""  # makes this gateway's random numbers its own; never leaves it
    starts: int = 0  # on this store
    challenge: int = 0  # the last one that came from the aggregator, see `Status`
    store: StoreHealth = field(default_factory=StoreHealth)
    is_connected: bool = False  # to the aggregator's broker
    bytes_sent: int = 0
    bytes_received: int = 0
    line_payload_bytes: int = PAYLOAD_BYTES_START  # of one message that the line to the broker carries in a moment
    refusal: str = ""  # why something was not done, as the status gives it
    stopwatch: Callable[[], int] = int  # ns of this thread's CPU time; int() stands still

    @property
    def store_id(self) -> str:
        """The public name of the store, from which nothing can be learned of the secret.

        A gateway's card is copied, or an image of last year is put back; it then forgets what was counted of it, and
        would be counted twice. The name, the starts on the store and the items that it ever queued tell: none of the
        three goes back in a store that was left alone.
        """
        digest = hashlib.sha256(b"name of a store: " + self.secret).hexdigest()
        return digest[:STORE_ID_LENGTH] if self.secret else ""

    @property
    def payload_bytes(self) -> int:
        """How long a piece of an update is: an alarm waits for the one under way, and each costs its own effort."""
        return min(self.line_payload_bytes, self.settings.limits.max_payload_bytes)

    @property
    def now_ns(self) -> int:
        """The time of day in ns of Unix time: what is recorded, signed or shown."""
        return self.anchor_ns + self.uptime_ns

    def monotonic_ns(self, t_ns: int) -> int:
        """Return how long after the boot a time of day is."""
        return t_ns - self.anchor_ns

    def topic(self, channel: str, item: str) -> str:
        """Return this gateway's topic of a channel."""
        gateway = self.settings.gateway
        return topic_of(Topic(gateway.site, gateway.id, channel, item))


def why_no_telemetry(context: Context) -> Reason | None:
    """Return why no telemetry, and nothing else that nobody waits for, is stored at present; None where it is."""
    if context.store.problem == "disk-full":
        return "disk-full"
    return "flash-budget" if context.store.written_bytes >= context.settings.store.flash_bytes_per_day else None


def save_starts(context: Context) -> Save:
    """Return the effect that stores how often agents were started on the store."""
    return Save(STARTS, str(context.starts).encode())


def check_signed(context: Context, message: Signed, gateway: str) -> str:
    """Return why a message that was announced to a gateway, or to `topics.ALL`, does not count; else an empty string.

    Whether it has expired is asked of a clock that is known to be right alone.
    """
    audience = name_audience(context.settings.gateway.site, gateway)
    if not context.verified(message.signed_bytes(), message.signature):
        return "its signature is not the release key's"
    if message.audience != audience:
        return f"it is for {message.audience!r} and was announced to {audience!r}"
    if context.clock == SYNCHRONISED and 0 < message.expires_ns < context.now_ns:
        return f"it expired on {format_day(message.expires_ns)}"
    return ""


def format_day(t_ns: int) -> str:
    """Return the day of a moment, in UTC."""
    return f"{datetime.fromtimestamp(t_ns // NS, UTC):%Y-%m-%d}"
