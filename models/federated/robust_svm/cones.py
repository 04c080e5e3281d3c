"""The two cones an interior point can be inside of: non-negative numbers, and (λ, w) with |w|₂ <= λ.

Both offer the same few operations of a symmetric cone with the scaling of Nesterov and Todd (1997), on arrays of one
shape: W is the one scaling with W y = W⁻¹ s for a slack s and its multiplier y, and ∘ is the cone's own product, with
unit e. Formulas: Vandenberghe, "The CVXOPT linear and quadratic cone program solvers" (2010), sections 4 and 5.
"""

from __future__ import annotations

import numpy as np

from fedgate.models.arrays import Array, Floats


class Orthant:
    """Numbers >= 0, of any shape."""

    def degree(self, shape: tuple[int, ...]) -> int:
        """Return e · e: how much the cone counts in the mean of s · y."""
        return int(np.prod(shape))

    def unit(self, shape: tuple[int, ...]) -> Floats:
        """Return e of so many numbers, the unit of ∘."""
        return np.ones(shape)

    def inverse(self, s: Array) -> Floats:
        """Return s⁻¹, with s ∘ s⁻¹ = e."""
        return np.asarray(1.0 / s)

    def scaling(self, s: Array, y: Array) -> tuple[Floats, Floats]:
        """Return the diagonals of W and of W⁻¹."""
        W = np.sqrt(s / y)
        return W, 1.0 / W

    def times(self, W: Array, u: Array) -> Floats:
        """Return W u for a vector, or for the columns of a matrix."""
        return np.asarray(W * u if u.ndim == W.ndim else W[:, None] * u)

    def product(self, u: Array, v: Array) -> Floats:
        """Return u ∘ v."""
        return np.asarray(u * v)

    def quotient(self, u: Array, v: Array) -> Floats:
        """Return x with v ∘ x = u."""
        return np.asarray(u / v)

    def room(self, s: Array, step: Array) -> float:
        """Return how many steps lead from s to the border, infinity where none does."""
        steepest = float((step / s).min())
        return -1.0 / steepest if steepest < 0.0 else np.inf


class SecondOrder:
    """Vectors (λ, w), (m,), with |w|₂ <= λ."""

    def degree(self, shape: tuple[int, ...]) -> int:
        """Return e · e: how much the cone counts in the mean of s · y."""
        return int(np.prod(shape[1:]))

    def unit(self, shape: tuple[int, ...]) -> Floats:
        """Return e of so many numbers, the unit of ∘."""
        e = np.zeros(shape)
        e[0] = 1.0
        return e

    def inverse(self, s: Array) -> Floats:
        """Return s⁻¹, with s ∘ s⁻¹ = e."""
        return _mirrored(s) / _height(s) ** 2

    def scaling(self, s: Array, y: Array) -> tuple[Floats, Floats]:
        """Return W = η (2 v vᵀ - J) and W⁻¹ = J W J / η² with J = diag(1, -1, .., -1), both (m, m)."""
        from_s, from_y = _height(s), _height(y)
        s, y = s / from_s, y / from_y
        v = (s + _mirrored(y)) / np.sqrt(2.0 * (1.0 + s @ y))
        v[0] += 1.0
        v /= np.sqrt(2.0 * v[0])
        J = np.diag(_mirrored(np.ones(len(s))))
        stretch = np.sqrt(from_s / from_y)
        W = 2.0 * v[:, None] * v - J
        v = _mirrored(v)
        return stretch * W, (2.0 * v[:, None] * v - J) / stretch

    def times(self, W: Array, u: Array) -> Floats:
        """Return W u."""
        return np.asarray(W @ u)

    def product(self, u: Array, v: Array) -> Floats:
        """Return u ∘ v."""
        return np.concatenate([[u @ v], u[0] * v[1:] + v[0] * u[1:]])

    def quotient(self, u: Array, v: Array) -> Floats:
        """Return x with v ∘ x = u."""
        across = float(v[1:] @ u[1:])
        first = (v[0] * u[0] - across) / _height(v) ** 2
        return np.concatenate([[first], (u[1:] - first * v[1:]) / v[0]])

    def room(self, s: Array, step: Array) -> float:
        """Return how many steps lead from s to the border, seen from where s is the unit of the cone."""
        height = _height(s)
        u = s / height
        along = u[0] * step[0] - u[1:] @ step[1:]
        across = step[1:] - (along + step[0]) / (1.0 + u[0]) * u[1:]
        outwards = float(np.linalg.norm(across) - along)
        return float(height / outwards) if outwards > 0.0 else np.inf


Cone = Orthant | SecondOrder


def _height(u: Array) -> float:
    """Return sqrt(λ² - |w|²), from its factors, which keep their digits near the border."""
    across = float(np.linalg.norm(u[1:]))
    return float(np.sqrt((u[0] - across) * (u[0] + across)))


def _mirrored(u: Array) -> Floats:
    """Return J u."""
    mirrored = -np.asarray(u, dtype=np.float64)
    mirrored[0] = u[0]
    return mirrored
