"""The fusion's laws: order, loss, drift and jumps of time; the grid that all streams share."""

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.models.windows.grid import Block, Lost, StreamSpec, Window, health, push, start
from tests.support.windowing import SECOND_NS, described, feed, ramp, series, spec_of, windows_of


@pytest.mark.soak
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([10.0, 600.0]),
    st.lists(st.integers(1, 199)),
    st.lists(st.integers(1, 199)),
)
def test_any_split_into_blocks_yields_the_same_windows(
    seed: int, rate_hz: float, cuts: list[int], other_cuts: list[int]
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(200, 2))
    rows[rng.random(rows.shape) < 0.1] = np.nan
    spec = spec_of("a", "b", rate_hz=rate_hz, window_s=12 / rate_hz, hop_s=7 / rate_hz)
    fresh = start(spec, [StreamSpec(name="s", channels=("a", "b"))], patience_s=1e3)
    (_, one), (_, other) = (feed(fresh, series("s", rows, *c, rate_hz=rate_hz, t_ns=12345)) for c in (cuts, other_cuts))
    assert described(one) == described(other)
    assert any(isinstance(event, Window) for event in one)


@pytest.mark.soak
@given(st.randoms(use_true_random=False), st.integers(0, 2**32 - 1))
def test_any_order_of_two_streams_yields_the_same_windows(random: Random, seed: int) -> None:
    rng = np.random.default_rng(seed)
    spec = spec_of("a", "b")
    streams = [StreamSpec(name="one", channels=("a",)), StreamSpec(name="two", channels=("b",))]
    queues = [
        series("one", rng.normal(size=(40, 1)), *range(0, 40, 4)),
        series("two", rng.normal(size=(40, 1)), *range(0, 40, 3), t_ns=230_000_000),
    ]
    expected = described(feed(start(spec, streams, patience_s=5.0), queues[0] + queues[1])[1])
    merged = []
    while any(queues):
        merged.append(random.choice([queue for queue in queues if queue]).pop(0))
    found = described(feed(start(spec, streams, patience_s=5.0), merged)[1])
    assert found == expected
    assert len(found) == 3


@pytest.mark.soak
@given(st.integers(0, 19), st.sampled_from([1.0, 0.5]))
def test_a_lost_block_loses_exactly_the_windows_it_touches(lost: int, hop_s: float) -> None:
    """Five rows are more than a line bridges, so the loss shows; the last block's loss shows to nobody."""
    spec = spec_of("a", "b", "c", hop_s=hop_s)
    fresh = start(spec, [StreamSpec(name="one", channels=("a", "c")), StreamSpec(name="two", channels=("b",))])
    one, two = series("one", ramp(100, 2), *range(0, 100, 5)), series("two", ramp(100), *range(0, 100, 5))
    whole = [block for pair in zip(one, two, strict=True) for block in pair]
    _, expected = feed(fresh, whole)
    _, found = feed(fresh, [block for block in whole if block is not one[lost]])
    if lost == 0:  # the grid begins with the latest first sample, after the lost block
        assert [w.t_ns for w in windows_of(found)] == [
            w.t_ns + SECOND_NS // 2 for w in windows_of(expected)[: len(found)]
        ]
        return
    for event, kept in zip(found, expected, strict=False):
        assert isinstance(kept, Window)
        if kept.t_ns < (lost + 1) * SECOND_NS // 2 and kept.t_ns + SECOND_NS > lost * SECOND_NS // 2:
            assert isinstance(event, Lost)
            assert (event.t_ns, event.channels) == (kept.t_ns, ("a", "c"))
            assert event.reason == "stream 'one' has a gap of more than 0.3 s"
        else:
            assert described([event]) == described([kept])
    assert len(found) == len(expected) - (1 if lost == 19 else 0)


@pytest.mark.soak
@pytest.mark.parametrize("error_ppm", [200, -200])
def test_a_clock_200_ppm_off_loses_nothing_over_a_million_samples(error_ppm: int) -> None:
    rate_hz, rows = 600.0, 600
    spec = spec_of("a", rate_hz=rate_hz, window_s=2.0)
    state = start(spec, [StreamSpec(name="s", channels=("a",))])
    true_rate_hz = rate_hz * (1 + error_ppm * 1e-6)
    windows = 0
    for number in range(1_000_000 // rows + 1):
        values = ramp(rows, first=number * rows)
        state, events = push(state, Block("s", round(number * rows * 1e9 / true_rate_hz), rate_hz, values))
        for event in events:
            assert isinstance(event, Window)
            assert event.t_ns == windows * 2 * SECOND_NS
            assert event.filled <= 1
            # A place's value is its time's: what came before is neither lost nor doubled for good.
            expected = np.arange(1200) + event.t_ns * 1e-9 * true_rate_hz
            assert np.abs(event.values[:, 0] - expected).max() < 1.2
            windows += 1
    assert windows == int(1_000_000 / true_rate_hz / 2)
    counters = health(state)["s"]
    assert (counters.measured_rate_hz / rate_hz - 1) * 1e6 == pytest.approx(error_ppm, abs=0.1)
    assert counters.dropped == pytest.approx(200 if error_ppm > 0 else 0, abs=1)  # doubled places
    assert counters.missing == 0


def test_a_stream_half_a_period_off_keeps_every_sample() -> None:
    spec = spec_of("a", "b", rate_hz=100.0)
    fresh = start(spec, [StreamSpec(name="one", channels=("a",)), StreamSpec(name="two", channels=("b",))])
    one = series("one", ramp(5000), *range(0, 5000, 10), rate_hz=100.0)
    two = series("two", ramp(5000), *range(0, 5000, 10), rate_hz=100.0, t_ns=-5_000_000)
    state, events = feed(fresh, [block for pair in zip(one, two, strict=True) for block in pair])
    assert [window.filled for window in windows_of(events)] == [0] * 50
    assert health(state)["two"].dropped == 0


@pytest.mark.soak
@settings(max_examples=40)
@given(st.sampled_from([-1, 1]), st.floats(20, 1e9), st.integers(1, 30), st.integers(0, 9))
def test_a_jump_of_time_is_one_loss_and_costs_no_later_sample(sign: int, jump_s: float, rows: int, begun: int) -> None:
    spec = spec_of("a")
    jump_ns = sign * round(jump_s * 1e9)
    before = series("s", ramp(100 + begun), *range(0, 100, 3))
    after = series("s", ramp(60, first=1000), *range(0, 60, rows), t_ns=before[-1].end_ns + jump_ns)
    state, events = feed(start(spec, [StreamSpec(name="s", channels=("a",))]), before + after)
    lost = [event for event in events if isinstance(event, Lost)]
    assert [(event.t_ns, event.channels) for event in lost] == [(10 * SECOND_NS, ("a",))]
    step_s = (jump_ns + SECOND_NS // 10) / 1e9  # from the newest sample to the next
    assert lost[0].reason == f"time jumped by {step_s:+.3f} s: the grid begins anew"
    restarted = windows_of(events)[10:]
    assert [window.t_ns for window in restarted] == [after[0].t_ns + i * SECOND_NS for i in range(6)]
    np.testing.assert_array_equal(np.concatenate([window.values for window in restarted]), ramp(60, first=1000))
    assert health(state)["s"].dropped == 0


def test_a_lost_block_costs_itself_alone_though_blocks_are_longer_than_the_grid_reaches() -> None:
    blocks = series("s", ramp(600), *range(0, 600, 120))  # of 12 s each; the grid reaches 10 windows of 1 s
    state, events = feed(start(spec_of("a"), [StreamSpec(name="s", channels=("a",))]), blocks[:1] + blocks[2:])
    assert [window.t_ns for window in windows_of(events)] == [i * SECOND_NS for i in (*range(12), *range(24, 60))]
    assert health(state)["s"].dropped == 0


@pytest.mark.parametrize("rows", [5, 50])  # less than a window, and more than the patience
def test_one_wrong_time_disturbs_nothing(rows: int) -> None:
    fresh = start(spec_of("a"), [StreamSpec(name="s", channels=("a",))])
    blocks = series("s", ramp(100), *range(0, 100, 5))
    expected = described(feed(fresh, blocks)[1])
    for wrong_ns in (-(10**15), 10**15):
        wrong = Block("s", wrong_ns, 10.0, ramp(rows))
        state, events = feed(fresh, [*blocks[:7], wrong, *blocks[7:]])
        assert described(events) == expected
        assert health(state)["s"].dropped == rows


def test_the_old_backlog_of_one_node_does_not_stop_the_others() -> None:
    fresh = start(spec_of("a", "b"), [StreamSpec(name="one", channels=("a",)), StreamSpec(name="two", channels=("b",))])
    one, two = series("one", ramp(3000), *range(0, 3000, 5)), series("two", ramp(3000), *range(0, 3000, 5))
    state, events = feed(fresh, [block for pair in zip(one[:20], two[:20], strict=True) for block in pair])
    assert len(windows_of(events)) == 10
    late = [block for pair in zip(one[520:], two[20:], strict=False) for block in pair]
    state, events = feed(state, [*one[20:520], *late])  # `two` comes 250 s late, while `one` goes on
    assert all(isinstance(event, Lost) and event.channels == ("b",) for event in events)
    assert [event.t_ns for event in events] == [i * SECOND_NS for i in range(10, 10 + len(events))]
    state, events = feed(
        state, [Block("two", 300 * SECOND_NS, 10.0, ramp(10)), Block("one", 300 * SECOND_NS, 10.0, ramp(10))]
    )
    assert [event.t_ns for event in windows_of(events)] == [300 * SECOND_NS]


@pytest.mark.parametrize("apart_s", [5, 10**6, -(10**6)])
def test_streams_whose_clocks_disagree_do_not_stop_each_other_or_go_unreported(apart_s: int) -> None:
    streams = [StreamSpec(name=name, channels=(name,)) for name in "abc"]
    queues = [
        series(name, ramp(200), *range(0, 200, 5), t_ns=number * apart_s * SECOND_NS)
        for number, name in enumerate("abc")
    ]
    _, events = feed(
        start(spec_of(*"abc"), streams), [block for blocks in zip(*queues, strict=True) for block in blocks]
    )
    assert len(events) >= 15
    assert not any("jumped" in event.reason for event in events if isinstance(event, Lost))


def test_rare_readings_further_apart_than_the_grid_reaches_are_reported() -> None:
    stream = StreamSpec(name="s", channels=("a",), fill="hold", gap_s=2.0)
    blocks = [Block("s", i * 60 * SECOND_NS, 0.0, np.array([[1.0]])) for i in range(5)]
    _, events = feed(start(spec_of("a"), [stream]), blocks)
    assert [event.reason for event in events if isinstance(event, Lost)] == [
        "time jumped by +120.000 s: the grid begins anew"
    ] * 2


def test_the_grid_begins_with_the_latest_first_sample() -> None:
    streams = [StreamSpec(name="one", channels=("a",)), StreamSpec(name="two", channels=("b",))]
    fresh = start(spec_of("a", "b"), streams, patience_s=5.0)
    one, two = series("one", ramp(40), *range(0, 40, 4), t_ns=77), series("two", ramp(40), 20, t_ns=730_000_000)
    _, events = feed(fresh, one[:4] + two + one[4:])
    first = windows_of(events)[0]
    assert first.t_ns == 730_000_000
    np.testing.assert_array_equal(first.values, np.column_stack([np.arange(7, 17), np.arange(10)]))


def test_a_silent_stream_is_given_up_after_the_patience_and_the_grid_goes_on() -> None:
    streams = [StreamSpec(name="one", channels=("a",)), StreamSpec(name="two", channels=("b",))]
    state, events = feed(start(spec_of("a", "b"), streams), series("one", ramp(200), *range(0, 200, 5)))
    assert events[0] == Lost(0, ("b",), "stream 'two' was not heard yet")
    assert [event.t_ns for event in events] == [i * SECOND_NS for i in range(17)]  # 20 s less a window and the patience
    state, events = feed(state, series("two", ramp(30), t_ns=17 * SECOND_NS))
    assert [event.t_ns for event in windows_of(events)] == [17 * SECOND_NS, 18 * SECOND_NS, 19 * SECOND_NS]
    state, events = feed(state, series("one", ramp(50), *range(0, 50, 5), t_ns=20 * SECOND_NS))
    assert events[0] == Lost(20 * SECOND_NS, ("b",), "stream 'two' ends 1.000 s before the window does")


def test_overlapping_windows_repeat_their_samples() -> None:
    spec = spec_of("a", hop_s=0.3)
    _, events = feed(start(spec, [StreamSpec(name="s", channels=("a",))]), series("s", ramp(40), 13, 14, 30))
    assert [window.t_ns for window in windows_of(events)] == [i * 300_000_000 for i in range(11)]
    for i, window in enumerate(windows_of(events)):
        np.testing.assert_array_equal(window.values, ramp(10, first=3.0 * i))


def test_channels_come_in_the_order_of_the_specification() -> None:
    streams = [StreamSpec(name="two", channels=("d", "a")), StreamSpec(name="one", channels=("c", "b"))]
    _, events = feed(
        start(spec_of("a", "b", "c", "d"), streams), [*series("two", ramp(10, 2)), *series("one", -ramp(10, 2))]
    )
    np.testing.assert_array_equal(windows_of(events)[0].values[1], [3.0, -3.0, -2.0, 2.0])


def test_a_state_is_a_value() -> None:
    spec = spec_of("a", "b")
    state = start(spec, [StreamSpec(name="one", channels=("a",)), StreamSpec(name="two", channels=("b",))])
    memory = ramp(7)
    for number in range(12):
        for name in ("one", "two"):
            block = Block(name, number * 700_000_000, 10.0, memory)
            once, again = push(state, block), push(state, block)
            assert described(once[1]) == described(again[1])
            state = once[0]
            assert health(state) == health(again[0])
    before = described(push(state, Block("one", 12 * 700_000_000, 10.0, ramp(20)))[1])
    memory[:] = math.nan  # the sender uses its array again
    assert described(push(state, Block("one", 12 * 700_000_000, 10.0, ramp(20)))[1]) == before


def test_a_block_that_waits_is_not_bound_to_the_senders_memory() -> None:
    streams = [StreamSpec(name="one", channels=("a",)), StreamSpec(name="two", channels=("b",))]
    memory = ramp(10)
    state, _ = push(start(spec_of("a", "b"), streams), Block("one", 0, 10.0, memory))
    memory[:] = math.nan
    _, events = push(state, Block("two", 0, 10.0, ramp(10)))
    np.testing.assert_array_equal(windows_of(events)[0].values, np.tile(ramp(10), 2))


@pytest.mark.parametrize("kind", ["one stream alone", "repeated old block", "never finite"])
def test_memory_is_bounded(kind: str) -> None:
    streams = [StreamSpec(name="one", channels=("a",)), StreamSpec(name="two", channels=("b",))]
    state = start(spec_of("a", "b"), streams)
    state, _ = feed(
        state, [*series("one", ramp(200), t_ns=500 * SECOND_NS), *series("two", ramp(1), t_ns=500 * SECOND_NS)]
    )
    for number in range(400):
        t_ns = (520 + number) * SECOND_NS
        block = {
            "one stream alone": Block("one", t_ns, 10.0, ramp(10)),
            "repeated old block": Block("one", 0, 10.0, ramp(5)),
            "never finite": Block("two", t_ns, 10.0, np.full((10, 1), math.nan)),
        }[kind]
        state, _ = push(state, block)
    held = sum(len(values) for stream in state.streams.values() for _, values in stream.pieces)
    assert held + sum(len(block.values) for block in state.aside) < 250
