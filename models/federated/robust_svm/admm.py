"""Federated distributionally robust SVM by ADMM ("A Federated Distributionally Robust Support Vector Machine with
Mixture of Wasserstein Balls Ambiguity Set for Distributed Fault Diagnosis", Algorithm 2).

Gateway k minimises its worst-case risk plus ρ/2 |w_k - z + u_k|² (Eq. 12), where z are the weights of all and u_k is
what it has disagreed by so far; it sends ω (w_k + u_k) and ω, and the cloud takes z = Σ ω (w_k + u_k) / Σ ω (Eq. 14).
Once z is back, u_k += w_k - z. What is sent is a sum and may travel masked; w_k and u_k stay.

It wants all gateways in every round. Updates that are lost for a while do no lasting harm: once all are back it goes
on to the same optimum. But where some are missing round after round, as with `fraction` below 1, z is the mean of those
who came and u_k of the others is settled against another z, so that it wanders: of eight unlike gateways all came to
1.000 times the optimum, half of them in each round to 1.3 to 2.2 times and a quarter to 1.3 to 2.6 times, after 400
rounds no better than after 50.

`kappa` none makes it ADMM-REG, certain labels. `strong_convexity` µ adds µ/2 |w_k|² and makes it ADMM-SC: the paper
takes µ from its Theorem 3, after Theorem 3.3 of Lin, Ma and Zhang (2015) for ADMM of many blocks one after the other.
That costs accuracy and is not needed: given z the gateways do not depend on each other, so they are one block and the
cloud the other, and ADMM of two blocks converges for every ρ (Boyd et al. 2011, Section 3.2).
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import numpy as np

from fedgate.models.arrays import FEATURES, Arrays, Floats
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
from fedgate.models.federated.protocol.reducer import SUM
from fedgate.models.federated.protocol.schema import ONE, Field
from fedgate.models.federated.robust_svm.ball import Balls, LabelCost, NormSetting, Radius
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
from fedgate.models.federated.robust_svm.interior_point import solve
from fedgate.models.federated.robust_svm.problem import Proximal

PROPOSALS, WEIGHTS, GATEWAYS = "proposals", "weight_sum", "gateways"  # of an update
LOCAL, DISAGREEMENT, SEEN = "local", "disagreement", "seen"  # of a gateway: w_k, u_k and the step they belong to
STEP, STRONG_CONVEXITY = "step", "strong_convexity"  # of the cloud
MARGIN = "theorem_3_margin"  # kept in the cloud: how far µ is above what Theorem 3 asks for; below 0 it is not met


def least_strong_convexity(rho: float, gateways: int) -> float:
    """Return the least µ with which Theorem 3 promises convergence for `gateways` blocks beside the cloud's.

    Of N = K + 1 blocks, of which the first (the cloud) need not be strongly convex, Theorem 3.3 of Lin, Ma and Zhang
    (2015) asks ρ λ_i <= 2 σ_i / ((2N - i)(i - 1)) for i = 2 .. N - 1 and ρ λ_N <= 2 σ_N / ((N - 2)(N + 1)). Here σ_i =
    ω_i µ and, the penalty of a gateway being weighted as its risk is, λ_i = ω_i, so that ω cancels.
    """
    blocks = gateways + 1
    factors = [(2 * blocks - i) * (i - 1) for i in range(2, blocks)] + [(blocks - 2) * (blocks + 1)]
    return rho * max(factors) / 2.0


def robust_svm_admm(
    feature_count: Count,
    *,
    radius: Radius = 1e-2,
    kappa: LabelCost = 1.0,
    norm: NormSetting = "1",
    classes: Count = 1,
    multiclass: MultiClass = "one-vs-all",
    weights: Weighting = "equal",
    rho: Positive = 0.1,
    strong_convexity: Positive | Literal["auto"] | None = None,
    rounds: Count = 20,
    max_weight: Positive | None = None,
    largest_weight: Positive = 1e2,
    max_rows: Count = 5_000,
    normalisation: Normalisation = "own",
) -> Algorithm:
    """FDR-SVM by ADMM over F features.

    :param radius: ε of every gateway whose data holds no radius of its own: a number, or `{ confidence = 0.95 }` for
        one that follows from its rows (see `Confidence`).
    :param kappa: cost κ of a changed label, where a gateway has none of its own; "none": labels are certain (ADMM-REG).
    :param norm: of the way that features are moved; the weights are measured in its dual.
    :param classes: K fault classes.
    :param multiclass: each against all else, or each two of the K + 1 classes against each other.
    :param weights: what a gateway counts whose data holds no weight: one, or its rows.
    :param max_weight: most that a gateway may count for; not given, 1 with equal weights and 20,000 with samples.
    :param largest_weight: largest size of a number in w_k + u_k, the weights that a gateway proposes. u_k is a slope of
        the risk divided by ρ, so a small ρ may need more.
    :param max_rows: most rows a gateway trains on; of more, an even spread from the first to the last, and all count.
    :param rho: penalty on disagreement, the same for all.
    :param strong_convexity: µ of ADMM-SC, or `auto` for the least that Theorem 3 asks for with as many gateways as take
        part, from the second round on, when they are known.
    """
    balls, most, sides = Balls(radius, kappa, norm), most_weight(weights, max_weight), machines(classes, multiclass)
    shape = (len(sides), feature_count + 1)

    def learn(global_state: Arrays, local_state: Arrays, data: Arrays, _rng: np.random.Generator) -> Trained:
        labels, weight = labels_of(data, classes), weight_of(data, weights, len(data[FEATURES]), most)
        local_state, features = normalise(local_state, data, normalisation)
        z, mu = imported(global_state), float(global_state[STRONG_CONVEXITY])
        u = _disagreement(local_state, z, float(global_state[STEP]))
        taught = zip(tasks(data, features, labels, sides, balls, max_rows), z - u, strict=True)  # M of a task, (F + 1,)
        w = np.array([_nearest(task, Proximal(at, rho, mu)) for task, at in taught])
        local_state = {**local_state, LOCAL: w, DISAGREEMENT: u, SEEN: np.array(global_state[STEP])}
        return local_state, {PROPOSALS: weight * (w + u), WEIGHTS: np.array(weight), GATEWAYS: np.ones(())}

    def advance(server: Server, total: Arrays) -> Server:
        needed = least_strong_convexity(rho, round(float(total[GATEWAYS])))
        mu = float(server.global_state[STRONG_CONVEXITY])
        wanted = max(mu, needed) if strong_convexity == "auto" else mu
        place = {STEP: np.asarray(server.global_state[STEP] + 1.0), STRONG_CONVEXITY: np.array(wanted)}
        z = total[PROPOSALS] / total[WEIGHTS]  # (M, F + 1)
        shared = {**exported(z, sides), **place}
        return server._replace(global_state=shared, server_state={MARGIN: np.array(mu - needed)})

    start = partial(_first, exported(np.zeros(shape), sides), strong_convexity)
    schema = {PROPOSALS: Field(shape, "full"), WEIGHTS: Field((), "weight"), GATEWAYS: ONE}
    check = check_weighed(PROPOSALS, WEIGHTS, max_weight=most, largest=largest_weight)
    phase = Phase(learn, SUM, advance, schema, check)
    return Algorithm("linear-svm", start, (phase,), rounds, personal_tensors(normalisation), labels=True)


def _nearest(task: Task | None, proximal: Proximal) -> Floats:
    """Return the weights (F + 1,) of least risk and distance; of no rows the risk is zero, and the distance decides."""
    if task is None:
        return proximal.center * (proximal.rho / (proximal.rho + proximal.mu))
    return solve(task.x * task.sign[:, None], task.ball, proximal).w


def _first(model: Arrays, strong_convexity: float | str | None, _rng: np.random.Generator) -> Server:
    mu = strong_convexity if isinstance(strong_convexity, float | int) else 0.0
    return Server(global_state={**model, STEP: np.zeros(()), STRONG_CONVEXITY: np.array(mu)}, server_state={})


def _disagreement(local_state: Arrays, z: Floats, step: float) -> Floats:
    """Return u_k (M, F + 1), moved by w_k - z once for every new z; asked again at the same step it stays."""
    if LOCAL not in local_state:
        return np.zeros_like(z)
    if float(local_state[SEEN]) == step:
        return np.asarray(local_state[DISAGREEMENT])
    return np.asarray(local_state[DISAGREEMENT] + local_state[LOCAL] - z)
