"""How this gateway gets its certificate, and a new one before that expires.

The key is made here and stays here. What leaves is a request that it signed; what comes back is checked against the
authority that the site's root key names, and that key is the one of the token. The certificate is written last, so a
gateway with a certificate has everything, and one that lost its power before can simply ask again.

Loads `cryptography`, so the agent runs this module as a child: a job on standard input, what came of it on standard
output.
"""

from __future__ import annotations

import json
import ssl
import sys
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from fedgate.config.identity import pki, signing, statement
from fedgate.config.identity.pki import PRIVATE_MODE, PUBLIC_MODE, IdentityError, PrivateKey, Token
from fedgate.config.identity.signing import KeyFileError
from fedgate.config.identity.statement import OlderError, StatementError
from fedgate.config.protocol.messages import Keys
from fedgate.config.runtime.files import sync_folder
from fedgate.config.transport.tls import trust
from fedgate.gateway_agent.runtime import trusted_keys
from fedgate.gateway_agent.runtime.membership import Files, locate_coming

CALL_S = 30.0
CERTIFICATE, KEYS = "/v1/certificate", "/v1/keys"  # where one is asked for, and which keys the site goes by
ANSWER_BYTES_MAX = 64 * 1024
NOTICE_CHARACTERS = 400
BUSY = (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS)


class EnrolmentError(ValueError):
    """No certificate was had; the message says why and what to do."""


@dataclass(frozen=True)
class Validity:
    """From when to when a certificate is good, in s of Unix time."""

    not_before_s: float
    not_after_s: float
    is_new: bool = False  # made just now
    notice: str = ""  # what the aggregator has to say besides
    is_superseded: bool = False  # of an authority that has been replaced since


def enrol(token: Token, files: Files, *, new_key: bool = False) -> Validity:
    """Get this gateway its certificate; the same call again, after whatever went wrong, goes on where that ended.

    Raises `EnrolmentError` where the aggregator cannot be reached, is not the one of the token, or refuses.
    """
    stated = _read_stated(token.address)
    keys = _fetch_keys(token, stated, files)
    believed = pki.read_certificate(keys.authorities[0].encode())
    context = trust(authorities=statement.bundle(keys).decode())  # what was checked and nothing else
    files.put_in_place()
    key = _key_for(token, files, new_key=new_key)
    asked = question(token.gateway, key, token.secret, is_same_device=new_key)
    answer = _read_certificate(_ask(token.address, context, CERTIFICATE, asked), token.address)
    made = _check(answer, key, token.gateway, believed)
    pki.write(files.root_key, stated["root_key"].encode(), PUBLIC_MODE)
    trusted_keys.keep(files, keys, stated["keys"].encode())
    pki.write(locate_coming(files.certificate), pki.certificate_pem(made), PUBLIC_MODE)
    files.put_in_place()
    return _read_validity(made, is_new=True, notice=_notice(answer))


def _key_for(token: Token, files: Files, *, new_key: bool) -> PrivateKey:
    """Return the key that this token is for: the one made for it before, else one made now, else the one in use.

    A key that is made in place of another says for which token, in a line before it, so that the same command goes on
    with the same key wherever it was interrupted, and with another token begins with another key.
    """
    made_for, following = f"made for token {token.digest}\n".encode(), locate_coming(files.key)
    for path in (following, files.key):
        if path.exists() and path.read_bytes().startswith(made_for):
            return pki.load_key(path)
    if following.exists():  # of another token: it must not take the place of the key that is used
        following.unlink()
        sync_folder(following.parent)
    if not files.key.exists():
        return pki.make_key(files.key)
    if not new_key:
        return pki.load_key(files.key)
    key = ec.generate_private_key(ec.SECP256R1())
    pki.write(following, made_for + pki.encode_private_key(key), PRIVATE_MODE)
    return key


def _read_stated(address: str) -> dict[str, str]:
    """Return the root key and the statement that an aggregator says are its site's; who answers may be anybody."""
    unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE  # nothing is told, and the answer is checked
    return _read(_ask(address, unchecked, KEYS, None), address, "keys of a site", "root_key", "keys")


def _fetch_keys(token: Token, stated: dict[str, str], files: Files) -> Keys:
    """Return what the root key signed that the token names."""
    root = stated["root_key"].encode()
    held = files.statement.read_bytes() if files.statement.exists() else None
    try:
        if signing.digest_public_key(root) != token.root:
            raise StatementError("its root key is another")
        return statement.check(stated["keys"].encode(), signing.read_public(root, "root key"), held)
    except (KeyFileError, StatementError) as error:
        raise EnrolmentError(
            f"who answers at {token.address} is not of the site that the token is for ({error}): the address is wrong, "
            "or someone stands between; nothing was sent"
        ) from None


def renew(gateway: str, address: str, files: Files) -> Validity:
    """Ask for a new certificate for the key that is here; the aggregator gives one where the old one is half used, or
    of an authority that was replaced.

    Which authority to believe is asked first: this gateway may have been off while it was replaced, and again.
    Raises `EnrolmentError`; nothing that is here is lost by it.
    """
    try:
        with suppress(OlderError):  # of an aggregator that was set back: what is here holds
            trusted_keys.take(files, _read_stated(address)["keys"].encode())
    except (StatementError, KeyFileError) as error:
        raise EnrolmentError(f"{address}: what it says of the site's keys is not taken: {error}") from None
    return keep_renewed(gateway, files, _ask_again(gateway, address, files), address)


def _ask_again(gateway: str, address: str, files: Files) -> bytes:
    """Return the answer to the question of a gateway that has a certificate."""
    return _ask(address, trust(files.authority), CERTIFICATE, question(gateway, pki.load_key(files.key)))


def keep_renewed(gateway: str, files: Files, body: bytes, whose: str) -> Validity:
    """Keep the certificate of an answer, where it is another one than is here; raises as `renew` does.

    `whose` answer it is stands in an error: a captive portal may have given it.
    """
    key, held = pki.load_key(files.key), pki.load_certificate(files.certificate)
    answer = _read_certificate(body, whose)
    made = _check(answer, key, gateway, pki.load_certificate(files.authority))
    # Not by the later end: what was made while the aggregator's clock was ahead ends last and is not good yet.
    is_new = made.serial_number != held.serial_number
    if is_new:
        pki.write(files.certificate, pki.certificate_pem(made), PUBLIC_MODE)
    return _read_validity(made if is_new else held, is_new=is_new, notice=_notice(answer))


def ask_for_notice(gateway: str, address: str, files: Files) -> str:
    """Return what the aggregator has to say of this gateway, and keep nothing; raises as `renew` does."""
    return _notice(_read_certificate(_ask_again(gateway, address, files), address))


def read_validity(files: Files) -> Validity:
    """Return from when to when the certificate that is here is good."""
    held = pki.load_certificate(files.certificate)
    return replace(_read_validity(held), is_superseded=not pki.is_issued(held, [pki.load_certificate(files.authority)]))


def _read_validity(certificate: x509.Certificate, *, is_new: bool = False, notice: str = "") -> Validity:
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return Validity(first.timestamp(), last.timestamp(), is_new=is_new, notice=notice)


def _notice(answer: dict[str, str]) -> str:
    """Return what the aggregator says besides, as one line to be printed; empty for nothing."""
    text = " ".join(str(answer.get("notice", ""))[:NOTICE_CHARACTERS].split())
    return "".join(one for one in text if one.isprintable())


def question(gateway: str, key: PrivateKey, secret: str = "", *, is_same_device: bool = False) -> bytes:
    """Return how a gateway asks for a certificate of its key: with the secret of its token, or with none to renew.

    One that had the name before and has made another key says that it is the same device, whose alarms go on.
    """
    asked = {"request": pki.make_request(key, gateway).decode(), "token": secret}
    return json.dumps(asked | ({"same_device": True} if is_same_device else {})).encode()


def _read_certificate(body: bytes, whose: str) -> dict[str, str]:
    return _read(body, whose, "a certificate", "certificate")


def _read(body: bytes, whose: str, what: str, *names: str) -> dict[str, str]:
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or not all(isinstance(answer.get(name), str) for name in names):
        raise EnrolmentError(f"{whose}: expected {what} in JSON, got {body[:80]!r}")
    return answer


def _ask(address: str, context: ssl.SSLContext, path: str, body: bytes | None) -> bytes:
    """Return the answer to one question; raises `EnrolmentError` where there is none or it is no."""
    with closing(HTTPSConnection(*pki.split_address(address), timeout=CALL_S, context=context)) as connection:
        try:
            connection.request("GET" if body is None else "POST", path, body)
            response = connection.getresponse()
            answer = response.read(ANSWER_BYTES_MAX)
        except ssl.SSLCertVerificationError as error:
            raise EnrolmentError(
                f"{address}: its certificate is not to be trusted ({error.verify_message}); if this gateway's clock is "
                "right, the name or the authority is not"
            ) from None
        except (OSError, HTTPException) as error:
            raise EnrolmentError(f"{address}: the aggregator cannot be reached ({error}); try again") from None
    if response.status == HTTPStatus.OK:
        return answer
    again = "; try again" if response.status in BUSY else ""
    raise EnrolmentError(f"{address} refused: {_parse_problem(answer)}{again}")


def _parse_problem(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["problem"])[:400]
    except (ValueError, KeyError, TypeError):
        return repr(answer[:80])


def _check(answer: dict[str, str], key: PrivateKey, gateway: str, authority: x509.Certificate) -> x509.Certificate:
    made = pki.read_certificate(answer["certificate"].encode())
    if not pki.is_issued(made, [authority]):
        raise EnrolmentError("the certificate that came is not of the site's authority; nothing was changed")
    if made.public_key() != key.public_key() or pki.read_common_name(made) != gateway:
        raise EnrolmentError("the certificate that came is for another key or name; nothing was changed")
    return made


def main() -> int:
    """Do one job: `{"act": "look" | "renew" | "take", "gateway", "address", "files", "keys"}`."""
    job: dict[str, Any] = json.loads(sys.stdin.buffer.read())
    files = Files(**{name: Path(path) for name, path in job["files"].items()})
    try:
        match job["act"]:
            case "look":
                facts = asdict(read_validity(files))
            case "renew":
                facts = asdict(renew(job["gateway"], job["address"], files))
            case _:
                facts = {"is_new": trusted_keys.take(files, job["keys"].encode(errors="replace"))}
    except (EnrolmentError, IdentityError, StatementError, KeyFileError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
