"""How each method of the study of sensor streams scores a row: the logarithm of its residual beside healthy ones.

    esn          prediction or reconstruction by an echo state network (algorithm `incfed`)
    lags         the same by ridge regression on the row and those before it
    last value   the row before as the prediction
    level        no prediction: how far the row is from the healthy mean

A federated method solves the sum of what all gateways send, a local one its own; both sums are exact, so federation
costs nothing but what the gateways have not in common. Centre and scale are the gateway's own for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgate.config.protocol.wire import encode
from fedgate.firmware_sim.studies.esn_streams.options import Method
from fedgate.firmware_sim.studies.esn_streams.rows import Streams, training_data
from fedgate.models.arrays import FEATURES, MISSING, NEW_SERIES, Arrays, Floats
from fedgate.models.detectors.esn import esn, ridge_readout
from fedgate.models.federated import build
from fedgate.models.federated.protocol.algorithm import normalise
from fedgate.models.federated.protocol.run import run
from fedgate.models.units import in_own_units

Gaps = NDArray[np.int64]
Scorer = Callable[[Floats, Gaps], Floats]  # rows (n, F) and how many are missing before each -> scores (n,)

CLIP, MAX_GAP = 8.0, 2  # as the network's defaults
LEAST = 1e-6
NETWORK = ("units", "leak", "spectral_radius", "input_scaling", "bias_scaling")


def scorers(
    method: Method, chosen: Mapping[str, Any], streams: Streams, targets: tuple[int, ...], seed: int
) -> tuple[dict[str, Scorer], float]:
    """Return the score of every gateway by its name, fitted to the rows that train, and mean bytes a gateway sends."""
    data = {gateway.name: training_data(gateway) for gateway in streams.gateways}
    if method.model == "last value":
        return {name: _last_value(each) for name, each in data.items()}, 0.0
    if method.model == "level":
        return {name: _level(each, targets if method.task == "reconstruct" else ()) for name, each in data.items()}, 0.0
    together = _networks if method.model == "esn" else _on_lags
    hidden = targets if method.task == "reconstruct" else ()
    if method.data == "federated":
        return together(chosen, data, hidden, seed)
    alone = [together(chosen, {name: each}, hidden, seed)[0] for name, each in data.items()]
    return {name: found for each in alone for name, found in each.items()}, 0.0


def _networks(
    chosen: Mapping[str, Any], data: dict[str, Arrays], targets: tuple[int, ...], seed: int
) -> tuple[dict[str, Scorer], float]:
    network = {key: chosen[key] for key in NETWORK if key in chosen} | {
        "task": "reconstruct" if targets else "predict",
        "targets": targets,
    }
    settings = {"network": network} | {key: chosen[key] for key in ("ridge",) if key in chosen}
    algorithm = build("incfed", next(iter(data.values()))[FEATURES].shape[1], settings)
    sent = dict.fromkeys(data, 0)

    def weigh(name: str, update: Arrays) -> None:
        sent[name] += len(encode(update)) if update else 0

    outcome = run(algorithm, data, seed=seed, on_update=weigh)
    params = {name: {**outcome.server.global_state, **outcome.local_states[name]} for name in data}
    return {name: _network(each) for name, each in params.items()}, float(np.mean(list(sent.values())))


def _network(params: Arrays) -> Scorer:
    return lambda x, missing: esn.carried(params, x, missing)[0]


def _on_lags(
    chosen: Mapping[str, Any], data: dict[str, Arrays], targets: tuple[int, ...], seed: int
) -> tuple[dict[str, Scorer], float]:
    del seed
    lags, total, own, size = int(chosen["lags"]), Arrays(), {}, 0.0
    for name, each in data.items():
        own[name], z = normalise({}, each, "own")
        z = np.clip(z, -CLIP, CLIP)
        regressors, says, usable = lagged(z, each[MISSING], lags, targets)
        part = ridge_readout.sums(regressors[usable], says[usable])
        size += len(encode(part)) / len(data)
        total = {key: total[key] + array if total else array for key, array in part.items()}
    found = ridge_readout.solve(total, float(chosen["ridge"]))
    variance = ridge_readout.variance(total, found)

    def scorer(own: Arrays) -> Scorer:
        def score(x: Floats, missing: Gaps) -> Floats:
            z = in_own_units(own, x)
            regressors, _, _ = lagged(np.clip(z, -CLIP, CLIP), missing, lags, targets)
            says = z[:, list(targets)] if targets else z
            return _log_mean(np.square(says - regressors @ found.weights.T) / variance)

        return score

    return {name: scorer(each) for name, each in own.items()}, size


def lagged(z: Floats, missing: Gaps, lags: int, targets: tuple[int, ...]) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return regressors (n, M), what they are to say (n, c), and the rows whose regressors all are of their series.

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
    regressors = np.concatenate([*columns, np.ones((len(z), 1))], axis=1)
    return regressors, z[:, list(targets)] if targets else z, since >= lags


def _last_value(data: Arrays) -> Scorer:
    own, z = normalise({}, data, "own")
    regressors, _, usable = lagged(z, data[MISSING], 1, ())
    variance = np.maximum(np.square(z - regressors[:, :-1])[usable].mean(axis=0), LEAST)

    def score(x: Floats, missing: Gaps) -> Floats:
        z = in_own_units(own, x)
        before, _, _ = lagged(z, missing, 1, ())
        return _log_mean(np.square(z - before[:, :-1]) / variance)

    return score


def _level(data: Arrays, targets: tuple[int, ...]) -> Scorer:
    own, _ = normalise({}, data, "own")

    def score(x: Floats, missing: Gaps) -> Floats:
        del missing
        z = in_own_units(own, x)
        return _log_mean(np.square(z[:, list(targets)] if targets else z))

    return score


def _log_mean(ratio: Floats) -> Floats:
    return np.asarray(np.log(ratio.mean(axis=1) + LEAST))
