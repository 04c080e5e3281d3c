"""The Ed25519 pairs of a site, whose public halves every gateway holds: the release key, which stays with the
aggregator, and the root key, which is kept elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedgate.config.runtime.files import PRIVATE_MODE, PUBLIC_MODE, write

# What cryptography raises for a file that it cannot read as a key: TypeError where it wants a password.
UNREADABLE = (OSError, ValueError, TypeError, UnsupportedAlgorithm)


class KeyFileError(ValueError):
    """A key file that cannot be used; the message names the file and what was expected."""


def make_key(private_path: Path, public_path: Path) -> None:
    """Write a new pair, the private half readable by its owner only; an existing private key is never overwritten.

    Raises `KeyFileError`, and then leaves no half of a pair behind.
    """
    if os.path.lexists(private_path):
        raise KeyFileError(f"{private_path}: a key exists already; move it away to make a new one")
    key = Ed25519PrivateKey.generate()
    halves = ((private_path, encode_private_key(key), PRIVATE_MODE), (public_path, encode_public_key(key), PUBLIC_MODE))
    for path, body, mode in halves:
        try:
            write(path, body, mode)
        except OSError as error:
            private_path.unlink(missing_ok=True)
            raise KeyFileError(f"{path}: cannot be written ({error.strerror}); make its folder first") from None


def encode_private_key(key: Ed25519PrivateKey | EllipticCurvePrivateKey) -> bytes:
    """Return a private key as it is stored."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def encode_public_key(key: Ed25519PrivateKey) -> bytes:
    """Return the public half as it is stored, and handed to gateways."""
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def digest_public_key(body: bytes) -> str:
    """Return the SHA-256 by which a token names a public key that is given in PEM; raises `KeyFileError`."""
    raw = read_public(body, "root key").public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()


def load_private(path: Path) -> Ed25519PrivateKey:
    """Return the private key in a PEM file; raises `KeyFileError`."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except UNREADABLE as error:
        raise KeyFileError(f"{path}: no Ed25519 private key ({error}); make one with 'cloud-aggregator init'") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(f"{path}: expected an Ed25519 private key, got {type(key).__name__}")
    return key


def load_public(path: Path) -> Ed25519PublicKey:
    """Return the public key in a PEM file; raises `KeyFileError`."""
    try:
        body = path.read_bytes()
    except OSError as error:
        raise KeyFileError(f"{path}: no Ed25519 public key ({error}); copy release.pub from the aggregator") from None
    return read_public(body, str(path))


def read_public(body: bytes, where: str) -> Ed25519PublicKey:
    """Return the public key in PEM bytes; raises `KeyFileError`, which says `where` they are from."""
    try:
        key = serialization.load_pem_public_key(body)
    except UNREADABLE as error:
        raise KeyFileError(f"{where}: no Ed25519 public key ({error}); copy release.pub from the aggregator") from None
    if not isinstance(key, Ed25519PublicKey):
        raise KeyFileError(f"{where}: expected an Ed25519 public key, got {type(key).__name__}")
    return key


def sign(key: Ed25519PrivateKey, message: bytes) -> str:
    """Return the signature in base64."""
    return base64.b64encode(key.sign(message)).decode()


def verify(key: Ed25519PublicKey, message: bytes, signature: str) -> bool:
    """Tell whether `signature` is the key's over `message`."""
    try:
        key.verify(base64.b64decode(signature, validate=True), message)
    except (InvalidSignature, ValueError):
        return False
    return True
