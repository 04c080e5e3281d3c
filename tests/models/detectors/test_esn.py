"""The echo state network as a detector: against a loop over steps, in pieces, over gaps, and for what it is there."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.gateway_agent.deployment.session import Scorer
from fedgate.models.arrays import NEW_SERIES, Array, Arrays, Floats
from fedgate.models.detectors.base.checks import DataError, SettingError
from fedgate.models.detectors.esn import esn, reservoir, ridge_readout
from fedgate.models.detectors.esn.esn_graph import graph
from fedgate.models.detectors.esn.network import EchoStateWarning, Network
from tests.support.rounding import rounding

FEATURES = 6
SMALL = {"units": 25, "leak": 0.5, "washout": 10, "input_scaling": 0.5}
SETTINGS: dict[str, dict[str, Any]] = {
    "predict": {},
    "predict, two layers": {"layers": 2, "direct": False},
    "predict, steps": {"steps": 3},
    "reconstruct": {"task": "reconstruct", "targets": (4, 1)},
    "reconstruct, steps": {"task": "reconstruct", "targets": (1,), "steps": 2, "layers": 2},
    "classify": {"task": "classify"},
    "classify, steps": {"task": "classify", "classes": 3, "steps": 2},
}


def stream(seed: int, rows: int = 240) -> Floats:
    """Return rows (n, F) of a damped oscillation that noise keeps going, seen by all features in different phases."""
    rng, point, rows_seen = np.random.default_rng(seed), np.zeros(2), []
    turn = 0.98 * np.array([[np.cos(0.5), -np.sin(0.5)], [np.sin(0.5), np.cos(0.5)]])
    for _ in range(rows):
        point = turn @ point + 0.2 * rng.normal(size=2)
        rows_seen.append([*point, *(-point), point.sum(), rng.normal()])
    return np.array(rows_seen)


def network_of(kind: str) -> Network:
    return Network.model_validate({**SMALL, **SETTINGS[kind]})


def fitted(kind: str, rows: int = 240) -> Arrays:
    x, network = stream(1, rows), network_of(kind)
    y = np.arange(rows) // 7 % network.classes if network.task == "classify" else None
    return esn.fit(x, y, np.random.default_rng(2), network=network)


@pytest.fixture(scope="module", params=SETTINGS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def params(kind: str) -> Arrays:
    return fitted(kind)


def by_hand(params: Arrays, x: Array, missing: Array | None = None) -> Floats:
    """Return the scores (n,), one time step after another, in float64."""
    weights, count = reservoir.drawn(params), int(params["steps"])
    seen, direct = params["observed"] > 0.0, bool(params["direct"])
    start = [np.zeros(len(layer.bias)) for layer in weights.layers]
    state, said_before, scores = start, None, []
    nothing = np.concatenate([*start, np.zeros(direct * int(seen.sum())), [1.0]])
    for row, gap in zip(x, np.zeros(len(x)) if missing is None else missing, strict=True):
        if gap == NEW_SERIES or gap > params["max_gap"]:
            state, said_before = start, None
        errors, voices = [], []
        for u in (row[step::count] for step in range(count)):
            heard = np.clip(u[seen], -params["clip"], params["clip"])
            new, below = [], heard
            for layer, old in zip(weights.layers, state, strict=True):
                force = below @ layer.input.astype(float) + layer.bias + layer.recurrent.astype(float) @ old
                below = (1.0 - weights.leak) * old + weights.leak * np.tanh(force)
                new.append(below)
            said = params["readout"] @ np.concatenate([*new, heard[: direct * len(heard)], [1.0]])
            voices.append(said)
            if "targets" in params:
                expected = said
                if params["ahead"]:
                    expected = params["readout"] @ nothing if said_before is None else said_before
                errors.append((u[params["targets"]] - expected) ** 2 / params["variance"])
            state, said_before = new, said
        if errors:
            scores.append(np.log(np.mean(errors) + 1e-6) - np.log(params["border"] + 1e-6))
        else:
            voice = np.mean(voices, axis=0)
            scores.append(voice[1:].max() - voice[0])
    return np.array(scores)


def test_the_score_is_that_of_a_loop_over_steps(params: Arrays) -> None:
    x = 2.0 * stream(3, 60)
    missing = np.where(np.arange(60) == 20, NEW_SERIES, np.where(np.arange(60) == 40, 3, 0))
    missing[50] = 2  # bridged
    for gaps in (None, missing):
        np.testing.assert_allclose(esn.carried(params, x, gaps)[0], by_hand(params, x, gaps), rtol=0.0, atol=2e-4)
    np.testing.assert_array_equal(esn.score(params, x), esn.carried(params, x)[0])


@pytest.mark.soak
@given(cuts=st.lists(st.integers(0, 50), max_size=5))
@settings(deadline=None, max_examples=15)
def test_a_stream_in_pieces_scores_as_the_whole_here_and_in_onnx(cuts: list[int]) -> None:
    x = stream(4, 50).astype(np.float32)
    for kind in SETTINGS:
        params, scorer, whole, allowed = _given(kind)
        pieces, exported, place, memory = [], [], Arrays(), Arrays()
        for piece in np.split(x, sorted(cuts)):
            found, place = esn.carried({**params, **place}, piece)
            pieces.append(found)
            if len(piece):
                found, memory = scorer.carried(piece, memory)
                exported.append(found)
        for found in (np.concatenate(pieces), np.concatenate(exported)):
            np.testing.assert_array_less(np.abs(found - whole), allowed)
        assert memory.keys() == place.keys() <= {"state", "last"}
        for name in place:
            np.testing.assert_allclose(memory[name], place[name], rtol=0.0, atol=1e-5)


@cache
def _given(kind: str) -> tuple[Arrays, Scorer, Floats, Floats]:
    params, x = fitted(kind), stream(4, 50).astype(np.float32)
    return params, Scorer(graph(params, ("center", "scale")), {}), esn.score(params, x), rounding(params, x)


def test_the_graph_says_how_long_it_takes_to_begin_and_what_it_bridges(kind: str, params: Arrays) -> None:
    scorer = Scorer(graph(params, ()), {})
    assert scorer.washout_rows == {1: 10, 2: 5, 3: 4}[network_of(kind).steps]
    assert scorer.max_gap_rows == 2


def test_the_graph_gives_the_outputs_of_classes() -> None:
    import onnxruntime

    params, x = fitted("classify, steps"), stream(5, 30)
    session = onnxruntime.InferenceSession(graph(params, ()), providers=["CPUExecutionProvider"])
    (found,) = session.run(["outputs"], {"x": x.astype(np.float32)})
    assert found.shape == (30, 3)
    np.testing.assert_allclose(found, esn.outputs(params, x), rtol=0.0, atol=1e-4)


def test_one_output_alone_is_the_score() -> None:
    params = fitted("classify")
    alone = {**params, "readout": params["readout"][1:] - params["readout"][:1]}
    x = stream(6, 40)
    np.testing.assert_allclose(esn.score(alone, x), esn.score(params, x), rtol=0.0, atol=1e-5)
    exported = Scorer(graph(alone, ()), {})(x)
    np.testing.assert_allclose(exported, esn.score(alone, x), rtol=0.0, atol=1e-4)


def test_one_wild_row_is_forgotten(params: Arrays) -> None:
    x = stream(7, 160)
    for value in (np.nan, np.inf, 1e12):
        wild = x.copy()
        wild[5, 0] = value
        scores = esn.score(params, wild)
        assert np.isfinite(scores[5]) == np.isfinite(value)
        assert np.isfinite(np.delete(scores, 5)).all()
        np.testing.assert_allclose(scores[140:], esn.score(params, x)[140:], rtol=0.0, atol=1e-3)
        exported = Scorer(graph(params, ()), {})(wild)
        np.testing.assert_allclose(np.delete(exported, 5), np.delete(scores, 5), rtol=0.0, atol=1e-3)
        assert np.isfinite(exported[5]) == np.isfinite(value)


def test_which_steps_teach() -> None:
    params = esn.initial(np.random.default_rng(0), Network(units=5, washout=3, max_gap=2), FEATURES)
    missing = np.array([0, 0, 0, 0, 0, 2, 0, 3, 0, 0, 0, 0, NEW_SERIES, 0, 0, 0])
    regressors, usable = esn.states_of(params, stream(8, 16), missing)
    assert regressors.shape == (16, 5 + FEATURES + 1)
    assert np.flatnonzero(usable).tolist() == [3, 4, 6, 10, 11, 15]  # not 5, whose predecessor is missing
    classes = esn.initial(np.random.default_rng(0), Network(task="classify", units=5, washout=3), FEATURES)
    assert np.flatnonzero(esn.states_of(classes, stream(8, 16), missing)[1]).tolist() == [3, 4, 5, 6, 10, 11, 15]
    at_once = esn.initial(np.random.default_rng(0), Network(units=5, washout=0), FEATURES)
    assert np.flatnonzero(~esn.states_of(at_once, stream(8, 16), missing)[1]).tolist() == [0, 5, 7, 12]


def test_steps_of_a_row_follow_one_another() -> None:
    params = esn.initial(np.random.default_rng(0), Network(units=5, steps=3, washout=4), FEATURES)
    x = np.arange(12.0).reshape(2, 6)  # two channels of three steps
    np.testing.assert_array_equal(esn.steps_of(params, x), [[0, 3], [1, 4], [2, 5], [6, 9], [7, 10], [8, 11]])
    assert np.flatnonzero(esn.states_of(params, x)[1]).tolist() == [4, 5]
    assert not esn.states_of(params, x, np.array([0, 3]))[1].any()


def test_a_prediction_is_made_of_what_came_before() -> None:
    params = esn.initial(np.random.default_rng(0), Network(units=5), FEATURES)
    x = stream(9, 30)
    changed = np.where(np.arange(30)[:, None] == 20, 100.0, x)
    before, after = (esn.states_of(params, rows)[0] for rows in (x, changed))
    np.testing.assert_array_equal(before[:21], after[:21])
    assert (after[21, 5:-1] == params["clip"]).all()
    np.testing.assert_array_equal(before[0], [0.0] * (5 + FEATURES) + [1.0])


def test_a_fit_is_ridge_regression_on_the_steps_that_teach(kind: str, params: Arrays) -> None:
    network, x = network_of(kind), stream(1)
    regressors, usable = esn.states_of(params, x)
    if network.task == "classify":
        targets = np.repeat(np.eye(network.classes)[np.arange(len(x)) // 7 % network.classes], network.steps, axis=0)
    else:
        targets = esn.steps_of(params, x)[:, params["targets"]]
    found = ridge_readout.solve(ridge_readout.sums(regressors[usable], targets[usable]), 0.01)
    np.testing.assert_allclose(params["readout"], found.weights, rtol=0.0, atol=1e-10)
    untrained = esn.initial(np.random.default_rng(2), network, FEATURES)
    assert untrained["readout"].shape == params["readout"].shape
    assert untrained.keys() == params.keys()
    assert params["readout"].shape == (network.outputs(FEATURES), network.readout_size(FEATURES))


def test_about_a_twentieth_of_healthy_rows_is_past_the_border() -> None:
    rng = np.random.default_rng(10)
    params = esn.fit(rng.normal(size=(1_000, 4)), None, rng, network=Network(units=50))
    assert 0.03 < float((esn.score(params, rng.normal(size=(4_000, 4))) > 0.0).mean()) < 0.08


def oscillation(turn: float, rows: int, seed: int) -> Floats:
    """Return (rows, 1) of unit variance whatever the angle by which it turns in a step."""
    rng = np.random.default_rng(seed)
    phase = np.cumsum(turn + 0.02 * rng.normal(size=rows))
    return np.asarray(np.sqrt(2.0) * np.sin(phase)[:, None] + 0.05 * rng.normal(size=(rows, 1)))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("settings", "found_at_least", "found_at_most"),
    [({"leak": 0.5, "spectral_radius": 0.95}, 0.85, 1.0), ({"leak": 1.0, "spectral_radius": 0.0}, 0.0, 0.1)],
    ids=["with memory", "knowing the last row alone"],
)
def test_another_rhythm_is_found_by_memory(
    settings: dict[str, float], found_at_least: float, found_at_most: float
) -> None:
    """Every single value of the second half is as likely in the first: what differs is how they follow each other."""
    network = Network.model_validate(settings)
    params = esn.fit(oscillation(0.5, 1_500, 0), None, np.random.default_rng(0), network=network, ridge=1e-4)
    x = np.concatenate([oscillation(0.5, 500, 1), oscillation(0.65, 500, 2)])
    alarms = esn.score(params, x) > 0.0
    assert alarms[50:500].mean() < 0.1
    assert found_at_least <= alarms[510:].mean() <= found_at_most


def test_no_rows_no_scores(params: Arrays) -> None:
    scores, place = esn.carried(params, np.zeros((0, FEATURES)))
    assert scores.shape == (0,) and not place["state"].any()
    regressors, usable = esn.states_of(params, np.zeros((0, FEATURES)))
    assert regressors.shape == (0, params["readout"].shape[1]) and usable.shape == (0,)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rows_that_are_no_numbers_do_not_teach(value: float) -> None:
    x = stream(11)
    x[17, 2] = value
    with pytest.raises(DataError, match=rf"row 17, column 2 is {value}, expected finite values.*`missing`"):
        esn.fit(x, None, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("missing", "message"),
    [([0.5] * 9, "expected whole numbers from -1"), ([-2] * 9, "expected whole numbers from -1"), ([0], "1 numbers")],
)
def test_gaps_that_make_no_sense_are_refused(missing: list[float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        esn.carried(fitted("predict"), stream(0, 9), np.array(missing))


def test_what_cannot_be_fitted_is_refused() -> None:
    rng, classify = np.random.default_rng(0), Network(task="classify")
    with pytest.raises(DataError, match="50 steps given, expected more than the washout of 50"):
        esn.fit(stream(0, 50), None, rng)
    with pytest.raises(SettingError, match="needs labels and found none"):
        esn.fit(stream(0), None, rng, network=classify)
    with pytest.raises(DataError, match="class 2 given, expected whole numbers from 0 to 1"):
        esn.fit(stream(0), np.full(240, 2), rng, network=classify)
    with pytest.raises(ridge_readout.RankError, match="leave directions undetermined: expected a ridge of"):
        esn.fit(stream(0), None, rng, ridge=0.0)


def test_a_network_that_never_forgets_is_fitted_with_a_warning() -> None:
    network = Network(units=40, leak=0.9, spectral_radius=3.0, bias_scaling=0.0)
    with pytest.warns(EchoStateWarning, match=r"still differ by"):
        esn.fit(1e-3 * stream(0), None, np.random.default_rng(0), network=network)
