"""The methods that the studies of the robust SVM compare, trained over a grid of settings at once.

One training gives the model after several numbers of rounds, so that rounds are a setting that costs nothing. A model
is known by its key, `method|setting`; what is chosen is chosen by a validation part of the training rows, never by what
is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from config.settings import Table
from firmware_sim.splits import TRAIN_SHARE, partition
from firmware_sim.studies.study import Figures
from models.arrays import FEATURES, LABELS, Arrays, Floats, generator
from models.detectors import fault_classes
from models.federated import build
from models.federated.algorithm import close_round
from models.robust.ball import Ball, Norm
from models.robust.central import central

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
    """Rows to learn from and rows to judge by, with labels of 0 (normal) and 1 to K."""

    x: Floats  # (n, F)
    y: Labels  # (n,)
    test_x: Floats
    test_y: Labels

    def scaled(self) -> Split:
        """Return the split with features in [0, 1] by their extremes among the rows to learn from."""
        low, high = self.x.min(axis=0), self.x.max(axis=0)
        width = np.where(high > low, high - low, 1.0)
        return self._replace(x=(self.x - low) / width, test_x=(self.test_x - low) / width)

    def inner(self, rng: np.random.Generator) -> Split:
        """Return a split of the rows to learn from alone."""
        rows = rng.permutation(len(self.y))
        early = rows[: round(TRAIN_SHARE * len(rows))]
        late = rows[len(early) :]
        return Split(self.x[early], self.y[early], self.x[late], self.y[late])


Metric = Callable[[Labels, Labels], float]  # true and predicted classes
Share = Callable[[int], list[NDArray[np.int64]]]  # rows -> the rows of each gateway


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
) -> Iterator[tuple[int, Arrays, float]]:
    """Yield rounds, shared model and seconds of all gateways so far, at each of the rounds in `marks`."""
    built = build(algorithm, next(iter(data.values()))[FEATURES].shape[1], {**settings, "normalisation": "none"})
    phase, server = built.phases[0], built.start(generator(0, 0, "cloud"))
    own: dict[str, Arrays] = {name: {} for name in data}
    taken_s = 0.0
    for round_index in range(1, max(marks) + 1):
        total, began_s = Arrays(), time.perf_counter()
        for name, arrays in data.items():
            own[name], update = phase.train(server.shared, own[name], arrays, generator(0, round_index, name))
            total = phase.tally.merge(total, phase.admit(server, update))
        server = close_round(built, server, total)
        taken_s += time.perf_counter() - began_s
        if round_index in marks:
            yield round_index, server.shared, taken_s


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

    The inner split is of the training rows alone, dealt to as many gateways. Of equally good settings the first counts.
    """
    split, figures, tried = split.scaled(), Figures(), Figures()
    inner = split.inner(rng).scaled()
    for grid in grids:
        methods = (LINEAR, CENTRAL, *grid.federated)
        validated = tuple(method for method in methods if method in VALIDATED)
        figures |= judged(models_of(split, share, grid, methods, classes), split.test_x, split.test_y, metric)
        tried |= judged(models_of(inner, share, grid, validated, classes), inner.test_x, inner.test_y, metric)
    chosen = {f"{method}|{CHOSEN}": figures[best_key(tried, method)] for method in VALIDATED}
    always = metric(split.test_y, np.ones_like(split.test_y))
    return {**figures, **chosen, f"{TRIVIAL}|": always}


def best_key(figures: Mapping[str, float], method: str) -> str:
    """Return the key of the best setting of a method."""
    keys = [key for key in figures if key.partition("|")[0] == method and key.partition("|")[2] != CHOSEN]
    return max(keys, key=lambda key: -1.0 if np.isnan(figures[key]) else figures[key])
