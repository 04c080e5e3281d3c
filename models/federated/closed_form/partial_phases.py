"""The exchanges of Partial IncFed: electing units, sending the sums of fewer units, sending columns of one's own
(federated-esn paper).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.detectors.base.moments import symmetric
from fedgate.models.detectors.esn import ridge_readout
from fedgate.models.detectors.esn.network import Network
from fedgate.models.detectors.esn.reservoir import IDENTITY, identity
from fedgate.models.detectors.esn.ridge_readout import CROSS, GRAM, SAMPLES, RankError
from fedgate.models.federated.closed_form import column_masks
from fedgate.models.federated.closed_form.incfed import (
    CONDITION,
    UNDETERMINED,
    RankWarning,
    scaled,
    schema_of,
    shapes_of,
    solved,
)
from fedgate.models.federated.closed_form.readout_sums import SLACK, Bounds, judge, rows_of
from fedgate.models.federated.closed_form.series import lesson
from fedgate.models.federated.protocol.algorithm import Normalisation, Phase, Server, Trained
from fedgate.models.federated.protocol.contributions import STEP, weight_of
from fedgate.models.federated.protocol.reducer import SUM
from fedgate.models.federated.protocol.schema import UpdateError

Sums = Callable[[Array, Array], Arrays]  # of regressors and targets

IMPORTANCE = "importance"
ELECTED, DIRECTIONS = "elected", "directions"  # in `global_state`: (k,) units, or (N, k)


class Plan(NamedTuple):
    """What all phases know: the network, k of its N units, and how sums are made, bounded and solved."""

    network: Network
    outputs: int
    neurons: int
    alpha: float
    ridge: float
    fewest_rows: int
    normalisation: Normalisation
    bounds: Bounds

    @property
    def units(self) -> int:
        """N, the units of all layers."""
        return self.network.layers * self.network.units

    def taught(self, global_state: Arrays, local_state: Arrays, data: Arrays, sums: Sums) -> tuple[Arrays, Arrays]:
        """Return the state of a gateway and its sums, `{}` where it has nothing to send."""
        taught = lesson(self.network, global_state, local_state, data, self.normalisation)
        if len(taught.regressors) < self.fewest_rows:
            return taught.local_state, {}
        return taught.local_state, scaled(
            sums(taught.regressors, taught.targets), weight_of(data), self.bounds.max_samples
        )


def electing(plan: Plan) -> Phase:
    """Return the exchange in which gateways send Σ s² of every unit and the cloud elects the k with the largest."""

    def sums(regressors: Array, targets: Array) -> Arrays:
        states = regressors[:, : plan.units].astype(np.float64)
        return {IMPORTANCE: np.square(states).sum(axis=0), SAMPLES: np.array(float(len(targets)))}

    def learn(global_state: Arrays, local_state: Arrays, data: Arrays, _rng: np.random.Generator) -> Trained:
        local_state, found = plan.taught(global_state, local_state, data, sums)
        return local_state, {**found, IDENTITY: identity(global_state)} if found else {}

    def advance(server: Server, total: Arrays) -> Server:
        best = np.argsort(-total[IMPORTANCE], kind="stable")[: plan.neurons]
        return server._replace(global_state={**server.global_state, ELECTED: np.sort(best).astype(np.int64)}, phase=1)

    def check(_server: Server, update: Arrays) -> None:
        rows = rows_of(update, plan.bounds)
        least, most = float(update[IMPORTANCE].min()), float(update[IMPORTANCE].max())
        if least < 0.0 or most > rows * (1.0 + SLACK):
            raise UpdateError(f"{IMPORTANCE}: expected 0 to {rows:g} of as many rows, got {least:g} to {most:g}")

    return Phase(learn, SUM, advance, schema_of({IMPORTANCE: (plan.units,), SAMPLES: ()}), check)


def reducing(plan: Plan, phase: int) -> Phase:
    """Return the exchange in which gateways send the sums of the k units, or directions, that `global_state` names."""

    def learn(global_state: Arrays, local_state: Arrays, data: Arrays, _rng: np.random.Generator) -> Trained:
        local_state, found = plan.taught(
            global_state, local_state, data, lambda s, y: ridge_readout.sums(reduced(global_state, s, plan.units), y)
        )
        return local_state, {**found, IDENTITY: identity(global_state)} if found else {}

    def advance(server: Server, total: Arrays) -> Server:
        model = solved(server.global_state, total, plan.ridge, widen=partial(widened, units=plan.units))
        return server._replace(global_state=_stepped(model), phase=phase)

    def check(server: Server, update: Arrays) -> None:
        rows_of(update, plan.bounds)
        judge({}, update, plan.bounds._replace(regressors=_largest(server.global_state, plan)))

    size = len(plan.bounds.regressors) - plan.units + plan.neurons
    return Phase(learn, SUM, advance, schema_of(shapes_of(plan.outputs, size, balanced=False)), check)


def masking(plan: Plan) -> Phase:
    """Return the exchange in which every gateway sends columns of its own choice."""

    def learn(global_state: Arrays, local_state: Arrays, data: Arrays, rng: np.random.Generator) -> Trained:
        local_state, found = plan.taught(global_state, local_state, data, ridge_readout.sums)
        if not found:
            return local_state, {}
        gram = symmetric(found[GRAM], found[CROSS].shape[1])
        columns = column_masks.elected(gram, plan.units, plan.neurons, plan.alpha, rng)
        return local_state, {**column_masks.masked(found, columns, plan.units), IDENTITY: identity(global_state)}

    def advance(server: Server, total: Arrays) -> Server:
        return server._replace(global_state=_stepped(solved_columns(server.global_state, total, plan.ridge)))

    def counted(_server: Server, update: Arrays) -> Arrays:
        return column_masks.placed(update, plan.bounds, plan.units)

    shapes = column_masks.shapes(plan.neurons, plan.outputs, len(plan.bounds.regressors), plan.units)
    return Phase(learn, SUM, advance, schema_of(shapes), counted=counted)


def solved_columns(global_state: Arrays, total: Arrays, ridge: float) -> Arrays:
    """Return the shared parameters with the readout of a sum of masked columns, or the one before where it is singular;
    the `condition` tells which.
    """
    try:
        weights, condition = column_masks.solve(total, ridge)
    except RankError as error:
        warnings.warn(str(error), RankWarning, stacklevel=2)
        weights, condition = global_state["readout"], UNDETERMINED
    return {**global_state, "readout": weights, CONDITION: np.array(condition)}


def reduced(global_state: Arrays, regressors: Array, units: int) -> Array:
    """Return regressors (n, M) with their k elected units, or k coordinates, in place of all N units."""
    if DIRECTIONS in global_state:
        states = regressors[:, :units].astype(np.float64) @ global_state[DIRECTIONS]
    else:
        states = regressors[:, global_state[ELECTED]]
    return np.concatenate([states, regressors[:, units:]], axis=1)


def widened(global_state: Arrays, weights: Floats, units: int) -> Floats:
    """Return a readout (c, k + M - N) of `reduced` regressors as one of all (c, M); a unit left out has none."""
    if DIRECTIONS in global_state:
        chosen = global_state[DIRECTIONS].shape[1]
        states = weights[:, :chosen] @ global_state[DIRECTIONS].T.astype(np.float64)
    else:
        chosen = len(global_state[ELECTED])
        states = np.zeros((len(weights), units))
        states[:, global_state[ELECTED]] = weights[:, :chosen]
    return np.concatenate([states, weights[:, chosen:]], axis=1)


def _largest(global_state: Arrays, plan: Plan) -> Floats:
    """Return the largest size of each reduced regressor: states are at most one."""
    of_states = np.abs(global_state[DIRECTIONS]).sum(axis=0) if DIRECTIONS in global_state else np.ones(plan.neurons)
    return np.concatenate([of_states, plan.bounds.regressors[plan.units :]])


def _stepped(global_state: Arrays) -> Arrays:
    return {**global_state, STEP: np.asarray(global_state[STEP] + 1)}
