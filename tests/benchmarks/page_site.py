"""A large site as its page sees it: gateways and alarms in a store, the page in a process of its own, and a browser."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import insert

from fedgate.cloud_aggregator.events import RecordGateway
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.cloud_aggregator.storage.tables import ALARM_EVENTS, ALARMS, GATEWAYS, SERVICE
from fedgate.cloud_aggregator.web.users import put_user
from fedgate.config.protocol.messages import Status
from fedgate.config.settings.web import USERS
from fedgate.firmware_sim import children
from fedgate.firmware_sim.demo.stage import toml
from fedgate.models.time_units import NS
from tests.benchmarks import usage
from tests.support.message_samples import MESSAGES
from tests.support.receivers import free_port
from tests.support.sites import FEATURES, SITE
from tests.support.waiting import until
from tests.support.web_page import PASSWORD, Client, make_alarm

USER = "ada"
SEVERITIES = ("warning", "major", "critical")
TEXT = "Munich test bridge, force FRC-01, load: mean is 210.6 kN, usually 239.7 kN"
OPEN_EVERY, OFFLINE_EVERY = 50, 20


def make_status(number: int) -> Status:
    """Return the status of a gateway; one of twenty is offline."""
    state = "online" if number % OFFLINE_EVERY else "offline"
    full = next(one for one in MESSAGES if isinstance(one, Status))
    own = {"state": state, "model_version": 3, "windows": 1000 + number, "clock": "synchronised"}
    return full.model_copy(update=own)


def fill(folder: Path, alarms: int, gateways: int) -> None:
    """Write a store with so many gateways and alarms, of which one of fifty stands and every second was seen."""
    now_ns = time.time_ns()
    with closing(Store(folder / "aggregator.db")) as store, store._db.begin():
        rows = [
            {"gateway": name_gateway(i), "online": i % OFFLINE_EVERY != 0, "status": make_status(i).model_dump_json()}
            | {"seen_ns": now_ns - NS * (i % 60)}
            for i in range(gateways)
        ]
        store._db.execute(insert(GATEWAYS), rows)
        store._db.execute(insert(ALARMS), [_make_alarm(i, name_gateway(i % gateways), now_ns) for i in range(alarms)])
        events = [
            {"gateway": name_gateway(i % gateways), "alarm": f"{i:032x}", "cause": "", "t_ns": now_ns, "who": USER}
            | {"kind": "acknowledge", "body": "{}"}
            for i in range(0, alarms, 2)
        ]
        store._db.execute(insert(ALARM_EVENTS), events)
        service = {"id": 1, "began_ns": now_ns - 1000 * NS, "beat_ns": now_ns, "is_connected": True}
        store._db.execute(insert(SERVICE).values(**service, link_ns=now_ns - 1000 * NS))


def name_gateway(number: int) -> str:
    """Return the name of a gateway."""
    return f"gateway-{number}"


def _make_alarm(number: int, gateway: str, now_ns: int) -> dict[str, object]:
    begun_ns = now_ns - number * 10 * NS
    return {
        **{"id": f"{number:032x}", "gateway": gateway, "cause": "anomaly" if number % 3 else f"faulty-load{number}"},
        **{"kind": "anomaly" if number % 3 else "sensor", "severity": SEVERITIES[number % 3], "text": TEXT},
        **{"onset_ns": begun_ns, "raised_ns": begun_ns, "begun_ns": begun_ns, "received_ns": now_ns - number * NS},
        **{"cleared_ns": None if number % OPEN_EVERY == 0 else now_ns - number * NS, "score": 3.5, "level": 0.7},
        **{"model_version": 3, "model_digest": "a" * 64, "clock": "synchronised", "boot_id": "b", "rule": "sustained"},
        "feature": "load",
    }


@dataclass
class Served:
    """A page in a process of its own, and somebody who looks at it."""

    folder: Path
    pid: int
    client: Client
    store: Store  # as the service holds it

    def ask(self, path: str = "/", **headers: str) -> tuple[float, float]:
        """Ask for a page; return the seconds until all of it is here, and those of the processor."""
        busy_s, began_s = usage.busy_s(self.pid), time.perf_counter()
        answer = self.client.get(path, **headers)
        taken_s = time.perf_counter() - began_s
        assert answer.status in (200, 204), answer.text
        return taken_s, usage.busy_s(self.pid) - busy_s

    def change(self, number: int) -> None:
        """Let a gateway speak."""
        self.store.commit([RecordGateway(name_gateway(number), make_status(number), time.time_ns())])

    def raise_alarm(self, number: int) -> None:
        """Let a gateway raise an alarm."""
        self.store.commit(make_alarm(name_gateway(number), f"new-{number}", 0.0))

    def raise_after_clock_was_ahead(self, number: int) -> None:
        """Let a gateway raise an alarm, the clock of the aggregator having been a month ahead for one before."""
        if number == 0:
            self.store.commit(make_alarm(name_gateway(number), "ahead", -30 * 24.0))
        self.store.commit(make_alarm(name_gateway(number), f"later-{number}", 0.0))


@contextmanager
def serve(folder: Path) -> Iterator[Served]:
    """Run the page of a store that is in a folder, and log in."""
    port = free_port()
    tables = {"aggregator": {"site": SITE}, "features": FEATURES, "web": {"listen": f"127.0.0.1:{port}"}}
    (folder / "aggregator.toml").write_text(toml(json.loads(json.dumps(tables))))
    put_user(folder / USERS, USER, "admin", PASSWORD)
    log = folder / "page.log"
    command = [sys.executable, "-P", "-m", "fedgate.cloud_aggregator", "web", "-c", str(folder / "aggregator.toml")]
    with log.open("wb") as file:
        process = children.start(command, stdout=file, stderr=file)
    store = Store(folder / "aggregator.db")
    try:
        until(lambda: "the page is at" in log.read_text(), log.read_text)
        client = Client(port)
        assert client.log_in(USER).status == 303
        yield Served(folder, process.pid, client, store)
    finally:
        process.terminate()
        process.wait()
        store.close()
