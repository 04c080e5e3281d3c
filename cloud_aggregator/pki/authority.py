"""The site's own authority: it makes the certificates of broker, aggregator and gateways, and the list of those
revoked.

All of it is files in one folder, which the broker reads too. The key of the authority stays in that folder. While one
authority takes the place of another, both stand in the files, the newest first: it makes all certificates from then on,
and who was revoked is on a list of each.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from fedgate.config.identity import pki
from fedgate.config.identity.pki import PRIVATE_MODE, PUBLIC_MODE, IdentityError, PublicKey
from fedgate.config.protocol.topics import CLOUD

CA_KEY, CA, SERVER_KEY, SERVER = "ca.key", "ca.pem", "server.key", "server.pem"
CLOUD_KEY, CLOUD_CERTIFICATE = "cloud.key", "cloud.pem"
REVOKED, ACCESS_LIST, OUTLIVED = "revoked.crl", "mosquitto.acl", "outlived.json"
BARRED = "# Revoked gateways. The aggregator writes what is below this line.\n"
# A gateway without a battery-backed clock boots in 1970 and must be able to believe the broker all the same.
SINCE_EVER = datetime(1970, 1, 1, tzinfo=UTC)
SKEW = timedelta(days=1)  # by which the clocks of aggregator and broker may differ
CA_VALIDITY = timedelta(days=30 * 365)
OWN_VALIDITY = timedelta(days=2 * 365)
CLIENT_USE = ExtendedKeyUsageOID.CLIENT_AUTH
RENEWED_BEFORE = OWN_VALIDITY / 3
KEY_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


class Authority:
    """The authority of a site, opened."""

    def __init__(self, folder: Path, skew: timedelta = SKEW) -> None:
        """Open it; raises `IdentityError` where its files are not there or cannot be used."""
        self.folder, self._skew = folder, skew
        keys = {pki.key_digest(key.public_key()): key for key in pki.load_keys(folder / CA_KEY)}
        certificates = pki.load_certificates(folder / CA)
        self._pairs = [(one, keys[name]) for one in certificates if (name := pki.find_holder(one)) in keys]
        if len(self._pairs) < len(certificates):
            raise IdentityError(f"{folder / CA}: {CA_KEY} beside it is not its key; restore the pair")
        self.certificate, self._key = self._pairs[0]

    @property
    def believed(self) -> list[x509.Certificate]:
        """The certificates of all authorities of the site, the newest first."""
        return [one for one, _ in self._pairs]

    @property
    def fingerprint(self) -> str:
        """The SHA-256 by which the registry knows which authority made a certificate."""
        return pki.fingerprint(self.certificate)

    def issue(self, name: str, key: PublicKey, serial: int, not_before: datetime, not_after: datetime) -> bytes:
        """Return a certificate, in PEM, with which `name` can log in at the broker."""
        span = (not_before - self._skew, not_after)
        return pki.certificate_pem(self._sign(name, key, serial, span, (CLIENT_USE,), ()))

    def _sign(
        self,
        name: str,
        key: PublicKey,
        serial: int,
        validity: tuple[datetime, datetime],
        usages: Iterable[ObjectIdentifier],
        hosts: Iterable[str],
    ) -> x509.Certificate:
        last = min(validity[1], self.certificate.not_valid_after_utc)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            _make_builder(name, self.certificate.subject, key, serial, (validity[0], last))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_make_usage("digital_signature"), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(issuer, critical=False)
        )
        if names := [_make_general_name(host) for host in hosts]:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def write_own(self, site: str, hosts: Iterable[str], now: datetime) -> None:
        """Write the certificates of the broker, for these hosts, and of the aggregator; their keys are kept."""
        for name, key_file, file, usages, names in (
            # A client, too: of itself, see `broker_watch`.
            ("broker", SERVER_KEY, SERVER, (ExtendedKeyUsageOID.SERVER_AUTH, CLIENT_USE), tuple(hosts)),
            (f"{CLOUD}.{site}", CLOUD_KEY, CLOUD_CERTIFICATE, (CLIENT_USE,), ()),
        ):
            path = self.folder / key_file
            key = pki.load_key(path) if path.exists() else pki.make_key(path)
            validity = (SINCE_EVER, now + OWN_VALIDITY)
            made = self._sign(name, key.public_key(), x509.random_serial_number(), validity, usages, names)
            pki.write(self.folder / file, pki.certificate_pem(made), PUBLIC_MODE)

    def has_own(self) -> bool:
        """Tell whether the two certificates of `write_own` are of an authority that is believed."""
        return all(pki.is_issued(one, self.believed) for one in self._own())

    def own_end(self) -> datetime:
        """Return when the first of the two certificates of `write_own` expires."""
        return min(one.not_valid_after_utc for one in self._own())

    def _own(self) -> list[x509.Certificate]:
        return [pki.load_certificate(self.folder / name) for name in (SERVER, CLOUD_CERTIFICATE)]

    def list_hosts(self) -> list[str]:
        """Return the hosts that the broker's certificate names."""
        held = pki.load_certificate(self.folder / SERVER)
        names = held.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        found = names.get_values_for_type(x509.DNSName)
        return [*found, *(str(address) for address in names.get_values_for_type(x509.IPAddress))]

    def write_revoked(self, revoked: Iterable[tuple[int, datetime]]) -> bool:
        """Write the list of revoked certificates, by serial number and moment; False where it said so already.

        There is one of each authority, all with the same in them: a broker takes nobody of an authority without one,
        and a serial number is not given twice. A list is good as long as the authority: were it to expire while the
        aggregator is away, the broker would refuse everybody.
        """
        wanted = dict(revoked)
        held = {issuer: one.keys() for issuer, one in self._read_lists().items()}
        if held == {one.subject: wanted.keys() for one in self.believed}:
            return False
        body = b"".join(self._list(*pair, wanted) for pair in self._pairs)
        pki.write(self.folder / REVOKED, body, PUBLIC_MODE)
        return True

    @staticmethod
    def _list(authority: x509.Certificate, key: pki.PrivateKey, revoked: dict[int, datetime]) -> bytes:
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(authority.subject)
            .last_update(SINCE_EVER)
            .next_update(authority.not_valid_after_utc)
        )
        for serial, moment in revoked.items():
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(moment)
            builder = builder.add_revoked_certificate(entry.build())
        return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def read_revoked(self) -> dict[int, datetime]:
        """Return serial number and moment of each certificate on the list, where there is one; raises
        `IdentityError`.
        """
        return {serial: at for one in self._read_lists().values() for serial, at in one.items()}

    def _read_lists(self) -> dict[x509.Name, dict[int, datetime]]:
        """Return the lists in the file, by the name of their authority; none where there is no file."""
        path = self.folder / REVOKED
        if not path.exists():
            return {}
        try:
            held = [x509.load_pem_x509_crl(one) for one in pki.split_pem(path.read_bytes())]
            if not held:
                raise ValueError("nothing in PEM")
            return {one.issuer: {entry.serial_number: entry.revocation_date_utc for entry in one} for one in held}
        except ValueError as error:
            text = f"{path}: no list of revoked certificates ({error}); remove it, it is made anew"
            raise IdentityError(text) from None

    def write_barred(self, gateways: Collection[str]) -> bool:
        """Write who is barred into the access list, below what the operator has there; False where it stood there."""
        path = self.folder / ACCESS_LIST
        before = path.read_text(encoding="utf-8")
        if not gateways and BARRED not in before:
            return False
        lines = "".join(f"user {name}\ntopic deny #\n" for name in sorted(gateways))
        after = f"{before.partition(BARRED)[0].rstrip()}\n\n{BARRED}{lines}"
        if after == before:
            return False
        pki.write(path, after.encode(), PRIVATE_MODE)
        return True


def open_authority(folder: Path, site: str, now: datetime) -> Authority:
    """Make the authority of a site where there is none yet, and open it."""
    path = folder / CA_KEY
    key = pki.load_key(path) if path.exists() else pki.make_key(path)
    if not (folder / CA).exists():
        pki.write(folder / CA, make_authority_certificate(f"fedgate {site}", key, now), PUBLIC_MODE)
    return Authority(folder)


def make_authority_certificate(name: str, key: pki.PrivateKey, now: datetime) -> bytes:
    """Return the certificate of an authority, in PEM. Two that are believed at a time have names that differ: by name a
    broker finds the list of revoked certificates.
    """
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        _make_builder(name, issuer, key.public_key(), x509.random_serial_number(), (SINCE_EVER, now + CA_VALIDITY))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_make_usage("key_cert_sign", "crl_sign"), critical=True)
    )
    return pki.certificate_pem(builder.sign(key, hashes.SHA256()))


def _make_builder(
    name: str, issuer: x509.Name, key: PublicKey, serial: int, validity: tuple[datetime, datetime]
) -> x509.CertificateBuilder:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    return (
        x509.CertificateBuilder(issuer_name=issuer, subject_name=subject, public_key=key, serial_number=serial)
        .not_valid_before(validity[0])
        .not_valid_after(validity[1])
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _make_usage(*purposes: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in purposes for usage in KEY_USAGES})


def _make_general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
