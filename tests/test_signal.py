"""Windows against a slow twin that keeps its samples in dictionaries; laws of order, loss, drift and jumps of time."""

import math
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from models.features import FeatureSpec
from models.sensor_health import RateMeter, clipped_channels, meter, stuck_channels
from models.signal import Block, Lost, SignalError, StreamSpec, Window, Windower, health, push, start

SECOND_NS = 10**9
GAP = 3  # places bridged by default

Event = Window | Lost


def spec_of(*channels: str, rate_hz: float = 10.0, window_s: float = 1.0, hop_s: float | None = None) -> FeatureSpec:
    return FeatureSpec(
        rate_hz=rate_hz,
        window_s=window_s,
        hop_s=window_s if hop_s is None else hop_s,
        channels=channels,
        steps=FeatureSpec.model_validate(
            {"rate_hz": 10, "window_s": 1, "channels": channels, "steps": [{"kind": "level"}]}
        ).steps,
    )


def feed(state: Windower, blocks: list[Block]) -> tuple[Windower, list[Event]]:
    events: list[Event] = []
    for block in blocks:
        state, more = push(state, block)
        events += more
    return state, events


def described(events: list[Event]) -> list[object]:
    """Make events comparable, to the bit."""
    return [(e.t_ns, e.values.tolist(), e.filled) if isinstance(e, Window) else e for e in events]


def windows_of(events: list[Event]) -> list[Window]:
    return [event for event in events if isinstance(event, Window)]


def series(name: str, rows: NDArray[np.float64], *cuts: int, rate_hz: float = 10.0, t_ns: int = 0) -> list[Block]:
    """Cut rows (n, C), sampled without a gap, into blocks."""
    ends = [0, *sorted(cuts), len(rows)]
    return [
        Block(name, t_ns + round(first * 1e9 / rate_hz), rate_hz, rows[first:end])
        for first, end in pairwise(ends)
        if first < end
    ]


def ramp(count: int, channels: int = 1, first: float = 0.0) -> NDArray[np.float64]:
    return first + np.arange(count * channels, dtype=np.float64).reshape(count, channels)


# --- a slow twin ------------------------------------------------------------------------------------------------------


@dataclass
class Naive:
    """One dictionary of samples per channel, and every question asked of all of it."""

    spec: FeatureSpec
    streams: list[StreamSpec]
    patience: int
    waiting: list[Block] = field(default_factory=list)
    origin_ns: int | None = None
    samples: dict[str, dict[int, float]] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    next: int = 0

    def push(self, block: Block) -> list[object]:
        if self.origin_ns is None:
            self.waiting.append(block)
            first_ns = {b.stream: b.t_ns for b in reversed(self.waiting)}
            if len(first_ns) < len(self.streams):
                return []
            self.origin_ns = max(first_ns.values())
            for waited in self.waiting:
                self.take(waited)
        else:
            self.take(block)
        return self.emit()

    def take(self, block: Block) -> None:
        assert self.origin_ns is not None
        channels = next(stream.channels for stream in self.streams if stream.name == block.stream)
        for i, row in enumerate(block.values):
            t_s = (block.t_ns - self.origin_ns) / 1e9 + (i / block.rate_hz if block.rate_hz else 0)
            at = math.floor(t_s * self.spec.rate_hz + 0.501)
            if at > self.last.get(block.stream, -math.inf):
                self.last[block.stream] = at
                for channel, value in zip(channels, row, strict=True):
                    if math.isfinite(value):
                        self.samples.setdefault(channel, {})[at] = float(value)

    def is_decided(self, stream: StreamSpec, channel: str, at: int) -> bool:
        last = self.last.get(stream.name)
        if last is None:
            return False
        finite = max(self.samples.get(channel, {}), default=-(10**9))
        gap = self.gap(stream)
        return (
            last >= at or finite + gap >= at
            if stream.fill == "hold"
            else finite >= at or (last >= at and last - finite > gap)
        )

    def gap(self, stream: StreamSpec) -> int:
        return GAP if stream.gap_s is None else math.floor(stream.gap_s * self.spec.rate_hz + 1e-6)

    def value(self, stream: StreamSpec, channel: str, at: int) -> float | None:
        known = self.samples.get(channel, {})
        if at in known:
            return known[at]
        before = max((place for place in known if place < at), default=None)
        after = min((place for place in known if place > at), default=None)
        if before is None:
            return None
        if stream.fill == "hold":
            return known[before] if at - before <= self.gap(stream) else None
        if after is None or after - before - 1 > self.gap(stream):
            return None
        return known[before] + (known[after] - known[before]) * (at - before) / (after - before)

    def emit(self) -> list[object]:
        events: list[object] = []
        newest = max(self.last.values())
        while True:
            end = self.next + self.spec.samples - 1
            ready = newest >= end and all(
                self.is_decided(stream, channel, end) for stream in self.streams for channel in stream.channels
            )
            if not ready and newest - end <= self.patience:
                return events
            events.append(self.window())
            self.next += self.spec.hop_samples

    def window(self) -> object:
        places = range(self.next, self.next + self.spec.samples)
        source = {channel: stream for stream in self.streams for channel in stream.channels}
        rows = [[self.value(source[channel], channel, at) for channel in self.spec.channels] for at in places]
        lost = {c for row in rows for c, value in zip(self.spec.channels, row, strict=True) if value is None}
        assert self.origin_ns is not None
        t_ns = self.origin_ns + round(self.next * 1e9 / self.spec.rate_hz)
        if lost:
            return t_ns, lost
        filled = sum(at not in self.samples[channel] for at in places for channel in self.spec.channels)
        return t_ns, np.array(rows), filled


@st.composite
def streams_and_blocks(draw: st.DrawFn) -> tuple[list[StreamSpec], list[Block]]:
    """Up to three streams with gaps, repetitions, missing values, drift and slower rates, merged at random."""
    streams, queues = [], []
    for number in range(draw(st.integers(1, 3))):
        channels = tuple(f"{'abc'[number]}{i}" for i in range(draw(st.integers(1, 2))))
        fill = draw(st.sampled_from(["interpolate", "interpolate", "hold"]))
        gap_s = (
            draw(st.sampled_from([0.0, 0.2, 0.7, 2.0])) if fill == "hold" else draw(st.sampled_from([None, 0.0, 0.5]))
        )
        streams.append(
            StreamSpec.model_validate({"name": f"s{number}", "channels": channels, "fill": fill, "gap_s": gap_s})
        )
        queues.append(draw(blocks_of(f"s{number}", len(channels))))
    blocks = []
    while any(queues):
        queue = draw(st.sampled_from([queue for queue in queues if queue]))
        blocks.append(queue.pop(0))
    return streams, blocks


@st.composite
def blocks_of(draw: st.DrawFn, name: str, channels: int) -> list[Block]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rate_hz = draw(st.sampled_from([10.0, 10.0, 10.0, 5.0, 9.93, 0.0]))
    drift = draw(st.sampled_from([0.0, 0.0, 0.03, -0.03]))
    t_s = draw(st.floats(0, 0.5))
    blocks = []
    for _ in range(draw(st.integers(1, 8))):
        count = draw(st.integers(1, 12)) if rate_hz else 1
        values = rng.normal(size=(count, channels))
        values[rng.random(values.shape) < draw(st.sampled_from([0.0, 0.0, 0.2]))] = draw(
            st.sampled_from([np.nan, np.inf])
        )
        blocks.append(Block(name, round(t_s * 1e9), rate_hz, values))
        pause_s = draw(st.sampled_from([0.0, 0.0, 0.0, 0.2, 0.31, 1.5, -0.7]))
        t_s = max(t_s + (count / rate_hz if rate_hz else 0.4) * (1 + drift) + pause_s, 0.0)
    return blocks


@settings(max_examples=150, deadline=None)
@given(streams_and_blocks(), st.sampled_from([1.0, 0.5, 0.3]))
def test_windows_equal_the_naive_twin(case: tuple[list[StreamSpec], list[Block]], hop_s: float) -> None:
    streams, blocks = case
    spec = spec_of(*sorted(channel for stream in streams for channel in stream.channels), hop_s=hop_s)
    state = start(spec, streams, patience_s=4.0)
    naive = Naive(spec, streams, patience=40)
    for block in blocks:
        expected = naive.push(block) if state.begun or max(b.end_ns for b in [*state.aside, block]) <= 4e9 else None
        if expected is None:  # one stream alone for longer than the patience: another test's subject
            return
        state, events = push(state, block)
        assert len(events) == len(expected)
        for event, twin in zip(events, expected, strict=True):
            assert isinstance(twin, tuple)
            assert event.t_ns == twin[0]
            if isinstance(event, Lost):
                assert set(event.channels) == twin[1]
            else:
                np.testing.assert_allclose(event.values, twin[1], rtol=1e-9, atol=1e-12)
                assert event.filled == twin[2]


# --- laws -------------------------------------------------------------------------------------------------------------


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
    assert counters.rate_error_ppm == pytest.approx(error_ppm, abs=0.1)
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


# --- jumps of time ----------------------------------------------------------------------------------------------------


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


# --- what a block may bring -------------------------------------------------------------------------------------------


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


def test_a_long_outage_does_not_bias_the_measured_rate() -> None:
    state, true_rate_hz = RateMeter(), 600.3
    for second in [*range(600), *range(4200, 4260)]:  # an hour's rows cannot be counted to one at the declared rate
        state = meter(state, round(second * 600 / true_rate_hz * 1e9), 600.0, 600)
    assert state.measured_rate_hz == pytest.approx(true_rate_hz, rel=1e-7)


def test_an_irregular_stream_measures_its_readings_per_second() -> None:
    stream = StreamSpec(name="s", channels=("a",), fill="hold", gap_s=5.0)
    state, _ = feed(start(spec_of("a"), [stream]), [Block("s", i * 4 * SECOND_NS, 0.0, ramp(1)) for i in range(9)])
    counters = health(state)["s"]
    assert (counters.measured_rate_hz, counters.rate_error_ppm, counters.missing) == (0.25, None, 0)


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


# --- the grid ---------------------------------------------------------------------------------------------------------


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


# --- errors -----------------------------------------------------------------------------------------------------------


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


# --- sensor health ----------------------------------------------------------------------------------------------------


def test_stuck_channels_never_change() -> None:
    values = np.column_stack([np.full(100, 9.81), np.arange(100.0), [*np.zeros(99), 1e-9]])
    assert stuck_channels(("x", "y", "z"), values) == ("x",)


@given(st.integers(0, 2**32 - 1), st.floats(0.3, 1.5), st.integers(6, 14))
def test_clipping_is_seen_at_either_end(seed: int, limit: float, bits: int) -> None:
    noise = np.random.default_rng(seed).normal(size=1200)
    coarse = np.round(noise * 2**bits) / 2**bits
    values = np.column_stack([noise, coarse, np.minimum(coarse, limit), np.maximum(noise, -limit), -np.abs(noise)])
    assert clipped_channels(tuple("abcde"), values) == ("c", "d")


@given(st.integers(10, 5000), st.floats(0, 1))
def test_healthy_channels_are_not_called_clipped(levels: int, phase: float) -> None:
    t = np.arange(4800)
    sine = np.round(levels * np.sin(math.pi * math.sqrt(5) * t + phase) + phase)
    few = np.round(2 * np.sin(t / 300))  # a slow channel in whole degrees
    switch = (t > 2000).astype(float)
    constant = np.zeros(len(t))
    assert clipped_channels(tuple("abcd"), np.column_stack([sine, few, switch, constant])) == ()
