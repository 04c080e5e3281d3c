"""Certificates in a simulated world: the product's authority, enrolment, barrier and renewal, on simulated time.

What is simulated is what they touch outside: the way of a question to the aggregator and back, the broker that reads
the list of revoked certificates, and what a power cut leaves of a file. A certificate lives for minutes, and all that
hangs on its life is as much shorter.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Literal

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fedgate.cloud_aggregator.enrolment import Certificate, CertificateRequested, EnrolmentEffect, RecordRegistry
from fedgate.cloud_aggregator.events import Event
from fedgate.cloud_aggregator.pki.authority import ACCESS_LIST, CA_KEY, SKEW, Authority, open_authority
from fedgate.cloud_aggregator.pki.broker_access import AGAIN_S, RELOADED_S, BrokerAccess, to_datetime
from fedgate.cloud_aggregator.pki.broker_process import BrokerError
from fedgate.cloud_aggregator.pki.enrolment_request import Answer, read_request
from fedgate.cloud_aggregator.pki.enrolment_service import ANSWER_S, EnrolmentService
from fedgate.cloud_aggregator.runtime.service import Service
from fedgate.config.identity import pki
from fedgate.config.settings.identity import Identity, Membership
from fedgate.config.settings.settings import GatewaySettings
from fedgate.firmware_sim.world.actors.hosts import CloudHost, GatewayHost
from fedgate.firmware_sim.world.actors.machines import Machine
from fedgate.firmware_sim.world.actors.operator import Operator
from fedgate.firmware_sim.world.actors.shared import World
from fedgate.firmware_sim.world.environment.disk import CloudStore
from fedgate.firmware_sim.world.environment.faults import Handling
from fedgate.firmware_sim.world.environment.setup import KEY, SITE, Setup, gateway_of, stream_of
from fedgate.firmware_sim.world.environment.time import T0_NS
from fedgate.gateway_agent.runtime import enrolment
from fedgate.gateway_agent.runtime.enrolment import CALL_S
from fedgate.gateway_agent.runtime.membership import Files, find_files
from fedgate.gateway_agent.runtime.renewal import Renewer
from fedgate.models.time_units import DAY_S, HOUR_S, NS

SHARE = 0.3  # of the worlds, that have certificates
REVOKES = 0.5  # share of those in which one is revoked, where the others are enough
VALIDITY_S = (300.0, 1_500.0)
VALIDITY_DAYS = 90.0  # as the product is shipped: to this life its skew and its looks belong
CHECKS = (0.02, 0.08)  # between two looks, as a share of a life
CUTS = 0.1  # share of the answers during which the power of the gateway fails
AWAY_S = (5.0, 90.0)
RIGHT_NS = NS
logging.getLogger("fedgate.identity").addHandler(logging.NullHandler())  # what it logs, the witness sees


@dataclass(frozen=True)
class Terms:
    """What was drawn of certificates."""

    validity_s: float
    check_s: float
    revoked: str = ""  # a gateway
    order: Literal["revoke", "remove"] = "revoke"
    revoked_s: float = 0.0

    @property
    def skew(self) -> timedelta:
        """By how much a certificate begins before it is made."""
        return SKEW * (self.validity_s / DAY_S / VALIDITY_DAYS)


def terms_of(seed: int, made: Setup, hours: float, handling: Handling) -> Terms | None:
    """Return the terms of a world; most have none. One is revoked only where the others can close a round."""
    rng = stream_of(seed, "certificates")
    has_any, revokes, order = rng.random(3) < (SHARE, REVOKES, 0.5)
    if not has_any:
        return None
    validity_s = round(float(np.exp(rng.uniform(*np.log(VALIDITY_S)))))
    names, who, when_s = sorted(made.gateways), rng.random(), float(rng.uniform(0.2, 1.0)) * hours * HOUR_S
    revoked = made.handled if handling != Handling() else names[int(who * len(names))]
    terms = Terms(validity_s, round(validity_s * float(rng.uniform(*CHECKS)), 1))
    if not revokes or made.cloud.rounds.quorum >= len(names):
        return terms
    return replace(terms, revoked=revoked, order="revoke" if order else "remove", revoked_s=when_s)


def with_certificates(made: Setup, terms: Terms, folder: Path) -> Setup:
    """Return the settings of a world with an authority of its own."""
    spec = Identity(folder=folder / "identity", certificate_days=terms.validity_s / DAY_S)
    aggregator = made.cloud.aggregator.model_copy(update={"release_key": spec.folder / "release.key"})
    cloud = made.cloud.model_copy(update={"identity": spec, "aggregator": aggregator})
    gateways = {name: _member(settings, terms) for name, settings in made.gateways.items()}
    return replace(made, cloud=cloud, gateways=gateways, twin=_member(made.twin, terms))


def _member(settings: GatewaySettings, terms: Terms) -> GatewaySettings:
    """Return the settings of a gateway whose pair lies beside its store, so that a copied card has both."""
    store = settings.gateway.store
    ends = {"ca_file": "ca", "certificate_file": "certificate", "key_file": "key"}
    files = {name: store.with_name(f"{store.name}-{end}.pem") for name, end in ends.items()}
    spec = Membership(enrolment="cloud:1", check_s=terms.check_s)
    return settings.model_copy(update={"broker": settings.broker.model_copy(update=files), "identity": spec})


def there(spec: Identity | None) -> Identity:
    """Return the settings of an authority that is known to be there."""
    if spec is None:
        raise AssertionError("a door without an authority")
    return spec


class Keeper(EnrolmentService):
    """The product's enrolment service, of one process of the aggregator."""

    def __init__(self, door: Door, host: CloudHost, spec: Identity) -> None:
        def put(event: Event) -> None:
            host.during_process(0.0, partial(self._put_now, event))

        super().__init__(host.settings, spec, put, door.bits)
        self._door, self.host = door, host
        self._authority = Authority(spec.folder, door.terms.skew)
        self._broker_access = Bars(door, host, spec, self._authority, put)

    def _put_now(self, event: Event) -> None:
        if isinstance(event, CertificateRequested):
            self._door.witness.asked(event.serial, event.gateway, event.key)
        self.host.step(event)

    def tick(self) -> None:
        """Do again what could not be done; our own certificates outlive any world."""
        self._broker_access.tick()


class Bars(BrokerAccess):
    """The product's barrier, before the simulated broker."""

    def __init__(
        self, door: Door, host: CloudHost, spec: Identity, authority: Authority, put: Callable[[Event], None]
    ) -> None:
        super().__init__(host.settings, spec, authority, put, lambda: host.world.scheduler.elapsed_s)
        self._door, self._host = door, host

    def reload(self) -> str:
        """Have the broker read its files again."""
        if not self._host.world.network.is_up:
            raise BrokerError("the broker is away")
        self._door.read()
        return ""

    def _begin_to_cut(self, names: tuple[str, ...]) -> None:
        self._host.during_process(RELOADED_S, lambda: self._cut_now(names))

    def _cut_now(self, names: tuple[str, ...]) -> None:
        left = tuple(name for name in names if not self._is_out(name))
        if left:
            self._host.during_process(AGAIN_S, lambda: self._cut_now(left))

    def _is_out(self, name: str) -> bool:
        return self._host.world.network.put_out(name, sweeps=name in self._now.barred)


class Badge(Renewer):
    """The product's renewal, of one process of a gateway; a question is under way for as long as the network takes."""

    def __init__(self, door: Door, host: GatewayHost, spec: Membership) -> None:
        def between(low: float, high: float) -> float:
            return float(door.rng.uniform(low, high))

        super().__init__(host.settings, spec, self._is_out, between)
        self._door, self._host, self.files = door, host, find_files(host.settings)
        self._is_asking, self._calls = False, 0
        door.witness.stored(host.name, self.files)
        self._load()

    def _is_out(self) -> bool:
        return not self._host.world.network.sessions[self._host.name].is_connected

    def _load(self) -> None:
        """Take the certificate for the next connection."""
        self.held = pki.load_certificate(self.files.certificate)

    def begin(self) -> None:
        """Look at the certificate now and then, as the product's thread does."""
        if self._is_asking:  # nobody has answered
            self._is_asking, self._calls = False, self._calls + 1
            self._failed("the aggregator cannot be reached")
        clock, scheduler = self._host.clock, self._host.world.scheduler
        calls, was_out = self._calls, self._was_shut_out
        is_due = self.look((scheduler.now_ns + clock.wall_offset_ns) / NS)
        can_judge = abs(clock.wall_offset_ns) < RIGHT_NS or (was_out and self._is_out())
        self._door.witness.looked(self._host.name, self.files, self._share, can_judge=can_judge, asks=self._is_asking)
        if self._is_asking:
            self._host.during_process(CALL_S, lambda: self.begin() if self._calls == calls else None)
        else:
            self._pause(is_due=is_due)

    def _pause(self, *, is_due: bool) -> None:
        wait_s = self.pause_s(is_due=is_due)
        self._door.witness.waits(self._host.name, wait_s, 1.5 * self._spec.check_s)
        self._host.during_process(wait_s, self.begin)

    def _ask(self, act: str) -> bool:
        if act == "look":
            received = enrolment.read_validity(self.files)
            self._validity = (received.not_before_s, received.not_after_s)
        else:
            body = enrolment.question(self._host.settings.gateway.id, pki.load_key(self.files.key))
            self._door.witness.leaves(self._host.name, body)
            self._is_asking, calls = True, self._calls
            asks = partial(self._door.ask, self._host.name, body, partial(self._back, calls))
            self._door.travels(self._host.name, asks)
        return False

    def _back(self, calls: int, answer: Answer, is_clock_right: bool) -> None:
        """Send the answer on its way to this process."""
        act = partial(self._answered, calls, answer, is_clock_right)
        self._door.travels(self._host.name, lambda: self._host.during_process(0.0, act))

    def _answered(self, calls: int, answer: Answer, is_clock_right: bool) -> None:
        if not self._is_asking or calls != self._calls or not self._door.is_latest(self, self._host.name):
            return  # it is late, or its process has ended
        self._is_asking, self._calls = False, calls + 1
        status, received = answer
        if status != HTTPStatus.OK:
            self._failed(received["problem"])
            self._pause(is_due=True)
            return
        if self._door.rng.random() < CUTS and not self._host.world.scheduler.is_calm:
            self._host.world.note(self._host.name, "power fails while a certificate is stored")
            self._host.cut_off(float(self._door.rng.uniform(*AWAY_S)), partial(self._half_kept, received))
            return
        was = self.held.serial_number
        self._keep(received)
        self._load()
        self._failures = 0
        self._door.witness.renewed(
            self._host.name, self.files, self._door.terms.skew.total_seconds(), was=was, is_clock_right=is_clock_right
        )
        self._pause(is_due=False)

    def _half_kept(self, received: dict[str, str]) -> None:
        """Leave what a power cut may: all of it, of which nobody knows yet, or a part beside the old file."""
        body, share = received["certificate"].encode(), float(self._door.rng.uniform(0.0, 2.0))
        if share > 1.0:
            self._keep(received)
        else:
            part = self.files.certificate.with_name(f".{self.files.certificate.name}.part")
            part.write_bytes(body[: round(share * len(body))])

    def _keep(self, received: dict[str, str]) -> None:
        body = json.dumps(received).encode()
        made = enrolment.keep_renewed(self._host.settings.gateway.id, self.files, body, "the aggregator of the world")
        self._validity = (made.not_before_s, made.not_after_s)
        if made.is_new:
            until_s = made.not_after_s - T0_NS / NS
            self._host.world.note(self._host.name, f"certificate is new, good until {until_s:.0f}")

    def _failed(self, problem: str) -> None:
        self._failures += 1
        if self._failures.bit_count() == 1:
            self._host.world.note(self._host.name, f"certificate not renewed ({self._failures}): {problem}")


class Door:
    """All who have to do with certificates in a world: at the aggregator, at the gateways and at the broker."""

    def __init__(self, world: World, terms: Terms, cloud: CloudHost, gateways: Mapping[str, GatewaySettings]) -> None:
        """Make the authority, and give each gateway a certificate of which a part has passed."""
        self._world, self.terms, self._spec = world, terms, there(cloud.settings.identity)
        self.witness = world.witness.certificates
        self.rng = stream_of(world.seed, "doors")
        self._keeper: Keeper | None = None
        self._badges: dict[str, Badge] = {}  # by device, of the latest process
        self._listed: frozenset[int] = frozenset()
        self._others: dict[str, int] = {}  # serial numbers of devices that are no machines, by name
        self._refused: set[tuple[str, int]] = set()
        world.network.door, self._names = self, tuple(gateways)
        folder, key = self._spec.folder, KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        folder.mkdir()
        pki.write(folder / CA_KEY, pki.encode_private_key(self._key()), pki.PRIVATE_MODE)
        pki.write(cloud.settings.aggregator.release_key, key, pki.PRIVATE_MODE)
        pki.write(folder / ACCESS_LIST, b"", pki.PRIVATE_MODE)
        open_authority(folder, SITE, to_datetime(T0_NS))
        authority = Authority(folder, self.terms.skew)
        made = tuple(self._enrolled(authority, name, find_files(settings)) for name, settings in gateways.items())
        with closing(CloudStore(cloud.disk)) as store:
            store.commit([RecordRegistry(made)])

    def _enrolled(self, authority: Authority, name: str, files: Files) -> Certificate:
        key, validity_ns = self._key(), round(self.terms.validity_s) * NS
        first_ns = T0_NS - round(float(self.rng.uniform(0.0, 0.6)) * validity_ns)
        digest = pki.key_digest(key.public_key())
        serial, end_ns = f"{self.bits(127) | 1:x}", first_ns + validity_ns
        one = Certificate(serial, name, digest, first_ns, end_ns, authority=authority.fingerprint)
        self.witness.founded(one, key)
        span = (to_datetime(one.issued_ns), to_datetime(one.not_after_ns))
        pki.write(files.key, pki.encode_private_key(key), pki.PRIVATE_MODE)
        pki.write(files.authority, pki.certificate_pem(authority.certificate), pki.PUBLIC_MODE)
        body = authority.issue(name, key.public_key(), int(one.serial, 16), *span)
        pki.write(files.certificate, body, pki.PUBLIC_MODE)
        return one

    def enrol(self, name: str, cloud: CloudHost) -> None:
        """Give a device that is no machine a certificate that outlives the world."""
        key = pki.key_digest(self._key().public_key())
        one = Certificate(f"{self.bits(127) | 1:x}", name, key, T0_NS, T0_NS + round(DAY_S) * NS)
        self.witness.asked(one.serial, name, key)
        with closing(CloudStore(cloud.disk)) as store:
            store.commit([RecordRegistry((one,))])
        self._others[name] = int(one.serial, 16)

    def _key(self) -> pki.PrivateKey:
        return ec.derive_private_key(int.from_bytes(self.rng.bytes(31), "big") + 1, ec.SECP256R1())

    def bits(self, count: int) -> int:
        """Return a number of so many random bits."""
        return int.from_bytes(self.rng.bytes(-(-count // 8)), "big") >> (-count % 8)

    def schedule_faults(self, operator: Operator) -> None:
        """Arrange for the revocation."""
        if self.terms.revoked:
            self._world.scheduler.after(self.terms.revoked_s, lambda: self._revoke(operator, self.terms.revoked))
        for name in self._others:
            if self.rng.random() < REVOKES:
                at_s = float(self.rng.uniform(*VALIDITY_S))
                self._world.scheduler.after(at_s, partial(self._revoke, operator, name))

    def _revoke(self, operator: Operator, gateway: str) -> None:
        if number := operator.give(self.terms.order, {"gateway": gateway}):
            self.witness.ordered(number, gateway)
        else:
            self._world.scheduler.after(AGAIN_S, lambda: self._revoke(operator, gateway))

    # The aggregator.

    def _opened(self, host: CloudHost, service: Service) -> None:
        self.witness.opened(service.store.read_registry())
        self._keeper = keeper = Keeper(self, host, self._spec)
        host.step(keeper.read_list())
        if host.is_up and service.state.access.registry is not None:
            keeper.start(service.state.access.registry, service.store.read_half_answered())

    def carry_out(self, effect: EnrolmentEffect) -> None:
        """Do what the aggregator decided."""
        if self._keeper is not None:
            self._keeper.carry_out(effect)

    def tick(self) -> None:
        """Do again what could not be done at the broker."""
        if self._keeper is not None:
            self._keeper.tick()

    def ask(self, device: str, body: bytes, back: Callable[[Answer, bool], None]) -> None:
        """Let a question come to the aggregator."""
        keeper = self._keeper
        if keeper is None or not keeper.host.is_up:
            return
        cloud = keeper.host
        request = read_request(body)
        key = pki.key_digest(request.key)

        def answered(answer: Answer) -> None:
            keeper.forget(number)
            is_right = abs(cloud.clock.timeline_offset_ns) < RIGHT_NS
            waiting.clear()
            if answer[0] == HTTPStatus.OK:
                made = pki.read_certificate(answer[1]["certificate"].encode())
                self.witness.answered(gateway_of(device), key, f"{made.serial_number:x}")
            else:
                self.witness.turned_away(request.gateway, answer[1]["problem"], is_clock_right=is_right)
            back(answer, is_right)

        waiting = [True]
        number = keeper.ask(request, answered)
        cloud.during_process(ANSWER_S, lambda: self.witness.silent(device) if waiting else None)

    # The way between.

    def travels(self, device: str, act: Callable[[], None]) -> None:
        """Let a question or an answer go its way, which ends where a line is dead."""
        lines = [self._world.network.sessions[name] for name in (device, "cloud")]
        messages = self._world.network.faults.messages
        lost, delay_s = self.rng.random(), float(self.rng.exponential(messages.delay_s)) + 0.01
        if lost >= messages.loss and not any(one.is_cut_off for one in lines):
            self._world.scheduler.after(delay_s, lambda: None if any(one.is_cut_off for one in lines) else act())

    # The gateways.

    def started(self, host: Machine) -> None:
        """Put enrolment beside a process of the aggregator; let one of a gateway look after its certificate."""
        if isinstance(host, CloudHost) and host.service is not None:
            self._opened(host, host.service)
        elif isinstance(host, GatewayHost) and host.settings.identity is not None:
            self._badges[host.name] = badge = Badge(self, host, host.settings.identity)
            host.during_process(0.0, badge.begin)

    def audit(self, folder: Path) -> dict[str, int]:
        """See that no key lies where it does not belong; return what there was of certificates."""
        own: dict[str, set[Path]] = {name: set() for name in self._names}
        for device, badge in self._badges.items():
            own[gateway_of(device)].add(badge.files.key)
        return self.witness.audit(folder, own)

    def is_latest(self, badge: Badge, device: str) -> bool:
        """Tell whether a badge is of the process that runs now."""
        return self._badges.get(device) is badge

    # The broker.

    def read(self) -> None:
        """Let the broker read its files."""
        self._listed = frozenset(Authority(self._spec.folder).read_revoked())

    def admits(self, device: str) -> bool:
        """Tell whether the broker lets a client in: by time and list; the aggregator's own certificate is good."""
        badge = self._badges.get(device)
        if badge is None:
            return self._others.get(device) not in self._listed
        held, now_s = badge.held, self._world.scheduler.now_ns / NS
        first_s, last_s = held.not_valid_before_utc.timestamp(), held.not_valid_after_utc.timestamp()
        is_good = first_s <= now_s <= last_s and held.serial_number not in self._listed
        if not is_good and (device, held.serial_number) not in self._refused:
            self._refused.add((device, held.serial_number))
            self._world.note(device, "is refused by the broker: its certificate is over")
        if is_good:
            self.witness.let_in(device)
        return is_good
