"""The echo state network: a fit beside reservoirpy's in turns, a step and a window in onnxruntime, and what travels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from fedgate.config.protocol.wire import encode
from fedgate.gateway_agent.deployment.session import Scorer
from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.detectors import PERSONAL
from fedgate.models.detectors.esn import esn, reservoir, ridge_readout
from fedgate.models.detectors.esn.network import Network
from tests.benchmarks.conftest import Note
from tests.benchmarks.timing import in_turns, median_of_calls_s, median_s, repeat

ROWS, INPUTS, WASHOUT, RIDGE = 6_000, 5, 50, 0.01
TURNS, PRODUCTS = 7, 1_000
AT_MOST_OF_RESERVOIRPY = 0.8
STEP_US, WINDOW_MS, WINDOW_ROWS = 25.0, 3.0, 256
UPLOAD_MB = {200: 0.17, 500: 1.02}


def series() -> Floats:
    return np.random.default_rng(0).normal(size=(ROWS, INPUTS))


def made(units: int, task: str = "predict") -> Arrays:
    network = Network.model_validate({"units": units, "washout": WASHOUT, "task": task})
    return esn.initial(np.random.default_rng(1), network, INPUTS)


def ours(params: Arrays, u: Floats) -> ridge_readout.Solution:
    """States, sums and solution, all that a fit is once there is a reservoir."""
    regressors, usable = esn.states_of(params, u)
    return ridge_readout.solve(ridge_readout.sums(regressors[usable], u[usable]), RIDGE)


def reservoirpys(params: Arrays) -> Callable[[Floats], Array]:
    """Return the same fit with reservoirpy, on the same weights in the form in which it draws its own."""
    from reservoirpy.nodes import Reservoir, Ridge
    from scipy.sparse import csr_array

    (layer,) = reservoir.drawn(params).layers
    recurrent, entry = csr_array(layer.recurrent.astype(np.float64)), csr_array(layer.input.T.astype(np.float64))
    leak, bias = reservoir.drawn(params).leak, layer.bias.astype(np.float64)

    def fit(u: Floats) -> Array:
        node: Any = Reservoir(units=len(bias), lr=leak, W=recurrent, Win=entry, bias=bias)
        return np.asarray(Ridge(ridge=RIDGE).fit(node.run(u[:-1]), u[1:], warmup=WASHOUT).Wout)

    return fit


@pytest.mark.parametrize("units", [200, 500])
def test_a_fit_against_reservoirpy(units: int, benchmark: BenchmarkFixture, note: Note) -> None:
    params, u = made(units), series()
    theirs = reservoirpys(params)
    found = repeat(benchmark, ours, params, u, rounds=TURNS)
    assert found.weights.shape == (INPUTS, units + INPUTS + 1)
    assert theirs(u).shape == (units, INPUTS)
    if benchmark.enabled:
        what = f"echo state network fit, peer reservoirpy: {units} units x {ROWS} steps"
        ours_s, theirs_s = in_turns(partial(ours, params, u), partial(theirs, u), TURNS)
        note(what, 1e3 * ours_s, "ms", at_most_of_peer=AT_MOST_OF_RESERVOIRPY, peer=1e3 * theirs_s)


@pytest.mark.parametrize("rows", [1, WINDOW_ROWS])
@pytest.mark.parametrize("task", ["predict", "classify"])
def test_steps_in_onnx(task: str, rows: int, benchmark: BenchmarkFixture, note: Note) -> None:
    """With the state fed back, as the agent does it; a window here is longer than the blocks that the agent cuts."""
    import onnxruntime

    params, options = made(500, task), onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    model = esn.ESN.graph(params, PERSONAL)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feed = {each.name: np.zeros(each.shape, np.float32) for each in session.get_overridable_initializers()}
    feed |= {"x": series()[:rows].astype(np.float32), "scale": np.ones(INPUTS, np.float32)}
    outputs = [each.name for each in session.get_outputs() if each.name != "outputs"]
    scores = benchmark(session.run, outputs, feed)[0]
    np.testing.assert_allclose(scores, esn.score(params, feed["x"]), rtol=0.0, atol=1e-4)
    if benchmark.enabled:
        note(f"ONNX model of 500 units, task {task}", len(model) / 1e6, "MB")
        matrix, state = np.ones((500, 500), np.float32), np.ones(500, np.float32)
        product_s = median_of_calls_s(lambda: matrix @ state, PRODUCTS)
        scale, unit, at_most = (1e6, "us", STEP_US) if rows == 1 else (1e3, "ms", WINDOW_MS)
        what, limit = f"ONNX, {rows} steps of 500 units, task {task}", scale * rows * product_s
        note(what, scale * median_s(benchmark), unit, at_most=at_most, hardware_limit=limit)


def test_a_step_of_the_agent(benchmark: BenchmarkFixture, note: Note) -> None:
    scorer = Scorer(esn.ESN.graph(made(500), PERSONAL), {"center": np.zeros(INPUTS), "scale": np.ones(INPUTS)})
    row = series()[:1].astype(np.float32)
    _, memory = scorer.carried(row, {})
    benchmark(scorer.carried, row, memory)
    if benchmark.enabled:
        note("step of the agent's scorer, 500 units", 1e6 * median_s(benchmark), "us")


@pytest.mark.parametrize("units", UPLOAD_MB)
def test_the_sums_that_travel(units: int, note: Note) -> None:
    """Of a readout of states alone; each input that it sees directly is one regressor more."""
    network = Network(units=units, task="classify", classes=3, direct=False)
    params = esn.initial(np.random.default_rng(1), network, INPUTS)
    regressors, usable = esn.states_of(params, series()[:100])
    sums = ridge_readout.sums(regressors[usable], np.ones((int(usable.sum()), network.classes)))
    note(f"sums of {units} units, {network.classes} classes", len(encode(sums)) / 1e6, "MB", at_most=UPLOAD_MB[units])
