"""Two gateways with one id, a store that was set back, and messages that only look like either.

Method: statuses as two boots would send them, through a service with a real store; what an operator sees is read from
the registry of alarms. That a gateway which is alone never looks like two is a property of every order in which what
it says, and what it is answered, may come.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgate.cloud_aggregator.access.device_sessions import (
    FULL,
    SESSIONS_KEPT,
    Conflict,
    DeviceSessions,
    note_status,
    restore_sessions,
    to_text,
)
from fedgate.cloud_aggregator.access.duplicates import STANDS_S
from fedgate.cloud_aggregator.events import Event, Log, Publish, Tick
from fedgate.config.protocol.messages import STATUS, Receipt, Status
from fedgate.models.time_units import NS
from tests.support.cloud_service import READY, Cloud, cloud, heard, mean_of
from tests.support.sites import T0_NS, topic

MINUTE_S = 60.0
ALARM_COLUMNS = ("gateway", "cause", "kind", "raised_ns", "cleared_ns")


class Device:
    """One boot of a gateway: what it says of itself at a moment of the world, and what it is answered."""

    def __init__(self, made: Cloud, boot_id: str, store_id: str = "store", starts: int = 1, sequence: int = 10) -> None:
        self.made, self.boot_id, self.store_id, self.starts, self.sequence = made, boot_id, store_id, starts, sequence
        self.boot_ns, self.challenge = made.now_ns - 5 * NS, 0
        self.more: dict[str, str] = {}

    def reboot(self, boot_id: str) -> None:
        self.boot_id, self.starts, self.boot_ns, self.challenge = boot_id, self.starts + 1, self.made.now_ns, 0

    def status(self) -> Event:
        said = {"store_id": self.store_id, "boot_id": self.boot_id, "starts": self.starts, "sequence": self.sequence}
        said |= {"monotonic_ns": self.made.now_ns - self.boot_ns, "t_ns": self.made.now_ns}
        said |= {"challenge": self.challenge}
        return heard("north", "status", READY.model_copy(update=said | self.more).to_bytes())

    def speak(self, times: int = 1) -> None:
        for _ in range(times):
            self.made.now_ns += round(MINUTE_S) * NS
            self.take_challenge(self.made.hear(self.status(), Tick()))

    def take_challenge(self, effects: Iterable[object]) -> None:
        for effect in effects:
            if isinstance(effect, Publish) and effect.topic == topic("north", "receipt", STATUS):
                self.challenge = Receipt.from_bytes(effect.payload).challenge


def alarms(made: Cloud) -> list[tuple[str, bool]]:
    rows = made.service.store.read_rows("alarms", *ALARM_COLUMNS)
    assert all(row["gateway"] == "north" and row["kind"] == "sensor" for row in rows)
    return [(row["cause"], row["cleared_ns"] is not None) for row in sorted(rows, key=lambda row: row["raised_ns"])]


def by_turns(*devices: Device, times: int = 2) -> None:
    for _ in range(times):
        for device in devices:
            device.speak()


@pytest.mark.soak
@pytest.mark.parametrize(("stores", "before"), [(("first", "second"), ["identity-replaced"]), (("one", "one"), [])])
def test_two_devices_under_one_id_are_left_unanswered_and_reported_while_they_speak(
    stores: tuple[str, str], before: list[str], tmp_path: Path
) -> None:
    """With stores of their own, which looks like a new store at first, or with the copy of one card."""
    with cloud(tmp_path, mean_of(2), rounds={"quorum": 3, "deadline_s": 1e6}) as made:
        one = Device(made, "a", store_id=stores[0])
        one.speak(2)
        other = Device(made, "b", store_id=stores[1], starts=2)
        by_turns(other, one)
        assert alarms(made) == [*[(cause, False) for cause in before], ("identity-twin", False)]
        assert made.send("north", made.body(1.0)) == []  # no refusal, which is for good: it has no other answer
        made.restart()
        assert made.send("north", made.body(1.0)) == []  # a restart forgets it not
        by_turns(other, one, times=20)
        known = [(cause, True) for cause in before]
        assert alarms(made) == [*known, ("identity-twin", False)]  # one alarm, however long it lasts
        made.restart()
        made.hear(Tick())  # which knows of no sign since the first
        assert alarms(made) == [*known, ("identity-twin", False)] and made.send("north", made.body(1.0)) == []
        one.speak(round(STANDS_S / MINUTE_S) + 1)  # the other is gone
        assert alarms(made) == [*known, ("identity-twin", True)]
        assert made.send("north", made.body(1.0))[0].accepted
        one.reboot("c")
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
        assert alarms(made)[-1] == ("identity-twin", False)


def test_a_round_does_not_wait_for_two_devices_under_one_id(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(2), rounds={"quorum": 2, "deadline_s": 1e6}) as made:
        by_turns(Device(made, "a"), Device(made, "b"), times=3)
        assert ("identity-twin", False) in alarms(made)
        made.send("east", made.body(1.0))
        made.send("west", made.body(1.0))
        assert made.service.state.rounds.server.round_index == 1


@pytest.mark.soak
@pytest.mark.parametrize("starts", [4, 3, 1])
def test_an_old_image_of_the_same_store_is_reported_and_goes_on(starts: int, tmp_path: Path) -> None:
    """With its second status: the first may be late, and is no news of the gateway."""
    with cloud(tmp_path, mean_of(2)) as made:
        Device(made, "a", starts=4).speak(10)
        old = Device(made, "b", starts=starts)
        old.speak()
        assert alarms(made) == []
        assert made.service.state.access.gateways["north"].boot_id == "a"
        old.speak()
        assert alarms(made) == [("identity-restored", False)]
        assert made.service.state.access.gateways["north"].boot_id == "b"
        assert made.send("north", made.body(1.0))[0].accepted  # what an algorithm makes of it is its own matter
        for number in range(5):  # its next boots count what the other had counted: that is told once
            old.speak(round(STANDS_S / MINUTE_S) + 1)
            old.reboot(f"b{number}")
        assert alarms(made) == [("identity-restored", True)]


def test_an_old_image_that_is_put_back_without_a_boot_is_reported_at_once(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(2)) as made:
        device = Device(made, "a", starts=4)
        device.speak(2)
        device.starts = 3
        device.speak()
        assert alarms(made) == [("identity-restored", False)]


def test_a_gateway_with_another_store_is_reported_when_it_stays(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(2)) as made:
        Device(made, "a", store_id="first").speak(10)
        new = Device(made, "b", store_id="second")
        new.speak()
        assert alarms(made) == [] and made.service.state.access.gateways["north"].store_id == "first"
        new.speak()
        assert alarms(made) == [("identity-replaced", False)]
        assert made.service.state.access.gateways["north"].store_id == "second"
        new.speak(round(STANDS_S / MINUTE_S) + 1)
        assert alarms(made) == [("identity-replaced", True)]


def test_a_store_that_is_exchanged_and_put_back_within_a_boot_is_told_as_such(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(2)) as made:
        first = Device(made, "a", store_id="first")
        first.speak(5)
        second = Device(made, "a", store_id="second")
        second.speak(5)
        first.starts, first.challenge = first.starts + 1, 0
        first.speak(5)
        assert alarms(made) == [("identity-replaced", False)]
        assert made.service.state.access.gateways["north"].store_id == "first"
        assert made.send("north", made.body(1.0))[0].accepted


@pytest.mark.parametrize(
    ("boot_id", "store_id", "words"),
    [
        ("a", "first", "it was sent before one that is here already"),
        ("b", "first", "it is of another boot: it came late, or its store was set back"),
        ("b", "second", "it is of another store than the one before: it came late, or a new device begins"),
    ],
)
def test_the_log_says_of_what_a_status_is_that_shows_nothing_new(
    boot_id: str, store_id: str, words: str, tmp_path: Path
) -> None:
    with cloud(tmp_path, mean_of(2)) as made:
        device = Device(made, "a", store_id="first")
        late = Device(made, boot_id, store_id=store_id).status()
        device.speak(2)
        logged = [effect.text for effect in made.hear(late) if isinstance(effect, Log)]
        assert len(logged) == 1 and logged[0].startswith(f"status of north: {words}")


def test_a_challenge_that_is_lost_is_sent_again(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(2)) as made:
        Device(made, "a", store_id="first").speak(2)
        new = Device(made, "b", store_id="second")
        for _ in range(3):
            new.speak()
            assert new.challenge > 0
            new.challenge = 0
        assert alarms(made) == []
        new.speak(2)
        assert alarms(made) == [("identity-replaced", False)]


def test_a_start_that_a_full_disk_could_not_hold_is_no_old_image(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(2)) as made:
        for boot in range(3):
            device = Device(made, f"boot-{boot}", starts=7)
            device.more = {"store_problem": "disk-full"}
            device.speak(8)
        assert alarms(made) == []


@pytest.mark.soak
def test_a_reboot_and_a_restart_are_nothing(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(2)) as made:
        device = Device(made, "a")
        for boot in range(3 * SESSIONS_KEPT):
            device.speak(3)
            device.starts += 1
            device.speak(2)  # the process was restarted
            device.reboot(f"boot-{boot}")
        assert alarms(made) == [] and len(made.service.state.access.sessions["north"].known) == SESSIONS_KEPT


@dataclass
class Speaker:
    """One device: its boots, what it says and what it was answered."""

    name: str
    store: str = "store"
    starts: int = 1
    boots: int = 0
    clock: int = 0
    challenge: int = 0

    def restart(self) -> None:
        self.starts, self.challenge = self.starts + 1, 0

    def reboot(self) -> None:
        self.restart()
        self.boots, self.clock = self.boots + 1, 0

    def status(self, problem: str = "") -> Status:
        self.clock += 1
        said = {"store_id": self.store, "boot_id": f"{self.name}{self.boots}", "starts": self.starts}
        said |= {"monotonic_ns": self.clock, "challenge": self.challenge, "store_problem": problem}
        return READY.model_copy(update=said)


@dataclass
class Line:
    """The aggregator's end: what is on its way to it and from it, which may come when, and as often, as it likes."""

    sessions: DeviceSessions = field(default_factory=DeviceSessions)
    on_its_way: list[Status] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)

    def hear(self, status: Status, now_ns: int = T0_NS) -> tuple[bool, Conflict | None]:
        self.sessions, is_news, conflict = note_status(self.sessions, status, now_ns)
        self.answers.append(self.sessions.challenge)
        return is_news, conflict

    def talk(self, device: Speaker) -> tuple[bool, Conflict | None]:
        """Let a device speak, and be answered."""
        shown = self.hear(device.status())
        device.challenge = self.answers[-1]
        return shown

    def restart(self) -> None:
        self.sessions = restore_sessions([("north", to_text(self.sessions))])["north"]


ACTS = ["speak", "speak", "hear", "hear", "hear", "answer", "answer", "restart", "reboot", "fill", "aggregator"]
STEPS = st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 30), st.integers(1, 2**40)), max_size=120)


@pytest.mark.soak
@given(steps=STEPS)
def test_a_gateway_that_is_alone_never_looks_like_two_nor_like_what_it_was(steps: list[tuple[str, int, int]]) -> None:
    """Whatever is lost, repeated, late by whatever time and in whatever order, in both directions, and whatever time
    the aggregator has; its disk may be full, and then a start is forgotten.
    """
    device, line, newest = Speaker("a"), Line(), (0, 0, 0)
    for act, which, now_ns in steps:
        match act:
            case "speak":
                line.on_its_way.append(device.status())
            case "hear" if line.on_its_way:
                status = line.on_its_way[-1 - which % len(line.on_its_way)]
                is_news, conflict = line.hear(status, now_ns)
                assert conflict is None and not line.sessions.is_twin
                when = (status.starts, int(status.boot_id[1:]), status.monotonic_ns or 0)
                assert not is_news or when >= newest
                newest = max(newest, when) if is_news else newest
            case "answer" if line.answers:
                device.challenge = line.answers[-1 - which % len(line.answers)]
            case "restart":
                device.restart()
            case "reboot":
                device.reboot()
            case "fill":  # a start that the disk does not hold, and the boot that counts the same again
                device.reboot()
                line.on_its_way.append(device.status(FULL))
                device.starts -= 1
                device.reboot()
            case "aggregator":
                line.restart()


SWAPS = st.lists(
    st.tuples(st.sampled_from(["talk", "talk", "speak", "hear", "answer", "swap", "swap"]), st.integers(0, 30)),
    max_size=60,
)


@pytest.mark.soak
@given(steps=SWAPS)
def test_stores_that_are_exchanged_within_a_boot_never_look_like_two_devices(steps: list[tuple[str, int]]) -> None:
    """Whatever is lost or late: a store that comes back has more starts than before, and no other speaks meanwhile."""
    stores = [Speaker("a", f"store {number}") for number in range(3)]
    device, line = stores[0], Line()
    for act, which in steps:
        match act:
            case "speak":
                line.on_its_way.append(device.status())
            case "hear" if line.on_its_way:
                _, conflict = line.hear(line.on_its_way[-1 - which % len(line.on_its_way)])
                assert conflict in (None, "identity-replaced")
            case "answer" if line.answers:
                device.challenge = line.answers[-1 - which % len(line.answers)]
            case "talk":
                _, conflict = line.talk(device)
                assert conflict in (None, "identity-replaced")
            case "swap":
                clock, device = device.clock, stores[which % len(stores)]
                device.restart()
                device.clock = clock  # of the boot, which goes on


@given(turns=st.lists(st.booleans(), min_size=4, max_size=40), is_copy=st.booleans(), again=st.sets(st.integers(0, 39)))
def test_two_devices_are_told_before_both_have_spoken_three_times_more(
    turns: list[bool], is_copy: bool, again: set[int]
) -> None:
    """Whoever speaks when, and though some of what they said comes again: twice each since both were heard."""
    one = Speaker("a", starts=5)
    other = Speaker("b", one.store if is_copy else "another", starts=6 if is_copy else 1)
    line, said, more = Line(), list[Status](), {False: -1, True: -1}
    for number, is_other in enumerate(turns):
        said.append((other if is_other else one).status())
        _, conflict = line.hear(said[-1])
        (other if is_other else one).challenge = line.answers[-1]
        if conflict == "identity-twin":
            return
        more[is_other] += 1 if more[is_other] < 0 or more[not is_other] >= 0 else 0
        assert min(more.values()) < 2
        if number in again:
            line.hear(said[number // 2])


def test_two_copies_of_a_card_are_told_though_both_agents_are_restarted_at_each_turn() -> None:
    """What a session of the store of the present one has answered stays, whatever it counts."""
    one, other, line, found = Speaker("a", starts=5), Speaker("b", starts=6), Line(), set[Conflict | None]()
    for _ in range(4):
        for device in (one, other):
            device.restart()
            found |= {line.talk(device)[1] for _ in range(2)}
    assert "identity-twin" in found


@given(boots=st.integers(1, 20), starts=st.integers(1, 20), says=st.integers(1, 5), is_new=st.booleans())
def test_another_state_is_told_with_its_second_status(boots: int, starts: int, says: int, is_new: bool) -> None:
    """A store in the place of another, and an image of any start that was heard, with whatever came between."""
    device, line = Speaker("a"), Line()
    for _ in range(boots):
        for _ in range(says):
            assert line.talk(device) == (True, None)
        device.reboot()
    back = Speaker("b", "another" if is_new else device.store, starts=min(starts, boots))
    assert line.talk(back) == (False, None)
    assert line.talk(back) == (True, "identity-replaced" if is_new else "identity-restored")


def test_a_stale_status_does_not_take_the_place_of_the_present_one(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(2)) as made:
        device = Device(made, "a")
        old = device.status()
        device.speak()
        device.reboot("b")
        device.speak()
        made.hear(old)
        assert made.service.state.access.gateways["north"].boot_id == "b"


def test_a_gateway_before_0_5_and_a_last_will_say_nothing_of_who_they_are(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(2)) as made:
        for boot_id in ("a", "b", "a"):
            made.hear(heard("north", "status", READY.model_copy(update={"boot_id": boot_id}).to_bytes()), after_s=60.0)
        assert alarms(made) == [] and not made.service.state.access.sessions.get("north", DeviceSessions()).known


@pytest.mark.soak
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
