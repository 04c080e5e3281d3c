"""The training of the recurrent network against torch's own stacked modules, and its manners with chance."""

from __future__ import annotations

import sys
import warnings
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from fedgate.models.arrays import Array, Arrays, Floats, equal
from fedgate.models.detectors.base.checks import ConvergenceError, DataError, FitError
from fedgate.models.detectors.base.subspace import OUTSIDE
from fedgate.models.detectors.recurrent import recurrent
from fedgate.models.detectors.recurrent.recurrent_network import Descent, PrecisionWarning, Recurrent

# Looked for and not imported: each process that collects tests would wait for it.
pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is in the extra [lstm] only")

CHANNELS, STEPS = 2, 6
FEATURES = CHANNELS * STEPS
SMALL = {"hidden": 5, "dense": 4, "steps": STEPS}
ONE_STEP = Descent(epochs=1, batch=1000, optimiser="sgd", learning_rate=0.5, largest_gradient=np.inf)


def waves(seed: int, count: int = 80) -> Floats:
    """Return windows (n, F) of two sines of other phases, with a little noise."""
    rng = np.random.default_rng(seed)
    times = rng.uniform(0.0, 20.0, (count, 1)) + 0.7 * np.arange(STEPS)
    cube = np.stack([np.sin(times), np.cos(times)], axis=1) + 0.02 * rng.normal(size=(count, CHANNELS, STEPS))
    return np.asarray(cube.reshape(count, FEATURES))


def start(network: Recurrent, seed: int = 0) -> Arrays:
    return recurrent.initial(np.random.default_rng(seed), network, FEATURES)


def trained(network: Recurrent, descent: Descent, seed: int = 0, **more: Any) -> Arrays:
    x = waves(1)
    y = (x[:, 0] > 0.0).astype(int) if network.task == "classify" else None
    return recurrent.descended(start(network), x, y, np.random.default_rng(seed), network, descent, **more)


def theirs(params: Arrays, network: Recurrent) -> dict[str, Any]:
    """Return modules of torch with the parameters in them, and one list of all their weights by our names."""
    torch = pytest.importorskip("torch")
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[network.cell]
    cell = kind(CHANNELS, network.hidden, network.layers, batch_first=True)
    named = {"weight_ih": "input", "weight_hh": "state", "bias_ih": "input_bias", "bias_hh": "state_bias"}
    state = {
        f"{name}_l{k}": torch.tensor(params[f"cell.{k}.{ours}"])
        for k in range(network.layers)
        for name, ours in named.items()
    }
    cell.load_state_dict(state)
    head = {name: torch.nn.Parameter(torch.tensor(params[name])) for name in params if name.startswith(recurrent.HEAD)}
    weights = {
        f"cell.{k}.{ours}": getattr(cell, f"{name}_l{k}") for k in range(network.layers) for name, ours in named.items()
    }
    return {"cell": cell, "weights": {**weights, **head}}


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("task", ["predict", "classify"])
def test_a_step_is_that_of_autograd_on_the_stacked_module(cell: str, task: str) -> None:
    torch = pytest.importorskip("torch")
    network = Recurrent.model_validate({**SMALL, "cell": cell, "task": task, "layers": 3})
    params, x = start(network), waves(1)
    modules = theirs(params, network)
    weights = modules["weights"]
    cube = torch.tensor(x.reshape(-1, CHANNELS, STEPS), dtype=torch.float32)
    seen = cube if task == "classify" else cube[:, :, :-1]
    last = modules["cell"](seen.transpose(1, 2))[0][:, -1]
    nodes = torch.relu(last @ weights["dense.weight"].T + weights["dense.bias"])
    said = nodes @ weights["output.weight"].T + weights["output.bias"]
    if task == "classify":
        loss = torch.nn.functional.cross_entropy(said, torch.tensor(x[:, 0] > 0.0).long())
    else:
        loss = torch.nn.functional.mse_loss(said, cube[:, :, -1] - cube[:, :, -2])
    loss.backward()
    found = trained(network, ONE_STEP)
    for name, weight in weights.items():
        expected = weight.detach().numpy() - 0.5 * weight.grad.numpy()
        np.testing.assert_allclose(found[name], expected, atol=1e-6)
    assert not np.allclose(found["cell.0.state"], params["cell.0.state"], atol=1e-6)


def test_equal_chance_gives_equal_bytes_and_leaves_that_of_others_alone() -> None:
    network = Recurrent.model_validate({**SMALL, "layers": 2, "dropout": 0.3})
    torch = pytest.importorskip("torch")
    before = torch.random.get_rng_state()
    one, again, other = (trained(network, Descent(epochs=2, batch=7), seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert equal(one, again)
    assert not equal(one, other)


@pytest.mark.parametrize("settings", [{"dropout": 0.5}, {"paper": True, **SMALL, "layers": 1, "dropout": 0.0}])
def test_chance_is_in_training_alone(settings: dict[str, Any]) -> None:
    """In one batch of all rows the order does not matter, so what is left is dropout, or the paper's first states."""
    network = Recurrent.model_validate({**SMALL, **settings})
    one, other = (trained(network, ONE_STEP, seed) for seed in (1, 2))
    assert not equal(one, other, 1e-4)
    still = Recurrent.model_validate(SMALL)
    assert equal(trained(still, ONE_STEP, 1), trained(still, ONE_STEP, 2), 1e-4)
    assert np.array_equal(recurrent.score(one, waves(2)), recurrent.score(one, waves(2)))


def test_only_the_shares_of_classes_weigh() -> None:
    network = Recurrent.model_validate({**SMALL, "task": "classify", "class_weights": True})
    x = waves(3)
    y = (np.arange(len(x)) % 8 == 0).astype(int)

    def after(shares: Array | None, weighed: bool = True) -> Arrays:
        chosen = network.model_copy(update={"class_weights": weighed})
        return recurrent.descended(start(network), x, y, np.random.default_rng(0), chosen, ONE_STEP, shares=shares)

    own, told, alike = after(None), after(np.array([7 / 8, 1 / 8])), after(np.array([0.5, 0.5]))
    assert equal(own, told, 1e-6)
    assert equal(alike, after(None, weighed=False), 1e-6)
    assert not equal(own, alike, 1e-3)


def test_the_proximal_term_pulls_back_what_is_anchored() -> None:
    network = Recurrent.model_validate(SMALL)
    descent = Descent(epochs=8, optimiser="sgd", learning_rate=0.05)
    before = start(network)

    def moved(mu: float, **more: Any) -> tuple[float, float]:
        after = trained(network, descent._replace(proximity=mu), **more)
        body, head = (
            float(sum(np.abs(after[name] - before[name]).sum() for name in recurrent.trained_names(before, prefixes)))
            for prefixes in (("cell.",), recurrent.HEAD)
        )
        return body, head

    free, pulled = moved(0.0), moved(10.0)
    assert pulled[0] < 0.5 * free[0] and pulled[1] < 0.5 * free[1]
    body, head = moved(10.0, anchored=recurrent.trained_names(before, ("cell.",)))
    assert body < 0.5 * free[0] and head > 0.5 * free[1]


def test_a_long_slope_is_cut_to_its_norm() -> None:
    network, before = Recurrent.model_validate(SMALL), start(Recurrent.model_validate(SMALL))
    after = trained(network, ONE_STEP._replace(largest_gradient=1e-3, learning_rate=1.0))
    change = np.concatenate([np.ravel(after[name] - before[name]) for name in recurrent.trained_names(before)])
    assert np.linalg.norm(change) == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize("cell", ["lstm", "gru", "linear"])
def test_bfloat16_goes_the_same_way_less_exactly_or_says_that_it_does_not(cell: str) -> None:
    shape = {"steps": STEPS} if cell == "linear" else {**SMALL, "layers": 2}
    network = Recurrent.model_validate({**shape, "cell": cell})
    one, before = trained(network, ONE_STEP), start(network)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        coarse = trained(network, ONE_STEP._replace(bfloat16=True))
    for name in recurrent.trained_names(before):
        steps = [after[name] - before[name] for after in (one, coarse)]
        assert np.linalg.norm(steps[1] - steps[0]) < 0.05 * np.linalg.norm(steps[0])
    lacks = [issubclass(warning.category, PrecisionWarning) for warning in caught]
    assert equal(one, coarse) if lacks == [True] else not lacks and not equal(one, coarse)


def test_a_processor_without_bfloat16_trains_in_float32_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Recurrent.model_validate({**SMALL, "dropout": 0.5, "layers": 2})
    expected = trained(network, ONE_STEP)
    torch = pytest.importorskip("torch")
    autocast = torch.autocast

    def lacking(device: str, number: Any, *, enabled: bool) -> Any:
        if enabled:
            raise RuntimeError("could not create a primitive descriptor for this. Run workload with ONEDNN_VERBOSE=all")
        return autocast(device, number, enabled=False)

    monkeypatch.setattr(torch, "autocast", lacking)
    with pytest.warns(PrecisionWarning, match=r"float32 is used \(could not create a primitive descriptor for this\)$"):
        found = trained(network, ONE_STEP._replace(bfloat16=True))
    assert equal(found, expected)  # that it was tried costs no random number


@pytest.mark.soak
@pytest.mark.parametrize("cell", ["lstm", "gru", "linear"])
def test_it_learns_to_predict_better_than_persistence(cell: str) -> None:
    network = Recurrent.model_validate({"cell": cell, "steps": STEPS})
    params = recurrent.fit(waves(4, 300), None, np.random.default_rng(0), network=network, descent=Descent(epochs=40))
    x = waves(5, 200)
    wanted, last = recurrent.targets_of(params, x)
    error = np.square(recurrent.outputs(params, x) - last - wanted + last).mean()
    assert error < 0.1 * np.square(wanted - last).mean()
    np.testing.assert_allclose(params["variance"], recurrent.squares(params, waves(4, 300)).mean(axis=0))
    assert np.mean(recurrent.score(params, x) > 0.0) == pytest.approx(OUTSIDE, abs=0.05)
    x[:, STEPS - 1] += 1.0  # of the first channel, where it is predicted
    assert np.mean(recurrent.score(params, x) > 0.0) > 0.95


@pytest.mark.soak
def test_it_learns_classes_that_only_the_order_of_steps_tells() -> None:
    x = waves(6, 400)
    y = np.random.default_rng(0).integers(0, 2, len(x))
    x[y == 1] = x.reshape(-1, CHANNELS, STEPS)[y == 1, :, ::-1].reshape(-1, FEATURES)
    network = Recurrent.model_validate({"steps": STEPS, "task": "classify"})
    params = recurrent.fit(x[:300], y[:300], np.random.default_rng(0), network=network, descent=Descent(epochs=40))
    assert np.mean((recurrent.score(params, x[300:]) > 0.0) == y[300:]) > 0.95


def test_a_training_that_runs_away_says_so() -> None:
    with pytest.raises(ConvergenceError, match=r"ran away at learning_rate 1e\+30, expected finite"):
        trained(Recurrent(cell="linear", steps=STEPS), ONE_STEP._replace(learning_rate=1e30, epochs=9))


@pytest.mark.parametrize(
    ("y", "reason"),
    [(None, "needs labels and found none"), (np.full(80, 2), "class 2 given, expected whole numbers from 0 to 1")],
)
def test_classes_must_be_known(y: Array | None, reason: str) -> None:
    with pytest.raises(FitError, match=reason):
        recurrent.fit(waves(1), y, np.random.default_rng(0), network=Recurrent(task="classify", steps=STEPS))


def test_windows_must_be_numbers() -> None:
    x = waves(1)
    x[3, 2] = np.nan
    with pytest.raises(DataError, match="row 3, column 2 is nan, expected finite values"):
        recurrent.fit(x, None, np.random.default_rng(0), network=Recurrent(steps=STEPS))


def test_without_torch_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "fedgate.models.detectors.recurrent.torch_training", raising=False)
    monkeypatch.delattr("fedgate.models.detectors.recurrent.torch_training", raising=False)
    with pytest.raises(
        recurrent.TorchMissingError, match=r"^torch is not installed.*pip install '\.\[lstm\]' in a checkout"
    ):
        recurrent.fit(waves(1), None, np.random.default_rng(0))
