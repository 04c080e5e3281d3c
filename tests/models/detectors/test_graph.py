"""Every detector's ONNX graph against its own score, run by the onnxruntime that gateways have."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.detectors import DETECTORS, PERSONAL, Detector
from fedgate.models.detectors.base import fault_classes, linear, random_features, subspace
from fedgate.models.detectors.base.graph import OPERATORS
from fedgate.models.detectors.base.pca import WHITENING, whitened
from fedgate.models.detectors.esn import esn
from fedgate.models.detectors.esn.network import Network
from fedgate.models.detectors.recurrent import recurrent
from fedgate.models.detectors.recurrent.recurrent_network import Recurrent
from fedgate.models.detectors.svm import ensemble, ocsvm, svdd
from fedgate.models.testing.detectors import (
    DETECTOR_LAWS,
    DetectorLaw,
    Fitted,
    check_detector,
    every_gateway_runs_its_graph,
    nodes_of,
)
from fedgate.models.testing.fleet import onnx_scores

FEATURES = 5


def noise(seed: int, rows: int = 64) -> Floats:
    return np.random.default_rng(seed).normal(size=(rows, FEATURES))


def single(values: Any) -> NDArray[np.float32]:
    """Return values as features are kept."""
    return np.asarray(values, dtype=np.float32)


def labels(x: Floats) -> Floats:
    return (x[:, 0] > 0.5).astype(float)


def with_home(params: Arrays) -> Arrays:
    """Return the same model with the weights of its last components as a tensor of their own."""
    return {**params, "weights": params["weights"][:40], linear.HOME: params["weights"][40:]}


def step(x: Floats) -> Arrays:
    """Return a whitening step to two directions and the residual."""
    found = subspace.fit(x, components=2)
    return {name: found[name] for name in ("mean", "deviation", "components", "eigenvalues", "trace")} | {
        "weight": np.array(2.0)
    }


def prefixed(params: Arrays) -> Arrays:
    return {WHITENING + name: array for name, array in params.items()}


def echo(x: Floats, **settings: Any) -> Arrays:
    network = Network(units=30, washout=10, **settings)
    classes = labels(x) + (x[:, 1] > 0.5) if network.task == "classify" else None
    return esn.fit(x, classes, np.random.default_rng(0), network=network)


def recurrent_net(**settings: Any) -> Arrays:
    """Return an untrained network, which is as good to compare as a trained one."""
    sizes = {} if settings.get("cell") == "linear" else {"hidden": 6, "dense": 5}
    params = recurrent.initial(np.random.default_rng(0), Recurrent(**{**sizes, **settings}), FEATURES)
    return {name: array * 2 if name.startswith("cell.") else array for name, array in params.items()}


# One entry per way to train; a detector without one fails the first test.
FITS: dict[str, tuple[str, Callable[[Floats], Arrays]]] = {
    "ocsvm": ("ocsvm", ocsvm.fit),
    "svdd": ("svdd", svdd.fit),
    "svdd, wide kernel": ("svdd", lambda x: svdd.fit(x, gamma=1e-3)),
    "svdd, narrow kernel": ("svdd", lambda x: svdd.fit(x, gamma=20.0)),
    "ocsvm, a plane": ("ocsvm", lambda x: ocsvm.fit(x + 4.0, kernel="linear")),
    "ocsvm, by ascent": ("ocsvm", lambda x: ocsvm.fit(x, solver="sgd")),
    "svdd, a sphere": ("svdd", lambda x: svdd.fit(x, kernel="linear")),
    "svdd, one vector": ("svdd", lambda x: {**svdd.fit(x), "vectors": x[:1], "coefficients": np.ones(1)}),
    "ensemble": ("ensemble", lambda x: ensemble.joined_members([svdd.fit(x), svdd.fit(x[:20] + 3.0, gamma=1.0)])),
    "ensemble, one member": ("ensemble", ensemble.fit),
    "subspace": ("subspace", lambda x: subspace.fit(x, components=2)),
    "subspace, residual": ("subspace", lambda x: subspace.fit(x, components=3, which="residual")),
    "svdd, whitened": ("svdd", lambda x: svdd.fit(whitened(step(x), x)) | prefixed(step(x))),
    "linear": ("linear", lambda x: linear.fit(x, labels(x), np.random.default_rng(0))),
    "linear-svm": ("linear-svm", lambda x: fault_classes.fit(x, labels(x) + 2.0 * (x[:, 0] < -0.5))),
    "linear on a map": (
        "linear",
        lambda x: linear.fit(x, None, np.random.default_rng(0), loss="one-class", components=64, epochs=20),
    ),
}
FITS |= {
    "esn": ("esn", echo),
    "esn, two layers, no inputs": ("esn", lambda x: echo(x, layers=2, direct=False)),
    "esn, reconstructing": ("esn", lambda x: echo(x, task="reconstruct", targets=(3, 1))),
    "esn, classes of rows of five steps": ("esn", lambda x: echo(x, task="classify", classes=3, steps=5)),
}
FITS |= {
    "recurrent": ("recurrent", lambda _: recurrent_net()),
    "recurrent, classes of channels": (
        "recurrent",
        lambda _: recurrent_net(steps=1, task="classify", cell="gru", classes=3),
    ),
    "recurrent, three layers": ("recurrent", lambda _: recurrent_net(layers=3, horizon=3, change=False)),
    "recurrent, linear": ("recurrent", lambda _: recurrent_net(cell="linear")),
}
FITS["linear with a part at home"] = ("linear", lambda x: with_home(FITS["linear on a map"][1](x)))


def test_every_detector_is_tested() -> None:
    assert {detector for detector, _ in FITS.values()} == set(DETECTORS)


@pytest.fixture(params=FITS)
def fitted(request: pytest.FixtureRequest) -> tuple[str, Arrays]:
    name, fit = FITS[request.param]
    return name, fit(noise(1))


def agree(found: Array, expected: Array, scale: float) -> None:
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-5 * max(scale, float(np.abs(expected).max())))


@pytest.mark.parametrize("law", DETECTOR_LAWS, ids=lambda law: law.__name__)
def test_the_detector_keeps_the_law(fitted: tuple[str, Arrays], law: DetectorLaw) -> None:
    name, params = fitted
    assert list(law(Fitted(DETECTORS[name], params, noise(1)))) == []


@pytest.mark.soak
@pytest.mark.parametrize("distance", [1e1, 1e3, 1e6])
def test_far_points_score_as_far(fitted: tuple[str, Arrays], distance: float) -> None:
    name, params = fitted
    x = single(distance * np.vstack([np.eye(FEATURES), -np.ones((1, FEATURES))]))
    found = onnx_scores(DETECTORS[name].graph(params, ()), x)
    waves = float(np.abs(params["weights"]).sum()) * distance if random_features.held(params) else 0.0
    agree(found, DETECTORS[name].score(params, x), 1.0 + waves)


def test_own_units_end_where_a_wild_value_would_drown_the_others(fitted: tuple[str, Arrays]) -> None:
    name, params = fitted
    x = single(np.vstack([np.full(FEATURES, 1e3), np.full(FEATURES, 1e15)]))
    found = onnx_scores(DETECTORS[name].graph(params, PERSONAL), x)
    assert np.isfinite(found).all()
    if not name.startswith(("esn", "recurrent")):  # whose rows follow each other
        assert found[0] == found[1]


@pytest.mark.parametrize("fit", [ocsvm.fit, svdd.fit])
def test_data_far_from_zero_keeps_its_digits(fit: Callable[[Floats], Arrays]) -> None:
    """Without normalisation features may sit anywhere; in float32 their squares would drown their distances."""
    origin = single([1e4, -3e3, 500.0, 0.0, 8e3])
    params = fit(noise(4) + origin)
    probes = single(noise(5) * 3.0 + origin)
    agree(onnx_scores(DETECTORS["svdd"].graph(params, ()), probes), DETECTORS["svdd"].score(params, probes), 10.0)


def test_the_operators_listed_are_the_operators_used() -> None:
    used: set[str] = set()
    for name, fit in FITS.values():
        model = onnx.load_from_string(DETECTORS[name].graph(fit(noise(1)), PERSONAL))
        used |= {node.op_type for node in nodes_of(model.graph)}
    assert used == OPERATORS.keys()


def test_a_broken_law_is_named() -> None:
    upside_down = DETECTORS["subspace"]._replace(score=lambda params, x: -DETECTORS["subspace"].score(params, x))
    with pytest.raises(AssertionError, match="the graph scores as the detector does: 1 rows: the graph is up to"):
        check_detector(upside_down)


def described(model: onnx.ModelProto) -> None:
    model.graph.doc_string = "what it is"


def named(model: onnx.ModelProto) -> None:
    model.graph.node[0].name = "first"


def attributed(model: onnx.ModelProto) -> None:
    model.graph.node[-1].attribute.append(onnx.helper.make_attribute("axis", 0))


def with_a_foreign_operator(model: onnx.ModelProto) -> None:
    model.graph.node.append(onnx.helper.make_node("Abs", ["score"], ["away"]))


SPOILED = {
    "field 10 of a graph": described,
    "field 3 of a node": named,
    "'axis'": attributed,
    "'Abs'": with_a_foreign_operator,
}


def spoiled(detector: Detector, change: Callable[[onnx.ModelProto], None]) -> Detector:
    """Return a detector whose graph no gateway runs, though onnxruntime does."""

    def graph(params: Arrays, personal: Collection[str]) -> bytes:
        model = onnx.load_from_string(detector.graph(params, personal))
        change(model)
        return bytes(model.SerializeToString())

    return detector._replace(graph=graph)


@pytest.mark.parametrize("reason", SPOILED)
def test_a_graph_that_every_gateway_refuses_breaks_a_law(reason: str) -> None:
    found = Fitted(spoiled(DETECTORS["subspace"], SPOILED[reason]), subspace.fit(noise(1)), noise(1))
    faults = list(every_gateway_runs_its_graph(found))
    assert len(faults) == 2 and all(
        "every gateway refuses the graph: " in fault and reason in fault for fault in faults
    )


@pytest.mark.soak
def test_a_detector_that_forgets_the_gateways_own_units_breaks_a_law() -> None:
    right = DETECTORS["subspace"]

    def score(params: Arrays, x: Array) -> Floats:
        return right.score({name: array for name, array in params.items() if name not in PERSONAL}, x)

    def graph(params: Arrays, personal: Collection[str]) -> bytes:
        model = onnx.load_from_string(right.graph(params, personal))
        (last,) = [index for index, node in enumerate(model.graph.node) if node.output == ["z"]]
        del model.graph.node[: last + 1]
        model.graph.node.insert(0, onnx.helper.make_node("Identity", ["x"], ["z"]))
        return bytes(model.SerializeToString())

    for changed in (right._replace(score=score), right._replace(score=score, graph=graph)):
        with pytest.raises(AssertionError, match="it scores with the gateways own tensors: 1 rows: the graph is up to"):
            check_detector(changed)


def test_what_a_detector_raises_goes_on_with_what_was_broken_before() -> None:
    """As where `standardise_tensors` was forgotten, which onnxruntime does not load."""

    def without_tensors(model: onnx.ModelProto) -> None:
        kept = [each for each in model.graph.initializer if each.name not in PERSONAL]
        del model.graph.initializer[:], model.graph.input[1:]
        model.graph.initializer.extend(kept)

    with pytest.raises(Exception, match="center") as raised:
        check_detector(spoiled(DETECTORS["subspace"], without_tensors))
    assert "takes 'center', which nothing before it gives" in "".join(raised.value.__notes__)


def test_laws_are_asked_on_rows_of_ones_own() -> None:
    check_detector(DETECTORS["subspace"], lambda x: subspace.fit(x, components=1), x=noise(1)[:, :2] + 7.0)
