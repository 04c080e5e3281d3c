"""The worst-case hinge risk where features may move anywhere, in closed form.

By duality (Shafieezadeh-Abadeh et al. 2019, Corollary 3.12; FDR-SVM paper, Eq. 12) the largest mean hinge loss over the
ball is the smallest value, over λ >= |w|_*, of

    ελ + (1/N) Σ max(0, 1 - z_i·w, 1 + z_i·w - κλ)

which in λ is convex and made of lines: one partial sort finds its minimum, no program is solved.
"""

from __future__ import annotations

import numpy as np

from fedgate.models.arrays import Array, Floats
from fedgate.models.federated.robust_svm.ball import DUAL_ORDERS, Ball, length, steepest
from fedgate.models.whole import round_down


def best_lambda(w: Array, z: Array, ball: Ball) -> float:
    """Return the λ that gives the risk at w (P,) on rows z = y x (N, P).

    While λ is below the end of a sample, a changed label of it pays and its line falls by κ/N; so the minimum lies
    where at most ε N / κ samples still pay.
    """
    least = length(w, DUAL_ORDERS[ball.norm])
    if ball.kappa is None:
        return least
    ends = np.sort(_ends(z @ w, ball.kappa))[::-1]
    paid = round_down(ball.radius * len(z) / ball.kappa)
    return least if paid >= len(z) else max(least, float(ends[paid]))


def risk(w: Array, z: Array, ball: Ball) -> float:
    """Return the worst-case mean hinge loss over the ball at w (P,) on rows z = y x (N, P)."""
    multiplier, margins = best_lambda(w, z, ball), z @ w
    losses = np.maximum(0.0, 1.0 - margins)
    if ball.kappa is not None:
        losses = np.maximum(losses, 1.0 + margins - ball.kappa * multiplier)
    return float(ball.radius * multiplier + losses.mean())


def subgradient(w: Array, z: Array, ball: Ball) -> Floats:
    """Return a subgradient (P,) of `risk` in w: -Σ α_i z_i + Σ β_i z_i + (ε - κ Σ β_i) ∂|w|_*.

    α_i and β_i are the masses that keep and that change their label; where λ > |w|_* the whole radius goes into labels
    and the last sample to pay changes in part.
    """
    share, margins = 1.0 / len(z), z @ w
    kept, spent = np.where(margins < 1.0, share, 0.0), 0.0  # (N,)
    changed = np.zeros(len(z))
    if ball.kappa is not None:
        multiplier, ends = best_lambda(w, z, ball), _ends(margins, ball.kappa)
        paying = ends >= multiplier if multiplier > length(w, DUAL_ORDERS[ball.norm]) else ends > multiplier
        order = np.argsort(-ends, kind="stable")
        changed[order] = np.clip(ball.radius / ball.kappa - share * np.arange(len(z)), 0.0, share)
        changed[~paying] = 0.0
        kept *= 1.0 - changed / share
        spent = ball.kappa * float(changed.sum())
    return np.asarray((changed - kept) @ z + max(ball.radius - spent, 0.0) * steepest(w, ball.norm))


def _ends(margins: Array, kappa: float) -> Floats:
    """Return (N,) the λ from which on a changed label costs more than it brings."""
    return np.asarray((1.0 + margins - np.maximum(0.0, 1.0 - margins)) / kappa)
