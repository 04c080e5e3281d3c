"""One stream: repeated, missing and held values, what is refused, and how its sensor is judged."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedgate.models.windows.grid import Block, Lost, SignalError, StreamSpec, health, push, start
from tests.support.windowing import SECOND_NS, described, feed, ramp, series, spec_of, windows_of


@pytest.mark.soak
@given(st.lists(st.integers(0, 11), max_size=30))
def test_repeated_blocks_are_dropped_and_counted(again: list[int]) -> None:
    fresh = start(spec_of("a"), [StreamSpec(name="s", channels=("a",))])
    blocks = series("s", ramp(60), *range(0, 60, 5))
    received = list(blocks)
    for number in again:
        received.insert(received.index(blocks[number]) + 1, blocks[number])
    state, events = feed(fresh, received)
    assert described(events) == described(feed(fresh, blocks)[1])
    assert (health(state)["s"].received, health(state)["s"].dropped) == (60 + 5 * len(again), 5 * len(again))


def test_values_that_are_no_numbers_are_bridged_and_counted() -> None:
    rows = ramp(20, 2)
    rows[4:7, 0] = np.nan
    rows[9:11, 1] = [np.inf, -np.inf]  # across the border of two windows
    state, events = feed(start(spec_of("a", "b"), [StreamSpec(name="s", channels=("a", "b"))]), series("s", rows, 10))
    first, second = windows_of(events)
    np.testing.assert_allclose(np.concatenate([first.values, second.values]), ramp(20, 2))
    assert (first.filled, second.filled) == (4, 1)
    assert (health(state)["s"].not_finite, health(state)["s"].missing) == (5, 0)


def test_a_channel_that_is_never_a_number_is_lost_alone() -> None:
    rows = ramp(30, 2)
    rows[:, 1] = np.nan
    _, events = feed(start(spec_of("a", "b"), [StreamSpec(name="s", channels=("a", "b"))]), series("s", rows, 10, 20))
    assert [(event.t_ns, event.channels) for event in events if isinstance(event, Lost)] == [
        (0, ("b",)),
        (SECOND_NS, ("b",)),
        (2 * SECOND_NS, ("b",)),
    ]


def test_missing_rows_are_counted_by_the_times_of_blocks() -> None:
    blocks = series("s", ramp(100), *range(0, 100, 5))
    state, events = feed(start(spec_of("a"), [StreamSpec(name="s", channels=("a",))]), blocks[:4] + blocks[6:])
    assert health(state)["s"].missing == 10
    assert health(state)["s"].measured_rate_hz == pytest.approx(10.0)
    assert health(state)["s"].last_t_ns == round(9.9 * SECOND_NS)
    assert [event.t_ns for event in events if isinstance(event, Lost)] == [2 * SECOND_NS]


def test_an_irregular_stream_measures_its_readings_per_second() -> None:
    stream = StreamSpec(name="s", channels=("a",), fill="hold", gap_s=5.0)
    state, _ = feed(start(spec_of("a"), [stream]), [Block("s", i * 4 * SECOND_NS, 0.0, ramp(1)) for i in range(9)])
    counters = health(state)["s"]
    assert (counters.measured_rate_hz, counters.declared_rate_hz, counters.missing) == (0.25, 0.0, 0)


def test_a_held_value_is_valid_for_its_time_and_never_waited_for() -> None:
    streams = [
        StreamSpec(name="fast", channels=("a",)),
        StreamSpec(name="slow", channels=("b",), fill="hold", gap_s=2.5),
    ]
    fast = series("fast", ramp(60), *range(0, 60, 10))
    readings = [Block("slow", -SECOND_NS, 0.0, np.array([[5.0]])), Block("slow", round(1.2e9), 0.0, np.array([[7.0]]))]
    state, events = feed(start(spec_of("a", "b"), streams), [readings[0], fast[0], readings[1], *fast[1:]])
    held = [window.values[:, 1].tolist() for window in windows_of(events)]
    assert held == [[5.0] * 10, [5.0] * 2 + [7.0] * 8, [7.0] * 10]
    assert [window.t_ns for window in windows_of(events)] == [0, SECOND_NS, 2 * SECOND_NS]
    # Valid until 3.7 s; a window's end must be more than two windows ago before it is given up.
    state, events = feed(state, series("fast", ramp(30), t_ns=6 * SECOND_NS))
    assert [(e.t_ns, e.channels) for e in events if isinstance(e, Lost)] == [(i * SECOND_NS, ("b",)) for i in (3, 4, 5)]


def test_a_slower_stream_is_interpolated_onto_the_grid() -> None:
    streams = [StreamSpec(name="fast", channels=("a",)), StreamSpec(name="slow", channels=("b",), gap_s=0.4)]
    slow = series("slow", ramp(7, first=3.0), rate_hz=2.0)
    _, events = feed(start(spec_of("a", "b"), streams, patience_s=5.0), [*slow, *series("fast", ramp(30))])
    together = np.concatenate([window.values[:, 1] for window in windows_of(events)])
    np.testing.assert_allclose(together, 3.0 + np.arange(30) / 5)
    assert [window.filled for window in windows_of(events)] == [8, 8, 8]


@pytest.mark.parametrize(
    ("streams", "message"),
    [
        ([("one", "a")], r"bring the channels \['a'\]; expected .*\['a', 'b'\] once"),
        ([("one", "ab"), ("two", "b")], r"bring the channels \['a', 'b', 'b'\]"),
        ([("one", "a"), ("two", "z")], r"bring the channels \['a', 'z'\]"),
        ([("one", "a"), ("one", "b")], r"streams \['one', 'one'\] .*expected different names"),
    ],
)
def test_every_channel_comes_from_exactly_one_stream(streams: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(SignalError, match=message):
        start(spec_of("a", "b"), [StreamSpec(name=name, channels=tuple(channels)) for name, channels in streams])


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (Block("x", 0, 10.0, ramp(5)), r"stream 'x'; expected one of \['s'\]"),
        (Block("s", 0, 10.0, ramp(5, 2)), r"shape \(5, 2\); expected \(samples, 1\)"),
        (Block("s", 0, 10.0, np.zeros(5)), r"shape \(5,\); expected \(samples, 1\)"),
        (Block("s", 0, 10.0, ramp(0)), r"shape \(0, 1\); expected"),
        (Block("s", 0, 20.0, ramp(5)), r"has 20.0 Hz; expected 0 to rate_hz = 10.0 Hz: filter and thin out"),
        (Block("s", 0, -1.0, ramp(5)), r"has -1.0 Hz"),
        (Block("s", 0, math.nan, ramp(5)), r"has nan Hz"),
        (Block("s", 0, 0.0, ramp(5)), r"has 5 samples at 0 Hz; expected a single reading"),
    ],
)
def test_a_block_that_cannot_be_the_streams_is_refused(block: Block, message: str) -> None:
    with pytest.raises(SignalError, match=message):
        push(start(spec_of("a"), [StreamSpec(name="s", channels=("a",))]), block)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"fill": "hold"}, "gap_s: expected with fill = 'hold'"),
        ({"gap_s": -1.0}, "gap_s"),
        ({"fill": "guess"}, "'interpolate' or 'hold'"),
        ({"channels": ()}, "at least 1 item"),
        ({"gap": 1.0}, "Extra inputs"),
    ],
)
def test_a_stream_specification_names_the_key(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        StreamSpec.model_validate({"name": "s", "channels": ("a",)} | keys)
