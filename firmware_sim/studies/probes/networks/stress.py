"""Stress from a wrist, subjects left out: echo state networks and logistic regressions, federated and in one place.

The protocol of the recordings has one order for everybody, so that a clock tells stress from rest without a signal; it
stands beside every method. Settings and thresholds are chosen by leaving out training subjects in turn: no subject that
is reported has chosen anything. Nothing is trained on the subject that is scored: it has had no second session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field, model_validator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_curve
from sklearn.model_selection import GroupKFold, ParameterGrid

from fedgate.config.settings import settings
from fedgate.firmware_sim import metrics
from fedgate.firmware_sim.engine.cells import nested
from fedgate.firmware_sim.engine.spec import Figures, StudyError, overlaid
from fedgate.firmware_sim.evaluate.methods import POOL, Method
from fedgate.firmware_sim.evaluate.training import train_fleet
from fedgate.firmware_sim.studies.datasets.stress_predict import (
    FOLDER,
    Subject,
    Units,
    from_late,
    load,
    normalised,
    with_averages,
)
from fedgate.models.arrays import FEATURES, LABELS, MISSING, NEW_SERIES, Arrays, Floats
from fedgate.models.detectors import DETECTORS
from fedgate.models.features.spec import FeatureSpec, feature_names
from fedgate.models.federated import build

CLOCK, ALWAYS, LOGISTIC = "clock", "always", "logistic"
ITERATIONS = 1_000
Count = Annotated[int, Field(ge=1)]
Duration = Annotated[float, Field(gt=0)]
Scorer = Callable[[Subject], Floats]  # scores (n,) of a subject's windows


class StressMethod(Method):
    """A federated algorithm with a gateway for each training subject, or one that holds all of them, `pooled`; one
    logistic regression of all training subjects' rows; or what sees no signal: `clock`, `always`.

    :param choices: values of settings to choose among, `network.leak` being that of a table in a table.
    :param averages_s: time constants of moving averages of the features that stand beside them.
    :param is_silent: all features are zero, so that only what a method knows without a signal is left.
    :param repeats: seeds.
    """

    choices: dict[str, list[Any]] = Field(default_factory=dict)
    averages_s: list[Duration] = Field(default_factory=list)
    is_silent: bool = False
    repeats: Count = 1

    @classmethod
    def others(cls) -> Mapping[str, Callable[..., Any]]:
        return {CLOCK: _clock, ALWAYS: _always, LOGISTIC: LogisticRegression}


class Case(settings.Table):
    """What is measured.

    :param recorded: what is measured of a window; every stream of the recordings is a channel.
    :param features: names of those that are used.
    :param units: whose mean and deviation the features are in.
    :param folds: parts of the subjects that are left out in turn, `inner_folds` those of the others where settings and
        thresholds are chosen.
    :param commissioning_s: what a gateway knows at first; `moving_s` the memory of moving units.
    :param late_s: how long after the start a second scoring begins, as if the wrist had been switched on only then.
    """

    method: StressMethod
    recorded: FeatureSpec
    features: list[str]
    units: Units = "recording"
    folds: Annotated[int, Field(ge=2)] = 4
    inner_folds: Annotated[int, Field(ge=2)] = 3
    commissioning_s: Duration = 300.0
    moving_s: Duration = 300.0
    late_s: Duration = 1000.0
    seed: int = 0

    @model_validator(mode="after")
    def _has_the_features(self) -> Self:
        known = feature_names(self.recorded)
        unknown = [name for name in self.features if name not in known]
        if unknown:
            raise ValueError(f"features: {unknown[0]!r} is no feature; expected some of {known}")
        return self


def reads(case: Case, data: Path) -> list[Path]:
    """Return the folder of the subjects."""
    del case
    return [data / FOLDER]


def measure(case: Case, data: Path) -> Figures:
    """Return AUC, balanced accuracy and F1 of every subject, each left out of training and choices in its turn: means
    over the seeds. `usual.` and `late.` are the AUC of late windows, after the whole recording and switched on late;
    `chosen.` is what the first seed chose by fold, `reservoirs` the deviation of the mean AUC over seeds.
    """
    sessions = prepare(case, data)
    seeds = [_with_one_seed(case, sessions, case.seed + index) for index in range(case.method.repeats)]
    means = {name: float(np.mean([each[name] for each in seeds])) for name in seeds[0]}
    chosen = {name: value for name, value in seeds[0].items() if name.startswith("chosen.")}
    by_seed = [np.mean([value for name, value in each.items() if name.startswith("auc.")]) for each in seeds]
    deviation = {"reservoirs": float(np.std(by_seed, ddof=1))} if len(seeds) > 1 else {}
    return {**means, **chosen, **deviation}


def prepare(case: Case, data: Path) -> list[tuple[Subject, Subject]]:
    """Return all subjects with the features of a case, in its units, and each as if switched on late, where moving
    units begin anew; all others are those of the whole session.
    """
    subjects = load(data / FOLDER, case.recorded)
    if len(subjects) < case.folds * case.inner_folds:
        raise StudyError(f"{len(subjects)} subjects, expected {case.folds * case.inner_folds} to be left out")
    names = feature_names(case.recorded)
    places = [names.index(name) for name in case.features]
    return [_in_units(case, subject._replace(x=subject.x[:, places])) for subject in subjects]


def _in_units(case: Case, raw: Subject) -> tuple[Subject, Subject]:
    given = case.units, case.commissioning_s, case.moving_s / case.recorded.hop_s
    whole = normalised(raw, *given)
    late = from_late(whole, case.late_s)
    return whole, normalised(from_late(raw, case.late_s), *given) if case.units == "moving" else late


def _with_one_seed(case: Case, sessions: Sequence[tuple[Subject, Subject]], seed: int) -> Figures:
    late = {subject.name: late for subject, late in sessions}
    figures: Figures = {}
    sent = []
    for fold, (left_out, rest) in enumerate(split([whole for whole, _ in sessions], case.folds)):
        values, threshold = choose(case, rest, seed)
        score, bytes_up = fit(case, values, rest, seed)
        sent.append(bytes_up)
        for subject in left_out:
            figures |= _of_subject(subject, late[subject.name], score, threshold)
        figures |= {f"chosen.{name}.{fold}": float(value) for name, value in values.items()}
    return {**figures, "bytes_up": float(np.mean(sent))}


def split(subjects: Sequence[Subject], folds: int) -> Iterator[tuple[list[Subject], list[Subject]]]:
    """Yield who is left out and who is not, in turn, in folds of about as many windows."""
    owner = np.repeat(np.arange(len(subjects)), [len(subject.y) for subject in subjects])
    for parts in GroupKFold(folds).split(owner, groups=owner):
        rest, left_out = ([subjects[place] for place in np.unique(owner[part])] for part in parts)
        yield left_out, rest


def _of_subject(subject: Subject, late: Subject, score: Scorer, threshold: float) -> Figures:
    known, scores = subject.known, score(subject)
    label, alarmed = subject.y[known], scores[known] >= threshold
    figures = {
        "auc": metrics.roc_auc(label, scores[known]),
        "ba": metrics.balanced_accuracy(label, alarmed),
        "f1": metrics.f1(label, alarmed),
    }
    if {0, 1} <= set(late.y.tolist()):
        usual, anew = scores[len(scores) - len(late.y) :], score(late)
        figures["usual"] = metrics.roc_auc(late.y[late.known], usual[late.known])
        figures["late"] = metrics.roc_auc(late.y[late.known], anew[late.known])
    return {f"{name}.{subject.name}": value for name, value in figures.items()}


class Fitted(NamedTuple):
    """What was learnt, and the mean number of bytes a gateway sent for it."""

    score: Scorer
    bytes_up: float


def choose(case: Case, train: Sequence[Subject], seed: int) -> tuple[dict[str, Any], float]:
    """Return the values of settings (highest mean AUC over subjects) and the threshold (highest balanced accuracy) that
    are chosen by leaving training subjects out in turn.
    """
    labels = {subject.name: subject.y[subject.known] for subject in train}

    def scored(values: dict[str, Any]) -> dict[str, Floats]:
        scores: dict[str, Floats] = {}
        for left_out, rest in split(train, case.inner_folds):
            fitted = fit(case, values, rest, seed)
            scores |= {subject.name: fitted.score(subject)[subject.known] for subject in left_out}
        return scores

    tried = [(values, scored(values)) for values in ParameterGrid(case.method.choices)]
    values, scores = max(
        tried, key=lambda each: float(np.mean([metrics.roc_auc(labels[n], each[1][n]) for n in labels]))
    )
    together = [np.concatenate([part[name] for name in scores]) for part in (labels, scores)]
    return values, find_threshold(together[0], together[1])


def find_threshold(labels: NDArray[np.int64], scores: Floats) -> float:
    """Return the score from which on to say stress, for the highest balanced accuracy, the highest one of equals; both
    classes occur.
    """
    false, hits, levels = roc_curve(labels, scores, drop_intermediate=False)
    return float(levels[1:][np.argmax((hits - false)[1:])])  # the first level is that of never


def fit(case: Case, values: Mapping[str, Any], train: Sequence[Subject], seed: int) -> Fitted:
    """Return what a method learns from subjects already in units of their own, with these values for its choices."""
    method, hop_s = case.method, case.recorded.hop_s

    def seen(subject: Subject) -> Subject:
        if method.is_silent:
            return subject._replace(x=np.zeros_like(subject.x))
        return with_averages(subject, hop_s, method.averages_s)

    given = overlaid(method.settings, nested(values))
    shown = [seen(subject) for subject in train]
    plain = {CLOCK: _clock, ALWAYS: _always, LOGISTIC: _logistic}.get(method.algorithm)
    score, bytes_up = _federated(method, given, shown, seed) if plain is None else (plain(shown, hop_s, given), 0.0)
    return Fitted(lambda subject: score(seen(subject)), bytes_up)


def _always(_train: Sequence[Subject], _hop_s: float, _given: Mapping[str, Any]) -> Scorer:
    return lambda subject: np.zeros(len(subject.x))


def _clock(train: Sequence[Subject], hop_s: float, _given: Mapping[str, Any]) -> Scorer:
    """Score a window by the share of the training subjects that were under stress as long after their start."""

    def step(subject: Subject) -> NDArray[np.int64]:
        return np.round(subject.elapsed_s / hop_s).astype(np.int64)

    at = np.concatenate([step(subject)[subject.known] for subject in train])
    share = pd.Series(_labels(train)).groupby(at).mean()
    return lambda subject: share.reindex(np.minimum(step(subject), share.index.max()), fill_value=0.0).to_numpy()


def _logistic(train: Sequence[Subject], _hop_s: float, given: Mapping[str, Any]) -> Scorer:
    x = np.concatenate([subject.x[subject.known] for subject in train])
    model = LogisticRegression(class_weight="balanced", max_iter=ITERATIONS, **given).fit(x, _labels(train))
    return lambda subject: np.asarray(model.decision_function(subject.x))


def _labels(train: Sequence[Subject]) -> NDArray[np.int64]:
    return np.concatenate([subject.y[subject.known] for subject in train])


def _federated(
    method: StressMethod, given: dict[str, Any], train: Sequence[Subject], seed: int
) -> tuple[Scorer, float]:
    algorithm = build(method.algorithm, train[0].x.shape[1], {"unit": "feature", **given})
    # What runs along the rows needs all of them and learns from those with a label; others take no unlabelled row.
    data = {subject.name: _data(subject, keep_all=algorithm.detector == "esn") for subject in train}
    if method.data == "pooled":
        data = {POOL: {name: np.concatenate([each[name] for each in data.values()]) for name in data[train[0].name]}}
    found = train_fleet(algorithm, data, seed=seed)
    score, sent = DETECTORS[algorithm.detector].score, list(found.sent_bytes.values())
    return lambda subject: score(found.shared, subject.x), float(np.mean(sent)) * (method.data == "federated")


def _data(subject: Subject, *, keep_all: bool) -> Arrays:
    if not keep_all:
        return {FEATURES: subject.x[subject.known], LABELS: subject.y[subject.known]}
    missing = np.zeros(len(subject.x), dtype=np.int64)
    missing[0] = NEW_SERIES
    return {FEATURES: subject.x, LABELS: subject.y, MISSING: missing}
