"""Recordings in tables of text (.csv, .tsv, .txt, .lvm) and Parquet: what is detected, and what may be declared."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgate.firmware_sim.recordings import DAMAGED, HEALTHY, UNKNOWN, Channel, ChoiceError, Recording, State
from fedgate.models.time_units import NS
from tests.support import recording_samples as samples
from tests.support.recording_samples import START_NS, VALUES, read_bytes

# Rates whose intervals are whole milliseconds, so that written times are exact.
RATES_HZ = (0.1, 1.0, 2.0, 4.0, 10.0, 50.0, 125.0, 1000.0)
CLOCKS = ("iso", "german", "unix_s", "unix_ms", "relative", "declared")


def read_text(folder: Path, text: str, name: str = "a.csv", **options: Any) -> Recording:
    return read_bytes(folder, name, text.encode(), **options)


# --- round trip -------------------------------------------------------------------------------------------------------


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Any]:
    """A table of numbers and everything that may vary in how it is written."""
    declared = draw(st.booleans())
    # A comma in a name is ambiguous in a file with semicolons, so it is only there where the delimiter is declared.
    alphabet = 'ab°µ -_/"#é' + (",;" if declared else "")
    names = draw(st.lists(st.text(alphabet, max_size=6), min_size=1, max_size=4, unique_by=str.strip))
    cell = st.floats(allow_nan=False, allow_infinity=False) | st.just(float("nan")) | st.integers(-9, 9).map(float)
    rows = draw(st.lists(st.tuples(*[cell for _ in names]), min_size=2, max_size=130))
    return {
        "names": [f"x{i}{name}".strip() for i, name in enumerate(names)],
        "units": draw(st.lists(st.sampled_from(["", "kN", "um/m", "°C", "m/s²"]), min_size=4, max_size=4)),
        "values": np.array(rows),
        "delimiter": draw(st.sampled_from([",", ";", "\t"])),
        "decimal": draw(st.sampled_from([".", ","])),
        "declared": declared,
        "rate_hz": draw(st.sampled_from(RATES_HZ)),
        "clock": draw(st.sampled_from(CLOCKS)),
        "bracket": draw(st.sampled_from(["{} [{}]", "{} ({})", "{}({})"])),
        "missing": draw(st.sampled_from(["", "NaN", "n/a", "-"])),
        "line_end": draw(st.sampled_from(["\n", "\r\n"])),
        "encoding": draw(st.sampled_from(["utf-8", "utf-8-sig", "cp1252", "utf-16"])),
        "packed": draw(st.booleans()),
    }


def time_cells(table: dict[str, Any]) -> list[str]:
    """Times of all rows as text, to the millisecond."""
    step_ms = round(1000 / table["rate_hz"])
    at_ms = [START_NS // 1_000_000 + i * step_ms for i in range(len(table["values"]))]
    if table["clock"] in ("iso", "german"):
        pattern = {"iso": "{2}-{1}-{0}T{3}", "german": "{0}.{1}.{2} {3}"}[table["clock"]]
        dates = [str(np.datetime64(ms, "ms")) for ms in at_ms]
        return [pattern.format(text[8:10], text[5:7], text[:4], text[11:]) for text in dates]
    if table["clock"] == "unix_ms":
        return [str(ms) for ms in at_ms]
    start_ms = 0 if table["clock"] == "relative" else START_NS // 1_000_000
    return [f"{(start_ms + i * step_ms) / 1000:.3f}".replace(".", table["decimal"]) for i in range(len(at_ms))]


def written(table: dict[str, Any]) -> bytes:
    """The table as text."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=table["delimiter"], lineterminator=table["line_end"])
    timed = table["clock"] != "declared"
    heads = [table["bracket"].format(n, u) if u else n for n, u in zip(table["names"], table["units"], strict=False)]
    writer.writerow((["Time"] if timed else []) + heads)
    for time, row in zip(time_cells(table), table["values"].tolist(), strict=True):
        cells = [table["missing"] if v != v else repr(v).replace(".", table["decimal"]) for v in row]
        writer.writerow(([time] if timed else []) + cells)
    data = text.getvalue().encode(table["encoding"], errors="strict")
    return gzip.compress(data) if table["packed"] else data


@pytest.mark.soak
@given(tables())
def test_a_written_table_reads_back(tmp_path_factory: pytest.TempPathFactory, table: dict[str, Any]) -> None:
    options: dict[str, Any] = (
        {"delimiter": table["delimiter"], "decimal": table["decimal"]} if table["declared"] else {}
    )
    if table["clock"] == "declared":
        options["rate_hz"] = table["rate_hz"]
    name = "a.csv.gz" if table["packed"] else "a.csv"
    result = read_bytes(tmp_path_factory.getbasetemp(), name, written(table), **options)
    units = table["units"][: len(table["names"])]
    assert result.channels == tuple(Channel(n, u) for n, u in zip(table["names"], units, strict=True))
    np.testing.assert_array_equal(result.values, table["values"])
    assert result.rate_hz == pytest.approx(table["rate_hz"], rel=1e-9)
    assert result.t0_ns == (None if table["clock"] in ("relative", "declared") else START_NS)
    missing = int(np.isnan(table["values"]).sum())
    assert any(f"{missing} of {table['values'].size} values missing" in said for said in result.found) == bool(missing)


# --- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "options"),
    [
        ("2022-04-11T08:36:25Z", "2022-04-11T08:36:25.5Z", {}),
        ("2022-04-11 10:36:25+02:00", "2022-04-11 10:36:25.500+02:00", {}),
        ("2022/04/11 08:36:25", "2022/04/11 08:36:25,5", {"delimiter": ";"}),
        ("1649666185000000000", "1649666185500000000", {}),
        ("1649666185000000", "1649666185500000", {}),
        ("1649666185000", "1649666185500", {}),
        ("04/11/2022 08:36:25.0", "04/11/2022 08:36:25.5", {"timestamp_format": "%m/%d/%Y %H:%M:%S.%f"}),
    ],
)
def test_forms_of_time(tmp_path: Path, first: str, second: str, options: dict[str, Any]) -> None:
    result = read_text(tmp_path, f"time;x\n{first};1\n{second};2\n", **options)
    assert result.t0_ns == START_NS and result.rate_hz == 2.0


def test_the_rate_is_the_mean_of_rounded_times_not_their_median(tmp_path: Path) -> None:
    rate_hz = 1651.612885
    rows = "".join(f"{i / rate_hz:.6f},0\n" for i in range(5000))
    assert read_text(tmp_path, f"X_Value,x\n{rows}").rate_hz == pytest.approx(rate_hz, rel=1e-6)


def test_gaps_jitter_and_steps_back_are_told(tmp_path: Path) -> None:
    at_s = [*np.arange(50) + 0.01 * (-1.0) ** np.arange(50), 60, 61, 61, 62]
    result = read_text(tmp_path, "t,x\n" + "".join(f"{t},1\n" for t in at_s))
    assert result.rate_hz == pytest.approx(1.0, rel=1e-2)
    said = "\n".join(result.found)
    assert "jitter 0.0196 s" in said
    assert "gaps in time, split there: 1, the longest of 11.01 s after row 50" in said
    assert "rows that do not advance in time: 1, the first after row 52" in said


def test_times_coarser_than_the_rows_give_rows_over_span(tmp_path: Path) -> None:
    rows = "".join(f"2022-04-11 08:36:{i // 10:02d},{i}\n" for i in range(401))
    assert read_text(tmp_path, f"time,x\n{rows}").rate_hz == pytest.approx(10.0)


def test_without_a_rate_there_is_no_recording(tmp_path: Path) -> None:
    with pytest.raises(ChoiceError, match="no column of time stamps, so no sampling rate; set rate_hz"):
        read_text(tmp_path, "x,y\n1,2\n")
    with pytest.raises(ChoiceError, match="the rows do not advance in time; set rate_hz"):
        read_text(tmp_path, "t,x\n5,2\n5,3\n")
    result = read_text(tmp_path, "t,x\n5,2\n7,3\n", rate_hz=10)
    assert result.rate_hz == 10 and "rate 10 Hz as declared; the time stamps give 0.5 Hz" in result.found


# --- columns ----------------------------------------------------------------------------------------------------------


def test_label_change_point_and_text_columns_are_no_channels(tmp_path: Path) -> None:
    lines = ["datetime;a;anomaly;changepoint;remark"]
    lines += [f"2020-03-09 10:14:3{i};{i};{float(i > 5)};{float(i == 6)};fine" for i in range(10)]
    result = read_text(tmp_path, "\n".join(lines) + "\n")
    assert result.channel_names == ("a",)
    assert result.states == (State(0, 6, HEALTHY, "healthy"), State(6, 10, DAMAGED, "damaged"))
    assert "1 change points marked, at 6 s" in result.found
    assert "left out, as they hold no numbers: 'remark'" in result.found


def test_declared_label_state_and_columns(tmp_path: Path) -> None:
    text = "t,a,b,truth,fault\n0,1,2,0,none\n1,3,4,1,leak\n2,5,6,1,stuck\n3,7,8,,?\n"
    result = read_text(tmp_path, text, label="truth", state="fault", columns=("b",), units={"b": "bar"})
    assert result.channels == (Channel("b", "bar"),) and result.values[:, 0].tolist() == [2, 4, 6, 8]
    assert [(s.label, s.text) for s in result.states] == [
        (HEALTHY, "none"),
        (DAMAGED, "leak"),
        (DAMAGED, "stuck"),
        (UNKNOWN, "?"),
    ]
    for wrong in ({"label": "c"}, {"columns": ("c",)}, {"units": {"c": "m"}}, {"timestamp": "c"}):
        with pytest.raises(ChoiceError, match=r"choose among .*'b'"):
            read_text(tmp_path, text, **wrong)


def test_header_forms(tmp_path: Path) -> None:
    closing = read_text(tmp_path, "Time (-),Air (°C),\n0,1\n1,2\n")
    assert closing.channels == (Channel("Air", "°C"),)
    row_numbers = read_text(tmp_path, '"date","a"\n"1","2015-02-02 14:19:00",3\n"2","2015-02-02 14:19:01",4\n')
    assert row_numbers.channel_names == ("a",) and row_numbers.values[:, 0].tolist() == [3, 4]
    none = read_text(tmp_path, "1.5;2\n3.5;4\n", rate_hz=1)
    assert none.channel_names == ("column_1", "column_2") and none.values.tolist() == [[1.5, 2], [3.5, 4]]
    below = read_text(tmp_path, "logger 7\nsite A;x\n\nt;a\n0;1\n1;2\n", header_line=4)
    assert below.channel_names == ("a",) and below.values[:, 0].tolist() == [1, 2]
    upper_case = read_text(tmp_path, "t,T\n0,20\n1,21\n")
    assert upper_case.channel_names == ("T",)


def test_an_option_that_would_do_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ChoiceError, match=r"member means nothing for .csv outside a zip"):
        read_bytes(tmp_path, "a.csv", samples.csv_bytes(), member="b.csv")
    with pytest.raises(ChoiceError, match=r"array, delimiter means nothing for .wav"):
        read_bytes(tmp_path, "a.wav", samples.wav_bytes(VALUES), delimiter=";", array="x")
    with pytest.raises(ChoiceError, match="array_index means nothing"):
        read_bytes(tmp_path, "a.wav", samples.wav_bytes(VALUES), array_index=0)
    with pytest.raises(ChoiceError, match="timestamp_format is set, but no column holds time"):
        read_text(tmp_path, "x,y\n1,2\n", rate_hz=1, timestamp_format="unix_s")


# --- LabVIEW and Parquet ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("x_columns", ["One", "No"])
def test_labview_text(tmp_path: Path, x_columns: str) -> None:
    result = read_bytes(tmp_path, "a.lvm", samples.lvm_bytes(x_columns))
    assert result.channels == (Channel("force", "kN"), Channel("strain", "um/m"))
    assert result.rate_hz == 4.0 and result.t0_ns == START_NS
    np.testing.assert_array_equal(result.values, VALUES)
    assert read_bytes(tmp_path, "a.lvm", samples.lvm_bytes(x_columns), rate_hz=5).rate_hz == 5.0


@pytest.mark.parametrize("resolution", ["s", "ms", "us", "ns"])
def test_parquet_time_stamps_of_any_resolution(tmp_path: Path, resolution: str) -> None:
    stamps = pyarrow.array((samples.times_ns()[::4] // NS).tolist(), pyarrow.int64())
    time = stamps.cast(pyarrow.timestamp("s", tz="Europe/Berlin")).cast(
        pyarrow.timestamp(resolution, tz="Europe/Berlin")
    )
    floats = pyarrow.array([None, *range(9)], pyarrow.float32())
    result = read_bytes(tmp_path, "a.parquet", samples.parquet_bytes(when=time, a=floats, note=["x"] * 10))
    assert result.t0_ns == START_NS and result.rate_hz == 1.0
    np.testing.assert_array_equal(result.values[:, 0], [np.nan, *range(9)])
    assert "left out, as they hold no numbers: 'note'" in result.found
