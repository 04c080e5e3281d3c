"""Tables 2 and 4 of Abdel Sater and Ben Hamza (ACM Transactions on Internet of Things 2 (2021) 28), on open recordings.

The paper's recordings are not public, so its tables cannot be repeated; their pattern can: the same methods, classes
and values, with rooms and air handling units as clients. Settings and the number of rounds are those that are best with
the first seed on two inner folds of what trains, a round taken together with its neighbours; no window that is reported
chooses anything. Errors are pooled before a root is taken, and figures are over all windows together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedgate.firmware_sim import metrics
from fedgate.firmware_sim.engine.spec import Figures
from fedgate.firmware_sim.studies.datasets.series.building import (
    FOLDS,
    LATER,
    REPORT,
    TRAINS,
    Stream,
    Windows,
    cut_windows,
    load_streams,
)
from fedgate.firmware_sim.studies.probes.buildings.building_models import (
    Case,
    Choice,
    Fitted,
    Predict,
    Task,
    Training,
    fit,
)
from fedgate.models.arrays import Floats

ROC_STEPS = 20  # of the false positive rate, at which a curve is kept
CURVE_EVERY = 4  # of the reported windows, one in so many shows how the error fell

PARTS: dict[str, list[str]] = {"room climate": ["room_climate"], "three rooms": ["room_climate", "uci_occupancy"]}


def reads(case: Case, data: Path) -> list[Path]:
    """Return the folders of the data set."""
    return [data / case.task.folder / name for name in PARTS.get(case.task.data, [""])]


def measure(case: Case, data: Path) -> Figures:
    """Return the figures of all reported windows, of `keti` also for rooms that trained (`seen.`) and others; of each
    place its mean square error or balanced accuracy; with the first seed the error after each round, and of classes the
    ROC curve; and what was chosen. Bytes are those that a gateway sent in all.
    """
    streams, choice = _streams(case, data), choose(case, data)
    fitted = fit(case, Training(streams, TRAINS), choice)
    is_for_all = not (case.method.only_seen or case.method.data == "local")
    judged = [stream for stream in streams if stream.seen or is_for_all]
    predictions = _predict(case.task, fitted.predict, judged)
    figures = pooled(case.task, predictions) if len(judged) == len(streams) else {}
    figures |= _of_groups(case.task, predictions)
    if case.seed == 0:
        figures |= _curves(case.task, fitted, streams) if is_for_all else {}
        figures |= _roc(predictions) if case.task.is_class else {}
    chosen = {f"chosen.{key}": float(choice.settings[key]) for key in case.method.tried}
    chosen |= {"inner": abs(choice.worth)} if case.method.tried else {}
    chosen |= {"rounds": float(choice.rounds)} if case.method.model == "recurrent" else {}
    known = {"bytes_up": fitted.bytes_up, "numbers": float(fitted.numbers)}
    return {**figures, **chosen, **{name: value for name, value in known.items() if value}}


def _streams(case: Case, data: Path) -> tuple[Stream, ...]:
    return load_streams(case.task.data, data / case.task.folder, case.task.horizon, case.left_out)


class Predicted(NamedTuple):
    """The windows of one gateway with what a method predicts for them (n,)."""

    windows: Windows
    values: Floats


def _predict(
    task: Task, predict: Predict, streams: Sequence[Stream], part: int = REPORT, every: int = 1
) -> list[Predicted]:
    """Return what a method predicts for the windows of streams; those of a gateway without any are left out."""
    cut = (cut_windows(stream, (part,), task.window, every) for stream in streams)
    return [Predicted(each, predict(each)) for each in cut if len(each.at)]


def _joined(predictions: Sequence[Predicted]) -> tuple[Floats, Floats]:
    return np.concatenate([each.windows.y for each in predictions]), np.concatenate(
        [each.values for each in predictions]
    )


def pooled(task: Task, predictions: Sequence[Predicted]) -> Figures:
    """Return the figures over all windows of some gateways; a score above 0 means class 1."""
    y, predicted = _joined(predictions)
    if not task.is_class:
        mse = float(np.square(predicted - y).mean())
        return {"mae": float(np.abs(predicted - y).mean()), "mse": mse, "rmse": float(np.sqrt(mse))}
    label, alarmed = y.astype(np.int64), predicted > 0.0
    return {
        "precision": metrics.precision(label, alarmed),
        "recall": metrics.recall(label, alarmed),
        "f1": metrics.f1(label, alarmed),
        "ba": metrics.balanced_accuracy(label, alarmed),
        "auc": metrics.roc_auc(label, predicted),
    }


def _lead(task: Task, predictions: Sequence[Predicted]) -> float:
    """Return the figure by which methods are held against each other."""
    return pooled(task, predictions)["ba" if task.is_class else "mse"]


def _of_groups(task: Task, predictions: Sequence[Predicted]) -> Figures:
    groups: dict[str, list[Predicted]] = {}
    for each in predictions:
        group = [] if task.is_class else ["seen.mse" if each.windows.stream.seen else "unseen.mse"]
        for name in (*group, f"place.{each.windows.stream.place}"):
            groups.setdefault(name, []).append(each)
    return {name: _lead(task, members) for name, members in groups.items()}


def _curves(task: Task, fitted: Fitted, streams: Sequence[Stream]) -> Figures:
    some = (_predict(task, predict, streams, every=CURVE_EVERY) for predict in fitted.after)
    return {f"curve.{index}": _lead(task, predictions) for index, predictions in enumerate(some, start=1)}


def _roc(predictions: Sequence[Predicted]) -> Figures:
    """Return the true positive rates at `ROC_STEPS` false positive rates, the curve through all thresholds."""
    from sklearn.metrics import roc_curve

    false, true, _ = roc_curve(*_joined(predictions), drop_intermediate=False)
    grid = np.linspace(0.0, 1.0, ROC_STEPS + 1).tolist()
    return {f"roc.{at:.2f}": float(np.interp(at, false, true)) for at in grid}


def choose(case: Case, data: Path) -> Choice:
    """Return what is chosen for a method on the inner folds, with its settings that are on top of that."""
    sized = case.method.settings.get("network.cell") != "linear" and not case.method.settings.get("paper")
    below = case.task.sized if case.method.model == "recurrent" and sized else {}
    given = {**below, **case.method.settings}
    if not case.method.tried:
        return Choice({**given, **case.method.then}, case.method.rounds)
    way = "federated" if case.method.data == "local" else case.method.data
    alike = {"settings": given, "data": way, "then": {}, "fraction": 1.0, "redraw": True, "only_seen": False}
    chooser = case.model_copy(update={"method": case.method.model_copy(update=alike), "seed": 0})
    found = _best(chooser.model_dump_json(), data)
    return found._replace(settings={**found.settings, **case.method.then})


@lru_cache(maxsize=64)
def _best(case_json: str, data: Path) -> Choice:
    """Return the settings with the best mean over the inner folds, and the round after which it was."""
    case = Case.model_validate_json(case_json)
    return max(_tried(case, _streams(case, data)), key=lambda each: each.worth)


def _tried(case: Case, streams: tuple[Stream, ...]) -> Iterator[Choice]:
    """Yield every combination of settings with its best round. An inner fold is of other rooms, runs or days than what
    trains for it, and of values on later ones.
    """
    task, method, sign = case.task, case.method, 1.0 if case.task.is_class else -1.0
    seen = [stream for stream in streams if stream.seen]
    for values in product(*method.tried.values()):
        chosen = {**method.settings, **dict(zip(method.tried, values, strict=True))}
        folds = []
        for fold in range(FOLDS):
            fitted = fit(case, Training(streams, (FOLDS - 1 - fold,)), Choice(chosen, method.rounds))
            part = fold if task.is_class else fold + LATER
            rounds = fitted.after or (fitted.predict,)
            folds.append([sign * _lead(task, _predict(task, predict, seen, part, task.every)) for predict in rounds])
        means = _with_neighbours(np.mean(folds, axis=0))
        best = int(np.argmax(means))
        yield Choice(chosen, best + 1 if len(means) > 1 else method.rounds, float(means[best]))


def _with_neighbours(values: Floats) -> Floats:
    """Return the mean of each value, the one before and the one after: a single lucky round is no reason to stop."""
    window = np.ones(min(3, len(values)))
    return np.asarray(np.convolve(values, window, "same") / np.convolve(np.ones(len(values)), window, "same"))
