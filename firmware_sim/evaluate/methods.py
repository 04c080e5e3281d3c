"""A method of a comparison: an algorithm on everybody's rows, on each gateway's alone, or on all in one place.

A method says nothing but scores, higher being more anomalous. Beside the federated algorithms stand two baselines that
are none: an isolation forest, and the distance from the mean.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from fedgate.config.settings import settings
from fedgate.firmware_sim.evaluate.training import NothingSentError, TrainingError, train_fleet
from fedgate.models.arrays import FEATURES, Floats
from fedgate.models.detectors import DETECTORS
from fedgate.models.detectors.base.checks import ConvergenceError
from fedgate.models.federated import ALGORITHMS, COMMON_SETTINGS, build
from fedgate.models.federated.protocol.algorithm import Algorithm, normalise

Rows = Mapping[str, Floats]  # (n, F) by gateway
Build = Callable[[str, int, dict[str, Any]], Algorithm]
FOREST, DISTANCE = "isolation-forest", "distance"
TREES = 100
POOL = "pool"


class Method(settings.Table):
    """An algorithm, on whose data it trains, and its settings."""

    algorithm: str
    data: Literal["federated", "local", "pooled"] = "federated"
    settings: dict[str, Any] = Field(default_factory=dict)

    @field_validator("algorithm")
    @classmethod
    def _is_known(cls, name: str) -> str:
        known = (*ALGORITHMS, FOREST, DISTANCE, *cls.others())
        if name not in known:
            raise ValueError(f"expected one of {', '.join(known)}")
        return name

    @model_validator(mode="after")
    def _takes_the_settings(self) -> Self:
        factory = ALGORITHMS[self.algorithm] if self.algorithm in ALGORITHMS else self.others().get(self.algorithm)
        known = {"normalisation"} | (COMMON_SETTINGS.keys() if self.algorithm in ALGORITHMS else set())
        known |= inspect.signature(factory).parameters.keys() if factory else set()
        unknown = sorted(self.settings.keys() - known)
        if unknown:
            raise ValueError(f"settings: {self.algorithm} has no setting {unknown[0]!r}")
        return self

    @classmethod
    def others(cls) -> Mapping[str, Callable[..., Any]]:
        """Return what a subclass knows besides the algorithms and the two baselines, by name."""
        return {}


class Scores(NamedTuple):
    """Scores (m,) of the tested rows by gateway, and how many bytes each gateway sent."""

    by_gateway: dict[str, Floats]
    bytes_up: dict[str, int]


def score_method(method: Method, train: Rows, test: Rows, seed: int, build: Build = build) -> Scores:
    """Train a method on rows (n, F) of each gateway and score others (m, F) with every gateway.

    Where settings leave every gateway without anything to send, or a solver does not converge, all rows score 0: that
    is a result too, the worst.

    Raises:
        TrainingError: the algorithm refuses its data.
    """
    if method.data == "pooled":
        return Scores(_score_pooled(method, train, test, seed, build), dict.fromkeys(train, 0))
    if method.data == "federated":
        return _score_together(method, train, test, seed, build)
    alone = [_score_together(method, {name: train[name]}, {name: test[name]}, seed, build) for name in train]
    scores = {name: found for each in alone for name, found in each.by_gateway.items()}
    return Scores(scores, dict.fromkeys(train, 0))


def _score_pooled(method: Method, train: Rows, test: Rows, seed: int, build: Build) -> dict[str, Floats]:
    """Train one gateway on all rows and score with it: the reference of what federation could reach.

    With normalisation `own` every gateway's rows are first brought to its own mean and deviation. With `none` they are
    pooled as they are; what trains then brings the pool to the pooled mean and deviation, for one gateway's own units
    are those of all its rows. Raw features, which `none` means to a federated method, no pooled method is given.
    """
    given, mode = dict(method.settings), str(method.settings.get("normalisation", "none"))
    if "normalisation" in given:
        given["normalisation"] = "own"
    units = {name: normalise({}, {FEATURES: rows}, mode) for name, rows in train.items()}
    pool = np.concatenate([z for _, z in units.values()])
    tests = [normalise(units[name][0], {FEATURES: rows}, mode)[1] for name, rows in test.items()]
    pooled = method.model_copy(update={"settings": given})
    found = _score_together(pooled, {POOL: pool}, {POOL: np.concatenate(tests)}, seed, build).by_gateway[POOL]
    return dict(zip(test, np.split(found, np.cumsum([len(rows) for rows in tests])[:-1]), strict=True))


def _score_together(method: Method, train: Rows, test: Rows, seed: int, build: Build) -> Scores:
    if method.algorithm in (FOREST, DISTANCE):
        plain = score_by_forest if method.algorithm == FOREST else _score_by_distance
        return Scores({name: plain(train[name], test[name], seed) for name in train}, dict.fromkeys(train, 0))
    algorithm = build(method.algorithm, next(iter(train.values())).shape[1], method.settings)
    try:
        fit = train_fleet(algorithm, {name: {FEATURES: rows} for name, rows in train.items()}, seed=seed)
    except TrainingError as error:
        if isinstance(error, NothingSentError) or isinstance(error.__cause__, ConvergenceError):
            return Scores({name: np.zeros(len(rows)) for name, rows in test.items()}, dict.fromkeys(train, 0))
        raise
    score = DETECTORS[algorithm.detector].score
    return Scores({name: score({**fit.shared, **fit.own[name]}, test[name]) for name in test}, fit.sent_bytes)


def _score_by_distance(train: Floats, test: Floats, seed: int) -> Floats:
    del seed
    _, probes = _in_own_units(train, test)
    return np.asarray(0.5 * np.log(np.square(probes).sum(axis=1)))


def score_by_forest(train: Floats, test: Floats, seed: int) -> Floats:
    """Return how few cuts isolate each row (m,) of `test` in a forest grown on `train` (n, F), in its units."""
    from sklearn.ensemble import IsolationForest

    z, probes = _in_own_units(train, test)
    return np.asarray(-IsolationForest(n_estimators=TREES, random_state=seed).fit(z).score_samples(probes))


def _in_own_units(train: Floats, test: Floats) -> tuple[Floats, Floats]:
    own, z = normalise({}, {FEATURES: train}, "own")
    return z, normalise(own, {FEATURES: test}, "own")[1]
