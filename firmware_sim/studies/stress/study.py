"""Stress from a wrist, subjects left out: echo state networks and logistic regressions, federated and in one place.

The protocol of the recordings has one order for everybody, so that a clock tells stress from rest without a signal; it
stands beside every method. Settings and thresholds are chosen by leaving out training subjects in turn: no subject that
is reported has chosen anything. Nothing is trained on the subject that is scored: it has had no second session.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim import metrics
from fedgate.firmware_sim.studies.engine.study import Cell, Figures, Study, StudyError
from fedgate.firmware_sim.studies.stress.data import Subject, load, normalised
from fedgate.firmware_sim.studies.stress.methods import Fitted, fit
from fedgate.firmware_sim.studies.stress.options import BASELINES, Method, Options
from fedgate.firmware_sim.studies.stress.report import report
from fedgate.models.arrays import Floats
from fedgate.models.features.spec import feature_names

NO_SIGNAL = "none"


def cells(options: Options) -> list[Cell]:
    """Return method x set of features x normalisation x seed; what sees no signal is measured once."""
    found: list[Cell] = []
    for name, method in options.methods.items():
        plain = method.algorithm in BASELINES
        sets = [NO_SIGNAL] if plain else method.feature_sets or list(options.feature_sets)
        ways = [NO_SIGNAL] if plain else method.normalisations or options.normalisations
        for chosen, way, seed in product(sets, ways, range(method.seeds)):
            found.append({"method": name, "features": chosen, "normalisation": way, "seed": seed})
    return found


class Session(NamedTuple):
    """A subject's recording in units of its own, and the same as if the wrist had been switched on late."""

    whole: Subject
    late: Subject


def prepared(options: Options, data: Path, cell: Cell) -> list[Session]:
    """Return all subjects with the features of a cell, in its normalisation.

    Moving units begin anew where a late recording begins; all others are those of the whole session.
    """
    subjects = list(load(data / options.folder, options.features))
    if len(subjects) < options.folds * options.inner_folds:
        raise StudyError(f"{len(subjects)} subjects, expected {options.folds * options.inner_folds} to be left out")
    if cell["features"] == NO_SIGNAL:
        return [Session(each, from_late(each, options.late_s)) for each in subjects]
    names = feature_names(options.features)
    places = [names.index(name) for name in options.feature_sets[cell["features"]]]
    span_rows = options.moving_s / options.features.hop_s
    sessions = []
    for raw in (subject._replace(x=subject.x[:, places]) for subject in subjects):
        whole = normalised(raw, cell["normalisation"], options.commissioning_s, span_rows)
        late = from_late(whole, options.late_s)
        if cell["normalisation"] == "moving":
            late = normalised(from_late(raw, options.late_s), "moving", options.commissioning_s, span_rows)
        sessions.append(Session(whole, late))
    return sessions


class Trained(NamedTuple):
    """A method after its choices: what it learnt, from where on it says stress, which settings, and why those."""

    fitted: Fitted
    threshold: float
    settings: dict[str, Any]


def trained(options: Options, method: Method, train: Sequence[Subject], seed: int) -> Trained:
    """Choose settings (highest mean AUC over subjects) and threshold (highest balanced accuracy) by leaving training
    subjects out in turn, then learn from all of them.
    """
    best: tuple[float, float, dict[str, Any]] | None = None
    for settings in combinations(method):
        scores: dict[str, Floats] = {}
        for left_out, rest in splits(train, options.inner_folds):
            fitted = fit(options, method, settings, rest, seed)
            scores |= {subject.name: fitted.score(subject)[subject.known] for subject in left_out}
        labels = {subject.name: subject.y[subject.known] for subject in train}
        auc = float(np.mean([metrics.roc_auc(labels[name], scores[name]) for name in scores]))
        if best is None or auc > best[0]:
            together = [np.concatenate([part[name] for name in scores]) for part in (labels, scores)]
            best = auc, threshold(together[0], together[1]), settings
    if best is None:
        raise StudyError("a method offers no value of a setting to choose; expected at least one")
    return Trained(fit(options, method, best[2], train, seed), best[1], best[2])


def combinations(method: Method) -> Iterator[dict[str, Any]]:
    """Yield every choice of settings that a method offers."""
    for values in product(*method.grid.values()):
        yield {**method.fixed, **dict(zip(method.grid, values, strict=True))}


def splits(subjects: Sequence[Subject], folds: int) -> Iterator[tuple[list[Subject], list[Subject]]]:
    """Yield who is left out and who is not, in turn; subjects are dealt out in their order."""
    for fold in range(folds):
        left_out = list(subjects[fold::folds])
        yield left_out, [subject for subject in subjects if subject not in left_out]


def threshold(labels: NDArray[np.int64], scores: Floats) -> float:
    """Return the score from which on to say stress, for the highest balanced accuracy, the highest one of equals; both
    classes occur.
    """
    from sklearn.metrics import roc_curve

    false, hits, levels = roc_curve(labels, scores, drop_intermediate=False)
    return float(levels[1:][np.argmax((hits - false)[1:])])  # the first level is that of never


def measure(options: Options, data: Path, cell: Cell) -> Figures:
    """Return AUC, balanced accuracy and F1 of every subject, each left out of training and choices in its turn."""
    method, sessions = options.methods[cell["method"]], prepared(options, data, cell)
    late = {session.whole.name: session.late for session in sessions}
    figures: Figures = {}
    sent = []
    for fold, (left_out, rest) in enumerate(splits([session.whole for session in sessions], options.folds)):
        found = trained(options, method, rest, cell["seed"])
        sent.append(found.fitted.bytes_up)
        for subject in left_out:
            figures |= _of_subject(subject, late[subject.name], found)
        for key in method.grid:
            figures[f"chosen.{key}.{fold}"] = float(found.settings[key])
    return {**figures, "bytes_up": float(np.mean(sent))}


def _of_subject(subject: Subject, late: Subject, found: Trained) -> Figures:
    known, scores = subject.known, found.fitted.score(subject)
    label, alarmed = subject.y[known], scores[known] >= found.threshold
    figures = {
        "auc": metrics.roc_auc(label, scores[known]),
        "ba": metrics.balanced_accuracy(label, alarmed),
        "f1": metrics.f1(label, alarmed),
    }
    if {0, 1} <= set(late.y.tolist()):
        usual, anew = scores[len(scores) - len(late.y) :], found.fitted.score(late)
        figures["usual"] = metrics.roc_auc(late.y[late.known], usual[late.known])
        figures["late"] = metrics.roc_auc(late.y[late.known], anew[late.known])
    return {f"{key}.{subject.name}": value for key, value in figures.items()}


def from_late(subject: Subject, late_s: float) -> Subject:
    """Return a subject in the same units as if nothing had been recorded before `late_s`."""
    rows = subject.elapsed_s > late_s
    return Subject(subject.name, subject.elapsed_s[rows] - late_s, subject.x[rows], subject.y[rows])


def identity(options: Options, cell: Cell) -> dict[str, Any]:
    """Return what of the options a measurement depends on, beside its cell."""
    method = options.methods[cell["method"]]
    keys = {"features", "folder", "folds", "inner_folds", "commissioning_s", "moving_s", "averages_s", "late_s"}
    kept = options.model_dump(mode="json", include=keys)
    chosen = options.feature_sets.get(cell["features"], [])
    return {**kept, "set": chosen, "method": method.model_dump(mode="json", include=_MATTERS)}


_MATTERS = {"algorithm", "data", "averages", "silent", "fixed", "grid"}

STUDY = Study(Options, cells, measure, report, identity)
