"""One run of an evaluation: train federated, score, weigh what was sent, and do the same without federation.

A figure alone says little, so every run also measures others on the same rows: each client alone, one client that holds
all data, and the distance from the mean, which needs no model at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Literal, NamedTuple

import numpy as np

from fedgate.firmware_sim import metrics
from fedgate.firmware_sim.evaluate.datasets import EvaluationError, Labelled
from fedgate.firmware_sim.evaluate.splits import Split
from fedgate.firmware_sim.evaluate.training import (
    NOTHING,
    Fit,
    NothingSentError,
    TooFewClientsError,
    TrainingError,
    commission,
    tensors_fed,
    train_fleet,
)
from fedgate.gateway_agent.deployment.session import Scorer
from fedgate.models import onnx_policy
from fedgate.models.arrays import FEATURES, LABELS, Array, Arrays, Floats
from fedgate.models.detectors import DETECTORS
from fedgate.models.federated.protocol.algorithm import (
    NORMALISATION,
    Algorithm,
    normalise,
)
from fedgate.models.units import in_own_units, scales

Metric = Literal["auc", "f1"]
Score = Callable[[Arrays, Array], Floats]  # (what a client keeps for itself, features (n, F)) -> (n,)

BATCH_ROWS = 64
TIMED_BATCHES = 30
# Scores are computed this many rows at a time, so that memory does not grow with the table.
BLOCK_ROWS = 4_096
# A graph computes in float32; a larger difference from the float64 score means another model, or badly scaled features.
EXPORT_TOLERANCE = 1e-3
# Where no model sets a border, one row of twenty in training counts as outside.
BORDER_QUANTILE = 0.95


class ExportError(EvaluationError):
    """The exported graph is refused, or does not score as the model does: no gateway would see what was measured."""


class Trial(NamedTuple):
    """What one run measured; bytes are means over all clients, whether they took part or not."""

    value: float
    bytes_up: float
    bytes_down: float
    fit_s: float
    score_us: float  # per row, through onnxruntime in batches of 64
    baselines: dict[str, float]
    untrained: int  # clients that could not train alone


def run_trial(
    algorithm: Algorithm,
    split: Split,
    *,
    alone: Algorithm | None = None,
    metric: Metric,
    fraction: float,
    seed: int,
    say: Callable[[str], None],
) -> Trial:
    """Train and measure once; `say` is told what is being done.

    `alone` is what clients by themselves and all rows in one place are trained with, where that is another: masks and
    noise are for fleets.

    Raises:
        TrainingError: the algorithm refuses its data or settings, or no client could train.
        ExportError: the ONNX graph disagrees with the model, or gateways refuse it.
    """
    say("federated")
    try:
        fit = train_fleet(algorithm, split.train, seed=seed, fraction=fraction)
    except NothingSentError:
        counts = f"clients have {min(split.row_counts)} to {max(split.row_counts)} rows to train on"
        remedy = "use fewer clients or more data; of many rows see that they differ, and leave out a gamma that is set"
        if algorithm.detector == "esn":
            remedy += ", or a shorter memory: the first 5 / leak rows of a series teach nothing (network.washout)"
        raise TrainingError(f"no client could train; {counts}: {remedy}") from None
    own = _commissioned(alone or algorithm, fit, split, seed)
    graph = DETECTORS[algorithm.detector].graph(fit.shared, algorithm.personal)
    baselines, untrained = _baselines(alone or algorithm, split, metric, seed, say)
    return Trial(
        value=_mean_value(_verified(algorithm, fit.shared, graph), own, split, metric),
        bytes_up=float(np.mean(list(fit.sent_bytes.values()))),
        bytes_down=float(fit.received_bytes),
        fit_s=fit.fit_s,
        score_us=_score_us(algorithm, graph, own, split),
        baselines=baselines,
        untrained=untrained,
    )


def _commissioned(algorithm: Algorithm, fit: Fit, split: Split, seed: int) -> dict[str, Arrays]:
    """Return what each client scores with besides the shared model, without the clients that cannot score: those whose
    rows are too few even for units. One that was never drawn scores too.
    """
    train = split.train.items()
    own = {client: fit.own[client] or commission(algorithm, fit.shared, data, seed) for client, data in train}
    needed = set(NORMALISATION) & set(algorithm.personal)
    return {client: kept for client, kept in own.items() if needed <= kept.keys()}


def _verified(algorithm: Algorithm, shared: Arrays, graph: bytes) -> Score:
    """Return the model's score, which raises `ExportError` where the gateway's scorer would say something else, as this
    does where gateways would refuse the graph.
    """
    try:
        onnx_policy.check(graph)
    except onnx_policy.ModelRefusedError as error:
        raise ExportError(f"every gateway refuses the exported graph: {error}") from None

    def score(own: Arrays, x: Array) -> Floats:
        scores = DETECTORS[algorithm.detector].score({**shared, **own}, x)
        served = Scorer(graph, tensors_fed(algorithm.personal, own))(x)
        if not np.allclose(served, scores, rtol=EXPORT_TOLERANCE, atol=EXPORT_TOLERANCE):
            worst = float(np.abs(served - scores).max())
            cause = "features of very different size lose digits in float32: scale them, or set normalisation=own"
            raise ExportError(f"the exported graph scores up to {worst:.3g} away from the model; {cause}")
        return scores

    return score


def _score_us(algorithm: Algorithm, graph: bytes, own: Mapping[str, Arrays], split: Split) -> float:
    """Return the median time per row that a gateway takes to score full batches."""
    client, kept = next(iter(own.items()))
    scorer = Scorer(graph, tensors_fed(algorithm.personal, kept))
    x = split.test[client].x
    batch = np.resize(x, (BATCH_ROWS, x.shape[1])).astype(np.float32)
    times_ns = []
    for _ in range(TIMED_BATCHES):
        started_ns = time.perf_counter_ns()
        scorer(batch)
        times_ns.append(time.perf_counter_ns() - started_ns)
    return float(np.median(times_ns)) / 1e3 / BATCH_ROWS


def _baselines(
    algorithm: Algorithm, split: Split, metric: Metric, seed: int, say: Callable[[str], None]
) -> tuple[dict[str, float], int]:
    """Return the value of each baseline and how many clients alone could not train."""
    score = DETECTORS[algorithm.detector].score
    alone: dict[str, Arrays] = {}
    for client, data in split.train.items():
        say(f"{client} alone")
        with suppress(NothingSentError, TooFewClientsError):
            fit = train_fleet(algorithm, {client: data}, seed=seed)
            alone[client] = {**fit.shared, **fit.own[client]}
    say("pooled")
    values = {
        "local": _mean_value(score, alone, split, metric),
        "pooled": _pooled_value(algorithm, split, metric, seed),
        "distance": _mean_value(_distance, _references(split), split, metric),
    }
    if metric == "f1":  # its AUC is 0.5 whatever the data
        values["always"] = _mean_value(lambda _, x: np.ones(len(x)), dict.fromkeys(split.train, NOTHING), split, metric)
    return values, len(split.train) - len(alone)


def _pooled_value(algorithm: Algorithm, split: Split, metric: Metric, seed: int) -> float:
    """Return the value of the pooled model, not a number where the algorithm cannot train on all rows in one place, as
    a robust mean, which asks for three clients.
    """
    try:
        pooled = _pooled(algorithm, split, seed)
    except TrainingError:
        return float("nan")
    return _mean_value(DETECTORS[algorithm.detector].score, pooled, split, metric)


def _pooled(algorithm: Algorithm, split: Split, seed: int) -> dict[str, Arrays]:
    """Return the model of one client that holds all data, with what each client scores with beside it.

    Rows of clients that measure in units of their own are brought to those units before they are joined, and each
    client goes on scoring in its own: what is compared is federation, not the mixing of kilonewtons with microstrains.
    """
    if not algorithm.personal:
        fit = train_fleet(algorithm, {"pooled": _joined(split.train)}, seed=seed)
        model = {**fit.shared, **fit.own["pooled"]}
        return dict.fromkeys(split.train, model)
    train = {client: data for client, data in split.train.items() if len(data[FEATURES])}
    pairs = {client: normalise({}, data, "own") for client, data in train.items()}
    joined = _joined({client: {**train[client], FEATURES: z} for client, (_, z) in pairs.items()})
    fit = train_fleet(algorithm, {"pooled": joined}, seed=seed)
    return {client: {**fit.shared, **own} for client, (own, _) in pairs.items()}


def _joined(train: Mapping[str, Arrays]) -> Arrays:
    parts = list(train.values())
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _references(split: Split) -> dict[str, Arrays]:
    """Return centre, scale and border of the training data by client; of all together where units are the same."""
    if split.one_scale:
        return dict.fromkeys(split.train, _reference(_joined(split.train)))
    return {client: _reference(data) for client, data in split.train.items()}


def _reference(data: Arrays) -> Arrays:
    x = data[FEATURES][data[LABELS] == 0] if LABELS in data else data[FEATURES]
    center = x.mean(axis=0)
    units = {"center": center, "scale": scales(center, x.std(axis=0)), "border": np.zeros(())}
    return {**units, "border": np.quantile(_distance(units, x), BORDER_QUANTILE)}


def _distance(units: Arrays, x: Array) -> Floats:
    """Return the Euclidean distance (n,) of x (n, F) from the centre in deviations, above the border of training."""
    return np.asarray(np.linalg.norm(in_own_units(units, x), axis=1) - units["border"])


def _mean_value(score: Score, own: Mapping[str, Arrays], split: Split, metric: Metric) -> float:
    """Return the mean over the clients in `own` that can be judged, nan without any; equal work is done once."""
    known: dict[tuple[int, int], float] = {}
    values = []
    for client in [client for client in split.judged if client in own]:
        kept, rows = own[client], split.test[client]
        key = id(kept), id(rows)
        if key not in known:
            known[key] = _value(score, kept, rows, metric)
        values.append(known[key])
    return float(np.mean(values)) if values else float("nan")


def _value(score: Score, own: Arrays, rows: Labelled, metric: Metric) -> float:
    blocks = [rows.x[start : start + BLOCK_ROWS] for start in range(0, len(rows.y), BLOCK_ROWS)]
    scores = np.concatenate([score(own, block) for block in blocks])  # (n,)
    return metrics.roc_auc(rows.y, scores) if metric == "auc" else metrics.f1(rows.y, scores > 0)
