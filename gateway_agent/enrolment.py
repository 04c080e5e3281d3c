"""How this gateway gets its certificate, and a new one before that expires.

The key is made here and stays here. What leaves is a request that it signed; what comes back is checked against the
authority that the token named, or that the gateway has believed since. The certificate is written last, so a gateway
with a certificate has everything, and one that lost its power before can simply ask again.

Loads `cryptography`, so the agent runs this module as a child: a job on standard input, what came of it on standard
output.
"""

from __future__ import annotations

import json
import ssl
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from http import HTTPStatus
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from config import identity, signing
from config.identity import PUBLIC_MODE, IdentityError, PrivateKey, Token
from config.signing import KeyFileError
from config.tls import believing, trusting

CALL_S = 30.0
CERTIFICATE = "/v1/certificate"  # where one is asked for
ANSWER_BYTES_MAX = 64 * 1024
NOTICE_CHARACTERS = 400
BUSY = (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS)


class EnrolmentError(ValueError):
    """No certificate was had; the message says why and what to do."""


@dataclass(frozen=True)
class Files:
    """Where it all lies."""

    key: Path
    certificate: Path
    authority: Path
    release_key: Path


@dataclass(frozen=True)
class Validity:
    """From when to when a certificate is good, in s of Unix time."""

    not_before_s: float
    not_after_s: float
    is_new: bool = False  # made just now
    notice: str = ""  # what the aggregator has to say besides


def enrol(token: Token, files: Files, *, new_key: bool = False) -> Validity:
    """Get this gateway its certificate; the same call again, after whatever went wrong, goes on where that ended.

    Raises `EnrolmentError` where the aggregator cannot be reached, is not the one of the token, or refuses.
    """
    host, port = identity.split_address(token.address)
    unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE  # nothing is told, and the answer is checked
    authority = _called(host, port, unchecked, "/v1/authority", None)
    believed = identity.read_certificate(authority)
    alone = identity.certificate_pem(believed)
    if identity.fingerprint(believed) != token.authority or authority.strip() != alone.strip():
        raise EnrolmentError(
            f"who answers at {token.address} is not of the site that the token is for: the address is wrong, or "
            "someone stands between; nothing was sent"
        )
    context = believing(alone.decode())  # what was compared and nothing else
    key_file = files.key.with_name(f"{files.key.name}.new") if new_key and files.key.exists() else files.key
    key = identity.load_key(key_file) if key_file.exists() else identity.new_key(key_file)
    asked = question(token.gateway, key, token.secret, is_same_device=new_key)
    answer = _answer(_called(host, port, context, CERTIFICATE, asked), f"{host}:{port}")
    made = _checked(answer, key, token.gateway, believed)
    release_key = _release_key(answer["release_key"].encode(), token)
    identity.write(files.authority, alone, PUBLIC_MODE)
    identity.write(files.release_key, release_key, PUBLIC_MODE)
    if key_file != files.key:
        key_file.replace(files.key)
    identity.write(files.certificate, identity.certificate_pem(made), PUBLIC_MODE)
    return _validity(made, is_new=True, notice=_notice(answer))


def _release_key(body: bytes, token: Token) -> bytes:
    """Return the release key that the token names, as it is to be kept."""
    try:
        is_named = signing.public_digest(body) == token.release
    except KeyFileError as error:
        raise EnrolmentError(f"{error}; nothing was changed") from None
    if not is_named:
        raise EnrolmentError("the release key that came is not the one that the token names; nothing was changed")
    return body


def renew(gateway: str, address: str, files: Files) -> Validity:
    """Ask for a new certificate for the key that is here; the aggregator gives one where the old one is half used.

    Raises `EnrolmentError`; nothing that is here is lost by it.
    """
    host, port = identity.split_address(address)
    asked = question(gateway, identity.load_key(files.key))
    body = _called(host, port, trusting(files.authority), CERTIFICATE, asked)
    return renewed(gateway, files, body, f"{host}:{port}")


def renewed(gateway: str, files: Files, body: bytes, whose: str) -> Validity:
    """Keep the certificate of an answer, where it is another one than is here; raises as `renew` does.

    `whose` answer it is stands in an error: a captive portal may have given it.
    """
    key, held = identity.load_key(files.key), identity.load_certificate(files.certificate)
    answer = _answer(body, whose)
    made = _checked(answer, key, gateway, identity.load_certificate(files.authority))
    # Not by the later end: what was made while the aggregator's clock was ahead ends last and is not good yet.
    is_new = made.serial_number != held.serial_number
    if is_new:
        identity.write(files.certificate, identity.certificate_pem(made), PUBLIC_MODE)
    return _validity(made if is_new else held, is_new=is_new, notice=_notice(answer))


def asked_for_notice(gateway: str, address: str, files: Files) -> str:
    """Return what the aggregator has to say of this gateway, and keep nothing; raises as `renew` does."""
    host, port = identity.split_address(address)
    body = _called(host, port, trusting(files.authority), CERTIFICATE, question(gateway, identity.load_key(files.key)))
    return _notice(_answer(body, f"{host}:{port}"))


def validity(files: Files) -> Validity:
    """Return from when to when the certificate that is here is good."""
    return _validity(identity.load_certificate(files.certificate))


def _validity(certificate: x509.Certificate, *, is_new: bool = False, notice: str = "") -> Validity:
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return Validity(first.timestamp(), last.timestamp(), is_new, notice)


def _notice(answer: dict[str, str]) -> str:
    """Return what the aggregator says besides, as one line to be printed; those before 0.6 say nothing."""
    text = " ".join(str(answer.get("notice", ""))[:NOTICE_CHARACTERS].split())
    return "".join(one for one in text if one.isprintable())


def question(gateway: str, key: PrivateKey, secret: str = "", *, is_same_device: bool = False) -> bytes:
    """Return how a gateway asks for a certificate of its key: with the secret of its token, or with none to renew.

    One that had the name before and has made another key says that it is the same device, whose alarms go on.
    """
    asked = {"request": identity.make_request(key, gateway).decode(), "token": secret}
    return json.dumps(asked | ({"same_device": True} if is_same_device else {})).encode()


def _answer(body: bytes, whose: str) -> dict[str, str]:
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    names = ("certificate", "release_key")
    if not isinstance(answer, dict) or not all(isinstance(answer.get(name), str) for name in names):
        raise EnrolmentError(f"{whose}: expected a certificate in JSON, got {body[:80]!r}")
    return answer


def _called(host: str, port: int, context: ssl.SSLContext, path: str, body: bytes | None) -> bytes:
    """Return the answer to one question; raises `EnrolmentError` where there is none or it is no."""
    connection = HTTPSConnection(host, port, timeout=CALL_S, context=context)
    try:
        connection.request("GET" if body is None else "POST", path, body)
        response = connection.getresponse()
        answer = response.read(ANSWER_BYTES_MAX)
    except ssl.SSLCertVerificationError as error:
        raise EnrolmentError(
            f"{host}:{port}: its certificate is not to be trusted ({error.verify_message}); if this gateway's clock is "
            "right, the name or the authority is not"
        ) from None
    except (OSError, HTTPException) as error:
        raise EnrolmentError(f"{host}:{port}: the aggregator cannot be reached ({error}); try again") from None
    finally:
        connection.close()
    if response.status == HTTPStatus.OK:
        return answer
    again = "; try again" if response.status in BUSY else ""
    raise EnrolmentError(f"{host}:{port} refused: {_problem(answer)}{again}")


def _problem(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["problem"])[:400]
    except (ValueError, KeyError, TypeError):
        return repr(answer[:80])


def _checked(answer: dict[str, str], key: PrivateKey, gateway: str, authority: x509.Certificate) -> x509.Certificate:
    made = identity.read_certificate(answer["certificate"].encode())
    try:
        made.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        raise EnrolmentError("the certificate that came is not of the site's authority; nothing was changed") from None
    if made.public_key() != key.public_key() or identity.common_name(made) != gateway:
        raise EnrolmentError("the certificate that came is for another key or name; nothing was changed")
    return made


def main() -> int:
    """Do one job: `{"act": "look" | "renew", "gateway", "address", "files"}`."""
    job: dict[str, Any] = json.loads(sys.stdin.buffer.read())
    files = Files(**{name: Path(path) for name, path in job["files"].items()})
    acts: dict[str, Callable[[], Validity]] = {
        "look": lambda: validity(files),
        "renew": lambda: renew(job["gateway"], job["address"], files),
    }
    try:
        said = asdict(acts[job["act"]]())
    except (EnrolmentError, IdentityError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
