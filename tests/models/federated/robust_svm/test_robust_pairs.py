"""One machine for each two classes in the robust SVM: each pair is the problem of its own rows alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedgate.config.protocol.wire import encode
from fedgate.firmware_sim.studies.literal.robust_svm_central import central
from fedgate.models.arrays import FEATURES, LABELS, Arrays, Floats
from fedgate.models.detectors.base.fault_classes import PAIRS, classify
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.robust_svm.ball import Ball
from fedgate.models.federated.robust_svm.gateway import imported, with_bias
from fedgate.models.federated.robust_svm.open_support import risk
from tests.support.given_width import build
from tests.support.robust_twins import Part, mixture_optimum
from tests.support.soak import some

NAMES = ("robust-svm-admm", "robust-svm-subgradient")
BALL = Ball(0.02, 0.7, "1")
PLAIN: dict[str, Any] = {"normalisation": "none", "radius": 0.02, "kappa": 0.7, "multiclass": "one-vs-one"}
LONG: dict[str, dict[str, Any]] = {
    "robust-svm-admm": {"rho": 0.3, "rounds": 130},
    "robust-svm-subgradient": {"rounds": 1_200, "step": 10.0},
}
CENTRES = np.array([(0.2, 0.2), (0.9, 0.3), (0.4, 0.9)])
# Which classes each gateway has seen; of the pair 2, 1 the first knows nothing.
SEEN = {"quiet": (0,), "north": (0, 1), "south": (0, 2), "both": (0, 1, 2)}


def fleet() -> dict[str, Arrays]:
    data: dict[str, Arrays] = {}
    for seed, (who, classes) in enumerate(SEEN.items()):
        rng, labels = np.random.default_rng(seed), np.resize(classes, 24)
        data[who] = {FEATURES: CENTRES[labels] + 0.25 * rng.normal(size=(24, 2)), LABELS: labels}
    return data


def parts_of(data: dict[str, Arrays], one: int, other: int) -> list[Part]:
    """Return the problem of a pair: the rows of its classes, of those gateways that have some."""
    parts: list[Part] = []
    for each in data.values():
        labels = each[LABELS]
        taken = np.isin(labels, (one, other))
        z: Floats = with_bias(each[FEATURES][taken]) * np.where(labels[taken] == one, 1.0, -1.0)[:, None]
        if len(z):
            parts.append(Part(z, BALL, 1.0))
    return parts


@pytest.mark.soak
@pytest.mark.parametrize("name", some(NAMES))
def test_each_pair_ends_at_the_optimum_over_the_gateways_that_know_it(name: str) -> None:
    data = fleet()
    shared = run(build(name, 2, {**PLAIN, "classes": 2, **LONG[name]}), data).server.global_state
    pairs = shared[PAIRS].tolist()
    assert pairs == [[1, 0], [2, 0], [2, 1]] and len(parts_of(data, 2, 1)) == 3
    for w, (one, other) in zip(imported(shared), pairs, strict=True):
        parts = parts_of(data, one, other)
        value = sum(risk(w, part.z, part.ball) for part in parts) / len(parts)
        assert value == pytest.approx(mixture_optimum(parts).value, rel=1e-3)


def history(name: str, data: dict[str, Arrays], multiclass: str) -> list[bytes]:
    """Return all updates of a training and the model that it ends in, but for the names of its machines."""
    sent: list[bytes] = []

    def keep(_: str, update: Arrays) -> None:
        sent.append(encode(update))

    algorithm = build(name, 2, {**PLAIN, "multiclass": multiclass, "rounds": 3})
    shared = run(algorithm, data, on_update=keep).server.global_state
    return [*sent, encode({key: array for key, array in shared.items() if key != PAIRS})]


@pytest.mark.parametrize("name", NAMES)
def test_with_one_kind_of_fault_it_is_the_one_machine_to_the_byte(name: str) -> None:
    data = {who: each for who, each in fleet().items() if 2 not in SEEN[who]}
    assert history(name, data, "one-vs-all") == history(name, data, "one-vs-one")


def test_in_one_place_each_pair_is_a_machine_of_its_own() -> None:
    x, labels = (np.concatenate([each[name] for each in fleet().values()]) for name in (FEATURES, LABELS))
    params = central(x, labels, radius=0.02, kappa=0.7, classes=2, multiclass="one-vs-one")
    for w, (one, other) in zip(imported(params), params[PAIRS], strict=True):
        taken = np.isin(labels, (one, other))
        alone = central(x[taken], (labels[taken] == one).astype(int), radius=0.02, kappa=0.7)
        np.testing.assert_allclose(w, imported(alone)[0], atol=1e-6)
    assert (classify(params, x) == labels).mean() > 0.85
