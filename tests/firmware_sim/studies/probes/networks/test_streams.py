"""Goal: an alarm counts for where it begins, at a level that healthy rows before it have set, and what is reported
chooses nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from fedgate.firmware_sim.studies.datasets.series.streams import CALIBRATE, WATCHED, Streams, Stretch
from fedgate.firmware_sim.studies.datasets.tiny import write_tiny
from fedgate.firmware_sim.studies.probes.networks.streams import (
    Case,
    alarms,
    areas,
    fleet_area,
    judge,
    measure,
    smooth,
    watch,
)
from fedgate.models.alarms.threshold import AlarmSpec, Levels
from fedgate.models.arrays import Floats, generator

SPEC = AlarmSpec(false_alarms_per_day=1.0)
FOLDERS = PUMP, ROOMS, BRIDGE = "streams/skab_pump", "streams/keti_rooms", "streams/z24_bridge"
PLAIN = Streams({}, 1.0, merge=2)
ESN = {"model": "esn", "settings": {"units": 30, "leak": 1.0, "ridge": 1e-4}}
LAGS = {"model": "lags", "settings": {"lags": 3, "ridge": 1e-4}}


@pytest.fixture(scope="module")
def data(tiny: Path) -> Path:
    return tiny


def case(stream: dict[str, Any], method: dict[str, Any]) -> Case:
    return Case.model_validate({"stream": {"false_alarms_per_day": 24.0, **stream}, "method": method})


def scored(values: Floats | list[float], label: list[int], kind: str = "", *, copy: bool = False) -> Stretch:
    """Windows that are watched."""
    role = np.full(len(label), WATCHED)
    return Stretch(np.array(values, dtype=float), role * 0, np.array(label), role, kind, copy)


def calm(values: Floats) -> Stretch:
    """Windows that set the level."""
    return scored(values, [0] * len(values))._replace(role=np.full(len(values), CALIBRATE))


@pytest.mark.soak
def test_a_pump_in_small(data: Path) -> None:
    pump = {"data_set": "skab", "folder": PUMP, "targets": [7], "smooth": [1, 5], "most_per_day": 1e6}
    found = measure(case(pump, {**ESN, "task": "reconstruct", "data": "federated"}), data)
    assert found["auc|1"] > 0.95 and found["choice|1"] > 0.95 and found["anomalies|1"] == 8
    assert found["bytes_up"] > 1_000 and found["gateways"] == 9
    assert found["recall_wanted|5"] == found["recall|5"] and found["decides|5"] == found["auc|5"]
    strict = measure(case({**pump, "most_per_day": 1e-9}, LAGS), data)
    assert strict["bytes_up"] == 0.0 and strict["false_per_day|1"] > 0.0 and strict["recall_wanted|1"] == 0.0


def test_rooms_in_small_are_chosen_by_recall(data: Path) -> None:
    rooms = {"data_set": "keti", "folder": ROOMS, "channels": [3], "columns": [3], "choice": "recall"}
    found = measure(case({**rooms, "false_alarms_per_day": 1.0}, LAGS), data)
    assert found["recall.spike|1"] == 1.0 and found["recall.stuck|1"] < 1.0
    others = [found[f"recall.{kind}|1"] for kind in ("spike", "drift", "offset", "noise", "other time")]
    assert found["recall_moving|1"] == pytest.approx(np.mean(others))
    assert found["decides|1"] == found["recall|1"] and found["choice|1"] * 18 == pytest.approx(
        round(found["choice|1"] * 18)
    )  # three rooms with six faults each


@pytest.mark.soak
def test_bridges_in_small(data: Path) -> None:
    found = measure(case({"data_set": "z24 sensors", "folder": BRIDGE}, {**LAGS, "data": "federated"}), data)
    assert found["fleet.auc|1"] > 0.95 and found["auc|1"] == pytest.approx((found["auc.05|1"] + found["auc.17|1"]) / 2)
    munich = measure(case({"data_set": "munich", "choice": "none"}, {"model": "level"}), data)
    assert munich["auc|1"] > 0.99 and munich["choice|1"] == 0.0


@pytest.mark.soak
def test_what_is_reported_does_not_change_what_chooses(data: Path, tmp_path: Path) -> None:
    valves = write_tiny(tmp_path, PUMP) / PUMP / "valve1"
    for index in range(8, 16):
        (valves / f"{index}.csv.gz").write_bytes((valves / "0.csv.gz").read_bytes())
    given = case({"data_set": "skab", "folder": PUMP}, LAGS)
    one, two = (measure(given, folder) for folder in (data, tmp_path))
    assert one["choice|1"] == two["choice|1"] and one["auc|1"] != two["auc|1"]


def test_windows_and_smoothing_are_means_of_squares() -> None:
    scores = generator(0, 0, "scores").normal(size=23)
    streams = Streams({}, 2.5, merge=1, window_rows=5, skipped_rows=2)
    found = judge(streams, scored(scores, [0] * 23), scores)
    assert np.allclose(found.values, [np.log(np.exp(scores[k + 2 : k + 5]).mean()) for k in range(0, 20, 5)])
    slow = [np.log(np.exp(scores[max(k - 2, 0) : k + 1]).mean()) for k in range(23)]
    assert np.allclose(smooth(scored(scores, [0] * 23), 3).values, slow)


def test_alarms_near_each_other_are_one() -> None:
    levels = Levels(raise_level=2.0, clear_level=1.0, median=0.0, samples=100, extrapolated=False)
    scores = np.array([0, 3, 1.5, 0, 0, 3, 0, 0, 0, 0, 3, 3])
    assert alarms(scores, levels, SPEC, 3) == [(1, 5), (10, 11)]
    assert alarms(scores, levels, SPEC, 2) == [(1, 2), (5, 5), (10, 11)]


def test_an_alarm_counts_for_where_it_begins() -> None:
    quiet, high = generator(0, 0, "quiet").normal(size=2_000), 100.0
    parts = [
        calm(quiet),
        scored([0, 0, 0, high, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0, 0, 0], "late"),
        scored([0, high, high, high, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0, 0, 0], "hidden"),
        scored([high, 0, 0, 0, 0, 0, high, 0], [0, 0, 0, 0, 0, 0, 1, 1], "copied", copy=True),
        scored([0, 0, 0, high, 0, 0, 0, 0], [0] * 8),
    ]
    found = watch(PLAIN, [parts], 1.0)
    assert found["recall"] == pytest.approx(2 / 3) and found["anomalies"] == 3
    assert (found["recall.late"], found["recall.hidden"], found["recall.copied"]) == (1.0, 0.0, 1.0)
    assert found["delay_s"] == 1.5  # the second and the first second of an anomaly
    assert found["recall_error"] == pytest.approx(np.sqrt(2 / 27))
    # One alarm hid an anomaly and one stood alone; not those in the copy, whose healthy rows count in the original.
    assert found["days"] == pytest.approx((6 + 6 + 8) / 86_400)
    assert found["false_per_day"] == pytest.approx(2 / found["days"])


def test_each_gateway_has_a_level_of_its_own() -> None:
    rng = generator(0, 0, "two")
    anomaly = [0, 0, 1, 1]
    loud = [calm(50.0 + rng.normal(size=2_000)), scored([50, 50, 60, 60], anomaly, "x")]
    still = [calm(rng.normal(size=2_000)), scored([0, 0, 10, 10], anomaly, "x")]
    found = watch(PLAIN, [loud, still], 1.0)
    assert found["recall"] == 1.0 and found["false_per_day"] == 0.0


def test_areas_are_means_over_gateways_and_kinds() -> None:
    gateways = [
        [scored([0, 1, 2, 3], [0, 0, 1, 1], "x"), scored([9, 0.5], [0, 1], "y", copy=True)],
        [scored([0, 1, 0.5], [0, 0, 1], "x")],
        [scored([0, 1], [0, 0])],
    ]
    assert areas(gateways) == {"auc": pytest.approx((0.75 + 0.5) / 2), "auc.x": 0.75, "auc.y": 0.5}


def test_a_fleet_sums_scores_in_units_of_each_gateways_healthy_spread() -> None:
    rng, label = generator(0, 0, "fleet"), [0] * 50 + [1] * 50
    signal = np.repeat([0.0, 2.0], 50)
    clear = [calm(rng.normal(size=500)), scored(signal + 0.1 * rng.normal(size=100), label, "x")]
    noisy = [calm(1_000.0 * rng.normal(size=500)), scored(1_000.0 * rng.normal(size=100), label, "x")]
    assert areas([noisy])["auc"] < 0.7
    assert fleet_area([clear, noisy]) > 0.85  # as they are, the noise of the second would cover the first


def test_columns_that_are_reconstructed_must_be_named() -> None:
    with pytest.raises(ValidationError, match=r"stream\.targets: expected the columns"):
        case({"data_set": "munich"}, {"model": "level", "task": "reconstruct"})
