"""The statement of a site's keys: what its root key signs, made and checked.

Loads `cryptography`, as `fedgate.config.identity.pki` does.
"""

from __future__ import annotations

from collections.abc import Sequence

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedgate.config.identity import pki, signing
from fedgate.config.identity.pki import IdentityError
from fedgate.config.identity.signing import KeyFileError
from fedgate.config.protocol.messages import Keys, MessageError


class StatementError(ValueError):
    """A statement that is not to be believed; the message says why."""


class OlderError(StatementError):
    """A statement that is older than the one that is known."""


def sign(
    root: Ed25519PrivateKey,
    site: str,
    number: int,
    release_key: bytes,
    authorities: Sequence[bytes],
    created_ns: int,
    members: Sequence[str] = (),
) -> Keys:
    """Return the signed statement; keys and certificates are given in PEM, the newest authority first."""
    keys = Keys(
        site=site,
        number=number,
        release_key=release_key.decode(),
        authorities=tuple(one.decode() for one in authorities),
        created_ns=created_ns,
        members=tuple(members),
    )
    return keys.model_copy(update={"signature": signing.sign(root, keys.signed_bytes())})


def check(body: bytes, root: Ed25519PublicKey, held: bytes | None = None) -> Keys:
    """Return the statement in `body` where the root key signed it and it is whole; raises `StatementError`.

    `held` is the one that is known: one of the same root key must be of the same site and not be newer (`OlderError`).
    """
    try:
        keys = Keys.from_bytes(body)
        if not signing.verify(root, keys.signed_bytes(), keys.signature):
            raise StatementError("its signature is not the root key's")
        signing.read_public(keys.release_key.encode(), "release key")
        for one in keys.authorities:
            if pki.certificate_pem(pki.read_certificate(one.encode())).decode() != one:
                raise StatementError("expected one certificate for each authority")
    except (MessageError, KeyFileError, IdentityError) as error:
        raise StatementError(str(error)) from None
    known = find_known(root, held)
    if known is not None and known.site != keys.site:
        raise StatementError(f"it is of site {keys.site!r}, and this is site {known.site!r}")
    if known is not None and known.number > keys.number:
        raise OlderError(f"it is number {keys.number}, and number {known.number} is here")
    return keys


def find_known(root: Ed25519PublicKey, held: bytes | None) -> Keys | None:
    """Return the statement that is held where it is this root key's; None for none, or one of another site before."""
    try:
        return None if held is None else check(held, root)
    except StatementError:
        return None


def bundle(keys: Keys) -> bytes:
    """Return the certificates of the authorities as a file holds them, the newest first."""
    return "".join(keys.authorities).encode()
