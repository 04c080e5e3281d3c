"""What the witness of a world may claim: each check can fail, and none where nobody could do better.

Goal: a world that reports a broken promise is right, and a promise that is broken is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pytest

from fedgate.cloud_aggregator.events import RecordAlarm
from fedgate.config.protocol.messages import STATUS, Alarm, Receipt, Status
from fedgate.firmware_sim.world import world
from fedgate.firmware_sim.world.environment.disk import Doubt, Renewed
from fedgate.firmware_sim.world.environment.faults import NO_MEMORY, Faults
from fedgate.firmware_sim.world.promises.checks import Witness
from fedgate.firmware_sim.world.promises.devices import SESSIONS_MAX, Devices
from fedgate.firmware_sim.world.promises.loads import End
from fedgate.gateway_agent.deployment.deployment import LOADS_MAX, STARTS_MAX, LoadAttempts, Models, save
from fedgate.gateway_agent.events import Enqueue, Keep, Outward, Save
from fedgate.gateway_agent.feature_row import FeatureRow
from fedgate.gateway_agent.state import Stored
from tests.firmware_sim.world.test_world import alarm_item, witness
from tests.support.sites import topic
from tests.support.watchers import CALM, Gateway


def half_a_commit(seen: Witness) -> None:
    doubt = Doubt([], {"a": 1, "b": 1}, {"a": 2, "b": 2, "c": 2})
    assert seen._is_there("north", doubt, {"a": 1, "b": 2, "c": 2})


def told_twice(seen: Witness) -> None:
    name, item = alarm_item()
    other = Alarm.from_bytes(item.payloads[0]).model_copy(update={"text": "another"})
    seen.gateway_committed("north", [Enqueue(name, item)])
    seen.gateway_committed("north", [Enqueue(name, replace(item, payloads=(other.to_bytes(),)))])


def set_back(seen: Witness) -> None:
    set_back_beside(seen, 0)
    assert seen.devices.audit() == {"restored": 1, "twins": 0}


def heard_of(
    seen: Witness, boot_id: str, starts: int = 1, said_ns: int = 1, *, is_committed: bool = True, **more: Any
) -> None:
    """Let the aggregator hear of a start on a store, in some boot of the gateway, and answer with another challenge;
    `said_ns` is on the clock of the boot and names the challenge.
    """
    told = {"state": "online", "boot_id": boot_id, "store_id": "s", "starts": starts, "monotonic_ns": said_ns}
    status = Status.model_validate(told | {"challenge": said_ns - 1} | more)
    seen.devices.note_sent("north", status)
    seen.cloud_receives(topic("north", "status", "agent"), status.to_bytes())
    if is_committed:
        seen.cloud_stepped()
        answer = Receipt(accepted=True, challenge=said_ns)
        seen.cloud_published(topic("north", "receipt", STATUS), answer.to_bytes())


def set_back_beside(seen: Witness, between: int, prefix: str = "", **back: Any) -> None:
    """Let a gateway be set back, so many boots on its way, and say so twice."""
    heard_of(seen, f"{prefix}before")
    for boot in range(between):
        heard_of(seen, f"{prefix}boot {boot}", 2 + boot)
    seen.devices.touched("north", "restored")
    heard_of(seen, f"{prefix}after")
    heard_of(seen, f"{prefix}after", said_ns=2, **back)


def set_back_after_many_boots(seen: Witness) -> None:
    set_back_beside(seen, SESSIONS_MAX - 2)
    seen.devices.audit()


def set_back_again(seen: Witness) -> None:
    """What was said of a gateway, and was over, says nothing of what is done to it later."""
    set_back_twice(seen, is_cleared=True)


def set_back_twice(seen: Witness, *, is_cleared: bool) -> None:
    """Let a gateway be set back and accused, and be set back again, with the alarm cleared between the two or not."""
    elapsed_s = [0.0]
    seen.devices = Devices(seen.violate, lambda: elapsed_s[0])
    set_back_beside(seen, 0)
    alarm = Alarm.from_bytes(alarm_item()[1].payloads[0]).model_copy(update={"cause": "identity-restored"})
    seen.devices.accused("north", alarm)
    elapsed_s[0] = 600.0
    if is_cleared:
        seen.devices.accused("north", alarm.model_copy(update={"state": "cleared"}))
    elapsed_s[0] = 700.0
    set_back_beside(seen, 0, "again ")
    seen.devices.audit()


Kind = Literal["power", "kill", "stop"]


class Loading:
    """North, whose processes mark that they load a model and end a while later; models are named by their digest."""

    def __init__(self, seen: Witness) -> None:
        self.seen, self.elapsed_s, self.models = seen, 0.0, Models()
        seen.devices = Devices(seen.violate, lambda: self.elapsed_s)
        seen.released[2] = "second"

    def commit(self, models: Models) -> None:
        self.models = models
        self.seen.devices.committed("north", [save(models)])

    def load(self, boot: int, kind: Kind, after_s: float = 10.0, what: str = "second") -> None:
        self.commit(self.models.with_load(what, f"north-{boot}"))
        self.end(boot, kind, after_s)

    def end(self, boot: int, kind: Kind, after_s: float) -> None:
        self.elapsed_s += after_s
        self.seen.devices.loads["north"].ended(End(boot, kind), self.elapsed_s)


def given_up_too_soon(seen: Witness) -> None:
    """A power cut ends the boot."""
    north = Loading(seen)
    ends: list[tuple[int, Kind]] = [(1, "kill"), (1, "kill"), (1, "power"), (2, "kill")]
    for boot, kind in ends:
        north.load(boot, kind)
    say_given_up(seen)


def given_up_for_what_was_before(seen: Witness) -> None:
    """The processes that ended had loaded nothing, or had finished, or ran for long."""
    north = Loading(seen)
    for _ in range(STARTS_MAX - 1):
        north.end(1, "kill", 10.0)
    for after_s in (10.0, 10_000.0, 10.0):
        north.load(1, "kill", after_s)
    north.commit(north.models.finished())
    for _ in range(STARTS_MAX - 1):
        north.load(1, "kill")
    say_given_up(seen)


def given_up_for_the_loads_of_others(seen: Witness) -> None:
    """That its processes ended while they loaded other models says nothing of one whose load was marked long before."""
    north = Loading(seen)
    north.load(1, "kill")
    for number in range(LOADS_MAX):
        north.load(1, "kill", what=f"other {number}")
    north.commit(north.models.resting("second"))


def given_up_for_a_stop(seen: Witness) -> None:
    """Who stops in order has not been ended by its model."""
    north = Loading(seen)
    north.load(0, "stop")
    for boot in range(1, LOADS_MAX):
        north.load(boot, "power")
    north.commit(north.models.resting("second"))


def fail_to_train(seen: Witness, why: str) -> None:
    status = Status(state="online", refused_round="run/3", refusal=f"round 3: training failed: {why}")
    seen.gateway_published("north", topic("north", "status", "agent"), status.to_bytes())


def wrong_in_training(seen: Witness) -> None:
    fail_to_train(seen, "TypeError: unsupported operand")


def refuse_an_update(seen: Witness, reason: str) -> None:
    seen.updates["north", "d"] = b""
    seen.cloud_published(topic("north", "receipt", "d"), Receipt(accepted=False, reason=reason).to_bytes())


def refused_in_words_that_nobody_uses(seen: Witness) -> None:
    refuse_an_update(seen, "this gateway has sent an array that is not finite")


OF_ANOTHER_STORE = (
    "it goes on after none, and the last of it that was counted here is 12ab: one of the two stores was lost or set "
    "back, so rows would count twice or not at all"
)


def refused_as_set_back(seen: Witness) -> None:
    refuse_an_update(seen, OF_ANOTHER_STORE)


def say_given_up(seen: Witness) -> None:
    status = Status(
        state="online", rejected={"2": f"model 2 rolled back: {LoadAttempts(3, 'boot', 3).why_no_more('boot')}"}
    )
    seen.gateway_published("north", topic("north", "status", "agent"), status.to_bytes())


def copied_at_rest(seen: Witness) -> None:
    """A copy of a card that nobody had changed before lacks what is on it."""
    seen.devices.committed("north", [Enqueue(*alarm_item())])
    seen.devices.doubled("north~", "north")
    seen.devices.opened("north~", Stored(), "", [])


def tell_of(seen: Witness, number: int, state: str = "raised", device: str = "north") -> Alarm:
    """Let a device commit the change of an alarm, which the aggregator stores; return it."""
    changed = {"id": f"north.anomaly.{number}", "state": state}
    alarm = Alarm.from_bytes(alarm_item()[1].payloads[0]).model_copy(update=changed)
    seen.gateway_committed(device, [Enqueue(alarm.item, replace(alarm_item()[1], payloads=(alarm.to_bytes(),)))])
    seen.cloud_committed([RecordAlarm("north", alarm, 1, 1)])
    return alarm


def end(seen: Witness, alarm: Alarm, how: str) -> None:
    """Let the aggregator end an alarm on its own account."""
    seen.cloud_committed([RecordAlarm("north", alarm.model_copy(update={"state": "cleared"}), 2, 1, how)])


def superseded_by_nothing(seen: Witness) -> None:
    tell_of(seen, 1)
    end(seen, tell_of(seen, 2), "superseded")


def superseded_by_the_store_before(seen: Witness) -> None:
    tell_of(seen, 1)
    seen.devices.touched("north", "anew")
    end(seen, tell_of(seen, 2), "superseded")


def forgotten_and_there(seen: Witness) -> None:
    end(seen, tell_of(seen, 1), "forgotten")


def forgotten_since_it_was_handled(seen: Witness) -> None:
    seen.devices.touched("north", "restored")
    end(seen, tell_of(seen, 1), "forgotten")


def removed_and_there(seen: Witness) -> None:
    end(seen, tell_of(seen, 1), "removed")


def ended_and_unknown(seen: Witness) -> None:
    end(seen, Alarm.from_bytes(alarm_item()[1].payloads[0]), "superseded")


def lost_in_the_store(seen: Witness) -> None:
    """Of all that a store may forget from one start to the next the witness names what."""
    window = FeatureRow(np.arange(3, dtype=np.float32), 7)
    seen.devices.committed("north", [Save("own", b"1"), Save("counted", b"2"), Keep(window)])
    seen.devices.opened("north", Stored((window,), {"own": b"1", "counted": b"0"}), "", [])
    assert "blob counted" in seen.violations[0] and "own" not in seen.violations[0]


def lost_again(seen: Witness) -> None:
    """Who was handled once may lose something at one start, and at no other."""
    seen.devices.committed("north", [Save("own", b"1")])
    seen.devices.touched("north", "restored")
    assert seen.devices.opened("north", Stored(blobs={"own": b"0"}), "", [])
    assert not seen.devices.opened("north", Stored(blobs={"own": b"0"}), "", [])
    seen.devices.opened("north", Stored(), "", [])


def damaged_after_it_was_mended(seen: Witness) -> None:
    seen.devices.touched("north", "rotten")
    seen.devices.opened("north", Stored(), "a page", [])
    seen.devices.opened("north", Stored(), "a page", [])


def told_twice_since_it_was_handled(seen: Witness) -> None:
    seen.devices.touched("north", "restored")
    told_twice(seen)


WRONG = [half_a_commit, told_twice, set_back, given_up_too_soon, copied_at_rest]
WRONG += [
    superseded_by_nothing,
    superseded_by_the_store_before,
    forgotten_and_there,
    forgotten_since_it_was_handled,
    removed_and_there,
]
WRONG += [ended_and_unknown, lost_in_the_store, lost_again, damaged_after_it_was_mended]
WRONG += [told_twice_since_it_was_handled, given_up_for_what_was_before, wrong_in_training]
WRONG += [given_up_for_the_loads_of_others, given_up_for_a_stop]
WRONG += [refused_in_words_that_nobody_uses, refused_as_set_back, set_back_after_many_boots, set_back_again]


@pytest.mark.parametrize("wrong", WRONG)
def test_the_witness_sees_what_is_wrong(wrong: Callable[[Witness], None]) -> None:
    seen = witness()
    wrong(seen)
    assert len(seen.violations) == 1


def same_again(seen: Witness) -> None:
    """A commit writes over what was there, too; that it is there says nothing of the commit."""
    doubt = Doubt([], {"counted": b"1", "own": b"1"}, {"counted": b"1", "own": b"2"})
    assert not seen._is_there("north", doubt, doubt.before) and seen._is_there("north", doubt, doubt.after)


def taken_along(seen: Witness) -> None:
    """What was in the inbox of a process that ended before it had stored anything was heard by nobody."""
    heard_of(seen, "one")
    seen.devices.touched("north", "restored")
    heard_of(seen, "two")
    heard_of(seen, "two", said_ns=2, is_committed=False)
    seen.rounds.resumed = lambda state: None  # type: ignore[method-assign]  # there is no training here
    for one in (seen.releases, seen.log, seen.fetches, seen.evidence):
        one.opened = lambda store: None  # type: ignore[method-assign]  # nor a store
    seen.cloud_opened(cast(Any, None), cast(Any, None), None)
    seen.cloud_stepped()
    assert seen.devices.audit() == {"restored": 0, "twins": 0}


def copied_in_the_hand(seen: Witness) -> None:
    """The card of a device that is switched off may be an old one, and so is its copy."""
    seen.devices.committed("north", [Enqueue(*alarm_item())])
    seen.devices.touched("north", "restored")
    seen.devices.doubled("north~", "north")
    seen.devices.opened("north~", Stored(), "", [])


def killed_three_times(seen: Witness) -> None:
    """Nobody on the device could tell; nor while other models are loaded beside it and between."""
    north = Loading(seen)
    for number in range(STARTS_MAX):
        north.commit(north.models.with_load(f"other {number}", "north-1"))
        north.load(1, "kill")
        north.load(1, "kill", what=f"other {number}")
    say_given_up(seen)


def killed_whenever_it_is_tried_again(seen: Witness) -> None:
    """One that rested for a start is tried once, in another boot too."""
    north = Loading(seen)
    for _ in range(STARTS_MAX):
        north.load(1, "kill")
    for boot in (1, 2):
        north.commit(north.models.resting("second"))
        north.end(boot, "power", 1_000.0)
        north.load(boot + 1, "kill")
    north.commit(north.models.resting("second"))


def killed_in_the_commit_of_a_mark(seen: Witness) -> None:
    """Whether the last of three loads was marked shows when its store is open again; so it does on a copy."""
    north = Loading(seen)
    for _ in range(STARTS_MAX - 1):
        north.load(1, "kill")
    north.end(1, "kill", 1_000.0)
    seen.devices.doubled("north~", "north")
    marked = save(north.models.with_load("second", "north-1"))
    for device in ("north", "north~"):
        seen.devices.committed(device, [marked])
        seen.devices.opened(device, Stored(blobs={marked.key: marked.body}), "", [])
        seen.devices.committed(device, [save(north.models.resting("second"))])


def killed_with_a_mark_in_a_new_store(seen: Witness) -> None:
    """A store that was found damaged is renewed with what is in mind, and the mark of a load may be new in it."""
    north = Loading(seen)
    for _ in range(STARTS_MAX - 1):
        north.load(1, "kill")
    marked = save(north.models.with_load("second", "north-1"))
    seen.devices.committed("north", [Renewed(Stored(blobs={marked.key: marked.body}))])
    north.end(1, "kill", 10.0)
    north.commit(north.models.resting("second"))


def cut_off_ten_times(seen: Witness) -> None:
    """As one that takes the whole machine along."""
    north = Loading(seen)
    for boot in range(LOADS_MAX):
        north.load(boot, "power")
    say_given_up(seen)


def superseded_by_a_later_one(seen: Witness) -> None:
    first = tell_of(seen, 2)
    tell_of(seen, 1)  # by a clock that went back
    end(seen, first, "superseded")


def told_before_it_was_set_back(seen: Witness) -> None:
    """The store knows of none of these alarms, and which of them the clock has later is for the aggregator to guess."""
    first = tell_of(seen, 1)
    seen.devices.touched("north", "restored")
    second = tell_of(seen, 2)
    end(seen, first, "forgotten")
    end(seen, second, "superseded")


def superseded_by_what_came_late(seen: Witness) -> None:
    """Of the store before, where a clock is wrong: it looks like what is later."""
    body = alarm_item()[1].payloads[0]
    late = Alarm.from_bytes(body).model_copy(update={"id": "north.anomaly.1"})
    seen.gateway_committed("north", [Enqueue(late.item, replace(alarm_item()[1], payloads=(late.to_bytes(),)))])
    seen.devices.touched("north", "anew")
    second = tell_of(seen, 2)
    ended = RecordAlarm("north", second.model_copy(update={"state": "cleared"}), 2, 1, "superseded")
    seen.cloud_committed([ended, RecordAlarm("north", late, 2, 2)])


def told_beside_a_copy(seen: Witness) -> None:
    seen.devices.doubled("north~", "north")
    first = tell_of(seen, 1)
    end(seen, first, "forgotten")
    end(seen, tell_of(seen, 2, device="north~"), "superseded")


def copied_while_it_loads(seen: Witness) -> None:
    """The process that had marked the load is not the copy's, and no process of the copy has ended."""
    north = Loading(seen)
    north.commit(north.models.with_load("second", "north-1"))
    seen.devices.doubled("north~", "north")
    effect = save(north.models)
    seen.devices.opened("north~", Stored(blobs={effect.key: effect.body}), "", [])


def told_to_be_over(seen: Witness) -> None:
    """That its end is still on its way is no reason to wait for it."""
    alarm = tell_of(seen, 1)
    tell_of(seen, 1, "cleared")
    end(seen, alarm, "forgotten")


def told_again_by_an_old_card(seen: Witness) -> None:
    name, item = alarm_item()
    other = Alarm.from_bytes(item.payloads[0]).model_copy(update={"text": "another"})
    seen.gateway_committed("north", [Enqueue(name, item)])
    seen.devices.touched("north", "restored")
    seen.gateway_committed("north", [Enqueue(name, replace(item, payloads=(other.to_bytes(),)))])


def renewed_while_it_ran(seen: Witness) -> None:
    """What could not be read of a damaged store is not in the new one, which is what the next start finds."""
    seen.gateway_committed("north", [Save("flash", b"1")])
    seen.probations.known("north", Gateway(CALM).state.context.settings)
    seen.gateway_committed("north", [Renewed(Stored(blobs={"counted": b"2"}))])
    assert not seen.devices.opened("north", Stored(blobs={"counted": b"2"}), "", [])


def without_memory(seen: Witness) -> None:
    fail_to_train(seen, NO_MEMORY)


def refused_for_what_it_is(seen: Witness) -> None:
    seen.devices.touched("north", "restored")
    refuse_an_update(seen, OF_ANOTHER_STORE)
    refuse_an_update(seen, "it answers {'phase': 0, 'round_index': 1}, the present round is {'phase': 0}")
    refuse_an_update(seen, "this gateway is not asked in round 12")


def set_back_beyond_memory(seen: Witness) -> None:
    """Nobody keeps all boots in mind."""
    set_back_beside(seen, SESSIONS_MAX)
    assert seen.devices.audit() == {"restored": 0, "twins": 0}


def set_back_on_a_full_disk(seen: Witness) -> None:
    """Of a boot that says that its disk is full, nobody knows which of its starts are on it."""
    heard_of(seen, "before", store_problem="disk-full")
    seen.devices.touched("north", "restored")
    heard_of(seen, "after")
    heard_of(seen, "after", said_ns=2)
    assert seen.devices.audit() == {"restored": 0, "twins": 0}


def set_back_and_unanswered(seen: Witness) -> None:
    """Nobody knows that it does not come late."""
    set_back_beside(seen, 0, challenge=0)
    assert seen.devices.audit() == {"restored": 0, "twins": 0}


def set_back_while_accused(seen: Witness) -> None:
    """An alarm that stands is not raised again."""
    set_back_twice(seen, is_cleared=False)


def one_after_the_other(seen: Witness) -> None:
    """What the one says last is late, or is not, and nobody knows."""
    for device, challenge in (("north", 0), ("north~", 0), ("north~", 1), ("north", 0)):
        number = len(seen.devices._sent) + 1
        told = {"state": "online", "boot_id": device, "store_id": "s", "monotonic_ns": number, "challenge": challenge}
        seen.devices.note_sent(device, status := Status.model_validate(told))
        seen.devices.note_received("north", status)
        seen.devices.challenged("north", 1)
    assert seen.devices.audit() == {"restored": 0, "twins": 0}


def begun_anew_beside_another_store(seen: Witness) -> None:
    """More starts beside another store may be of one that was put back: what came before them says nothing."""
    number = 0
    seen.devices = Devices(seen.violate, lambda: float(number))
    told = [("north~", 1, 0), ("north", 1, 0), ("north", 1, 2), ("north~", 2, 0), ("north~", 2, 4)]
    for device, starts, challenge in told:
        number += 1
        words = {"state": "online", "boot_id": device, "store_id": device, "starts": starts, "challenge": challenge}
        seen.devices.note_sent(device, status := Status.model_validate({**words, "monotonic_ns": number}))
        seen.devices.note_received("north", status)
        seen.devices.challenged("north", number)
    assert seen.devices.audit() == {"restored": 0, "twins": 0}


RIGHT = [same_again, taken_along, copied_in_the_hand, killed_three_times, cut_off_ten_times]
RIGHT += [
    superseded_by_a_later_one,
    told_before_it_was_set_back,
    told_beside_a_copy,
    superseded_by_what_came_late,
    copied_while_it_loads,
    told_to_be_over,
]
RIGHT += [told_again_by_an_old_card, renewed_while_it_ran, without_memory]
RIGHT += [killed_whenever_it_is_tried_again, killed_in_the_commit_of_a_mark, killed_with_a_mark_in_a_new_store]
RIGHT += [refused_for_what_it_is, set_back_beyond_memory, set_back_while_accused, one_after_the_other]
RIGHT += [set_back_on_a_full_disk, set_back_and_unanswered, begun_anew_beside_another_store]


@pytest.mark.parametrize("right", RIGHT)
def test_the_witness_sees_nothing_where_nobody_could_do_better(right: Callable[[Witness], None]) -> None:
    seen = witness()
    right(seen)
    assert not seen.violations


@pytest.mark.parametrize("commits", [0, 1])
def test_a_start_that_stored_nothing_is_no_end_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    """Goal: only what the agent could have counted as a load of its model speaks for a model that ends it."""
    run = world._Run(4, 0.1, Faults(), tmp_path)
    host, ends = run.gateways["east"], list[End]()

    def fail() -> list[Outward]:
        host.disk.commits += commits
        raise OSError("no room")

    monkeypatch.setattr(host, "opened", fail)
    monkeypatch.setattr(run.world.witness.devices.loads["east"], "ended", lambda end, _: ends.append(end))
    host.boot()
    assert ends == [End(0, "kill")] * commits
