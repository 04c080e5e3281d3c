"""Echo state network: a row of features is a time step, and what came before it is in the state of a reservoir
(federated-esn paper; the score is ours).

Three uses of one readout W over regressors s = [states, inputs, 1] (`network.Task`):

    predict       e_t = u_t - W s_{t-1}             how far the next input is from what was expected
    reconstruct   e_t = u_t[targets] - W s_t        how far some inputs are from what the others say
    classify      W s_t                             one output a class, or one alone: the logit of an anomaly

    predict, reconstruct   score = log(mean e² / variance + floor) - log(border + floor)   (docs/decisions/04)
    classify               score = max of the classes from 1 on - class 0, or the logit

The variance is that on healthy data, the mean over outputs and the steps of a row; the border is what a share `outside`
of normally distributed residuals exceeds. The network hears inputs clipped, and zero for what is no number, so that one
wild row cannot fill its memory; the residual is not clipped, so that far is told from farther.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedgate.models.arrays import NEW_SERIES, Array, Arrays, Booleans, Floats, Singles
from fedgate.models.detectors.base.checks import DataError, finite_rows, whole_classes
from fedgate.models.detectors.base.detector import Detector, standardised
from fedgate.models.detectors.base.pca import RESIDUAL_FLOOR
from fedgate.models.detectors.base.subspace import OUTSIDE, exceeded_by
from fedgate.models.detectors.esn import reservoir, ridge_readout
from fedgate.models.detectors.esn.esn_graph import graph
from fedgate.models.detectors.esn.network import Network

STATE, LAST = "state", "last"  # (layers, N) and (1, I): where a stream stands, beside the parameters to go on there
# What to do with rows that hold what is no number.
GAPS = (
    "leave such rows out and count them in `missing`, as fedgate.models.federated.closed_form.series.without_gaps does"
)


class Passed(NamedTuple):
    """A series after its way through the reservoir, r = n * steps time steps: regressors (r, M), inputs (r, I),
    which of the steps may teach (r,), and where the stream stands.
    """

    regressors: Singles
    inputs: Floats
    usable: Booleans
    place: Arrays


def initial(rng: np.random.Generator, network: Network, feature_count: int) -> Arrays:
    """Return the parameters of an untrained network for F features: a new reservoir and a readout of zeros."""
    inputs, outputs = network.inputs(feature_count), network.outputs(feature_count)
    observed = np.isin(np.arange(inputs), network.targets, invert=True)
    params = reservoir.initial(rng, network, network.input_count(feature_count)) | {
        "readout": np.zeros((outputs, network.readout_size(feature_count))),
        "observed": observed.astype(np.float64),
        "clip": np.array(network.clip),
        "direct": np.array(float(network.direct)),
        "steps": np.array(network.steps, dtype=np.int64),
        "washout": np.array(network.washout_steps, dtype=np.int64),
        "max_gap": np.array(network.max_gap, dtype=np.int64),
    }
    if network.task == "classify":
        return params
    targets = np.flatnonzero(~observed) if network.targets else np.arange(inputs)
    return params | {
        "targets": targets.astype(np.int64) if network.task == "predict" else np.array(network.targets, dtype=np.int64),
        "ahead": np.array(float(network.task == "predict")),
        "variance": np.ones(outputs),
        "border": np.array(exceeded_by(OUTSIDE, outputs * network.steps)),
    }


def steps_of(params: Mapping[str, Array], z: Array) -> Floats:
    """Return rows (n, F), channel after channel, as time steps (n * steps, I)."""
    count = int(params["steps"])
    rows = np.asarray(z, dtype=np.float64)
    inputs = rows.shape[1] // count
    return np.asarray(rows.reshape(len(rows), inputs, count).transpose(0, 2, 1).reshape(len(rows) * count, inputs))


def begins_of(params: Mapping[str, Array], missing: Array) -> Booleans:
    """Return before which rows (n,) the state is lost: where a series begins or more rows are missing than bridged.

    Raises `DataError` for what says of no row how many are missing before it.
    """
    gaps = np.asarray(missing)
    if gaps.dtype.kind not in "iu" or (gaps < NEW_SERIES).any():
        raise DataError(
            f"missing: {gaps.tolist()[:8]} given, expected whole numbers from {NEW_SERIES}, a new series, up"
        )
    return np.asarray((gaps == NEW_SERIES) | (gaps > int(params["max_gap"])))


def passed(params: Mapping[str, Array], z: Array, missing: Array | None = None) -> Passed:
    """Send rows z (n, F), already in normalised units, through the reservoir; from "state" and "last" on where the
    parameters hold them. `missing` (n,) says how many rows are missing before each.

    Raises `DataError` where it does not say so of each row.
    """
    inputs, count = steps_of(params, z), int(params["steps"])
    gaps = np.zeros(len(z), dtype=np.int64) if missing is None else missing
    if len(gaps) != len(z):
        raise DataError(f"missing: {len(gaps)} numbers given, expected one for each of {len(z)} rows")
    begins = np.zeros(len(inputs), dtype=np.bool_)
    begins[::count] = begins_of(params, gaps)
    begins[:1] |= STATE not in params
    clip = float(params["clip"])
    seen = inputs[:, params["observed"] > 0.0]
    clipped = np.clip(np.where(np.isnan(seen), 0.0, seen), -clip, clip).astype(np.float32)
    states, state = reservoir.run(params, clipped, params.get(STATE), begins)
    columns: list[Singles] = [states, clipped][: 1 + bool(params["direct"])]
    usable = _past_washout(params, begins)
    if not _ahead(params):
        return Passed(_beside(columns), inputs, usable, {STATE: state})
    usable[::count] &= np.asarray(gaps) == 0
    last = np.asarray(params.get(LAST, np.zeros((1, clipped.shape[1]))), dtype=np.float32)
    before = [np.ravel(params.get(STATE, np.zeros(states.shape[1]))), last[0]]
    place = {STATE: state, LAST: clipped[-1:] if len(clipped) else last}
    return Passed(_a_step_later(columns, before, begins), inputs, usable, place)


def _beside(columns: list[Singles], shift: int = 0) -> Singles:
    """Return columns beside one another, so many rows later, and a constant at their end."""
    together = np.ones((len(columns[0]), sum(each.shape[1] for each in columns) + 1), dtype=np.float32)
    edge = 0
    for each in columns:
        together[shift:, edge : edge + each.shape[1]] = each[: len(each) - shift]
        edge += each.shape[1]
    return together


def _a_step_later(columns: list[Singles], before: list[Array], begins: Array) -> Singles:
    """Return `_beside` a step later: `before` in the first row, zeros where a series begins."""
    together = _beside(columns, shift=1)
    together[:1, :-1] = np.concatenate(before[: len(columns)])
    together[begins, :-1] = 0.0
    return together


def _ahead(params: Mapping[str, Array]) -> bool:
    return bool(params.get("ahead", 0.0))


def _past_washout(params: Mapping[str, Array], begins: Array) -> Booleans:
    since = np.arange(len(begins))
    since = since - np.maximum.accumulate(np.where(begins, since, 0))  # steps since the series began
    return np.asarray(since >= max(int(params["washout"]), int(_ahead(params))))


def states_of(params: Mapping[str, Array], z: Array, missing: Array | None = None) -> tuple[Singles, Booleans]:
    """Return the regressors (n * steps, M) of rows z (n, F) in normalised units, and which of the steps may teach.

    Of task `predict` a regressor is what was known a step before: it and the input of the same index belong together.
    Steps teach after the washout; for `predict` not those whose predecessor is missing, though the gap be bridged.

    Raises `DataError` for anything but finite rows.
    """
    return taught(params, z, missing)[::2]


def taught(params: Mapping[str, Array], z: Array, missing: Array | None = None) -> Passed:
    """Return a series of finite rows (n, F) after its way through the reservoir; raises `DataError` for any others."""
    return passed(params, finite_rows(z, GAPS), missing)


def targets_of(params: Mapping[str, Array], inputs: Array) -> Floats:
    """Return what the readout is to say (r, c) at inputs (r, I), clipped as what the network hears; not of a class."""
    clip = float(params["clip"])
    return np.asarray(np.clip(inputs[:, params["targets"]], -clip, clip))


def outputs(params: Mapping[str, Array], x: Array, missing: Array | None = None) -> Floats:
    """Return what the readout says of features (n, F) as (n, c), the mean over the steps of a row."""
    way = passed(params, standardised(dict(params), x), missing)
    return np.asarray(_by_row(params, _outputs(params, way)).mean(axis=1))


def _outputs(params: Mapping[str, Array], way: Passed) -> Floats:
    return np.asarray(way.regressors @ params["readout"].T)  # (r, c)


def _by_row(params: Mapping[str, Array], values: Array) -> Floats:
    return np.asarray(values.reshape(-1, int(params["steps"]), values.shape[1]))  # (n, steps, c)


def carried(params: Mapping[str, Array], x: Array, missing: Array | None = None) -> tuple[Floats, Arrays]:
    """Return scores (n,) of features (n, F), and where the stream stands after them: with these beside the parameters
    the next rows are scored as if they had come with these.
    """
    z = standardised(dict(params), x)
    way = passed(params, z, missing)
    found = _outputs(params, way)
    if "targets" in params:
        ratio = np.square(way.inputs[:, params["targets"]] - found) / params["variance"]
        mean = _by_row(params, ratio).mean(axis=(1, 2))
        scores = np.log(mean + RESIDUAL_FLOOR) - np.log(float(params["border"]) + RESIDUAL_FLOOR)
    else:
        voices = _by_row(params, found).mean(axis=1)
        scores = voices[:, 0] if voices.shape[1] == 1 else voices[:, 1:].max(axis=1) - voices[:, 0]
    return np.where(np.isfinite(z).all(axis=1), scores, np.nan), way.place


def score(params: Arrays, x: Array) -> Floats:
    """Return (n,) scores of features (n, F), rows one after another; zero on the border, positive outside."""
    return carried(params, x)[0]


def fitted(params: Arrays, total: Mapping[str, Array], found: ridge_readout.Solution) -> Arrays:
    """Return the parameters with a readout, and with its variance where there are residuals."""
    known = {"variance": ridge_readout.variance(total, found)} if "targets" in params else {}
    return {**params, "readout": found.weights, **known}


def fit(
    x: Array,
    y: Array | None,
    rng: np.random.Generator,
    *,
    network: Network | None = None,
    ridge: float = 0.01,
    missing: Array | None = None,
) -> Arrays:
    """Train on features (n, F), consecutive rows of a stream, and for task `classify` their classes (n,).

    Raises `FitError`; warns with `EchoStateWarning` where the state does not forget its start on these rows.
    """
    network = network or Network()
    params = initial(rng, network, np.shape(x)[1])
    way = taught(params, x, missing)
    if network.task == "classify":
        targets = np.repeat(np.eye(network.classes)[whole_classes(y, network.classes)], network.steps, axis=0)
    else:
        targets = targets_of(params, way.inputs)
    if not way.usable.any():
        raise DataError(f"{len(way.usable)} steps given, expected more than the washout of {network.washout_steps}")
    reservoir.contraction(params, way.inputs[:, params["observed"] > 0.0])
    total = ridge_readout.sums(way.regressors[way.usable], targets[way.usable])
    return fitted(params, total, ridge_readout.solve(total, ridge))


ESN = Detector(score=score, graph=graph, fit=fit)
