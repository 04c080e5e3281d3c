"""The bridges study on the tiny recordings, and on the Munich ones that come with the package."""

from __future__ import annotations

import inspect
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate.config.settings.settings import SettingsError
from fedgate.firmware_sim.studies.bridges.data import Spectrum, load
from fedgate.firmware_sim.studies.bridges.methods import Method, View, calibrated, scores, task
from fedgate.firmware_sim.studies.bridges.options import Options
from fedgate.firmware_sim.studies.bridges.rows import Row, apart, chosen_rows
from fedgate.firmware_sim.studies.bridges.study import STUDY
from fedgate.firmware_sim.studies.bridges.verdicts import verdicts
from fedgate.firmware_sim.studies.datasets.tiny import write_tiny
from fedgate.firmware_sim.studies.engine.study import Figures, Profile, StudyError, load_options
from fedgate.firmware_sim.studies.runner import Outcome, measured
from fedgate.models.federated import ALGORITHMS
from tests.support.syntax import ROOT

EXPERIMENTS = ROOT / "firmware_sim" / "experiments"
SENSORS = ("ref1", "ref2", "ref3")
SPECTRUM = Spectrum(window_s=20.48, low_hz=2.0, high_hz=20.0, segment_s=2.56, overlap=2)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("data"), "streams/z24_bridge", "streams/cwru_bearing")


def ran(name: str, data: Path, results: Path, profile: Profile = "short") -> Outcome:
    options = load_options(EXPERIMENTS / f"{name}.toml", STUDY, profile)
    run = partial(measured, name, options, data, results=results, profile=profile)
    return run(command="test", jobs=1, say=lambda _: None)


def test_the_table_of_the_bridge_is_reproduced_in_small(data: Path, tmp_path: Path) -> None:
    outcome = ran("z24-table-2", data, tmp_path)
    for each in outcome.measured:
        if each.cell["method"] != "SVE":
            assert each.figures["fleet.auc"] > 0.9, each.cell
        assert {"state.05", "state.17", "choose", "gateway.false_per_hour"} <= each.figures.keys()
        assert "state.08" not in each.figures
    assert "| federated subspace |" in outcome.text
    assert "Target, a federated method at 0.94 or above" in outcome.text
    assert re.search(
        r"^- SVE \d\.\d{3} ± 0\.\d{3} on the spectrum, \d\.\d{3} ± 0\.\d{3} whitened: ", outcome.text, re.M
    )
    counts = {(int(each.figures["healthy"]), int(each.figures["damaged"])) for each in outcome.measured}
    assert counts == {(40, 40)}  # 2 setups x 2 states x 10 windows of 20.48 s
    assert "These are 40 healthy and 40 damaged windows, which do not overlap." in outcome.text
    assert "Highest AUC of a federated fleet: " in outcome.text
    assert "](z24-table-2-short-setups.png)" in outcome.text
    assert (tmp_path / "z24-table-2-short-setups.png").read_bytes().startswith(b"\x89PNG")


def test_the_curves_are_drawn(data: Path, tmp_path: Path) -> None:
    outcome = ran("z24-rounds", data, tmp_path)
    assert len(outcome.measured) == 2 * (2 + 2)
    assert "effect of rounds" in outcome.text
    assert "| always in alarm | 0.667 | 0.667 |" in outcome.text  # as many damaged as healthy windows
    for strange in ("trivial baseline", "confidential", "both ways round"):
        assert strange not in outcome.text
    for key in ("rounds", "epochs"):
        assert (tmp_path / f"z24-rounds-short-{key}.png").stat().st_size > 1_000


@pytest.mark.parametrize("name", ["cwru", "munich"])
def test_recordings_without_setups_are_split_in_time(name: str, data: Path, tmp_path: Path) -> None:
    outcome = ran(name, data, tmp_path)
    best = {each.cell["method"]: each.figures["fleet.auc"] for each in outcome.measured}
    assert best["federated subspace"] > 0.95
    assert "Nothing is tuned" in outcome.text
    head = outcome.text.split("| method |")[1].splitlines()[0]
    for absent in ("choice", "tried", "F in the paper"):
        assert absent not in head
    assert ("false share fleet" in head) == (name == "cwru")  # windows of 0.04 s
    assert "confidential" not in outcome.text


def test_every_experiment_offers_what_the_algorithms_take(data: Path) -> None:
    """One round of every method of the full files, so that a setting that was renamed is found before an hour's run."""
    for path in sorted(EXPERIMENTS.glob("*.toml")):
        if 'study = "bridges"' not in path.read_text("utf-8"):
            continue
        options = load_options(path, STUDY, "full")
        assert isinstance(options, Options)
        bridge = load("z24", data / "streams" / "z24_bridge", SPECTRUM)
        split = task(bridge, "sensors", [1], [4])
        first = {cell["method"]: cell["settings"] for cell in reversed(STUDY.cells(options))}
        for name, settings in first.items():
            factory = ALGORITHMS.get(options.methods[name].algorithm)
            runs_many = factory is not None and "rounds" in inspect.signature(factory).parameters
            once = {**settings, "rounds": 1} if runs_many else settings
            found, _ = scores(options.methods[name], once, split.train, split.test, 0)
            assert all(np.isfinite(each).all() for each in found.values()), name


def test_views_give_gateways_their_own_windows(data: Path) -> None:
    bridge = load("z24", data / "streams" / "z24_bridge", SPECTRUM)
    features = bridge.fine.x.shape[2]
    shapes: dict[View, tuple[set[str], int]] = {
        "sensors": ({"ref1", "ref2", "ref3"}, features),
        "setups": ({"setup 1", "setup 3"}, 3 * features),
        "sensor x setup": ({f"{sensor}, setup {setup}" for sensor in SENSORS for setup in (1, 3)}, features),
    }
    for view, (names, width) in shapes.items():
        split = task(bridge, view, [1, 3], [4])
        assert set(split.train) == set(split.test) == names
        assert {rows.shape[1] for rows in (*split.train.values(), *split.test.values())} == {width}
        assert {len(rows) for rows in split.test.values()} == {len(split.label)}
        assert not any((split.early[name] & split.held[name]).any() for name in names)
    assert set(split.state) == {"01", "02", "05", "17"}


def test_what_is_tested_calibrates_nothing(data: Path) -> None:
    bridge = load("z24", data / "streams" / "z24_bridge", SPECTRUM)
    split = task(bridge, "sensors", [1, 2], [4])
    method = Method(algorithm="federated-subspace")
    whole = calibrated(method, {"components": 4}, split, 0)
    keep = split.label == 0
    test = {name: rows[keep] for name, rows in split.test.items()}
    healthy = calibrated(method, {"components": 4}, split._replace(test=test), 0)
    for name, z in healthy.z.items():
        np.testing.assert_array_equal(z, whole.z[name][keep])


def test_the_choice_is_made_where_it_may_be(data: Path) -> None:
    options = load_options(EXPERIMENTS / "z24-table-2.toml", STUDY, "short")
    assert isinstance(options, Options)
    cells = STUDY.cells(options)
    mine = [cell for cell in cells if cell["method"] == "federated subspace"]
    results = [(cell, {"choose": 0.5 + 0.1 * k, "fleet.auc": 0.9 - 0.1 * k}) for k, cell in enumerate(mine)]
    (row,) = chosen_rows(options, results, "setups")
    assert row.cell == mine[-1]
    assert row.figures["fleet.auc"] == pytest.approx(0.8)


def figures_of(auc: float, choose: float = 0.5) -> Figures:
    return {"choose": choose, "fleet.auc": auc, "damaged": 112.0, "healthy": 28.0, "bytes_up": 1.0}


@pytest.mark.parametrize(("first", "second", "clear"), [(0.95, 0.80, True), (0.95, 0.93, False), (1.0, 1.0, False)])
def test_less_than_the_error_tells_nothing_apart(first: float, second: float, clear: bool) -> None:
    above, below = (Row("", {}, figures_of(auc), 1) for auc in (first, second))
    assert (apart(above, below) > 0) == (apart(below, above) < 0) == clear


def test_verdicts_name_what_is_within_the_error() -> None:
    options = load_options(EXPERIMENTS / "z24-table-2.toml", STUDY, "full")
    assert isinstance(options, Options)
    measured_aucs = {  # by method and normalisation: what is reported, and what chose
        ("federated subspace", "own"): (0.99, 0.6),
        ("SVE", "own"): (0.60, 0.6),
        ("SVE", "none"): (0.94, 0.5),
        ("SVE, whitened", "own"): (0.70, 0.5),
        ("SVE, whitened", "none"): (0.95, 0.6),
        ("PCA residual, local", None): (0.96, 0.9),
    }
    results = [
        ({"method": name, "view": "sensors", "settings": {"normalisation": mode} if mode else {}}, figures_of(*each))
        for (name, mode), each in measured_aucs.items()
    ]
    best, target, lifted, below = verdicts(options, results, "sensors").splitlines()
    assert best.startswith("- Highest AUC of a federated fleet: federated subspace 0.990 ± 0.007; also the highest")
    assert "reached by federated subspace 0.990 ± 0.007. Not told apart from it: SVE, whitened 0.950" in target
    assert "whitened: raised. At equal normalisation `own` 0.600, 0.700: raised" in lifted
    assert lifted.endswith("`none` 0.940, 0.950: not told apart.")
    assert below.startswith("- Below PCA residual, local 0.960 ± ")
    assert "as a fleet: SVE. Not told apart from it: SVE, whitened." in below


def test_identity_holds_what_a_measurement_depends_on() -> None:
    options = load_options(EXPERIMENTS / "z24-table-2.toml", STUDY, "full")
    assert isinstance(options, Options)
    cell = next(cell for cell in STUDY.cells(options) if cell["method"] == "SVE")
    known = json.dumps(STUDY.identity(options, cell))

    def changed(**update: Any) -> bool:
        return json.dumps(STUDY.identity(options.model_copy(update=update), cell)) != known

    sve, other = options.methods["SVE"], options.methods["FedAvg"]
    assert not changed(title="", note="", paper={}, targets={}, local="SVE", jobs=1)
    assert not changed(methods={"SVE": sve.model_copy(update={"grid": {}}), "new": other})
    assert not changed(spectra=[*options.spectra, SPECTRUM])
    assert changed(methods={"SVE": sve.model_copy(update={"data": "local"})})
    assert changed(methods={"SVE": sve.model_copy(update={"algorithm": "fedavg"})})
    assert changed(spectra=[SPECTRUM])
    assert all(changed(**{key: value}) for key, value in _OTHER.items())


_OTHER = {
    "data_set": "cwru",
    "folder": "x",
    "train_setups": [1],
    "test_setups": [4],
    "seed": 1,
    "sweep": {"rounds": [1]},
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ('local = "PCA residual, local"|local = "none"', "local: 'none' is no method; expected one of"),
        ("test_setups = [4, 5]|test_setups = [3, 4]", "test_setups: setup 3 trains as well"),
        ("train_setups = [1, 2, 3]|train_setups = [1]", "settings are chosen among training setups"),
        ("window_s = 81.92|window_s = 0.0", "window_s"),
        ("whiten = [10, 20]|whitn = [10, 20]", "has no setting 'whitn'"),
        ('algorithm = "fedprox"|algorithm = "fedproxx"', "algorithm: expected one of .*, got 'fedproxx'"),
    ],
)
def test_a_wrong_experiment_is_refused(change: str, reason: str, tmp_path: Path) -> None:
    text = (EXPERIMENTS / "z24-table-2.toml").read_text("utf-8")
    old, _, new = change.partition("|")
    path = tmp_path / "wrong.toml"
    path.write_text(text.replace(old, new), "utf-8")
    with pytest.raises(SettingsError, match=reason):
        load_options(path, STUDY, "full")


def test_missing_recordings_are_named(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="expected the Z24 recordings"):
        load("z24", tmp_path, SPECTRUM)
    np.savez(tmp_path / "state01.npz", acc=np.zeros((1, 10, 3)))
    with pytest.raises(StudyError, match="array 'channels' is missing; expected acc"):
        load("z24", tmp_path, SPECTRUM)


def test_what_is_reported_chooses_neither_settings_nor_alarm_level(data: Path) -> None:
    options = load_options(EXPERIMENTS / "z24-table-2.toml", STUDY, "short")
    cell = STUDY.cells(options)[0]
    figures = [
        STUDY.measure(options.model_copy(update={"test_setups": [setup]}), data, {**cell, "view": "sensors"})
        for setup in (4, 5)
    ]
    assert figures[0]["level"] == figures[1]["level"] != 3.0
    assert figures[0]["choose"] == figures[1]["choose"] > 0.5
