"""What the machine decides about who belongs here, carried out: certificates signed, devices answered, and at the
broker the `BrokerAccess`.

The aggregator itself counts no message of a revoked gateway from the first moment, whatever the broker knows.
"""

from __future__ import annotations

import json
import logging
import queue
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from http import HTTPStatus
from itertools import count
from typing import TYPE_CHECKING

from fedgate.cloud_aggregator.access.registry import Registry
from fedgate.cloud_aggregator.enrolment import (
    CertificateRequested,
    EnrolmentEffect,
    Issue,
    Listed,
    NotStated,
    Reject,
    Revoke,
    Revoked,
    Stated,
    TakeKeys,
)
from fedgate.cloud_aggregator.events import Event
from fedgate.cloud_aggregator.pki import site_keys
from fedgate.cloud_aggregator.pki.authority import RENEWED_BEFORE, SERVER, SERVER_KEY, Authority
from fedgate.cloud_aggregator.pki.broker_access import BrokerAccess, to_datetime
from fedgate.cloud_aggregator.pki.broker_process import BrokerError
from fedgate.cloud_aggregator.pki.enrolment_request import Answer, EnrolmentRequest
from fedgate.config.identity import pki
from fedgate.config.identity.pki import PublicKey
from fedgate.config.settings.identity import Identity
from fedgate.config.settings.settings import AggregatorSettings
from fedgate.models.time_units import NS

if TYPE_CHECKING:
    from fedgate.cloud_aggregator.pki.enrolment_server import EnrolmentServer

LOG = logging.getLogger("fedgate.identity")
SERIAL_BYTES = 16
ANSWER_S = 10.0
OWN_CHECK_S = 3_600.0
NOTICE = (
    "the broker denies {} everything until it is restarted, because who had the key of this name before, another "
    "device or this one, may still be connected; on the aggregator's machine: sudo systemctl restart fedgate-broker "
    "(docs/reference/security.md, A name that another device gets)"
)
KEYS_CHECK_S = 60.0
DONE = "done; the aggregator ended before it could say so"


class EnrolmentService:
    """The hands of the machine at the door; `carry_out` and `tick` are called by the thread that steps it."""

    def __init__(
        self,
        settings: AggregatorSettings,
        spec: Identity,
        put: Callable[[Event], None],
        random_bits: Callable[[int], int] = secrets.randbits,
    ) -> None:
        self._random_bits = random_bits
        self._settings, self._spec, self._put = settings, spec, put
        self._statement, self._keys_answer = b"", b""  # of keys: as it was signed, and as devices are told
        self._authority = Authority(spec.folder)
        self._numbers = count(1)
        self._waiting: dict[int, tuple[PublicKey, Callable[[Answer], None]]] = {}
        self._broker_access = BrokerAccess(settings, spec, self._authority, put)
        self._own_s = self._keys_s = 0.0
        self._server: EnrolmentServer | None = None
        if settings.enrolment is not None:
            from fedgate.cloud_aggregator.pki.enrolment_server import EnrolmentServer  # a web server, for who has one

            listen, (certificate, key) = settings.enrolment.listen, (spec.folder / SERVER, spec.folder / SERVER_KEY)
            self._server = EnrolmentServer(listen, certificate, key, lambda: self._keys_answer, self._enrol)

    def read_list(self) -> Listed:
        """Return who is revoked by the broker's list, which may be newer than the store."""
        try:
            held = self._authority.read_revoked()
        except (OSError, pki.IdentityError) as error:
            LOG.warning("who was revoked is known by the store alone: %s", error)
            held = {}
        return Listed(tuple((f"{serial:x}", round(at.timestamp()) * NS) for serial, at in held.items()))

    def read_statement(self, order: int = 0) -> Stated:
        """Return the keys that the site goes by, all files being as they say; raises `OSError` or `ValueError`."""
        folder, release_file = self._spec.folder, self._settings.aggregator.release_key
        with pki.lock_folder(folder):  # a command may be about to state keys that it has made
            keys = site_keys.read_statement(folder)
            site_keys.settle(folder, release_file, keys)
        self._authority = Authority(folder)
        self._statement = body = (folder / site_keys.STATEMENT).read_bytes()
        root = (folder / site_keys.ROOT_PUB).read_text(encoding="ascii")
        self._keys_answer = json.dumps({"root_key": root, "keys": body.decode()}).encode()
        return Stated(keys, body, site_keys.release_key(self._settings.aggregator, folder), order)

    def start(self, registry: Registry, half_answered: Iterable[int] = ()) -> None:
        """Make the broker's files say what the registry says, and begin to answer devices.

        `half_answered` are the orders whose answer waited for the broker when the process before this one ended.
        """
        barred = registry.barred
        problem = self._broker_access.bar(
            Revoke(registry.list_ended(), barred, tuple(sorted(barred)), registry.list_outlived())
        )
        for order in half_answered:
            self._put(Revoked(order, DONE, problem))
        if self._server is not None:
            self._server.start()

    def stop(self) -> None:
        """End."""
        self._broker_access.stop()
        if self._server is not None:
            self._server.stop()

    def tick(self) -> None:
        """Do again what could not be done, and renew our own certificates in time."""
        now_s = time.monotonic()
        self._broker_access.tick()
        if now_s >= self._own_s:
            self._own_s = now_s + OWN_CHECK_S
            self._renew_own()
        if now_s >= self._keys_s:  # of a command that was cut off before it could say so
            self._keys_s = now_s + KEYS_CHECK_S
            path = self._spec.folder / site_keys.STATEMENT
            if self._statement and path.exists() and path.read_bytes() != self._statement:
                self._take_keys(0)

    def carry_out(self, effect: EnrolmentEffect) -> None:
        """Do what the machine decided; what it rests on is stored."""
        match effect:
            case Issue(number=number, certificate=one):
                if held := self._waiting.get(number):
                    moments = (to_datetime(one.issued_ns), to_datetime(one.not_after_ns))
                    body = self._authority.issue(one.gateway, held[0], int(one.serial, 16), *moments)
                    answer = {"certificate": body.decode()}
                    if self._broker_access.is_held(one.gateway):
                        answer["notice"] = NOTICE.format(one.gateway)
                    held[1]((HTTPStatus.OK, answer))
            case Reject(number=number, reason=reason):
                if held := self._waiting.get(number):
                    held[1]((HTTPStatus.FORBIDDEN, {"problem": reason}))
            case Revoke():
                self._broker_access.bar(effect)
            case TakeKeys(order=order):
                self._take_keys(order)

    def _take_keys(self, order: int) -> None:
        """Go by what an operator has put there, and have the broker do so where it is about authorities."""
        before = self._authority.believed
        try:
            found = self.read_statement(order)
            if self._server is not None:
                self._server.renew()
        except (OSError, ValueError) as error:
            LOG.warning("the new keys of the site are not taken: %s", error)
            self._put(NotStated(order, str(error)))
            return
        is_other = self._authority.believed != before
        self._put(replace(found, problem=self._broker_access.renew(self._authority) if is_other else ""))

    def _enrol(self, request: EnrolmentRequest) -> Answer:
        """Have the machine decide, from a thread of the server."""
        answer = queue.SimpleQueue[Answer]()
        number = self.ask(request, answer.put)
        try:
            return answer.get(timeout=ANSWER_S)
        except queue.Empty:
            return HTTPStatus.SERVICE_UNAVAILABLE, {"problem": "the aggregator is busy; try again"}
        finally:
            self.forget(number)

    def ask(self, request: EnrolmentRequest, answered: Callable[[Answer], None]) -> int:
        """Have the machine decide; `answered` is called with what it said, unless the number returned is forgotten."""
        digest = pki.digest_token(request.secret) if request.secret else ""
        # The first bit is off: a serial number is positive.
        serial = f"{self._random_bits(8 * SERIAL_BYTES - 1) | 1:x}"
        number = next(self._numbers)
        self._waiting[number] = (request.key, answered)
        key, authority = pki.key_digest(request.key), self._authority.fingerprint
        self._put(CertificateRequested(number, request.gateway, key, serial, digest, request.is_same_device, authority))
        return number

    def forget(self, number: int) -> None:
        """Let nobody wait for the answer to this request any more."""
        del self._waiting[number]

    def _renew_own(self) -> None:
        now = datetime.now(UTC)
        if self._authority.own_end() - now > RENEWED_BEFORE:
            return
        self._authority.write_own(self._settings.aggregator.site, self._authority.list_hosts(), now)
        LOG.info("server.pem and cloud.pem are new; good until %s", self._authority.own_end().date())
        if self._server is not None:
            self._server.renew()
        try:
            self._broker_access.reload()
        except BrokerError as error:
            LOG.warning("the broker has not taken its new certificate: %s; reload it", error)
