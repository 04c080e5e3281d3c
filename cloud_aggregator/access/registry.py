"""Who was let in: every certificate and every token of a site, as the store holds them, and what changes them.

The registry is the truth. The list of revoked certificates and the access list of the broker are made from it, again at
each start, so nothing is lost where the power fails between the two.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from fedgate.cloud_aggregator.enrolment import Certificate, Reason, RecordRegistry, Revoke, Token
from fedgate.config.protocol.messages import MEMBER_DIGITS

NAMELESS = "?"  # whose a certificate is that only the list of revoked ones knows; no gateway can have this name
ROLES = frozenset({"operator", "building", "home-assistant"})  # who may look on, and is no gateway


@dataclass(frozen=True)
class Registry:
    """All of it; a part of the aggregator's state where [identity] is set."""

    certificates: dict[str, Certificate] = field(default_factory=dict)  # by serial
    passes: dict[str, Token] = field(default_factory=dict)  # by digest

    @cached_property
    def names(self) -> frozenset[str]:
        """All who were ever certified, and are not forgotten."""
        return frozenset(one.gateway for one in self.certificates.values()) - {NAMELESS}

    @cached_property
    def admitted(self) -> frozenset[str]:
        """The gateways that belong to the site; who looks on is none, whatever he sends."""
        return self._living - ROLES

    @cached_property
    def members(self) -> dict[str, str]:
        """Return whose each key is that gateways are enrolled with, as a statement of keys names it."""
        held = (one for one in self.certificates.values() if not one.reason and one.key)
        return {one.key[:MEMBER_DIGITS]: one.gateway for one in held if one.gateway in self.admitted}

    @cached_property
    def keys(self) -> dict[str, frozenset[str]]:
        """The keys that each gateway was ever enrolled with, as an update under masks names them."""
        held: dict[str, frozenset[str]] = {}
        for one in self.certificates.values():
            held[one.gateway] = held.get(one.gateway, frozenset()) | {one.key[:MEMBER_DIGITS]}
        return held

    @cached_property
    def barred(self) -> frozenset[str]:
        """Who had a certificate, and has none any more."""
        return self.names - self._living

    @cached_property
    def revoked_keys(self) -> dict[str, str]:
        """Whose each key was that was revoked: nobody is let in with one, whatever he calls himself."""
        over = (one for one in self.certificates.values() if one.reason == "revoked" and one.key)
        return {one.key: one.gateway for one in over}

    @cached_property
    def _living(self) -> frozenset[str]:
        return frozenset(one.gateway for one in self.certificates.values() if not one.reason)

    def list_certificates(self, gateway: str) -> list[Certificate]:
        """Return the certificates of a gateway, the newest last."""
        held = [one for one in self.certificates.values() if one.gateway == gateway]
        return sorted(held, key=lambda one: (one.not_after_ns, one.serial))

    def with_certificates(self, *made: Certificate) -> Registry:
        """Return the registry with certificates more, or others of the same serial."""
        return replace(self, certificates={**self.certificates, **{one.serial: one for one in made}})

    def without_certificates(self, serials: Iterable[str]) -> Registry:
        """Return the registry without these certificates."""
        kept = {serial: one for serial, one in self.certificates.items() if serial not in serials}
        return replace(self, certificates=kept)

    def with_ended(self, certificates: Iterable[Certificate], reason: Reason, now_ns: int) -> Registry:
        """Return the registry with those certificates ended that count."""
        over = [replace(one, reason=reason, ended_ns=now_ns) for one in certificates if not one.reason]
        return self.with_certificates(*over)

    def with_pass(self, token: Token) -> Registry:
        """Return the registry with a token more, or another of the same digest."""
        return replace(self, passes={**self.passes, token.digest: token})

    def without_passes(self, digests: Iterable[str]) -> Registry:
        """Return the registry without these tokens."""
        return replace(self, passes={digest: one for digest, one in self.passes.items() if digest not in digests})

    def without(self, gateway: str, reason: Reason, now_ns: int) -> Registry:
        """Return the registry with a gateway out and its tokens void: nobody comes by one that lies about."""
        void = [one.digest for one in self.passes.values() if one.gateway == gateway]
        return self.with_ended(self.list_certificates(gateway), reason, now_ns).without_passes(void)

    def list_lacking(self, authority: str, now_ns: int) -> list[str]:
        """Return who would be shut out with all authorities but this one, and is good until then."""
        living = [one for one in self.certificates.values() if not one.reason and one.not_after_ns > now_ns]
        having = {one.gateway for one in living if one.authority == authority} - ROLES  # of whom there may be several
        return sorted({one.gateway for one in living if one.authority != authority} - having)

    def is_over(self, serial: str) -> bool:
        """Tell whether a certificate is known, and counts no more."""
        one = self.certificates.get(serial)
        return one is not None and bool(one.reason)

    def list_ended(self) -> tuple[tuple[str, int], ...]:
        """Return serial and moment of each certificate that counts no more."""
        return tuple((one.serial, one.ended_ns) for one in self.certificates.values() if one.reason)

    def list_outlived(self) -> tuple[tuple[str, str], ...]:
        """Return serial and name of each certificate that counts no more and whose name is good all the same."""
        over = (one for one in self.certificates.values() if one.reason)
        return tuple((one.serial, one.gateway) for one in over if one.gateway in self._living)


def list_changes(before: Registry, after: Registry) -> list[RecordRegistry | Revoke]:
    """Return what stores the difference of two registries, and what the broker is to know of it."""
    stored = RecordRegistry(
        tuple(one for serial, one in after.certificates.items() if before.certificates.get(serial) != one),
        tuple(one for digest, one in after.passes.items() if before.passes.get(digest) != one),
        frozenset(before.certificates.keys() - after.certificates.keys()),
        frozenset(before.passes.keys() - after.passes.keys()),
    )
    found: list[RecordRegistry | Revoke] = [stored] if stored != RecordRegistry() else []
    ended = {one.gateway for one in stored.certificates if one.reason}
    if ended or before.barred != after.barred:
        found.append(Revoke(after.list_ended(), after.barred, tuple(sorted(ended)), after.list_outlived()))
    return found
