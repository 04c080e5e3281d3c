"""Which settings of the algorithms the laws are run with, beside the defaults of each."""

from __future__ import annotations

from typing import Any

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "ensemble-svdd": [
        {},
        {"normalisation": "none", "anonymise": False},
        {"c": 0.2},
        {"max_model_vectors": 12},
        {"whiten": 2},
    ],
    "esn-fedavg": [
        {"network": {"task": "classify", "washout": 5, "units": 30}, "rate": 1.0, "rounds": 10},
        {
            "network": {"task": "classify", "classes": 3, "leak": 1.0, "units": 20, "washout": 0},
            "normalisation": "none",
            "optimiser": "sgd",
            "class_weights": (1.0, 2.0, 2.0),
        },
    ],
    "esn-fedcurv": [
        {"network": {"task": "classify", "washout": 5, "units": 30}, "rate": 1.0, "rounds": 10},
        {"network": {"task": "classify", "washout": 5, "units": 30}, "rate": 1.0, "rounds": 10, "paper": True},
        {
            "network": {"task": "classify", "classes": 3, "leak": 1.0, "units": 20, "washout": 0},
            "normalisation": "none",
            "penalty": 0.01,
        },
    ],
    "conditional-fedavg": [{}, {"personalise": False}, {"paper": True, "events": 60}, {"whiten": 2}],
    "fedavg": [{}, {"normalisation": "none"}, {"loss": "logistic", "components": 0}, {"rate": 0.5}, {"whiten": 1}],
    "fedper": [{}, {"share": 1.0, "normalisation": "none"}, {"share": 0.05}],
    "fedprox": [{}, {"mu": 3.0, "normalisation": "none"}, {"loss": "logistic", "mu": 1.0}],
    "federated-subspace": [
        {},
        {"normalisation": "none", "reference": "pooled", "components": 1, "which": "residual"},
        {"sketch": 2, "forget": 0.5, "which": "distance"},
    ],
    "incfed": [
        {"ridge": 1.0},
        {"network": {"washout": 10, "task": "classify"}, "class_weight": "balanced", "rounds": 2},
        {"network": {"washout": 5, "units": 20, "layers": 2, "direct": False}, "normalisation": "none", "ridge": 1.0},
        {"network": {"washout": 5, "units": 30, "task": "reconstruct", "targets": (1,)}, "ridge": 0.3},
        {"network": {"washout": 10, "units": 8}, "paper": True, "ridge": 3.0, "fewest_rows": 12},
    ],
    "partial-incfed": [
        {"ridge": 1.0},
        {"network": {"washout": 5, "units": 40}, "select": "principal", "neurons": 6, "ridge": 1.0},
        {"network": {"washout": 5, "units": 40, "task": "classify"}, "select": "importance", "cohort": 4},
        {"network": {"washout": 5, "units": 40, "task": "classify"}, "select": "random", "normalisation": "none"},
    ],
    "robust-svm-admm": [
        {},
        {"normalisation": "none", "norm": "2", "weights": "samples", "strong_convexity": 0.1},
        {"norm": "inf", "kappa": None, "classes": 2, "strong_convexity": "auto"},
        {"whiten": 2},
    ],
    "robust-svm-subgradient": [
        {},
        {"normalisation": "none", "norm": "2", "weights": "samples", "classes": 2},
        {"norm": "inf", "box": (-30.0, 30.0), "kappa": None, "rounds": 40},
        {"box": (-30.0, 30.0), "worst": "program", "rounds": 4},
    ],
    "support-vector-election": [
        {},
        {"normalisation": "none", "anonymise": False},
        {"c": 0.2},
        {"max_vectors": 5},
        {"whiten": 2, "normalisation": "none"},
    ],
}
