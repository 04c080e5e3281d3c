"""An error that one gateway's message leads to stops that gateway and nobody else, however often the message comes.

Goal: no defect of ours that a message finds is an outage of the site. Method: the real service on its real store, with
a defect put into it: an error while a message is handled, and a value that the database does not take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from fedgate.cloud_aggregator.access import admission
from fedgate.cloud_aggregator.alarms import handling, register, reports
from fedgate.cloud_aggregator.containment import CAUSE, FAILURES_MAX
from fedgate.cloud_aggregator.events import Connection, Effect, Event, Log, Outward, Publish, RecordLoss, Tick
from fedgate.cloud_aggregator.releases import deploy
from fedgate.cloud_aggregator.rounds import round
from fedgate.cloud_aggregator.runtime.service import Service
from fedgate.cloud_aggregator.state import State
from fedgate.cloud_aggregator.storage.store import Store, StoreError
from fedgate.config.protocol.losses import Tombstone
from fedgate.config.protocol.messages import Receipt, Status
from fedgate.config.settings.database import DatabaseUrl
from fedgate.models.time_units import HOUR_NS, NS
from tests.cloud_aggregator.alarms.test_fleet import alarm
from tests.cloud_aggregator.test_aggregator_machine import READY, body, heard, update
from tests.support.sites import KEY, T0_NS, aggregator_settings

GATEWAYS = ("east", "north", "west")
LOST = Tombstone(id="x", kind="telemetry", items=1, size_bytes=1, first_ns=0, last_ns=1, why=("outbox-full",))
POISON = heard("west", "tombstone", LOST.to_bytes())
STATUSES: list[Event] = [heard(gateway, "status", READY.to_bytes()) for gateway in GATEWAYS]

Handler = Callable[[State, str, Tombstone], list[Effect]]


def divide_by_nothing(state: State, gateway: str, tombstone: Tombstone) -> list[Effect]:
    raise ZeroDivisionError(f"a defect\n\x1b[2J{1 / len(GATEWAYS)}")


def record_too_much(state: State, gateway: str, tombstone: Tombstone) -> list[Effect]:
    return [RecordLoss(gateway, tombstone.model_copy(update={"size_bytes": 2**70}), state.context.now_ns)]


def begun(place: Path | DatabaseUrl) -> Service:
    settings = aggregator_settings(rounds={"quorum": 9})
    service = Service(settings, Store(place), KEY, uptime_ns=T0_NS, anchor_ns=0, beginning="first")
    service.step_all(T0_NS, [Connection(True), *STATUSES])
    return service


def receipts(effects: Sequence[Outward]) -> dict[str, list[bool]]:
    found: dict[str, list[bool]] = {}
    for one in effects:
        if isinstance(one, Publish) and "/receipt/" in one.topic:
            found.setdefault(one.topic.split("/")[3], []).append(Receipt.from_bytes(one.payload).accepted)
    return found


def active(service: Service, gateway: str) -> list[str]:
    return [one.alarm.cause for one in register.select_active(service.state.alarms.book, gateway)]


@pytest.mark.soak
@pytest.mark.parametrize("handler", [divide_by_nothing, record_too_much])
def test_what_came_with_a_poisoned_message_is_stored_and_answered(
    place: Path | DatabaseUrl, monkeypatch: pytest.MonkeyPatch, handler: Handler
) -> None:
    monkeypatch.setattr(reports, "record_loss", handler)
    service = begun(place)
    for _ in range(2):  # retained or sent again: it comes after a restart too
        effects = service.step_all(T0_NS + NS, [alarm("east"), POISON, alarm("north")])
        assert receipts(effects) == {"east": [True], "north": [True], "west": [False]}
        (told,) = [one.text for one in effects if isinstance(one, Log) and "could not be handled" in one.text]
        assert told.startswith("west: a message of channel tombstone") and told.isprintable()
        assert "at fedgate.cloud_aggregator." in told, "a line of ours, whatever library it failed in"
        service.close()
        service = begun(place)
        assert [active(service, gateway) for gateway in GATEWAYS] == [["anomaly"], ["anomaly"], []]
    service.close()


def test_who_goes_on_is_blocked_for_an_hour_and_the_operator_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, begun_ns = begun(tmp_path / "a.db"), T0_NS + NS
    with monkeypatch.context() as defect:
        defect.setattr(reports, "record_loss", divide_by_nothing)
        for _ in range(FAILURES_MAX):
            assert active(service, "west") == []
            assert receipts(service.step(begun_ns, POISON)) == {"west": [False]}
        assert active(service, "west") == [CAUSE]
        assert service.step_all(begun_ns, [POISON, alarm("west")]) == []
        assert receipts(service.step(begun_ns, alarm("east"))) == {"east": [True]}
        service.step(begun_ns, heard("west", "status", Status(state="offline").to_bytes()))
        assert service.state.access.gateways["west"].state == "offline", "the broker's word, not its own"
        for _ in range(FAILURES_MAX):  # before any tick
            assert active(service, "west") == [CAUSE]
            assert receipts(service.step(begun_ns + HOUR_NS, POISON)) == {"west": [False]}
        service.step(begun_ns + HOUR_NS, Tick())
        assert active(service, "west") == [CAUSE] and service.step(begun_ns + HOUR_NS, alarm("west")) == []
    service.step(begun_ns + 2 * HOUR_NS, Tick())
    assert receipts(service.step(begun_ns + 2 * HOUR_NS, alarm("west"))) == {"west": [True]}
    assert active(service, "west") == ["anomaly"]
    rows = [row for row in service.store.read_rows("alarms") if row["cause"] == CAUSE]
    assert [(row["ended"], row["cleared_ns"]) for row in rows] == [("", begun_ns + 2 * HOUR_NS)]
    service.close()


def test_a_block_ends_with_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = begun(tmp_path / "a.db")
    with monkeypatch.context() as defect:
        defect.setattr(reports, "record_loss", divide_by_nothing)
        service.step_all(T0_NS + NS, [POISON] * FAILURES_MAX)
    assert active(service, "west") == [CAUSE]
    service.close()
    service = begun(tmp_path / "a.db")
    service.step(T0_NS + 2 * NS, Tick())
    assert active(service, "west") == []
    service.close()


@pytest.mark.parametrize(("place", "name"), [(round, "close_round"), (deploy, "make_model")])
def test_a_round_that_cannot_be_closed_or_released_is_nobodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: ModuleType, name: str
) -> None:
    """An update that is counted stays, so an error at the end of its round would come again after every start."""
    settings = aggregator_settings(rounds={"quorum": 3, "per_release": 1})
    service = Service(settings, Store(tmp_path / "a.db"), KEY, uptime_ns=T0_NS, anchor_ns=0, beginning="first")
    service.step_all(T0_NS, [Connection(True), *STATUSES])
    payload = body(service.state)
    sent = [event for gateway in GATEWAYS for event in update(gateway, payload)]
    as_it_is = getattr(place, name)

    def fail(*given: object, **named: object) -> object:
        if place is deploy or given[2]:
            raise KeyError("a defect")
        return as_it_is(*given, **named)

    monkeypatch.setattr(place, name, fail)
    effects = service.step_all(T0_NS + NS, sent)
    (told,) = [one.text for one in effects if isinstance(one, Log) and "KeyError: 'a defect'" in one.text]
    assert ("no model can be made" if place is deploy else "changes nothing") in told
    assert receipts(effects) == {gateway: [True] for gateway in GATEWAYS} and not service.state.failures
    service.close()


@pytest.mark.parametrize("version", [2**63, 10**20, -1])
def test_an_order_that_names_a_version_of_no_model_is_answered(tmp_path: Path, version: int) -> None:
    service = begun(tmp_path / "a.db")
    number = service.store.order("release", {"share": 1.0, "to_all": True, "version": version})
    service.step_all(T0_NS + NS, service.read_orders())
    assert service.store.answer(number) == (
        "refused",
        f"version {version} given, and no such model is stored (any more); see cloud-aggregator models",
    )
    service.close()


def test_an_order_that_cannot_be_carried_out_is_not_obeyed_again_at_every_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, before = begun(tmp_path / "a.db"), READY
    number = service.store.order("remove", {"gateway": "west"})

    def divide(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(admission, "remove_gateway", divide)
    told = service.step_all(T0_NS + NS, [alarm("east"), *service.read_orders()])
    assert receipts(told) == {"east": [True]} and service.state.access.gateways["west"] == before
    answer, problem = service.store.answer(number) or ("", "")
    assert answer == "refused" and problem.startswith("it could not be carried out, nothing was changed (ZeroDivision")
    assert not service.read_orders()
    service.close()


@pytest.mark.parametrize("error", [StoreError("the disk is full"), MemoryError("no memory")])
def test_an_error_of_our_own_or_of_the_disk_is_nobodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    service = begun(tmp_path / "a.db")

    def fail(state: State, *_: object) -> None:
        raise error

    def divide(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(reports, "record_loss", fail)
    with pytest.raises(type(error), match=str(error)):
        service.step_all(T0_NS + NS, [alarm("east"), POISON])
    monkeypatch.setattr(handling, "judge_fleet", divide)
    with pytest.raises(ZeroDivisionError):
        service.step_all(T0_NS + NS, [alarm("east"), Tick()])
    service.close()
