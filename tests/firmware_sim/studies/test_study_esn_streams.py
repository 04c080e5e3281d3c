"""The study of sensor streams on the tiny data, and its parts against slow twins."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from fedgate.firmware_sim.studies.datasets.tiny import ROOM_LOST, write_tiny
from fedgate.firmware_sim.studies.engine.study import StudyError, load_options
from fedgate.firmware_sim.studies.esn_streams.alarms import alarms, areas, runs, watch, worth
from fedgate.firmware_sim.studies.esn_streams.data import DataSet, Part, Wrong, load
from fedgate.firmware_sim.studies.esn_streams.methods import lagged, scorers
from fedgate.firmware_sim.studies.esn_streams.options import Method, Options
from fedgate.firmware_sim.studies.esn_streams.rows import (
    CALIBRATE,
    TRAIN,
    WATCHED,
    Gateway,
    Judged,
    Streams,
    Stretch,
    judged,
    smoothed,
    training_data,
)
from fedgate.firmware_sim.studies.esn_streams.study import STUDY
from fedgate.firmware_sim.studies.runner import measured
from fedgate.models.alarms.threshold import AlarmSpec, Levels
from fedgate.models.arrays import FEATURES, MISSING, NEW_SERIES, Floats, generator
from tests.support.syntax import ROOT

EXPERIMENT = ROOT / "firmware_sim" / "experiments" / "esn-streams.toml"
SPEC = AlarmSpec(false_alarms_per_day=1.0)
PLAIN = Streams((), 1.0, merge=2)
NOTHING_WRONG = Wrong((), 0, 0)
PARTS: tuple[Part, ...] = get_args(Part)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = ("skab_pump", "keti_rooms", "z24_bridge")
    return write_tiny(tmp_path_factory.mktemp("data"), *(f"streams/{name}" for name in names))


@pytest.mark.soak
def test_the_study_runs_in_small(data: Path, tmp_path: Path) -> None:
    options = load_options(EXPERIMENT, STUDY, "short")
    outcome = measured(
        "esn-streams", options, data, results=tmp_path, profile="short", command="test", jobs=1, say=lambda _: None
    )
    by_method = {(each.cell["set"], each.cell["method"]): each.figures for each in outcome.measured}
    pump = by_method["SKAB pump", "ESN reconstructs, federated"]
    assert pump["auc"] > 0.95 and pump["anomalies"] == 8 and pump["bytes_up"] > 1_000
    assert by_method["SKAB pump", "ESN, local"]["bytes_up"] == 0
    assert by_method["KETI temperature sensors", "ESN, federated"]["recall.spike"] == 1.0
    assert by_method["Z24, a gateway for each sensor", "ESN, federated"]["fleet.auc"] > 0.95
    assert by_method["Munich", "level"]["auc"] > 0.99
    assert "| SKAB pump | AUC | ESN" in outcome.text and "Recall by kind of anomaly" in outcome.text
    assert "The best network " in outcome.text
    assert (tmp_path / "esn-streams-short-methods.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", get_args(DataSet))
def test_no_row_that_is_watched_trains_or_chooses(name: DataSet, data: Path) -> None:
    folder = {"skab": "skab_pump", "keti": "keti_rooms"}.get(name, "z24_bridge")
    for part in PARTS:
        streams = load(name, data / "streams" / folder, part, NOTHING_WRONG, ())
        for gateway in streams.gateways:
            trained = {row.tobytes() for each in gateway.stretches for row in each.x[each.role == TRAIN]}
            seen = [row.tobytes() for each in gateway.stretches for row in each.x[each.role == WATCHED]]
            assert trained and seen and trained.isdisjoint(seen)
            assert not any(
                (each.label[(each.role == TRAIN) | (each.role == CALIBRATE)] == 1).any() for each in gateway.stretches
            )


def test_what_is_reported_was_not_watched_in_development(data: Path) -> None:
    sets: tuple[tuple[DataSet, str], ...] = (("skab", "skab_pump"), ("keti", "keti_rooms"))
    for name, folder in sets:
        halves = [load(name, data / "streams" / folder, part, NOTHING_WRONG, ()).gateways for part in PARTS]
        assert not {each.name for each in halves[0]} & {each.name for each in halves[1]}
        rows = [{row.tobytes() for gateway in half for each in gateway.stretches for row in each.x} for half in halves]
        assert rows[0] and rows[0].isdisjoint(rows[1])


def test_a_gap_is_counted_and_a_copy_begins_a_series(data: Path) -> None:
    pump = load("skab", data / "streams" / "skab_pump", "reported", NOTHING_WRONG, ()).gateways[0].stretches[0]
    assert pump.missing[0] == NEW_SERIES and np.flatnonzero(pump.missing > 0).tolist() == [300]
    wrong = Wrong((3,), 1, 0)
    clean, *copies = load("keti", data / "streams" / "keti_rooms", "reported", wrong, ()).gateways[0].stretches
    assert clean.missing.max() == ROOM_LOST and not clean.label.any() and len(copies) == 6
    for copy in copies:
        assert copy.copy and copy.missing[0] == NEW_SERIES and runs(copy.label == 1) == [(288, len(copy.x))]


def test_rows_that_train_begin_a_series_each_time() -> None:
    role = np.array([0, TRAIN, TRAIN, WATCHED, TRAIN])
    stretch = Stretch(np.arange(5.0)[:, None], np.zeros(5, dtype=np.int64), role * 0, role)
    found = training_data(Gateway("a", (stretch, stretch)))
    assert found[FEATURES][:, 0].tolist() == [1.0, 2.0, 4.0] * 2
    assert found[MISSING].tolist() == [NEW_SERIES, 0, NEW_SERIES] * 2


def slow_lagged(z: Floats, begins: list[int], lags: int, targets: list[int]) -> Floats:
    rows = []
    for t in range(len(z)):
        start = max(each for each in begins if each <= t)
        row: list[float] = []
        for lag in range(0 if targets else 1, lags + 1):
            heard = [j for j in range(z.shape[1]) if j not in targets]
            row += [float(z[t - lag, j]) if t - lag >= start else 0.0 for j in heard]
        rows.append([*row, 1.0])
    return np.array(rows)


@pytest.mark.parametrize("targets", [(), (1,)])
@pytest.mark.parametrize("lags", [1, 3])
def test_lags_do_not_reach_over_the_start_of_a_series(targets: tuple[int, ...], lags: int) -> None:
    z, missing = generator(0, 0, "z").normal(size=(20, 3)), np.zeros(20, dtype=np.int64)
    missing[[0, 7, 12, 15]] = NEW_SERIES, 9, 1, NEW_SERIES  # one missing row is bridged
    found, says, usable = lagged(z, missing, lags, targets)
    assert np.array_equal(found, slow_lagged(z, [0, 7, 15], lags, list(targets)))
    assert np.array_equal(says, z[:, [1]] if targets else z)
    assert np.flatnonzero(~usable).tolist() == [start + k for start in (0, 7, 15) for k in range(lags)]


def test_one_gateway_alone_gains_nothing_by_federation(data: Path) -> None:
    streams = load("skab", data / "streams" / "skab_pump", "reported", NOTHING_WRONG, ())
    alone = streams._replace(gateways=streams.gateways[:1])
    part = alone.gateways[0].stretches[0]
    for model, chosen in (("lags", {"lags": 2, "ridge": 0.01}), ("esn", {"units": 20, "leak": 1.0})):
        one, two = (
            scorers(Method.model_validate({"model": model, "data": way}), chosen, alone, (), 0)[0]["valve1/8"](
                part.x, part.missing
            )
            for way in ("federated", "local")
        )
        assert np.array_equal(one, two)


def test_windows_and_smoothing_are_means_of_squares() -> None:
    scores = generator(0, 0, "scores").normal(size=23)
    zero = np.zeros(23, dtype=np.int64)
    streams = Streams((), 0.5, merge=1, window_rows=5, skipped_rows=2)
    found = judged(streams, Stretch(scores[:, None], zero, zero, zero + WATCHED), scores)
    assert np.allclose(found.score, [np.log(np.exp(scores[k + 2 : k + 5]).mean()) for k in range(0, 20, 5)])
    plain = Judged(scores, zero, zero, "", copy=False)
    slow = [np.log(np.exp(scores[max(k - 2, 0) : k + 1]).mean()) for k in range(23)]
    assert np.allclose(smoothed(plain, 3).score, slow) and streams.windows_per_day == 86_400 / 2.5


def test_alarms_near_each_other_are_one() -> None:
    levels = Levels(raise_level=2.0, clear_level=1.0, median=0.0, samples=100, extrapolated=False)
    scores = np.array([0, 3, 1.5, 0, 0, 3, 0, 0, 0, 0, 3, 3])
    assert alarms(scores, levels, SPEC, PLAIN._replace(merge=3)) == [(1, 5), (10, 11)]
    assert alarms(scores, levels, SPEC, PLAIN) == [(1, 2), (5, 5), (10, 11)]


def watched(score: list[float], label: list[int], kind: str = "", *, copy: bool = False) -> Judged:
    return Judged(np.array(score), np.array(label), np.full(len(score), WATCHED), kind, copy)


def test_an_alarm_counts_for_where_it_begins() -> None:
    quiet = generator(0, 0, "quiet").normal(size=2_000)
    calm = Judged(quiet, np.zeros(2_000, dtype=np.int64), np.full(2_000, CALIBRATE), "", copy=False)
    high = 100.0
    parts = [
        calm,
        watched([0, 0, 0, high, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0, 0, 0], "late"),
        watched([0, high, high, high, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0, 0, 0], "hidden"),
        watched([high, 0, 0, 0, 0, 0, high, 0], [0, 0, 0, 0, 0, 0, 1, 1], "copied", copy=True),
        watched([0, 0, 0, high, 0, 0, 0, 0], [0] * 8),
    ]
    found = watch(PLAIN, parts, 1.0)
    assert [(each.kind, each.after) for each in found.found] == [("late", 2), ("hidden", None), ("copied", 1)]
    assert found.false_alarms == 2  # where one hid an anomaly, and the last; not in the copy
    assert found.days == pytest.approx((6 + 6 + 8) / 86_400)
    figures = worth(PLAIN, [found])
    assert figures["recall"] == pytest.approx(2 / 3) and figures["recall.hidden"] == 0 and figures["delay_s"] == 1.5


def test_areas_are_means_over_gateways_and_kinds() -> None:
    windows = {
        "a": [watched([0, 1, 2, 3], [0, 0, 1, 1], "x"), watched([9, 0.5], [0, 1], "y", copy=True)],
        "b": [watched([0, 1, 0.5], [0, 0, 1], "x")],
        "c": [watched([0, 1], [0, 0])],
    }
    assert areas(windows) == {"auc": pytest.approx((0.75 + 0.5) / 2), "auc.x": 0.75, "auc.y": 0.5}


def test_wrong_options_and_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"0\.csv\.gz is missing"):
        load("skab", tmp_path, "development", NOTHING_WRONG, ())
    with pytest.raises(StudyError, match=r"0 rooms of 1800 rows"):
        load("keti", tmp_path, "development", NOTHING_WRONG, ())
    with pytest.raises(StudyError, match=r"expected the Z24 recordings"):
        load("z24 setups", tmp_path, "development", NOTHING_WRONG, ())
    base = {"study": "esn-streams", "title": "x"}
    level = {"model": "level", "task": "reconstruct"}
    one_set = {"data": "munich", "methods": ["a"], "false_alarms_per_day": 1}
    for methods, words in (
        ({"a": {"model": "level", "grid": {"lags": [1]}}}, "methods.a: level has no setting 'lags', expected none"),
        ({"b": {"model": "level"}}, "sets.s.methods: 'a' is none of b"),
        ({"a": level}, "sets.s.targets: expected the columns that 'a' reconstructs, got none"),
    ):
        with pytest.raises(ValueError, match=words):
            Options.model_validate({**base, "sets": {"s": one_set}, "methods": methods})
