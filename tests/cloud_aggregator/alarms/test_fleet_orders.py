"""The fleet alarm ends the same in whatever order its messages come, and the group it is of is the largest there is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgate.cloud_aggregator.alarms.fleet import CAUSES, find_largest_group
from fedgate.cloud_aggregator.alarms.register import KEPT, Register, take
from fedgate.cloud_aggregator.events import Received, Tick
from fedgate.config.protocol.messages import Alarm
from fedgate.models.time_units import NS
from tests.cloud_aggregator.alarms.test_fleet import ALL, CLEAR_S, alarm, rebooted, site, standing
from tests.cloud_aggregator.test_aggregator_machine import after
from tests.support.sites import T0_NS, with_record

FLEETS = st.dictionaries(
    st.sampled_from(ALL),
    st.lists(st.tuples(st.sampled_from([0.0, 400.0, 900.0, 901.0, 5_000.0]), st.booleans()), min_size=1, max_size=2),
    min_size=1,
)


@pytest.mark.soak
@given(story=FLEETS, rebooting=st.sets(st.sampled_from(ALL)), data=st.data())
def test_the_final_state_depends_on_no_order_and_no_repeats(
    story: dict[str, list[tuple[float, bool]]], rebooting: set[str], data: st.DataObject
) -> None:
    """Alarms come in any order; the statuses of one gateway come in theirs, as one topic of one client does."""
    messages = [
        alarm(gateway, state, onset_s)
        for gateway, alarms in story.items()
        for onset_s, is_over in alarms
        for state in (("raised", "cleared") if is_over else ("raised",))
    ]
    messages += rebooted(*rebooting)
    shuffled = data.draw(st.permutations(messages))
    repeated = [shuffled[n] for n in data.draw(st.lists(st.integers(0, len(shuffled) - 1), max_size=6))]
    ticks = data.draw(st.lists(st.booleans(), min_size=len(shuffled), max_size=len(shuffled)))

    def end(events: Sequence[Received], is_ticking: Iterable[bool]) -> tuple[Any, ...]:
        state = with_record(site(), "context", uptime_ns=T0_NS + 6_000 * NS)
        for event, ticking in zip(events, is_ticking, strict=False):
            state, _ = after(state, event, *([Tick()] if ticking else []))
        state, _ = after(state, Tick())
        state, _ = after(state, Tick(), at_s=6_000 + CLEAR_S)
        found = standing(state)
        told = None if found is None else (found.gateways, found.severity, found.onset_ns)
        known = {gateway: set(of_one) for gateway, of_one in state.alarms.book.items()}
        return told, known

    assert end([*shuffled, *repeated], [*ticks, *[True] * len(repeated)]) == end(messages, [False] * len(messages))


Said = dict[str, Any]
SAYING: st.SearchStrategy[Said] = st.fixed_dictionaries(
    {cause: st.sampled_from(["", "usual", "unusual", "explained"]) for cause in CAUSES}
)


@pytest.mark.soak
@given(
    each=st.dictionaries(st.sampled_from(ALL), SAYING, min_size=3),
    rebooting=st.sets(st.sampled_from(ALL)),
    data=st.data(),
)
def test_the_cause_depends_on_no_order_of_what_is_known_and_on_what_most_have_measured(
    each: dict[str, Said], rebooting: set[str], data: st.DataObject
) -> None:
    messages = [*(alarm(gateway, onset_s=0.0, **said) for gateway, said in each.items()), *rebooted(*rebooting)]
    ends = []
    for order in (messages, data.draw(st.permutations(messages))):
        found = standing(after(site(), *order, Tick())[0])
        assert found is not None
        ends.append((found.common, found.text))
    assert ends[0] == ends[1]
    having = {cause: sum(said[cause] == "explained" for said in each.values()) for cause in CAUSES}
    assert ends[0][0] in {"undetermined", *(cause for cause, count in having.items() if 2 * count > len(each))}


@pytest.mark.soak
@given(said=SAYING, count=st.integers(3, 5), data=st.data())
def test_gateways_of_one_mind_name_one_cause_however_they_come(said: Said, count: int, data: st.DataObject) -> None:
    messages = [alarm(gateway, onset_s=0.0, **said) for gateway in ALL[:count]]
    ends = set()
    for order in (messages, data.draw(st.permutations(messages))):
        state = site()
        for message in order:
            state, _ = after(state, message, Tick())
        found = standing(state)
        assert found is not None
        ends.add(found.common)
    assert len(ends) == 1


@given(onsets=st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 40)), max_size=9, unique=True))
def test_the_group_is_the_largest_that_fits_the_window(onsets: list[tuple[str, int]]) -> None:
    """The oracle tries every subset of the alarms."""
    alarms: Register = {}
    for gateway, onset_s in onsets:
        message = Alarm.from_bytes(alarm(gateway, onset_s=onset_s).payload)
        alarms, _, _ = take(alarms, gateway, message, T0_NS + 100 * NS)
    fitting = [
        {gateway for gateway, _ in some}
        for size in range(1, len(onsets) + 1)
        for some in combinations(onsets, size)
        if max(onset for _, onset in some) - min(onset for _, onset in some) <= 10
    ]
    group = find_largest_group(alarms, 10 * NS)
    assert len(group) == max(map(len, fitting), default=0)
    assert not group or set(group) in fitting
    begun = [known.onset_ns for known in group.values()]
    assert not begun or max(begun) - min(begun) <= 10 * NS


def test_alarms_that_are_over_are_forgotten_in_the_end_and_those_that_stand_are_not() -> None:
    state, _ = after(site(), alarm("a", onset_s=50))
    for number in range(1, 50):
        state, _ = after(state, alarm("a", "raised", number), alarm("a", "cleared", number))
    assert len(state.alarms.book["a"]) == KEPT
    assert [known.active for known in state.alarms.book["a"].values()].count(True) == 1
    for number in range(100, 150):  # and a gateway that raises without end fills no memory
        state, _ = after(state, alarm("a", "raised", number))
    assert len(state.alarms.book["a"]) == KEPT
