"""Certificates and tokens as they are kept, what devices and operators want of them, and what is to be done about it:
the part of `events` that is about who belongs to the site.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedgate.config.protocol.messages import Keys

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Reason = Literal["", "revoked", "removed", "replaced"]


@dataclass(frozen=True)
class Certificate:
    """One certificate of a gateway, without its bytes: it can be made again from this and the gateway's request."""

    serial: str  # hexadecimal: it has more bits than a database counts with
    gateway: str
    key: str  # SHA-256 of the public key
    issued_ns: int
    not_after_ns: int
    reason: Reason = ""  # why it counts no more; empty: it does
    ended_ns: int = 0
    authority: str = ""  # SHA-256 of the certificate of the one that made it


@dataclass(frozen=True)
class Token:
    """What is kept of a token: enough to know it again, and not enough to use it."""

    digest: str
    gateway: str
    expires_ns: int
    replaces: bool  # whether it may put another device in the place of the one that has the name
    key: str = ""  # of the device that used it


@dataclass(frozen=True)
class CertificateRequested:
    """A device asks for a certificate, and has proved that it holds the key; an event."""

    number: int  # of the request, for the answer
    gateway: str
    key: str
    serial: str  # that a new certificate is to get: drawn outside, where randomness is
    digest: str = ""  # of its token; empty: it has been enrolled and renews
    is_same_device: bool = False  # it says that it had the name before, and has made another key
    authority: str = ""  # that would make the certificate


@dataclass(frozen=True)
class Listed:
    """What the broker's list of revoked certificates names, by serial and moment, at the start; an event."""

    ended: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class RecordRegistry:
    """Store certificates and tokens, or what has become of them, and remove those that can be of no use any more."""

    certificates: tuple[Certificate, ...] = ()
    passes: tuple[Token, ...] = ()
    old_certificates: frozenset[str] = frozenset()  # by serial: they expired long ago
    old_passes: frozenset[str] = frozenset()  # by digest: they expired or are void


@dataclass(frozen=True)
class ForgetGateway:
    """Remove the last status of a gateway: it is gone for good."""

    gateway: str


@dataclass(frozen=True)
class Issue:
    """Sign this certificate and hand it to the device whose request had this number."""

    number: int
    certificate: Certificate


@dataclass(frozen=True)
class Reject:
    """Tell the device whose request had this number why it gets none."""

    number: int
    reason: str


@dataclass(frozen=True)
class Revoke:
    """Make the broker shut out all whose certificates ended, and cut the living connections of some."""

    ended: tuple[tuple[str, int], ...]
    barred: frozenset[str]
    cut: tuple[str, ...]
    outlived: tuple[tuple[str, str], ...] = ()  # see `Registry.list_outlived`
    order: int = 0  # whose answer waits for this; 0: none
    answer: str = ""


@dataclass(frozen=True)
class Revoked:
    """The broker was notified, or could not be: `problem` says why; an event."""

    order: int
    answer: str
    problem: str


@dataclass(frozen=True)
class Denied:
    """Whom the broker denies until it is restarted, of those whose names are good; an event."""

    gateways: frozenset[str]


@dataclass(frozen=True)
class TakeKeys:
    """Go by the statement of keys that an operator has put there."""

    order: int  # whose answer waits for this


@dataclass(frozen=True, eq=False)
class Stated:
    """The keys that the site goes by: as its root key stated them, and the release key itself; an event."""

    keys: Keys
    body: bytes  # the statement as it was signed
    release_key: Ed25519PrivateKey
    order: int = 0  # which is answered with this; 0: none
    problem: str = ""  # with the broker, which is to know of them too


@dataclass(frozen=True)
class NotStated:
    """The statement of keys that an operator has put there cannot be used; an event."""

    order: int
    problem: str


Recorded = RecordRegistry | ForgetGateway
EnrolmentEffect = Issue | Reject | Revoke | TakeKeys
