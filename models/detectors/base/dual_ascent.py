"""The dual of the one-class SVM with its margin fixed at 1, by ascent along one multiplier after the other (Anaissi and
Suleiman, "A Personalized Federated Learning Algorithm", Algorithm 1).

    maximise L(α) = Σ α_i - 1/2 ΣΣ α_i α_j K_ij   subject to 0 <= α_i <= 1 / (ν n)                             (Eq. 4)

The paper prints Σα = 1 beside Eq. 4 and drops it in the algorithm, and so do we: with it Σα_i would be a constant and
one multiplier could not move alone. Without it the border is where w·φ(x) = 1 and ν is no longer the share outside:
α fills its caps as far as the margin asks for it, so what acts is

    ν' = Σα / (n C) = ν Σα,   C = 1 / (ν n)

which is returned. α / Σα is the solution of the ν' one-class SVM (Schölkopf 2001) with ρ = 1 / Σα: that is how the
result becomes a detector and how it compares with libsvm.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedgate.models.arrays import Array, Floats
from fedgate.models.detectors.base.checks import ConvergenceError, SettingError

EFFECTIVE_NU = "effective_nu"  # () beside the parameters of a detector that was fitted by this ascent
TOLERANCE = 1e-6
MOST_SWEEPS = 5_000
SMALLEST_LENGTH = 1e-300  # a row at the origin: no multiplier of it moves anything, so it ends at its cap


class Ascent(NamedTuple):
    """Multipliers (n,) at the end, ν' that they amount to, and how many sweeps it took."""

    multipliers: Floats
    effective_nu: float
    sweeps: int


def ascend(
    gram: Array,
    nu: float,
    *,
    step: float | None = None,
    tolerance: float = TOLERANCE,
    most_sweeps: int = MOST_SWEEPS,
) -> Ascent:
    """Run Algorithm 1 on a kernel matrix (n, n) until a sweep moves α by no more than `tolerance`.

    :param step: η of Eq. 6, below 2 / max K_kk or the ascent would overshoot; where not given 1 / max K_kk, which for
        an RBF kernel is exact maximisation along each coordinate.

    Raises `SettingError` for a step out of range and `ConvergenceError` where `most_sweeps` were not enough.
    """
    eta = common_step(gram.diagonal(), step)
    cap = 1.0 / (nu * len(gram))
    alpha = np.zeros(len(gram))
    moved = np.inf
    for sweep in range(1, most_sweeps + 1):
        before = alpha.copy()
        _sweep(gram, alpha, eta, cap)
        moved = float(np.linalg.norm(alpha - before))
        if moved <= tolerance:
            return Ascent(alpha, nu * float(alpha.sum()), sweep)
    raise ConvergenceError(
        f"after {most_sweeps} sweeps the multipliers still move by {moved:.2g} a sweep, expected at most "
        f"{tolerance:g}: take a narrower kernel (larger gamma), a larger tolerance or more sweeps"
    )


def common_step(squares: Array, step: float | None) -> float:
    """Return η of Eq. 6 for all multipliers of rows of squared lengths K_kk (n,): as given, else 1 / max K_kk.

    Raises `SettingError` for one with which the ascent would overshoot.
    """
    largest = max(float(squares.max()), SMALLEST_LENGTH)
    eta = 1.0 / largest if step is None else step
    if not 0.0 < eta * largest < 2.0:
        raise SettingError(f"step {eta:g} given, expected above 0 and below 2 / max K_kk = {2.0 / largest:g}")
    return eta


def _sweep(gram: Array, alpha: Floats, eta: float, cap: float) -> None:
    """Move every multiplier once, in place; the gradient (Eq. 5) is kept up to date instead of summed anew."""
    gradient = 1.0 - gram @ alpha  # (n,)
    for k in range(len(alpha)):
        old = float(alpha[k])
        new = min(max(old + eta * float(gradient[k]), 0.0), cap)  # Eq. 7
        if new != old:
            alpha[k] = new
            gradient -= (new - old) * gram[k]


def ascend_in_map(
    phi: Array,
    anchor: Array,
    multipliers: Array,
    *,
    cap: float,
    sweeps: int,
    proximity: float = 0.0,
    step: float | None = None,
) -> tuple[Floats, Floats]:
    """Return multipliers (n,) after so many sweeps, and by how much w = Σ α_i φ_i (M,) changed on the way.

    The same ascent in a feature space of M dimensions and around a model w_t that others have a part in:

        maximise Σ α_i - w_t·ΔW - (1 + µ)/2 |ΔW|²,   ΔW = Σ (α_i - α_i before) φ_i
        δ = (1 - w_t·φ_k - (1 + µ) ΔW·φ_k) / ((1 + µ) |φ_k|²)   along coordinate k, then clipped

    :param phi: rows (n, M) in the map.
    :param anchor: w_t (M,); zero for a model of these rows alone.
    :param cap: largest multiplier, 1 / (ν n).
    :param proximity: µ of FedProx.
    :param step: η of Eq. 7, the same along each coordinate: δ is then η |φ_k|² times as far. Not given, each coordinate
        goes to its own optimum.
    """
    alpha, change = np.array(multipliers, dtype=np.float64), np.zeros(phi.shape[1])
    margins = (1.0 - phi @ anchor).tolist()
    stiffness = 1.0 + proximity
    squares = np.maximum((phi * phi).sum(axis=1), SMALLEST_LENGTH)
    lengths = (stiffness * (squares if step is None else np.full(len(phi), 1.0 / step))).tolist()
    for _ in range(sweeps):
        for k, row in enumerate(phi):
            old = float(alpha[k])
            delta = (margins[k] - stiffness * float(change @ row)) / lengths[k]
            new = min(max(old + delta, 0.0), cap)
            if new != old:
                alpha[k] = new
                change += (new - old) * row
    return alpha, change


def objective(square: float, products: Array, nu: float) -> float:
    """Return the one-class objective per sample, 1/2 |w|² + mean(max(0, 1 - w·φ_i)) / ν, the primal of the above, for
    |w|² and the products w·φ_i (n,).
    """
    return square / 2.0 + float(np.maximum(1.0 - products, 0.0).mean()) / nu
