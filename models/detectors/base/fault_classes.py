"""Linear support vector machines, one for each fault class against all else (FDR-SVM paper).

    margin_k(x) = W_k·z + b_k,      score(x) = max_k margin_k(x)

The score is positive where some fault is recognised; `classify` says which. With one class it is the linear SVM. The
plain machine is fitted by scikit-learn's LIBSVM, whose results depend on nothing but the data; the robust ones are
trained by `fedgate.models.federated.robust_svm.subgradient` and `robust_svm_admm`.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.detectors.base.detector import Detector, standardised
from fedgate.models.detectors.svm.checks import ConvergenceError

STEPS_MAX = 1_000_000  # of LIBSVM; seconds, where features that differ by thousands would keep it busy for ever


def margins(params: Arrays, x: Array) -> Floats:
    """Return (n, K) margins of features (n, F), one column per fault class."""
    return np.asarray(standardised(params, x) @ params["weights"].T + params["intercept"])


def score(params: Arrays, x: Array) -> Floats:
    """Return (n,) scores of features (n, F): the highest margin, zero on the border, positive for a fault."""
    return np.asarray(margins(params, x).max(axis=1))


def classify(params: Arrays, x: Array) -> NDArray[np.int64]:
    """Return (n,) classes of features (n, F): 0 where no margin is positive, else 1 to K for the highest."""
    values = margins(params, x)
    return np.where(values.max(axis=1) > 0.0, values.argmax(axis=1) + 1, 0)


def graph(params: Arrays, personal: Collection[str]) -> bytes:
    """Return `score` as ONNX: standardise, one Gemm, the largest of each row."""
    from onnx import helper

    from fedgate.models.detectors.base.graph import model_bytes, standardise_nodes, standardise_tensors

    tensors = {"columns": params["weights"].T, "intercept": params["intercept"], "flat": np.array([-1])}
    tensors |= standardise_tensors(params)
    nodes = [
        *standardise_nodes(params, personal),
        helper.make_node("Gemm", ["z", "columns", "intercept"], ["margins"]),
        helper.make_node("ReduceMax", ["margins"], ["highest"], axes=[1], keepdims=1),
        helper.make_node("Reshape", ["highest", "flat"], ["score"]),
    ]
    return model_bytes("fault_classes", nodes, tensors, personal, params["weights"].shape[1])


def fit(x: Array, y: Array, *, classes: int | None = None, c: float = 1.0) -> Arrays:
    """Fit on features (n, F) and labels (n,) of 0 (normal) to K; K is the largest label where not given.

    `c` is the price of a row inside the margin. Raises `ValueError` where a class has no rows, or all of them, and
    `ConvergenceError`.
    """
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.svm import SVC

    labels = np.asarray(y)
    count = max(int(labels.max(initial=0)), 1) if classes is None else classes
    weights, intercept = np.zeros((count, np.shape(x)[1])), np.zeros(count)
    for k in range(count):
        member = labels == k + 1
        if member.all() or not member.any():
            raise ValueError(f"class {k + 1} has {member.sum()} of {len(labels)} rows; expected some, and some others")
        with warnings.catch_warnings():
            warnings.simplefilter("error", ConvergenceWarning)
            try:
                machine = SVC(kernel="linear", C=c, max_iter=STEPS_MAX).fit(x, member)
            except ConvergenceWarning:
                raise ConvergenceError(
                    f"LIBSVM was not done after {STEPS_MAX} steps; bring the features near to 1, or lower c"
                ) from None
        weights[k], intercept[k] = machine.coef_[0], machine.intercept_[0]
    return {"weights": weights, "intercept": intercept}


FAULT_CLASSES = Detector(score=score, graph=graph, fit=fit)
