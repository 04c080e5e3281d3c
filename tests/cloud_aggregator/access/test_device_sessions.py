"""Two gateways with one id, a store that was set back, and messages that only look like either.

Method: statuses as two boots would send them, through a service with a real store; what an operator sees is read from
the registry of alarms. That a gateway which is alone never looks like two is a property of every order in which what
it says may come.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.cloud_aggregator.access.device_sessions import (
    PACE_S,
    SESSIONS_KEPT,
    STANDS_S,
    DeviceSessions,
    note_status,
    restore_sessions,
    resumed,
    to_text,
)
from fedgate.cloud_aggregator.events import Event, Tick
from fedgate.config.protocol.messages import Status
from tests.support.cloud_service import READY, Cloud, cloud, heard, mean_of
from tests.support.sites import NS, T0_NS

MINUTE_S = 60.0
ALARM_COLUMNS = ("gateway", "cause", "kind", "raised_ns", "cleared_ns")


class Device:
    """One boot of a gateway: what it says of itself at a moment of the world."""

    def __init__(self, made: Cloud, boot_id: str, store_id: str = "store", starts: int = 1, sequence: int = 10) -> None:
        self.made, self.boot_id, self.store_id, self.starts, self.sequence = made, boot_id, store_id, starts, sequence
        self.boot_ns = made.now_ns - 5 * NS
        self.more: dict[str, str] = {}

    def status(self) -> Event:
        said = {"store_id": self.store_id, "boot_id": self.boot_id, "starts": self.starts, "sequence": self.sequence}
        said |= {"monotonic_ns": self.made.now_ns - self.boot_ns, "t_ns": self.made.now_ns}
        return heard("north", "status", READY.model_copy(update=said | self.more).to_bytes())

    def speak(self, times: int = 1) -> None:
        for _ in range(times):
            self.made.hear(self.status(), Tick(), after_s=MINUTE_S)


def alarms(made: Cloud) -> list[tuple[str, bool]]:
    rows = made.service.store.rows("alarms", *ALARM_COLUMNS)
    assert all(row["gateway"] == "north" and row["kind"] == "sensor" for row in rows)
    return [(row["cause"], row["cleared_ns"] is not None) for row in sorted(rows, key=lambda row: row["raised_ns"])]


def by_turns(*devices: Device, times: int = round(PACE_S / MINUTE_S)) -> None:
    for _ in range(times):
        for device in devices:
            device.speak()


@pytest.mark.parametrize(("stores", "before"), [(("first", "second"), []), (("one", "one"), ["identity-restored"])])
def test_two_devices_under_one_id_are_left_unanswered_and_reported_while_they_speak(
    stores: tuple[str, str], before: list[str], tmp_path: Path
) -> None:
    """With stores of their own, or with the copy of one card."""
    with cloud(tmp_path, mean_of(2), rounds={"quorum": 3, "deadline_s": 1e6}) as made:
        one = Device(made, "a", store_id=stores[0])
        one.speak()
        other = Device(made, "b", store_id=stores[1])
        by_turns(other, one)
        known = [(cause, True) for cause in before]  # a copy has counted the same start twice, which is told at once
        assert alarms(made) == [*known, ("identity-twin", False)]
        assert made.send("north", made.body(1.0)) == []  # no refusal, which is for good: it has no other answer
        made.restart()
        assert made.send("north", made.body(1.0)) == []  # a restart forgets it not
        by_turns(other, one, times=20)
        assert alarms(made) == [*known, ("identity-twin", False)]  # one alarm, however long it lasts
        one.speak(round(STANDS_S / MINUTE_S) + 1)  # the other is gone
        assert alarms(made) == [*known, ("identity-twin", True)]
        assert made.send("north", made.body(1.0))[0].accepted
        one.boot_id, one.starts, one.boot_ns = "c", one.starts + 1, made.now_ns
        one.speak(30)
        assert alarms(made) == [*known, ("identity-twin", True)]  # what is gone is not held against the next boot


def test_turns_may_be_long(tmp_path: Path) -> None:
    """As of two devices of which each holds the connection for a while."""
    with cloud(tmp_path, mean_of(2)) as made:
        one, other = Device(made, "a", store_id="first"), Device(made, "b", store_id="second")
        one.speak(20)
        other.speak(10)
        assert alarms(made) == [("identity-replaced", False)]  # which it still may be
        one.speak(2)
        assert alarms(made) == [("identity-replaced", True), ("identity-twin", False)]


def test_one_message_that_is_late_ends_no_pace(tmp_path: Path) -> None:
    """Of two devices that speak by turns, the one whose message was late is there all the same."""
    with cloud(tmp_path, mean_of(2)) as made:
        one, other = Device(made, "a", store_id="first"), Device(made, "b", store_id="second")
        one.speak()
        by_turns(other, one, times=2)
        late = other.status()
        one.speak(2)
        made.hear(late, Tick())
        by_turns(other, one, times=2)
        assert alarms(made) == [("identity-twin", False)]


def test_a_round_does_not_wait_for_two_devices_under_one_id(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(2), rounds={"quorum": 2, "deadline_s": 1e6}) as made:
        by_turns(Device(made, "a"), Device(made, "b"), times=6)
        made.send("east", made.body(1.0))
        made.send("west", made.body(1.0))
        assert made.service.state.rounds.server.round_index == 1


@pytest.mark.parametrize(("starts", "after_s"), [(4, 0.0), (3, PACE_S), (1, PACE_S)])
def test_an_old_image_of_the_same_store_is_reported_and_goes_on(starts: int, after_s: float, tmp_path: Path) -> None:
    """A start that another boot has counted proves it; an older one may be late, until it goes on and on."""
    with cloud(tmp_path, mean_of(2)) as made:
        Device(made, "a", starts=4).speak(10)
        old = Device(made, "b", starts=starts)
        old.speak(1)
        assert alarms(made) == ([] if after_s else [("identity-restored", False)])
        old.speak(round(after_s / MINUTE_S))
        assert alarms(made) == [("identity-restored", False)]
        assert made.service.state.access.gateways["north"].boot_id == "b"
        assert made.send("north", made.body(1.0))[0].accepted  # what an algorithm makes of it is its own matter
        for number in range(5):  # its next boots count what the other had counted: that is told once
            old.speak(round(STANDS_S / MINUTE_S) + 1)
            old.boot_id, old.starts, old.boot_ns = f"b{number}", old.starts + 1, made.now_ns
        assert alarms(made) == [("identity-restored", True)]


@pytest.mark.parametrize(("is_heard_last", "problem"), [(False, ""), (True, ""), (True, "disk-full")])
def test_a_start_that_is_heard_late_proves_an_old_image_as_well(
    is_heard_last: bool, problem: str, tmp_path: Path
) -> None:
    """What a later status of the same boot overtook tells how the gateway was, not how it is: but the start was."""
    with cloud(tmp_path, mean_of(2)) as made:
        device = Device(made, "a", starts=4)
        device.more = {"store_problem": problem}
        late = device.status()
        made.now_ns += round(MINUTE_S) * NS
        device.starts, device.more = 5, {}
        device.speak()
        old = Device(made, "b", starts=4).status()
        first, last = (old, late) if is_heard_last else (late, old)
        made.hear(first)
        assert alarms(made) == []
        made.hear(last)
        assert alarms(made) == ([] if problem else [("identity-restored", False)])  # a full disk may not hold it
        made.restart()
        made.hear(Tick(), after_s=STANDS_S)
        assert alarms(made) == ([] if problem else [("identity-restored", True)])


def test_a_gateway_with_another_store_is_reported_when_it_stays(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(2)) as made:
        Device(made, "a", store_id="first").speak(10)
        new = Device(made, "b", store_id="second")
        new.speak(4)
        assert alarms(made) == [] and made.service.state.access.gateways["north"].store_id == "second"
        new.speak(2)
        assert alarms(made) == [("identity-replaced", False)]
        new.speak(round(STANDS_S / MINUTE_S) + 1)
        assert alarms(made) == [("identity-replaced", True)]


def test_a_start_that_a_full_disk_could_not_hold_is_no_old_image(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(2)) as made:
        for boot in range(3):
            device = Device(made, f"boot-{boot}", starts=7)
            device.more = {"store_problem": "disk-full"}
            device.speak(8)
        assert alarms(made) == []


def test_a_reboot_and_a_restart_are_nothing(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(2)) as made:
        device = Device(made, "a")
        for boot in range(3 * SESSIONS_KEPT):
            device.speak(3)
            device.starts += 1
            device.speak(2)  # the process was restarted
            device.boot_id, device.starts, device.sequence = f"boot-{boot}", device.starts + 1, device.sequence + boot
            device.boot_ns = made.now_ns
        assert alarms(made) == [] and len(made.service.state.access.sessions["north"].known) == SESSIONS_KEPT


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[float, Status]]:
    """Return what comes of the statuses of one gateway, and when: lost, late by up to `PACE_S`, repeated whenever a
    broker likes, or all at once when a broker comes back that had kept them.
    """
    at_s, said, starts = 0.0, [], draw(st.integers(1, 3))
    for boot in range(draw(st.integers(1, 5))):
        at_s += draw(st.floats(1.0, 900.0))
        began_s = at_s
        for _ in range(draw(st.integers(1, 12))):
            status = READY.model_copy(update={"store_id": "store", "boot_id": f"b{boot}", "starts": starts})
            said.append((at_s, status.model_copy(update={"monotonic_ns": round((at_s - began_s) * NS)})))
            at_s += draw(st.sampled_from([1.0, 60.0, 60.0, 60.0, 200.0]))
            starts += draw(st.integers(0, 5)) == 5  # the process was started again
        starts += 1
    come: list[tuple[float, Status]] = []
    back_s = draw(st.floats(0.0, at_s))
    late_s = draw(st.sampled_from([1.0, 40.0, PACE_S - 1.0]))
    for at_s, status in said:
        how = draw(st.sampled_from(["comes", "comes", "comes", "lost", "kept", "twice"]))
        come += [(at_s + draw(st.floats(0.0, late_s)), status)] if how in ("comes", "twice") else []
        come += [(max(at_s, back_s), status)] if how == "kept" else []
        come += [(at_s + draw(st.floats(0.0, 5_000.0)), status)] if how == "twice" else []
    return sorted(come, key=lambda one: one[0])


@settings(max_examples=300, deadline=None)
@given(come=histories(), restarts=st.sets(st.integers(0, 40), max_size=3), steps=st.lists(st.integers(-(10**6), 10**6)))
def test_a_gateway_that_is_alone_never_looks_like_two(
    come: list[tuple[float, Status]], restarts: set[int], steps: list[int]
) -> None:
    """Also where the aggregator is started again, with another time, on another machine."""
    lives, ahead_s = DeviceSessions(), 0
    for number, (at_s, status) in enumerate(come):
        if number in restarts:
            ahead_s = steps[number % len(steps)] if steps else 0
            lives = resumed(restore_sessions([("north", to_text(lives, 0))])["north"], T0_NS + round(at_s * NS), 7)
        lives, _ = note_status(lives, status, T0_NS + round((at_s + ahead_s) * NS), 0)
        assert lives.trouble is None


@settings(max_examples=100, deadline=None)
@given(come=histories())
def test_how_a_gateway_is_now_is_never_told_by_a_boot_that_is_over(come: list[tuple[float, Status]]) -> None:
    lives, newest = DeviceSessions(), (0, -1)
    for at_s, status in come:
        lives, is_news = note_status(lives, status, T0_NS + round(at_s * NS), 0)
        if is_news:
            assert status.monotonic_ns is not None
            assert (status.starts, status.monotonic_ns) >= newest or status.boot_id == lives.known[0].boot_id
            newest = (status.starts, status.monotonic_ns)


def test_a_stale_status_does_not_take_the_place_of_the_present_one(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(2)) as made:
        device = Device(made, "a")
        old = device.status()
        device.speak()
        device.boot_id, device.starts, device.boot_ns = "b", 2, made.now_ns
        device.speak()
        made.hear(old)
        assert made.service.state.access.gateways["north"].boot_id == "b"


def test_a_gateway_before_0_5_and_a_last_will_say_nothing_of_who_they_are(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(2)) as made:
        for boot_id in ("a", "b", "a"):
            made.hear(heard("north", "status", READY.model_copy(update={"boot_id": boot_id}).to_bytes()), after_s=60.0)
        assert alarms(made) == [] and not made.service.state.access.sessions.get("north", DeviceSessions()).known


def test_a_gateway_that_forgot_what_was_counted_is_refused_where_that_counts(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(2, remembers=True), rounds={"quorum": 1, "deadline_s": 1.0}) as made:
        counted = [""]  # digests
        for number, (after, taken) in enumerate([(0, True), (1, True), (1, False), (0, False), (2, True)]):
            body = made.body(float(number), after=counted[after])
            (receipt,) = made.send("north", body)
            assert receipt.accepted == taken, (number, receipt)
            if taken:
                counted.append(hashlib.sha256(body).hexdigest())
                made.hear(Tick(), after_s=1.0)
                made.restart()
            else:
                assert "was lost or set back" in receipt.reason and "another seed" in receipt.reason
        assert made.send("east", made.body(1.0))[0].accepted  # a gateway of 0.4 does not say
        assert not made.send("west", made.body(1.0, after="f" * 64))[0].accepted  # nor was it ever counted here
    with cloud(tmp_path, mean_of(2)) as made:
        assert made.send("north", made.body(1.0, after="f" * 64))[0].accepted
