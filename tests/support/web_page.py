"""The page as a browser gets it: the real server over a real store, and the service that carries its orders out."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from argon2 import PasswordHasher

from fedgate.cloud_aggregator.enrolment import Revoke, Revoked
from fedgate.cloud_aggregator.events import (
    AlarmEvent,
    Connection,
    Durable,
    RecordAlarm,
    RecordEvidence,
    RecordGateway,
    RecordRound,
    RecordSummary,
)
from fedgate.cloud_aggregator.runtime.order_socket import OrderSocket
from fedgate.cloud_aggregator.runtime.service import Service
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.cloud_aggregator.web import users
from fedgate.cloud_aggregator.web.app import make_server
from fedgate.config.protocol.messages import Status
from fedgate.config.settings.settings import AggregatorSettings
from fedgate.config.settings.web import ROLES, SOCKET, USERS
from fedgate.models.time_units import DAY_NS, HOUR_NS, NS
from tests.cloud_aggregator.test_aggregator_machine import ALARM
from tests.support.batches import make_summary
from tests.support.evidence_samples import make_evidence
from tests.support.receivers import free_port
from tests.support.sites import FEATURES, KEY, SITE
from tests.support.waiting import until

QUICK = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
PASSWORD = "a long enough password"  # noqa: S105 - of users that a test makes


@dataclass
class Answer:
    """What the server answered."""

    status: int
    headers: dict[str, str]
    text: str


@dataclass
class Client:
    """A browser without a screen: it keeps cookies and follows nothing."""

    port: int
    cookies: dict[str, str] = field(default_factory=dict)

    def ask(self, method: str, path: str, form: dict[str, str] | None = None, **headers: str) -> Answer:
        """Ask for something."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if form is not None:
            sent.setdefault("Content-Type", "application/x-www-form-urlencoded")
        with closing(connection):
            connection.request(method, path, None if form is None else urlencode(form), sent)
            got = connection.getresponse()
            text = got.read().decode()
        for name, one in SimpleCookie(got.getheader("Set-Cookie") or "").items():
            self.cookies[name] = one.value
        return Answer(got.status, dict(got.getheaders()), text)

    def get(self, path: str, **headers: str) -> Answer:
        """Ask for a page."""
        return self.ask("GET", path, None, **headers)

    def log_in(self, name: str, password: str = PASSWORD) -> Answer:
        """Send the form of the login."""
        return self.ask("POST", "/login", {"name": name, "password": password})

    def press(self, button: str, path: str = "/", **form: str) -> Answer:
        """Press a button of a page, as its form is sent."""
        page = self.get(path).text
        token = page.partition('name="csrf" value="')[2].partition('"')[0]
        return self.ask("POST", f"/orders/{button}", {"csrf": token, "back": path, **form})


@dataclass
class Site:
    """A site in a folder, and the port of its page."""

    folder: Path
    settings: AggregatorSettings
    port: int = 0

    def client(self, name: str = "") -> Client:
        """Return a browser, of somebody who is logged in where a name is given."""
        made = Client(self.port)
        assert not name or made.log_in(name).status == 303
        return made

    def commit(self, *effects: Durable) -> None:
        """Store something, as the service does."""
        with closing(Store(self.folder / "aggregator.db")) as store:
            store.commit(effects)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Let the service run: it is connected to a broker, and carries out the orders of the page."""
        started, over = threading.Event(), threading.Event()
        path = self.folder / "aggregator.db"

        def store_order(kind: str, body: dict[str, Any]) -> int:
            with closing(Store(path, create=False)) as store:
                return store.order(kind, body)

        def work() -> None:
            with closing(Store(path, program="aggregator")) as store:
                begun_ns = time.time_ns()
                service = Service(self.settings, store, KEY, uptime_ns=0, anchor_ns=begun_ns, beginning="first")
                service.step_all(1, [Connection(True)])
                started.set()
                while not over.wait(0.02):
                    for order in service.read_orders():
                        for effect in service.step_all(time.time_ns() - begun_ns, [order]):
                            if isinstance(effect, Revoke):  # of which no broker is told here
                                done = Revoked(effect.order, effect.answer, "")
                                service.step_all(time.time_ns() - begun_ns, [done])

        socket, thread = OrderSocket(self.folder / SOCKET, store_order), threading.Thread(target=work, daemon=True)
        socket.start()
        thread.start()
        try:
            until(started.is_set)
            yield
        finally:
            over.set()
            thread.join()
            socket.stop()


def make_alarm(gateway: str, cause: str, ago_h: float, *states: str, **given: Any) -> list[Durable]:
    """Return what is stored of an alarm that has come to these states."""
    onset_ns = time.time_ns() - round(ago_h * HOUR_NS)
    told = {"id": f"{gateway}.{cause}.{ago_h:g}", "cause": cause, "onset_ns": onset_ns, "rule": "score", **given}
    made: list[Durable] = []
    for place, state in enumerate(states or ("raised",)):
        one = ALARM.model_copy(update=told | {"state": state, "t_ns": onset_ns + (place + 1) * NS})
        made.append(RecordAlarm(gateway, one, one.t_ns, onset_ns))
    return made


def make_site() -> list[Durable]:
    """Return a site of three gateways: one with an alarm and its evidence, one that is well, one that is away."""
    now_ns = time.time_ns()
    alarms = [*make_alarm("north", "anomaly", 2), *make_alarm("north", "anomaly", 50, "raised", "cleared")]
    alarms += make_alarm("south", "faulty-load", 2.5, "raised", "cleared")
    evidence = make_evidence(windows=40, bands=8, channels=3).model_copy(update={"alarm": "north.anomaly.2"})
    states = (("north", "online"), ("south", "online"), ("west", "offline"))
    gateways = [
        RecordGateway(name, Status.model_validate({"state": state, "version": "0.6.0"}), now_ns)
        for name, state in states
    ]
    closed = RecordRound("first", 0, "federated-subspace", ("north", "south"), refused=0, closed_ns=now_ns)
    done = AlarmEvent("north", "north.anomaly.50", "", now_ns, "ben", "acknowledge", {"text": "seen"})
    days = [make_summary(now_ns - day * DAY_NS, 5.0 - 0.01 * day) for day in range(20, -1, -1) if day not in (7, 8)]
    trend = [RecordSummary("north", f"day {place}", one, now_ns) for place, one in enumerate(days)]
    return [*gateways, *alarms, closed, RecordEvidence("north", evidence, now_ns), done, *trend]


@contextmanager
def open_page(folder: Path, *effects: Durable, has_identity: bool = False, **web: Any) -> Iterator[Site]:
    """Serve the page of a site that holds these; its users are called as their roles are."""
    site = Site(folder, make_settings(folder, web, has_identity=has_identity), 0)
    site.port = site.settings.web.address[1]
    site.commit(*effects)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(users, "HASHER", QUICK)  # which the hash says of itself, so that to log in is as quick
        for role in ROLES:
            users.put_user(folder / USERS, role, role, PASSWORD)
    server = make_server(site.settings)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        until(lambda: server.is_ready)
        yield site
    finally:
        server.stop()
        thread.join()


def make_settings(folder: Path, web: dict[str, Any], *, has_identity: bool = False) -> AggregatorSettings:
    """Return the settings of a site in a folder."""
    listen = {"listen": f"127.0.0.1:{free_port()}", **web}
    own = {"site": SITE, "store": folder / "aggregator.db"}
    more = {"identity": {"folder": folder}} if has_identity else {}
    return AggregatorSettings.model_validate({"aggregator": own, "features": FEATURES, "web": listen, **more})
