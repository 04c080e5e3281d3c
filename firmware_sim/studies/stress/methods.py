"""How each method of the stress study learns from some subjects and scores others it has never seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedgate.config.protocol.wire import encode
from fedgate.firmware_sim.studies.stress.data import Subject, with_averages
from fedgate.firmware_sim.studies.stress.options import ALWAYS, CLOCK, LOGISTIC, Method, Options
from fedgate.models.arrays import FEATURES, LABELS, MISSING, NEW_SERIES, Arrays, Floats
from fedgate.models.detectors import DETECTORS
from fedgate.models.federated import build
from fedgate.models.federated.protocol.run import run

ITERATIONS = 1_000
POOL = "pool"


class Fitted(NamedTuple):
    """What was learnt: scores (n,) of a subject's windows, and the mean number of bytes a gateway sent for it."""

    score: Callable[[Subject], Floats]
    bytes_up: float


def fit(options: Options, method: Method, settings: Mapping[str, Any], train: Sequence[Subject], seed: int) -> Fitted:
    """Return what a method learns from subjects already in units of their own, with settings such as `network.leak`."""
    hop_s = options.features.hop_s

    def seen(subject: Subject) -> Subject:
        if method.silent:
            return subject._replace(x=np.zeros_like(subject.x))
        return with_averages(subject, hop_s, options.averages_s) if method.averages else subject

    found = _fitted(method, settings, [seen(subject) for subject in train], seed, hop_s)
    return found._replace(score=lambda subject: found.score(seen(subject)))


def _fitted(method: Method, settings: Mapping[str, Any], train: Sequence[Subject], seed: int, hop_s: float) -> Fitted:
    if method.algorithm == ALWAYS:
        return Fitted(lambda subject: np.zeros(len(subject.x)), 0.0)
    if method.algorithm == CLOCK:
        return Fitted(_clock(train, hop_s), 0.0)
    if method.algorithm == LOGISTIC:
        return Fitted(_logistic(train, settings), 0.0)
    return _federated(method, settings, train, seed)


def _clock(train: Sequence[Subject], hop_s: float) -> Callable[[Subject], Floats]:
    """Score a window by the share of the training subjects that were under stress as long after their start."""
    last = max(_steps(subject, hop_s).max() for subject in train)
    stressed, known = np.zeros(last + 1), np.zeros(last + 1)
    for subject in train:
        at = _steps(subject, hop_s)[subject.known]
        np.add.at(stressed, at, subject.y[subject.known])
        np.add.at(known, at, 1)
    share = stressed / np.maximum(known, 1.0)
    return lambda subject: share[np.minimum(_steps(subject, hop_s), last)]


def _steps(subject: Subject, hop_s: float) -> Any:
    return np.round(subject.elapsed_s / hop_s).astype(np.int64)


def _logistic(train: Sequence[Subject], settings: Mapping[str, Any]) -> Callable[[Subject], Floats]:
    from sklearn.linear_model import LogisticRegression

    x = np.concatenate([subject.x[subject.known] for subject in train])
    y = np.concatenate([subject.y[subject.known] for subject in train])
    model = LogisticRegression(class_weight="balanced", max_iter=ITERATIONS, **settings).fit(x, y)
    return lambda subject: np.asarray(model.decision_function(subject.x))


def _federated(method: Method, settings: Mapping[str, Any], train: Sequence[Subject], seed: int) -> Fitted:
    algorithm = build(method.algorithm, train[0].x.shape[1], {"unit": "feature", **nested(settings)})
    # What runs along the rows needs all of them and learns from those with a label; others take no unlabelled row.
    keeps = algorithm.detector == "esn"
    data = {subject.name: _data(subject, keeps) for subject in train}
    sent = dict.fromkeys(data, 0)

    def weigh(name: str, update: Arrays) -> None:
        sent[name] += len(encode(update)) if update else 0

    if method.data == "pooled":
        data = {POOL: {key: np.concatenate([part[key] for part in data.values()]) for key in (*data[train[0].name],)}}
        sent = {POOL: 0}
    shared = run(algorithm, data, seed=seed, on_update=weigh).server.global_state
    score = DETECTORS[algorithm.detector].score
    bytes_up = float(np.mean(list(sent.values()))) if method.data == "federated" else 0.0
    return Fitted(lambda subject: score(shared, subject.x), bytes_up)


def _data(subject: Subject, keep_all: bool) -> Arrays:
    if not keep_all:
        return {FEATURES: subject.x[subject.known], LABELS: subject.y[subject.known]}
    missing = np.zeros(len(subject.x), dtype=np.int64)
    missing[0] = NEW_SERIES
    return {FEATURES: subject.x, LABELS: subject.y, MISSING: missing}


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with `table.key` as keys of tables."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        table, _, key = name.rpartition(".")
        (found.setdefault(table, {}) if table else found)[key] = value
    return found
