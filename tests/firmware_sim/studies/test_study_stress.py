"""The stress study on the tiny wrists: it learns, looks at nothing it may not, and says what leaks."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedgate.config.settings.settings import SettingsError
from fedgate.firmware_sim.studies.datasets.tiny import SESSION_S, wrist, write_tiny
from fedgate.firmware_sim.studies.engine.study import Profile, StudyError, load_options
from fedgate.firmware_sim.studies.runner import measured
from fedgate.firmware_sim.studies.stress.data import STREAMS, Subject, load, normalised, with_averages
from fedgate.firmware_sim.studies.stress.methods import fit, nested
from fedgate.firmware_sim.studies.stress.options import Options
from fedgate.firmware_sim.studies.stress.rows import Row, paired
from fedgate.firmware_sim.studies.stress.study import (
    STUDY,
    combinations,
    from_late,
    prepared,
    splits,
    threshold,
    trained,
)
from fedgate.models.features.spec import FeatureSpec, extract, feature_names
from tests.support.syntax import ROOT

EXPERIMENT = ROOT / "firmware_sim" / "experiments" / "stress-predict.toml"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("data"), "streams/stress_predict_e4")


def options_of(profile: Profile = "short") -> Options:
    options = load_options(EXPERIMENT, STUDY, profile)
    assert isinstance(options, Options)
    return options


@pytest.fixture(scope="module")
def subjects(data: Path) -> tuple[Subject, ...]:
    options = options_of()
    return load(data / options.folder, options.features)


def test_the_study_runs_and_begins_with_what_leaks(data: Path, tmp_path: Path) -> None:
    run = partial(measured, "stress-predict", options_of(), data, results=tmp_path, profile="short")
    outcome = run(command="test", jobs=1, say=lambda _: None)
    by_method = {each.cell["method"]: each.figures for each in outcome.measured}
    auc = {
        name: np.mean([value for key, value in figures.items() if key.startswith("auc.")])
        for name, figures in by_method.items()
    }
    assert auc["clock alone"] > 0.9
    assert auc["ESN with a bias that hears nothing"] > 0.6
    assert min(auc["ESN, IncFed"], auc["logistic, moving averages"]) > 0.8
    gap = {key: abs(value - by_method["ESN, pooled"][key]) for key, value in by_method["ESN, IncFed"].items()}
    assert max(value for key, value in gap.items() if key.startswith(("auc.", "late."))) < 1e-9
    assert by_method["ESN, IncFed"]["bytes_up"] > by_method["ESN, pooled"]["bytes_up"] == 0.0
    first = outcome.text.splitlines()[2]
    assert first.startswith("**The protocol's order leaks: a clock that sees no signal has AUC 0.9")
    for part in (
        "ESN, IncFed is ESN, pooled of the same seed",
        "Figures within subjects are no skill",
        "± ",
        "ridge 0.1",
    ):
        assert part in outcome.text
    assert "](stress-predict-short-subjects.png)" in outcome.text
    assert (tmp_path / "stress-predict-short-subjects.png").read_bytes().startswith(b"\x89PNG")


def test_every_method_of_the_full_file_can_be_measured(data: Path, subjects: tuple[Subject, ...]) -> None:
    options = options_of("full")
    units = [normalised(each, "recording", 300.0, 60.0) for each in subjects]
    for name, method in options.methods.items():
        settings = next(combinations(method))
        quick = {**settings, **({"rounds": 1} if "rounds" in settings else {})}
        found = fit(options, method, quick, units[:2], 0)
        assert np.isfinite(found.score(units[3])).all(), name
    assert len({json.dumps(cell) for cell in STUDY.cells(options)}) == len(STUDY.cells(options))
    assert sum(cell["features"] == "none" for cell in STUDY.cells(options)) == 2


def test_windows_are_those_of_a_gateway_with_the_label_of_their_last_second(
    data: Path, subjects: tuple[Subject, ...]
) -> None:
    options, subject = options_of(), subjects[1]
    arrays = wrist(1)
    assert subject.name == "S03"
    assert subject.elapsed_s[0] == 40.0  # the slowest stream begins after 10 s
    assert set(np.diff(subject.elapsed_s)) == {5.0}
    ends = subject.elapsed_s.astype(int)
    np.testing.assert_array_equal(subject.y, arrays["label_1hz"][ends - 1])
    t = 10.0 + np.arange(1920) / 64.0
    window = np.zeros((1920, len(options.features.channels)))
    window[:, 0] = np.interp(t, np.arange(SESSION_S * 4) / 4.0, arrays["eda"])
    window[:, 1] = arrays["bvp"][640 : 640 + 1920] * 0.05
    names = feature_names(options.features)
    expected = dict(zip(names, extract(options.features, window), strict=True))
    for name in ("eda.tonic", "eda.phasic", "bvp.heart_rate", "bvp.rmssd"):
        assert subject.x[0, names.index(name)] == pytest.approx(expected[name], rel=1e-6), name
    assert sorted(c for s in STREAMS.values() for c in s.channels) == sorted(options.features.channels)


def test_who_is_reported_chooses_nothing(data: Path, tmp_path: Path) -> None:
    """With S02 a stranger, S04, left out in the same fold, is scored as before, and those it teaches are not."""
    options = options_of()
    place = tmp_path / options.folder
    place.mkdir(parents=True)
    for path in (data / options.folder).glob("S*.npz"):
        (place / path.name).symlink_to(path)
    (place / "S02.npz").unlink()
    stranger = wrist(9)
    stranger["label_1hz"] = np.where(stranger["label_1hz"] < 0, -1, 1 - stranger["label_1hz"])
    np.savez(place / "S02.npz", **stranger)
    for name in ("clock alone", "logistic, moving averages", "ESN, IncFed"):
        cell = next(cell for cell in STUDY.cells(options) if cell["method"] == name)
        before, after = (STUDY.measure(options, folder, cell) for folder in (data, tmp_path))
        same = {key for key, value in before.items() if after[key] == value}
        assert {"auc.S04", "ba.S04", "f1.S04", "late.S04"} <= same, name
        assert not {"auc.S03", "auc.S05"} <= same, name
        assert "auc.S02" not in same, name


def test_thresholds_are_chosen_on_subjects_that_did_not_train(subjects: tuple[Subject, ...]) -> None:
    options = options_of()
    units = [normalised(each, "recording", 300.0, 60.0) for each in subjects]
    method = options.methods["logistic, FedAvg"]
    found = trained(options, method, units[:2], 0)
    scores, labels = [], []
    for scored, other in ((0, 1), (1, 0)):
        fitted = fit(options, method, method.fixed, [units[other]], 0)
        scores.append(fitted.score(units[scored])[units[scored].known])
        labels.append(units[scored].y[units[scored].known])
    assert found.threshold == threshold(np.concatenate(labels), np.concatenate(scores))


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 3)), min_size=1, max_size=30))
def test_the_threshold_is_the_best_of_all(rows: list[tuple[int, int]]) -> None:
    label, score = np.array([each[0] for each in rows]), np.array([float(each[1]) for each in rows])
    assume({*label.tolist()} == {0, 1})

    def gain(least: float) -> float:
        stress, rest = score[label == 1] >= least, score[label == 0] >= least
        return float(stress.mean() - rest.mean())

    found = threshold(label, score)
    assert found in score
    assert gain(found) == pytest.approx(max(gain(least) for least in score))


def test_every_subject_is_left_out_once(subjects: tuple[Subject, ...]) -> None:
    names = [subject.name for left_out, _ in splits(subjects, 2) for subject in left_out]
    assert sorted(names) == [subject.name for subject in subjects]
    assert all(not {s.name for s in out} & {s.name for s in rest} for out, rest in splits(subjects, 2))


def test_units_of_the_first_minutes_know_nothing_of_later(subjects: tuple[Subject, ...]) -> None:
    subject = subjects[0]
    later = subject.elapsed_s > 300.0
    other = subject._replace(x=np.where(later[:, None], 10.0 * subject.x, subject.x))
    for how in ("commissioning", "moving"):
        before, after = (normalised(each, how, 300.0, 60.0).x for each in (subject, other))
        np.testing.assert_array_equal(before[~later], after[~later])
        assert np.abs(after).max() <= 8.0
    assert normalised(subject, "recording", 300.0, 60.0).x.mean(axis=0) == pytest.approx(0.0, abs=0.05)
    with pytest.raises(StudyError, match="S02: 0 windows within 30 s; expected at least 2"):
        normalised(subject, "commissioning", 30.0, 60.0)


def test_moving_averages_follow_a_step() -> None:
    step = Subject("S", np.arange(100.0), np.repeat([[0.0], [1.0]], 50, axis=0), np.zeros(100, dtype=np.int64))
    slow = with_averages(step, 5.0, [5.0, 50.0]).x
    assert slow.shape == (100, 3)
    expected = 1.0 - np.exp(-5.0 * np.arange(1, 51) / 50.0)
    np.testing.assert_allclose(slow[50:, 2], expected)
    assert not slow[:50].any()


def test_a_late_start_knows_nothing_of_before(data: Path, subjects: tuple[Subject, ...]) -> None:
    late = from_late(subjects[0], 700.0)
    assert late.elapsed_s[0] == 5.0
    assert len(late.x) == len(late.y) == int((subjects[0].elapsed_s > 700.0).sum())
    np.testing.assert_array_equal(late.x[-1], subjects[0].x[-1])
    options = options_of("full").model_copy(update={"folds": 2, "inner_folds": 2, "late_s": 700.0})
    cell = {"features": "seven", "normalisation": "moving"}
    session = prepared(options, data, cell)[0]
    assert not session.late.x[0].any()  # its own moving mean begins with it
    assert session.whole.x[-len(late.x)].any()


def test_rows_are_means_over_subjects_of_means_over_seeds() -> None:
    row = Row("a", "f", "n", ({"auc.S1": 0.6, "auc.S2": 0.8}, {"auc.S1": 0.8, "auc.S2": 0.8}))
    other = Row("b", "f", "n", ({"auc.S1": 0.5, "auc.S2": 0.8},))
    assert row.told("auc") == "0.750 ± 0.071"
    assert row.of_seeds("auc") == pytest.approx(np.std([0.7, 0.8], ddof=1))
    assert paired(row, other) == pytest.approx((0.1, 0.1))
    assert np.isnan(row.mean("late"))


def test_settings_in_tables() -> None:
    found = nested({"network.leak": 0.1, "ridge": 1.0, "network.units": 3})
    assert found == {"network": {"leak": 0.1, "units": 3}, "ridge": 1.0}


def test_identity_holds_what_a_measurement_depends_on() -> None:
    options = options_of("full")
    cell = next(cell for cell in STUDY.cells(options) if cell["method"] == "ESN, IncFed")
    known = json.dumps(STUDY.identity(options, cell))

    def changed(**update: Any) -> bool:
        return json.dumps(STUDY.identity(options.model_copy(update=update), cell)) != known

    method = options.methods["ESN, IncFed"]
    assert not changed(title="", note="", targets=[], compare=[], jobs=1, normalisations=["moving"])
    assert not changed(methods={"ESN, IncFed": method.model_copy(update={"seeds": 9, "control": True})})
    for key, value in {"grid": {}, "fixed": {}, "silent": True, "averages": True, "data": "pooled"}.items():
        assert changed(methods={"ESN, IncFed": method.model_copy(update={key: value})}), key
    others: dict[str, Any] = {"folder": "x", "folds": 3, "inner_folds": 2, "late_s": 1.0, "averages_s": [1.0]}
    others |= {"commissioning_s": 1.0, "moving_s": 1.0, "feature_sets": {"seven": ["eda.tonic"]}}
    assert all(changed(**{key: value}) for key, value in others.items())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ('algorithm = "esn-fedavg"|algorithm = "esn-fedavgg"', "algorithm: expected one of .*, got 'esn-fedavgg'"),
        ('"eda.tonic", "eda.phasic", "bvp.heart_rate", "bvp.rmssd", "d|"eda.tonik", "d', "'eda.tonik' is no feature"),
        ('feature_sets = ["seven"]|feature_sets = ["eight"]', "'eight' is none of"),
        ('feature_set = "seven"|feature_set = "eight"', "targets: 'ESN, IncFed' on 'eight' is not measured"),
        ('["ESN, IncFed", "logistic"]|["ESN, IncFed", "logistics"]', "compare: 'logistics' is no method"),
        ("window_s = 30.0|window_s = 20.0", "features"),
        ("folds = 4|folds = 1", "folds"),
    ],
)
def test_a_wrong_experiment_is_refused(change: str, reason: str, tmp_path: Path) -> None:
    text = EXPERIMENT.read_text("utf-8")
    old, _, new = change.partition("|")
    assert old in text
    path = tmp_path / "wrong.toml"
    path.write_text(text.replace(old, new, 1), "utf-8")
    with pytest.raises(SettingsError, match=reason):
        load_options(path, STUDY, "full")


def test_recordings_that_are_none_are_named(data: Path, tmp_path: Path) -> None:
    options = options_of()
    with pytest.raises(StudyError, match="expected the Stress-Predict recordings"):
        load(tmp_path, options.features)
    broken: list[tuple[dict[str, Any], str]] = [
        ({"temp_fs": None}, "array 'temp_fs' is missing; expected label_1hz"),
        ({"eda": np.append(np.zeros(400), np.full(400, np.nan))}, "stream 'eda' .*; expected no gaps"),
        ({"label_1hz": np.zeros(SESSION_S, dtype=np.int8)}, r"labels \[0\] of its windows; expected rest, 0, and"),
    ]
    for number, (change, reason) in enumerate(broken):
        arrays = {name: value for name, value in {**wrist(0), **change}.items() if value is not None}
        place = tmp_path / str(number)
        place.mkdir()
        np.savez(place / "S02.npz", **arrays)
        with pytest.raises(StudyError, match=reason):
            load(place, options.features)
    short = FeatureSpec.model_validate({**options.features.model_dump(), "window_s": 2000.0, "hop_s": 2000.0})
    with pytest.raises(StudyError, match="shorter than one window of 2000 s"):
        load(data / options.folder, short)
