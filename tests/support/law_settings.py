"""Which settings of the algorithms the laws are run with, beside the defaults of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedgate.models.testing.fleet import FIVE, NAMES

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "ensemble-svdd": [
        {},
        {"normalisation": "none", "anonymise": False},
        {"c": 0.2},
        {"max_model_vectors": 12},
        {"covered": 0.5, "own_width": 2.0},
        {"whiten": 2, "gamma": 0.3},
    ],
    "esn-fedavg": [
        {"network": {"task": "classify", "washout": 5, "units": 30}, "rate": 1.0, "rounds": 10},
        {
            "network": {"task": "classify", "classes": 3, "leak": 1.0, "units": 20, "washout": 0},
            "normalisation": "none",
            "optimiser": "sgd",
            "class_weights": (1.0, 2.0, 2.0),
        },
        {
            "network": {"task": "classify", "washout": 5, "units": 30},
            **{"rate": 1.0, "rounds": 10, "compression": {"number": "float16", "share": 0.5}},
        },
        {
            "network": {"task": "classify", "washout": 5, "units": 30},
            **{"rate": 1.0, "rounds": 10, "privacy": {"clip": 1.0, "noise_multiplier": 0.05, "epsilon": 1e6}},
        },
        {
            "network": {"task": "classify", "washout": 5, "units": 30},
            **{"rate": 1.0, "rounds": 10, "robust": {"rule": "trimmed-mean", "liars": 0.3}},
        },
    ],
    "esn-fedcurv": [
        {"network": {"task": "classify", "washout": 5, "units": 30}, "rate": 1.0, "rounds": 10},
        {
            "network": {"task": "classify", "classes": 3, "leak": 1.0, "units": 20, "washout": 0},
            "normalisation": "none",
            "penalty": 0.01,
        },
    ],
    "conditional-fedavg": [
        {},
        {"personalise": False},
        {"whiten": 2},
        {"local": "dual-sgd", "learning_rate": 0.5},
    ],
    "fedavg": [
        {},
        {"normalisation": "none"},
        {"loss": "logistic", "components": 0},
        {"loss": "logistic", "components": 0, "server_optimiser": {"kind": "yogi", "rate": 0.1}},
        {"rate": 0.5},
        {"local": "dual-sgd"},
        {"local": "sgd"},
        {"local": "sgd", "normalisation": "none", "server_optimiser": {"kind": "yogi", "rate": 0.1}},
        {"local": "sgd", "masking": {"fewest": 3}, "mu": 0.5},
        {"local": "sgd", "compression": {"number": "int8", "share": 0.5}},
        {"local": "sgd", "gamma": 0.2, "privacy": {"clip": 10.0, "noise_multiplier": 1e-3, "epsilon": 1e12}},
        {"robust": {"rule": "median"}, "share": 0.5},
        {"whiten": 1},
        {"whiten": 1, "masking": {"fewest": 3}},
        {"compensate": (1,)},
        {"compression": {"number": "int8"}},
        {"loss": "logistic", "components": 0, "compression": {"number": "int8", "share": 0.5}},
        {"loss": "logistic", "components": 0, "privacy": {"clip": 1.0, "noise_multiplier": 0.05, "epsilon": 1e6}},
        {
            **{"loss": "logistic", "components": 0},
            "privacy": {"clip": 1.0, "noise_multiplier": 0.1, "epsilon": 1e6, "where": "cloud"},
        },
    ],
    "fedavg-median": [
        {},
        {"local": "sgd"},
        {"loss": "logistic", "components": 0},
        {"whiten": 1, "normalisation": "none"},
    ],
    "fedavg-trimmed-mean": [{"liars": 0.3}, {"loss": "logistic", "components": 0, "liars": 0.3}],
    "fedavg-krum": [{}, {"loss": "logistic", "components": 0}],
    "fedavg-multi-krum": [{}, {"loss": "logistic", "components": 0, "liars": 0.3}],
    "fedavg-clipped": [
        {},
        {"loss": "logistic", "components": 0, "server_optimiser": {"kind": "yogi", "rate": 0.1}, "survey": {}},
    ],
    "fedper": [
        {},
        {"share": 1.0, "normalisation": "none"},
        {"share": 0.05},
        {"local": "sgd", "mu": 0.5},
        {"loss": "logistic", "normalisation": "none"},
    ],
    "fedprox": [
        {},
        {"mu": 3.0, "normalisation": "none"},
        {"loss": "logistic", "mu": 1.0},
        {"loss": "logistic", "robust": {"rule": "median"}},
    ],
    "federated-subspace": [
        {},
        {"normalisation": "none", "reference": "pooled", "components": 1, "which": "residual"},
        {"sketch": 2, "forget": 0.5, "which": "distance"},
        {"reference": "pooled", "masking": {"fewest": 3, "quantum": 2.0**-30, "neighbours": 2, "threshold": 0.8}},
    ],
    "incfed": [
        {"network": {"units": 30}, "ridge": 1.0},
        {"network": {"washout": 10, "units": 30, "task": "classify"}, "class_weight": "balanced", "rounds": 2},
        {"network": {"washout": 5, "units": 20, "layers": 2, "direct": False}, "normalisation": "none", "ridge": 1.0},
        {"network": {"washout": 5, "units": 30, "task": "reconstruct", "targets": (1,)}, "ridge": 0.3},
        {"network": {"washout": 10, "units": 8}, "ridge": 3.0, "fewest_rows": 12},
        {"network": {"units": 30}, "ridge": 1.0, "masking": {"fewest": 3}},
    ],
    "partial-incfed": [
        {"network": {"units": 30}, "ridge": 1.0},
        {"network": {"washout": 5, "units": 40}, "select": "principal", "neurons": 6, "ridge": 1.0},
        {"network": {"washout": 5, "units": 40, "task": "classify"}, "select": "importance", "cohort": 4},
        {"network": {"washout": 5, "units": 40, "task": "classify"}, "select": "random", "normalisation": "none"},
    ],
    "recurrent-fedavg": [
        {"network": {"hidden": 4, "dense": 4, "change": False}, "rounds": 3},
        {"network": {"hidden": 4, "dense": 4, "change": False}, "rounds": 3, "robust": {"rule": "clipped"}},
        {"network": {"cell": "linear"}, "learning_rate": 0.05, "rounds": 5, "server_optimiser": {"momentum": 0.5}},
        {
            "network": {"hidden": 4, "dense": 4, "change": False},
            **{"rounds": 3, "measure": "own"},
            "privacy": {"clip": 10.0, "noise_multiplier": 1e-3, "epsilon": 1e12},
        },
        {
            "network": {"hidden": 4, "dense": 4, "change": False},
            **{"rounds": 3, "compression": {"number": "int8", "share": 0.5}},
        },
        {
            "network": {"task": "classify", "cell": "gru", "hidden": 4, "dense": 4, "layers": 2, "class_weights": True},
            **{"learning_rate": 0.03, "rounds": 4, "server_optimiser": {"kind": "yogi", "rate": 0.1}, "mu": 0.01},
        },
        {
            "network": {"hidden": 4, "dense": 4, "steps": 3, "horizon": 2, "dropout": 0.2, "change": False},
            **{"home": "head", "rounds": 3, "normalisation": "none"},
        },
        {"network": {"task": "classify", "steps": 1, "hidden": 4, "dense": 4}, "home": "head", "learning_rate": 0.03},
        {"network": {"layers": 2, "hidden": 6, "dense": 6}, "paper": True, "rounds": 2},
    ],
    "robust-svm-admm": [
        {},
        {"normalisation": "none", "norm": "2", "weights": "samples", "strong_convexity": 0.1},
        {"norm": "inf", "kappa": None, "classes": 2, "strong_convexity": "auto"},
        {"classes": 2, "multiclass": "one-vs-one", "radius": {"confidence": 0.9, "c2": 50.0, "dimension": 2}},
        {"whiten": 2},
        {"compensate": (0,), "compensate_prior": 5.0, "whiten": 1},
    ],
    "robust-svm-subgradient": [
        {},
        {"normalisation": "none", "norm": "2", "weights": "samples", "classes": 2},
        {"norm": "inf", "box": (-30.0, 30.0), "kappa": None, "rounds": 40},
        {
            **{"classes": 2, "multiclass": "one-vs-one", "rounds": 40},
            "masking": {"fewest": 3, "range": 1e9, "threshold": 0.6},
        },
        {"rounds": 40, "masking": {"fewest": 3, "range": 1e9, "threshold": 0.6}},
        {"rounds": 40, "robust": {"rule": "multi-krum"}},
    ],
    "support-vector-election": [
        {},
        {"normalisation": "none", "anonymise": False},
        {"c": 0.2},
        {"max_vectors": 5},
        {"rounds": 4},
        {"rounds": 3, "gamma": 0.3, "whiten": 2},
        {"whiten": 2, "normalisation": "none"},
        {"compensate": (2, 0), "normalisation": "none"},
    ],
}


def names_of(name: str, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return which gateways of the made-up fleet train with such settings: one more where Krum decides."""
    return FIVE if "krum" in f"{name}{settings}" else NAMES
