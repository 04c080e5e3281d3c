"""What was written to the flash in the day at hand: it ends after a day, and no clock that goes back begins it anew."""

from __future__ import annotations

from fedgate.gateway_agent.write_budget import WriteBudget, restore_day
from fedgate.models.time_units import DAY_NS, NS
from tests.support.sites import T0_NS


def test_a_day_of_writing_ends_after_a_day_and_not_when_the_clock_goes_back() -> None:
    day = WriteBudget().move_to(T0_NS).add(5)
    assert day == WriteBudget(T0_NS, 5) and day.move_to(T0_NS + DAY_NS - 1) == day
    assert day.move_to(T0_NS + DAY_NS) == WriteBudget(T0_NS + DAY_NS, 0)
    stored = day.dump(anchor_ns=7)
    assert restore_day(stored, T0_NS + NS, 7) == day and restore_day(None, NS, 7) == WriteBudget(NS)
    assert restore_day(stored, 1_000, 7) == WriteBudget(1_000, 5)  # the clock went back: what was written counts on
    assert restore_day(stored, 1_000, T0_NS) == WriteBudget(7, 5) and restore_day(
        stored, 9, T0_NS + 2 * DAY_NS
    ) == WriteBudget(9)
