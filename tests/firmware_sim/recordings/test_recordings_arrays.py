"""Recordings in bags of named arrays (.npz, .mat): which array is taken for what."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.io

from fedgate.firmware_sim.recordings import DAMAGED, HEALTHY, UNKNOWN, Channel, ChoiceError, ReadOptions, State, read
from fedgate.models.time_units import NS
from tests.support import recording_samples as samples
from tests.support.recording_samples import VALUES, read_bytes


def test_counts_become_g(tmp_path: Path) -> None:
    counts = np.array([[5400, -2700], [0, 1]], dtype=np.int16)
    data = samples.npz_bytes(acc_counts=counts, counts_per_g=5400.0, fs=100.0, nodes=np.array(["p1", "p2"]))
    result = read_bytes(tmp_path, "a.npz", data)
    assert result.channels == (Channel("p1", "g"), Channel("p2", "g"))
    np.testing.assert_allclose(result.values, counts / 5400, rtol=1e-15)


def test_rates_of_channels_must_agree_or_be_chosen(tmp_path: Path) -> None:
    data = samples.npz_bytes(acc=VALUES, scale=np.array([2.0, 3.0]), fs=np.array([100.0, 100.001]))
    with pytest.raises(ChoiceError, match=r"array fs: channels of different rates \(100, 100.001 Hz\)"):
        read_bytes(tmp_path, "a.npz", data)
    result = read_bytes(tmp_path, "a.npz", data, columns=("acc_2",))
    assert result.rate_hz == 100.001
    np.testing.assert_array_equal(result.values, VALUES[:, 1:] * 3)


def test_a_block_of_a_three_dimensional_array_is_chosen_with_its_scale(tmp_path: Path) -> None:
    acc = np.arange(2 * 5 * 3, dtype=np.int16).reshape(2, 5, 3)
    scale = np.array([[1.0, 10.0, 100.0], [2.0, 20.0, 200.0]])
    data = samples.npz_bytes(
        acc=acc, scale=scale, fs=100.0, state=np.int16(3), label=np.int16(1), state_name="pier down"
    )
    with pytest.raises(ChoiceError, match=r"array acc: shape \(2, 5, 3\), several blocks .*set array_index, 0 to 1"):
        read_bytes(tmp_path, "a.npz", data)
    result = read_bytes(tmp_path, "a.npz", data, array_index=1)
    np.testing.assert_array_equal(result.values, acc[1] * scale[1])
    assert result.states == (State(0.0, 0.05, DAMAGED, "pier down"),)
    with pytest.raises(ChoiceError, match="array_index 2 of 2 blocks"):
        read_bytes(tmp_path, "a.npz", data, array_index=2)


def test_the_only_matrix_is_the_data_and_t_the_clock(tmp_path: Path) -> None:
    t = 1_377_298_980 + 60 * np.arange(40)
    result = read_bytes(tmp_path, "a.npz", samples.npz_bytes(t=t, x=VALUES, channels=np.array(["co2_ppm", "pir"])))
    assert result.rate_hz == pytest.approx(1 / 60) and result.t0_ns == 1_377_298_980 * NS
    assert result.channel_names == ("co2_ppm", "pir")
    two = samples.npz_bytes(x=VALUES, y=VALUES, fs=1.0)
    with pytest.raises(ChoiceError, match=r"2 arrays may be the samples; set array to one of 'x float64\[40, 2\]'"):
        read_bytes(tmp_path, "b.npz", two)
    np.testing.assert_array_equal(read_bytes(tmp_path, "b.npz", two, array="y").values, VALUES)


@pytest.mark.parametrize("packed", [False, True])
def test_matlab_rows_columns_and_texts(tmp_path: Path, packed: bool) -> None:
    names = np.array(["DE [g]"], dtype=object)
    for vector in (VALUES[:1, :].repeat(20, axis=1), VALUES[:, :1]):
        data = samples.mat_bytes(packed=packed, X097_DE=vector, fs=48000, channels=names, about="bearing", s={"x": 1})
        result = read_bytes(tmp_path, "a.mat", data)
        assert result.values.shape == (40, 1) and result.channels == (Channel("DE", "g"),)
        assert "left unread, as neither numbers nor texts: s" in result.found
        np.testing.assert_array_equal(result.values[:, 0], vector.ravel())


def test_matlab_agrees_with_scipy_for_every_number_type(tmp_path: Path) -> None:
    for kind in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64"):
        path = tmp_path / f"{kind}.mat"
        path.write_bytes(samples.mat_bytes(data=(VALUES * 50).astype(np.float64).round().astype("i8").astype(kind)))
        expected = scipy.io.loadmat(path)["data"].astype(np.float64)
        np.testing.assert_array_equal(read(path, ReadOptions(rate_hz=1)).values, expected)


def test_labels_of_several_classes_and_unknown(tmp_path: Path) -> None:
    label = np.array([-1, -1, 0, 0, 2, 2])
    result = read_bytes(tmp_path, "a.npz", samples.npz_bytes(data=np.zeros((6, 1)), fs=1.0, label=label))
    assert [(s.start_s, s.label) for s in result.states] == [(0, UNKNOWN), (2, HEALTHY), (4, DAMAGED)]
    assert result.states[-1].text == "damaged (class 2)"
