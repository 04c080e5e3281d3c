"""The law of contributions: of a hundred alarms over one feature that was disturbed, 95 or more name it first.

Every detector is asked through its ONNX graph and the functions that run on a gateway, on rows in units from 1e-3 to
1e3. What a detector cannot see raises no alarm, so the draws are those whose score is above 95 % of the healthy ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest

from fedgate.gateway_agent.deployment.session import Scorer
from fedgate.gateway_agent.feature_row import FeatureRow
from fedgate.gateway_agent.pipeline.recurrence import BLANK, Memory, Model, score_each, take_in
from fedgate.models.alarms.contributions import contribute, measure_healthy, rank_contributions
from fedgate.models.arrays import Array, Arrays, Floats, Singles
from fedgate.models.detectors import DETECTORS, PERSONAL
from fedgate.models.detectors.base import fault_classes, linear, subspace
from fedgate.models.detectors.esn import esn
from fedgate.models.detectors.esn.network import Network
from fedgate.models.detectors.recurrent import recurrent
from fedgate.models.detectors.recurrent.recurrent_network import Descent, Recurrent
from fedgate.models.detectors.svm import ensemble, ocsvm, svdd

COUNT, ROWS = 6, 240
NAMES = tuple(f"feature.{place}" for place in range(COUNT))
UNITS = 10.0 ** np.linspace(-3.0, 3.0, COUNT)
OFFSETS = 5.0 * UNITS
ALARMS, RIGHT_LEAST, DRAWS = 100, 95, 400
DISTANCES = (6.0, 20.0)  # of a disturbed feature from its median, in deviations
CALM = 0.95  # share of the healthy rows below the level
HOP_S = 10.0

Rows = Callable[[np.random.Generator, int], Floats]


def independent(rng: np.random.Generator, count: int) -> Floats:
    """Return rows (n, F) of which no feature knows of another."""
    return rng.normal(size=(count, COUNT))


def correlated(rng: np.random.Generator, count: int) -> Floats:
    """Return rows (n, F) of two causes, as of bands that traffic moves together."""
    causes = rng.normal(size=(count, 2))
    mixing = np.array([np.cos(np.arange(COUNT)), np.sin(np.arange(COUNT))])
    return np.asarray(causes @ mixing + 0.5 * rng.normal(size=(count, COUNT)))


def swinging(rng: np.random.Generator, count: int) -> Floats:
    """Return consecutive rows (n, F) that swing, which a forecast knows beforehand."""
    phase = 2.0 * np.pi * np.arange(count)[:, None] / 24.0 + np.arange(COUNT)
    return np.asarray(np.sin(phase) + 0.1 * rng.normal(size=(count, COUNT)))


class Case(NamedTuple):
    """How a detector is fitted, on what rows, and which features of them it judges: a forecast those it foretells."""

    detector: str
    fit: Callable[[Floats, np.random.Generator], Arrays]
    rows: Rows
    judged: tuple[int, ...] = tuple(range(COUNT))


def with_faults(x: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return rows with as many that have a fault in one feature, and labels (n,)."""
    faulty = x.copy()
    faulty[np.arange(len(x)), rng.integers(COUNT, size=len(x))] += 8.0
    return np.concatenate([x, faulty]), np.repeat([0.0, 1.0], len(x))


CASES: dict[str, Case] = {
    "subspace": Case("subspace", lambda x, _: subspace.fit(x, components=2), correlated),
    "subspace, residual": Case("subspace", lambda x, _: subspace.fit(x, components=2, which="residual"), correlated),
    "linear": Case("linear", lambda x, rng: linear.fit(*with_faults(x, rng), rng), independent),
    "linear on a map": Case(
        "linear", lambda x, rng: linear.fit(x, None, rng, loss="one-class", components=256), independent
    ),
    "linear-svm": Case("linear-svm", lambda x, rng: fault_classes.fit(*with_faults(x, rng)), independent),
    "ocsvm": Case("ocsvm", lambda x, _: ocsvm.fit(x), correlated),
    "svdd": Case("svdd", lambda x, _: svdd.fit(x), correlated),
    "ensemble": Case("ensemble", lambda x, _: ensemble.fit(x), correlated),
    "esn": Case("esn", lambda x, rng: esn.fit(x, None, rng, network=Network(units=40)), swinging),
    "recurrent": Case(
        "recurrent",
        lambda x, rng: recurrent.fit(
            x, None, rng, network=Recurrent(steps=3, hidden=8, dense=8), descent=Descent(epochs=20)
        ),
        swinging,
        judged=(2, 5),  # the last step of each channel
    ),
}


class Chance:
    """A model whose score knows nothing of any one feature."""

    washout_rows = max_gap_rows = 0

    def __call__(self, x: Array) -> Floats:
        return self.carried(x, {})[0]

    def carried(self, x: Array, memory: Arrays) -> tuple[Floats, Arrays]:
        z = (np.asarray(x, dtype=np.float64) - OFFSETS) / UNITS
        return np.sin(1e3 * z.sum(axis=1)) + (np.abs(z).max(axis=1) > 5.0), {}


def test_every_detector_is_asked() -> None:
    assert {case.detector for case in CASES.values()} == set(DETECTORS)


@pytest.mark.parametrize("name", CASES)
def test_the_disturbed_feature_is_named_first(name: str) -> None:
    case, rng = CASES[name], np.random.default_rng(1)
    z = case.rows(rng, ROWS)
    own = {"center": OFFSETS + UNITS * z.mean(axis=0), "scale": UNITS * z.std(axis=0)}
    params = case.fit((z - z.mean(axis=0)) / z.std(axis=0), rng)
    model = Scorer(DETECTORS[case.detector].graph(params, PERSONAL), own)
    assert count_right(model, case, z, rng) >= RIGHT_LEAST


def test_a_score_of_chance_breaks_the_law() -> None:
    rng = np.random.default_rng(1)
    case = CASES["subspace"]
    assert count_right(Chance(), case, case.rows(rng, ROWS), rng) < RIGHT_LEAST


def count_right(model: Model, case: Case, baseline: Floats, rng: np.random.Generator) -> int:
    """Return in how many of a hundred alarms the feature that was disturbed is named first."""
    healthy = measure_healthy(in_units(baseline))
    right: list[bool] = []
    series = in_units(case.rows(rng, DRAWS))
    moments = list(_walk(model, series))
    level = float(np.quantile([score for _, score, _ in moments], CALM))
    for memory, _, row in moments:
        place, distance = int(rng.choice(case.judged)), rng.choice((-1.0, 1.0)) * rng.uniform(*DISTANCES)
        disturbed = row.copy()
        disturbed[place] = healthy.median[place] + distance * healthy.spread[place]
        score = partial(score_each, model, memory, end_ns=None, hop_s=HOP_S)
        if score(np.stack([disturbed, row]))[0] <= level:
            continue
        named = rank_contributions(NAMES, disturbed, healthy, contribute(score, disturbed, healthy.median))
        right.append(bool(named) and named[0].feature == NAMES[place])
        if len(right) == ALARMS:
            return sum(right)
    raise AssertionError(f"{len(right)} of {len(moments)} disturbed rows raise an alarm, expected {ALARMS} or more")


def _walk(model: Model, series: Singles) -> Iterator[tuple[Memory, float, Singles]]:
    """Yield the memory before each row of a series (n, F) that can be judged, its score and the row."""
    memory = BLANK
    for row in series:
        score, is_settled, after = take_in(model, memory, FeatureRow(row, None), HOP_S)
        if is_settled:
            yield memory, score, row
        memory = after


def in_units(z: Floats) -> Singles:
    """Return rows (n, F) as a gateway keeps them, each feature in a unit of its own."""
    return np.asarray(OFFSETS + UNITS * z, dtype=np.float32)
