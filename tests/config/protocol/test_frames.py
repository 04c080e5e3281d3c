"""Sample frames: what a node sends is what the gateway cuts windows of, and what no sensor can have sent is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from fedgate.config.protocol import wire
from fedgate.config.protocol.frames import DURATION_S_MAX, SAMPLES_MAX, TIME_NS_MAX, Frame, FrameMeta
from fedgate.config.protocol.messages import MessageError
from fedgate.config.settings.settings import Source
from fedgate.gateway_agent.sources import frames, json_values
from fedgate.gateway_agent.sources.units import to_units
from fedgate.models.time_units import NS
from tests.support.syntax import ROOT

GOLDEN = ROOT / "tests" / "golden" / "frame_1.bin"
META = FrameMeta(t_ns=1_800_000_000_000_000_000, rate_hz=100.0, clock="boot", boot="c0ffee", sequence=7)
FRAME = Frame(META, np.array([[0.5, -1.25], [0.1, 3e5]]))


def payload(values: NDArray[Any] | None = None, **meta: Any) -> bytes:
    given = {"t_ns": 0, "rate_hz": 10.0, **meta}
    return wire.encode({"values": np.zeros((5, 1)) if values is None else values}, given)


def source(*channels: dict[str, Any], **keys: Any) -> Source:
    return Source.model_validate({"name": "deck", "kind": "frames", "channels": channels or [{"role": "load"}], **keys})


def test_the_bytes_are_those_of_every_release() -> None:
    golden = GOLDEN.read_bytes()
    assert FRAME.to_bytes() == golden
    read = Frame.from_bytes(golden)
    assert read.meta == META
    np.testing.assert_array_equal(read.values, FRAME.values.astype(np.float32))
    assert read.values.dtype == np.float32  # as it came


@given(
    values=arrays.arrays(
        st.sampled_from([np.float32, np.float64, np.int32, np.uint8, np.bool_, np.uint64]),
        arrays.array_shapes(min_dims=2, max_dims=2, max_side=6),
    )
)
def test_any_number_type_is_read_as_it_is(values: NDArray[Any]) -> None:
    np.testing.assert_array_equal(Frame.from_bytes(payload(values)).values, values.astype(np.float64))


BROKEN_META = [
    ({"t_ns": None}, "t_ns"),
    ({"t_ns": TIME_NS_MAX + 1}, "t_ns"),
    ({"t_ns": 10**30}, "t_ns"),
    ({"t_ns": 1.5}, "t_ns"),
    ({"rate_hz": 0.0}, "rate_hz"),
    ({"rate_hz": -1.0}, "rate_hz"),
    ({"rate_hz": 1e-300}, "rate_hz"),
    ({"rate_hz": 1e300}, "rate_hz"),
    ({"rate_hz": "fast"}, "rate_hz"),
    ({"clock": "sundial"}, "clock"),
    ({"boot": "x" * 65}, "boot"),
    ({"sequence": -1}, "sequence"),
]


@pytest.mark.parametrize(("change", "key"), BROKEN_META)
def test_what_a_frame_says_of_itself_is_checked_and_named(change: dict[str, Any], key: str) -> None:
    with pytest.raises(MessageError, match=rf"^frame: {key}: "):
        Frame.from_bytes(payload(**change))


@pytest.mark.parametrize("shape", [(0, 1), (5,), (2, 2, 2), (SAMPLES_MAX + 1, 0)])
def test_a_frame_without_rows_or_with_too_many_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(MessageError, match=r"expected an array 'values' \(1 to 1000000, channels\), got \("):
        Frame.from_bytes(payload(np.zeros(shape)))
    with pytest.raises(MessageError, match="got None"):
        Frame.from_bytes(wire.encode({"samples": np.zeros((5, 1))}, {"t_ns": 0, "rate_hz": 1.0}))


def test_one_frame_with_a_wrong_rate_cannot_claim_hours() -> None:
    """It would be answered by as many lost windows, one after the other."""
    rows = 37
    with pytest.raises(MessageError, match=r"at most 3600 s in one frame, got 37 samples at 0.00999 Hz"):
        Frame.from_bytes(payload(np.zeros((rows, 1)), rate_hz=0.00999))
    assert len(Frame.from_bytes(payload(np.zeros((rows, 1)), rate_hz=(rows - 1) / DURATION_S_MAX)).values) == rows
    assert len(Frame.from_bytes(payload(np.zeros((1, 1)), rate_hz=1e-6)).values) == 1


@given(cut=st.integers(0, len(FRAME.to_bytes()) - 1))
def test_a_frame_that_was_cut_is_refused(cut: int) -> None:
    with pytest.raises(MessageError, match=r"^frame: "):
        Frame.from_bytes(FRAME.to_bytes()[:cut])


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(noise: bytes) -> None:
    with pytest.raises(MessageError, match=r"^frame: "):
        Frame.from_bytes(noise)


def test_values_come_in_the_unit_of_the_settings() -> None:
    two = source({"role": "load", "gain": 2.0, "bias": 1.0}, {"role": "heat"})
    block, _ = frames.read(two, Frame(META, np.array([[1.0, 5.0]])), 0, 0, {})
    block = to_units(two, block)
    np.testing.assert_array_equal(block.values, [[3.0, 5.0]])
    with pytest.raises(MessageError, match="a frame has 1 channels, the settings 2"):
        frames.read(two, Frame(META, np.array([[1.0]])), 0, 0, {})


def test_values_beyond_all_numbers_become_gaps_without_a_warning() -> None:
    loud = source({"role": "load", "gain": 1e10})
    values = np.array([[1e308], [np.inf], [np.nan], [1.0]])
    block = to_units(loud, frames.read(loud, Frame(META, values), 0, 0, {})[0])
    assert np.isfinite(block.values).ravel().tolist() == [False, False, False, True]


def test_a_node_that_counts_from_its_start_keeps_its_place_until_it_restarts() -> None:
    """The network's delay of later frames must not bend a node's time; and old boots must not fill the memory."""

    def read(t_ns: int, boot: str, now_ns: int, offsets: frames.Offsets) -> tuple[int, frames.Offsets]:
        meta = FrameMeta(t_ns=t_ns, rate_hz=10.0, clock="boot", boot=boot)
        block, after = frames.read(source(), Frame(meta, np.zeros((5, 1))), now_ns, 0, offsets)
        return block.t_ns, after

    half_s = NS // 2  # what five rows last
    first, offsets = read(0, "a", 1_000 * NS, {})
    assert first == 1_000 * NS - half_s
    second, offsets = read(half_s, "a", 1_005 * NS, offsets)
    assert second == first + half_s
    again, offsets = read(0, "b", 2_000 * NS, offsets)
    assert again == 2_000 * NS - half_s
    for number in range(100):
        _, offsets = read(0, f"boot-{number}", 0, offsets)
    assert len(offsets) == 1


CLIMATE = Source.model_validate(
    {
        "name": "climate",
        "kind": "json",
        "topic": "zigbee2mqtt/deck",
        "time_path": "at",
        "channels": [{"role": "heat", "path": "air.temperature"}, {"role": "wet", "path": "wet", "gain": 2.0}],
    }
)


@pytest.mark.parametrize(
    ("at", "t_ns"),
    [
        ('"2026-11-21T10:00:00Z"', 1_795_255_200 * NS),
        ('"2026-11-21T12:00:00+02:00"', 1_795_255_200 * NS),
        ("12", 12 * NS),
    ],
)
def test_json_values_are_found_by_path(at: str, t_ns: int) -> None:
    block = json_values.read(CLIMATE, f'{{"air": {{"temperature": 21.5}}, "wet": true, "at": {at}}}'.encode(), 5)
    assert (block.stream, block.t_ns, block.rate_hz, block.values.tolist()) == ("climate", t_ns, 0.0, [[21.5, 1.0]])
    assert to_units(CLIMATE, block).values.tolist() == [[21.5, 2.0]]


BROKEN_JSON = [
    ("", "payload is not JSON"),
    ("\xff", "payload is not JSON"),
    ("[" * 100_000, "payload is not JSON"),
    ("[]", "no value at 'air.temperature'"),
    ('{"air": 1}', "no value at 'air.temperature'"),
    ('{"air": {"temperature": "warm"}}', "expected a number at 'air.temperature', got 'warm'"),
    ('{"air": {"temperature": null}}', "expected a number at 'air.temperature', got 'None'"),
    ('{"air": {"temperature": 1' + "0" * 400 + "}}", "expected a number at 'air.temperature'"),
    ('{"air": {"temperature": 1}, "wet": 1}', "no value at 'at'"),
    ('{"air": {"temperature": 1}, "wet": 1, "at": "noon"}', "expected ISO 8601 or Unix seconds at 'at', got 'noon'"),
    ('{"air": {"temperature": 1}, "wet": 1, "at": NaN}', "expected ISO 8601 or Unix seconds"),
    ('{"air": {"temperature": 1}, "wet": 1, "at": 1e300}', "expected ISO 8601 or Unix seconds"),
    ('{"air": {"temperature": 1}, "wet": 1, "at": 1' + "0" * 400 + "}", "expected ISO 8601 or Unix seconds"),
    ('{"air": {"temperature": 1}, "wet": 1, "at": {}}', "expected ISO 8601 or Unix seconds"),
]


@pytest.mark.parametrize(("text", "reason"), BROKEN_JSON, ids=[str(index) for index in range(len(BROKEN_JSON))])
def test_json_that_does_not_fit_the_settings_is_refused_with_the_path(text: str, reason: str) -> None:
    with pytest.raises(MessageError, match=f"^source climate: {reason}"):
        json_values.read(CLIMATE, text.encode("latin-1"), 0)


def test_a_bare_number_is_read() -> None:
    bare = Source.model_validate(
        {"name": "esp", "kind": "json", "topic": "esp/heat", "channels": [{"role": "heat", "path": "."}]}
    )
    block = json_values.read(bare, b"21.5", 7)
    assert (block.t_ns, block.values.tolist()) == (7, [[21.5]])
