"""The methods that the studies of the robust SVM compare, trained over a grid of settings at once.

One training gives the model after several numbers of rounds, so that rounds are a setting that costs nothing. A model
is known by its key, `method|setting`; what is chosen is chosen by a validation part of the training rows, never by what
is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgate.config.settings.settings import Table
from fedgate.firmware_sim.evaluate.splits import TRAIN_SHARE, partition
from fedgate.firmware_sim.studies.datasets.unit_range import to_unit_range
from fedgate.firmware_sim.studies.engine.study import Figures
from fedgate.firmware_sim.studies.robust_svm.central import central
from fedgate.models.arrays import FEATURES, LABELS, Arrays, Floats
from fedgate.models.detectors.base import fault_classes
from fedgate.models.federated import build
from fedgate.models.federated.protocol.algorithm import Server
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.robust_svm.ball import Ball, Norm

Labels = NDArray[np.int64]
UNIT_BOX = (0.0, 1.0)
LINEAR, CENTRAL, TRIVIAL = "linear SVM", "Central", "always positive"
# What each federated method is: its algorithm, the setting that is tried and those that make it what it is.
FEDERATED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "SM": ("robust-svm-subgradient", "step", {}),
    "SM, box": ("robust-svm-subgradient", "step", {"box": UNIT_BOX}),
    "ADMM": ("robust-svm-admm", "rho", {}),
    "ADMM-SC": ("robust-svm-admm", "rho", {"strong_convexity": "auto"}),
    "ADMM-REG": ("robust-svm-admm", "rho", {"kappa": None}),
}
OURS = ("SM", "ADMM")  # of which the best is held against the baselines
METHODS = (LINEAR, CENTRAL, *FEDERATED)
VALIDATED = (LINEAR, CENTRAL, *OURS)
CHOSEN = "chosen"
EITHER = " or ".join(OURS)  # whichever of ours the validation part of the training rows prefers


class Tried(Table):
    """What is tried of a federated method: its step or penalty, and after how many rounds it is looked at."""

    values: tuple[float, ...]
    rounds: tuple[int, ...]


class Grid(Table):
    """What is tried: each federated method in every ball, and the baselines' settings."""

    federated: dict[str, Tried]
    norm: Norm = "1"
    radii: tuple[float, ...] = (1e-3,)
    kappas: tuple[float, ...] = (1.0,)
    central_radii: tuple[float, ...] = (1e-4, 1e-3, 1e-2)
    central_kappas: tuple[float, ...] = (0.5, 1.0)
    costs: tuple[float, ...] = (1.0, 10.0, 100.0)  # C of the plain linear SVM

    def settings(self, method: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the name of each setting of a federated method, and the setting itself."""
        _, name, fixed = FEDERATED[method]
        for radius in self.radii:
            for kappa in (None,) if "kappa" in fixed else self.kappas:
                for value in self.federated[method].values:
                    setting = {"norm": self.norm, "radius": radius, "kappa": kappa, name: value, **fixed}
                    yield f"{ball_name(radius, kappa)} {name}={value:g}", setting


class Split(NamedTuple):
    """Rows to learn from and rows to judge by, with labels of 0 (normal) and 1 to K.

    `groups` (n,) of the rows to learn from must not be torn apart; without them each row stands for itself.
    """

    x: Floats  # (n, F)
    y: Labels  # (n,)
    test_x: Floats
    test_y: Labels
    groups: Labels | None = None

    def scaled(self) -> Split:
        """Return the split with features in [0, 1] by their extremes among the rows to learn from."""
        return self._replace(x=to_unit_range(self.x, self.x), test_x=to_unit_range(self.test_x, self.x))

    def inner(self, rng: np.random.Generator) -> Split:
        """Return a split of the rows to learn from alone."""
        early = early_rows(np.arange(len(self.y)) if self.groups is None else self.groups, rng)
        return Split(self.x[early], self.y[early], self.x[~early], self.y[~early])


Metric = Callable[[Labels, Labels], float]  # true and predicted classes
Share = Callable[[int], list[NDArray[np.int64]]]  # rows -> the rows of each gateway


def early_rows(groups: Labels, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return which rows (n,) learn: those of 70 % of the groups, drawn at random."""
    names = rng.permutation(np.unique(groups))
    return np.isin(groups, names[: round(TRAIN_SHARE * len(names))])


def ball_name(radius: float, kappa: float | None) -> str:
    return f"eps={radius:g}" + ("" if kappa is None else f" kappa={kappa:g}")


def evenly(clients: int, seed: int) -> Share:
    """Return the share-out of rows to gateways at random and in equal parts."""

    def share(count: int) -> list[NDArray[np.int64]]:
        owners = partition(np.zeros((count, 1)), clients, "iid", seed)
        return [np.flatnonzero(owners == k) for k in range(clients)]

    return share


def gateways_of(x: Floats, y: Labels, share: Share) -> dict[str, Arrays]:
    """Return the data of each gateway that got rows."""
    parts = share(len(y))
    return {f"gateway-{k:03d}": {FEATURES: x[rows], LABELS: y[rows]} for k, rows in enumerate(parts) if len(rows)}


def trained(
    algorithm: str, settings: Mapping[str, Any], data: Mapping[str, Arrays], marks: tuple[int, ...]
) -> list[tuple[int, Arrays, float]]:
    """Return rounds, shared model and seconds of all gateways so far, at each of the rounds in `marks`."""
    built = build(
        algorithm,
        next(iter(data.values()))[FEATURES].shape[1],
        {**settings, "normalisation": "none", "unit": "feature"},
    )
    (phase,) = built.phases
    found: list[tuple[int, Arrays, float]] = []
    began_s = time.perf_counter()

    def looked_at(server: Server, total: Arrays) -> Server:
        advanced = phase.advance(server, total)
        if server.round_index + 1 in marks:
            found.append((server.round_index + 1, advanced.global_state, time.perf_counter() - began_s))
        return advanced

    run(built._replace(phases=(phase._replace(advance=looked_at),)), data, rounds=max(marks))
    return found


def models_of(split: Split, share: Share, grid: Grid, methods: tuple[str, ...], classes: int = 1) -> dict[str, Arrays]:
    """Return the models of all methods and settings of a grid by key."""
    found: dict[str, Arrays] = {}
    data = gateways_of(split.x, split.y, share)
    for method in methods:
        if method == LINEAR:
            for cost in grid.costs:
                found[f"{method}|C={cost:g}"] = fault_classes.fit(split.x, split.y, classes=classes, c=cost)
        elif method == CENTRAL:
            for radius in grid.central_radii:
                for kappa in grid.central_kappas:
                    ball = Ball(radius, kappa, grid.norm)
                    key = f"{method}|{ball_name(radius, kappa)}"
                    found[key] = central(split.x, split.y, ball, classes=classes)
        else:
            for name, setting in grid.settings(method):
                marks, wanted = grid.federated[method].rounds, {"classes": classes, **setting}
                for rounds, shared, _ in trained(FEDERATED[method][0], wanted, data, marks):
                    found[f"{method}|{name} T={rounds}"] = shared
    return found


def judged(models: Mapping[str, Arrays], x: Floats, y: Labels, metric: Metric) -> Figures:
    """Return the figure of each model on rows x (n, F) with true classes y (n,)."""
    return {key: metric(y, fault_classes.classify(params, x)) for key, params in models.items()}


def compared(
    split: Split,
    share: Share,
    grids: tuple[Grid, ...],
    metric: Metric,
    rng: np.random.Generator,
    *,
    classes: int = 1,
) -> Figures:
    """Return the figures of all methods and settings on the test rows, and of the settings that an inner split chose.

    The inner split is of the training rows alone, dealt to as many gateways; it chooses the setting of each method, and
    of our two methods the one. Of equally good settings the first counts.
    """
    split, figures, tried = split.scaled(), Figures(), Figures()
    inner = split.inner(rng).scaled()
    for grid in grids:
        methods = (LINEAR, CENTRAL, *grid.federated)
        validated = tuple(method for method in methods if method in VALIDATED)
        figures |= judged(models_of(split, share, grid, methods, classes), split.test_x, split.test_y, metric)
        tried |= judged(models_of(inner, share, grid, validated, classes), inner.test_x, inner.test_y, metric)
    chosen = {f"{method}|{CHOSEN}": figures[best_key(tried, (method,))] for method in VALIDATED}
    chosen[f"{EITHER}|{CHOSEN}"] = figures[best_key(tried, OURS)]
    always = metric(split.test_y, np.ones_like(split.test_y))
    return {**figures, **chosen, f"{TRIVIAL}|": always}


def best_key(figures: Mapping[str, float], methods: Sequence[str]) -> str:
    """Return the key of the best setting of some methods."""
    keys = [key for key in figures if key.partition("|")[0] in methods and key.partition("|")[2] != CHOSEN]
    return max(keys, key=lambda key: -1.0 if np.isnan(figures[key]) else figures[key])
