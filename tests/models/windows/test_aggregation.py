"""Many samples to one value of a place: against a slow twin, and the same however the samples come."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedgate.models.windows.grid import Block, Lost, SignalError, StreamSpec, health, push, start
from fedgate.models.windows.stream import read
from tests.support.windowing import SECOND_NS, described, feed, ramp, series, spec_of, windows_of

OF: dict[str, Callable[[list[float]], float]] = {
    "mean": lambda values: values[0] + math.fsum(value - values[0] for value in values) / len(values),
    "min": min,
    "max": max,
    "last": lambda values: values[-1],
}
HOWS = sorted(OF)


def stream_of(how: str, **changes: Any) -> StreamSpec:
    return StreamSpec.model_validate({"name": "s", "channels": ("a", "b"), "aggregate": how} | changes)


def twin(how: str, t_s: NDArray[np.float64], values: NDArray[np.float64]) -> dict[tuple[int, int], float]:
    """Return the value of every place and channel that has a finite sample, a second to a place."""
    found: dict[tuple[int, int], list[float]] = {}
    for moment, row in zip(t_s - t_s[0], values, strict=True):
        for channel, value in enumerate(row):
            if math.isfinite(value):
                found.setdefault((math.floor(moment + 0.501), channel), []).append(float(value))
    return {key: OF[how](samples) for key, samples in found.items()}


@pytest.mark.soak
@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(HOWS))
def test_windows_equal_the_twin_however_blocks_are_cut(data: st.DataObject, how: str) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    per_s, count = data.draw(st.sampled_from([0.7, 3.0, 7.3])), data.draw(st.integers(20, 60))
    values = 1e6 + rng.normal(size=(count, 2))
    values[rng.random(values.shape) < data.draw(st.sampled_from([0.0, 0.3]))] = np.nan
    spec = spec_of("a", "b", rate_hz=1.0, window_s=4.0, hop_s=data.draw(st.sampled_from([4.0, 1.0])))
    gap_s = data.draw(st.sampled_from([None, 0.0, 5.0]))
    fresh = start(spec, [stream_of(how, gap_s=gap_s)], patience_s=1e3)
    cuts = [data.draw(st.lists(st.integers(1, count - 1), max_size=9)) for _ in range(2)]
    blocks = [series("s", values, *places, rate_hz=per_s) for places in cuts]
    repeated = [block for block in blocks[1] for _ in range(data.draw(st.integers(1, 2)))]
    (_, events), (state, others) = feed(fresh, blocks[0]), feed(fresh, repeated)
    assert described(events) == described(others)
    expected = twin(how, np.arange(count) / per_s, values)
    for window in windows_of(events):
        first = round(window.t_ns / 1e9)
        for (at, channel), is_bridged in np.ndenumerate(window.bridged):
            assert is_bridged == ((first + at, channel) not in expected)
            if not is_bridged:
                assert window.values[at, channel] == pytest.approx(expected[first + at, channel], rel=1e-15)
    assert health(state)["s"].dropped == sum(len(block.values) for block in repeated) - count


@pytest.mark.parametrize("how", HOWS)
def test_a_stuck_sensor_stays_exactly_stuck(how: str) -> None:
    """A mean that rounds would make a constant move, and hide a sensor that does not."""
    values = np.full((70, 2), 0.1)
    _, events = feed(
        start(spec_of("a", "b", rate_hz=1.0, window_s=8.0), [stream_of(how)]), series("s", values, rate_hz=7.0)
    )
    assert {value for window in windows_of(events) for value in window.values.ravel()} == {0.1}


def test_a_quarter_of_an_hour_is_the_mean_of_its_minutes() -> None:
    spec = spec_of("a", "b", rate_hz=1 / 900, window_s=3_600.0)
    minutes = ramp(600, 2)
    _, events = feed(start(spec, [stream_of("mean")]), series("s", minutes, *range(0, 600, 7), rate_hz=1 / 60))
    first, second = windows_of(events)[:2]
    assert (first.t_ns, second.t_ns, first.filled) == (0, 3_600 * SECOND_NS, 0)
    nearest = [minutes[max(15 * k - 7, 0) : 15 * k + 8].mean(axis=0) for k in range(8)]  # half a place either way
    np.testing.assert_allclose(np.concatenate([first.values, second.values]), nearest)


def test_memory_does_not_grow_with_the_samples_of_a_place() -> None:
    state = start(spec_of("a", "b", rate_hz=1 / 900, window_s=3_600.0), [stream_of("mean")])
    for k in range(500):
        state, events = push(state, Block("s", k * SECOND_NS, 0.0, ramp(1, 2, k)))
        assert not events
    stream = state.streams["s"]
    assert sum(len(places) for places, _ in stream.pieces) == 1
    assert stream.open is not None
    assert sum(column.size for column in stream.open) == 1 + 3 * 2  # a place, three numbers a channel
    np.testing.assert_array_equal(read(stream, 1, 1)[0][0], np.mean([[k, k + 1.0] for k in range(450, 500)], axis=0))


def test_places_without_a_sample_are_filled_as_declared_and_counted() -> None:
    spec = spec_of("a", "b", rate_hz=1.0, window_s=10.0, hop_s=5.0)
    values = ramp(120, 2)
    values[20:36, 0] = np.nan  # places 5 to 8 of the first channel have no sample, four a place
    blocks = series("s", values, 30, 77, rate_hz=4.0)
    for fill, wanted in (("interpolate", [41.0, 49.0, 57.0]), ("hold", [34.0, 34.0, 34.0])):
        _, events = feed(start(spec, [stream_of("mean", fill=fill, gap_s=4.0)]), blocks)
        first, second = windows_of(events)[:2]
        assert first.values[5:8, 0].tolist() == pytest.approx(wanted, abs=4.0)
        assert first.filled == second.filled == first.bridged[:, 0].sum() > 2
        assert first.newly_filled(spec) == {"a": first.filled}
        assert second.newly_filled(spec) == {}
    _, events = feed(start(spec, [stream_of("mean", gap_s=0.0)]), blocks)
    lost = [event for event in events if isinstance(event, Lost)]
    assert [(event.t_ns // SECOND_NS, event.channels) for event in lost] == [(0, ("a",)), (5, ("a",))]
    assert all(window.filled == 0 for window in windows_of(events))


@pytest.mark.parametrize("fill", ["interpolate", "hold"])
def test_a_window_has_all_samples_of_its_last_place(fill: str) -> None:
    """The other stream is quicker to reach the end; the place is not over before half a period later."""
    streams = [
        StreamSpec(name="fast", channels=("c",)),
        StreamSpec.model_validate({"name": "s", "channels": ("a",), "aggregate": "mean", "fill": fill, "gap_s": 3.0}),
    ]
    fast, slow = series("fast", ramp(30), *range(30), rate_hz=1.0), series("s", ramp(300), *range(300))
    blocks = sorted([*fast, *slow], key=lambda block: (block.t_ns, block.stream))
    _, events = feed(start(spec_of("a", "c", rate_hz=1.0, window_s=5.0), streams), blocks)
    found = np.concatenate([window.values[:, 0] for window in windows_of(events)])
    np.testing.assert_allclose(found[1:], 10.0 * np.arange(1, 30) - 0.5)


def test_a_silent_held_sensor_that_aggregates_is_not_waited_for() -> None:
    streams = [
        StreamSpec(name="fast", channels=("c",)),
        StreamSpec(name="s", channels=("a",), aggregate="max", fill="hold", gap_s=100.0),
    ]
    readings = [Block("s", round(t * 1e9), 0.0, np.array([[v]])) for t, v in ((0.0, 3.0), (0.2, 9.0), (0.4, 5.0))]
    state, _ = feed(start(spec_of("a", "c", rate_hz=1.0, window_s=5.0), streams), readings)
    state, events = feed(state, series("fast", ramp(12), *range(12), rate_hz=1.0))
    assert [window.values[:, 0].tolist() for window in windows_of(events)] == [[9.0] * 5] * 2
    assert [window.filled for window in windows_of(events)] == [4, 5]


def test_a_stream_that_went_silent_is_given_up_with_what_had_arrived() -> None:
    streams = [StreamSpec(name="fast", channels=("c",)), StreamSpec(name="s", channels=("a",), aggregate="mean")]
    spec = spec_of("a", "c", rate_hz=1.0, window_s=5.0)
    state, _ = feed(start(spec, streams, patience_s=5.0), series("s", ramp(43), *range(43)))  # to 4.2 s
    state, events = feed(state, series("fast", ramp(16), *range(16), rate_hz=1.0))
    window, lost = events
    assert window.values[:, 0].tolist() == pytest.approx([2.0, 10.0, 20.0, 30.0, 38.5], abs=0.6)  # type: ignore[union-attr]  # the first event is a window
    assert isinstance(lost, Lost)


def test_time_that_jumps_begins_anew() -> None:
    spec = spec_of("a", "b", rate_hz=1.0, window_s=5.0)
    before, after = (
        series("s", ramp(60, 2), 11, rate_hz=4.0),
        series("s", ramp(60, 2), 17, 40, rate_hz=4.0, t_ns=-(10**15)),
    )
    _, alone = feed(start(spec, [stream_of("mean")]), after)
    _, events = feed(start(spec, [stream_of("mean")], patience_s=2.0), [*before, *after])
    assert [w.values.tolist() for w in windows_of(events)[-3:]] == [w.values.tolist() for w in windows_of(alone)]
    assert any(isinstance(event, Lost) and "time jumped" in event.reason for event in events)


def test_only_a_stream_that_aggregates_may_be_faster_than_the_grid() -> None:
    spec, fast = spec_of("a", "b", rate_hz=1.0, window_s=4.0), Block("s", 0, 50.0, ramp(5, 2))
    push(start(spec, [stream_of("last")]), fast)
    with pytest.raises(SignalError, match=r"filter and thin out a faster stream first, or let it aggregate"):
        push(start(spec, [StreamSpec(name="s", channels=("a", "b"))]), fast)
    with pytest.raises(ValueError, match=r"(?s)aggregate.*'mean', 'min', 'max' or 'last'"):
        stream_of("median")
