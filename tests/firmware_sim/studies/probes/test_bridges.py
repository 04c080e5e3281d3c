"""The probe of bridges: gateways see their own windows, what is tested chooses nothing, figures are what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from fedgate.firmware_sim import metrics
from fedgate.firmware_sim.engine.spec import StudyError
from fedgate.firmware_sim.evaluate.methods import score_method
from fedgate.firmware_sim.studies.datasets.series.bridges import HEALTHY, Bridge, Spectrum, load
from fedgate.firmware_sim.studies.probes.bridges import (
    ALARM_Z,
    BridgeMethod,
    Case,
    Levels,
    Scored,
    Task,
    View,
    _best_level,
    _figures,
    calibrated,
    fleet,
    measure,
    task,
)

SPECTRUM = Spectrum(window_s=20.48, low_hz=2.0, high_hz=20.0, segment_s=2.56, overlap=2)
SUBSPACE = BridgeMethod(algorithm="federated-subspace", settings={"components": 4})
CASE: dict[str, Any] = {
    "data_set": "z24",
    "folder": "streams/z24_bridge",
    "view": "sensors",
    "method": SUBSPACE,
    "spectrum": SPECTRUM,
    "train_setups": [1, 2, 3],
    "test_setups": [4, 5],
}


@pytest.fixture(scope="module")
def data(tiny: Path) -> Path:
    return tiny


@pytest.fixture(scope="module")
def bridge(data: Path) -> Bridge:
    return load("z24", data / "streams" / "z24_bridge", SPECTRUM)


def case(**given: Any) -> Case:
    return Case.model_validate({**CASE, **given})


def test_views_give_gateways_their_own_windows(bridge: Bridge) -> None:
    count, features = len(bridge.sensors), bridge.fine.x.shape[2]
    views: dict[View, dict[str, tuple[list[int], list[int]]]] = {  # by gateway: setups that train, sensors
        "sensors": {name: ([1, 3], [index]) for index, name in enumerate(bridge.sensors)},
        "setups": {f"setup {setup}": ([setup], list(range(count))) for setup in (1, 3)},
        "sensor x setup": {
            f"{name}, setup {setup}": ([setup], [index])
            for setup in (1, 3)
            for index, name in enumerate(bridge.sensors)
        },
    }
    tested = bridge.apart.setup == 4
    for view, gateways in views.items():
        split = task(bridge, view, [1, 3], [4])
        assert list(split.train) == list(split.test) == list(gateways)
        for name, (setups, sensors) in gateways.items():
            trained = np.isin(bridge.fine.setup, setups)
            wanted = bridge.fine.x[trained][:, sensors].reshape(-1, len(sensors) * features)
            np.testing.assert_array_equal(split.train[name], wanted)
            wanted = bridge.apart.x[tested][:, sensors].reshape(-1, len(sensors) * features)
            np.testing.assert_array_equal(split.test[name], wanted)
            assert not (split.early[name] & split.held[name]).any()
            assert (
                bridge.fine.end[trained][split.early[name]].max() <= bridge.fine.start[trained][split.held[name]].min()
            )
        np.testing.assert_array_equal(split.label, bridge.apart.label[tested])
        np.testing.assert_array_equal(split.state, bridge.apart.state[tested])


def test_what_is_tested_calibrates_nothing(bridge: Bridge) -> None:
    split = task(bridge, "sensors", [1, 2], [4])
    whole = calibrated(SUBSPACE, split, 0)
    keep = split.label == HEALTHY
    healthy = calibrated(SUBSPACE, split._replace(test={name: rows[keep] for name, rows in split.test.items()}), 0)
    for name, z in healthy.z.items():
        np.testing.assert_array_equal(z, whole.z[name][keep])


def test_scores_are_in_units_of_healthy_windows_that_trained_nothing(bridge: Bridge) -> None:
    split = task(bridge, "sensors", [1, 2, 3], [4])
    early, held = (
        {name: rows[which[name]] for name, rows in split.train.items()} for which in (split.early, split.held)
    )
    quiet = score_method(SUBSPACE, early, held, 7).by_gateway
    found = score_method(SUBSPACE, split.train, split.test, 7)
    scored = calibrated(SUBSPACE, split, 7)
    for name, z in scored.z.items():
        away = np.abs(quiet[name] - np.median(quiet[name]))
        np.testing.assert_allclose(z, (found.by_gateway[name] - np.median(quiet[name])) / (1.4826 * np.median(away)))
    assert scored.bytes_up == np.mean([*found.bytes_up.values()]) > 0.0


def test_healthy_windows_that_all_score_alike_divide_by_no_zero(bridge: Bridge) -> None:
    split = task(bridge, "sensors", [1, 2, 3], [4])
    name = bridge.sensors[0]
    rows = split.train[name].copy()
    rows[split.held[name]] = rows[0]
    one = Task({name: rows}, split.early, split.held, {name: split.test[name]}, split.label, split.state)
    assert np.isfinite(calibrated(BridgeMethod(algorithm="distance", data="local"), one, 0).z[name]).all()


@pytest.mark.soak
def test_what_is_reported_chooses_neither_settings_nor_alarm_level(data: Path) -> None:
    one, other = (measure(case(test_setups=[setup]), data) for setup in (4, 5))
    assert one["level"] == other["level"] != ALARM_Z
    assert one["choice"] == other["choice"] > 0.5


@pytest.mark.parametrize("given", [{"chooses": False}, {"train_setups": [2]}])
def test_where_nothing_can_be_chosen_alarms_are_raised_at_three_spreads(data: Path, given: dict[str, Any]) -> None:
    found = measure(case(**given), data)
    assert (found["level"], found["choice"]) == (ALARM_Z, 0.0)


@pytest.mark.soak
def test_damage_is_told_and_every_figure_is_there(data: Path) -> None:
    found = measure(case(), data)
    assert found["fleet.auc"] > 0.9 and found["gateway.auc"] > 0.9 and found["choice"] > 0.9
    assert (found["healthy"], found["damaged"]) == (40.0, 40.0)  # 2 setups x 2 states x 10 windows of 20.48 s
    assert found["always"] == pytest.approx(2.0 / 3.0), "F where all is alarm"
    assert {"state.05", "state.17", "gateway.false_per_hour"} <= found.keys() and "state.08" not in found
    assert sum(name.startswith("auc.") for name in found) == 3 and found["bytes_up"] > 0.0
    assert np.mean([value for name, value in found.items() if name.startswith("auc.")]) == found["gateway.auc"]


@pytest.mark.parametrize("name", ["cwru", "munich"])
def test_recordings_without_setups_are_measured_too(data: Path, name: str) -> None:
    spectra = {
        "cwru": {"window_s": 0.04, "low_hz": 200.0, "high_hz": 20_000.0, "segment_s": 0.01, "overlap": 2},
        "munich": {"window_s": 10.0, "low_hz": 0.5, "high_hz": 20.0, "segment_s": 2.0, "overlap": 4, "levels": True},
    }
    given = {"data_set": name, "folder": "streams/cwru_bearing", "train_setups": [1], "test_setups": [2]}
    found = measure(case(**given, spectrum=Spectrum.model_validate(spectra[name])), data)
    assert found["fleet.auc"] > 0.95 and found["level"] == ALARM_Z


@pytest.mark.soak
def test_the_alarm_level_is_the_best_of_those_that_scores_offer() -> None:
    rng = np.random.default_rng(0)
    splits = [((label := rng.integers(0, 2, 60)), 2.0 * label + rng.normal(size=60)) for _ in range(2)]
    label, z = (np.concatenate(parts) for parts in zip(*splits, strict=True))

    def both(level: float) -> float:
        alarmed = z > level
        hits, misses, false = (
            (alarmed & (label == 1)).sum(),
            (~alarmed & (label == 1)).sum(),
            (alarmed & (label == 0)).sum(),
        )
        quiet = (~alarmed & (label == 0)).sum()
        return float(2 * hits / (2 * hits + misses + false) + 2 * quiet / (2 * quiet + misses + false))

    offered = np.quantile(z, np.linspace(0.0, 1.0, 101))
    level = _best_level(splits)
    assert np.isclose(offered, level).any()
    assert both(level) == pytest.approx(max(map(both, offered.tolist())))


def test_figures_are_counts_of_pairs_and_of_windows() -> None:
    label = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    z = {
        "a": np.array([0.0, 1.0, 2.0, 9.0, 1.5, 5.0, 6.0, 7.0]),
        "b": np.array([0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]),
    }
    state = np.array(["h"] * 4 + ["x", "x", "y", "y"])
    empty: dict[str, Any] = {}
    split = Task(empty, empty, empty, empty, label, state)
    found = _figures(split, Scored(z, 5.0), 60.0, Levels(gateway=4.0, fleet=2.0))
    pairs = [(damaged > healthy) for damaged in z["a"][4:] for healthy in z["a"][:4]]
    assert found["auc.a"] == np.mean(pairs) and found["auc.b"] == 1.0
    assert found["gateway.auc"] == (np.mean(pairs) + 1.0) / 2.0
    assert found["gateway.f_damage"] == pytest.approx((2 * 3 / (2 * 3 + 1 + 1) + 0.0) / 2.0)  # b never reaches 4
    assert found["gateway.f_healthy"] == pytest.approx((2 * 3 / (2 * 3 + 1 + 1) + 2 * 4 / (2 * 4 + 4)) / 2.0)
    # 90 % of four are all four: at 1.5 two healthy windows of a alarm, in four minutes.
    assert found["gateway.false_per_hour"] == pytest.approx((2 / (4 / 60) + 0.0) / 2.0)
    together = (z["a"] + z["b"]) / 2.0
    np.testing.assert_array_equal(fleet(Scored(z, 0.0)), together)
    assert found["state.x"] == metrics.roc_auc(label[:6], together[:6])
    assert found["fleet.error"] == metrics.auc_error(found["fleet.auc"], 4, 4)
    assert (found["damaged"], found["healthy"], found["bytes_up"], found["level"]) == (4.0, 4.0, 5.0, 2.0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"test_setups": [3, 4]}, "test_setups: setup 3 trains as well; expected setups that choose nothing"),
        ({"method": {"algorithm": "fedprox", "settings": {"whitn": 10}}}, "settings: fedprox has no setting 'whitn'"),
        ({"method": {"algorithm": "fedproxx"}}, "expected one of .*distance, aligned-events"),
        (
            {"method": {"algorithm": "aligned-events", "settings": {"event": 1}}},
            "aligned-events has no setting 'event'",
        ),
        ({"spectrum": {**SPECTRUM.model_dump(), "window_s": 0.0}}, "window_s"),
    ],
)
def test_a_wrong_case_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        case(**given)


def test_too_few_windows_to_hold_any_out_are_named(data: Path) -> None:
    long = SPECTRUM.model_copy(update={"window_s": 150.0, "overlap": 1})
    reason = r"setup [12]: 0 early and 0 late windows to train and calibrate on; expected 2"
    with pytest.raises(StudyError, match=reason):
        measure(case(view="setups", spectrum=long), data)


@pytest.mark.soak
def test_the_paper_form_takes_as_many_events_as_there_are_windows(data: Path) -> None:
    method = {"algorithm": "aligned-events", "settings": {"events": "all", "rounds": 2, "epochs": 2}}
    assert 0.0 <= measure(case(method=method, chooses=False), data)["fleet.auc"] <= 1.0
