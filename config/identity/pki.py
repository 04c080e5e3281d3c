"""Who is who at a site: keys, requests for certificates, and the tokens that admit a gateway.

What both ends must agree on stands here; who signs, and for whom, is the aggregator's
(`fedgate.cloud_aggregator.pki.authority`). The keys are ECDSA P-256, which Mosquitto, OpenSSL and the TLS stacks of
small sensor nodes all take; Ed25519, which signs models, is missing in many of the last.

This module loads `cryptography`. On a gateway that happens in a process that ends again, never in the agent.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pydantic import TypeAdapter

from fedgate.config.identity.signing import encode_private_key as encode_private_key
from fedgate.config.protocol.messages import MEMBER_DIGITS, Digest
from fedgate.config.protocol.topics import ALL, CLOUD, ID
from fedgate.config.runtime.files import PRIVATE_MODE as PRIVATE_MODE
from fedgate.config.runtime.files import PUBLIC_MODE as PUBLIC_MODE
from fedgate.config.runtime.files import lock_folder as lock_folder
from fedgate.config.runtime.files import write as write

REQUEST_BYTES_MAX = 8 * 1024
SECRET_BYTES = 32
CHECK_CHARACTERS = 8  # of a digest at the end of a token, so that one that was cut short is known as such
TOKEN_PREFIX = "fedgate1"  # noqa: S105 - the format, which is no secret
TOKEN_CHARACTERS_MAX = 1_024
ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):(?P<port>[0-9]{1,5})")
PORT_MAX = 65_535
# Names with rights of their own in the access list. A gateway of such a name would have them.
RESERVED = frozenset({ALL, CLOUD, "broker", "operator", "building", "home-assistant"})
# Ends of client ids under which a gateway connects a second time; whoever is cut off loses these too.
OTHER_CLIENTS = (".sensors", ".doctor", ".doctor-queue")
PEM_BLOCK = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----\n.*?\n-----END \1-----", re.DOTALL)
PrivateKey = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey


class IdentityError(ValueError):
    """A key, a certificate, a request or a token that cannot be used; the message says what was expected."""


@dataclass(frozen=True)
class Token:
    """What an operator hands to whoever installs a gateway: it admits one device under one name, once."""

    gateway: str
    address: str  # of the aggregator's enrolment, host:port
    root: Digest  # SHA-256 of the site's root key, which says what else to believe
    secret: str

    @property
    def digest(self) -> str:
        """What the aggregator keeps of it."""
        return digest_token(self.secret)

    def format(self) -> str:
        """Return the token as one word that can be copied."""
        body = base64.urlsafe_b64encode(json.dumps(asdict(self), separators=(",", ":")).encode()).decode().rstrip("=")
        return f"{TOKEN_PREFIX}.{body}.{_check(body)}"


def digest_token(secret: str) -> str:
    """Return what is kept of a token's secret, which has 256 random bits and so needs no slow digest."""
    return hashlib.sha256(secret.encode()).hexdigest()


def read_token(text: str) -> Token:
    """Return a token from its text; raises `IdentityError`."""
    prefix, _, rest = text.strip().partition(".")
    body, _, check = rest.partition(".")
    if prefix != TOKEN_PREFIX or len(text) > TOKEN_CHARACTERS_MAX or check != _check(body):
        raise IdentityError(
            "token: it is not whole; copy all that 'cloud-aggregator gateways token' printed, in one line"
        )
    try:
        token = TypeAdapter(Token).validate_json(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), strict=True)
    except ValueError:  # of base64 or of pydantic
        raise IdentityError("token: it is not of this version; update fedgate here or at the aggregator") from None
    check_gateway(token.gateway)
    split_address(token.address)
    return token


def _check(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:CHECK_CHARACTERS]


def check_gateway(name: str) -> None:
    """Raise `IdentityError` where a gateway must not have this name."""
    if not ID.fullmatch(name):
        raise IdentityError(f"gateway {name[:80]!r}: expected 1 to 64 of A-Z a-z 0-9 _ . -")
    if name in RESERVED or name.startswith(f"{CLOUD}.") or name.endswith(OTHER_CLIENTS):
        raise IdentityError(f"gateway {name!r}: the name has rights of its own at the broker; take another")


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of `host:port`; raises `IdentityError`."""
    found = ADDRESS.fullmatch(text)
    if found is None or not 0 < int(found["port"]) <= PORT_MAX:
        raise IdentityError(f"address {text[:80]!r}: expected host:port, such as aggregator.example:8884")
    return found["host"].strip("[]"), int(found["port"])


def make_key(path: Path) -> PrivateKey:
    """Make a key, readable by its owner only, and return it; an existing file raises `IdentityError`."""
    if path.exists():
        raise IdentityError(f"{path}: a key exists already; move it away to make a new one")
    key = create_key()
    write(path, encode_private_key(key), PRIVATE_MODE)
    return key


def create_key() -> PrivateKey:
    """Return a new key that lies nowhere yet."""
    return ec.generate_private_key(ec.SECP256R1())


def load_key(path: Path) -> PrivateKey:
    """Return the private key in a file; raises `IdentityError`."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise IdentityError(f"{path}: no private key ({error}); expected one in PEM, without a password") from None
    if not isinstance(key, PrivateKey):
        raise IdentityError(f"{path}: expected a P-256 private key, got {type(key).__name__}")
    return key


def load_keys(path: Path) -> list[PrivateKey]:
    """Return the private keys that stand in a file one behind the other; raises `IdentityError`."""
    first = load_key(path)  # which says what is wrong with it
    others = [serialization.load_pem_private_key(one, password=None) for one in split_pem(path.read_bytes())[1:]]
    return [first, *(key for key in others if isinstance(key, PrivateKey))]


def load_certificates(path: Path) -> list[x509.Certificate]:
    """Return the certificates that stand in a file one behind the other; raises `IdentityError`."""
    try:
        return _read_certificates(path.read_bytes())
    except (OSError, IdentityError) as error:
        raise IdentityError(f"{path}: {error}") from None


def find_holder(certificate: x509.Certificate) -> str:
    """Return the digest of the key that a certificate is of, see `key_digest`; empty for a key of another kind."""
    key = certificate.public_key()
    return key_digest(key) if isinstance(key, PublicKey) else ""


def load_certificate(path: Path) -> x509.Certificate:
    """Return the first certificate in a PEM file; raises `IdentityError`."""
    return load_certificates(path)[0]


def read_certificate(body: bytes) -> x509.Certificate:
    """Return the first certificate in PEM bytes; raises `IdentityError`."""
    return _read_certificates(body)[0]


def _read_certificates(body: bytes) -> list[x509.Certificate]:
    try:
        certificates = x509.load_pem_x509_certificates(body)
        for one in certificates:
            _ = one.public_key(), one.subject, one.not_valid_after_utc  # parsed only when they are asked for
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise IdentityError(f"no certificate ({error}); expected one in PEM") from None
    return certificates


def split_pem(body: bytes) -> list[bytes]:
    """Return the keys, certificates or lists that stand in a PEM file one behind the other."""
    return [found[0] + b"\n" for found in PEM_BLOCK.finditer(body)]


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """Return a certificate as it is stored and sent."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def is_issued(certificate: x509.Certificate, authorities: Iterable[x509.Certificate]) -> bool:
    """Tell whether a certificate is of one of these authorities."""
    for one in authorities:
        with suppress(ValueError, TypeError, InvalidSignature):
            certificate.verify_directly_issued_by(one)
            return True
    return False


def fingerprint(certificate: x509.Certificate) -> str:
    """Return the SHA-256 of a certificate, in hexadecimal."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def key_digest(key: PublicKey) -> str:
    """Return the SHA-256 of a public key, by which it is known whatever certificate it is in."""
    body = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(body).hexdigest()


def name_member(key: PublicKey) -> str:
    """Return how a statement of keys names a member: the first 32 of the 64 digits of the digest, which nobody can meet
    with another key.
    """
    return key_digest(key)[:MEMBER_DIGITS]


def make_request(key: PrivateKey, name: str) -> bytes:
    """Return a request for a certificate: the name and the public key, signed by the private one."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def read_request(body: bytes) -> tuple[str, PublicKey]:
    """Return name and key of a request whose maker holds that key; raises `IdentityError` for any other bytes."""
    if len(body) > REQUEST_BYTES_MAX:
        raise IdentityError(f"request of {len(body)} bytes; at most {REQUEST_BYTES_MAX} are read")
    try:
        request = x509.load_pem_x509_csr(body)
        key, is_signed = request.public_key(), request.is_signature_valid
        names = [str(one.value) for one in request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise IdentityError(f"request: not a certificate request ({error})") from None
    if not isinstance(key, PublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise IdentityError("request: expected a P-256 key")
    if not is_signed:
        raise IdentityError("request: its signature is not of its own key, so its sender may not hold that key")
    if len(names) != 1:
        raise IdentityError(f"request: expected one common name, got {len(names)}")
    check_gateway(names[0])
    return names[0], key


def read_common_name(certificate: x509.Certificate) -> str:
    """Return whom a certificate names."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""
