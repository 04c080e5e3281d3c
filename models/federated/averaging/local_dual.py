"""What one gateway does in a federated one-class SVM: its part of the dual, and what it remembers of it.

In a map φ that all gateways share the one-class SVM with margin 1 over all N rows is (Anaissi and Suleiman, Eq. 4)

    maximise Σ β_i - 1/2 |w|²,   w = Σ β_i φ_i,   0 <= β_i <= 1 / (ν N)

With β_i = p_k α_i, p_k = n_k / N, gateway k holds 0 <= α_i <= 1 / (ν n_k) and w = Σ_k p_k w_k, w_k = Σ α_i φ_i over its
own rows: the sample-weighted mean of contributions, which is what FedAvg computes. While all move at once by ΔW_k,

    |w + Σ p_k ΔW_k|² <= |w|² + 2 Σ p_k w·ΔW_k + Σ p_k |ΔW_k|²                                  (convexity, Σ p_k = 1)

so the dual is at least the sum over gateways of p_k (Σ α_i - w·ΔW_k - 1/2 |ΔW_k|²) + terms that do not change. Each
gateway raises its own bracket (`dual_ascent.ascend_in_map`), all may at once, and none can make it worse. This is the
"adding" form of CoCoA+ (Ma et al. 2015) with σ' = K, for unequal sizes too; with every gateway in every round it ends
at the pooled optimum. FedProx adds µ/2 |ΔW_k|² to what a gateway pays for moving, which is the 1 + µ in the bracket.

A contribution is sent whole, so one that is lost costs a round and no more. The multipliers stay on the gateway with
the step they belong to. Where the shared model does not hold a contribution (the gateway was left out, is new, or its
rows are others), w - w_k would not be that of the others, so the gateway starts afresh and sends the solution of its
own rows alone. Hence with `fraction` < 1 or an election the result is a mixture of those who took part last. Measured
with ten unlike gateways at ν = 0.1, three fleets, 10 to 60 rounds: all in every round end at a cosine of 1.000 to the
pooled w, with .15 to .21 of all rows outside; half of them at .76 to .88, with .10 to .41 outside; a fifth of them at
.34 to .78, with .17 to .52 outside, and no number of rounds mends it. Where gateways differ, ask all of them.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from fedgate.models.arrays import Arrays, Floats
from fedgate.models.detectors.base.dual_ascent import ascend_in_map, objective

BEFORE = "multipliers.before"  # (n,) that the shared model of MADE_AT holds, or (0,) where it holds none
AFTER = "multipliers.after"  # (n,) that went into the model after it
MADE_AT = "multipliers.step"
ROWS = "multipliers.rows"  # (M,) `fingerprint` of the rows they belong to
SAME_ROWS = 1e-9  # of the largest sum there can be: far above rounding, far below what any other row makes
MULTIPLIERS = (BEFORE, AFTER, MADE_AT, ROWS)


class Local(NamedTuple):
    """A gateway after its part: its state, what it contributes, and the model as it sees it."""

    local_state: Arrays
    multipliers: Floats  # (n,)
    contribution: Floats  # w_k (M,)
    judged: Floats  # (M,) the model whose border is this gateway's: as received, in the first step as it made it
    loss: float  # one-class objective per sample, of the shared model after this gateway's own training


def contribute(
    step: int,
    global_state: Floats,
    local_state: Arrays,
    phi: Floats,
    *,
    nu: float,
    epochs: int,
    proximity: float = 0.0,
    learning_rate: float | None = None,
) -> Local:
    """Return what a gateway with rows φ (n, M) contributes to the model after `global_state` (S,), the one of `step`.

    Where S < M the weights of the other components stay at home: of them the model holds what this gateway gave.
    A second call with the same step and the state of the first returns the same. `learning_rate` is η where all
    multipliers take the same one (`dual_ascent.ascend_in_map`).
    """
    cap, counted = 1.0 / (nu * len(phi)), _counted(step, local_state, phi)
    start = np.zeros(len(phi)) if counted is None else counted
    anchor = np.concatenate([global_state, (start @ phi)[len(global_state) :]])  # (M,)
    ascend = partial(ascend_in_map, phi, cap=cap, sweeps=epochs, step=learning_rate)
    alpha, change = ascend(anchor, start, proximity=proximity)
    view = anchor + change  # (M,) the shared model if all moved as this gateway did
    loss = objective(float(view @ view), phi @ view, nu)
    judged = view if step == 0 else anchor
    if counted is None and anchor.any():
        alpha, alone = ascend(np.zeros_like(anchor), start)
        judged = np.concatenate([global_state, alone[len(global_state) :]])
    multipliers = {
        BEFORE: np.zeros(0) if counted is None else counted,
        AFTER: alpha,
        MADE_AT: np.array(step, dtype=np.int64),
        ROWS: fingerprint(phi),
    }
    return Local({**local_state, **multipliers}, alpha, alpha @ phi, judged, loss)


def _counted(step: int, local_state: Arrays, phi: Floats) -> Floats | None:
    """Return the multipliers (n,) that are in the model of `step`, or nothing where this gateway has no part in it."""
    if not holds(local_state, phi):
        return None
    if int(local_state[MADE_AT]) == step - 1:
        return local_state[AFTER]
    repeated = int(local_state[MADE_AT]) == step and len(local_state[BEFORE]) > 0
    return local_state[BEFORE] if repeated else None


def holds(local_state: Arrays, phi: Floats) -> bool:
    """Tell whether the state has multipliers, and they belong to these rows (n, M)."""
    if ROWS not in local_state or local_state[AFTER].shape != (len(phi),) or local_state[ROWS].shape != (phi.shape[1],):
        return False
    largest = len(phi) * float(np.abs(phi).max(initial=0.0))
    return bool((np.abs(local_state[ROWS] - fingerprint(phi)) <= SAME_ROWS * largest).all())


def fingerprint(phi: Floats) -> Floats:
    """Return numbers (M,) that tell rows φ (n, M), and their order, from others: their sum, later ones weighing more.

    It is no digest: a map computed by another library, or on the processor that a card was moved to, gives the same
    rows in other last bits.
    """
    return np.asarray(np.linspace(1.0, 2.0, len(phi)) @ phi)


def withdrawn(local_state: Arrays) -> Arrays:
    """Return the state of a gateway whose contribution will not be counted."""
    return {name: array for name, array in local_state.items() if name not in MULTIPLIERS}
