"""The tables of smart buildings: settings are chosen without what is reported, and figures are those of plain sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate.firmware_sim.studies.datasets.series.building import (
    LATER,
    REPORT,
    DataSet,
    Stream,
    Windows,
    cut_windows,
    load_streams,
)
from fedgate.firmware_sim.studies.probes.buildings import building_tables
from fedgate.firmware_sim.studies.probes.buildings.building_models import Case, Choice, Method, Task, Training, fit
from fedgate.firmware_sim.studies.probes.buildings.building_tables import (
    Predicted,
    _of_groups,
    _roc,
    choose,
    measure,
    pooled,
)
from fedgate.models.arrays import Floats, generator
from tests.support.building_files import write_buildings

TINY = {"network.hidden": 4, "network.dense": 4, "epochs": 1}
AHEAD = Task(data="keti", folder="keti_rooms", window=6, horizon=2, every=4)
OCCUPANCY = Task(data="room climate", folder="", window=5, every=4)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_buildings(tmp_path_factory.mktemp("data"))


def case_of(task: Task, **method: Any) -> Case:
    return Case(task=task, method=Method.model_validate(method))


@pytest.mark.soak
def test_figures_are_of_the_gateways_that_a_method_has_something_for(data: Path) -> None:
    persistence, ridge = (
        measure(case_of(AHEAD, model=model, tried=tried), data)
        for model, tried in (("persistence", {}), ("lags", {"ridge": [0.001]}))
    )
    assert ridge["mse"] < 0.5 * persistence["mse"] and ridge["chosen.ridge"] == 0.001 and "rounds" not in ridge
    assert persistence.keys() >= {"seen.mse", "unseen.mse", "place.room00"} and "inner" not in persistence
    alone = measure(case_of(AHEAD, model="lags", data="local", settings={"ridge": 0.1}), data)
    assert "seen.mse" in alone and not {"mse", "unseen.mse", "place.room02", "bytes_up"} & alone.keys()
    trained = measure(case_of(OCCUPANCY, model="recurrent", rounds=2, settings=TINY), data)
    assert trained["bytes_up"] > 0 and trained["rounds"] == 2.0 and trained.keys() >= {"curve.1", "curve.2"}
    assert measure(case_of(OCCUPANCY, model="majority"), data)["ba"] == 0.5


@pytest.mark.parametrize(("name", "folder"), [("three rooms", ""), ("air handlers by day", "hvac_fdd")])
def test_gateways_with_nothing_to_report_keep_no_figure_back(name: DataSet, folder: str, data: Path) -> None:
    task = Task(data=name, folder=folder, window=5, every=4)
    case = Case(task=task, left_out="A" if name == "three rooms" else "", method=Method(model="majority"))
    found = measure(case, data)
    assert found["ba"] == 0.5 and "unseen.mse" not in found
    places = {key for key in found if key.startswith("place.")}
    assert places == ({"place.A1", "place.A2"} if name == "three rooms" else {"place.multi-zone", "place.single-zone"})


def test_settings_and_rounds_are_chosen_without_what_is_reported(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(AHEAD.model_copy(update={"every": 1}), model="lags", tried={"ridge": [1e6, 0.001]})
    first = choose(case, data)
    assert first.settings == {"ridge": 0.001} and first.worth < 0.0

    def spoilt(*arguments: Any) -> tuple[Stream, ...]:
        streams = load_streams(*arguments)
        return tuple(each._replace(y=np.where(each.part == REPORT, 99.0, each.y)) for each in streams)

    monkeypatch.setattr(building_tables, "load_streams", spoilt)
    building_tables._best.cache_clear()
    assert choose(case, data) == first
    building_tables._best.cache_clear()


@pytest.mark.soak
def test_the_best_round_is_chosen_and_what_comes_on_top_chooses_nothing(data: Path) -> None:
    wild = {"model": "recurrent", "rounds": 3, "settings": TINY, "tried": {"learning_rate": [0.01]}}
    case = case_of(AHEAD, **wild)
    found = choose(case, data)
    streams, errors = load_streams("keti", data / "keti_rooms", 2), np.zeros(3)
    for trains, chooses in ((1, LATER), (0, LATER + 1)):
        fitted = fit(case, Training(streams, (trains,)), Choice(found.settings, 3))
        left = [cut_windows(stream, (chooses,), 6, 4) for stream in streams if stream.seen]
        for index, predict in enumerate(fitted.after):
            errors[index] += pooled(AHEAD, [Predicted(each, predict(each)) for each in left if len(each.at)])["mse"] / 2
    beside = [errors[:2].mean(), errors.mean(), errors[1:].mean()]  # each round with its neighbours
    assert found.rounds == int(np.argmin(beside)) + 1 and found.worth == pytest.approx(-min(beside))
    deeper = choose(case_of(AHEAD, **wild, then={"network.layers": 2}, fraction=0.5, data="local"), data)
    assert deeper.rounds == found.rounds and deeper.settings == {**found.settings, "network.layers": 2}


def predicted(place: str, y: Floats, said: Floats, *, seen: bool = True) -> Predicted:
    count = np.arange(len(y))
    return Predicted(Windows(Stream(place, place, said[:, None], 0 * count, y, 0 * count, seen), count), said)


def test_figures_are_pooled_and_by_place() -> None:
    both = [
        predicted("a", np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0, 4.0])),
        predicted("b", np.array([1.0]), np.array([0.0]), seen=False),
    ]
    assert pooled(AHEAD, both) == {"mae": 0.75, "mse": 1.25, "rmse": np.sqrt(1.25)}
    groups = _of_groups(AHEAD, both)
    assert groups == {"seen.mse": 4 / 3, "place.a": 4 / 3, "unseen.mse": 1.0, "place.b": 1.0}


def test_classes_are_predicted_above_zero() -> None:
    found = pooled(
        OCCUPANCY, [predicted("a", np.array([1.0, 1.0, 1.0, 0.0, 0.0]), np.array([2.0, 1.0, -1.0, 0.5, -2.0]))]
    )
    assert found["precision"] == found["recall"] == pytest.approx(2 / 3) == found["f1"]
    assert found["ba"] == pytest.approx(0.5 * (2 / 3 + 1 / 2)) and found["auc"] == pytest.approx(5 / 6)


def test_a_roc_curve_has_the_area_under_it() -> None:
    rng = generator(0, 0, "roc")
    y = (rng.random(4_000) < 0.4).astype(np.float64)
    each = predicted("a", y, y + rng.normal(size=len(y)))
    curve = list(_roc([each]).values())
    assert curve[0] < 0.05 and curve[-1] == 1.0 and np.all(np.diff(curve) >= 0.0)
    assert np.trapezoid(curve, dx=1 / 20) == pytest.approx(pooled(OCCUPANCY, [each])["auc"], abs=0.01)
