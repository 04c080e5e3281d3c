"""The gateway's problem as data: what is minimised, and its constraints as rows that are never written out.

    minimise over w, λ, s   ελ + (1/N) Σ s_i + ρ/2 |w - v|² + µ/2 |w|²                          (FDR-SVM paper, Eq. 12d)
    subject to              s_i >= 1 - z_i·w,   s_i >= 0,   s_i >= 1 + z_i·w - κλ,   |w|_* <= λ

With ρ = µ = 0 it is the robust SVM itself (Central, Shafieezadeh-Abadeh et al. 2019, Corollary 3.12); without κ the
rows of changed labels are gone and it is an SVM regularised by the dual norm.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedgate.models.arrays import Array, Floats
from fedgate.models.federated.robust_svm.ball import ORDERS, Ball, length
from fedgate.models.federated.robust_svm.cones import Cone, Orthant, SecondOrder

KEPT, ZERO, CHANGED = 0, 1, 2  # kinds of hinge rows: 1 - z·w, zero, 1 + z·w - κλ


class Proximal(NamedTuple):
    """ρ/2 |w - center|² + µ/2 |w|²; both zero for the robust problem itself."""

    center: Floats  # (P,)
    rho: float = 0.0
    mu: float = 0.0

    def value(self, w: Array) -> float:
        """Return the penalty of weights (P,)."""
        away = w - self.center
        return float(self.rho * (away @ away) + self.mu * (w @ w)) / 2.0

    @property
    def scale(self) -> float:
        """The size that values of the whole problem are compared with: at least their own at w = 0."""
        return 1.0 + self.value(np.zeros(len(self.center)))


class Rows(NamedTuple):
    """The constraints as slack = G x - h in a cone; x is (w, λ, t) dense (M,) and s (N,).

    `signs`, `kappas` and `ones` say for each of the two or three kinds of hinge rows what multiplies z_i·w and λ and
    what stands on the right. `norm` are the rows of |w|_* <= λ over (w, λ, t); t bounds |w_j| where their sum is meant.
    """

    z: Floats  # (N, P)
    signs: Floats  # (B,)
    kappas: Floats  # (B,)
    ones: Floats  # (B, 1)
    norm: Floats  # (m, M)
    cone: Cone

    def hinge(self, dense: Array, s: Array) -> Floats:
        """Return G x of the hinge rows as (B, N)."""
        p = self.z.shape[1]
        products = np.multiply.outer(self.signs, self.z @ dense[:p])
        products += (self.kappas * dense[p])[:, None] + s
        return np.asarray(products)

    def transposed(self, hinge: Array, norm: Array) -> tuple[Floats, Floats]:
        """Return Gᵀ of (B, N) and (m,) in its parts for the dense variables (M,) and for s (N,)."""
        dense, p = np.asarray(norm @ self.norm), self.z.shape[1]
        dense[:p] += self.signs @ hinge @ self.z
        dense[p] += self.kappas @ hinge.sum(axis=1)
        return dense, np.asarray(hinge.sum(axis=0))


def rows_of(z: Array, ball: Ball) -> Rows:
    """Return the constraints for rows z = y x (N, P)."""
    p = z.shape[1]
    kinds = [(1.0, 0.0, 1.0), (0.0, 0.0, 0.0)] + ([] if ball.kappa is None else [(-1.0, ball.kappa, 1.0)])
    signs, kappas, ones = np.array(kinds).T
    eye, one, nothing = np.eye(p), np.ones((p, 1)), np.zeros((p, 1))
    cone: Cone = Orthant()
    if ball.norm == "1":  # λ >= ±w_j
        norm = np.block([[-eye, one], [eye, one]])
    elif ball.norm == "inf":  # t_j >= ±w_j, λ >= Σ t_j
        norm = np.block([[-eye, nothing, eye], [eye, nothing, eye], [nothing.T, np.ones((1, 1)), -one.T]])
    else:
        cone, norm = SecondOrder(), np.block([[nothing.T, np.ones((1, 1))], [eye, nothing]])
    return Rows(np.asarray(z, dtype=np.float64), signs, kappas, ones[:, None], norm, cone)


def lower_bound(rows: Rows, ball: Ball, proximal: Proximal, hinge: Array, norm: Array) -> float:
    """Return a value that the optimum cannot be below, from any multipliers (B, N) and (m,).

    They are first made feasible: no sample has more mass than 1/N, moved and relabelled mass costs at most ε. Then the
    Lagrangian is smallest in w at a point that can be written down:

        Σ (α + β) - |ρv + Σ (α - β) z - g|² / 2(ρ + µ) + ρ/2 |v|²,      |g| <= ε - κ Σ β

    and without a proximal term at g = Σ (α - β) z, after scaling α and β until that is short enough.
    """
    n, p = rows.z.shape
    kept = np.maximum(hinge[KEPT], 0.0)
    changed = np.maximum(hinge[CHANGED:].sum(axis=0), 0.0)
    fit = 1.0 / np.maximum(1.0, n * (kept + changed))
    kept, changed = kept * fit, changed * fit
    spent = (ball.kappa or 0.0) * float(changed.sum())
    if spent > ball.radius:
        kept, changed, spent = kept * ball.radius / spent, changed * ball.radius / spent, ball.radius
    pull, mass = (kept - changed) @ rows.z, float((kept + changed).sum())
    curvature = proximal.rho + proximal.mu
    if curvature == 0.0:
        cost = length(pull, ORDERS[ball.norm]) + spent
        return mass * min(1.0, ball.radius / cost) if cost > 0.0 else mass
    moved = -(norm @ rows.norm)[:p]
    longest, found = ball.radius - spent, length(moved, ORDERS[ball.norm])
    moved = moved * (longest / found) if found > longest else moved
    total = proximal.rho * proximal.center + pull - moved
    anchor = proximal.rho * float(proximal.center @ proximal.center)
    return mass - float(total @ total) / (2.0 * curvature) + anchor / 2.0
