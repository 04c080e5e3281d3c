"""How methods learn from windows of buildings: nothing of what is to come, and exactly where sums are exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from fedgate.firmware_sim.studies.datasets.series.building import (
    LATER,
    REPORT,
    TRAINS,
    DataSet,
    Stream,
    Windows,
    cut_windows,
    load_streams,
)
from fedgate.firmware_sim.studies.probes.buildings.building_models import (
    DAY_STEPS,
    Case,
    Choice,
    Fitted,
    Method,
    Task,
    Training,
    _series,
    fit,
)
from fedgate.models.arrays import FEATURES, MISSING, NEW_SERIES
from tests.support.building_files import write_buildings

FOLDERS: dict[DataSet, str] = {"keti": "keti_rooms", "room climate": ""}
TINY = {"network.hidden": 4, "network.dense": 4, "epochs": 1}
METHODS: dict[str, tuple[Method, dict[str, Any]]] = {
    "persistence": (Method(model="persistence"), {}),
    "day before": (Method(model="day before"), {}),
    "lags": (Method(model="lags"), {"ridge": 0.1}),
    "esn": (Method(model="esn"), {"network.units": 20, "network.washout": 3}),
    "lstm": (Method(model="recurrent"), TINY),
    "alone": (Method(model="recurrent", data="local"), TINY),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_buildings(tmp_path_factory.mktemp("data"))


def task_of(name: DataSet) -> Task:
    return Task(data=name, folder=FOLDERS[name], window=6, horizon=2 if name == "keti" else 0)


def streams_of(data: Path, name: DataSet = "keti") -> tuple[Stream, ...]:
    return load_streams(name, data / FOLDERS[name], task_of(name).horizon)


def fitted(
    method: Method, streams: tuple[Stream, ...], settings: dict[str, Any], name: DataSet = "keti", rounds: int = 1
) -> Fitted:
    return fit(Case(task=task_of(name), method=method), Training(streams, TRAINS), Choice(settings, rounds))


@pytest.mark.soak
@pytest.mark.parametrize("name", METHODS)
def test_no_method_sees_what_is_to_come(name: str, data: Path) -> None:
    method, settings = METHODS[name]
    streams = streams_of(data)
    predict = fitted(method, streams, settings).predict
    stream, at = streams[0], cut_windows(streams[0], (REPORT,), 6).at[:1]
    other = stream._replace(z=stream.z.copy(), y=stream.y + 5.0)
    other.z[at[0] + 1 :] = 9.0
    before = predict(Windows(stream, at))
    assert np.array_equal(before, predict(Windows(other, at)))
    other.z[at[0], 0] += 1.0  # but it does see the present
    assert name == "day before" or not np.array_equal(before, predict(Windows(other, at)))


def test_a_day_before_is_one_by_the_clock_also_after_a_gap(data: Path) -> None:
    room, bridged = streams_of(data)[0], 0  # the one with a gap
    time = np.cumsum(room.missing + 1).tolist()
    value = dict(zip(time, room.z[:, 0].tolist(), strict=True))
    predictions = fitted(Method(model="day before"), (room,), {}).predict(Windows(room, np.arange(len(time))))
    for now, found in zip(time, predictions.tolist(), strict=True):
        before = range(now + 2 - DAY_STEPS, -1, -DAY_STEPS)
        assert found == next((value[then] for then in before if then in value), value[0])
        bridged += bool(before) and before[0] not in value
    assert bridged > 5


@pytest.mark.parametrize("name", FOLDERS)
def test_a_ridge_is_that_of_all_rows_in_one_place(name: DataSet, data: Path) -> None:
    streams, task = streams_of(data, name), task_of(name)
    found = fitted(Method(model="lags"), streams, {"ridge": 0.1}, name)
    train = Training(streams, TRAINS).windows(task)
    x = np.concatenate([np.column_stack([each.rows(6), np.ones(len(each.at))]) for each in train])
    y = np.concatenate([each.y for each in train])
    last = np.concatenate([each.stream.z[each.at, 0] for each in train])
    says, weight = (
        (2 * y - 1, 0.5 / np.where(y > 0, y.mean(), 1 - y.mean())) if task.is_class else (y - last, 1.0 + 0 * y)
    )
    gram = (x * weight[:, None]).T @ x
    expected = np.linalg.solve(gram + 0.1 * np.trace(gram) / len(gram) * np.eye(len(gram)), x.T @ (weight * says))
    some = cut_windows(streams[0], (REPORT,), 6)
    base = 0.0 if task.is_class else some.stream.z[some.at, 0]
    assert np.allclose(found.predict(some) - base, np.column_stack([some.rows(6), np.ones(len(some.at))]) @ expected)
    central = fitted(Method(model="lags", data="central"), streams, {"ridge": 0.1}, name)
    assert np.array_equal(central.predict(some), found.predict(some)) and central.bytes_up == 0 < found.bytes_up


def test_one_gateway_is_central_training(data: Path) -> None:
    alone = streams_of(data)[:1]
    some = cut_windows(alone[0], (REPORT,), 6)
    ways: tuple[Literal["central", "local"], ...] = ("central", "local")
    one, other = (fitted(Method(model="recurrent", data=way), alone, TINY, rounds=2).predict(some) for way in ways)
    assert np.array_equal(one, other)


def test_a_series_begins_anew_where_steps_are_left_out(data: Path) -> None:
    room, parts = streams_of(data)[0], (0, LATER)
    found = _series(task_of("keti"), room, parts)
    known = np.flatnonzero(np.isfinite(room.y) & np.isin(room.part, parts))
    assert np.array_equal(found[FEATURES][:, -1], room.y[known] - room.z[known, 0])
    starts = [0, *(np.flatnonzero(np.diff(known) > 1) + 1)]
    assert np.flatnonzero(found[MISSING] == NEW_SERIES).tolist() == starts and len(starts) == 3
