"""The models of the study of memory: the network, the same one without memory, and what has its memory in its inputs.

All but the logistic one end in the same ridge regression, with the same ridges on offer, so that they differ in what
they remember and in nothing else. Of a classification every class weighs the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.studies.esn_memory.options import Grid
from fedgate.firmware_sim.studies.esn_memory.tasks import CHOOSE, REPORT, TRAIN, Task
from fedgate.firmware_sim.studies.esn_streams.methods import CLIP, lagged
from fedgate.models.arrays import Floats
from fedgate.models.detectors.esn import esn, ridge_readout
from fedgate.models.detectors.esn.network import Network

NETWORK, FORGETFUL = "ESN", "ESN without memory"
MEMORYLESS, LAGS, EQUAL_LAGS = "ridge, memoryless", "ridge on lags, chosen", "ridge on lags, as many parameters"
LOGISTIC, SPECTRUM = "logistic, memoryless", "logistic on the window's spectrum"
LAST, TRIVIAL = "last value", "mean or majority"
BOTH = (NETWORK, FORGETFUL, MEMORYLESS, LAGS, EQUAL_LAGS)
DRAWN = (NETWORK, FORGETFUL)
REGRESSIONS = ("narma", "mackey-glass", "air handling")
LEAST_POWER = 1e-12
LOGISTIC_STEPS = 1_000

Chosen = dict[str, float]


def models_of(task_kind: str) -> tuple[str, ...]:
    """Return the models that a task of this kind is given to."""
    if task_kind in REGRESSIONS:
        return (*BOTH, LAST, TRIVIAL)
    return (*BOTH, LOGISTIC, *(SPECTRUM,) * (task_kind == "bearing"), TRIVIAL)


def tried(
    model: str, given: Task, grid: Grid, units: int, rng: np.random.Generator
) -> Iterator[tuple[Chosen, Floats, int]]:
    """Yield, for everything that is tried of a model, its settings, what it says (n, c), and how many numbers it reads.

    A ridge too small for the sums to determine a readout is passed over.
    """
    if model in (LOGISTIC, SPECTRUM):
        inputs = _spectra(given) if model == SPECTRUM else np.clip(given.inputs, -CLIP, CLIP)
        yield {}, _logistic(given, inputs), inputs.shape[1] + 1
    elif model == LAST and given.last is not None:
        yield {}, given.last[:, None], 0
    elif model == TRIVIAL:
        yield {}, np.tile(given.targets[given.part == TRAIN].mean(axis=0), (len(given.targets), 1)), 0
    else:
        for chosen, regressors, usable in _regressors(model, given, grid, units, rng):
            for ridge, said in _solved(given, regressors, usable, grid.ridge):
                yield {**chosen, "ridge": ridge}, said, regressors.shape[1]


def _regressors(
    model: str, given: Task, grid: Grid, units: int, rng: np.random.Generator
) -> Iterator[tuple[Chosen, Any, NDArray[np.bool_]]]:
    if model in (NETWORK, FORGETFUL):
        seed = int(rng.integers(2**32))
        for chosen in _networks(model, grid):
            params = esn.initial(np.random.default_rng(seed), _network(given, units, chosen), _columns(given).shape[1])
            way = esn.passed(params, _columns(given), given.missing)
            yield chosen, way.regressors, way.usable
        return
    inputs = given.inputs.shape[1]
    equal = max((units + 1) // inputs, 1)  # as many as the states, the inputs and the constant
    for lags in {MEMORYLESS: [0], LAGS: grid.lags, EQUAL_LAGS: [equal]}[model]:
        # Lagged as for a target beside the inputs, so that the row itself is among the regressors.
        columns = np.concatenate([np.clip(given.inputs, -CLIP, CLIP), given.targets[:, :1]], axis=1)
        regressors, _, usable = lagged(columns, given.missing, lags, (inputs,))
        yield {"lags": float(lags)}, regressors, usable


def _networks(model: str, grid: Grid) -> Iterator[Chosen]:
    """Yield settings; without memory a unit hears the present input alone."""
    for scaling in grid.input_scaling:
        if model == FORGETFUL:
            yield {"leak": 1.0, "spectral_radius": 0.0, "input_scaling": scaling}
            continue
        for leak in grid.leak:
            for radius in grid.spectral_radius:
                yield {"leak": leak, "spectral_radius": radius, "input_scaling": scaling}


def _network(given: Task, units: int, chosen: Mapping[str, float]) -> Network:
    scaling = chosen["input_scaling"]
    settings: dict[str, Any] = {**chosen, "units": units, "bias_scaling": scaling}
    if given.window is None:
        return Network(task="reconstruct", targets=(given.inputs.shape[1],), **settings)
    return Network(task="classify", classes=given.targets.shape[1], **settings)


def _columns(given: Task) -> Floats:
    """Return the rows as the network takes them: with the column that it reconstructs, which it does not hear."""
    return given.inputs if given.window is not None else np.concatenate([given.inputs, given.targets], axis=1)


def _solved(
    given: Task, regressors: Any, usable: NDArray[np.bool_], ridges: list[float]
) -> Iterator[tuple[float, Floats]]:
    taught = usable & (given.part == TRAIN)
    weight = np.sqrt(_weights(given)[taught])[:, None]
    total = ridge_readout.sums(regressors[taught] * weight, given.targets[taught] * weight)
    for ridge in ridges:
        try:
            found = ridge_readout.solve(total, ridge)
        except ridge_readout.RankError:
            continue
        yield ridge, np.asarray(regressors @ found.weights.T)


def _weights(given: Task) -> Floats:
    """Return the weight of each row (n,): of a classification the same in sum for every class, else one."""
    if given.window is None:
        return np.ones(len(given.targets))
    counts = np.maximum(given.targets[given.part == TRAIN].sum(axis=0), 1.0)
    return np.asarray(given.targets @ (counts.sum() / len(counts) / counts))


def _logistic(given: Task, inputs: Floats) -> Floats:
    from sklearn.linear_model import LogisticRegression

    taught, classes = given.part == TRAIN, given.targets.argmax(axis=1)
    model = LogisticRegression(max_iter=LOGISTIC_STEPS, class_weight="balanced")
    return np.asarray(model.fit(inputs[taught], classes[taught]).predict_proba(inputs))


def _spectra(given: Task) -> Floats:
    """Return for every row the standardised log spectrum of its window (n, bands), which all have the same length."""
    rows = len(given.inputs) if given.window is None else int((given.window == given.window[0]).sum())
    windows = given.inputs.reshape(-1, rows, given.inputs.shape[1])
    power = np.square(np.abs(np.fft.rfft(windows * np.hanning(rows)[:, None], axis=1)))
    bands = np.log(power + LEAST_POWER).reshape(len(windows), -1)
    taught = (given.part == TRAIN)[::rows]
    bands = (bands - bands[taught].mean(axis=0)) / bands[taught].std(axis=0)
    return np.repeat(bands, rows, axis=0)


def losses(given: Task, said: Floats) -> tuple[float, float]:
    """Return the loss on the rows that choose and on those that are reported: NRMSE, or one minus balanced accuracy."""
    loss = _nrmse if given.window is None else _unbalanced
    return loss(given, said, CHOOSE), loss(given, said, REPORT)


def _nrmse(given: Task, said: Floats, part: int) -> float:
    rows = given.part == part
    errors = given.targets[rows] - said[rows]
    return float(np.sqrt(np.square(errors).mean() / given.targets[rows].var()))


def _unbalanced(given: Task, said: Floats, part: int) -> float:
    """Return one minus the mean over classes of the share of windows named rightly, by the mean of what was said."""
    rows = given.part == part
    _, place = np.unique(given.window[rows], return_inverse=True) if given.window is not None else (None, rows)
    total = np.stack([np.bincount(place, column) for column in said[rows].T], axis=1)
    truth = np.stack([np.bincount(place, column) for column in given.targets[rows].T], axis=1).argmax(axis=1)
    right = total.argmax(axis=1) == truth
    return float(1.0 - np.mean([right[truth == each].mean() for each in np.unique(truth)]))
