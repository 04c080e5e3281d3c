"""What a method is worth on the windows of one table: over all of them together, and for each sensor by itself.

Errors are pooled before a root is taken, and figures of a group are over all its windows; those of a place over its
own. A figure that is not defined, such as the balanced accuracy of a place with one class, is nan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim import metrics
from fedgate.firmware_sim.studies.building_tables.methods import Tell
from fedgate.firmware_sim.studies.building_tables.streams import Windows
from fedgate.firmware_sim.studies.engine.study import Figures
from fedgate.models.arrays import Floats

ROC_STEPS = 20  # of the false positive rate, at which a curve is kept
OF_CLASSES = ("precision", "recall", "f1", "ba", "auc")
OF_VALUES = ("mae", "mse", "rmse")


class Told(NamedTuple):
    """The windows of one gateway with what a method said of them."""

    place: str
    seen: bool
    y: Floats
    said: Floats


def told(tell: Tell, windows: Sequence[Windows]) -> list[Told]:
    """Return what a method says of windows; those of a gateway without any are left out."""
    return [Told(each.stream.place, each.stream.seen, each.y, tell(each)) for each in windows if len(each.at)]


def figures(found: Sequence[Told], *, classify: bool) -> Figures:
    """Return figures by group (`all.`, `seen.`, `unseen.`) and by place
    (`place.seen.`, `place.unseen.`: balanced accuracy, or mean square error)."""
    groups = {"all": found, "seen": [e for e in found if e.seen], "unseen": [e for e in found if not e.seen]}
    result: Figures = {}
    for group, members in groups.items():
        if members:
            result |= {f"{group}.{name}": value for name, value in pooled(members, classify=classify).items()}
    for place, seen in dict.fromkeys((each.place, each.seen) for each in found):
        of = pooled([each for each in found if each.place == place], classify=classify)
        result[f"place.{'seen' if seen else 'unseen'}.{place}"] = of["ba" if classify else "mse"]
    return result


def pooled(found: Sequence[Told], *, classify: bool) -> Figures:
    """Return the figures over all windows of some gateways."""
    y, said = (np.concatenate([each[index] for each in found]) for index in (2, 3))
    if classify:
        return of_classes(y.astype(np.int64), said)
    squares = np.square(said - y)
    mse = float(squares.mean())
    return {"mae": float(np.abs(said - y).mean()), "mse": mse, "rmse": float(np.sqrt(mse))}


def of_classes(label: NDArray[np.int64], score: Floats) -> Figures:
    """Return precision, recall, F1, balanced accuracy and area of scores (n,) above 0 where they mean class 1."""
    alarmed = score > 0.0
    return {
        "precision": metrics.precision(label, alarmed),
        "recall": metrics.recall(label, alarmed),
        "f1": metrics.f1(label, alarmed),
        "ba": metrics.balanced_accuracy(label, alarmed),
        "auc": metrics.roc_auc(label, score),
    }


def worth(found: Sequence[Told], *, classify: bool) -> float:
    """Return what settings are chosen by, higher is better: balanced accuracy, or less the mean square error."""
    value = pooled(found, classify=classify)["ba" if classify else "mse"]
    return value if classify else -value


def roc(found: Sequence[Told]) -> Figures:
    """Return the true positive rates at `ROC_STEPS` false positive rates, the curve through all thresholds."""
    from sklearn.metrics import roc_curve

    y, score = (np.concatenate([each[index] for each in found]) for index in (2, 3))
    false, true, _ = roc_curve(y, score, drop_intermediate=False)
    grid = np.linspace(0.0, 1.0, ROC_STEPS + 1).tolist()
    return {f"roc.{step:02d}": float(np.interp(at, false, true)) for step, at in enumerate(grid)}
