"""The fleet alarm: raised once by a quorum, told apart by cause, and the same whatever order its messages came in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cloud_aggregator.__main__ import main as cloud_aggregator
from cloud_aggregator.events import Connection, Durable, Effect, Heard, Log, Publish, RecordFleet, Tick
from cloud_aggregator.outward import Outward
from cloud_aggregator.state import State, restore
from cloud_aggregator.store import Store
from config.messages import Alarm, FleetAlarm, Status
from tests.sites import KEY, NS, SITE, T0_NS, aggregator_settings
from tests.test_aggregator_machine import after, heard, published

WINDOW_S, CLEAR_S = 900.0, 300.0
WATCHING = Status(
    state="online", boot_id="one", clock="synchronised", baseline_windows=60, baseline_needed=60, model_version=1
)
ALL = ("a", "b", "c", "d", "e")


def alarm(gateway: str, state: str = "raised", onset_s: float = 0.0, **change: Any) -> Heard:
    onset_ns = T0_NS + round(onset_s * NS)
    cause = change.get("cause", "anomaly")
    told = {"id": f"{gateway}.{cause}.{onset_ns}", "cause": cause, "kind": "anomaly", "state": state}
    told |= {"severity": "warning", "text": "", "onset_ns": onset_ns, "t_ns": onset_ns + NS, "clock": "synchronised"}
    return heard(gateway, "alarm", Alarm.model_validate({**told, **change}).to_bytes())


def status(gateway: str, **change: Any) -> Heard:
    return heard(gateway, "status", WATCHING.model_copy(update=change).to_bytes())


def site(gateways: Iterable[str] = ALL, outward: Outward | None = None, **fleet: Any) -> State:
    chosen = aggregator_settings(fleet={"window_s": WINDOW_S, "clear_s": CLEAR_S, **fleet}, rounds={"rest_s": 1e6})
    state = restore(chosen, KEY, None, None, dict.fromkeys(gateways, WATCHING), T0_NS, outward=outward)
    return after(state, Connection(True))[0]


def said(effects: Sequence[Effect]) -> list[FleetAlarm]:
    """Return the fleet alarms of some effects, which are stored, retained and told in the same words."""
    stored = [one.alarm for one in effects if isinstance(one, RecordFleet)]
    told = [one for one in published(effects, "alarm") if "/all/" in one.topic]
    assert [FleetAlarm.from_bytes(one.payload) for one in told] == stored
    assert all(one.topic == f"fedgate/v1/{SITE}/all/alarm/fleet" and one.retain for one in told)
    return stored


def standing(state: State) -> FleetAlarm | None:
    return state.outward.fleet.alarm if state.outward.fleet.active else None


def test_a_quorum_raises_one_alarm_and_clears_it_when_it_stays_below() -> None:
    state, effects = after(site(), alarm("a"), alarm("b", onset_s=60), Tick())
    assert said(effects) == []  # two of five are local
    state, effects = after(state, alarm("c", onset_s=30, severity="major"), Tick())
    (raised,) = said(effects)
    assert (raised.state, raised.cause, raised.gateways, raised.severity) == (
        "raised",
        "fleet",
        ("a", "b", "c"),
        "major",
    )
    assert raised.onset_ns == T0_NS and raised.common == "structure-or-area"
    assert said(after(state, Tick(), alarm("c", onset_s=30), Tick())[1]) == []
    state, effects = after(state, alarm("b", "cleared", 60), Tick(), at_s=100)
    assert said(effects) == []
    state, effects = after(state, Tick(), at_s=100 + CLEAR_S - 1)
    assert said(effects) == [] and standing(state) == raised
    state, effects = after(state, Tick(), at_s=100 + CLEAR_S)
    (cleared,) = said(effects)
    assert (cleared.id, cleared.state, cleared.onset_ns) == (raised.id, "cleared", raised.onset_ns)
    assert cleared.gateways == ("a", "b", "c") and standing(state) is None
    state, effects = after(state, alarm("b", onset_s=500), Tick(), at_s=501)
    assert said(effects)[0].id != raised.id  # another alarm, another id


def test_a_group_that_is_back_in_time_does_not_clear() -> None:
    state, _ = after(site(), alarm("a"), alarm("b"), alarm("c"), Tick())
    state, _ = after(state, alarm("c", "cleared"), Tick(), at_s=10)
    state, _ = after(state, alarm("d", onset_s=20), Tick(), at_s=20)
    state, effects = after(state, alarm("d", "cleared", 20), Tick(), at_s=10 + CLEAR_S)
    assert said(effects) == [] and standing(state) is not None
    assert said(after(state, Tick(), at_s=9 + 2 * CLEAR_S)[1]) == []


@pytest.mark.parametrize(
    ("fleet", "watching", "needed"),
    [
        ({}, 3, 3),
        ({}, 5, 3),
        ({}, 8, 4),
        ({"share": 1.0}, 4, 4),
        ({"share": 0.1, "least": 2}, 9, 2),
        ({"least": 6}, 5, None),
        ({"enabled": False}, 5, None),
    ],
)
def test_the_quorum_is_a_share_of_those_who_watch_and_a_least_number(
    fleet: dict[str, Any], watching: int, needed: int | None
) -> None:
    gateways = [f"g{number}" for number in range(watching)]
    state = site(gateways, **fleet)
    for count, gateway in enumerate(gateways, start=1):
        state, _ = after(state, alarm(gateway), Tick())
        assert (standing(state) is not None) == (needed is not None and count >= needed)


@pytest.mark.parametrize(
    "change", [{"state": "offline"}, {"model_version": 0}, {"settling": True}], ids=lambda change: next(iter(change))
)
def test_who_does_not_watch_counts_for_no_quorum(change: dict[str, Any]) -> None:
    state = site([f"g{number}" for number in range(8)])
    state, _ = after(state, *[alarm(f"g{number}") for number in range(3)], Tick())
    assert standing(state) is None
    state, _ = after(state, *[status(f"g{number}", **change) for number in (6, 7)], Tick())
    assert standing(state) is not None


def test_who_is_of_the_group_counts_among_those_it_is_a_share_of_also_when_it_is_gone() -> None:
    state = site([f"g{number}" for number in range(8)])
    state, _ = after(state, *[alarm(f"g{number}") for number in range(3)], *gone("g0", "g1", "g2"), Tick())
    assert standing(state) is None  # three of eight, not three of the five that are left


def test_what_did_not_begin_together_or_is_of_a_sensor_is_local() -> None:
    apart = [alarm(gateway, onset_s=number * (WINDOW_S / 2 + 1)) for number, gateway in enumerate(ALL)]
    assert standing(after(site(), *apart, Tick(), at_s=5_000)[0]) is None
    together = [alarm(gateway, onset_s=number * WINDOW_S / 2) for number, gateway in enumerate(ALL)]
    found = standing(after(site(), *together, Tick(), at_s=5_000)[0])
    assert found is not None and found.gateways == ("c", "d", "e")  # of equal groups the latest
    sensors = [alarm(gateway, kind="sensor", cause="silent-deck") for gateway in ALL]
    assert standing(after(site(), *sensors, Tick())[0]) is None


def rebooted(*gateways: str) -> list[Heard]:
    return [status(gateway, boot_id="two") for gateway in gateways]


def gone(*gateways: str) -> list[Heard]:
    return [heard(gateway, "status", Status(state="offline").to_bytes()) for gateway in gateways]


def clock_lost(*gateways: str) -> list[Heard]:
    return [status(gateway, clock="unsynchronised") for gateway in gateways]


CAUSES: list[tuple[list[Heard], tuple[str, ...], str]] = [
    ([], ("a", "b", "c"), "structure-or-area"),
    ([], ALL, "weather-or-load"),
    (rebooted("a", "b"), ("a", "b", "c"), "power"),
    (rebooted("a"), ("a", "b", "c"), "structure-or-area"),
    (rebooted("d", "e"), ("a", "b", "c"), "structure-or-area"),  # of others
    (gone("a", "b"), ("a", "b", "c"), "power"),
    ([*gone("a"), *rebooted("b")], ("a", "b", "c"), "power"),
    ([*rebooted("a", "b", "c"), *clock_lost("a", "b", "c")], ("a", "b", "c"), "power"),
    (clock_lost("a", "b"), ("a", "b", "c"), "clock"),
    (clock_lost("a"), ("a", "b", "c"), "structure-or-area"),
    ([status(gateway, clock="unknown") for gateway in ALL], ("a", "b", "c"), "structure-or-area"),
    ([status(gateway) for gateway in ALL] * 2, ("a", "b", "c"), "structure-or-area"),
]


@pytest.mark.parametrize("case", CAUSES, ids=lambda case: f"{len(case[0])}-{len(case[1])}-{case[2]}")
@pytest.mark.parametrize("is_first", [True, False])
def test_a_common_cause_is_told_from_a_local_one(case: tuple[Any, ...], is_first: bool) -> None:
    statuses, members, common = case
    alarms = [alarm(gateway) for gateway in members]
    state, _ = after(site(), *(statuses if is_first else alarms), Tick())
    state, _ = after(state, *(alarms if is_first else statuses), Tick())
    found = standing(state)
    assert found is not None and (found.common, found.gateways) == (common, members)


@pytest.mark.parametrize(("late_s", "common"), [(WINDOW_S, "power"), (WINDOW_S + 1, "structure-or-area")])
def test_what_happened_long_before_or_after_is_no_cause(late_s: float, common: str) -> None:
    state, _ = after(site(), alarm("a"), alarm("b"), alarm("c"), Tick())
    state, _ = after(state, *rebooted("a", "b"), Tick(), at_s=late_s)
    found = standing(state)
    assert found is not None and found.common == common
    # What was seen once is kept while the alarm stands, whatever befalls these gateways later.
    state, _ = after(state, *gone("a", "b", "c"), Tick(), at_s=10_000)
    found = standing(state)
    assert found is not None and found.common == common


def test_the_whole_story_of_a_power_cut_has_one_id_and_one_cause() -> None:
    state, effects = after(site(), *[alarm(gateway) for gateway in ALL], Tick())
    state, more = after(state, *gone(*ALL), Tick(), at_s=30)
    state, last = after(state, *rebooted(*ALL), Tick(), at_s=90)
    told = said([*effects, *more, *last])
    assert len({one.id for one in told}) == 1
    assert [one.common for one in told] == ["weather-or-load", "power"]


def test_clocks_that_were_never_set_count_by_the_arrival_of_their_alarms() -> None:
    past = [alarm(gateway, onset_ns=5_000 * NS + 10**15 * n, clock="unsynchronised") for n, gateway in enumerate("abc")]
    found = standing(after(site(), *past, Tick())[0])
    assert found is not None and found.common == "structure-or-area" and found.onset_ns == T0_NS
    # A clock that claims to be right and gives such an onset has jumped.
    for onset_ns in (5_000 * NS, T0_NS + 10**15):
        jumped = [alarm(gateway, onset_ns=onset_ns) for gateway in "abc"]
        found = standing(after(site(), *jumped, Tick())[0])
        assert found is not None and found.common == "clock" and found.onset_ns == T0_NS


def test_an_alarm_that_waited_on_its_gateway_counts_by_its_onset() -> None:
    state, _ = after(site(), alarm("a"), alarm("b"), Tick())
    state, _ = after(state, alarm("c"), Tick(), at_s=50_000)
    assert standing(state) is not None
    state, _ = after(site(), alarm("a"), alarm("b"), Tick())
    assert standing(after(state, alarm("c", onset_s=49_990), Tick(), at_s=50_000)[0]) is None


def test_an_alarm_cleared_before_its_raising_arrives_never_stands() -> None:
    state, effects = after(site(), alarm("a"), alarm("b"), alarm("c", "cleared"), alarm("c"), alarm("c"), Tick())
    assert standing(state) is None and said(effects) == []


def committed(store: Store, effects: Iterable[Effect]) -> None:
    store.commit([effect for effect in effects if isinstance(effect, Durable)])


def test_it_survives_a_restart_and_is_told_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cloud_aggregator(["init", str(tmp_path), "--loopback"]) == 0
    path = tmp_path / "aggregator.db"
    store = Store(path)
    state = site()
    for events in ([alarm("a"), alarm("b")], [alarm("c"), Tick()], rebooted("a", "b"), [Tick()]):
        state, effects = after(state, *events)
        committed(store, effects)
    before = standing(state)
    assert before is not None and before.common == "power"
    store.close()
    shown = _shown(tmp_path, capsys)
    assert before.text in shown["status"] and "power" in shown["alarms"] and "a b c" in shown["alarms"]
    store = Store(path)
    again = site(outward=store.outward())
    assert standing(again) == before and again.outward.alarms == state.outward.alarms
    again, effects = after(again, Connection(True), Tick())
    assert said([one for one in effects if not isinstance(one, Publish)]) == []  # nothing new to store ...
    (told,) = [one for one in published(effects, "alarm") if one.retain]  # ... but told to a broker that may forget
    assert FleetAlarm.from_bytes(told.payload) == before
    again, effects = after(again, alarm("a", "cleared"), Tick(), at_s=10)
    committed(store, effects)
    again, effects = after(again, Tick(), at_s=11 + CLEAR_S)
    committed(store, effects)
    assert said(effects)[0].state == "cleared" and not any(isinstance(one, Log) for one in effects[:1])
    assert store.outward().fleet == again.outward.fleet
    assert len([row for row in store.rows("alarms") if row["gateway"] == "all"]) == 1
    store.close()
    assert before.text not in _shown(tmp_path, capsys)["status"]


def _shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    capsys.readouterr()
    shown = {}
    for part in ("status", "alarms"):
        assert cloud_aggregator([part, "-c", str(folder / "aggregator.toml")]) == 0
        shown[part] = capsys.readouterr().out
    return shown
