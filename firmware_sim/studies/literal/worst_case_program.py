"""The worst-case risk on a box by the paper's linear program (FDR-SVM paper, Eq. 9), solved with HiGHS.

It is the paper's own way and the slow one: the study of running times puts it beside the direct way
(`fedgate.models.federated.robust_svm.box`), and tests hold the two against each other. Moves against the loss never pay
and are left out, so a move is a size within its room.
"""

from __future__ import annotations

import numpy as np

from fedgate.models.arrays import Array, Floats
from fedgate.models.federated.robust_svm.ball import Ball, SolverError
from fedgate.models.federated.robust_svm.box import Box


def solve_worst_case(x: Array, y: Array, w: Array, ball: Ball, box: Box) -> float:
    """Return the value of `fedgate.models.federated.robust_svm.box.worst_case`, for the norms "1" and "inf": of samples
    x (N, P), labels y (N,), -1 or 1, and weights w (P,).

    Per sample: α, the mass that keeps its label and suffers, β, the mass that changes it, and the moves of either times
    its mass; the rest of the sample loses nothing. All masses are parts of 1 / N.

    Raises:
        ValueError: the norm "2", which is no linear program, samples outside the box, or a ball without extent.
        SolverError: HiGHS did not find the optimum; the message is its own.
    """
    from scipy.optimize import linprog

    if ball.norm == "2":
        raise ValueError("norm '2' makes no linear program; take norm '1' or 'inf', or the direct worst case")
    ball, box = ball.checked(), box.checked(x)
    n, margins = len(x), y * (x @ w)
    gains = np.concatenate([1.0 - margins, 1.0 + margins, np.tile(np.abs(w), 2 * n)]) / n
    rows, limits = _rows(_rooms(x, y, w, box), ball)
    bounds = np.zeros((rows.shape[1], 2))
    bounds[:, 1] = np.inf
    bounds[n : 2 * n, 1] = np.inf if ball.kappa is not None else 0.0
    objective = np.concatenate([-gains, np.zeros(rows.shape[1] - len(gains))])
    found = linprog(objective, A_ub=rows, b_ub=limits, bounds=bounds, method="highs")
    if found.status != 0:
        raise SolverError(f"HiGHS on the worst-case program: {found.message}")
    return -float(found.fun)


def _rooms(x: Array, y: Array, w: Array, box: Box) -> Floats:
    """Return how far each coordinate can be moved to raise the loss, as it is and with its label changed, (2, N, P)."""
    down, up = np.maximum(x - box.low, 0.0), np.maximum(box.high - x, 0.0)
    falls = np.outer(y, w) > 0.0
    return np.array([np.where(falls, down, up), np.where(falls, up, down)])


def _rows(rooms: Floats, ball: Ball) -> tuple[Array, Floats]:
    """Return the sparse rows and right sides: masses within 1, moves within their rooms, cost within N ε.

    Variables: α (N), β (N), moves (2 N P) and, for the norm "inf", the longest coordinate of each move (2 N).
    """
    from scipy import sparse

    _, n, p = rooms.shape
    masses, moves = sparse.identity(2 * n), sparse.identity(2 * n * p)
    spread = sparse.kron(masses, np.ones((p, 1)))  # (2 N P, 2 N)
    within = sparse.hstack([-spread.multiply(rooms.reshape(-1, 1)), moves])
    whole = sparse.hstack([sparse.hstack([sparse.identity(n)] * 2), sparse.csr_matrix((n, 2 * n * p))])
    labels = np.concatenate([np.zeros(n), np.full(n, ball.kappa or 0.0)])
    limits = np.concatenate([np.ones(n), np.zeros(2 * n * p), [n * ball.radius]])
    if ball.norm == "1":
        cost = np.concatenate([labels, np.ones(2 * n * p)])
        return sparse.vstack([whole, within, cost[None, :]]).tocsr(), limits
    longest = sparse.hstack([sparse.csr_matrix((2 * n * p, 2 * n)), moves, -spread])
    cost = np.concatenate([labels, np.zeros(2 * n * p), np.ones(2 * n)])
    wide = [sparse.hstack([part, sparse.csr_matrix((part.shape[0], 2 * n))]) for part in (whole, within)]
    rows = sparse.vstack([*wide, cost[None, :], longest]).tocsr()
    return rows, np.concatenate([limits, np.zeros(2 * n * p)])
