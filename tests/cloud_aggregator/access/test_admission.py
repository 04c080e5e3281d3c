"""Goal: who belongs to a site is decided by the machine, stored before it is told, and the same when it is asked again.

Method: the machine with hand-made requests and orders; what it wants stored goes through a real store, and a machine
that begins with that store must decide as the one before.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedgate.cloud_aggregator import machine
from fedgate.cloud_aggregator.access import admission
from fedgate.cloud_aggregator.access.registry import Registry
from fedgate.cloud_aggregator.enrolment import CertificateRequested, Issue, Reject, Revoke, Revoked
from fedgate.cloud_aggregator.events import (
    Answered,
    Connection,
    Durable,
    Effect,
    Log,
    Ordered,
    Publish,
    RecordAlarm,
    RecordGateway,
    RecordPresence,
    Tick,
    Wanted,
)
from fedgate.cloud_aggregator.state import State, Stored
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.protocol.messages import Status
from fedgate.config.settings.identity import Identity
from fedgate.models.time_units import NS
from tests.cloud_aggregator.test_aggregator_machine import ALARM, READY, after, body, heard, published, receipts, update
from tests.support.sites import T0_NS, aggregator_settings, start_cloud, topic, with_record

DAY_S = 86_400.0
LIFE_DAYS, GRACE_DAYS = 90.0, 365.0
SECRET, OTHER = "d" * 64, "e" * 64  # digests of two tokens
SITE = aggregator_settings(rounds={"quorum": 1}).model_copy(update={"identity": Identity()})


def begun(held: Registry | None = None, gateways: Iterable[str] = (), now_ns: int = T0_NS) -> State:
    state = start_cloud(SITE, Stored(gateways=dict.fromkeys(gateways, READY)), now_ns)
    return machine.start_with_registry(state, held or Registry(), ())[0]


def ordered(kind: str, **given: Any) -> Ordered:
    return Ordered(1, kind, given)


def token(gateway: str = "north", digest: str = SECRET, replaces: bool = False) -> Ordered:
    return ordered("token", gateway=gateway, digest=digest, hours=24.0, replaces=replaces)


def asks(gateway: str = "north", key: str = "key", digest: str = SECRET, serial: str = "a1") -> CertificateRequested:
    return CertificateRequested(7, gateway, key, serial, digest)


def registry(state: State) -> Registry:
    assert state.access.registry is not None
    return state.access.registry


def only(effects: Iterable[Wanted], kind: type[Any]) -> Any:
    found = [effect for effect in effects if isinstance(effect, kind)]
    assert len(found) == 1, found
    return found[0]


def refusal(effects: Iterable[Wanted]) -> str:
    effects = list(effects)
    effects = [
        one
        for one in effects
        if not isinstance(one, RecordAlarm) and not (isinstance(one, Log) and "identity-refused" in one.text)
    ]
    assert not [effect for effect in effects if isinstance(effect, Issue | Durable)]
    assert only(effects, Log).level == "warning"  # so that the operator sees who tries
    return str(only(effects, Reject).reason)


def enrolled(*gateways: str) -> State:
    state = begun()
    for name in gateways:
        state, effects = after(state, token(name, digest=name), asks(name, key=f"{name}'s", digest=name, serial=name))
        assert only(effects, Issue).certificate.gateway == name
    return state


def test_a_token_admits_one_device_once_and_answers_it_again() -> None:
    state, effects = after(begun(), token(), asks())
    made = only(effects, Issue).certificate
    assert (made.gateway, made.key, made.serial) == ("north", "key", "a1")
    assert made.not_after_ns == T0_NS + round(LIFE_DAYS * DAY_S * NS)
    again, effects = after(state, asks(serial="b2"), at_s=DAY_S / 2)
    assert only(effects, Issue).certificate == made and registry(again).certificates == registry(state).certificates
    assert "used by another device" in refusal(after(state, asks(key="thief's", serial="c3"))[1])


@pytest.mark.parametrize(
    ("request_", "at_s", "words"),
    [
        (asks(digest=OTHER), 0.0, "not known here"),
        (asks("south"), 0.0, "for another gateway"),
        (asks(), DAY_S, "has expired"),
        (asks(digest=""), 0.0, "needs a token"),
    ],
)
def test_nobody_else_gets_in(request_: CertificateRequested, at_s: float, words: str) -> None:
    state, _ = after(begun(), token())
    assert words in refusal(after(state, request_, at_s=at_s)[1])


def test_a_second_device_of_one_name_is_refused_and_an_alarm_unless_the_operator_wants_it() -> None:
    state, _ = after(enrolled("north"), ordered("token", gateway="other", digest=OTHER, hours=1.0, replaces=False))
    assert "--replace" in only(after(state, token())[1], Answered).problem
    state, effects = after(state, token(replaces=True), asks(key="new", serial="b2"))
    bar = only(effects, Revoke)
    assert (bar.cut, bar.barred, bar.outlived) == (("north",), frozenset(), (("north", "north"),))
    assert registry(state).admitted == {"north"}
    assert {one.key: one.reason for one in registry(state).list_certificates("north")} == {
        "north's": "replaced",
        "new": "",
    }
    assert "is replaced" in refusal(after(state, asks(key="north's", digest=""))[1])
    # A token that was made before the first device came does not let a second one in either.
    state, _ = after(begun(), token(), token(digest=OTHER), asks())
    state, effects = after(state, asks(key="second", digest=OTHER), asks(key="second", digest=OTHER))
    assert [one.reason.split(";")[0] for one in effects if isinstance(one, Reject)] == [
        "another device is or was north"
    ] * 2
    alarm = only(effects, RecordAlarm).alarm  # one, however often it comes
    assert (alarm.cause, alarm.state) == ("identity-refused", "raised")
    assert not [one for one in after(state, Tick(), at_s=3_599.0)[1] if isinstance(one, RecordAlarm)]
    end = only(after(state, Tick(), at_s=3_600.0)[1], RecordAlarm).alarm
    assert (end.id, end.state) == (alarm.id, "cleared")
    state, _ = after(state, ordered("revoke", gateway="north"))  # as the alarm says, where nobody meant it
    end = only(after(state, Tick(), at_s=3_600.0)[1], RecordAlarm).alarm
    assert (end.id, end.state) == (alarm.id, "cleared")


def test_a_key_that_was_revoked_is_let_in_under_no_name() -> None:
    """Whoever copied it has it still, and could renew from anywhere whatever the device was given."""
    state, _ = after(enrolled("north"), ordered("revoke", gateway="north"), token("south", digest=OTHER))
    came = asks("south", key="north's", digest=OTHER, serial="b2")
    said = refusal(after(state, came)[1])
    assert "was revoked as that of north" in said and "enrol --new-key" in said
    assert "was revoked" in refusal(after(state, asks(key="north's", digest=""))[1])
    assert only(after(state, asks("south", key="another", digest=OTHER))[1], Issue)
    # A key that was replaced is that of a device that may have moved on.
    state, _ = after(enrolled("north"), token(replaces=True), asks(key="new"), token("south", digest=OTHER))
    assert only(after(state, came)[1], Issue)


def test_what_is_good_is_not_forgotten_while_our_clock_is_ahead_and_can_be_revoked() -> None:
    state = enrolled("north")
    state, _ = after(state, asks(key="north's", digest="", serial="ahead"), at_s=2 * 365 * DAY_S)
    state, _ = after(state, asks(key="north's", digest="", serial="right"), at_s=10 * DAY_S)
    _, effects = after(state, ordered("revoke", gateway="north"), at_s=11 * DAY_S)
    assert "north" in {serial for serial, _ in only(effects, Revoke).ended}


def test_certificates_that_expired_long_ago_are_forgotten_but_for_the_newest(tmp_path: Path) -> None:
    with closing(Store(tmp_path / "aggregator.db")) as store:
        state, effects = after(begun(), token(), asks())
        for number in range(40):
            state, more = after(state, asks(digest="", serial=f"{number:x}f"), at_s=(number + 1) * 60 * DAY_S)
            effects += more
        store.commit([one for one in effects if isinstance(one, Durable) and not isinstance(one, Answered)])
        held = registry(state).certificates
        assert len(held) == admission.KEPT + 1 and store.read_registry().certificates == held
        assert max(held.values(), key=lambda one: one.issued_ns).serial == f"{39:x}f"


def test_strangers_raise_no_alarm() -> None:
    for request in (asks(digest=OTHER), asks(gateway="nobody")):
        assert refusal(after(enrolled("north"), token(replaces=True), request)[1][-2:])


def test_who_is_no_gateway_is_recorded_and_can_be_revoked_and_come_again() -> None:
    made = ordered("certified", name="operator", serial="b7", key="k", not_after_ns=T0_NS + NS)
    state, effects = after(begun(), made)
    assert only(effects, Answered).text == "operator has a certificate" and not [
        e for e in effects if isinstance(e, Revoke)
    ]
    state, effects = after(state, ordered("revoke", gateway="operator"))
    assert [serial for serial, _ in only(effects, Revoke).ended] == ["b7"] and only(effects, Revoke).barred == {
        "operator"
    }
    state, effects = after(state, ordered("certified", name="operator", serial="b8", key="l", not_after_ns=T0_NS + NS))
    assert only(effects, Revoke).barred == frozenset() and [one for one, _ in only(effects, Revoke).ended] == ["b7"]


@pytest.mark.parametrize(
    ("after_days", "is_new"), [(1, False), (44, False), (46, True), (LIFE_DAYS + 1, True), (LIFE_DAYS + 364, True)]
)
def test_a_certificate_is_renewed_from_the_middle_of_its_life_and_for_a_while_after_it(
    after_days: float, is_new: bool
) -> None:
    state = enrolled("north")
    state, effects = after(state, asks(key="north's", digest="", serial="new"), at_s=after_days * DAY_S)
    made = only(effects, Issue).certificate
    assert (made.serial == "new") == is_new
    assert made.not_after_ns > T0_NS + round(after_days * DAY_S * NS) or not is_new
    assert registry(state).admitted == {"north"}  # the old one is as good until it expires: the new one may get lost


def test_what_expired_longer_ago_than_the_grace_needs_a_token() -> None:
    late_s = (LIFE_DAYS + GRACE_DAYS + 1) * DAY_S
    assert "expired more than 365 days ago" in refusal(
        after(enrolled("north"), asks(key="north's", digest=""), at_s=late_s)[1]
    )


def test_nothing_is_signed_while_the_clock_is_not_set() -> None:
    state, _ = after(begun(now_ns=5 * NS), token())
    assert "clock of the aggregator is not set" in refusal(
        admission.decide_request(state.access, replace(state.context, uptime_ns=9 * NS), asks())[1]
    )


def test_what_was_signed_while_the_clock_was_ahead_is_not_handed_out_again() -> None:
    state, _ = after(begun(), token(), asks(), at_s=DAY_S / 2)
    ahead, effects = after(state, asks(digest="", serial="early"), at_s=400 * DAY_S)
    assert only(effects, Issue).certificate.serial == "early"
    back, effects = after(ahead, asks(digest="", serial="right"), at_s=60 * DAY_S)
    made = only(effects, Issue).certificate
    assert made.serial == "right" and made.issued_ns == T0_NS + round(60 * DAY_S * NS)
    assert only(after(back, asks(digest="", serial="again"), at_s=61 * DAY_S)[1], Issue).certificate == made


def test_who_is_turned_away_again_and_again_fills_no_log() -> None:
    _, effects = after(begun(), *[asks(digest=OTHER)] * 100)
    said = [one.text for one in effects if isinstance(one, Log)]
    assert len(said) == 7 and said[-1].endswith("turned away so far: 64")


def test_who_looks_on_is_no_gateway() -> None:
    made = ordered("certified", name="operator", serial="b7", key="k", not_after_ns=T0_NS + NS)
    state, effects = after(begun(), made, heard("operator", "status", READY.to_bytes()))
    assert not state.access.gateways and "operator is not enrolled" in only(effects[-1:], Log).text


def test_only_enrolled_gateways_count() -> None:
    state, effects = after(enrolled("north"), heard("stranger", "status", READY.to_bytes()))
    assert "stranger" not in state.access.gateways and "is not enrolled" in only(effects, Log).text
    state, effects = after(state, heard("stranger", "alarm", ALARM.to_bytes()))
    assert not receipts(effects) and not state.alarms.book
    state, _ = after(state, heard("north", "status", READY.to_bytes()))
    assert state.access.gateways == {"north": READY}
    without = with_record(state, "access", registry=None)  # no [identity]: whom the broker lets in
    assert "stranger" in after(without, heard("stranger", "status", READY.to_bytes()))[0].access.gateways


def test_a_revoked_gateway_is_out_at_once_and_the_round_does_not_wait_for_it() -> None:
    state, _ = after(enrolled("north", "south"), Connection(True))
    state, _ = after(state, *[heard(name, "status", READY.to_bytes()) for name in ("north", "south")])
    state, _ = after(state, *update("south", body(state)))
    assert state.rounds.server.round_index == 0 and state.rounds.counted.keys() == {"south"}  # it waits for north
    state, effects = after(state, ordered("revoke", gateway="north"))
    assert only(effects, Answered).text == ""  # its answer waits for the broker
    assert only(effects, Revoke).answer.startswith("north is revoked")
    for problem in ("", "no broker"):
        _, told = after(state, Revoked(1, "north is revoked", problem))
        assert only(told, Answered).text == "north is revoked" and problem in only(told, Answered).problem
    gone = only(effects, RecordPresence)
    assert (gone.gateway, gone.state) == ("north", "gone")
    bar = only(effects, Revoke)
    assert (bar.cut, bar.barred, [serial for serial, _ in bar.ended]) == (("north",), {"north"}, ["north"])
    assert state.access.gateways.keys() == {"south"} and state.rounds.server.round_index == 1
    late, effects = after(state, *update("north", body(state)))
    assert late.rounds.counted == state.rounds.counted and not receipts(effects)
    for request in (asks(key="north's", digest=""), asks(key="north's", digest="north")):
        assert refusal(after(state, request)[1])  # neither by its certificate nor by its token
    _, effects = after(state, token(replaces=True), asks(key="north's"))
    assert "'gateway-agent enrol --new-key' makes another" in refusal(effects[-2:])
    state, effects = after(state, token(replaces=True), asks(key="another", serial="z9"))
    assert only(effects, Revoke).barred == frozenset()  # the broker must hear that the name is good again
    assert "no gateway 'west'" in only(after(state, ordered("revoke", gateway="west"))[1], Answered).problem


def test_a_token_that_lies_about_is_void_once_its_gateway_is_revoked() -> None:
    state, _ = after(begun(), token(), ordered("revoke", gateway="north"))
    assert "not known here" in refusal(after(state, asks())[1])


def test_a_removed_gateway_leaves_nothing_to_wait_for_and_no_alarm() -> None:
    state, _ = after(enrolled("north"), Connection(True), heard("north", "status", READY.to_bytes()))
    state, _ = after(state, heard("north", "alarm", ALARM.to_bytes()))
    state, effects = after(state, ordered("remove", gateway="north"))
    assert not state.access.gateways and not registry(state).admitted
    assert not [one for one in state.alarms.book["north"].values() if one.active]
    emptied = [one.topic for one in effects if isinstance(one, Publish) and one.retain and not one.payload]
    assert {topic("north", "status", "agent"), topic("north", "alarm", "anomaly")} <= set(emptied)
    assert published(effects, "service-request")  # the building hears that it is over
    text = only(after(state, token())[1], Answered).text
    assert text.startswith("north may enrol within 24 hours; then restart the broker")
    assert (
        "no gateway 'north' is known" in only(after(begun(), ordered("remove", gateway="north"))[1], Answered).problem
    )


def test_a_site_without_identity_can_remove_too_and_says_what_it_lacks() -> None:
    state = with_record(begun(), "access", registry=None, gateways={"north": Status(state="offline")})
    assert not after(state, ordered("remove", gateway="north"))[0].access.gateways
    for order in (token(), ordered("revoke", gateway="north")):
        assert "has no [identity]" in only(after(state, order)[1], Answered).problem
    assert "has no [identity]" in refusal(after(state, asks())[1])


def test_a_restart_decides_as_before(tmp_path: Path) -> None:
    with closing(Store(tmp_path / "store.db")) as store:
        state = begun()
        for event in (
            *(
                token(),
                asks(),
                token("south", OTHER),
                ordered("revoke", gateway="north"),
                asks("south", digest=OTHER, serial="b2"),
            ),
            *(token("west", "f" * 64), token("south", SECRET, replaces=True), asks("south", "new", SECRET, "b3")),
        ):
            state, effects = after(state, event)
            store.commit([one for one in effects if isinstance(one, Durable) and not isinstance(one, Answered)])
            assert set(store.read_registry().certificates.values()) == set(registry(state).certificates.values())
            live = {one for one in store.read_registry().passes.values() if one.expires_ns}
            assert live == set(registry(state).passes.values())
        again = begun(store.read_registry(), gateways=("north", "south"))
    assert again.access.gateways.keys() == {"south"} and registry(again).admitted == {"south"}
    assert registry(again).list_ended() == registry(state).list_ended() and registry(again).barred == {"north"}


def spent(epsilon: float | None, **said: Any) -> Status:
    return READY.model_copy(update={"privacy_epsilon": epsilon, **said})


def told_of(state: State, *statuses: Status) -> tuple[State, list[Effect]]:
    return after(state, *[heard("north", "status", one.to_bytes()) for one in statuses])


@pytest.mark.parametrize("restarted", [False, True])
def test_what_a_gateway_spent_of_its_privacy_is_known_beyond_its_revocation(restarted: bool) -> None:
    state, _ = told_of(enrolled("north"), spent(5.0))
    state, _ = after(state, ordered("revoke", gateway="north"))
    if restarted:
        before = start_cloud(SITE, Stored(gateways={"north": spent(5.0)}), T0_NS)
        state, _ = machine.start_with_registry(before, registry(state), ())
    assert "north" not in state.access.gateways
    again = replace(asks(key="new", digest=OTHER, serial="b2"), is_same_device=True)
    state, _ = after(state, token(digest=OTHER, replaces=True), again)
    state, effects = told_of(state, spent(0.1))
    assert state.access.gateways["north"].privacy_epsilon == 5.0
    assert any(
        "has spent epsilon 0.1 of its privacy, and said 5 before" in one.text for one in effects if isinstance(one, Log)
    )
    another = asks(key="third", digest="f" * 64, serial="c3")
    state, _ = after(state, ordered("remove", gateway="north"), token(digest="f" * 64, replaces=True), another)
    assert told_of(state, spent(0.1))[0].access.gateways["north"].privacy_epsilon == 0.1, (
        "the operator has had it forgotten"
    )


def test_what_a_late_status_says_was_spent_counts_and_nothing_else_of_it() -> None:
    present, late = (
        {"store_id": "s", "boot_id": boot, "starts": start, "monotonic_ns": 9} for boot, start in (("b", 2), ("a", 1))
    )
    state, effects = told_of(enrolled("north"), spent(1.0, **present), spent(5.0, **late, version="old"))
    assert state.access.gateways["north"] == spent(5.0, **present).compact()
    assert only(effects[-3:], RecordGateway).status.privacy_epsilon == 5.0
