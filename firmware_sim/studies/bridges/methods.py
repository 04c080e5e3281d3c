"""How each method of the bridges study scores: federated, each gateway alone, or all data in one place.

A method says nothing but scores, higher being more anomalous; every gateway scores the same windows with its own
sensors. Scores of several gateways are put on one scale by healthy windows that took no part in training: the last part
of every training recording is held out, a model of the rest scores it, and median and spread of those scores calibrate
the gateway. What is tested calibrates nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedgate.config.protocol.wire import encode
from fedgate.config.settings import settings
from fedgate.firmware_sim.studies.bridges.aligned_events import aligned_events
from fedgate.firmware_sim.studies.bridges.data import HEALTHY, Bridge, Windows
from fedgate.firmware_sim.studies.engine.study import StudyError
from fedgate.models.arrays import FEATURES, Arrays, Floats
from fedgate.models.detectors import DETECTORS
from fedgate.models.detectors.base.checks import ConvergenceError
from fedgate.models.federated import build
from fedgate.models.federated.protocol.algorithm import Algorithm, normalise
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.wrappers.whitening import validated

View = Literal["sensors", "setups", "sensor x setup"]
Rows = dict[str, Floats]  # (n, F) by gateway
FOREST, DISTANCE = "isolation-forest", "distance"
ALIGNED = "aligned-events"
TREES = 100
HELD_OUT_FROM = 0.6  # of each training recording: what ends before trains the calibrating model, what starts later is
POOL = "pool"
TO_DEVIATION = 1.4826  # of a normal distribution's median absolute deviation
LEAST_SPREAD = 1e-3  # scores are logarithms; one that never moves must not divide by zero


class Method(settings.Table):
    """One row of the table: an algorithm, on whose data it trains, its settings, and settings to choose among."""

    algorithm: str
    data: Literal["federated", "local", "pooled"] = "federated"
    views: tuple[View, ...] = ("sensors", "setups", "sensor x setup")
    fixed: dict[str, Any] = Field(default_factory=dict)
    grid: dict[str, list[Any]] = Field(default_factory=dict)


class Task(NamedTuple):
    """One split: what gateways train on, which of those windows are held out for calibration, and what is scored."""

    train: Rows
    early: dict[str, NDArray[np.bool_]]
    held: dict[str, NDArray[np.bool_]]
    test: Rows
    label: NDArray[np.int64]
    state: NDArray[np.str_]


class Scored(NamedTuple):
    """Scores (m,) of the tested windows by gateway, in units of the gateway's healthy spread, and bytes it sent."""

    z: dict[str, Floats]
    bytes_up: float


def task(bridge: Bridge, view: View, train_setups: list[int], test_setups: list[int]) -> Task:
    """Return the split of a view: gateways see healthy windows of the training setups, all windows of others test."""
    fine, apart = bridge.fine, bridge.apart
    tested = np.isin(apart.setup, test_setups)
    trained = np.isin(fine.setup, train_setups) & (fine.label == HEALTHY)
    chosen = Windows(*(column[trained] for column in fine))
    members: dict[str, tuple[NDArray[np.bool_], slice]] = {}
    for setup in train_setups if view != "sensors" else [0]:
        rows = chosen.setup == setup if view != "sensors" else np.ones(len(chosen.setup), dtype=bool)
        if view == "setups":
            members[f"setup {setup}"] = rows, slice(None)
            continue
        for index, sensor in enumerate(bridge.sensors):
            name = sensor if view == "sensors" else f"{sensor}, setup {setup}"
            members[name] = rows, slice(index, index + 1)
    return Task(
        {name: _flat(chosen.x[rows][:, sensors]) for name, (rows, sensors) in members.items()},
        {name: chosen.end[rows] <= HELD_OUT_FROM for name, (rows, _) in members.items()},
        {name: chosen.start[rows] >= HELD_OUT_FROM for name, (rows, _) in members.items()},
        {name: _flat(apart.x[tested][:, sensors]) for name, (_, sensors) in members.items()},
        apart.label[tested],
        apart.state[tested],
    )


def _flat(x: Floats) -> Floats:
    return x.reshape(len(x), -1)


def calibrated(method: Method, chosen: Mapping[str, Any], split: Task, seed: int) -> Scored:
    """Return the scores of a method on a split, each gateway's in units of its healthy spread.

    Raises:
        StudyError: a gateway has no windows to hold out.
    """
    early = {name: rows[split.early[name]] for name, rows in split.train.items()}
    held = {name: rows[split.held[name]] for name, rows in split.train.items()}
    for name in split.train:
        if len(early[name]) < 2 or len(held[name]) < 2:
            found = f"{len(early[name])} early and {len(held[name])} late windows"
            raise StudyError(f"{name}: {found} to train and calibrate on; expected 2 of each, so shorter windows")
    quiet, _ = scores(method, chosen, early, held, seed)
    found_scores, bytes_up = scores(method, chosen, split.train, split.test, seed)
    z = {}
    for name, healthy in quiet.items():
        middle = float(np.median(healthy))
        spread = max(TO_DEVIATION * float(np.median(np.abs(healthy - middle))), LEAST_SPREAD)
        z[name] = (found_scores[name] - middle) / spread
    return Scored(z, bytes_up)


def scores(
    method: Method, chosen: Mapping[str, Any], train: Rows, test: Rows, seed: int
) -> tuple[dict[str, Floats], float]:
    """Train on `train` and score `test` with every gateway; return scores by gateway and mean bytes a gateway sent."""
    if method.data == "local":
        alone = [_together(method, chosen, {name: train[name]}, {name: test[name]}, seed) for name in train]
        return {name: found for each, _ in alone for name, found in each.items()}, 0.0
    if method.data == "pooled":
        return _pooled(method, chosen, train, test, seed), 0.0
    return _together(method, chosen, train, test, seed)


def _pooled(method: Method, chosen: Mapping[str, Any], train: Rows, test: Rows, seed: int) -> dict[str, Floats]:
    """Train one gateway on all rows and score with it: the reference of what federation could reach.

    With normalisation `own` every gateway's rows are first brought to its own mean and deviation. With `none` they are
    pooled as they are; what trains then brings the pool to the pooled mean and deviation, for one gateway's own units
    are those of all its rows. Raw features, which `none` means to a federated method, no pooled method is given.
    """
    given, mode = dict(chosen), str(chosen.get("normalisation", "none"))
    if "normalisation" in given:
        given["normalisation"] = "own"
    units = {name: normalise({}, {FEATURES: rows}, mode) for name, rows in train.items()}
    pool = np.concatenate([z for _, z in units.values()])
    tests = [normalise(units[name][0], {FEATURES: rows}, mode)[1] for name, rows in test.items()]
    found, _ = _together(method, given, {POOL: pool}, {POOL: np.concatenate(tests)}, seed)
    ends = np.cumsum([len(rows) for rows in tests])[:-1]
    return dict(zip(test, np.split(found[POOL], ends), strict=True))


def _together(
    method: Method, chosen: Mapping[str, Any], train: Rows, test: Rows, seed: int
) -> tuple[dict[str, Floats], float]:
    if method.algorithm in (FOREST, DISTANCE):
        return {name: _plain(method.algorithm, train[name], test[name], seed) for name in train}, 0.0
    given = {key: len(next(iter(train.values()))) if value == "all" else value for key, value in chosen.items()}
    algorithm = _built(method.algorithm, next(iter(train.values())).shape[1], given)
    sent = dict.fromkeys(train, 0)

    def weigh(name: str, update: Arrays) -> None:
        sent[name] += len(encode(update)) if update else 0

    data = {name: {FEATURES: rows} for name, rows in train.items()}
    try:
        outcome = run(algorithm, data, seed=seed, on_update=weigh)
    except ConvergenceError:  # settings that do not suit the solver are a result too, the worst
        sent.clear()
    if not any(sent.values()):  # there is no model, and all windows are alike
        return {name: np.zeros(len(rows)) for name, rows in test.items()}, 0.0
    score, shared = DETECTORS[algorithm.detector].score, outcome.server.global_state
    found = {name: score({**shared, **outcome.local_states[name]}, rows) for name, rows in test.items()}
    return found, float(np.mean(list(sent.values())))


def _built(name: str, count: int, given: Mapping[str, Any]) -> Algorithm:
    return validated(aligned_events)(count, **given) if name == ALIGNED else build(name, count, given)


def _plain(name: str, train: Floats, test: Floats, seed: int) -> Floats:
    """Return the scores of the two baselines that are no algorithm of ours."""
    own, z = normalise({}, {FEATURES: train}, "own")
    _, probes = normalise(own, {FEATURES: test}, "own")
    if name == DISTANCE:
        return np.asarray(0.5 * np.log(np.square(probes).sum(axis=1)))
    from sklearn.ensemble import IsolationForest

    forest = IsolationForest(n_estimators=TREES, random_state=seed).fit(z)
    return np.asarray(-forest.score_samples(probes))
