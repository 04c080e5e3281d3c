"""A clip as a file: the readers of the simulator find the very samples in it, in their unit and at their time."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedgate.cloud_aggregator.samples.clip_files import (
    ClipFileError,
    find_source,
    format_time,
    join_pieces,
    write_csv,
    write_mseed,
)
from fedgate.config.protocol.samples import (
    ClipChannel,
    ClipMeta,
    ClipSource,
    Piece,
    decode_clip,
    encode_clip,
)
from fedgate.config.settings.extras import advise_install
from fedgate.firmware_sim.recordings import read
from fedgate.firmware_sim.recordings.recording import Recording
from fedgate.models.arrays import Array
from fedgate.models.time_units import NS
from tests.support.calls import count_calls
from tests.support.clip_samples import RATE_HZ, make_clip, make_pieces
from tests.support.sites import T0_NS

TWO = (ClipChannel(name="north-pier.vertical", unit="mm/s"), ClipChannel(name="b", unit="V", gain=0.5))
WRITERS = {".csv": write_csv, ".mseed": write_mseed}
RNG = np.random.default_rng(3)
KINDS: dict[str, Array] = {
    "float32": RNG.normal(size=(60, 2)).astype(np.float32),
    "float64": RNG.normal(size=(60, 2)),
    "float16": RNG.normal(size=(60, 2)).astype(np.float16),
    "int32": RNG.integers(-(2**31) + 1, 2**31, (60, 2)).astype(np.int32),
    "int8": RNG.integers(-128, 128, (60, 2)).astype(np.int8),
    "int64": RNG.integers(-(2**52), 2**52, (60, 2)),
}


def written(tmp_path: Path, ending: str, *pieces: Piece, channels: tuple[ClipChannel, ...] = TWO) -> Recording:
    clip = decode_clip(encode_clip(make_clip(*pieces, channels=channels)), 10**7)
    path = tmp_path / f"clip{ending}"
    path.write_bytes(WRITERS[ending](*find_source(clip, None)))
    return read(path)


@pytest.mark.parametrize("ending", WRITERS)
@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_the_same_behind_a_file(kind: str, ending: str, tmp_path: Path) -> None:
    values = KINDS[kind]
    recording = written(tmp_path, ending, *make_pieces(values, 0.0, 1.0, 2.0))
    names = [channel.name for channel in TWO]
    found = recording.select(names).values
    np.testing.assert_array_equal(found, values.astype(np.float64))
    assert recording.t0_ns == T0_NS and recording.rate_hz == pytest.approx(RATE_HZ)


def test_a_unit_stands_in_a_table_where_the_values_are_in_it(tmp_path: Path) -> None:
    recording = written(tmp_path, ".csv", *make_pieces(KINDS["float32"], 0.0))
    assert [(one.name, one.unit) for one in recording.channels] == [("north-pier.vertical", "mm/s"), ("b", "raw")]


def test_unit_gain_and_bias_stand_in_an_extra_header_of_mseed() -> None:
    from pymseed import MS3Record

    body = write_mseed(*find_source(make_clip(*make_pieces(KINDS["float32"], 0.0), channels=TWO), None))
    found = {record.sourceid: json.loads(record.extra)["fedgate"] for record in MS3Record.from_buffer(body)}
    assert found == {
        "north-pier.vertical": {"unit": "mm/s", "gain": 1.0, "bias": 0.0},
        "b": {"unit": "V", "gain": 0.5, "bias": 0.0},
    }


@pytest.mark.parametrize("ending", WRITERS)
def test_a_gap_stays_a_gap(ending: str, tmp_path: Path) -> None:
    values = KINDS["float32"]
    recording = written(tmp_path, ending, *make_pieces(values, 0.0, 1.0, 5.0))
    assert recording.length_s == pytest.approx(6.0)
    found = recording.values[~np.isnan(recording.values).all(axis=1)]
    np.testing.assert_array_equal(found[:, :1] if ending == ".csv" else found[:, 1:], values[:, :1])


def test_what_is_no_number_is_empty_in_a_table_and_stays_in_mseed(tmp_path: Path) -> None:
    values = KINDS["float64"].copy()
    values[7, 0] = np.nan
    for ending in WRITERS:
        found = written(tmp_path, ending, *make_pieces(values, 0.0)).select(["north-pier.vertical"]).values
        np.testing.assert_array_equal(found[:, 0], values[:, 0])


@given(hnp.arrays(np.float64, (4, 1), elements=st.floats(allow_nan=False, allow_infinity=False)))
def test_every_number_reads_back_from_its_text(values: Array) -> None:
    clip = make_clip(Piece(T0_NS, 1.0, values))
    lines = write_csv(*find_source(clip, None)).decode().splitlines()[1:]
    assert [float(line.split(",")[1]) for line in lines] == values[:, 0].tolist()


def test_pieces_are_joined_only_where_they_follow_one_another() -> None:
    values = np.zeros((60, 1), np.float32)
    assert [len(one.values) for one in join_pieces(make_pieces(values, 0.0, 1.0, 2.0))] == [60]
    assert [len(one.values) for one in join_pieces(make_pieces(values, 0.0, 1.004, 2.004))] == [60]
    assert [len(one.values) for one in join_pieces(make_pieces(values, 0.0, 1.01, 2.01))] == [20, 40]
    assert [len(one.values) for one in join_pieces(make_pieces(values, 1.0, 0.0, 1.0))] == [20, 40]
    faster = Piece(T0_NS + NS, 40.0, values)
    assert len(join_pieces((*make_pieces(values, 0.0), faster))) == 2


def test_many_pieces_are_joined_in_as_many_steps() -> None:
    steps = []
    for count in (250, 1_000):
        pieces = [Piece(T0_NS + at * NS, 1.0, np.zeros((1, 1))) for at in range(count)]
        assert len(join_pieces(pieces)) == 1
        steps.append(count_calls(partial(join_pieces, pieces)))
    assert steps[1] < 5 * steps[0]


def test_readings_of_no_steady_rate_are_a_table_alone(tmp_path: Path) -> None:
    readings = [Piece(T0_NS + at * NS, 0.0, np.array([[float(at)]])) for at in (0, 10, 21)]
    clip = make_clip(*readings)
    assert write_csv(*find_source(clip, None)).decode().splitlines()[2] == f"{format_time(T0_NS + 10 * NS)},10.0"
    with pytest.raises(ClipFileError, match="at no steady rate, which miniSEED cannot hold; write CSV"):
        write_mseed(*find_source(clip, None))


def test_whole_numbers_that_no_encoding_holds_are_refused() -> None:
    clip = make_clip(Piece(T0_NS, 1.0, np.array([[2**60]])))
    with pytest.raises(ClipFileError, match="beyond what miniSEED holds exactly"):
        write_mseed(*find_source(clip, None))


def test_of_several_sources_one_is_named() -> None:
    sources = tuple(ClipSource(name=name, channels=(ClipChannel(name=name),)) for name in ("deck", "air"))
    meta = make_clip().meta.model_dump() | {"sources": sources}
    clip = make_clip()._replace(meta=ClipMeta(**meta), pieces=(make_pieces(np.zeros((2, 1)), 0.0), ()))
    assert find_source(clip, "deck")[0].name == "deck"
    for name, why in ((None, "name one"), ("x", "expected one of deck, air"), ("air", "sent nothing")):
        with pytest.raises(ClipFileError, match=why):
            find_source(clip, name)


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymseed", None)
    with pytest.raises(ModuleNotFoundError) as caught:
        write_mseed(*find_source(make_clip(Piece(T0_NS, 1.0, np.zeros((1, 1)))), None))
    assert "extra 'mseed'" in advise_install(caught.value.name)


def test_times_are_told_to_the_nanosecond() -> None:
    assert format_time(1_800_000_000_123_456_789) == "2027-01-15T08:00:00.123456789Z"
    assert format_time(-1) == "1969-12-31T23:59:59.999999999Z"
