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

from typing import Literal

import numpy as np

from fedgate.models.arrays import FEATURES, Array, Arrays, Floats
from fedgate.models.federated.protocol.algorithm import (
    Algorithm,
    Count,
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
from fedgate.models.federated.protocol.weights import check_weighed, most_weight
from fedgate.models.federated.robust_svm.ball import Ball, LabelCost, NormSetting, ball_of_settings
from fedgate.models.federated.robust_svm.box import Box, worst_case
from fedgate.models.federated.robust_svm.gateway import (
    Weighting,
    ball_of,
    exported,
    imported,
    signs_of,
    thinned,
    weight_of,
)
from fedgate.models.federated.robust_svm.open_support import subgradient

SLOPES, WEIGHTS, STEP = "slopes", "weight_sum", "step"


def robust_svm_subgradient(
    feature_count: Count,
    *,
    radius: Positive = 1e-2,
    kappa: LabelCost = 1.0,
    norm: NormSetting = "1",
    classes: Count = 1,
    weights: Weighting = "equal",
    box: tuple[float, float] | None = None,
    step: Positive = 1.0,
    rounds: Count = 100,
    max_weight: Positive | None = None,
    largest_weight: Positive = 1e2,
    max_rows: Count = 5_000,
    normalisation: Literal["own", "none"] = "own",
) -> Algorithm:
    """FDR-SVM by subgradients over F features.

    :param radius: ε of every gateway whose data holds no radius of its own.
    :param kappa: cost κ of a changed label; "none": labels are certain.
    :param norm: of the way that features are moved; the weights are measured in its dual.
    :param classes: K fault classes, each against all else.
    :param weights: what a gateway counts whose data holds no weight: one, or its rows.
    :param max_weight: most that a gateway may count for; not given, 1 with equal weights and 20,000 with samples.
    :param largest_weight: largest size of a number in g, the slope that a gateway sends.
    :param max_rows: most rows a gateway looks at; of more, an even spread from the first to the last, and all count.
    :param box: least and greatest value of a feature, after normalisation; without one features may move anywhere.
    :param step: of the cloud, divided by the root of how many it took.
    """
    limits, most = _limits(box), most_weight(weights, max_weight)

    def slope(x: Array, sign: Array, w: Array, own_ball: Ball) -> Floats:
        if limits is None:
            return subgradient(w, x * sign[:, None], own_ball)
        return worst_case(x, sign, w, own_ball, limits).subgradient(w)

    def learn(global_state: Arrays, local_state: Arrays, data: Arrays, rng: np.random.Generator) -> Trained:
        del rng
        signs, own_ball = signs_of(data, classes), ball_of(data, ball_of_settings(radius, kappa, norm))
        weight = weight_of(data, weights, len(data[FEATURES]), most)
        local_state, z = normalise(local_state, data, normalisation)
        x, signs = thinned(z, signs, max_rows)  # (n, F + 1), (K, n)
        slopes = np.array([slope(x, sign, w, own_ball) for sign, w in zip(signs, imported(global_state), strict=True)])
        return local_state, {SLOPES: weight * slopes, WEIGHTS: np.array(weight)}

    def advance(server: Server, total: Arrays) -> Server:
        taken = server.global_state[STEP] + 1.0
        W = imported(server.global_state) - step / np.sqrt(taken) * total[SLOPES] / total[WEIGHTS]
        return server._replace(global_state={**exported(W), STEP: np.asarray(taken)})

    def start(rng: np.random.Generator) -> Server:
        del rng
        return Server(
            global_state={**exported(np.zeros((classes, feature_count + 1))), STEP: np.zeros(())}, server_state={}
        )

    schema = {SLOPES: Field((classes, feature_count + 1), "delta"), WEIGHTS: Field((), "weight")}
    check = check_weighed(SLOPES, WEIGHTS, max_weight=most, largest=largest_weight)
    phase = Phase(learn, SUM, advance, schema, check)
    personal, traits = personal_tensors(normalisation), frozenset({UNIT_FREE} if box is not None else ())
    return Algorithm("linear-svm", start, (phase,), rounds, personal, labels=True, traits=traits)


def _limits(box: tuple[float, float] | None) -> Box | None:
    if box is not None and not box[0] < 1.0 <= box[1]:
        raise ValueError(f"box: expected a range with 1 in it, the constant feature of the bias, got {list(box)}")
    return None if box is None else Box(*box)
