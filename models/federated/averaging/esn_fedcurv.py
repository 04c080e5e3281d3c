"""Federated curvature on the readout of an echo state network (Shoham et al. 2019; federated-esn paper, Eq. 2.16-2.18).

FedAvg in which a gateway may leave the others' readouts only where that costs them little: to its loss it adds

    λ Σ_ij (U - u)_ij W_ij² - 2 (V - v)_ij W_ij,   U = Σ_k D_k,  V = Σ_k D_k ⊙ W_k

with D_k the diagonal Fisher information of gateway k at the readout W_k it ended with, in closed form and without
labels (`readout_descent.fisher`), U and V over those whose updates were counted last, and u, v the gateway's own share
in them. It sends n·ΔW, n, D and D ⊙ W; its share stays with it. A gateway that was not counted has no share: `COUNTED`
says so, and `step` whether the sums it received are those its update went into.

The thesis as printed cancels itself out: its Fisher information is that of the softmax of one output, which is one
whatever W is, and its penalty is taken outside the gradient's tape. Its form with these two mended and nothing else
stands beside the study that measures it (`firmware_sim/studies/literal/printed_fedcurv.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from fedgate.models.arrays import COUNTED, Array, Arrays, Floats
from fedgate.models.detectors.esn.gradient_readout import (
    Descent,
    Examples,
    Optimiser,
    Pull,
    descended,
    fisher,
)
from fedgate.models.detectors.esn.network import Classifier
from fedgate.models.federated.averaging.averaging import SAMPLES, SLACK, STEP
from fedgate.models.federated.averaging.esn_fedavg import (
    CLASSIFY,
    READOUT,
    RECIPE,
    Averaging,
    ClassWeights,
    averaging,
    begin,
)
from fedgate.models.federated.closed_form.readout_sums import bounds_of
from fedgate.models.federated.closed_form.series import traits_of
from fedgate.models.federated.protocol.algorithm import (
    MAX_SAMPLES,
    Algorithm,
    Count,
    Normalisation,
    NotNegative,
    Phase,
    Positive,
    Server,
    Trained,
    personal_tensors,
)
from fedgate.models.federated.protocol.schema import Field, UpdateError

CURVATURE, CURVED = "curvature", "curved_readout"  # D and D ⊙ W of one gateway
ALL_CURVATURE, ALL_CURVED = "fleet.curvature", "fleet.curved_readout"  # their sums
SENT, SHARE = "sent.", "share."  # what a gateway sent last, and what of its own is in the sums it received
DEFAULT_PENALTY = 1.0


class Part(NamedTuple):
    """One gateway's part in the sums: D and D ⊙ W, both (c, M)."""

    curvature: Floats
    curved: Floats


# (shared, own part in the sums, rows, how it descends, rng) -> the readout that a gateway ends with, and its part in
# the next sums.
Local = Callable[[Arrays, Part, Examples, Descent, "np.random.Generator"], tuple[Floats, Part]]


def share_of(global_state: Arrays, local_state: Arrays, data: Arrays) -> Part:
    """Return the gateway's own part in the sums it received, zero where it has none.

    What it sent last is in them if it was counted and the sums are one step on. Asked again at the step at which it
    sent, nobody was counted: then the sums are the old ones, and so is its share.
    """
    step, counted = int(global_state[STEP]), bool(data.get(COUNTED, True))
    for prefix, at_step in ((SENT, step - 1 if counted else None), (SHARE, step)):
        if prefix + STEP in local_state and int(local_state[prefix + STEP]) == at_step:
            return Part(local_state[prefix + CURVATURE], local_state[prefix + CURVED])
    return Part(np.zeros_like(global_state[READOUT]), np.zeros_like(global_state[READOUT]))


def _remembered(prefix: str, part: Part, step: int) -> Arrays:
    named = {CURVATURE: part.curvature, CURVED: part.curved, STEP: np.array(step, dtype=np.int64)}
    return {prefix + name: array for name, array in named.items()}


def pull_of(global_state: Arrays, share: Part, penalty: float) -> Pull:
    """Return the slope of the penalty: 2λ ((U - u) ⊙ W - (V - v)); a sum of shares is never below one of them."""
    others = np.maximum(global_state[ALL_CURVATURE] - share.curvature, 0.0)
    others_curved = global_state[ALL_CURVED] - share.curved

    def pull(readout: Floats, _states: Array) -> Floats:
        return np.asarray(2.0 * penalty * (others * readout - others_curved))

    return pull


def curved(step: Averaging, local: Local) -> Phase:
    """Return the one exchange around what a gateway does with its rows."""

    def improve(
        global_state: Arrays,
        local_state: Arrays,
        data: Arrays,
        rows: Examples,
        descent: Descent,
        rng: np.random.Generator,
    ) -> tuple[Arrays, Floats]:
        share, at = share_of(global_state, local_state, data), int(global_state[STEP])
        moved, part = local(global_state, share, rows, descent, rng)
        return {**local_state, **_remembered(SHARE, share, at), **_remembered(SENT, part, at)}, moved

    average = step.exchange(improve)

    def learn(global_state: Arrays, local_state: Arrays, data: Arrays, rng: np.random.Generator) -> Trained:
        local_state, update = average.learn(global_state, local_state, data, rng)
        return local_state, update | {name: local_state[SENT + name] for name in (CURVATURE, CURVED) if update}

    def advance(server: Server, total: Arrays) -> Server:
        server = average.advance(server, total)
        sums = {ALL_CURVATURE: total[CURVATURE], ALL_CURVED: total[CURVED]}
        return server._replace(global_state={**server.global_state, **sums})

    schema = {**average.schema, CURVATURE: Field(READOUT, "sum"), CURVED: Field(READOUT, "sum")}
    return average._replace(learn=learn, advance=advance, schema=schema)


def check_curvature(server: Server, update: Mapping[str, Array], most: Floats) -> None:
    """Raise `UpdateError` for a Fisher information that no rows give, or that does not belong to the readout beside it.

    `most` (M,) is what p (1 - p) s² can be: p (1 - p) is at most 1/4, a state at most 1 and an input at most `clip`.
    """
    found = update[CURVATURE]
    if found.min() < 0.0 or (found > most * (1.0 + SLACK)).any():
        worst = int((found / most).max(axis=0).argmax())
        raise UpdateError(
            f"{CURVATURE}: expected 0 to {most[worst]:g} in column {worst}, got {found[:, worst].min():g} to "
            f"{found[:, worst].max():g}"
        )
    expected = found * (server.global_state[READOUT] + update[READOUT] / update[SAMPLES])
    apart = float(np.abs(update[CURVED] - expected).max())
    if apart > SLACK * max(float(np.abs(expected).max()), 1.0):
        raise UpdateError(f"{CURVED}: expected {CURVATURE} times the readout, got numbers up to {apart:.3g} apart")


def readout_fedcurv(step: Averaging, penalty: float, feature_count: int, rounds: int) -> Algorithm:
    """Return FedCurv with settings that are checked already."""

    largest = bounds_of(step.network, feature_count, step.max_samples).regressors  # (M,)

    def more(global_state: Arrays) -> Arrays:
        nothing = np.zeros_like(global_state[READOUT])
        recipe = {RECIPE + "penalty": np.array(penalty)}
        return {**global_state, ALL_CURVATURE: nothing, ALL_CURVED: nothing, **recipe}

    def local(
        global_state: Arrays, share: Part, rows: Examples, descent: Descent, rng: np.random.Generator
    ) -> tuple[Floats, Part]:
        moved = descended(global_state[READOUT], rows, rng, descent, pull_of(global_state, share, penalty))
        found = fisher(moved, rows.states)
        return moved, Part(found, found * moved)

    phase = curved(step, local)

    def check(server: Server, update: Arrays) -> None:
        phase.check(server, update)
        check_curvature(server, update, 0.25 * np.square(largest))

    personal = personal_tensors(step.normalisation)
    phases = (phase._replace(check=check),)
    return Algorithm(
        "esn", begin(step, feature_count, more), phases, rounds, personal, labels=True, traits=traits_of(step.network)
    )


def esn_fedcurv(
    feature_count: Count,
    *,
    network: Classifier = CLASSIFY,
    penalty: NotNegative = DEFAULT_PENALTY,
    epochs: Count = 1,
    batch: Count = 20,
    optimiser: Optimiser = "adam",
    learning_rate: Positive = 0.1,
    class_weights: ClassWeights | None = None,
    rate: Positive = 0.1,
    largest_change: Positive = 1e3,
    rounds: Count = 78,
    max_samples: Count = MAX_SAMPLES,
    normalisation: Normalisation = "own",
) -> Algorithm:
    """FedCurv of the readout of an echo state network over F features; settings without a word here as in `esn_fedavg`.

    :param penalty: λ. With 0 every change is that of FedAvg.
    """
    step = averaging(
        network,
        Descent(epochs, batch, optimiser, learning_rate),
        class_weights,
        rate=rate,
        largest_change=largest_change,
        max_samples=max_samples,
        normalisation=normalisation,
    )
    return readout_fedcurv(step, penalty, feature_count, rounds)
