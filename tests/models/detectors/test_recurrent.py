"""The recurrent network: torch eager, numpy and ONNX as one, scores by hand, and what its settings refuse."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgate.config.protocol.wire import decode, encode
from fedgate.firmware_sim import children
from fedgate.gateway_agent.deployment.session import Scorer
from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.detectors import DETECTORS, PERSONAL
from fedgate.models.detectors.base.pca import RESIDUAL_FLOOR
from fedgate.models.detectors.recurrent import recurrent
from fedgate.models.detectors.recurrent.recurrent_network import Recurrent, as_in_the_paper
from fedgate.models.testing.fleet import onnx_scores
from tests.support.syntax import ROOT
from tests.support.waiting import PATIENCE_S

CHANNELS, STEPS = 3, 8
FEATURES = CHANNELS * STEPS
TOLERANCE = 1e-5
TASKS: dict[str, dict[str, Any]] = {
    "predict": {"horizon": 2, "targets": (2, 0)},
    "classify": {"classes": 3},
}
SHAPES = [*itertools.product(("lstm", "gru"), (1, 2, 3), TASKS), ("linear", 1, "predict"), ("linear", 1, "classify")]


def rows(seed: int, count: int = 33, width: int = FEATURES) -> Floats:
    return np.random.default_rng(seed).normal(size=(count, width))


def made(cell: str, layers: int, task: str, **settings: Any) -> Arrays:
    """Return an untrained network with weights large enough that its gates are not all half open."""
    sizes = {} if cell == "linear" else {"layers": layers, "hidden": 12, "dense": 7}
    network = Recurrent.model_validate({"cell": cell, "task": task, "steps": STEPS, **sizes, **settings})
    params = recurrent.initial(np.random.default_rng(0), network, FEATURES)
    if task == "predict":
        params["variance"] = np.linspace(0.5, 2.0, len(params["variance"]))
    return params | {name: 3 * params[name] for name in recurrent.trained_names(params)}


def of_torch(params: Arrays, x: Floats, cell: str, layers: int) -> Array:
    """Return the outputs (n, c) of torch's own stacked module in eager mode."""
    torch = pytest.importorskip("torch", reason="torch is in the extra [lstm] only")
    weights = {name: torch.tensor(params[name]) for name in recurrent.trained_names(params)}
    heard = int(params["heard"])
    seen = torch.tensor(x.reshape(len(x), CHANNELS, STEPS)[:, :, :heard], dtype=torch.float32)
    if cell == "linear":
        return np.asarray(seen.flatten(1) @ weights["output.weight"].T + weights["output.bias"])
    module = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[cell](CHANNELS, 12, layers, batch_first=True)
    theirs = {"weight_ih": "input", "weight_hh": "state", "bias_ih": "input_bias", "bias_hh": "state_bias"}
    module.load_state_dict(
        {f"{name}_l{k}": weights[f"cell.{k}.{ours}"] for k in range(layers) for name, ours in theirs.items()}
    )
    with torch.no_grad():
        last = module(seen.transpose(1, 2))[0][:, -1]
        nodes = torch.relu(last @ weights["dense.weight"].T + weights["dense.bias"])
        return np.asarray(nodes @ weights["output.weight"].T + weights["output.bias"])


@pytest.mark.parametrize(("cell", "layers", "task"), SHAPES)
def test_torch_numpy_and_onnx_are_one(cell: str, layers: int, task: str) -> None:
    params, x = made(cell, layers, task, **TASKS[task]), rows(1)
    found = recurrent.normalised_outputs(params, x)
    assert np.abs(found - of_torch(params, x, cell, layers)).max() <= TOLERANCE
    assert found.std(axis=0).min() > 100 * TOLERANCE
    scores = recurrent.score(params, x)
    model = DETECTORS["recurrent"].graph(params, PERSONAL)
    assert np.abs(onnx_scores(model, x) - scores).max() <= TOLERANCE * max(1.0, float(np.abs(scores).max()))


@pytest.mark.parametrize("change", [True, False])
def test_a_residual_is_in_units_of_its_variance(change: bool) -> None:
    params, x = made("lstm", 1, "predict", horizon=2, targets=(2, 0), change=change), rows(2)
    cube = x.reshape(-1, CHANNELS, STEPS)[:, (2, 0)]
    said = recurrent.normalised_outputs(params, x) + (cube[:, :, -3] if change else 0.0)
    np.testing.assert_allclose(recurrent.outputs(params, x), said)
    mean = (np.square(cube[:, :, -1] - said) / params["variance"]).mean(axis=1)
    expected = np.log(mean + RESIDUAL_FLOOR) - np.log(float(params["border"]) + RESIDUAL_FLOOR)
    np.testing.assert_allclose(recurrent.score(params, x), expected, rtol=1e-12)


@pytest.mark.parametrize("classes", [2, 4])
def test_a_class_is_how_far_the_strongest_fault_is_above_normal(classes: int) -> None:
    params, x = made("gru", 2, "classify", classes=classes), rows(3)
    voices = recurrent.outputs(params, x)
    assert voices.shape == (len(x), classes)
    assert recurrent.score(params, x).tolist() == [max(row[1:]) - row[0] for row in voices]


def test_nothing_of_the_end_that_is_predicted_is_heard() -> None:
    params, x = made("lstm", 2, "predict", horizon=2), rows(4)
    cube = x.reshape(-1, CHANNELS, STEPS).copy()
    cube[:, :, -2:] += 100.0
    assert np.array_equal(recurrent.outputs(params, cube.reshape(x.shape)), recurrent.outputs(params, x))
    cube[:, 1, -3] += 1.0
    assert not np.array_equal(recurrent.outputs(params, cube.reshape(x.shape)), recurrent.outputs(params, x))


def test_rows_are_apart_and_blocks_cannot_be_seen() -> None:
    params, x = made("gru", 1, "predict"), rows(5, 2 * recurrent.BLOCK_ROWS + 3)
    together = recurrent.score(params, x)
    np.testing.assert_allclose(together[::-1], recurrent.score(params, x[::-1]), atol=1e-5)
    np.testing.assert_allclose(together[-3:], recurrent.score(params, x[-3:]), atol=1e-5)
    assert recurrent.score(params, x[:0]).shape == (0,)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize("cell", ["lstm", "gru", "linear"])
def test_what_is_no_number_has_no_score(cell: str, value: float) -> None:
    params, x = made(cell, 1, "classify"), rows(6, 2)
    x[0, 3] = value
    scores = recurrent.score(params, x)
    assert np.isnan(scores[0]) == (not np.isfinite(value))
    assert np.isfinite(scores[1])


@pytest.mark.soak
def test_own_weights_go_into_the_graph_without_onnx_and_without_torch(tmp_path: Path) -> None:
    """As on a gateway: the file of the cloud, the tensors of its own, and the base install."""
    params, x = made("lstm", 2, "predict"), rows(7, 5).astype(np.float32)
    own = {name: params[name] * 0.5 for name in ("cell.0.state", "cell.1.input", "dense.weight", "output.bias")}
    own |= {"center": np.full(FEATURES, 0.1), "scale": np.full(FEATURES, 2.0), "variance": np.full(CHANNELS, 3.0)}
    model = DETECTORS["recurrent"].graph(params, tuple(own))
    np.testing.assert_allclose(Scorer(model, {})(x), recurrent.score(params, x), atol=TOLERANCE)
    (tmp_path / "model").write_bytes(model)
    (tmp_path / "own").write_bytes(encode({**own, "x": x}))
    program = (
        "import sys, pathlib\nfrom fedgate.config.protocol import wire\n"
        "from fedgate.gateway_agent.deployment.session import Scorer\n"
        "model, rows = (pathlib.Path(name).read_bytes() for name in sys.argv[1:3])\n"
        "own, _ = wire.decode(rows); x = own.pop('x')\n"
        "pathlib.Path(sys.argv[3]).write_bytes(wire.encode({'scores': Scorer(model, own)(x)}))\n"
        "assert not {'onnx', 'torch'} & sys.modules.keys()\n"
    )
    files = [str(tmp_path / name) for name in ("model", "own", "scores")]
    done = children.run([sys.executable, "-c", program, *files], PATIENCE_S, cwd=ROOT, text=True)
    assert done.returncode == 0, done.stderr
    scores, _ = decode((tmp_path / "scores").read_bytes())
    np.testing.assert_allclose(scores["scores"], recurrent.score({**params, **own}, x), atol=TOLERANCE)


def test_the_paper_is_what_the_operator_left_open() -> None:
    said = {"layers": 3, "hidden": 128, "dense": 100, "dropout": 0.2, "change": False}
    assert {name: getattr(Recurrent(paper=True), name) for name in said} == said
    assert as_in_the_paper(Recurrent(layers=2, steps=40)) == Recurrent(paper=True, layers=2, steps=40)
    assert as_in_the_paper(Recurrent(cell="linear")).model_dump(exclude_unset=True).keys() == {
        "cell",
        "paper",
        "change",
    }
    again = Recurrent.model_validate(Recurrent(paper=True).model_dump())
    assert again == Recurrent(paper=True)


def test_the_sizes_of_the_paper() -> None:
    """Parameters of FSLSTM, FLSTM-2, FLSTM-1 and FGRU for seven channels and two classes."""
    for cell, layers, count in (("lstm", 3, 347_438), ("lstm", 2, 215_342), ("lstm", 1, 83_246), ("gru", 1, 65_710)):
        settings = {"paper": True, "cell": cell, "layers": layers, "task": "classify", "steps": 40}
        network = Recurrent.model_validate(settings)
        params = recurrent.initial(np.random.default_rng(0), network, 7 * 40)
        found = sum(params[name].size for name in recurrent.trained_names(params))
        assert found == count


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"cell": "rnn"}, "'lstm', 'gru' or 'linear'"),
        ({"layers": 4}, "less than or equal to 3"),
        ({"dropout": 1.0}, "less than 1"),
        ({"hidden": 1000}, "less than or equal to 256"),
        ({"unit": 3}, "unit"),
        ({"task": "classify", "horizon": 2}, "horizon 2 given, expected none for task 'classify'"),
        ({"task": "classify", "targets": (0,)}, "targets .* expected none for task 'classify'"),
        ({"classes": 3}, "classes 3 given, expected none for task 'predict'"),
        ({"class_weights": True}, "class_weights True given, expected none for task 'predict'"),
        ({"cell": "linear", "layers": 2}, "layers 2 given, expected none for cell 'linear'"),
        ({"cell": "linear", "dropout": 0.1}, "dropout 0.1 given, expected none for cell 'linear'"),
        ({"targets": (1, 1)}, "every channel once"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Recurrent.model_validate(wrong)


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        ({"steps": 7}, "steps 7 given for 24 features, expected a divisor"),
        ({"steps": 8, "horizon": 8}, "horizon 8 given for windows of 8 steps, expected fewer"),
        ({"steps": 1}, "horizon 1 given for windows of 1 steps"),
        ({"steps": 8, "targets": (3,)}, "targets .3,. given, expected channels from 0 to 2"),
    ],
)
def test_rows_that_are_no_such_windows_are_refused(network: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        recurrent.initial(np.random.default_rng(0), Recurrent.model_validate(network), FEATURES)
