"""Recordings: what is read from sound files of every format, and what can be done with it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedgate.firmware_sim.recordings import (
    DAMAGED,
    HEALTHY,
    UNKNOWN,
    Channel,
    ChoiceError,
    DamagedError,
    FileAccessError,
    ReadOptions,
    Recording,
    State,
    describe,
    read,
    render,
    shipped,
    shipped_names,
)
from fedgate.models.time_units import NS
from tests.support import recording_samples as samples
from tests.support.recording_samples import DATA, RATE_HZ, START_NS, VALUES, read_bytes

STATES = (State(0.0, 6.25, HEALTHY, "healthy"), State(6.25, 10.0, DAMAGED, "damaged"))


def recording(values: Any, **others: Any) -> Recording:
    array = np.asarray(values, dtype=np.float64)
    channels = tuple(Channel(f"c{i}") for i in range(array.shape[1]))
    return Recording(**{"name": "r", "channels": channels, "rate_hz": 10.0, "values": array, **others})


@pytest.mark.parametrize(("ending", "data"), samples.sound_files())
def test_every_format_is_read_without_options(tmp_path: Path, ending: str, data: bytes) -> None:
    result = read_bytes(tmp_path, f"run{ending}", data)
    assert result.name == "run"
    assert result.values.dtype == np.float64 and result.values.flags.c_contiguous
    assert np.isfinite(result.values).all()
    assert result.found and all(sentence and not sentence.endswith(".") for sentence in result.found)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.csv", samples.csv_bytes()),
        ("a.tsv", samples.csv_bytes("\t", ",")),
        ("a.npz", samples.npz_bytes(**samples.labelled_arrays())),
        ("a.mat", samples.mat_bytes(**samples.labelled_arrays())),
        ("a.parquet", samples.parquet_sample()),
    ],
)
def test_the_same_recording_reads_the_same_from_every_format(tmp_path: Path, name: str, data: bytes) -> None:
    result = read_bytes(tmp_path, name, data)
    assert result.channels == (Channel("force", "kN"), Channel("strain", "um/m"))
    assert result.rate_hz == pytest.approx(RATE_HZ, rel=1e-12)
    assert result.t0_ns == START_NS
    np.testing.assert_array_equal(result.values, VALUES)
    assert result.states == STATES


# --- reference files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2", "3"])
def test_miniseed_reference_values(version: str) -> None:
    result = read(DATA / f"testdata-3channel-signal.mseed{version}")
    assert result.channel_names == ("IU.COLA.00.LH1", "IU.COLA.00.LH2", "IU.COLA.00.LHZ")
    assert result.values.shape == (4200, 3) and result.rate_hz == 1.0
    assert result.t0_ns == 1_267_253_400_069_539_000  # 2010-02-27T06:50:00.069539Z
    assert result.values.min(axis=0).tolist() == [-1872958, -1886795, -2121836]
    assert result.values.max(axis=0).tolist() == [1115294, 1692067, 1342348]


def test_zipped_csv_in_cp1252_with_german_dates() -> None:
    path = DATA / "munich_TemperatureData2022-04-11.zip"
    with pytest.raises(ChoiceError, match="10 recordings inside; set member to one of 'UniBw_2022-04-11_ref_load_01"):
        read(path)
    result = read(path, ReadOptions(member="UniBw_2022-04-11_ref_load_01.csv"))
    assert result.channels == (Channel("Air Temperature", "°C"),)
    assert result.t0_ns == int(np.datetime64("2022-04-11T08:36:25.984", "ns").astype(np.int64))
    assert result.values[0, 0] == 1.60000002384186 and result.values[-1, 0] == 2
    assert result.rate_hz == pytest.approx(1.0, abs=2e-4)
    assert "encoding cp1252" in result.found


def test_shipped_recordings() -> None:
    healthy, damaged = read(shipped("munich_bridge/ref_load_01")), read(shipped("munich_bridge/lowered_load_02"))
    assert healthy.channels == (Channel("FRC-01", "kN"), Channel("FRC-02", "kN"), Channel("DMS_CN", "um/m"))
    assert healthy.values.shape == damaged.values.shape == (72000, 3)
    assert healthy.rate_hz == 100 and healthy.length_s == 720
    assert [(s.start_s, s.end_s, s.label) for s in healthy.states] == [(0, 720, HEALTHY)]
    assert [s.text for s in damaged.states] == ["run after support lowering stage 02"]
    # As written upstream, where day and month are swapped.
    assert healthy.t0_ns == int(np.datetime64("2022-11-04T08:36:24.897", "ns").astype(np.int64))
    assert healthy.values[:, 0].min() > 233 and damaged.values[:, 0].max() < 203
    ambient = read(shipped("usc_footbridges/bridge_A_ambient"))
    assert ambient.rate_hz == pytest.approx(1651.6129) and ambient.values.shape == (72000, 3)
    assert ambient.channel_names == ("acc_1", "acc_2", "acc_3")
    assert np.abs(ambient.values).max() == pytest.approx(0.111029, abs=1e-6)


def test_every_shipped_recording_is_readable_and_has_a_notice() -> None:
    for name in shipped_names():
        read(shipped(name))
        notice = (shipped(name).parent / "NOTICE.md").read_text(encoding="utf-8")
        assert "Source" in notice and "commit" in notice and "Licence" in notice
    with pytest.raises(FileAccessError, match=r"'z24'; choose among munich_bridge/lowered_load_01"):
        shipped("z24")


# --- wav and miniSEED -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (np.array([-32768, 0, 16384], dtype=np.int16), [-1.0, 0.0, 0.5]),
        (np.array([-(2**31), 0, 2**30], dtype=np.int32), [-1.0, 0.0, 0.5]),
        (np.array([0, 128, 192], dtype=np.uint8), [-1.0, 0.0, 0.5]),
        (np.array([-1.5, 0.0, 0.5], dtype=np.float32), [-1.5, 0.0, 0.5]),
    ],
)
def test_wav_is_scaled_to_full_scale(tmp_path: Path, written: Any, expected: list[float]) -> None:
    result = read_bytes(tmp_path, "a.wav", samples.wav_bytes(written))
    assert result.values[:, 0].tolist() == expected and result.rate_hz == 800 and result.t0_ns is None
    assert f"{written.dtype} samples" in result.found[0]


def test_miniseed_gaps_and_late_starts_are_nan(tmp_path: Path) -> None:
    ramp = np.arange(10.0)
    early = samples.mseed_bytes("H_N_Z", "2022-04-11T00:00:00Z", 10, ramp)
    late = samples.mseed_bytes("H_N_Z", "2022-04-11T00:00:01.5Z", 10, ramp + 15)
    other = samples.mseed_bytes("H_N_E", "2022-04-11T00:00:00.48Z", 10, ramp)
    result = read_bytes(tmp_path, "a.mseed", late + early + other)
    assert result.channel_names == ("XX.TEST..HNE", "XX.TEST..HNZ")
    expected = np.full((25, 2), np.nan)
    expected[5:15, 0] = ramp
    expected[:10, 1], expected[15:, 1] = ramp, ramp + 15
    np.testing.assert_array_equal(result.values, expected)
    assert "20 samples missing in gaps, late starts or early ends, set to NaN" in result.found
    assert "segments moved by up to 0.20 samples onto one clock" in result.found


def test_miniseed_rates_must_agree_or_be_chosen(tmp_path: Path) -> None:
    slow = samples.mseed_bytes("L_N_Z", "2022-04-11T00:00:00Z", 1, np.arange(5))
    fast = samples.mseed_bytes("H_N_Z", "2022-04-11T00:00:00Z", 10, np.arange(50))
    with pytest.raises(ChoiceError, match=r"different rates: 'XX.TEST..HNZ 10 Hz', 'XX.TEST..LNZ 1 Hz'"):
        read_bytes(tmp_path, "a.mseed", slow + fast)
    assert read_bytes(tmp_path, "a.mseed", slow + fast, columns=("XX.TEST..LNZ",)).rate_hz == 1


def test_a_miniseed_record_of_another_century_does_not_fill_the_memory(tmp_path: Path) -> None:
    pieces = [samples.mseed_bytes("H_N_Z", f"{year}-01-01T00:00:00Z", 1000, np.arange(9)) for year in (1970, 2022)]
    with pytest.raises(DamagedError, match="a start time is wrong"):
        read_bytes(tmp_path, "a.mseed", b"".join(pieces))


# --- what can be done with a recording --------------------------------------------------------------------------------


def test_select_keeps_order_and_refuses_unknown_names() -> None:
    result = recording(np.arange(6).reshape(2, 3)).select(["c2", "c0"])
    assert result.channel_names == ("c2", "c0") and result.values.tolist() == [[2, 0], [5, 3]]
    for wrong in (["c3"], [], ["c0", "c0"]):
        with pytest.raises(ChoiceError, match="'c0', 'c1', 'c2'"):
            recording(np.zeros((2, 3))).select(wrong)


@given(st.lists(st.integers(1, 99), min_size=1, max_size=4, unique=True))
def test_cut_pieces_join_to_the_whole(borders: list[int]) -> None:
    states = (State(0.0, 3.7, HEALTHY, "a"), State(3.7, 10.0, UNKNOWN, "b"))
    whole = recording(np.arange(100.0)[:, None], t0_ns=5 * NS, states=states)
    edges = [0, *sorted(borders), 100]
    pieces = [whole.cut(a / 10, b / 10) for a, b in pairwise(edges)]
    np.testing.assert_array_equal(np.concatenate([piece.values for piece in pieces]), whole.values)
    for piece, first in zip(pieces, edges, strict=False):
        assert piece.t0_ns == 5 * NS + first * NS // 10
        assert all(state.start_s < state.end_s for state in piece.states)
        assert piece.states[0].start_s == 0 and piece.states[-1].end_s == pytest.approx(piece.length_s)
        for i in range(len(piece.values)):
            (now,) = (s.text for s in piece.states if s.start_s <= (i + 0.5) / 10 < s.end_s)
            assert now == ("a" if first + i < 37 else "b")


@pytest.mark.parametrize("span", [(-1, 2), (2, 2), (3, 2), (0, 10.2), (1.01, 1.02)])
def test_cut_refuses_a_piece_that_is_not_there(span: tuple[float, float]) -> None:
    with pytest.raises(ChoiceError, match="choose"):
        recording(np.zeros((100, 1))).cut(*span)


def test_an_inconsistent_recording_cannot_be_made() -> None:
    for wrong in ({"rate_hz": 0.0}, {"rate_hz": np.nan}, {"channels": (Channel("c0"),)}, {"channels": ()}):
        with pytest.raises(DamagedError):
            recording(np.zeros((3, 2)), **wrong)
    with pytest.raises(DamagedError, match="no data"):
        recording(np.zeros((0, 2)))
    with pytest.raises(DamagedError, match="'c' occurs more than once"):
        recording(np.zeros((3, 2)), channels=(Channel("c"), Channel("c")))


def test_options_are_checked() -> None:
    for wrong in ({"rate_hz": 0}, {"delimiter": "|"}, {"encoding": "no-such"}, {"timestamp_format": "iso"}, {"x": 1}):
        with pytest.raises(ValidationError):
            ReadOptions.model_validate(wrong)


# --- info -------------------------------------------------------------------------------------------------------------


def test_describe_is_json_and_leaves_missing_samples_out() -> None:
    result = recording([[1.0, np.nan], [2.0, np.nan], [np.nan, np.nan]], t0_ns=START_NS, states=STATES, found=("x",))
    described = json.loads(json.dumps(describe(result), allow_nan=False))
    assert described["channels"][0] == {"name": "c0", "unit": "", "min": 1, "max": 2, "mean": 1.5, "missing": 1}
    assert described["channels"][1] == {"name": "c1", "unit": "", "min": None, "max": None, "mean": None, "missing": 3}
    assert described["start"] == "2022-04-11T08:36:25.000000000Z" and described["length_s"] == pytest.approx(0.3)
    page = render(described)
    assert all(word in page for word in ("c0", "1.5", "healthy", "damaged", "- x", "3 samples at 10 Hz"))
