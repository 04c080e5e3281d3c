"""Room in the outbox: bounded in bytes, the least important goes first, and what went is told, to the last item.

Goal: nothing is lost in silence, whatever is queued in whatever order. Method: random queues against the law of
conservation, queued = delivered + held + told in tombstones, for each class; and tombstones as the aggregator counts
them, which takes of each id the one with the most items.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.config.protocol.losses import Tombstone
from fedgate.config.protocol.messages import Receipt
from fedgate.gateway_agent.events import CLASSES, Connection, Dequeue, Item, Log, StoreState
from fedgate.gateway_agent.outbox.outbox import TOMBSTONES_BYTES, count_held_bytes, count_stored_bytes, is_tombstone
from fedgate.gateway_agent.state import State
from fedgate.gateway_agent.status import status
from fedgate.models.time_units import NS
from tests.support.agents import after, commissioned, heard, kinds
from tests.support.kept import TICK, item, names, queued, said
from tests.support.sites import T0_NS

MAX_BYTES = 64 * 1024
SIZES = st.sampled_from([10, 900, 9_000, 30_000, 70_000])
STEPS = st.lists(st.tuples(st.sampled_from(["queue", "deliver"]), st.integers(0, 4), SIZES), min_size=1, max_size=60)


def small() -> State:
    return after(commissioned(store={"max_bytes": MAX_BYTES}), Connection(False))[0]


def stones(state: State) -> dict[str, Tombstone]:
    found = [Tombstone.from_bytes(one.payloads[0]) for name, one in state.outbox.items.items() if is_tombstone(name)]
    assert len({stone.kind for stone in found}) == len(found)  # one a class at most
    return {stone.kind: stone for stone in found}


@pytest.mark.soak
@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_bytes_stay_below_the_bound_and_every_item_is_delivered_told_or_held(
    steps: list[tuple[str, int, int]],
) -> None:
    state, queued_of, delivered, told = small(), Counter[str](), Counter[str](), dict[str, Tombstone]()
    for number, (act, priority, size_bytes) in enumerate(steps):
        before = dict(state.outbox.items)
        if act == "queue":
            name = f"{number:03d}"
            state, effects = queued(state, (name, item(name, priority, size_bytes, T0_NS + number)))
            queued_of[CLASSES[priority]] += 1
            gone = {one.name for one in kinds(effects, Dequeue) if not is_tombstone(one.name)}
            _only_what_had_to_go(before, state, (name, priority, size_bytes), gone)
        elif before:
            name = next(iter(before))
            if is_tombstone(name):
                stone = Tombstone.from_bytes(before[name].payloads[0])
                told[stone.id] = max(told.get(stone.id, stone), stone, key=lambda one: one.items)
            else:
                delivered[CLASSES[before[name].priority]] += 1
            state, _ = after(state, heard("receipt", name, Receipt(accepted=True).to_bytes()))
        actual = sum(count_stored_bytes(name, one) for name, one in state.outbox.items.items())
        assert actual <= count_held_bytes(state.outbox.items) <= MAX_BYTES
    lost = Counter[str]()
    for stone in {**told, **{one.id: one for one in stones(state).values()}}.values():
        lost[stone.kind] += stone.items
    for kind in CLASSES.values():
        assert delivered[kind] + lost[kind] + len(names(state, kind)) == queued_of[kind]


def _only_what_had_to_go(before: dict[str, Item], state: State, new: tuple[str, int, int], gone: set[str]) -> None:
    """Nothing of a class goes while one less important is held, and of a class the oldest."""
    name, priority, _ = new
    held = {other: one for other, one in state.outbox.items.items() if not is_tombstone(other)}
    if gone:
        assert name in held
        least = max((one.priority for other, one in held.items() if other != name), default=-1)
        assert all(before[other].priority >= max(least, priority) for other in gone)
        for other in gone:
            assert not any(
                older in held and before[older].priority == before[other].priority
                for older in list(before)[: list(before).index(other)]
            )
    elif name not in held:  # what came last is lost where all that may give way to it would not be room enough
        kept = {other: one for other, one in held.items() if one.priority < priority}
        assert count_held_bytes(kept) + count_stored_bytes(name, item(*new)) > MAX_BYTES


def test_alarms_go_only_when_nothing_else_is_left() -> None:
    state, _ = queued(
        small(), *((f"{kind}{n}", item(f"{kind}{n}", kind, 6_500)) for kind in (4, 3, 2, 1) for n in (0, 1))
    )
    order = []
    for number in range(10):
        state, effects = queued(state, (f"a{number}", item(f"a{number}", 0, 6_500)))
        order += [one.name for one in kinds(effects, Dequeue) if not is_tombstone(one.name)]
    assert order == ["40", "41", "30", "31", "20", "21", "10", "11", "a0", "a1"]
    assert {kind: stone.items for kind, stone in stones(state).items()} == {
        "telemetry": 2, "update": 2, "evidence": 2, "sensor-alarm": 2, "alarm": 2
    }  # fmt: skip
    assert status(state).dropped == {"telemetry": 2, "update": 2, "evidence": 2, "sensor-alarm": 2, "alarm": 2}


def test_the_update_stays_where_telemetry_comes() -> None:
    state, _ = queued(small(), ("u", item("u", 3, 50_000)))
    state, _ = queued(state, *((f"t{n}", item(f"t{n}", 4, 9_000)) for n in range(9)))
    assert "u" in state.outbox.items and stones(state).keys() == {"telemetry"}


def test_a_tombstone_that_grew_is_not_settled_by_the_receipt_for_what_it_said_before() -> None:
    full = [(f"{n}", item(f"{n}", 4, 9_000, T0_NS + n)) for n in range(8)]
    state, _ = queued(small(), *full)
    state, _ = after(state, Connection(True))
    state, effects = after(state, TICK, now_ns=T0_NS + 100 * NS)
    first = Tombstone.from_bytes(said(effects, "tombstone")[0].payload)
    assert (first.id, first.kind, first.why, first.first_ns) == ("0", "telemetry", ("outbox-full",), T0_NS)
    state, _ = queued(state, ("8", item("8", 4, 20_000)))
    second = stones(state)["telemetry"]
    assert second.id == first.id and second.items > first.items and second.item != first.item
    accepted = Receipt(accepted=True).to_bytes()
    state, _ = after(state, heard("receipt", first.item, accepted))
    assert stones(state) == {"telemetry": second}
    state, _ = after(state, heard("receipt", second.item, accepted))
    assert stones(state) == {}
    state, _ = queued(state, ("9", item("9", 4, 30_000)))
    assert stones(state)["telemetry"].id not in (first.id, "9")  # another one, of what was lost since


def test_tombstones_are_small_whatever_they_say() -> None:
    stone = Tombstone(
        id="a" * 64, kind="sensor-alarm", items=2**63 - 1, size_bytes=2**63 - 1, first_ns=-(2**63) + 1,
        last_ns=2**63 - 1, why=("outbox-full", "flash-budget", "disk-full", "store-damaged"), boot_id="b" * 36,
    )  # fmt: skip
    one = item("alarm", 0)
    held = Item(one.topic[:20] + "g" * 64 + "s" * 64 + "/tombstone/sensor-alarm", (stone.to_bytes(),), False, 0)
    assert count_stored_bytes(stone.item, held) <= TOMBSTONES_BYTES // len(CLASSES)


@given(first=st.integers(1, 50), second=st.integers(1, 50), times=st.lists(st.integers(0, 9), min_size=4, max_size=4))
def test_merging_adds_up(first: int, second: int, times: list[int]) -> None:
    one = Tombstone(
        id="a", kind="alarm", items=first, size_bytes=5, first_ns=times[0], last_ns=times[1], why=("disk-full",)
    )
    two = Tombstone(
        id="b", kind="alarm", items=second, size_bytes=7, first_ns=times[2], last_ns=times[3], why=("flash-budget",)
    )
    both = one.merge(two)
    assert (both.id, both.items, both.size_bytes) == ("a", first + second, 12)
    assert (both.first_ns, both.last_ns) == (min(times[0], times[2]), max(times[1], times[3]))
    assert both.why == ("disk-full", "flash-budget") and both.merge(two).why == both.why


@pytest.mark.parametrize("why", ["flash-budget", "disk-full"])
def test_no_telemetry_is_stored_where_the_budget_is_spent_or_the_disk_is_full(why: str) -> None:
    state, _ = queued(small(), ("kept", item("kept", 4)))
    if why == "disk-full":
        state, effects = after(state, StoreState("disk-full", "full"))
        assert "kept" not in state.outbox.items and any(
            isinstance(one, Log) and "disk-full" in one.text for one in effects
        )
    else:
        spent = replace(state.context.store, written_bytes=state.context.settings.store.flash_bytes_per_day)
        state = replace(state, context=replace(state.context, store=spent))
    for name, priority in (("telemetry", 4), ("alarm", 0), ("sensor", 1), ("evidence", 2), ("update", 3)):
        state, _ = queued(state, (name, item(name, priority)))
        assert (name in state.outbox.items) == (name != "telemetry")
    assert stones(state)["telemetry"].why == (why,)
    assert stones(state)["telemetry"].items == (2 if why == "disk-full" else 1)
