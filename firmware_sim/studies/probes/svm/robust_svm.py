"""The robust SVM beside its baselines, each over grids of settings (FDR-SVM paper, Experiments 1 to 3).

One training gives the model after several numbers of rounds, so that rounds are a setting that costs nothing. A figure
is known by whether the method is federated or pooled, by the method and by the setting. An inner split of the training
rows alone, dealt to as many gateways, chooses a setting; what is reported chooses nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from fedgate.config.settings import settings
from fedgate.firmware_sim import metrics
from fedgate.firmware_sim.engine.spec import Figures
from fedgate.firmware_sim.evaluate.methods import Method
from fedgate.firmware_sim.evaluate.splits import partition
from fedgate.firmware_sim.studies.datasets.tabular import (
    FOLDER,
    Labels,
    Split,
    make_clouds,
    read_rows,
    split_classes,
    split_groups,
)
from fedgate.firmware_sim.studies.literal.robust_svm_central import central
from fedgate.firmware_sim.studies.literal.worst_case_program import solve_worst_case
from fedgate.models.arrays import FEATURES, LABELS, Arrays, generator
from fedgate.models.detectors.base import fault_classes
from fedgate.models.federated import build
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.robust_svm.ball import Ball
from fedgate.models.federated.robust_svm.box import Box, worst_case
from fedgate.models.federated.robust_svm.gateway import imported, with_bias

Metric = Literal["f1", "accuracy", "balanced accuracy"]
Grid = dict[str, dict[str, list[float | str]]]  # method -> setting -> the values that are tried
Scored = dict[str, tuple[float, float]]  # by model: what it is worth, and minus the seconds until it was there
POOLED: dict[str, Callable[..., Arrays]] = {"linear-svm": fault_classes.fit, "central": central}
ROUNDS = "rounds"


class Classifier(Method):
    """A method that is compared; `is_validated`: its settings are also chosen by the inner split."""

    is_validated: bool = True

    @classmethod
    def others(cls) -> Mapping[str, Callable[..., Any]]:
        return POOLED


class Source(settings.Table):
    """Where rows come from, and to how many gateways those that learn are dealt.

    :param table: its name; without one, clouds of so many features are made up, `spread` from the middle to a corner.
    :param grouped: the groups of the table are not torn apart.
    :param coded: classes are the finer ones of the table.
    :param train: so many rows learn and `test_each` of either class are scored; without it 70 % of all rows learn.
    :param stream: of random numbers; the table's name where not given.
    """

    table: str = ""
    features: int = Field(default=10, ge=2)
    spread: float = Field(default=1.0, gt=0)
    grouped: bool = False
    coded: bool = False
    train: int | None = Field(default=None, ge=10)
    test_each: int = Field(default=2, ge=2)
    clients: int = Field(ge=1)
    stream: str = ""


class Condition(settings.Table):
    """What is unequal or wrong among so many rows that learn.

    :param unequal: gateway k gets k parts of the rows.
    :param positives: share of the positive class.
    :param flipped: share of the rows with a wrong label.
    """

    unequal: bool = False
    positives: float = Field(default=0.5, gt=0, lt=1)
    flipped: float = Field(default=0.0, ge=0, lt=1)


class Case(settings.Table):
    """What is measured: every method of the grids, on one draw of the rows.

    :param worst_case: radius and kappa of a ball in which one gateway's worst case on a box is timed as well.
    """

    source: Source
    condition: Condition = Condition()
    methods: dict[str, Classifier]
    grids: list[Grid]
    metric: Metric
    worst_case: tuple[float, float] | None = None
    repeat: int
    seed: int = 0


def reads(case: Case, data: Path) -> list[Path]:
    """Return the file of the table, and those of its groups and classes where they count."""
    source, table = case.source, data / FOLDER / f"{case.source.table}.csv"
    beside = {"groups": source.grouped, "classes": source.coded}
    files = [table, *(table.with_suffix(f".{name}.csv") for name, is_read in beside.items() if is_read)]
    return files if source.table else []


def measure(case: Case, data: Path) -> Figures:
    """Return what every model is worth on the test rows, `tried|<federated or pooled>|<method>|<setting>`, and the one
    that the inner split chose, `chosen|<federated or pooled>|<method>|-`; also what it chose of all federated methods.
    Of equally good settings the first counts. `always one class` is the best answer that never changes.

    By method also the `count` of settings, and the `seconds` until the best model on the test rows was there, all
    gateways one after the other.
    """
    rng = generator(case.seed, case.repeat, case.source.stream or case.source.table)
    split = draw_split(case, data, rng).scaled()
    inner = split.inner(rng).scaled()
    scored, tried, classes = Scored(), Scored(), int(max(split.y.max(), split.test_y.max()))
    for grid in case.grids:
        scored |= _score(case, grid, split, classes)
        validated = {name: values for name, values in grid.items() if case.methods[name].is_validated}
        tried |= _score(case, validated, inner, classes)
    constant = [judge(case.metric, split.test_y, np.full_like(split.test_y, one)) for one in np.unique(split.test_y)]
    figures = {f"tried|{key}": worth for key, (worth, _) in scored.items()}
    figures |= {f"chosen|{method}|-": scored[key][0] for method, key in _choose(tried).items()}
    figures |= {f"{reading}|pooled|always one class|-": max(constant) for reading in ("tried", "chosen")}
    for method, keys in _by_method(scored).items():
        name = method.partition("|")[2]
        figures |= {f"count.{name}": float(len(keys)), f"seconds.{name}": -max(scored[key] for key in keys)[1]}
    return figures if case.worst_case is None else figures | _time_worst_case(case, split, *case.worst_case)


def judge(metric: Metric, truth: Labels, found: Labels) -> float:
    """Return what found classes (n,) are worth."""
    if metric == "accuracy":
        return float((truth == found).mean())
    return (metrics.f1 if metric == "f1" else metrics.balanced_accuracy)(truth, found > 0)


def draw_split(case: Case, data: Path, rng: np.random.Generator) -> Split:
    """Return the rows that learn and those that are scored, under the condition of the case."""
    source, condition = case.source, case.condition
    if source.table:
        rows = read_rows(data, source.table, grouped=source.grouped, coded=source.coded)
    else:  # twice what is drawn of either class
        count = 4 * ((source.train or 0) + source.test_each)
        rows = make_clouds(source.features, count, source.spread, case.seed + case.repeat)
    if source.train is None:
        return split_groups(rows, rng)
    positives = round(source.train * condition.positives)
    split = split_classes(rows, (source.train - positives, positives), source.test_each, rng)
    if condition.flipped:
        wrong = rng.permutation(source.train)[: round(condition.flipped * source.train)]
        split.y[wrong] = 1 - split.y[wrong]
    return split


def deal(case: Case, split: Split) -> dict[str, Arrays]:
    """Return the data of each gateway that gets rows: of a whole table at random and in equal parts, drawn ones as they
    come.
    """
    count, clients = len(split.y), case.source.clients
    if case.source.train is None:
        owners = partition(split.x, clients, "iid", case.seed + case.repeat)
    else:
        parts = np.arange(1, clients + 1) if case.condition.unequal else np.ones(clients)
        ends = np.round(count * np.cumsum(parts) / parts.sum())
        owners = np.searchsorted(ends, np.arange(count), side="right")
    rows = {f"gateway-{k:03d}": owners == k for k in range(clients)}
    return {name: {FEATURES: split.x[own], LABELS: split.y[own]} for name, own in rows.items() if own.any()}


def _score(case: Case, grid: Grid, split: Split, classes: int) -> Scored:
    fleet, scored = deal(case, split), Scored()
    for name, values in grid.items():
        method = case.methods[name]
        for setting, model, seconds in fit_all(method, values, split, fleet, classes):
            worth = judge(case.metric, split.test_y, fault_classes.classify(model, split.test_x))
            scored[f"{method.data}|{name}|{setting}"] = worth, -seconds
    return scored


def fit_all(
    method: Classifier, values: dict[str, list[float | str]], split: Split, fleet: dict[str, Arrays], classes: int
) -> Iterator[tuple[str, Arrays, float]]:
    """Yield every combination of settings, the model, and the seconds until then."""
    marks = [int(rounds) for rounds in values.get(ROUNDS, [])]
    names = [name for name in values if name != ROUNDS]
    for combination in product(*(values[name] for name in names)):
        setting = dict(zip(names, combination, strict=True))
        words = ", ".join(
            f"{key}={value if isinstance(value, str) else f'{value:g}'}" for key, value in setting.items()
        )
        given = {"classes": classes, **method.settings, **setting}
        if method.data == "pooled":
            began_s = time.perf_counter()
            yield words, POOLED[method.algorithm](split.x, split.y, **given), time.perf_counter() - began_s
            continue
        for rounds, state in zip(marks, train(method.algorithm, given, fleet, marks), strict=True):
            yield f"{words}, {ROUNDS}={rounds}", *state


def train(
    algorithm: str, given: Mapping[str, Any], fleet: Mapping[str, Arrays], marks: list[int]
) -> list[tuple[Arrays, float]]:
    """Return the shared model after each number of rounds in `marks`, and the seconds until then."""
    count = next(iter(fleet.values()))[FEATURES].shape[1]
    built = build(algorithm, count, {**given, "normalisation": "none", "unit": "feature"})
    states: list[tuple[Arrays, float]] = []
    began_s = time.perf_counter()

    def keep(shared: Arrays) -> None:
        states.append((shared, time.perf_counter() - began_s))

    keep(run(built, fleet, rounds=max(marks), on_exchange=keep).server.global_state)
    return [states[mark] for mark in marks]


def _by_method(keys: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key in keys:
        found.setdefault(key.rpartition("|")[0], []).append(key)
    return found


def _choose(tried: Scored) -> dict[str, str]:
    """Return the key of the best model of each method, and of all federated ones together."""
    keys = _by_method(tried)
    federated = [method.partition("|")[2] for method in keys if method.startswith("federated|")]
    keys[f"federated|{' or '.join(federated)}"] = [key for key in tried if key.startswith("federated|")]
    return {
        method: max(many, key=lambda key: np.nan_to_num(tried[key][0], nan=-1.0))
        for method, many in keys.items()
        if many
    }


def _time_worst_case(case: Case, split: Split, radius: float, kappa: float) -> Figures:
    """Return the milliseconds of one gateway's worst case, by our way and by the paper's linear program."""
    first = next(iter(deal(case, split).values()))
    x, sign = with_bias(first[FEATURES]), np.where(first[LABELS] > 0, 1.0, -1.0)
    (weights,) = imported(central(split.x, split.y, radius=radius, kappa=kappa))
    figures = Figures()
    for name, solve in {"direct": worst_case, "program": solve_worst_case}.items():
        began_s = time.perf_counter()
        solve(x, sign, weights, Ball(radius, kappa, "1"), Box(0.0, 1.0))
        figures[f"ms.{name}"] = 1e3 * (time.perf_counter() - began_s)
    return figures
