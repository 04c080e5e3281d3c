"""Windows of bridges and bearings: of which recording each is, what is measured of it, and what is left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedgate.firmware_sim.engine.spec import StudyError
from fedgate.firmware_sim.recordings import shipped
from fedgate.firmware_sim.studies.datasets.series.bridges import DAMAGED, HEALTHY, Spectrum, load
from fedgate.models.features.spec import FeatureSpec, extract_many

SPECTRUM = Spectrum(window_s=20.48, low_hz=2.0, high_hz=20.0, segment_s=2.56, overlap=2)
RATE_HZ, WINDOW = 100.0, 2048


@pytest.mark.soak
def test_windows_of_a_bridge_are_of_its_states_and_setups_and_healthy_ones_overlap(tiny: Path) -> None:
    bridge = load("z24", tiny / "streams" / "z24_bridge", SPECTRUM)
    states = dict.fromkeys(("01", "02"), HEALTHY) | dict.fromkeys(("05", "17"), DAMAGED)
    assert bridge.apart.x.shape[:2] == (4 * 5 * 10, len(bridge.sensors))  # states, setups, windows of 20,480 samples
    assert bridge.fine.x.shape[:2] == (2 * 5 * 19, len(bridge.sensors))
    assert {*zip(bridge.apart.state.tolist(), bridge.apart.label.tolist(), strict=True)} == {*states.items()}
    assert {*bridge.fine.state.tolist()} == {"01", "02"} and {*bridge.fine.label.tolist()} == {HEALTHY}
    assert {*bridge.apart.setup.tolist()} == {*bridge.fine.setup.tolist()} == {1, 2, 3, 4, 5}
    for windows, step in ((bridge.apart, 0.1), (bridge.fine, 0.05)):
        np.testing.assert_allclose(windows.end - windows.start, 0.1)
        np.testing.assert_allclose(windows.start[:3], [0.0, step, 2.0 * step])
        assert windows.start.min() == 0.0 and windows.end.max() == 1.0


@pytest.mark.soak
@pytest.mark.parametrize("levels", [False, True])
def test_each_sensor_is_measured_by_itself_in_its_unit(tiny: Path, levels: bool) -> None:
    folder = tiny / "streams" / "z24_bridge"
    bridge = load("z24", folder, SPECTRUM.model_copy(update={"levels": levels}))
    with np.load(folder / "state05.npz") as file:
        acc, scale, setups = file["acc"], file["scale"], file["setups"].tolist()
    steps = [{"kind": "level"}, {"kind": "deviation"}] if levels else []
    welch = {"kind": "welch", "segment_s": 2.56, "low_hz": 2.0, "high_hz": 20.0, "log": True, "normalise": True}
    given = {"rate_hz": RATE_HZ, "window_s": 20.48, "hop_s": 20.48, "channels": ["one"], "steps": [*steps, welch]}
    spec = FeatureSpec.model_validate(given)
    rows = np.flatnonzero((bridge.apart.state == "05") & (bridge.apart.setup == 4))
    for window, sensor in ((0, 0), (3, 2), (9, 1)):
        values = (acc[setups.index(4)] * scale[setups.index(4)])[window * WINDOW : (window + 1) * WINDOW, sensor]
        wanted = extract_many(spec, np.asarray(values)[None, :, None])[0]
        np.testing.assert_allclose(bridge.apart.x[rows[window], sensor], wanted, rtol=1e-6)


def test_a_healthy_recording_without_setups_is_cut_in_time_and_damage_trains_nothing(tiny: Path) -> None:
    spectrum = Spectrum(window_s=0.04, low_hz=200.0, high_hz=20_000.0, segment_s=0.01)
    bridge = load("cwru", tiny / "streams" / "cwru_bearing", spectrum)
    assert {*bridge.fine.setup[bridge.fine.label == HEALTHY].tolist()} == {1, 2}
    assert {*bridge.apart.setup[bridge.apart.label == DAMAGED].tolist()} == {2}
    trained = int((bridge.apart.setup == 1).sum())
    assert trained == int(0.6 * 24_000) // 1_920 and int((bridge.apart.state == "normal").sum()) == trained + 5
    assert len({*bridge.apart.state.tolist()}) > 1


def test_the_shipped_recordings_need_no_folder() -> None:
    spectrum = Spectrum(window_s=10.0, low_hz=0.5, high_hz=20.0, segment_s=2.0, levels=True)
    bridge = load("munich", Path("nowhere"), spectrum)
    with np.load(shipped("munich_bridge/ref_load_01")) as file:
        assert bridge.sensors == tuple(map(str, file["channels"]))
        level = file["data"][: round(10.0 * float(file["fs"])), 0].mean()
    assert bridge.apart.state[0] == "ref_load_01" and bridge.apart.x[0, 0, 0] == pytest.approx(level, rel=1e-5)
    assert {*bridge.apart.state.tolist()} == {"ref_load_01", "lowered_load_01", "lowered_load_02"}


@pytest.mark.parametrize(("name", "words"), [("z24", "the Z24 recordings"), ("cwru", "the CWRU recordings")])
def test_missing_recordings_are_named(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(StudyError, match=f"{tmp_path}: no .* there; expected {words}"):
        load("z24" if name == "z24" else "cwru", tmp_path, SPECTRUM)


def test_a_file_of_another_layout_and_a_window_longer_than_all_are_named(tiny: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "state01.npz", acc=np.zeros((1, 10, 3)))
    with pytest.raises(StudyError, match=r"state01\.npz: 'scale' is missing; found acc"):
        load("z24", tmp_path, SPECTRUM)
    long = SPECTRUM.model_copy(update={"window_s": 400.0})
    with pytest.raises(StudyError, match="no recording holds a window of 400 s; choose a shorter one"):
        load("z24", tiny / "streams" / "z24_bridge", long)
