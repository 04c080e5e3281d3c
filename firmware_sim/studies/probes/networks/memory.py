"""Does the memory of an echo state network pay, and where? Tasks that may need one, beside models that have none.

All models but the logistic ones end in the same ridge regression, with the same ridges on offer, so that they differ in
what they remember and in nothing else. Of a classification every class weighs the same. The task `capacity` measures
how long a reservoir remembers its input.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedgate.config.settings import settings
from fedgate.firmware_sim.engine.spec import Figures, StudyError
from fedgate.firmware_sim.studies.datasets.series.memory_tasks import (
    CHOOSE,
    REPORT,
    TRAIN,
    Generated,
    Recorded,
    Task,
    load,
)
from fedgate.firmware_sim.studies.probes.networks.residuals import CLIP, lagged
from fedgate.models.arrays import Floats, generator
from fedgate.models.detectors.esn import esn, ridge_readout
from fedgate.models.detectors.esn.network import Network

Capacity = Literal["capacity"]
CAPACITY: Capacity = "capacity"
CAPACITY_RIDGE, CAPACITY_DELAYS = 1e-9, 100
LEAST_POWER = 1e-12
LOGISTIC_STEPS = 1_000
NO_RIDGE = "-"

Answer = tuple[str, Floats]  # a ridge, and what a model says of every row (n, c)


class Method(settings.Table):
    """A model, and what a network or lags remember.

    :param model: a network or lags with a ridge readout, a logistic regression of the rows or of their window's
        spectrum, what the target was a step before, or the mean of the training rows.
    :param leak, spectral_radius, input_scaling: of a network; without memory 1 and 0.
    :param lags: rows before the present one; where not given as many as make the readout as large as a network's.
    """

    model: Literal["network", "lags", "logistic", "spectrum", "last value", "mean"]
    leak: float = Field(default=1.0, gt=0, le=1)
    spectral_radius: float = Field(default=0.0, ge=0)
    input_scaling: float = Field(default=0.1, gt=0)
    lags: int | None = Field(default=None, ge=0)


FOLDERS: dict[str, str] = {  # of recorded tasks
    "supply air temperature": "hvac_fdd",
    "bearing condition": "cwru_bearing",
    "room occupied": "uci_occupancy",
    "pump valve closed": "skab_pump",
}


class Case(settings.Table):
    """What is measured.

    :param units: of a network.
    :param ridge: those on offer; part of the names of figures.
    :param rows: of a generated series.
    """

    task: Generated | Recorded | Capacity
    method: Method
    units: int = Field(default=200, ge=1)
    ridge: tuple[float, ...] = Field(min_length=1)
    rows: int = Field(default=6_000, ge=1)
    seed: int = 0


def reads(case: Case, data: Path) -> list[Path]:
    """Return the folder of a recorded task."""
    return [data / "streams" / FOLDERS[case.task]] if case.task in FOLDERS else []


def measure(case: Case, data: Path) -> Figures:
    """Return `choose|ridge` and `report|ridge` for each ridge that determines a readout: NRMSE, or of a classification
    the balanced accuracy; and how many numbers the model reads.

    Raises:
        StudyError: a file is missing, or no ridge determines a readout.
    """
    if case.task == CAPACITY:
        return measure_capacity(case)
    given = load(case.task, data, case.rows, generator(case.seed, 0, case.task))
    size, answers = _answers(case, given)
    figures = {"size": float(size)}
    for ridge, said in answers:
        figures |= {
            f"{name}|{ridge}": judge(given, said, part) for name, part in (("choose", CHOOSE), ("report", REPORT))
        }
    if len(figures) == 1:
        raise StudyError(f"ridge: {case.ridge} given, of which none determines a readout; expected a larger one")
    return figures


def _answers(case: Case, given: Task) -> tuple[int, Iterator[Answer]]:
    """Return how many numbers a model reads, and what it says with each ridge."""
    model = case.method.model
    if model in ("logistic", "spectrum"):
        inputs = _spectra(given) if model == "spectrum" else np.clip(given.inputs, -CLIP, CLIP)
        return inputs.shape[1] + 1, iter([(NO_RIDGE, _logistic(given, inputs))])
    if model == "last value" and given.last is not None:
        return 0, iter([(NO_RIDGE, given.last[:, None])])
    if model == "mean":
        return 0, iter([(NO_RIDGE, np.tile(given.targets[given.part == TRAIN].mean(axis=0), (len(given.targets), 1)))])
    if model == "last value":
        raise StudyError(f"method 'last value' given for {case.task!r}, whose last value nobody has; expected another")
    regressors, usable = _states(case, given) if model == "network" else _lags(case, given)
    return regressors.shape[1], _solved(given, regressors, usable & (given.part == TRAIN), case.ridge)


def _states(case: Case, given: Task) -> tuple[Floats, NDArray[np.bool_]]:
    """Return what the readout of a network sees; the column that it reconstructs is among its rows and not heard."""
    rows, task = given.inputs, {"task": "classify", "classes": given.targets.shape[1]}
    if given.window is None:
        rows, task = np.concatenate([rows, given.targets], axis=1), {"task": "reconstruct", "targets": (rows.shape[1],)}
    seed = int(generator(case.seed, 0, "reservoir").integers(2**32))
    bias = {"bias_scaling": case.method.input_scaling}
    params = esn.initial(np.random.default_rng(seed), _network(case, **task, **bias), rows.shape[1])
    passed = esn.passed(params, rows, given.missing)
    return np.asarray(passed.regressors, dtype=np.float64), passed.usable


def _network(case: Case, **settings: Any) -> Network:
    given = case.method.model_dump(include={"leak", "spectral_radius", "input_scaling"})
    return Network(units=case.units, **given, **settings)


def _lags(case: Case, given: Task) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the present inputs and those before; they are lagged as for a target beside them, so that both are."""
    width, lags = given.inputs.shape[1], case.method.lags
    as_many = max((case.units + 1) // width, 1)  # as the states, the inputs and the constant
    columns = np.concatenate([np.clip(given.inputs, -CLIP, CLIP), given.targets[:, :1]], axis=1)
    return lagged(columns, given.missing, as_many if lags is None else lags, (width,))


def _solved(given: Task, regressors: Floats, trains: NDArray[np.bool_], ridges: tuple[float, ...]) -> Iterator[Answer]:
    """Yield what the readout says with each ridge; one too small to determine it is passed over."""
    total = ridge_readout.sums(regressors[trains], given.targets[trains], _weights(given)[trains])
    for ridge in ridges:
        try:
            found = ridge_readout.solve(total, ridge)
        except ridge_readout.RankError:
            continue
        yield f"{ridge:g}", np.asarray(regressors @ found.weights.T)


def _weights(given: Task) -> Floats:
    """Return the weight of each row (n,): of a classification the same in sum for every class, else one."""
    if given.window is None:
        return np.ones(len(given.targets))
    counts = np.maximum(given.targets[given.part == TRAIN].sum(axis=0), 1.0)
    return np.asarray(given.targets @ (counts.sum() / len(counts) / counts))


def _logistic(given: Task, inputs: Floats) -> Floats:
    from sklearn.linear_model import LogisticRegression

    trains, classes = given.part == TRAIN, given.targets.argmax(axis=1)
    model = LogisticRegression(max_iter=LOGISTIC_STEPS, class_weight="balanced")
    return np.asarray(model.fit(inputs[trains], classes[trains]).predict_proba(inputs))


def _spectra(given: Task) -> Floats:
    """Return for every row the standardised log spectrum of its window (n, bands), which all have the same length."""
    rows = len(given.inputs) if given.window is None else int((given.window == given.window[0]).sum())
    windows = given.inputs.reshape(-1, rows, given.inputs.shape[1])
    power = np.square(np.abs(np.fft.rfft(windows * np.hanning(rows)[:, None], axis=1)))
    bands = np.log(power + LEAST_POWER).reshape(len(windows), -1)
    head = bands[(given.part == TRAIN)[::rows]]
    return np.repeat((bands - head.mean(axis=0)) / head.std(axis=0), rows, axis=0)


def judge(given: Task, said: Floats, part: int) -> float:
    """Return the root mean square error on the rows of a part in deviations of the target (NRMSE), or the balanced
    accuracy over windows, each named by the mean of what was said.
    """
    from sklearn.metrics import recall_score

    rows = given.part == part
    if given.window is None:
        error = given.targets[rows] - said[rows]
        return float(np.sqrt(np.square(error).mean() / given.targets[rows].var()))
    place = np.unique(given.window[rows], return_inverse=True)[1]
    named, truth = (
        np.stack([np.bincount(place, column) for column in each[rows].T], axis=1).argmax(axis=1)
        for each in (said, given.targets)
    )
    return float(recall_score(truth, named, labels=np.unique(truth), average="macro"))


def measure_capacity(case: Case) -> Figures:
    """Return how much of an input so many steps ago, `delay.k`, the states still hold, and the sum over all delays.

    The squared correlation, on rows that trained nothing, of u(t-k) with the best linear readout (Jaeger 2001).
    """
    rng, network = generator(case.seed, 0, CAPACITY), _network(case, task="classify", direct=False)
    u = rng.uniform(-1.0, 1.0, (case.rows, 1))
    states = np.asarray(esn.passed(esn.initial(rng, network, 1), u).regressors, dtype=np.float64)
    delays = range(1, CAPACITY_DELAYS + 1)
    targets = np.stack([np.concatenate([np.zeros(k), u[:-k, 0]]) for k in delays], axis=1)  # (n, delays)
    start = max(CAPACITY_DELAYS, network.washout_steps)
    middle = (start + case.rows) // 2
    total = ridge_readout.sums(states[start:middle], targets[start:middle])
    said = states[middle:] @ ridge_readout.solve(total, CAPACITY_RIDGE).weights.T
    held = [_squared_correlation(one, two) for one, two in zip(said.T, targets[middle:].T, strict=True)]
    return {"total": sum(held), **{f"delay.{k}": value for k, value in zip(delays, held, strict=True)}}


def _squared_correlation(one: Floats, two: Floats) -> float:
    return float(np.corrcoef(one, two)[0, 1] ** 2) if np.std(one) > 0.0 else 0.0
