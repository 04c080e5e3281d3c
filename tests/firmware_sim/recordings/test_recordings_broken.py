"""Broken recordings: whatever the bytes, they are read, or refused with what is wrong, where, and what to do."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgate.firmware_sim.recordings import (
    ChoiceError,
    DamagedError,
    FileAccessError,
    ReadOptions,
    RecordingError,
    UnknownFormatError,
    describe,
    read,
    render,
)
from fedgate.firmware_sim.recordings.readers.formats import SUFFIXES
from tests.support import recording_samples as samples
from tests.support.recording_samples import VALUES, read_bytes

CSV = samples.csv_bytes()
SOUND = samples.sound_files()
WAV = samples.wav_bytes(VALUES)
MATRIX = samples.mat_bytes(data=VALUES, fs=1.0)


class Plant:
    """What a pickle in an array would run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("planted",)


def with_cell(line: int, cell: str) -> bytes:
    """The sample table with another first channel in one line."""
    lines = CSV.decode().splitlines(keepends=True)
    cells = lines[line - 1].split(",")
    lines[line - 1] = ",".join([cells[0], cell, *cells[2:]])
    return "".join(lines).encode()


def changed(data: bytes, at: int, byte: int) -> bytes:
    return data[:at] + bytes([byte]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("name", "data", "place", "problem"),
    [
        ("a.csv", b"", "line 1", "no rows"),
        ("a.csv", b"t,x\n", "line 1", "a header without rows"),
        ("a.csv", with_cell(7, "x1"), "line 7, column 'force'", "found 'x1', expected a number"),
        ("a.csv", with_cell(9, "1,2"), "line 9", "5 cells, expected 4"),
        ("a.csv", CSV.replace(b"2022-04-11 08:36:26.00", b"2022-04-31 08:36:26.00"), "line 6, column 'time'", "found"),
        ("a.csv", CSV.replace(b"force", b"strain"), "channel names", "'strain' occurs more than once"),
        ("a.csv", CSV.replace(b",1\n", b",0.5\n"), "data row 26", "label 0.5"),
        (
            "a.csv",
            b"t;x\n" + b"0;1,5\n" * 100 + b"1;1.500\n",
            "line 102, column 'x'",
            "found '1.500', expected a number",
        ),
        ("a.csv", CSV + b'"2022', "line 42", "cannot be split"),
        ("a.csv", b"t,x\n0,\x811\n", "byte 6", "cannot be decoded as cp1252"),
        ("a.csv.gz", b"PK" + CSV, "gzip stream", "cannot be unpacked"),
        ("a.csv.gz", gzip.compress(CSV)[:-9], "byte", "the gzip stream ends before its end mark"),
        ("a.zip", samples.zip_bytes(a_csv=CSV)[:-30], "zip archive", "cannot be unpacked"),
        ("a.zip", samples.zip_bytes(readme=CSV), "zip archive", "no recording among 'readme'"),
        ("a.lvm", samples.lvm_bytes()[:200], "header", "1 lines"),
        ("a.lvm", CSV, "line 1", "found 'time,force"),
        ("a.lvm", samples.lvm_bytes().replace(b"04/11", b"04/31"), "header, Date and Time", "found '2022/04/31"),
        ("a.npz", CSV, "byte 0", "found b'time'"),
        ("a.npz", samples.npz_bytes(data=VALUES)[:-40], "archive", "cannot be read"),
        ("a.npz", samples.npz_bytes(data=np.array([Plant()], dtype=object)), "array data", "Object arrays"),
        ("a.npz", samples.npz_bytes(fs=1.0), "arrays", "no array looks like samples"),
        ("a.npz", samples.npz_bytes(data=VALUES), "arrays", "no sampling rate among"),
        ("a.npz", samples.npz_bytes(data=VALUES.T, fs=1.0), "array data", r"shape \(2, 40\), expected"),
        ("a.npz", samples.npz_bytes(data=VALUES, fs=1.0, channels=["a"]), "array channels", "1 names for 2 channels"),
        ("a.npz", samples.npz_bytes(data=VALUES, fs=1.0, label=[0, 1]), "array label", "2 labels for 40 samples"),
        ("a.npz", samples.npz_bytes(data=VALUES, fs=1.0, t0=["2022-01-01", "2022-01-02"]), "array t0", "several start"),
        ("a.npz", samples.npz_bytes(data=VALUES, fs=-1.0), "sampling rate", "found -1.0 Hz"),
        ("a.mat", MATRIX[:300], "byte 128", "more than there are"),
        ("a.mat", changed(MATRIX, 160, 41), "variable at byte 128", "640 bytes for 82 numbers"),
        ("a.mat", changed(MATRIX, 176, 99), "variable at byte 128", r"numbers in elements of types \[99\]"),
        ("a.mat", b"MATLAB 7.3 MAT-file" + MATRIX[19:], "byte 0", "HDF5 inside.*-v7"),
        ("a.mat", CSV, "byte 0", "expected 'MATLAB 5.0 MAT-file'"),
        ("a.wav", WAV[:-8], f"byte {len(WAV) - 8}", f"header announces {len(WAV)} bytes"),
        ("a.wav", CSV, "byte 0", "expected RIFF"),
        ("a.mseed", b"", "byte 0", "empty"),
        ("a.mseed", CSV, "record at byte 0", "No miniSEED data"),
        (
            "a.mseed",
            samples.DATA.joinpath("testdata-3channel-signal.mseed2").read_bytes()[:20000],
            "byte 19968",
            "Incomp",
        ),
        ("a.mseed", samples.mseed_bytes("H_N_Z", "2022-01-01T00:00:00Z", 1, VALUES[:, 0])[:-1] + b"!", "byte 0", "CRC"),
        ("a.parquet", samples.parquet_sample()[:-100], "file", "cannot be read"),
        ("a.parquet", samples.parquet_bytes(a=[1.0]), "columns", "no column of time stamps"),
    ],
)
def test_a_broken_file_names_the_place(tmp_path: Path, name: str, data: bytes, place: str, problem: str) -> None:
    with pytest.raises(RecordingError, match=problem) as caught:
        read_bytes(tmp_path, name, data)
    assert place in caught.value.place
    assert str(caught.value).startswith(f"{tmp_path / name}") and caught.value.remedy in str(caught.value)
    assert not Path("planted").exists()


def test_a_missing_file_a_folder_and_an_unknown_ending(tmp_path: Path) -> None:
    for path in (tmp_path / "none.csv", tmp_path, Path("a\0.csv")):
        with pytest.raises(FileAccessError):
            read(path)
    with pytest.raises(UnknownFormatError, match=r"ending '.xls'; known endings: .csv, .tsv"):
        read_bytes(tmp_path, "a.xls", CSV)


@pytest.mark.parametrize("end", range(len(CSV) - 60, len(CSV)))
def test_a_table_cut_anywhere_in_its_last_lines(tmp_path: Path, end: int) -> None:
    whole_lines = CSV[:end].count(b"\n")
    kept = read_bytes(tmp_path, "a.csv", CSV[:end], allow_cut=True)
    np.testing.assert_array_equal(kept.values, VALUES[: whole_lines - 1])
    told = f"line {whole_lines + 1} has no line end: taken as cut and left out"
    assert (told in kept.found) == (not CSV[:end].endswith(b"\n"))
    packed = gzip.compress(CSV[:end])[:-4]
    assert len(read_bytes(tmp_path, "a.csv.gz", packed, allow_cut=True).values) == whole_lines - 1


def test_a_cut_line_is_named_and_the_way_out_too(tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match=r"line 41: 1 cells, expected 4; .* middle of this line: set allow_cut"):
        read_bytes(tmp_path, "a.csv", CSV[: CSV.rindex(b"\n", 0, -1) + 8])
    whole_but_unended = read_bytes(tmp_path, "a.csv", CSV[:-1])
    assert "the last line has no line end, so its last cell may be cut" in whole_but_unended.found


def test_infinite_values_count_as_missing(tmp_path: Path) -> None:
    result = read_bytes(tmp_path, "a.npz", samples.npz_bytes(data=np.array([[np.inf], [1.0], [-np.inf]]), fs=1.0))
    np.testing.assert_array_equal(result.values[:, 0], [np.nan, 1.0, np.nan])
    assert "2 infinite values set to NaN" in result.found


def test_a_choice_is_asked_for_where_it_is_possible(tmp_path: Path) -> None:
    twice = samples.zip_bytes(a_csv=CSV, b_csv=CSV)
    with pytest.raises(ChoiceError, match=r"2 recordings inside; set member to one of 'a.csv', 'b.csv'"):
        read_bytes(tmp_path, "a.zip", twice)
    assert read_bytes(tmp_path, "a.zip", twice, member="b.csv").name == "b"
    with pytest.raises(ChoiceError, match=r"no member 'c.csv'"):
        read_bytes(tmp_path, "a.zip", twice, member="c.csv")


# --- whatever the bytes -----------------------------------------------------------------------------------------------


def read_or_refuse(path: Path, options: ReadOptions) -> None:
    """The law: a recording that can be described, or a message with a remedy; anything else escapes and fails."""
    try:
        result = read(path, options)
    except RecordingError as error:
        assert error.problem and error.remedy and str(path) in str(error)
    else:
        assert result.values.shape == (len(result.values), len(result.channels)) and not np.isinf(result.values).any()
        render(describe(result))


@given(st.sampled_from([*SUFFIXES, ".csv.gz", ".zip", ".gz"]), st.binary(max_size=200), st.booleans())
def test_random_bytes(tmp_path_factory: pytest.TempPathFactory, ending: str, data: bytes, marked: bool) -> None:
    starts = {".npz": b"PK\x03\x04", ".zip": b"PK\x03\x04", ".mat": MATRIX[:128], ".wav": b"RIFF\x10\0\0\0WAVE"}
    path = tmp_path_factory.getbasetemp() / f"random{ending}"
    path.write_bytes((starts.get(ending, b"t,x\n") if marked else b"") + data)
    read_or_refuse(path, ReadOptions())


@given(st.sampled_from(SOUND), st.data())
def test_a_sound_file_with_some_bytes_changed(
    tmp_path_factory: pytest.TempPathFactory, sample: tuple[str, bytes], draw: st.DataObject
) -> None:
    ending, data = sample
    broken = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 3))):
        at = draw.draw(st.integers(0, len(broken)))
        gone = draw.draw(st.integers(0, 8))
        broken[at : at + gone] = draw.draw(st.binary(max_size=8))
    path = tmp_path_factory.getbasetemp() / f"broken{ending}"
    path.write_bytes(bytes(broken[: draw.draw(st.sampled_from([len(broken), len(broken) // 2]))]))
    read_or_refuse(path, ReadOptions())
