"""What strangers send to be let in: tokens, requests for certificates, certificates, keys; whole, and broken inside."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedgate.config.identity import pki
from tests.fuzz.file_targets import from_file
from tests.fuzz.target import Target

KEY = ec.derive_private_key(7, ec.SECP256R1())
TOKEN = pki.Token("gateway-1", "aggregator.example:8884", "0123456789abcdef" * 4, "secret")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def pem(data: bytes, label: str) -> bytes:
    """Return bytes in the envelope that the readers open."""
    lines = re.findall(r".{1,64}", base64.b64encode(data).decode())
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""]).encode()


def _certificate() -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gateway-1")])
    made = x509.CertificateBuilder(name, name, KEY.public_key(), 5, BEGIN, BEGIN + timedelta(days=90))
    return made.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def _sealed_token(data: bytes) -> None:
    """Read a token whose check is right, whatever is in it."""
    body = base64.urlsafe_b64encode(data).decode().rstrip("=")
    token = pki.read_token(f"{pki.TOKEN_PREFIX}.{body}.{pki._check(body)}")
    assert pki.read_token(token.format()) == token


def _wrapped(reader: Callable[[bytes], object], label: str) -> Callable[[bytes], object]:
    return lambda data: reader(data if data.startswith(b"-----") else pem(data, label))


def _named(data: bytes) -> str:
    return pki.read_common_name(pki.read_certificate(data))


def targets() -> dict[str, Target]:
    """Return the targets of this file by name."""
    refused = (pki.IdentityError,)
    request = pki.make_request(KEY, "gateway-1")
    request_der = x509.load_pem_x509_csr(request).public_bytes(serialization.Encoding.DER)
    certificate, label = _certificate(), "CERTIFICATE"
    token = TOKEN.format()
    inside = base64.urlsafe_b64decode(token.split(".")[1] + "==")
    requests = _wrapped(pki.read_request, "CERTIFICATE REQUEST")

    def key(path: Path) -> object:
        return pki.load_key(path)

    return {
        "token": Target(lambda data: pki.read_token(data.decode(errors="replace")), refused, (token.encode(),)),
        "token-sealed": Target(_sealed_token, refused, (inside,), examples=200),
        "certificate-request": Target(requests, refused, (request, request_der), examples=300),
        "certificate": Target(_wrapped(_named, label), refused, (certificate, pem(certificate, label)), examples=300),
        "identity-key": Target(from_file(key, "identity.key"), refused, (pki.encode_private_key(KEY),)),
    }
