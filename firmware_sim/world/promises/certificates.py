"""What a simulated world promises of certificates, and whether it was kept.

Who is revoked, and which certificates there are, is what the aggregator committed; who has which, what lies in the
gateways' folders; who is let in, what the broker did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization

from fedgate.cloud_aggregator import events
from fedgate.cloud_aggregator.access.registry import Registry
from fedgate.cloud_aggregator.enrolment import Certificate, RecordRegistry
from fedgate.config.identity import pki
from fedgate.config.identity.pki import PrivateKey
from fedgate.firmware_sim.world.environment.setup import gateway_of
from fedgate.firmware_sim.world.promises.devices import BY_AGGREGATOR
from fedgate.gateway_agent.runtime.enrolment import CALL_S
from fedgate.gateway_agent.runtime.membership import Files

SLACK_S = 1.0  # certificates know whole seconds


class Certificates:
    """The certificates of a world; times in s of Unix time are those of the world, which no machine's clock changes."""

    def __init__(self, violate: Callable[[str], None], now_s: Callable[[], float]) -> None:
        self._violate, self._now_s = violate, now_s
        self._known: dict[str, Certificate] = {}  # by serial: as committed
        self._offered: dict[str, tuple[str, str]] = {}  # serial of a question that has none yet -> gateway and key
        self._revoked: set[str] = set()
        self._orders: dict[int, str] = {}  # number -> who is to be revoked
        self._notified: set[str] = set()  # gateways of which the operator was told that they are out
        self._counted: dict[str, set[str]] = {}  # by gateway: updates of stored trainings
        self._secrets: dict[str, list[bytes]] = {}  # by gateway: its private key, in all forms
        self.counts = {"renewed": 0, "revoked": 0}

    def founded(self, made: Certificate, key: PrivateKey) -> None:
        """Take note of a certificate that a gateway has from the beginning, and of its key."""
        self._offered[made.serial] = (made.gateway, made.key)
        encoding, plain = serialization.Encoding, serialization.NoEncryption()
        der = key.private_bytes(encoding.DER, serialization.PrivateFormat.PKCS8, plain)
        number = key.private_numbers().private_value.to_bytes(32, "big")
        lines = [line for line in pki.encode_private_key(key).splitlines() if not line.startswith(b"-")]
        self._secrets[made.gateway] = [number, number.hex().encode(), der, max(lines, key=len)]

    @property
    def out(self) -> frozenset[str]:
        """Those who were revoked, and have not been let in again."""
        return frozenset(self._revoked)

    def ordered(self, number: int, gateway: str) -> None:
        """Take note of an order to revoke a gateway."""
        self._orders[number] = gateway

    # What the aggregator does.

    def asked(self, serial: str, gateway: str, key: str) -> None:
        """Take note of a question that comes to the machine; a certificate for it has this serial number."""
        self._offered[serial] = (gateway, key)

    def committed(self, effects: Sequence[Any]) -> None:
        """Take note of what the aggregator's store holds from now on."""
        for effect in effects:
            match effect:
                case RecordRegistry(certificates=certificates):
                    for certificate in certificates:
                        self._recorded(certificate)
                case events.RecordAlarm(gateway=name, ended="", alarm=one) if not one.cause.startswith(BY_AGGREGATOR):
                    self._counts(name, "an alarm")
                case events.Answered(number=number, text=text, problem="") if text and number in self._orders:
                    self._notified.add(self._orders[number])
                case events.RecordScores(gateway=name):
                    self._counts(name, "scores")
                case events.RecordSummary(gateway=name):
                    self._counts(name, "a summary")
                case events.RecordLoss(gateway=name):
                    self._counts(name, "a tombstone")
                case events.RecordGateway(gateway=name):
                    self._counts(name, "a status")
                case events.HoldUpdate(gateway=name, digest=digest) if digest not in self._counted.get(name, ()):
                    self._counts(name, "an update")
                case events.SaveTraining(meta=meta):
                    for name, digest in meta["counted"].items():
                        if digest not in self._counted.setdefault(name, set()):
                            self._counts(name, "an update")
                        self._counted[name].add(digest)

    def _counts(self, gateway: str, what: str) -> None:
        if gateway in self._revoked:
            self._violate(f"{what} of {gateway} counted after it was revoked")

    def _recorded(self, one: Certificate) -> None:
        known = self._known.get(one.serial)
        if known is None and self._offered.pop(one.serial, None) != (one.gateway, one.key):
            self._violate(f"a certificate of {one.gateway} was made for which it did not ask")
        self._known[one.serial] = one
        if one.reason and all(each.reason for each in self._known.values() if each.gateway == one.gateway):
            self.counts["revoked"] += one.gateway not in self._revoked
            self._revoked.add(one.gateway)

    def opened(self, registry: Registry) -> None:
        """See that a restart knows of each certificate what was committed."""
        if registry.certificates != self._known:
            self._violate("a restart went on with other certificates than were stored")

    def answered(self, gateway: str, key: str, serial: str) -> None:
        """See that a device is handed what is its own, stored and not revoked."""
        one = self._known.get(serial)
        if one is None:
            self._violate(f"a certificate was handed to {gateway} that is not stored")
        elif (one.gateway, one.key) != (gateway, key) or one.reason:
            self._violate(f"a certificate of {one.gateway} was handed to {gateway}, reason {one.reason!r}")

    def silent(self, gateway: str) -> None:
        """Take note of a question that a running aggregator did not answer."""
        self._violate(f"{gateway} asked for a certificate and got no answer")

    def turned_away(self, gateway: str, why: str, *, is_clock_right: bool) -> None:
        """See that nobody is turned away who belongs here."""
        if gateway not in self._revoked and is_clock_right:
            self._violate(f"{gateway} gets no certificate: {why}")

    # What gateways do.

    def looked(self, device: str, files: Files, share: float, *, can_judge: bool, asks: bool) -> None:
        """See that a gateway asks late in the life of its certificate and after it, where it can tell."""
        held = pki.load_certificate(files.certificate)
        first_s, last_s = held.not_valid_before_utc.timestamp(), held.not_valid_after_utc.timestamp()
        if can_judge and self._now_s() > first_s + share * (last_s - first_s) + SLACK_S and not asks:
            left_s = last_s - self._now_s()
            self._violate(f"{device} does not ask for a new certificate; its own ends in {left_s:.0f} s")

    def waits(self, device: str, wait_s: float, within_s: float) -> None:
        """See that a gateway looks often enough."""
        if wait_s > within_s + SLACK_S:
            self._violate(f"{device} looks at its certificate only in {wait_s:.0f} s")

    def stored(self, device: str, files: Files) -> None:
        """See that key and certificate of a device are a pair, whatever happened."""
        try:
            key, held = pki.load_key(files.key), pki.load_certificate(files.certificate)
        except pki.IdentityError as error:
            self._violate(f"{device} has no usable pair: {type(error).__name__}")
            return
        if held.public_key() != key.public_key():
            self._violate(f"{device} has a certificate of another key")

    def renewed(self, device: str, files: Files, skew_s: float, *, was: int, is_clock_right: bool) -> None:
        """See that what a gateway got is good for half of its life, where the aggregator that made it knew the time."""
        self.stored(device, files)
        held = pki.load_certificate(files.certificate)
        self.counts["renewed"] += held.serial_number != was
        first_s, last_s = held.not_valid_before_utc.timestamp() + skew_s, held.not_valid_after_utc.timestamp()
        left_s = last_s - self._now_s()
        if is_clock_right and not (last_s - first_s) / 2 <= left_s + CALL_S + SLACK_S:
            self._violate(f"{device} was given a certificate that ends in {left_s:.0f} s")

    def leaves(self, device: str, body: bytes) -> None:
        """See that nothing that leaves a gateway holds its key."""
        if any(secret in body for secret in self._secrets.get(gateway_of(device), ())):
            self._violate(f"{device} sent its private key")

    # What the broker does.

    def let_in(self, device: str) -> None:
        """See that nobody is let in of whom the operator was told that he is out."""
        if gateway_of(device) in self._notified:
            self._violate(f"{device} was let in, and its order says that it is revoked")

    # The end.

    def audit(self, folder: Path, own: Mapping[str, Set[Path]]) -> dict[str, int]:
        """See that no key lies anywhere but with its gateway, of which these are the files; return what there was."""
        for path in sorted(folder.rglob("*")):
            body = path.read_bytes() if path.is_file() else b""
            for name, secrets in self._secrets.items():
                if path not in own[name] and any(secret in body for secret in secrets):
                    self._violate(f"the private key of {name} lies in {path.name}")
        return self.counts
