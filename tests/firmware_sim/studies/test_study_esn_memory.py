"""The study of memory on the tiny data; its series, losses and curve against twins."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedgate.firmware_sim.studies.datasets.tiny import HEALTHY_DAYS, write_tiny
from fedgate.firmware_sim.studies.engine.study import StudyError, load_options
from fedgate.firmware_sim.studies.esn_memory.models import EQUAL_LAGS, MEMORYLESS, NETWORK, losses, tried
from fedgate.firmware_sim.studies.esn_memory.options import Capacity, Grid, TaskOptions
from fedgate.firmware_sim.studies.esn_memory.study import STUDY, capacity
from fedgate.firmware_sim.studies.esn_memory.tasks import (
    CHOOSE,
    REPORT,
    TRAIN,
    Task,
    in_time,
    mackey_glass,
    narma,
    task,
)
from fedgate.firmware_sim.studies.runner import measured
from fedgate.models.arrays import NEW_SERIES, generator
from tests.support.syntax import ROOT

EXPERIMENT = ROOT / "firmware_sim" / "experiments" / "esn-memory.toml"
GRID = Grid(leak=[1.0], spectral_radius=[0.9], input_scaling=[0.1], ridge=[1e-6, 1e-18], lags=[3])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = ("skab_pump", "hvac_fdd", "cwru_bearing", "uci_occupancy")
    return write_tiny(tmp_path_factory.mktemp("data"), *(f"streams/{name}" for name in names))


@pytest.mark.soak
def test_the_study_runs_in_small(data: Path, tmp_path: Path) -> None:
    options = load_options(EXPERIMENT, STUDY, "short")
    outcome = measured(
        "esn-memory", options, data, results=tmp_path, profile="short", command="test", jobs=1, say=lambda _: None
    )
    loss = {
        (each.cell["task"], each.cell["model"]): each.figures["loss"]
        for each in outcome.measured
        if each.cell["task"] != "capacity"
    }
    for name in ("NARMA-10", "supply air temperature", "bearing condition"):
        assert loss[name, NETWORK] < 0.8 * loss[name, MEMORYLESS], name
    assert loss["NARMA-10", "mean or majority"] == pytest.approx(1.0, abs=0.1)
    assert loss["pump valve closed", "mean or majority"] == 0.5
    assert loss["bearing condition", "logistic on the window's spectrum"] == 0.0
    assert "Ahead of ridge on lags" in outcome.text and "| NARMA-10 | NRMSE, lower is better | 0." in outcome.text
    for name in ("settings", "capacity"):
        assert (tmp_path / f"esn-memory-short-{name}.png").read_bytes().startswith(b"\x89PNG")


def test_narma_is_the_recursion_that_is_printed() -> None:
    u, y, last = narma(40, generator(0, 0, "narma"))
    known = dict.fromkeys(range(10), 0.0)
    for t in range(9, 40):
        tail = sum(known[t - i] for i in range(10))
        known[t + 1] = 0.3 * known[t] + 0.05 * known[t] * tail + 1.5 * u[t - 9] * u[t] + 0.1
    assert np.allclose(y[9:], [known[t] for t in range(10, 41)])
    assert np.array_equal(last[1:], y[:-1]) and u.min() >= 0.0 and u.max() <= 0.5


def test_mackey_glass_stays_on_its_attractor_and_follows_its_equation() -> None:
    x = mackey_glass(600, generator(0, 0, "glass"))
    assert 0.2 < x.min() < 0.5 and 1.2 < x.max() < 1.5 and x.shape == (600,)
    slope = 0.2 * x[:-18] / (1.0 + x[:-18] ** 10) - 0.1 * x[17:-1]  # at t - 17 and t
    # Over one unit of time the slope changes little: the mean of both its ends is the change, to a few percent.
    change, mean = np.diff(x)[17:-1], 0.5 * (slope[:-1] + slope[1:])
    assert np.corrcoef(change, mean)[0, 1] > 0.999
    assert not np.array_equal(x, mackey_glass(600, generator(1, 0, "glass")))


def test_a_network_without_recurrence_remembers_nothing_and_one_with_it_much() -> None:
    options = Capacity(units=30, rows=2_000, delays=40, leak=[1.0], spectral_radius=[0.9])
    none, some = (capacity(options, 1.0, radius, 0) for radius in (0.0, 0.9))
    assert none["total"] < 0.5 and some["delay.1"] > 0.99
    assert 5.0 < some["total"] <= 31.0
    assert some["total"] == pytest.approx(sum(value for key, value in some.items() if key.startswith("delay.")))


@pytest.mark.parametrize(
    ("kind", "folder"),
    [("air handling", "hvac_fdd"), ("bearing", "cwru_bearing"), ("occupancy", "uci_occupancy"), ("pump", "skab_pump")],
)
def test_every_stream_is_cut_into_parts_that_are_series_of_their_own(kind: str, folder: str, data: Path) -> None:
    options = TaskOptions.model_validate({"kind": kind, "folder": folder})
    given = task(options, data / "streams" / folder, generator(0, 0, kind))
    assert given.missing[0] == NEW_SERIES and set(given.part.tolist()) == {TRAIN, CHOOSE, REPORT}
    assert len(given.inputs) == len(given.targets) == len(given.part) == len(given.missing)
    if kind == "air handling":
        changes = np.flatnonzero(np.diff(given.part)) + 1
        assert (given.missing[changes] == NEW_SERIES).all()
        assert len(given.inputs) == 1_440 * len(HEALTHY_DAYS)  # faulty days are left out
    if given.window is not None:
        for each in np.unique(given.window):
            assert len(np.unique(given.part[given.window == each])) == 1


def classification(classes: list[int], window: list[int], part: list[int]) -> Task:
    count = len(classes)
    zero = np.zeros(count, dtype=np.int64)
    return Task(np.zeros((count, 1)), np.eye(2)[classes], zero, np.array(part), np.array(window))


def test_losses_by_hand() -> None:
    given = classification([0, 0, 0, 0, 1, 1, 0, 1], [0, 0, 1, 1, 2, 2, 3, 4], [REPORT] * 6 + [CHOOSE] * 2)
    said = np.array([[3, 0], [0, 1], [0, 1], [0, 1], [0, 1], [0, 1], [1, 0], [1, 0]], dtype=float)
    choose, reported = losses(given, said)
    assert reported == pytest.approx(1.0 - (0.5 + 1.0) / 2) and choose == pytest.approx(0.5)
    y = np.array([[0.0], [2.0], [1.0], [3.0]])
    regression = Task(y, y, np.zeros(4, dtype=np.int64), np.array([CHOOSE, CHOOSE, REPORT, REPORT]))
    assert losses(regression, y + 0.5) == pytest.approx((0.5, 0.5))


def test_lags_hold_as_many_parameters_and_a_ridge_too_small_is_passed_over() -> None:
    u = generator(0, 0, "u").normal(size=(300, 2))
    u = np.concatenate([u, u[:, :1]], axis=1)  # the same twice: no readout without a ridge
    missing = np.zeros(300, dtype=np.int64)
    missing[0] = NEW_SERIES
    given = Task(u, np.roll(u[:, :1], 2, axis=0), missing, in_time(300))
    rng = generator(0, 0, "reservoir")
    (equal,) = tried(EQUAL_LAGS, given, GRID, 20, rng)
    assert equal[0]["ridge"] == 1e-6 and equal[2] == 3 * (21 // 3 + 1) + 1
    assert losses(given, equal[1])[1] < 0.05  # what is asked for is two rows ago
    (alone,) = tried(MEMORYLESS, given, GRID, 20, rng)
    assert losses(given, alone[1])[1] > 0.9
    (network, *_) = tried(NETWORK, given, GRID, 20, rng)
    assert network[2] == 20 + 3 + 1 and losses(given, network[1])[1] < losses(given, alone[1])[1]


def test_missing_files_and_columns_are_named(tmp_path: Path, data: Path) -> None:
    rng = generator(0, 0, "none")
    for kind, words in (("bearing", r"normal\.npz is missing"), ("occupancy", r"datatraining\.csv\.gz is missing")):
        with pytest.raises(StudyError, match=words):
            task(TaskOptions.model_validate({"kind": kind}), tmp_path, rng)
    (tmp_path / "mzvav_2_1.csv.gz").write_bytes((data / "streams/uci_occupancy/datatest.csv.gz").read_bytes())
    with pytest.raises(StudyError, match="column 'AHU: Outdoor Air Temperature' is missing; found row, date"):
        task(TaskOptions(kind="air handling"), tmp_path, rng)
