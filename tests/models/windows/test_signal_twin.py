"""Windows against a slow twin that keeps its samples in dictionaries and asks every question of all of them."""

import math
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedgate.models.features.spec import FeatureSpec
from fedgate.models.windows.grid import Block, Lost, StreamSpec, push, start
from tests.support.windowing import spec_of

GAP = 3  # places bridged by default


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


@given(streams_and_blocks(), st.sampled_from([1.0, 0.5, 0.3]))
def test_windows_equal_the_naive_twin(case: tuple[list[StreamSpec], list[Block]], hop_s: float) -> None:
    streams, blocks = case
    spec = spec_of(*sorted(channel for stream in streams for channel in stream.channels), hop_s=hop_s)
    state = start(spec, streams, patience_s=4.0)
    naive = Naive(spec, streams, patience=40)
    for block in blocks:
        expected = (
            naive.push(block) if state.has_origin or max(b.end_ns for b in [*state.aside, block]) <= 4e9 else None
        )
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
