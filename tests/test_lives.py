"""Two gateways with one id, a store that was set back, and messages that only look like either.

Method: statuses as two boots would send them, through a service with a real store; what an operator sees is read from
the registry of alarms.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from cloud_aggregator.events import Event, Tick
from cloud_aggregator.lives import LATE_NS, LIVES_KEPT, STANDS_S, Lives
from tests.cloud_service import READY, Cloud, cloud, heard, mean_of
from tests.sites import NS, T0_NS

MINUTE_S = 60.0
ALARM_COLUMNS = ("gateway", "cause", "kind", "raised_ns", "cleared_ns")


class Device:
    """One boot of a gateway: what it says of itself at a moment of the world."""

    def __init__(self, made: Cloud, boot_id: str, store_id: str = "store", starts: int = 1, sequence: int = 10) -> None:
        self.made, self.boot_id, self.store_id, self.starts, self.sequence = made, boot_id, store_id, starts, sequence
        self.boot_ns = made.now_ns - 5 * NS

    def status(self) -> Event:
        said = {"store_id": self.store_id, "boot_id": self.boot_id, "starts": self.starts, "sequence": self.sequence}
        said |= {"monotonic_ns": self.made.now_ns - self.boot_ns, "t_ns": self.made.now_ns}
        return heard("north", "status", READY.model_copy(update=said).to_bytes())

    def speak(self, times: int = 1) -> None:
        for _ in range(times):
            self.made.hear(self.status(), Tick(), after_s=MINUTE_S)


def alarms(made: Cloud) -> list[tuple[str, bool]]:
    rows = made.service.store.rows("alarms", *ALARM_COLUMNS)
    assert all(row["gateway"] == "north" and row["kind"] == "sensor" for row in rows)
    return [(row["cause"], row["cleared_ns"] is not None) for row in sorted(rows, key=lambda row: row["raised_ns"])]


def test_two_devices_under_one_id_are_refused_and_reported_while_they_speak(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(2), rounds={"quorum": 3, "deadline_s": 1e6}) as made:
        one = Device(made, "a", store_id="first")
        one.speak()
        other = Device(made, "b", store_id="second")
        other.speak()
        assert alarms(made) == [("identity-replaced", False)]  # which it still may be
        one.speak()
        assert alarms(made) == [("identity-replaced", True), ("identity-twin", False)]
        assert made.send("north", made.body(1.0)) == []  # no refusal, which is for good: it has no other answer
        made.restart()
        assert made.send("north", made.body(1.0)) == []  # a restart forgets it not
        for _ in range(10):
            other.speak()
            one.speak()
        assert alarms(made)[1:] == [("identity-twin", False)]  # one alarm, however long it lasts
        one.speak(round(STANDS_S / MINUTE_S) + 1)  # the other is gone
        assert alarms(made)[1:] == [("identity-twin", True)]
        assert made.send("north", made.body(1.0))[0].accepted


def test_a_round_does_not_wait_for_two_devices_under_one_id(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(2), rounds={"quorum": 2, "deadline_s": 1e6}) as made:
        one = Device(made, "a")
        one.speak()
        other = Device(made, "b")
        other.speak()
        one.speak()
        made.send("east", made.body(1.0))
        made.send("west", made.body(1.0))
        assert made.service.state.server.round_index == 1


@pytest.mark.parametrize("set_back", [{"starts": 3, "sequence": 50}, {"starts": 4, "sequence": 50}, {"starts": 9}])
def test_an_old_image_of_the_same_store_is_reported_and_goes_on(tmp_path: Path, set_back: dict[str, int]) -> None:
    with cloud(tmp_path, mean_of(2)) as made:
        Device(made, "a", starts=4, sequence=50).speak(3)
        old = Device(made, "b", starts=set_back["starts"], sequence=set_back.get("sequence", 49))
        old.speak()
        assert alarms(made) == [("identity-restored", False)]
        assert made.send("north", made.body(1.0))[0].accepted  # what an algorithm makes of it is its own matter
        old.speak(round(STANDS_S / MINUTE_S) + 1)
        assert alarms(made) == [("identity-restored", True)]


def test_a_reboot_and_a_restart_are_nothing(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(2)) as made:
        device = Device(made, "a")
        for boot in range(3 * LIVES_KEPT):
            device.speak(3)
            device.starts += 1
            device.speak(2)  # the process was restarted
            device.boot_id, device.starts, device.sequence = f"boot-{boot}", device.starts + 1, device.sequence + boot
            device.boot_ns = made.now_ns
        assert alarms(made) == [] and len(made.service.state.lives["north"].known) == LIVES_KEPT


def test_statuses_that_come_late_repeated_or_in_any_order_are_no_impostor(tmp_path: Path) -> None:
    """What is retained is said again by a broker whenever one connects; a broker restored brings the old boot back."""
    rng = np.random.default_rng(5)
    with cloud(tmp_path, mean_of(2)) as made:
        device, past = Device(made, "a"), []
        for number in range(120):
            made.now_ns += 20 * NS
            past.append(device.status())
            made.hear(past[max(len(past) - 1 - int(rng.integers(3)), 0)], Tick())  # overtaken by up to two others
            if number % 10 == 9:
                device.boot_id, device.starts, device.boot_ns = f"boot-{number}", device.starts + 1, made.now_ns
            if rng.random() < 0.3:
                made.hear(past[-int(rng.integers(1, min(len(past), 60) + 1))])
        assert alarms(made) == []
        assert made.service.state.gateways["north"].boot_id in (device.boot_id, "boot-109")


def test_a_stale_status_does_not_take_the_place_of_the_present_one(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(2)) as made:
        device = Device(made, "a")
        old = device.status()
        device.speak()
        device.boot_id, device.starts, device.boot_ns = "b", 2, made.now_ns
        device.speak()
        made.hear(old)
        assert made.service.state.gateways["north"].boot_id == "b"
        assert device.made.now_ns - T0_NS > LATE_NS


def test_a_gateway_before_0_5_and_a_last_will_say_nothing_of_who_they_are(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(2)) as made:
        for boot_id in ("a", "b", "a"):
            made.hear(heard("north", "status", READY.model_copy(update={"boot_id": boot_id}).to_bytes()), after_s=60.0)
        assert alarms(made) == [] and not made.service.state.lives.get("north", Lives()).known


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
