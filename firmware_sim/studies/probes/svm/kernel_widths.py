"""How wide the kernel of a one-class model should be where nobody says: the default against fixed widths.

Rows of the normal class train, dealt out to gateways that each take them in units of their own; other normal rows and
anomalies are scored. A width is γ in those units. Rules find one from quantiles of the distances of rows over all
gateways (`fedgate.models.federated.protocol.kernel_width`); which rule and factor are in force was chosen on some
tables and is reported on others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedgate.config.settings import settings
from fedgate.firmware_sim.engine.spec import Figures
from fedgate.firmware_sim.evaluate.methods import Method, score_method
from fedgate.firmware_sim.metrics import roc_auc
from fedgate.firmware_sim.studies.datasets.outliers import FOLDER
from fedgate.models.arrays import FEATURES, Arrays, Floats, generator
from fedgate.models.detectors.base.checks import (
    NARROW,
    WIDE,
    Quantile,
    exact_width,
    map_width,
    quantile_of,
    squared_pair_distances,
)
from fedgate.models.detectors.svm import svdd
from fedgate.models.federated.protocol.algorithm import normalise
from fedgate.models.federated.protocol.kernel_width import FULL, counted, quantile, scaled

SVDD = "svdd"
RULES: dict[str, Callable[[Quantile, float], float]] = {"median": exact_width, "quartiles": map_width}
IN_FORCE = {
    SVDD: ("median", NARROW),
    "support-vector-election": ("median", NARROW),
    "ensemble-svdd": ("quartiles", WIDE),
    "fedavg": ("quartiles", WIDE),
}


class WidthMethod(Method):
    """An algorithm, or the detector `svdd` on all rows in one place."""

    @classmethod
    def others(cls) -> Mapping[str, Callable[..., Any]]:
        return {SVDD: svdd.fit}


class Case(settings.Table):
    """What is measured.

    :param fixed: widths that are the same for all tables, as γ times the number of features.
    :param before: which of them was the default.
    :param rules: what is tried: factors by the name of the rule that takes them; those in force must be among them.
    :param draws: ways to draw the rows.
    :param most_rows: of each kind, to train, to score, and of anomalies.
    :param within, loses: how far the default may lie below the best fixed width, and below the default before.
    """

    table: str
    method: WidthMethod
    fixed: list[float]
    before: float
    rules: dict[Literal["median", "quartiles"], list[float]]
    draws: int = Field(ge=2)
    clients: int = Field(ge=1)
    most_rows: int = Field(ge=4)
    within: float = 0.03
    loses: float = 0.01
    seed: int = 0


def reads(case: Case, data: Path) -> list[Path]:
    """Return the file of the table."""
    return [data / FOLDER / f"{case.table}.csv"]


def measure(case: Case, data: Path) -> Figures:
    """Return the areas under the ROC curve, means over the draws: `fixed <γF>` and the `best` of them, what is in force
    `now` and by how much it is `below` that; its `change` against the default before, with the standard `error`;
    whether that is `as_wanted`; and of every choice `below <rule> <factor>`, and `lost <rule> <factor>`, what it loses
    against the default before by more than the error.
    """
    return summarise(case, [measure_areas(case, data, case.seed + draw) for draw in range(case.draws)])


def summarise(case: Case, draws: list[Figures]) -> Figures:
    """Return the figures of a cell from those of its draws."""
    areas = {name: np.array([each[name] for each in draws]) for name in draws[0]}
    fixed = {f"fixed {each:g}": float(areas[f"fixed {each:g}"].mean()) for each in case.fixed}
    best, figures = max(fixed.values()), dict(fixed)
    changes = {name: areas[name] - areas[f"fixed {case.before:g}"] for name in _choices(case)}
    errors = {name: float(change.std(ddof=1) / np.sqrt(case.draws)) for name, change in changes.items()}
    for name, change in changes.items():
        figures[f"below {name}"] = best - float(areas[name].mean())
        figures[f"lost {name}"] = -float(change.mean()) - errors[name]
    now = "{} {:g}".format(*IN_FORCE[case.method.algorithm])
    is_as_wanted = figures[f"below {now}"] <= case.within and figures[f"lost {now}"] <= case.loses
    return figures | {
        "best": best,
        "before": fixed[f"fixed {case.before:g}"],
        "now": float(areas[now].mean()),
        "change": float(changes[now].mean()),
        "error": errors[now],
        "below": figures[f"below {now}"],
        "as_wanted": float(is_as_wanted),
    }


def _choices(case: Case) -> dict[str, tuple[str, float]]:
    return {f"{rule} {each:g}": (rule, each) for rule, factors in case.rules.items() for each in factors}


def measure_areas(case: Case, data: Path, seed: int) -> Figures:
    """Return the area with every width in one draw."""
    gateways, x, y = _draw_rows(case, data / FOLDER / f"{case.table}.csv", seed)
    known = quantiles(case.method.algorithm, gateways)
    widths = {f"fixed {each:g}": each / x.shape[1] for each in case.fixed}
    widths |= {name: RULES[rule](known, factor) for name, (rule, factor) in _choices(case).items()}
    return {name: _area(case, gateways, x, y, seed, width) for name, width in widths.items()}


def _draw_rows(case: Case, path: Path, seed: int) -> tuple[dict[str, Arrays], Floats, NDArray[np.int64]]:
    """Return what each gateway trains on, and the rows (n, F) and labels (n,) that are scored, of complete rows."""
    values = np.genfromtxt(path, delimiter=",", skip_header=1)
    values = values[np.isfinite(values).all(axis=1)]
    x, is_anomaly = values[:, :-1], values[:, -1] > 0
    rng, most = generator(seed, 0, path.stem), case.most_rows
    normal, anomalies = (rng.permutation(np.flatnonzero(kind)) for kind in (~is_anomaly, is_anomaly))
    half = len(normal) // 2
    train, scored = normal[:half][:most], np.concatenate([normal[half:][:most], anomalies[:most]])
    gateways = {f"gateway-{place}": {FEATURES: x[train[place :: case.clients]]} for place in range(case.clients)}
    return gateways, x[scored], is_anomaly[scored].astype(np.int64)


def quantiles(algorithm: str, gateways: dict[str, Arrays]) -> Quantile:
    """Return the quantiles of squared distances that the default of an algorithm is found from."""
    if algorithm == SVDD:
        return quantile_of(_in_one_place(gateways)[1])
    squares = [squared_pair_distances(normalise({}, rows, "own")[1]) for rows in gateways.values()]
    return partial(quantile, np.sum([scaled(counted(each), FULL) for each in squares], axis=0))


def _in_one_place(gateways: dict[str, Arrays]) -> tuple[Arrays, Floats]:
    return normalise({}, {FEATURES: np.concatenate([rows[FEATURES] for rows in gateways.values()])}, "own")


def _area(case: Case, gateways: dict[str, Arrays], x: Floats, y: NDArray[np.int64], seed: int, width: float) -> float:
    """Return the mean area of all gateways: 0.5 where spheres were too narrow for anybody to send a row drawn anew."""
    given = {**case.method.settings, "gamma": width}
    if case.method.algorithm == SVDD:
        own, z = _in_one_place(gateways)
        return roc_auc(y, svdd.SVDD.score({**svdd.fit(z, **given), **own}, x))
    method = case.method.model_copy(update={"settings": given})
    train = {name: rows[FEATURES] for name, rows in gateways.items()}
    scores = score_method(method, train, dict.fromkeys(train, x), seed).by_gateway
    return float(np.mean([roc_auc(y, each) for each in scores.values()]))
