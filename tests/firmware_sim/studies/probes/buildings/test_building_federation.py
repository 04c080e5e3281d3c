"""The costs of federation on synthetic rooms, and its parts against what is plain to see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate.firmware_sim.engine.spec import StudyError
from fedgate.firmware_sim.studies.probes.buildings.building_federation import (
    INPUTS,
    Case,
    cut_rows,
    fleet,
    load_sensors,
    measure,
)
from fedgate.models.arrays import FEATURES, Floats

ROOMS = "streams/keti_rooms"
NETWORK = {"epochs": 1, "server_optimiser": {"kind": "sgd", "momentum": 0.9}, "network": {"hidden": 4, "dense": 4}}


@pytest.fixture(scope="module")
def data(tiny: Path) -> Path:
    return tiny


def found(data: Path, model: str = "federated", sensors: int = 4, **settings: Any) -> dict[str, float]:
    given = {"model": model, "settings": {**NETWORK, **settings}}
    case = {"folder": ROOMS, "sensors": sensors, "rounds": 2, "method": given}
    return measure(Case.model_validate(case), data)


@pytest.mark.soak
@pytest.mark.slow
def test_what_travels_is_weighed(data: Path) -> None:
    plain, small = found(data), found(data, compression={"number": "int8"})
    assert small["up"] < 0.6 * plain["up"] and small["down"] == plain["down"] > 4 * plain["parameters"]
    assert plain["up"] > 4 * plain["parameters"] and abs(small["loss.2"] - plain["loss.2"]) < 0.01
    assert plain["mega"] == pytest.approx(4 * 2 * (plain["up"] + plain["down"]) / 1e6)
    masked = found(data, masking={}, sensors=8)
    alone = found(data, sensors=8)
    assert masked["loss.2"] == pytest.approx(alone["loss.2"], rel=1e-3) and masked["up"] > alone["up"]
    private = {"clip": 1.0, "noise_multiplier": 1.0, "epsilon": 1e3}
    noisy = found(data, measure="own", privacy=private)
    assert noisy["epsilon"] > 0 and "epsilon" not in plain and noisy["up"] == pytest.approx(plain["up"], rel=0.05)
    central = found(data, "central")
    assert central["mega"] == pytest.approx(4 * 4 * load_sensors(data / ROOMS)[0].samples / 1e6)
    assert "up" not in central and central["loss.1"] != central["loss.2"]


def test_a_loss_is_reached_in_the_first_round_at_or_below_it(data: Path) -> None:
    ridge, last = found(data, "ridge", 16), found(data, "last value")
    assert (
        ridge["loss"] < 0.9 * last["loss"] and ridge["rounds_to.0.98"] == 1.0 and ridge["mega_to.0.98"] == ridge["mega"]
    )
    assert not any(name.startswith(("rounds_to", "up", "mega")) for name in last)


def triples(rows: Floats) -> Floats:
    """Every three values of a sensor that follow each other (n, 3); a single one may well come again."""
    return np.ascontiguousarray(np.lib.stride_tricks.sliding_window_view(rows[:, :18], 3, axis=1).reshape(-1, 3))


def test_what_is_told_was_not_trained_on(data: Path) -> None:
    sensors = load_sensors(data / ROOMS)
    assert len(sensors) == 24 and {each.name for each in sensors} >= {"room413/CO2", "room418/temperature"}
    for sensor in sensors:
        train, later = ({three.tobytes() for three in triples(rows)} for rows in (sensor.train, sensor.later))
        assert sensor.train.shape[1] == INPUTS * 18 and train and later and train.isdisjoint(later)


def test_no_window_reaches_over_a_missing_step() -> None:
    steps = np.delete(np.arange(60), 30)
    rows = cut_rows(np.stack([steps * 1.0, -steps], axis=1), steps)
    assert np.array_equal(np.diff(rows[:, :18], axis=1), np.ones((len(rows), 17)))
    assert np.array_equal(rows[:, 18:], -rows[:, :18])
    assert len(rows) == len([start for start in range(0, 42, 3) if start + 17 < 30 or start >= 30])


def test_a_larger_fleet_is_made_of_parts(data: Path) -> None:
    sensors = load_sensors(data / ROOMS)
    few, all_of_them, many = (fleet(sensors, count, 3) for count in (5, 24, 60))
    assert [len(each) for each in (few, all_of_them, many)] == [5, 24, 60]
    assert fleet(sensors, 5, 3).keys() == few.keys() != fleet(sensors, 5, 4).keys()
    whole = {row.tobytes() for each in all_of_them.values() for row in each[FEATURES]}
    parts = [row.tobytes() for each in many.values() for row in each[FEATURES]]
    assert set(parts) <= whole and len(parts) == len(set(parts))


def test_wrong_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="0 rooms of 288 steps"):
        load_sensors(tmp_path)
