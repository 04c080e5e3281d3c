"""What the machine decides about who belongs here, carried out: certificates signed, the broker told, connections cut.

The files of the broker follow from the registry. Where they cannot be written or the broker cannot be told, that is
tried again for as long as it takes; the aggregator itself counts no message of a revoked gateway from the first moment.
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from http import HTTPStatus
from itertools import count
from pathlib import Path

from cloud_aggregator.authority import RENEWED_BEFORE, SERVER, SERVER_KEY, Authority
from cloud_aggregator.endpoint import Answer, Endpoint, Question
from cloud_aggregator.events import Event
from cloud_aggregator.registry import Asked, Bar, Barred, Issue, Registry, Told, TurnAway
from config import identity, mqtt, signing
from config.identity import PublicKey
from config.identity_settings import Identity
from config.settings import AggregatorSettings
from config.topics import CLOUD

LOG = logging.getLogger("fedgate.identity")
NS = 1_000_000_000
SERIAL_BYTES = 16
ANSWER_S = 10.0
AGAIN_S = 60.0
OWN_CHECK_S = 3_600.0
RELOADED_S = 1.0  # in which a broker has certainly seen its signal
COMMAND_S = 30.0
BROKER = "mosquitto"
BY_HAND = "neither identity.broker_pid_file nor identity.reload_command is set: reload the broker by hand"


class BrokerError(OSError):
    """The broker could not be told; the message says why."""


class Doorkeeper:
    """The hands of the machine at the door; `carry_out` and `tick` are called by the thread that steps it."""

    def __init__(
        self,
        settings: AggregatorSettings,
        spec: Identity,
        put: Callable[[Event], None],
        renew_link: Callable[[], None],
    ) -> None:
        self._settings, self._spec, self._put, self._renew_link = settings, spec, put, renew_link
        self._authority = Authority(spec.folder)
        self._authority_pem = identity.certificate_pem(self._authority.certificate)
        self._release_key = signing.public_pem(signing.load_private(settings.aggregator.release_key)).decode()
        self._numbers = count(1)
        self._waiting: dict[int, tuple[PublicKey, queue.SimpleQueue[Answer]]] = {}
        self._undone: Bar | None = None
        self._is_unread = False  # the broker's files say what it has not read
        self._again_s = self._own_s = 0.0
        self._endpoint: Endpoint | None = None
        if settings.enrolment is not None:
            listen, (certificate, key) = settings.enrolment.listen, (spec.folder / SERVER, spec.folder / SERVER_KEY)
            self._endpoint = Endpoint(listen, certificate, key, self._authority_pem, self._ask)

    def start(self, registry: Registry) -> None:
        """Make the broker's files say what the registry says, and begin to answer devices."""
        self._bar(Bar(registry.ended(), registry.barred, ()))
        if self._endpoint is not None:
            self._endpoint.start()

    def stop(self) -> None:
        """End."""
        if self._endpoint is not None:
            self._endpoint.stop()

    def tick(self) -> None:
        """Do again what could not be done, and renew our own certificates in time."""
        now_s = time.monotonic()
        if self._undone is not None and now_s >= self._again_s:
            self._bar(self._undone)
        if now_s >= self._own_s:
            self._own_s = now_s + OWN_CHECK_S
            self._renew_own()

    def carry_out(self, effect: Told) -> None:
        """Do what the machine decided; what it rests on is stored."""
        match effect:
            case Issue(number=number, certificate=one):
                if held := self._waiting.get(number):
                    moments = (_moment(one.issued_ns), _moment(one.not_after_ns))
                    body = self._authority.issue(one.gateway, held[0], int(one.serial, 16), *moments)
                    said = {"certificate": body.decode(), "authority": self._authority_pem.decode()}
                    held[1].put((HTTPStatus.OK, said | {"release_key": self._release_key}))
            case TurnAway(number=number, reason=reason):
                if held := self._waiting.get(number):
                    held[1].put((HTTPStatus.FORBIDDEN, {"problem": reason}))
            case Bar():
                self._bar(effect)

    def _ask(self, question: Question) -> Answer:
        """Have the machine decide, from a thread of the endpoint."""
        number, answer = next(self._numbers), queue.SimpleQueue[Answer]()
        self._waiting[number] = (question.key, answer)
        digest = identity.token_digest(question.secret) if question.secret else ""
        key = identity.key_digest(question.key)
        try:
            # The first bit is off: a serial number is positive.
            serial = f"{secrets.randbits(8 * SERIAL_BYTES - 1) | 1:x}"
            self._put(Asked(number, question.gateway, key, serial, digest))
            return answer.get(timeout=ANSWER_S)
        except queue.Empty:
            return HTTPStatus.SERVICE_UNAVAILABLE, {"problem": "the aggregator is busy; try again"}
        finally:
            del self._waiting[number]

    def _bar(self, bar: Bar) -> None:
        if self._undone is not None:  # what is undone of the one before is done with this one
            bar = replace(bar, cut=tuple(sorted({*bar.cut, *self._undone.cut})))
        self._undone = bar
        try:
            changed = self._authority.write_revoked((int(serial, 16), _moment(t_ns)) for serial, t_ns in bar.ended)
            changed |= self._authority.write_barred(bar.barred)
            self._is_unread |= changed
            by_hand = self._reload() if self._is_unread or bar.cut else ""
        except (OSError, identity.IdentityError) as error:
            self._again_s = time.monotonic() + AGAIN_S
            self._undone = replace(bar, order=0)
            self._answer(bar, f"{error}; it is tried again every {AGAIN_S:g} s")
            who = ", ".join(sorted({*bar.barred, *bar.cut})) or "nobody"
            LOG.warning("the broker does not yet know that it must shut out %s: %s; trying on", who, error)
            return
        self._undone, self._is_unread = None, False
        self._answer(bar, by_hand)
        if bar.cut:
            threading.Thread(target=self._cut, args=(bar.cut,), daemon=True).start()

    def _answer(self, bar: Bar, problem: str) -> None:
        if bar.order:
            self._put(Barred(bar.order, bar.answer, problem))

    def _cut(self, gateways: tuple[str, ...]) -> None:
        """End the connections that stand: the broker asks for a certificate only at the beginning of one."""
        time.sleep(RELOADED_S)
        user = f"{CLOUD}.{self._settings.aggregator.site}"
        for gateway in gateways:
            for client_id in (gateway, f"{gateway}.sensors"):
                done = mqtt.take_over(self._settings.broker, user, client_id)
                LOG.info("%s of %s", "cut the connection" if done else "no broker to cut the connection", client_id)

    def _reload(self) -> str:
        """Have the broker read its files again; raises `BrokerError`. Return what is left to do by hand."""
        if self._spec.reload_command:
            try:
                subprocess.run(self._spec.reload_command, check=True, capture_output=True, timeout=COMMAND_S)  # noqa: S603 - the operator's own command
            except (OSError, subprocess.SubprocessError) as error:
                raise BrokerError(f"identity.reload_command failed ({error})") from None
        elif self._spec.broker_pid_file is not None:
            _hang_up(self._spec.broker_pid_file)
        else:
            LOG.warning(BY_HAND)
            return BY_HAND
        return ""

    def _renew_own(self) -> None:
        now = datetime.now(UTC)
        if self._authority.own_end() - now > RENEWED_BEFORE:
            return
        self._authority.write_own(self._settings.aggregator.site, self._authority.hosts(), now)
        LOG.info("server.pem and cloud.pem are new; good until %s", self._authority.own_end().date())
        self._renew_link()
        if self._endpoint is not None:
            self._endpoint.renew()
        try:
            self._reload()
        except BrokerError as error:
            LOG.warning("the broker has not taken its new certificate: %s; reload it", error)


def _hang_up(pid_file: Path) -> None:
    try:
        pid = int(pid_file.read_text(encoding="ascii"))
        # Numbers are given anew; a signal that means «read your files again» to a broker ends most other programs.
        if BROKER not in Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace"):
            raise BrokerError(f"{pid_file}: process {pid} is no {BROKER}; is the broker running?")
        os.kill(pid, signal.SIGHUP)
    except (OSError, ValueError) as error:
        raise BrokerError(f"identity.broker_pid_file: {error}; is the broker running, and ours to signal?") from None


def _moment(t_ns: int) -> datetime:
    return datetime.fromtimestamp(t_ns // NS, UTC)
