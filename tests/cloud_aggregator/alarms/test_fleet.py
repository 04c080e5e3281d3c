"""The fleet alarm: raised once by a quorum, with the cause that was measured, whatever order its messages came in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.cloud_aggregator.alarms.fleet import SURE
from fedgate.cloud_aggregator.alarms.records import Alarms
from fedgate.cloud_aggregator.events import Connection, Durable, Effect, Log, Publish, Received, RecordFleet, Tick
from fedgate.cloud_aggregator.state import State, Stored
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.protocol.messages import Alarm, FleetAlarm, Status
from fedgate.models.time_units import NS
from tests.cloud_aggregator.test_aggregator_machine import after, heard, published
from tests.support.sites import SITE, T0_NS, aggregator_settings, start_cloud

WINDOW_S, CLEAR_S = 900.0, 300.0
WATCHING = Status(
    state="online", boot_id="one", clock="synchronised", baseline_windows=60, baseline_needed=60, model_version=1
)
ALL = ("a", "b", "c", "d", "e")


def alarm(gateway: str, state: str = "raised", onset_s: float = 0.0, **change: Any) -> Received:
    onset_ns = T0_NS + round(onset_s * NS)
    cause = change.get("cause", "anomaly")
    told = {"id": f"{gateway}.{cause}.{onset_ns}", "cause": cause, "kind": "anomaly", "state": state}
    told |= {"severity": "warning", "text": "", "onset_ns": onset_ns, "t_ns": onset_ns + NS, "clock": "synchronised"}
    return heard(gateway, "alarm", Alarm.model_validate({**told, **change}).to_bytes())


def status(gateway: str, **change: Any) -> Received:
    return heard(gateway, "status", WATCHING.model_copy(update=change).to_bytes())


def site(gateways: Iterable[str] = ALL, alarms: Alarms | None = None, **fleet: Any) -> State:
    chosen = aggregator_settings(fleet={"window_s": WINDOW_S, "clear_s": CLEAR_S, **fleet}, rounds={"rest_s": 1e6})
    state = start_cloud(chosen, Stored(gateways=dict.fromkeys(gateways, WATCHING), alarms=alarms or Alarms()), T0_NS)
    return after(state, Connection(True))[0]


def said(effects: Sequence[Effect]) -> list[FleetAlarm]:
    """Return the fleet alarms of some effects, which are stored, retained and told in the same words."""
    stored = [one.alarm for one in effects if isinstance(one, RecordFleet)]
    told = [one for one in published(effects, "alarm") if "/all/" in one.topic]
    assert [FleetAlarm.from_bytes(one.payload) for one in told] == stored
    assert all(one.topic == f"fedgate/v1/{SITE}/all/alarm/fleet" and one.retain for one in told)
    return stored


def standing(state: State) -> FleetAlarm | None:
    return state.alarms.fleet.alarm if state.alarms.fleet.active else None


def test_a_share_of_the_gateways_is_counted_as_decimals_have_it() -> None:
    """In numbers of a computer 0.28 * 25 is a little more than 7, and asked for an eighth gateway."""
    names = [f"g{index}" for index in range(25)]
    state = site(names, share=0.28)
    assert said(after(state, *map(alarm, names[:6]), Tick())[1]) == []
    assert len(said(after(state, *map(alarm, names[:7]), Tick())[1])) == 1


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
    assert raised.onset_ns == T0_NS and raised.common == "undetermined"
    assert said(after(state, Tick(), alarm("c", onset_s=30), Tick())[1]) == []
    state, effects = after(state, alarm("b", "cleared", 60), Tick(), at_s=100)
    assert said(effects) == []
    state, effects = after(state, Tick(), at_s=100 + CLEAR_S - 1)
    assert said(effects) == [] and standing(state) == raised
    state, effects = after(state, Tick(), at_s=100 + CLEAR_S)
    (cleared,) = said(effects)
    assert (cleared.id, cleared.state, cleared.onset_ns) == (raised.id, "cleared", raised.onset_ns)
    assert cleared.gateways == ("a", "b", "c") and standing(state) is None
    assert cleared.text == f"over: fewer than 3 gateways share an anomaly; {raised.text}"
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


def rebooted(*gateways: str) -> list[Received]:
    return [status(gateway, boot_id="two") for gateway in gateways]


def gone(*gateways: str) -> list[Received]:
    return [heard(gateway, "status", Status(state="offline").to_bytes()) for gateway in gateways]


def clock_lost(*gateways: str) -> list[Received]:
    return [status(gateway, clock="unsynchronised") for gateway in gateways]


def measured(weather: str = "", power: str = "") -> dict[str, str]:
    return {"weather": weather, "power": power}


USUAL, COLD, DIP = measured("usual", "usual"), measured("explained", "usual"), measured("usual", "explained")
NAMED: dict[str, tuple[tuple[dict[str, str], ...], str]] = {
    "nothing measured": ((measured(),) * 5, "undetermined"),
    "nothing changed": ((USUAL,) * 5, "undetermined"),
    "most in the cold": ((COLD, COLD, COLD, USUAL, USUAL), "weather"),
    "all of five": ((COLD,) * 5, "weather"),
    "one of three": ((COLD, USUAL, USUAL), "undetermined"),
    "two of three": ((COLD, COLD, USUAL), "undetermined"),  # at least three say so
    "half": ((COLD, COLD, USUAL, measured()), "undetermined"),
    "most in a dip": ((DIP, DIP, DIP, measured()), "power"),
    "cold that accounts for nothing": ((measured("unusual", "usual"),) * 3, "undetermined"),
    "a boot that accounts for nothing": ((measured("", "unusual"),) * 3, "undetermined"),
    "no cause has most": ((COLD, COLD, DIP, DIP), "undetermined"),
    "both": ((measured("explained", "explained"),) * 3, "power"),
}


def story(each: Sequence[dict[str, str]]) -> list[Received]:
    return [alarm(gateway, onset_s=10.0 * n, **said) for n, (gateway, said) in enumerate(zip(ALL, each, strict=False))]


@pytest.mark.parametrize("case", NAMED)
def test_a_cause_is_what_most_of_the_group_have_measured(case: str) -> None:
    each, common = NAMED[case]
    for messages in (story(each), story(each)[::-1]):
        found = standing(after(site(), *messages, Tick())[0])
        assert found is not None and (found.common, len(found.gateways)) == (common, len(each))


def test_the_text_says_what_was_measured() -> None:
    found = standing(after(site(), *story((COLD, COLD, COLD, measured("unusual"))), Tick())[0])
    assert found is not None and found.text == (
        "cause: weather; 4 gateways (a, b, c, d) changed within 30 s; power: no change measured on 3, not measured on"
        " 1; weather: out of the ordinary and accounts for it on 3, out of the ordinary and does not account for it on"
        " 1; 1 others that watch have no anomaly with them"
    )


def test_that_all_sensors_changed_is_no_cause() -> None:
    """The three sensors of a bridge whose support was lowered, no covariate, and then the broker is gone a while."""
    state, effects = after(site("abc"), *story((measured(),) * 3), Tick())
    (raised,) = said(effects)
    assert raised.common == "undetermined"
    assert raised.text == (
        "cause: undetermined; 3 gateways (a, b, c) changed within 20 s; power: not measured on 3;"
        " weather: not measured on 3; no other gateway watches"
    )
    state, effects = after(state, *gone(*"abc"), Tick(), at_s=46)
    state, more = after(state, *[status(gateway) for gateway in "abc"], Tick(), at_s=90)
    assert said([*effects, *more]) == [] and standing(state) == raised


AFTERWARDS: dict[str, list[Received]] = {
    "the network is lost": gone(*ALL),
    "the power is lost": [*gone(*ALL), *rebooted(*ALL)],
    "clocks are lost": clock_lost(*ALL),
    "others measure weather": [alarm(gateway, onset_s=50.0, **COLD) for gateway in "de"],
    "the next alarm of most measures power": [alarm(gateway, onset_s=60.0, **DIP) for gateway in ALL],
}


@pytest.mark.parametrize("what", AFTERWARDS)
@pytest.mark.parametrize("each", [(USUAL,) * 3, (COLD,) * 3, (DIP,) * 3])
def test_the_first_cause_and_its_words_stay_while_the_alarm_stands(what: str, each: tuple[dict[str, str], ...]) -> None:
    state, effects = after(site(), *story(each), Tick())
    (raised,) = said(effects)
    state, effects = after(state, *AFTERWARDS[what], Tick(), at_s=100)
    state, more = after(state, Tick(), at_s=5_000)
    assert {(one.id, one.common, one.text) for one in [raised, *said([*effects, *more])]} == {
        (raised.id, raised.common, raised.text)
    }
    found = standing(state)
    assert found is not None and set(found.gateways) >= set(raised.gateways)


@pytest.mark.parametrize("what", ["the network is lost", "the power is lost", "clocks are lost"])
def test_statuses_decide_nothing_in_whatever_order_they_come(what: str) -> None:
    for messages in ([*AFTERWARDS[what], *story((USUAL,) * 3)], [*story((USUAL,) * 3), *AFTERWARDS[what]]):
        found = standing(after(site(), *messages, Tick())[0])
        assert found is not None and found.common == "undetermined"


@pytest.mark.parametrize("least", [2, 3, 4, 5])
@pytest.mark.parametrize("lie", [COLD, DIP])
def test_one_gateway_names_no_cause_and_prevents_none(least: int, lie: dict[str, str]) -> None:
    others = [USUAL] * (least - 1)
    found = standing(after(site(least=least, share=0.1), *story((lie, *others)), Tick())[0])
    assert found is not None and found.common == "undetermined"
    if least > SURE:  # with so many the others are still enough
        found = standing(after(site(least=least, share=0.1), *story((USUAL, *[lie] * (least - 1))), Tick())[0])
        assert found is not None and found.common == ("weather" if lie == COLD else "power")


def test_clocks_that_were_never_set_count_by_the_arrival_of_their_alarms() -> None:
    past = [alarm(gateway, onset_ns=5_000 * NS + 10**15 * n, clock="unsynchronised") for n, gateway in enumerate("abc")]
    found = standing(after(site(), *past, Tick())[0])
    assert found is not None and found.common == "undetermined" and found.onset_ns == T0_NS
    # A clock that claims to be right and gives such an onset has jumped.
    for onset_ns in (5_000 * NS, T0_NS + 10**15):
        jumped = [alarm(gateway, onset_ns=onset_ns) for gateway in "abc"]
        found = standing(after(site(), *jumped, Tick())[0])
        assert found is not None and found.common == "undetermined" and found.onset_ns == T0_NS


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


@pytest.mark.soak
def test_it_survives_a_restart_and_is_told_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cloud_aggregator(["init", str(tmp_path), "--loopback"]) == 0
    path = tmp_path / "aggregator.db"
    store = Store(path)
    state = site()
    first, second, third = story((DIP, DIP, DIP))
    state, effects = after(state, first, second)
    committed(store, effects)
    state = site(alarms=store.read_alarms())  # a restart between two alarms loses nothing of what they measured
    for events in ([third, Tick()], rebooted("a", "b"), [Tick()]):
        state, effects = after(state, *events)
        committed(store, effects)
    before = standing(state)
    assert before is not None and before.common == "power"
    store.close()
    shown = _shown(tmp_path, capsys)
    assert before.text in shown["status"] and "power" in shown["alarms"] and "a b c" in shown["alarms"]
    store = Store(path)
    again = site(alarms=store.read_alarms())
    assert standing(again) == before and again.alarms.book == state.alarms.book
    again, effects = after(again, Connection(True), Tick())
    assert said([one for one in effects if not isinstance(one, Publish)]) == []  # nothing new to store ...
    (told,) = [one for one in published(effects, "alarm") if one.retain]  # ... but told to a broker that may forget
    assert FleetAlarm.from_bytes(told.payload) == before
    again, effects = after(again, alarm("a", "cleared"), Tick(), at_s=10)
    committed(store, effects)
    again, effects = after(again, Tick(), at_s=11 + CLEAR_S)
    committed(store, effects)
    assert said(effects)[0].state == "cleared" and not any(isinstance(one, Log) for one in effects[:1])
    assert store.read_alarms().fleet == again.alarms.fleet
    assert len([row for row in store.read_rows("alarms") if row["gateway"] == "all"]) == 1
    store.close()
    assert before.text not in _shown(tmp_path, capsys)["status"]


def _shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    capsys.readouterr()
    shown = {}
    for part in ("status", "alarms"):
        assert cloud_aggregator([part, "-c", str(folder / "aggregator.toml")]) == 0
        shown[part] = capsys.readouterr().out
    return shown
