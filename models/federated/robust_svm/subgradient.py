"""Federated distributionally robust SVM by subgradients ("A Federated Distributionally Robust Support Vector Machine
with Mixture of Wasserstein Balls Ambiguity Set for Distributed Fault Diagnosis", Algorithm 1, "SM").

All gateways together minimise Σ ω_k sup E[hinge], the worst case over a ball around each gateway's own data (Eq. 5). A
gateway finds its worst case at the weights it was sent and returns ω g and ω, where g is the subgradient of the hinge
loss there (Eq. 10); the cloud steps by -step / √t Σ ω g / Σ ω. Both are sums, so they may travel masked, and nothing
stays with the gateway but its normalisation.

With a `box` that features stay in, the worst case is a distribution on it (Eqs. 8 and 9). Without, features may move
anywhere and the same risk has a closed form, so its subgradient costs one sort; where no sample would be moved past the
border both are the same.
"""

from __future__ import annotations

import numpy as np

from fedgate.models.arrays import FEATURES, Array, Arrays, Floats
from fedgate.models.detectors.base.fault_classes import MultiClass, machines
from fedgate.models.federated.protocol.algorithm import (
    Algorithm,
    Count,
    Normalisation,
    Phase,
    Positive,
    Server,
    Trained,
    normalise,
    personal_tensors,
)
from fedgate.models.federated.protocol.composition import UNIT_FREE
from fedgate.models.federated.protocol.reducer import SUM
from fedgate.models.federated.protocol.schema import Field
from fedgate.models.federated.robust_svm.ball import Balls, LabelCost, NormSetting, Radius
from fedgate.models.federated.robust_svm.box import Box, worst_case
from fedgate.models.federated.robust_svm.gateway import (
    Task,
    Weighting,
    check_weighed,
    exported,
    imported,
    labels_of,
    most_weight,
    tasks,
    weight_of,
)
from fedgate.models.federated.robust_svm.open_support import subgradient
from fedgate.models.options import Listed

SLOPES, WEIGHTS, STEP = "slopes", "weight_sum", "step"


def robust_svm_subgradient(
    feature_count: Count,
    *,
    radius: Radius = 1e-2,
    kappa: LabelCost = 1.0,
    norm: NormSetting = "1",
    classes: Count = 1,
    multiclass: MultiClass = "one-vs-all",
    weights: Weighting = "equal",
    box: Listed[tuple[float, float]] | None = None,
    step: Positive = 1.0,
    rounds: Count = 100,
    max_weight: Positive | None = None,
    largest_weight: Positive = 1e2,
    max_rows: Count = 5_000,
    normalisation: Normalisation = "own",
) -> Algorithm:
    """FDR-SVM by subgradients over F features.

    What is not named here means the same in `robust_svm_admm`.

    :param largest_weight: largest size of a number in g, the slope that a gateway sends.
    :param max_rows: most rows a gateway looks at; of more, an even spread from the first to the last, and all count.
    :param box: least and greatest value of a feature, after normalisation; without one features may move anywhere.
    :param step: of the cloud, divided by the root of how many it took.
    """
    limits, most, balls = _limits(box), most_weight(weights, max_weight), Balls(radius, kappa, norm)
    sides = machines(classes, multiclass)
    shape = (len(sides), feature_count + 1)

    def learn(global_state: Arrays, local_state: Arrays, data: Arrays, _rng: np.random.Generator) -> Trained:
        labels, weight = labels_of(data, classes), weight_of(data, weights, len(data[FEATURES]), most)
        local_state, z = normalise(local_state, data, normalisation)
        taught = zip(tasks(data, z, labels, sides, balls, max_rows), imported(global_state), strict=True)
        slopes = np.array([_slope(task, w, limits) for task, w in taught])  # (M, F + 1)
        return local_state, {SLOPES: weight * slopes, WEIGHTS: np.array(weight)}

    def advance(server: Server, total: Arrays) -> Server:
        taken = server.global_state[STEP] + 1.0
        W = imported(server.global_state) - step / np.sqrt(taken) * total[SLOPES] / total[WEIGHTS]
        return server._replace(global_state={**exported(W, sides), STEP: np.asarray(taken)})

    def start(_rng: np.random.Generator) -> Server:
        return Server(global_state={**exported(np.zeros(shape), sides), STEP: np.zeros(())}, server_state={})

    schema = {SLOPES: Field(shape, "delta"), WEIGHTS: Field((), "weight")}
    check = check_weighed(SLOPES, WEIGHTS, max_weight=most, largest=largest_weight)
    phase = Phase(learn, SUM, advance, schema, check)
    personal, traits = personal_tensors(normalisation), frozenset({UNIT_FREE} if box is not None else ())
    return Algorithm("linear-svm", start, (phase,), rounds, personal, labels=True, traits=traits)


def _slope(task: Task | None, w: Array, limits: Box | None) -> Floats:
    """Return a subgradient (F + 1,) of the worst-case risk at w; of no rows the risk is zero everywhere."""
    if task is None:
        return np.zeros(len(w))
    if limits is None:
        return subgradient(w, task.x * task.sign[:, None], task.ball)
    return worst_case(task.x, task.sign, w, task.ball, limits).subgradient(w)


def _limits(box: tuple[float, float] | None) -> Box | None:
    if box is not None and not box[0] < 1.0 <= box[1]:
        raise ValueError(f"box: expected a range with 1 in it, the constant feature of the bias, got {list(box)}")
    return None if box is None else Box(*box)
