"""A wall clock that is set by years, either way, in the middle of every wait of the aggregator, changes no deadline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.cloud_aggregator.events import ClockSet, Connection, Posted, Tick
from fedgate.cloud_aggregator.notifications.post_queue import Queue
from fedgate.config.protocol.messages import Newest
from fedgate.config.settings.notifications import WEBHOOK
from fedgate.models.time_units import NS
from tests.cloud_aggregator.access.test_device_sessions import Device
from tests.support.cloud_service import NAMES, READY, Cloud, chunks_of, cloud, heard, mean_of, said_under
from tests.support.sites import with_record

YEAR_S = 365 * 86_400
SETTINGS: dict[str, Any] = {
    "rounds": {"quorum": 2, "deadline_s": 900.0, "rest_s": 300.0},
    "webhook": {"url": "http://127.0.0.1:9/", "retry_s": 60.0},
}
MINUTES = 120


def waits(made: Cloud) -> tuple[Any, ...]:
    """Return how far the aggregator is in all that it waits for."""
    state = made.service.state
    incoming = {name: (one.asks, one.is_parked) for name, one in state.rounds.uploads.incoming.items()}
    conflicts = sorted(state.access.signs)
    active = sorted(one.alarm.cause for known in state.alarms.book.values() for one in known.values() if one.active)
    queue = state.alarms.queues.get(WEBHOOK, Queue())
    round_ = (state.rounds.server.round_index, state.rounds.opened, state.rounds.given_up, len(state.rounds.counted))
    return round_, incoming, conflicts, active, queue.failures, queue.sent_ns


def lived(folder: Path, steps: dict[int, int]) -> list[tuple[Any, ...]]:
    """Return what two hours come to, by the minute, where the clock is set at some of them."""
    found: list[tuple[Any, ...]] = []
    folder.mkdir()
    with cloud(folder, mean_of(4_000), **SETTINGS) as made:
        first, other = Device(made, "a"), Device(made, "b", store_id="other")
        for minute in range(MINUTES):
            if minute in steps:
                made.hear(ClockSet(steps[minute] * NS))
            if minute < 12:
                device = first if minute % 2 else other
                device.take_challenge(made.hear(device.status()))
            if minute in (1, 40):  # the first chunk of one, and two whole: the round ends after its deadline
                made.hear(chunks_of("west", made.body(1.0))[0])
                made.hear(*[event for name in NAMES[:2] for event in chunks_of(name, made.body(2.0))])
            if made.service.state.alarms.queues.get(WEBHOOK, Queue()).sent_ns:
                post = next(iter(made.service.state.alarms.queues[WEBHOOK].items.values()))
                made.hear(Posted(post.id, "nobody is there"))
            said = made.hear(Tick(), after_s=60.0)
            found.append((*waits(made), len(said_under("resend", said)), len(said_under("receipt", said))))
    return found


@pytest.mark.soak
@settings(max_examples=5, deadline=None)
@given(
    steps=st.dictionaries(st.integers(0, MINUTES - 1), st.integers(-50 * YEAR_S, 50 * YEAR_S), min_size=1, max_size=4)
)
def test_no_wait_goes_by_the_wall_clock(steps: dict[int, int], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("aggregators")
    straight = lived(folder / "straight", {})
    assert len({one[0] for one in straight}) > 3 and any(("north", "identity-twin") in one[2] for one in straight)
    assert any(one[-2] for one in straight) and any(one[4] > 3 for one in straight)
    assert lived(folder / "stepped", steps) == straight


def test_what_is_retained_is_signed_anew_where_the_clock_comes_into_another_week(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(4)) as made:
        made.hear(*[heard(name, "status", READY.to_bytes()) for name in NAMES], Connection(True))
        assert not said_under("round", made.hear(Tick(), after_s=1.0))
        made.hear(ClockSet(YEAR_S * NS))
        (numbers,) = said_under("newest", made.hear(Tick(), after_s=1.0))
        context = made.service.state.context
        assert context.now_ns - context.uptime_ns == YEAR_S * NS
        assert Newest.from_bytes(numbers.payload).expires_ns > context.now_ns


def test_what_waits_beyond_a_restart_waits_on_where_the_clock_was_set_before(tmp_path: Path) -> None:
    with cloud(tmp_path, mean_of(4), **SETTINGS) as made:
        end_ns = made.now_ns + 300 * NS
        made.service.state = with_record(made.service.state, "rounds", rest_until_ns=end_ns)
        made.hear(ClockSet(YEAR_S * NS))
        held = made.service.store.read_training()
        assert held is not None and held.meta["rest_until_ns"] == end_ns + YEAR_S * NS
