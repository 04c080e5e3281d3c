"""Goal: an operator's command reaches a service that runs, waits for one that does not, and says which.

Method: real commands and a real service that is a process of its own, on one store; no broker is needed to carry out an
order, and where one is to be told and cannot be, the command says so.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.cloud_aggregator.commands import store as command_store
from fedgate.cloud_aggregator.enrolment import Certificate, RecordRegistry
from fedgate.cloud_aggregator.events import RecordGateway, RecordModel
from fedgate.cloud_aggregator.storage.store import Store
from tests.end_to_end.test_processes import free_port, running, until, write
from tests.gateway_agent.deployment.test_gateway_models import FIRST
from tests.support.cloud_service import READY
from tests.support.site_folders import founded
from tests.support.sites import T0_NS

pytestmark = pytest.mark.slow
YEAR_NS = 365 * 86_400 * 10**9


class Done(NamedTuple):
    """How a command ended, and what it said."""

    returncode: int
    stdout: str
    stderr: str


def command(folder: Path, *words: str) -> Done:
    """Run a command here, for it has nothing to do with the process that serves."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = cloud_aggregator([*words, "-c", str(folder / "aggregator.toml")])
    return Done(code, out.getvalue(), err.getvalue())


@contextmanager
def opened(folder: Path, *, create: bool = False) -> Iterator[Store]:
    with closing(Store(folder / "aggregator.db", create=create)) as store:
        yield store


@pytest.mark.soak
def test_orders_reach_a_service_that_runs_and_wait_for_one_that_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, free_port())
    with opened(tmp_path, create=True) as store:
        store.commit([RecordModel(*FIRST), *(RecordGateway(name, READY, T0_NS) for name in ("north", "west"))])
    with monkeypatch.context() as nobody_answers:
        nobody_answers.setattr(command_store, "WAIT_S", 0.0)
        waits = command(tmp_path, "gateways", "remove", "west", "--json")
    said = json.loads(waits.stdout)
    assert waits.returncode == 0 and not said["is_done"] and "waits: the service takes it" in said["text"]
    with running("cloud_aggregator", tmp_path) as service:
        with opened(tmp_path) as store:
            until(lambda: store.answer(said["order"]) == ("west is forgotten", ""), service)
            assert [row["gateway"] for row in store.read_rows("gateways")] == ["north"]
        done = command(tmp_path, "release", "--all", "--version", "1")
        assert (done.returncode, done.stdout) == (0, "model 2 is released to all gateways\n"), done.stderr
        refused = command(tmp_path, "release", "--gateways", "nobody", "--version", "1")
        assert refused.returncode == 1 and "nobody cannot be canaries" in refused.stderr
        removed = command(tmp_path, "gateways", "remove", "north", "--json")
        assert json.loads(removed.stdout)["is_done"]
    with opened(tmp_path) as store:
        assert store.read_rows("gateways") == [] and [row["version"] for row in store.read_rows("models")] == [1, 2]


NEVER = {
    "gateways remove nobody": "no gateway 'nobody' is known",
    "gateways revoke nobody": "no gateway 'nobody' is enrolled",
    "gateways token north": "north is or was enrolled; give --replace",
    "release --go-on": "no release is under way",
    "release --stop": "no release is under way",
    "release --all": "no model waits to be released",
    "release --all --version 7": "version 7 given, and no such model is stored",
    f"release --all --version {2**63}": f"version {2**63} given, and no such model is stored",
}


@pytest.mark.parametrize(("words", "expected"), NEVER.items())
def test_an_order_that_can_never_succeed_is_refused_at_once(words: str, expected: str, tmp_path: Path) -> None:
    """Whether a service runs or not; but what waits before it may be what makes it good."""
    site = founded(tmp_path / "site").path
    with opened(site, create=True) as store:
        certificate = Certificate("a", "north", "key of north", T0_NS, T0_NS + YEAR_NS)
        store.commit([RecordModel(*FIRST), RecordGateway("north", READY, T0_NS), RecordRegistry((certificate,))])
        refused = command(site, *words.split())
        assert refused.returncode == 2 and expected in refused.stderr and store.read_orders() == []


def test_an_order_behind_one_that_waits_is_left_to_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = founded(tmp_path / "site").path
    monkeypatch.setattr(command_store, "WAIT_S", 0.0)
    with opened(site, create=True) as store:
        store.order("token", {"gateway": "north"})
        assert command(site, "gateways", "revoke", "north").returncode == 0
        assert [one.kind for one in store.read_orders()] == ["token", "revoke"]


def test_nobody_is_revoked_where_nobody_is_enrolled(tmp_path: Path) -> None:
    write(tmp_path, free_port())
    with opened(tmp_path, create=True) as store:
        refused = command(tmp_path, "gateways", "revoke", "north")
        assert refused.returncode == 2 and "needs [identity]" in refused.stderr and store.read_orders() == []


@pytest.mark.soak
def test_a_revoke_that_the_broker_cannot_be_told_says_so(tmp_path: Path) -> None:
    """It is done all the same, and ends with 1, for somebody must look after the broker."""
    site = founded(tmp_path / "site").path
    with opened(site, create=True) as store:
        for number, name in enumerate(("north", "west")):
            certificate = Certificate(f"a{number}", name, f"key of {name}", T0_NS, T0_NS + YEAR_NS)
            store.commit([RecordRegistry((certificate,))])
    with running("cloud_aggregator", site):
        revoked = command(site, "gateways", "revoke", "north")
        assert revoked.returncode == 1
        assert "north is revoked: its messages count no more; but the broker does not know it yet" in revoked.stderr
        assert "is the broker running" in revoked.stderr and "tried again every 60 s" in revoked.stderr
        listed = json.loads(command(site, "gateways", "list", "--json").stdout)["gateways"]
        assert {one["gateway"]: one["state"] for one in listed} == {"north": "revoked", "west": "enrolled"}
        made = command(site, "certificate", "operator", "--out", str(tmp_path / "me"))
        assert made.returncode == 0, made.stderr
        assert "operator is revoked" in command(site, "gateways", "revoke", "operator").stderr
    assert "user operator\ntopic deny #\n" in (site / "mosquitto.acl").read_text()


def test_a_certificate_that_the_service_refuses_is_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = founded(tmp_path / "site").path
    with opened(site, create=True):
        pass
    monkeypatch.setattr(Store, "answer", lambda *_: ("refused", "operator is not of this site"))
    made = command(site, "certificate", "operator", "--out", str(tmp_path / "me"))
    assert (made.returncode, made.stderr) == (1, "cloud-aggregator: operator is not of this site\n")
    assert not (tmp_path / "me.pem").exists()
