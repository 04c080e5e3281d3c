"""Linear support vector machines that tell fault classes apart, 0 being normal (FDR-SVM paper).

    margin_m(x) = W_m·z + b_m,      score(x) = max_m margin_m(x) over the machines that have normal rows on their
                                               other side

`one-vs-all` has a machine for each fault class against all else. `one-vs-one` has one for each two classes, of their
rows alone; `pairs` (M, 2) in the parameters names the two, the positive one first, and those against normal come first.
The score is positive where some fault is recognised, of pairs where some fault beats normal; `classify` says which.
With one class both are the linear SVM. The plain machine is fitted by scikit-learn's LIBSVM, whose results depend on
nothing but the data; the robust ones are trained by `fedgate.models.federated.robust_svm.subgradient` and
`robust_svm_admm`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import numpy as np

from fedgate.models.arrays import Array, Arrays, Booleans, Floats, Integers
from fedgate.models.detectors.base.checks import ConvergenceError
from fedgate.models.detectors.base.detector import Detector, standardised
from fedgate.models.detectors.base.graph_builder import model_of, node

MultiClass = Literal["one-vs-all", "one-vs-one"]
PAIRS = "pairs"
ALL_ELSE = -1  # in the place of a class
STEPS_MAX = 1_000_000  # of LIBSVM; seconds, where features that differ by thousands would keep it busy for ever


def machines(classes: int, multiclass: MultiClass) -> Integers:
    """Return (M, 2): the positive class of each machine and the one on its other side, which may be all else."""
    if multiclass == "one-vs-all":
        pairs = [(one, ALL_ELSE) for one in range(1, classes + 1)]
    else:
        pairs = [(one, other) for other in range(classes) for one in range(other + 1, classes + 1)]
    return np.array(pairs, dtype=np.int64)


def signs(labels: Array, sides: Array) -> Floats:
    """Return (M, n): for each machine 1 for rows of its positive class, -1 for those of its other side, and 0 for rows
    that are none of its business.
    """
    positive, other = (np.asarray(sides)[:, side, None] for side in (0, 1))
    against = (other == ALL_ELSE) | (labels == other)
    return np.where(labels == positive, 1.0, np.where(against, -1.0, 0.0))


def named(sides: Array) -> Arrays:
    """Return what the parameters say of machines with sides (M, 2): nothing where each is against all else."""
    return {} if (sides[:, 1] == ALL_ELSE).all() else {PAIRS: sides}


def margins(params: Arrays, x: Array) -> Floats:
    """Return (n, M) margins of features (n, F), one column per machine."""
    return np.asarray(standardised(params, x) @ params["weights"].T + params["intercept"])


def score(params: Arrays, x: Array) -> Floats:
    """Return (n,) scores of features (n, F): the highest margin, zero on the border, positive for a fault."""
    return np.asarray(margins(params, x)[:, _against_normal(params)].max(axis=1))


def _against_normal(params: Arrays) -> Booleans:
    return np.asarray(params[PAIRS][:, 1] == 0) if PAIRS in params else np.ones(len(params["weights"]), dtype=np.bool_)


def classify(params: Arrays, x: Array) -> Integers:
    """Return (n,) classes of features (n, F): 0 where the score is not positive, else the fault class 1 to K of the
    highest margin, or with pairs of the most votes.
    """
    values, is_fault = margins(params, x), score(params, x) > 0.0
    preference = votes(values, params[PAIRS])[:, 1:] if PAIRS in params else values
    return np.where(is_fault, preference.argmax(axis=1) + 1, 0)


def votes(values: Array, pairs: Array) -> Floats:
    """Return (n, K + 1) how many pairs each class wins by margins (n, M); between equals the sum of margins decides, as
    in scikit-learn's `OneVsOneClassifier`.
    """
    count = int(np.max(pairs)) + 1
    ours = (np.arange(count) == pairs[:, :1]).astype(np.float64)  # (M, K + 1)
    theirs = (np.arange(count) == pairs[:, 1:]).astype(np.float64)
    sums = values @ (ours - theirs)
    won = (values > 0.0) @ ours + (values <= 0.0) @ theirs
    return np.asarray(won + sums / (3.0 * (np.abs(sums) + 1.0)))


def graph(params: Arrays, personal: Collection[str]) -> bytes:
    """Return `score` as ONNX: standardise, one Gemm, the largest of each row."""
    judging = _against_normal(params)
    weights, intercept = params["weights"][judging], params["intercept"][judging]
    tensors = {"columns": weights.T, "intercept": intercept, "flat": np.array([-1])}
    nodes = [
        node("Gemm", "z columns intercept", "margins"),
        node("ReduceMax", "margins", "highest", axes=[1], keepdims=1),
        node("Reshape", "highest flat", "score"),
    ]
    return model_of("fault_classes", params, personal, nodes, tensors, weights.shape[1])


def fit(
    x: Array, y: Array, *, classes: int | None = None, c: float = 1.0, multiclass: MultiClass = "one-vs-all"
) -> Arrays:
    """Fit on features (n, F) and labels (n,) of 0 (normal) to K; K is the largest label where not given.

    `c` is the price of a row inside the margin. Raises `ValueError` where a class has no rows, or all of them, and
    `ConvergenceError`.
    """
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.svm import SVC

    labels = np.asarray(y)
    count = max(int(labels.max(initial=0)), 1) if classes is None else classes
    sides = machines(count, multiclass)
    weights, intercept = np.zeros((len(sides), np.shape(x)[1])), np.zeros(len(sides))
    for k, sign in enumerate(signs(labels, sides)):
        taken = sign != 0.0
        rows, member = np.asarray(x)[taken], sign[taken] > 0.0
        if member.all() or not member.any():
            found = f"class {sides[k, 0]} has {member.sum()} of {len(member)} rows"
            raise ValueError(f"{found}; expected some, and some others")
        with warnings.catch_warnings():
            warnings.simplefilter("error", ConvergenceWarning)
            try:
                machine = SVC(kernel="linear", C=c, max_iter=STEPS_MAX).fit(rows, member)
            except ConvergenceWarning:
                raise ConvergenceError(
                    f"LIBSVM was not done after {STEPS_MAX} steps; bring the features near to 1, or lower c"
                ) from None
        weights[k], intercept[k] = machine.coef_[0], machine.intercept_[0]
    return {"weights": weights, "intercept": intercept, **named(sides)}


FAULT_CLASSES = Detector(score=score, graph=graph, fit=fit)
