"""What a device asks of the enrolment server, read from the body of its request."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus

from fedgate.config.identity import pki
from fedgate.config.identity.pki import IdentityError, PublicKey

EXPECTED = 'body: expected JSON {"request": PEM, "token": text}'
Answer = tuple[HTTPStatus, dict[str, str]]


@dataclass(frozen=True)
class EnrolmentRequest:
    """The name that a device wants, and the key that it has proved to hold."""

    gateway: str
    key: PublicKey
    secret: str  # of its token; empty for a renewal
    is_same_device: bool = False  # see `enrolment.CertificateRequested`


def read_request(body: bytes) -> EnrolmentRequest:
    """Return what the body of a request asks; raises `IdentityError`."""
    try:
        given = json.loads(body)
        request, secret, is_same = given["request"], given.get("token", ""), given.get("same_device", False)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise IdentityError(EXPECTED) from None
    if not isinstance(request, str) or not isinstance(secret, str):
        raise IdentityError(EXPECTED)
    return EnrolmentRequest(*pki.read_request(request.encode(errors="replace")), secret, is_same is True)
