"""How far a row is from what was expected of it: the logarithm of its squared residual beside healthy ones.

    esn          prediction or reconstruction by an echo state network (algorithm `incfed`)
    lags         the same by ridge regression on the row and those before it
    last value   the row before as the prediction
    level        no prediction: how far the row is from the healthy mean

A federated method solves the sum of what all gateways send, a local one its own; both sums are exact, so federation
costs nothing but what the gateways have not in common. Centre and scale are the gateway's own for all.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedgate.config.protocol.wire import encode
from fedgate.config.settings import settings
from fedgate.firmware_sim.evaluate.training import train_fleet
from fedgate.models.arrays import FEATURES, MISSING, NEW_SERIES, Arrays, Floats
from fedgate.models.detectors.esn import esn, ridge_readout
from fedgate.models.federated import build
from fedgate.models.federated.protocol.algorithm import normalise
from fedgate.models.units import in_own_units

Data = Mapping[str, Arrays]  # rows that train (n, F) and how many are missing before each, by gateway
Gaps = NDArray[np.int64]
Targets = tuple[int, ...]
Scorer = Callable[[Floats, Gaps], Floats]  # rows (n, F) and how many are missing before each -> scores (n,)
Model = Literal["esn", "lags", "last value", "level"]

CLIP, MAX_GAP = 8.0, 2  # as the network's defaults
LEAST = 1e-6


class Fitted(NamedTuple):
    """What scores the rows of each gateway, and mean bytes that a gateway sent."""

    scorers: Mapping[str, Scorer]
    bytes_up: float = 0.0


def _fit_network(data: Data, targets: Targets, seed: int, *, ridge: float, **network: Any) -> Fitted:
    task = {"task": "reconstruct" if targets else "predict", "targets": targets}
    width = next(iter(data.values()))[FEATURES].shape[1]
    algorithm = build("incfed", width, {"network": network | task, "ridge": ridge})
    found = train_fleet(algorithm, data, seed=seed)

    def score(params: Arrays, x: Floats, missing: Gaps) -> Floats:
        return esn.carried(params, x, missing)[0]

    scorers = {name: partial(score, {**found.shared, **found.own[name]}) for name in data}
    return Fitted(scorers, float(np.mean(list(found.sent_bytes.values()))))


def _fit_lags(data: Data, targets: Targets, seed: int, *, lags: int, ridge: float) -> Fitted:
    del seed
    total, own, bytes_up = Arrays(), {}, 0.0
    for name, each in data.items():
        own[name], z = normalise({}, each, "own")
        z = np.clip(z, -CLIP, CLIP)
        regressors, usable = lagged(z, each[MISSING], lags, targets)
        part = ridge_readout.sums(regressors[usable], _told(z, targets)[usable])
        bytes_up += len(encode(part)) / len(data)
        total = {key: total[key] + array if total else array for key, array in part.items()}
    found = ridge_readout.solve(total, ridge)

    def expect(z: Floats, missing: Gaps) -> Floats:
        return lagged(np.clip(z, -CLIP, CLIP), missing, lags, targets)[0] @ found.weights.T

    score = partial(_score, targets, expect, ridge_readout.variance(total, found))
    return Fitted({name: partial(score, each) for name, each in own.items()}, bytes_up)


def _fit_last_value(data: Data, targets: Targets, seed: int) -> Fitted:
    del seed

    def expect(z: Floats, missing: Gaps) -> Floats:
        return _told(lagged(z, missing, 1, ())[0][:, :-1], targets)

    scorers: dict[str, Scorer] = {}
    for name, each in data.items():
        own, z = normalise({}, each, "own")
        usable = lagged(z, each[MISSING], 1, ())[1]
        squares = np.square(_told(z, targets) - expect(z, each[MISSING]))[usable]
        scorers[name] = partial(_score, targets, expect, np.maximum(squares.mean(axis=0), LEAST), own)
    return Fitted(scorers)


def _fit_level(data: Data, targets: Targets, seed: int) -> Fitted:
    del seed

    def expect(z: Floats, missing: Gaps) -> Floats:
        del missing
        return np.zeros_like(_told(z, targets))

    score = partial(_score, targets, expect, np.ones(()))
    return Fitted({name: partial(score, normalise({}, each, "own")[0]) for name, each in data.items()})


def _score(targets: Targets, expect: Scorer, variance: Floats, own: Arrays, x: Floats, missing: Gaps) -> Floats:
    z = in_own_units(own, x)
    ratio = np.square(_told(z, targets) - expect(z, missing)) / variance
    return np.asarray(np.log(ratio.mean(axis=1) + LEAST))


def _told(z: Floats, targets: Targets) -> Floats:
    """Return the columns that are expected: the targets, or all to predict."""
    return z[:, list(targets)] if targets else z


def lagged(z: Floats, missing: Gaps, lags: int, targets: Targets) -> tuple[Floats, NDArray[np.bool_]]:
    """Return regressors (n, M), and the rows whose regressors all are of their series.

    To predict a row they are the `lags` rows before it; to reconstruct `targets` the other columns of the row itself
    and of `lags` rows before it. What lies before the start of a series is zero, the healthy mean.
    """
    begins = (missing == NEW_SERIES) | (missing > MAX_GAP)
    begins[:1] = True
    place = np.arange(len(z))
    since = place - np.maximum.accumulate(np.where(begins, place, 0))
    heard = np.delete(z, targets, axis=1) if targets else z
    columns = []
    for lag in range(0 if targets else 1, lags + 1):
        shifted = np.zeros_like(heard)
        shifted[lag:] = heard[: len(heard) - lag]
        columns.append(np.where((since >= lag)[:, None], shifted, 0.0))
    return np.concatenate([*columns, np.ones((len(z), 1))], axis=1), since >= lags


FITS: Mapping[Model, Callable[..., Fitted]] = {
    "esn": _fit_network,
    "lags": _fit_lags,
    "last value": _fit_last_value,
    "level": _fit_level,
}


class Method(settings.Table):
    """What expects a row, whose rows it is fitted to, and whether it hears the columns that it tells."""

    model: Model
    data: Literal["federated", "local"] = "local"
    task: Literal["predict", "reconstruct"] = "predict"
    settings: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _takes_the_settings(self) -> Self:
        try:
            inspect.signature(FITS[self.model]).bind({}, (), 0, **self.settings)
        except TypeError as error:
            raise ValueError(f"settings: of model {self.model!r}: {error}") from None
        return self


def fit(method: Method, data: Data, targets: Targets, seed: int) -> Fitted:
    """Fit a method to rows of each gateway; of task `reconstruct` it tells the columns `targets` by the others.

    Raises:
        TrainingError: the network refuses its data or settings.
    """
    hidden = targets if method.task == "reconstruct" else ()
    train = partial(FITS[method.model], targets=hidden, seed=seed, **method.settings)
    if method.data == "federated":
        return train(data)
    alone = [train({name: each}).scorers for name, each in data.items()]
    return Fitted({name: scorer for each in alone for name, scorer in each.items()})
