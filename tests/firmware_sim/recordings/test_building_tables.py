"""The tables of smart buildings on the tiny data, and their parts against slow twins."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pytest

from fedgate.firmware_sim.studies.building_tables.data import DataSet, load
from fedgate.firmware_sim.studies.building_tables.figures import Told, figures, of_classes, roc, told
from fedgate.firmware_sim.studies.building_tables.methods import fit
from fedgate.firmware_sim.studies.building_tables.options import Method, Options, TableOptions
from fedgate.firmware_sim.studies.building_tables.streams import (
    IGNORED,
    LATER,
    REPORT,
    TRAINS,
    Task,
    Windows,
    begins,
    inputs,
    later,
    rows,
    series,
    training,
    windows,
)
from fedgate.firmware_sim.studies.building_tables.study import STUDY, chosen
from fedgate.firmware_sim.studies.datasets.tiny import AIR_DAYS, DISPUTED_DAY, ROOMS, write_tiny
from fedgate.firmware_sim.studies.engine.study import StudyError, load_options
from fedgate.firmware_sim.studies.runner import measured
from fedgate.models.arrays import FEATURES, MISSING, NEW_SERIES, generator
from tests.support.syntax import ROOT

EXPERIMENT = ROOT / "firmware_sim" / "experiments" / "building-tables.toml"
FOLDERS: dict[DataSet, str] = {"keti": "keti_rooms", "air handlers": "hvac_fdd", "air handlers by day": "hvac_fdd"}
TINY = {"network.hidden": 4, "network.dense": 4, "epochs": 1}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = ("keti_rooms", "room_climate", "uci_occupancy", "hvac_fdd")
    return write_tiny(tmp_path_factory.mktemp("data"), *(f"streams/{name}" for name in names))


def task_of(data: Path, name: DataSet, window: int = 6, horizon: int = 0, left_out: str = "A") -> Task:
    horizon = 2 if name == "keti" else horizon
    return load(name, data / "streams" / FOLDERS.get(name, ""), window, horizon, 1, left_out)


@pytest.mark.soak
def test_the_study_runs_in_small(data: Path, tmp_path: Path) -> None:
    options = load_options(EXPERIMENT, STUDY, "short")
    outcome = measured(
        "building-tables", options, data, results=tmp_path, profile="short", command="test", jobs=1, say=lambda _: None
    )
    found = {(each.cell["table"], each.cell["method"]): each.figures for each in outcome.measured}
    ahead, nodes = "CO2 30 minutes ahead", "Occupancy at nine sensor nodes"
    assert found[ahead, "ridge on the window"]["all.mse"] < 0.5 * found[ahead, "persistence"]["all.mse"]
    assert found[ahead, "FLSTM-1"]["all.mse"] < found[ahead, "persistence"]["all.mse"]
    assert found[ahead, "FLSTM-1"]["bytes_up"] > 0 and found[ahead, "LSTM"]["bytes_up"] == 0
    assert "unseen.mse" in found[ahead, "FLSTM-1"] and not {"unseen.mse", "all.mse"} & found[ahead, "FedPer"].keys()
    assert found[nodes, "majority"]["all.ba"] == 0.5 and found[nodes, "FLSTM-1"]["all.ba"] > 0.8
    assert "| FLSTM-1 |" in outcome.text and "paper's balanced accuracy" in outcome.text
    assert "the better is" in outcome.text and "Target" not in outcome.text.splitlines()[0]
    for name in ("curves", "roc"):
        assert (tmp_path / f"building-tables-short-{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", get_args(DataSet))
def test_what_is_reported_neither_trains_nor_chooses(name: DataSet, data: Path) -> None:
    task = task_of(data, name)
    reported = [windows(task, stream, (REPORT,)) for stream in task.streams]
    assert sum(len(each.at) for each in reported) > 100
    for trains, chooses in task.inner:
        assert training(task, (trains,)) and training(task, (chooses,)) and trains != chooses
    for stream in task.streams:
        learnt = windows(task, stream, TRAINS).at
        assert stream.seen or not len(learnt)
        assert not set(learnt) & set(windows(task, stream, (REPORT,)).at)
        if name == "keti" and len(learnt):
            assert learnt.max() + task.horizon < np.flatnonzero(stream.part == REPORT).min()
    if name == "keti":
        assert len(task.streams) == ROOMS and sum(not stream.seen for stream in task.streams) == 2


@pytest.mark.parametrize("name", ["room climate", "three rooms", "air handlers"])
def test_no_window_that_trains_shares_a_step_with_one_that_is_reported(name: DataSet, data: Path) -> None:
    task = task_of(data, name)
    for stream in task.streams:
        steps = [
            {int(at) - back for at in windows(task, stream, parts).at for back in range(task.window)}
            for parts in (TRAINS, (REPORT,))
        ]
        assert not steps[0] & steps[1]


def test_rooms_that_never_train_have_no_part_in_anything_but_the_report(data: Path) -> None:
    left = [stream for stream in task_of(data, "three rooms", left_out="C").streams if not stream.seen]
    assert {stream.place[0] for stream in left} == {"C"}
    assert all(set(stream.part.tolist()) == {IGNORED, REPORT} for stream in left)
    with pytest.raises(StudyError, match="room 'B' is to be left out; expected one of A, C, office"):
        task_of(data, "three rooms", left_out="B")


def test_both_classes_of_a_unit_train_and_are_reported(data: Path) -> None:
    task = task_of(data, "air handlers")
    for stream, days in zip(task.streams, AIR_DAYS.values(), strict=True):
        for parts in (TRAINS, (REPORT,)):
            assert set(windows(task, stream, parts).y) == {0.0, 1.0}
        assert len(stream.z) == 480 * sum(day != DISPUTED_DAY for day in days)
    single = task.streams[1]
    healthy = np.flatnonzero(single.y == 0.0)
    assert np.flatnonzero(begins(single.missing)[healthy]).tolist() == list(range(0, 480, 40))
    by_day = task_of(data, "air handlers by day")
    assert all(len(set(stream.y.tolist())) == 1 for stream in by_day.streams)
    assert sum(len(stream.z) for stream in by_day.streams) == sum(len(stream.z) for stream in task.streams)


def test_a_window_is_the_steps_up_to_its_end_channel_after_channel(data: Path) -> None:
    task = task_of(data, "keti", window=4)
    some = windows(task, task.streams[0], (0,), every=7)
    for at, row, longer, y in zip(some.at, inputs(task, some), rows(task, some), some.y, strict=True):
        assert row.tolist() == [some.stream.z[at - 3 + t, c] for c in range(task.channels) for t in range(4)]
        cube = longer.reshape(task.channels, 6)
        assert np.array_equal(cube[:, :4].ravel(), row) and cube[0, -1] == y == some.stream.z[at + 2, 0]


def test_nothing_reaches_over_a_gap(data: Path) -> None:
    missing = np.array([NEW_SERIES, 0, 0, 2, 0, 9, 0, 0, NEW_SERIES, 0])
    expected = [2.0, 3.0, 4.0, np.nan, np.nan, 7.0, np.nan, np.nan, np.nan, np.nan]
    np.testing.assert_array_equal(later(np.arange(10.0), missing, 2), expected)
    room = task_of(data, "keti").streams[0]
    gap = np.flatnonzero(begins(room.missing))[1]
    found = windows(task_of(data, "keti"), room, TRAINS).at
    assert not any(gap - 2 <= at < gap + 5 for at in found) and gap - 3 in found and gap + 5 in found


def test_a_series_begins_anew_where_steps_are_left_out(data: Path) -> None:
    task = task_of(data, "keti")
    room = task.streams[0]
    parts = (0, LATER)
    found = series(task, room, parts)
    known = np.flatnonzero(np.isfinite(room.y) & np.isin(room.part, parts))
    assert np.array_equal(found[FEATURES][:, -1], room.y[known] - room.z[known, 0])
    starts = [0, *(np.flatnonzero(np.diff(known) > 1) + 1)]
    assert np.flatnonzero(found[MISSING] == NEW_SERIES).tolist() == starts and len(starts) == 3


METHODS: dict[str, tuple[Method, dict[str, Any]]] = {
    "persistence": (Method(model="persistence"), {}),
    "day before": (Method(model="day before"), {}),
    "lags": (Method(model="lags"), {"ridge": 0.1}),
    "esn": (Method(model="esn"), {"network.units": 20, "network.washout": 3}),
    "lstm": (Method(model="recurrent"), TINY),
    "alone": (Method(model="recurrent", data="local"), TINY),
}


@pytest.mark.parametrize("name", METHODS)
def test_no_method_sees_what_is_to_come(name: str, data: Path) -> None:
    method, settings = METHODS[name]
    task = task_of(data, "keti")
    fitted = fit(task, method, settings, TRAINS, 0, 1)
    stream, at = task.streams[0], windows(task, task.streams[0], (REPORT,)).at[:1]
    other = stream._replace(z=stream.z.copy(), y=stream.y + 5.0)
    other.z[at[0] + 1 :] = 9.0
    before = fitted.tell(Windows(stream, at))
    assert np.array_equal(before, fitted.tell(Windows(other, at)))
    other.z[at[0], 0] += 1.0  # but it does see the present
    assert name == "day before" or not np.array_equal(before, fitted.tell(Windows(other, at)))


def test_a_day_before_is_one_by_the_clock_also_after_a_gap(data: Path) -> None:
    task = task_of(data, "keti")
    room, bridged = task.streams[0], 0  # the one with a gap
    time = np.cumsum(room.missing + 1).tolist()
    value = dict(zip(time, room.z[:, 0].tolist(), strict=True))
    told = fit(task, Method(model="day before"), {}, TRAINS, 0, 1).tell(Windows(room, np.arange(len(time))))
    for now, found in zip(time, told.tolist(), strict=True):
        before = range(now + task.horizon - task.per_day, -1, -task.per_day)
        assert found == next((value[then] for then in before if then in value), value[0])
        bridged += bool(before) and before[0] not in value
    assert bridged > 5


@pytest.mark.parametrize("name", ["keti", "room climate"])
def test_a_ridge_is_that_of_all_rows_in_one_place(name: DataSet, data: Path) -> None:
    task = task_of(data, name)
    fitted = fit(task, Method(model="lags"), {"ridge": 0.1}, TRAINS, 0, 1)
    train = training(task, TRAINS)
    x = np.concatenate([np.column_stack([inputs(task, each), np.ones(len(each.at))]) for each in train])
    y = np.concatenate([each.y for each in train])
    last = np.concatenate([each.stream.z[each.at, 0] for each in train])
    says, weight = (
        (2 * y - 1, 0.5 / np.where(y > 0, y.mean(), 1 - y.mean())) if task.classify else (y - last, 1.0 + 0 * y)
    )
    gram = (x * weight[:, None]).T @ x
    ridge = 0.1 * np.trace(gram) / len(gram) * np.eye(len(gram))
    expected = np.linalg.solve(gram + ridge, x.T @ (weight * says))
    some = windows(task, task.streams[0], (REPORT,))
    base = 0.0 if task.classify else some.stream.z[some.at, 0]
    assert np.allclose(
        fitted.tell(some) - base, np.column_stack([inputs(task, some), np.ones(len(some.at))]) @ expected
    )
    central = fit(task, Method(model="lags", data="central"), {"ridge": 0.1}, TRAINS, 0, 1)
    assert np.array_equal(central.tell(some), fitted.tell(some)) and central.bytes_up == 0 < fitted.bytes_up


def test_one_gateway_is_central_training(data: Path) -> None:
    task = task_of(data, "keti")
    alone = task._replace(streams=task.streams[:1])
    some = windows(alone, alone.streams[0], (REPORT,))
    ways: tuple[Literal["central", "local"], ...] = ("central", "local")
    one, other = (fit(alone, Method(model="recurrent", data=way), TINY, TRAINS, 0, 2).tell(some) for way in ways)
    assert np.array_equal(one, other)


def test_settings_and_rounds_are_chosen_without_what_is_reported(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = TableOptions(data="keti", folder="streams/keti_rooms", methods=["a"], window=6, horizon=2)
    lags = Method(model="lags", grid={"ridge": [1e6, 0.001]})
    options = Options(study="building-tables", title="x", tables={"t": table}, methods={"a": lags})
    first = chosen(options, table, lags, data, "")
    assert first.settings == {"ridge": 0.001} and first.worth < 0.0

    def spoilt(*arguments: Any) -> Task:
        task = load(*arguments)
        streams = (each._replace(y=np.where(each.part == REPORT, 99.0, each.y)) for each in task.streams)
        return task._replace(streams=tuple(streams))

    monkeypatch.setattr("fedgate.firmware_sim.studies.building_tables.study.load", spoilt)
    again = chosen(options, table, lags.model_copy(update={"seeds": 1}), data, "")  # another key of the cache
    assert again == first


def test_the_best_round_is_chosen(data: Path) -> None:
    table = TableOptions(data="keti", folder="streams/keti_rooms", methods=["a"], window=6, horizon=2, every=4)
    wild = Method(model="recurrent", rounds=3, fixed=TINY, grid={"learning_rate": [0.01]})
    options = Options(study="building-tables", title="x", tables={"t": table}, methods={"a": wild})
    found = chosen(options, table, wild, data, "")
    assert 1 <= found.rounds <= 3
    task = task_of(data, "keti")._replace(every=4)
    errors = np.zeros(3)
    for trains, chooses in ((1, 2), (0, 3)):
        fitted = fit(task, wild, found.settings, (trains,), 0, 3)
        left = [windows(task, stream, (chooses,), 4) for stream in task.streams if stream.seen]
        for index, tell in enumerate(fitted.after):
            errors[index] += figures(told(tell, left), classify=False)["all.mse"] / 2
    beside = [errors[:2].mean(), errors.mean(), errors[1:].mean()]  # each round with its neighbours
    assert found.rounds == int(np.argmin(beside)) + 1 and found.worth == pytest.approx(-min(beside))


def test_figures_are_pooled_and_by_place() -> None:
    one = Told("a", True, np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0, 4.0]))
    two = Told("b", False, np.array([1.0]), np.array([0.0]))
    found = figures([one, two], classify=False)
    assert found["all.mse"] == 1.25 and found["all.rmse"] == np.sqrt(1.25) and found["all.mae"] == 0.75
    assert found["seen.mse"] == 4 / 3 and found["place.unseen.b"] == 1.0 and "place.seen.b" not in found


def test_classes_are_told_above_zero() -> None:
    label, score = np.array([1, 1, 1, 0, 0]), np.array([2.0, 1.0, -1.0, 0.5, -2.0])
    found = of_classes(label, score)
    assert found["precision"] == found["recall"] == pytest.approx(2 / 3) == found["f1"]
    assert found["ba"] == pytest.approx(0.5 * (2 / 3 + 1 / 2)) and found["auc"] == pytest.approx(5 / 6)


def test_a_roc_curve_has_the_area_under_it() -> None:
    rng = generator(0, 0, "roc")
    y = (rng.random(4_000) < 0.4).astype(np.float64)
    each = Told("a", True, y, y + rng.normal(size=len(y)))
    curve = list(roc([each]).values())
    assert curve[0] < 0.05 and curve[-1] == 1.0 and np.all(np.diff(curve) >= 0.0)
    assert np.trapezoid(curve, dx=1 / 20) == pytest.approx(figures([each], classify=True)["all.auc"], abs=0.01)


def test_wrong_options_and_files_are_named(tmp_path: Path) -> None:
    for name, words in (
        ("keti", "0 rooms of 400 steps"),
        ("room climate", r"location_A\.npz is missing"),
        ("air handlers", r"mzvav_2_1\.csv\.gz is missing"),
    ):
        with pytest.raises(StudyError, match=words):
            load(name, tmp_path, 4, 2, 1, "")  # type: ignore[arg-type]  # each is a name of a set
    base, still = {"study": "building-tables", "title": "x"}, {"model": "persistence"}
    table = {"data": "keti", "folder": "x", "methods": ["a"], "window": 4}
    for tables, methods, words in (
        ({"t": table}, {"b": still}, r"tables\.t\.methods: 'a' is none of b"),
        ({"t": table}, {"a": still}, "'persistence' tells values|'a' tells values"),
        ({"t": {**table, "horizon": 1, "roc": ["b"]}}, {"a": still}, r"tables\.t\.roc: 'b' is none of a"),
        ({"t": {**table, "horizon": 1}}, {"a": {"model": "recurrent", "like": "b"}}, r"methods\.a\.like"),
    ):
        with pytest.raises(ValueError, match=words):
            Options.model_validate({**base, "tables": tables, "methods": methods})


def test_the_paper_is_in_the_experiment_and_not_in_the_code() -> None:
    experiment = tomllib.loads(EXPERIMENT.read_text(encoding="utf-8"))
    assert set(experiment["paper"]) <= set(experiment["methods"])
    assert experiment["paper"]["FGRU"]["rmse"] == 0.538 and experiment["paper"]["FLSTM-2"]["ba"] == 0.83
