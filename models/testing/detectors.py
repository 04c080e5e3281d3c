"""The laws that every detector keeps: its ONNX graph is what a gateway runs, and must be its score (ours).

A law is a function of a fitted detector that yields what breaks it; its name says what holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedgate.models import onnx_policy
from fedgate.models.arrays import Array, Arrays, Floats, Singles
from fedgate.models.detectors import PERSONAL, Detector
from fedgate.models.testing.fleet import onnx_scores, session_of

if TYPE_CHECKING:
    import onnx

FEATURE_COUNT, ROWS = 5, 64
BATCHES = (1, ROWS)
TOLERANCE = 1e-5  # of the largest score, or of one


class Fitted(NamedTuple):
    """A detector, what it learned from `x`, and the rows (n, F) themselves."""

    detector: Detector
    params: Arrays
    x: Floats

    def graph(self, personal: tuple[str, ...]) -> bytes:
        """Return the ONNX model with these tensors as inputs."""
        return self.detector.graph(self.params, personal)

    def probes(self, seed: int, rows: int = ROWS) -> Singles:
        """Return rows (n, F) near those that it was fitted on, twice as far apart, as a gateway keeps them."""
        spread = np.random.default_rng(seed).normal(size=(rows, self.x.shape[1]))
        return np.asarray(self.x.mean(axis=0) + 2.0 * self.x.std(axis=0) * spread, dtype=np.float32)


Faults = Iterator[str]
DetectorLaw = Callable[[Fitted], Faults]


def check_detector(
    detector: Detector, fit: Callable[[Floats], Arrays] | None = None, *, x: Floats | None = None
) -> None:
    """Ask every law of a detector after `fit(x)`, by default its own `fit`, which takes rows (n, F) and returns its
    parameters; `x` is by default made up, 64 rows of five features, of which one never changes.

    Raises `AssertionError` that names every law that was broken and by what. What the detector itself raises goes on,
    with notes that name the law and what was broken before it.
    """
    rows = np.where(np.arange(FEATURE_COUNT) == 1, 1.0, noise(1)) if x is None else np.asarray(x, dtype=np.float64)
    fitted = Fitted(detector, (fit or detector.fit)(rows), rows)
    faults: list[str] = []
    for law in DETECTOR_LAWS:
        words = law.__name__.replace("_", " ")
        try:
            faults += [f"{words}: {fault}" for fault in law(fitted)]
        except BaseException as error:
            for note in (*faults, f"raised while this law was asked: {words}"):
                error.add_note(note)
            raise
    if faults:
        raise AssertionError("\n".join(faults))


def noise(seed: int, rows: int = ROWS) -> Floats:
    """Return normal noise (n, 5)."""
    return np.random.default_rng(seed).normal(size=(rows, FEATURE_COUNT))


def the_graph_scores_as_the_detector_does(fitted: Fitted) -> Faults:
    """For one row and for many, to 1e-5 of the largest score."""
    for batch in BATCHES:
        x = fitted.probes(2, batch)
        yield from _apart(onnx_scores(fitted.graph(PERSONAL), x), fitted.detector.score(fitted.params, x), 0.0)


def it_scores_with_the_gateways_own_tensors(fitted: Fitted) -> Faults:
    """A centre and a scale that a gateway feeds are taken, and take the place of the graph's own: so a row in its units
    has the score of the same row in units of the model.
    """
    count = fitted.x.shape[1]
    scale = 10.0 ** np.linspace(-6.0, 6.0, count)
    own = {"center": np.linspace(-20.0, 20.0, count) * scale, "scale": scale}
    own = {name: np.asarray(array, dtype=np.float32) for name, array in own.items()}
    # So many deviations from zero float32 holds a deviation no better than this.
    lost = float(np.max(np.abs(own["center"]) / own["scale"] * np.finfo(np.float32).eps))
    for batch in BATCHES:
        z, score = fitted.probes(3, batch), fitted.detector.score
        x = np.asarray(z * own["scale"] + own["center"], dtype=np.float32)
        for expected in (score({**fitted.params, **own}, x), score(fitted.params, z)):
            yield from _apart(onnx_scores(fitted.graph(PERSONAL), x, own), expected, lost)


def what_is_no_number_never_looks_normal(fitted: Fitted) -> Faults:
    """The score of a row with NaN or infinity is none, and that of the row behind it is one."""
    for value in (np.nan, np.inf, -np.inf):
        x = fitted.probes(6, 2)
        x[0, -1] = value
        found = onnx_scores(fitted.graph(PERSONAL), x)
        if np.isfinite(found[0]) or not np.isfinite(found[1]):
            yield f"of {value} and of a good row came the scores {found}"


def far_rows_have_scores(fitted: Fitted) -> Faults:
    """A row a million deviations away is an anomaly and not NaN."""
    count = fitted.x.shape[1]
    for distance in (1e1, 1e3, 1e6):
        x = np.asarray(distance * np.vstack([np.eye(count), -np.ones((1, count))]), dtype=np.float32)
        found = onnx_scores(fitted.graph(()), x)
        if not np.isfinite(found).all():
            yield f"rows {distance:g} away have the scores {found}"


def every_gateway_runs_its_graph(fitted: Fitted) -> Faults:
    """What a gateway asks of the bytes of a model before it loads it holds, whatever is personal."""
    for personal in ((), PERSONAL):
        yield from refusals(fitted.graph(personal))


def refusals(model: bytes) -> Faults:
    """Yield why gateways refuse an ONNX model, where they do."""
    try:
        onnx_policy.check(model)
    except onnx_policy.ModelRefusedError as error:
        yield f"every gateway refuses the graph: {error}"


def its_graph_is_plain_and_pinned(fitted: Fitted) -> Faults:
    """One opset, an output `score`, finite constants."""
    import onnx

    from fedgate.models.detectors.base.graph import IR_VERSION, OPSET

    model = onnx.load_from_string(fitted.graph(PERSONAL))
    pinned, found = [("", OPSET)], [(each.domain, each.version) for each in model.opset_import]
    if found != pinned or model.ir_version != IR_VERSION:
        yield f"expected opset {pinned} and IR {IR_VERSION}, got {found} and {model.ir_version}"
    yield from _values(model)


def _values(model: onnx.ModelProto) -> Faults:
    import onnx

    outputs, inputs = ([each.name for each in side] for side in (model.graph.output, model.graph.input))
    fed_back = {name.removeprefix("next.") for name in outputs if name.startswith("next.")}
    if {name for name in outputs if not name.startswith("next.")} - {"outputs"} != {"score"}:
        yield f"expected the output score, got {outputs}"
    if inputs[:1] != ["x"] or set(inputs[1:]) != {*PERSONAL, *fed_back}:
        yield f"expected the inputs x, {', '.join(sorted({*PERSONAL, *fed_back}))}, got {inputs}"
    constants = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    if wild := [name for name, array in constants.items() if not np.isfinite(array).all()]:
        yield f"the constants {wild} are not finite"
    for each in model.graph.input[1:]:
        declared = tuple(side.dim_value for side in each.type.tensor_type.shape.dim)
        if each.name not in constants or declared != constants[each.name].shape:
            yield f"the input {each.name} is declared as {declared}, which is not the shape of its default"


def equal_parameters_give_equal_bytes(fitted: Fitted) -> Faults:
    """Whatever the order of their names: models are named by their bytes."""
    shuffled = {name: fitted.params[name].copy() for name in reversed(fitted.params)}
    if fitted.detector.graph(shuffled, PERSONAL) != fitted.graph(PERSONAL):
        yield "the same parameters in another order make another model"


def only_personal_tensors_can_be_overridden(fitted: Fitted) -> Faults:
    """A gateway feeds what `personal` names, and the cloud's constants stay as they are."""
    for personal in ((), PERSONAL, ("scale",), ("offset", "intercept")):
        session = session_of(fitted.graph(personal))
        fed_back = {each.name.removeprefix("next.") for each in session.get_outputs()}
        open_to = {each.name for each in session.get_overridable_initializers()} - fed_back
        expected = {name for name in personal if name in {*fitted.params, *PERSONAL}}
        if [each.name for each in session.get_inputs()] != ["x"] or open_to != expected:
            yield f"of personal {personal} the model takes {sorted(open_to)}, expected {sorted(expected)}"


def nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of those inside it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from nodes_of(attribute.g)


def _apart(found: Floats, expected: Array, lost: float) -> Faults:
    """Yield a fault where scores (n,) are further apart than float32 and what was `lost` on the way explain."""
    if found.shape != expected.shape:
        yield f"the graph gives scores of shape {found.shape}, the detector {expected.shape}"
        return
    allowed = (TOLERANCE + lost) * max(1.0, float(np.abs(expected).max()))
    known = np.isfinite(expected)  # before a series has begun there may be none
    furthest = float(np.abs(found - expected)[known].max(initial=0.0))
    if not furthest <= allowed or not np.array_equal(np.isfinite(found), known):
        yield f"{len(found)} rows: the graph is up to {furthest:.3g} away from the detector, allowed are {allowed:.3g}"


DETECTOR_LAWS: tuple[DetectorLaw, ...] = (
    every_gateway_runs_its_graph,  # what onnxruntime does not load is refused here with a reason
    the_graph_scores_as_the_detector_does,
    it_scores_with_the_gateways_own_tensors,
    what_is_no_number_never_looks_normal,
    far_rows_have_scores,
    its_graph_is_plain_and_pinned,
    equal_parameters_give_equal_bytes,
    only_personal_tensors_can_be_overridden,
)
