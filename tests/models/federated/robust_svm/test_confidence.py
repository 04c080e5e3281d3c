"""A radius from a confidence (Proposition 1): the formula by hand, and that a gateway of so many rows takes it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedgate.config.protocol.wire import encode
from fedgate.models.arrays import FEATURES, LABELS, RADIUS, Arrays
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.robust_svm.ball import Confidence
from tests.support.given_width import build

NAMES = ("robust-svm-admm", "robust-svm-subgradient")
SIZES = {"large": 60, "middle": 20, "small": 4}


def test_the_formula_by_hand() -> None:
    assert Confidence(confidence=0.95).radius(100, 10) == pytest.approx((math.log(20.0) / 100.0) ** 0.1)
    assert Confidence(confidence=0.9, c1=3.0, c2=2.0, dimension=2).radius(50, 10) == pytest.approx(
        math.sqrt(math.log(30.0) / 100.0)
    )
    few = Confidence(confidence=0.99, tail=4.0)  # log 100 is above 3 rows
    assert few.radius(3, 10) == pytest.approx((math.log(100.0) / 3.0) ** 0.25)
    assert Confidence(confidence=0.9, dimension=1).radius(64, 1) == Confidence(confidence=0.9, dimension=2).radius(
        64, 9
    )


@given(
    confidence=st.floats(0.01, 0.999),
    c1=st.floats(1.0, 1e3),
    c2=st.floats(1e-3, 1e3),
    tail=st.floats(1.01, 8.0),
    features=st.integers(1, 50),
    rows=st.integers(1, 10_000),
)
def test_more_rows_or_less_confidence_never_make_it_larger(
    confidence: float, c1: float, c2: float, tail: float, features: int, rows: int
) -> None:
    rule = Confidence(confidence=confidence, c1=c1, c2=c2, tail=tail)
    found = rule.radius(rows, features)
    assert 0.0 < rule.radius(rows + 1, features) < found < math.inf
    assert rule.model_copy(update={"confidence": confidence / 2.0}).radius(rows, features) < found


def fleet(**radius: float) -> dict[str, Arrays]:
    data: dict[str, Arrays] = {}
    for seed, (who, rows) in enumerate(SIZES.items()):
        x = np.random.default_rng(seed).uniform(size=(rows, 2))
        data[who] = {FEATURES: x, LABELS: (x[:, 0] > 0.5).astype(np.int64)}
        data[who] |= {RADIUS: np.array(radius[who])} if who in radius else {}
    return data


def trained(name: str, data: dict[str, Arrays], radius: Any) -> bytes:
    return encode(run(build(name, 2, {"radius": radius, "rounds": 3}), data).server.global_state)


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_a_gateway_takes_the_radius_of_its_rows_unless_it_has_one_of_its_own(name: str) -> None:
    rule: dict[str, Any] = {"confidence": 0.8, "c2": 30.0}
    own = {who: Confidence(**rule).radius(rows, 2) for who, rows in SIZES.items()}
    assert trained(name, fleet(), rule) == trained(name, fleet(**own), 0.01) != trained(name, fleet(), 0.01)
    changed = {**own, "small": 0.3}
    assert trained(name, fleet(small=0.3), rule) == trained(name, fleet(**changed), 0.01)


@pytest.mark.parametrize(
    "wrong", [{"confidence": 1.0}, {"confidence": 0.9, "c1": 0.5}, {"confidence": 0.9, "tail": 1.0}, {"c1": 2.0}, -1.0]
)
def test_what_is_no_radius_is_refused(wrong: Any) -> None:
    with pytest.raises(ValidationError, match="radius"):
        build("robust-svm-admm", 2, {"radius": wrong})
