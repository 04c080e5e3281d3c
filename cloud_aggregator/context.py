"""The site as every component of the aggregator sees it, and none of them owns it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from fedgate.cloud_aggregator.events import Publish
from fedgate.config.protocol.messages import STATUS, Device, Receipt, Signed, Status, Transfer, name_audience
from fedgate.config.protocol.topics import ALL, Topic, topic_of
from fedgate.config.protocol.transfer import cut_pieces, list_requested
from fedgate.config.settings.settings import AggregatorSettings
from fedgate.models.time_units import NS

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SET_NS = 1_577_836_800 * NS  # 2020-01-01: a clock that says less was never set
WEEK_NS = 7 * 86_400 * NS
WEEKS = 5  # the one at hand among them: a gateway that was off for a month takes what the broker has kept
S = TypeVar("S", bound=Signed)
Statuses = Mapping[str, Status]  # gateway -> what it said last of itself


def sign_message(message: S, key: Ed25519PrivateKey, audience: str, now_ns: int) -> S:
    """Return a message signed for an audience (`name_audience`), good until the end of four weeks after this one.

    Where the clock of the aggregator is not set nobody can say until when, and it does not expire.
    """
    from fedgate.config.identity import signing  # seven MiB, which a process that only reads the store does without

    expires_ns = (now_ns // WEEK_NS + WEEKS) * WEEK_NS if now_ns >= SET_NS else 0
    message = message.changed(audience=audience, expires_ns=expires_ns)
    return message.changed(signature=signing.sign(key, message.signed_bytes()))


class Payload(NamedTuple):
    """A body that goes down, described once."""

    transfer: Transfer
    body: bytes


@dataclass(frozen=True)
class Context:
    """The aggregator between two events: its settings, its keys, its time and its link."""

    settings: AggregatorSettings
    key: Ed25519PrivateKey  # signs what goes down
    uptime_ns: int  # since the boot, which no setting of a clock changes: what deadlines, pauses and ages go by
    anchor_ns: int = 0  # the time of the boot by the wall clock, as it was followed last
    is_connected: bool = False  # to the broker
    keys: bytes = b""  # the statement of keys that the site goes by; empty: it has no root key

    @property
    def now_ns(self) -> int:
        """The time of day in ns of Unix time: what is recorded, signed or shown."""
        return self.anchor_ns + self.uptime_ns

    @property
    def week(self) -> int:
        """The number of this week: in each, what is retained is signed anew, and not oftener."""
        return self.now_ns // WEEK_NS

    def topic(self, gateway: str, channel: str, item: str) -> str:
        """Return a topic of this site."""
        return topic_of(Topic(self.settings.aggregator.site, gateway, channel, item))

    def sign(self, message: S, gateway: str = ALL) -> S:
        """Return a message signed for a gateway or for all, see `sign_message`."""
        return sign_message(message, self.key, name_audience(self.settings.aggregator.site, gateway), self.now_ns)

    def make_chunks(self, gateway: str, parcel: Payload, missing: tuple[int, ...] = ()) -> list[Publish]:
        """Return the chunks of a body for one gateway or all of them; all chunks where none are named."""
        transfer, body = parcel
        wanted = list_requested(missing, transfer.chunks)
        pieces = cut_pieces(transfer, body, self.settings.limits.max_payload_bytes, wanted)
        return [Publish(self.topic(gateway, "chunk", transfer.digest), piece) for piece in pieces]

    def receipt(self, gateway: str, item: str, reason: str = "", counts_in: int | None = None) -> Publish:
        """Return the answer to an item of a gateway: taken, for another round than its own where one is given, or
        refused for this reason.
        """
        receipt = Receipt(accepted=not reason, reason=reason, counts_in=counts_in)
        return Publish(self.topic(gateway, "receipt", item), receipt.to_bytes())

    def challenge(self, gateway: str, number: int) -> Publish:
        """Return the answer to a status of a gateway: a number to be named in those that follow."""
        receipt = Receipt(accepted=True, challenge=number)
        return Publish(self.topic(gateway, "receipt", STATUS), receipt.to_bytes())


def find_device(statuses: Statuses, gateway: str) -> Device | None:
    """Return what a gateway has reported of what it watches."""
    return statuses[gateway].device if gateway in statuses else None
