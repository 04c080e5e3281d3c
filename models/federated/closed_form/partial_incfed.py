"""Partial IncFed: the sums of some units of an echo state network instead of all, to save bytes (A. Di Mauro,
"Federated Echo State Networks for Stress Prediction in the Automotive Use Case", Pisa 2022, Appendix B, Eq. B.11 to
B.17; `global_state` and `principal` are ours).

A gateway sends what IncFed does (`incfed`), but of k units; what `select` says is who chooses them:

    shared       all send the same: a first exchange sums Σ s² of each unit, the cloud elects the k largest
    principal    none are left out: k coordinates of the states along directions that the cloud finds without any data
                 (`reservoir_directions`) and hands out once
    importance   the paper's: every gateway its own columns of A and B, a share `alpha` by its importance, the sums of
                 the rows of its B, and others at random, to explore (Eq. B.15, B.16)
    random       the paper's control: every gateway its own columns, at random; `importance` with an alpha of 0

Under `global_state` and `principal` what is sent is the sum of a smaller network: symmetric, exact, fit for masks, with
numbers up to max_samples · clip², or max_samples · N if that is more. Under the paper's two the columns travel as
indices and values, and the cloud puts them into their places before it adds them (`column_masks`), so that they cannot
be masked without giving up what they save. The sum is not symmetric, and with the paper's ridge of 1e-6 so nearly
singular that the readout is worthless; the default ridge, twice the mean eigenvalue of the sum before it was masked,
mends that. Direct inputs and the constant always travel.

The directions of `principal` cost every gateway a download of 4 · N · k bytes. Where those count like the ones that are
sent, think of a smaller network under `incfed` first.

Unlike IncFed it is not incremental: a gateway sends all of its contribution in every round, nothing is kept of the
rounds before, and the readout is that of those who took part.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedgate.models.detectors.esn import esn
from fedgate.models.detectors.esn.network import Network
from fedgate.models.federated.closed_form.incfed import (
    DEFAULT_RIDGE,
    NETWORK,
    of_sums,
    untrained,
)
from fedgate.models.federated.closed_form.partial_phases import DIRECTIONS, Plan, electing, masking, reducing
from fedgate.models.federated.closed_form.readout_sums import bounds_of
from fedgate.models.federated.closed_form.reservoir_directions import driven_directions
from fedgate.models.federated.protocol.algorithm import (
    MAX_SAMPLES,
    Algorithm,
    Count,
    Normalisation,
    NotNegative,
    Server,
)
from fedgate.models.federated.protocol.composition import OWN_COLUMNS, having

Select = Literal["shared", "principal", "importance", "random"]
Alpha = Annotated[float, Field(ge=0, le=1)]

COLUMN_RIDGE = 2.0  # in mean eigenvalues of the sum before it was masked
LEAST_COLUMN_RIDGE = 0.3  # below it the readout was found to collapse
COVER = 1.5  # how often the paper wants each unit sent, over all gateways of a cohort
UNITS_A_NEURON = 4  # k is a fourth of the units where nothing says it


def partial_incfed(
    feature_count: Count,
    *,
    network: Network = NETWORK,
    select: Select = "shared",
    neurons: Count | None = None,
    cohort: Count | None = None,
    alpha: Alpha = 0.3,
    ridge: NotNegative | None = None,
    fewest_rows: Count = 1,
    rounds: Count = 1,
    max_samples: Count = MAX_SAMPLES,
    normalisation: Normalisation = "own",
) -> Algorithm:
    """Federated ridge regression of the readout from the sums of k of the N units, over F features.

    :param select: who chooses them; `importance` and `random` for task `classify` only, since columns do not tell the
        residual of a prediction.
    :param neurons: k; not given, 1.5 N / `cohort`, the paper's rule for so many gateways, at most N; and neither given,
        a fourth of N.
    :param alpha: share of k that is chosen by importance under `importance`; the others explore.
    :param ridge: β in mean eigenvalues of the summed Gram matrix before it was masked; not given, 0.01, and 2 where
        every gateway has columns of its own, where less than 0.3 lets the readout collapse and is refused.
    :param fewest_rows: a gateway with fewer time steps to learn from sends nothing; see `incfed`.
    :param max_samples: most time steps that one gateway counts for; of more, its sums are scaled down.

    Raises `ValueError` for settings that do not go together, and names them.
    """
    of_its_own = select in ("importance", "random")
    plan = Plan(
        network,
        network.outputs(feature_count),
        _neurons(network.layers * network.units, neurons, cohort),
        0.0 if select == "random" else alpha,
        _ridge(ridge, of_its_own=of_its_own),
        fewest_rows,
        normalisation,
        bounds_of(network, feature_count, max_samples),
    )
    if of_its_own and network.task != "classify":
        raise ValueError(f"select {select!r} given for task {network.task!r}, expected 'shared' or 'principal'")

    def start(rng: np.random.Generator) -> Server:
        global_state = untrained(esn.initial(rng, network, feature_count))
        if select == "principal":
            global_state[DIRECTIONS] = driven_directions(global_state, plan.neurons, network.clip, rng)
        return Server(global_state, {})

    setup = (electing(plan),) * (select == "shared")
    phases = (*setup, masking(plan) if of_its_own else reducing(plan, len(setup)))
    algorithm = of_sums(network, start, phases, rounds, normalisation)
    return having(algorithm, OWN_COLUMNS) if of_its_own else algorithm


def _neurons(units: int, neurons: int | None, cohort: int | None) -> int:
    if neurons is not None and cohort is not None:
        raise ValueError(f"neurons {neurons} and cohort {cohort} given, expected one of them: both say how many units")
    if neurons is not None and neurons > units:
        raise ValueError(f"neurons {neurons} given, expected at most the {units} units there are")
    by_rule = max(units // UNITS_A_NEURON, 1) if cohort is None else max(round(COVER * units / cohort), 1)
    return min(neurons or by_rule, units)


def _ridge(ridge: float | None, *, of_its_own: bool) -> float:
    if ridge is None:
        return COLUMN_RIDGE if of_its_own else DEFAULT_RIDGE
    if of_its_own and ridge < LEAST_COLUMN_RIDGE:
        raise ValueError(
            f"ridge {ridge:g} given, expected at least {LEAST_COLUMN_RIDGE:g} where every gateway has columns of its "
            "own: below it the readout collapses"
        )
    return ridge
