"""Federated averaging (McMahan et al. 2017, Algorithm 1) of the linear detector, and by its settings what grew from it.

A round: every gateway starts from the shared weights w, improves them on its own rows (`local_linear`) and sends n·Δw
and n; the cloud adds rate · ΣnΔw / Σn (`averaging`). Nothing of the data stays in the cloud; centre, scale and
multipliers stay on the gateway. The names of `registry.ALGORITHMS` that build on this are defaults of its settings:

    fedprox        mu = 0.1      gateways pay µ/2 |w - w_t|² for moving (Li et al. 2020, Algorithm 2)
    fedper         share = 0.5   a part of the weights is no one else's (Arivazhagan et al. 2019, arXiv 1912.00818)
    fedavg-median  robust        a mean that liars cannot move at will (`robust_rules`, which names the papers); and so
                                 fedavg-trimmed-mean, fedavg-krum, fedavg-multi-krum and fedavg-clipped

FedPer splits a network into base layers and personal layers. This detector has one layer, so it is split by the
components of its random map, one block of which is as good as another. A gateway that has time for fewer epochs than
the others (`EPOCHS` in its data) counts with what it did, as FedProx has it; one that is too late is not waited for.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedgate.models.detectors.base import linear
from fedgate.models.detectors.base.checks import MOST_ROWS
from fedgate.models.federated.averaging.averaging import averaging
from fedgate.models.federated.averaging.local_linear import (
    Descent,
    Dual,
    LocalSolver,
    at_home,
    begin,
    each_alone,
    on_a_map,
    solver_for,
)
from fedgate.models.federated.averaging.server_optimiser import ServerOptimiser
from fedgate.models.federated.defences.robust_mean import Liars, Robust, with_robust_mean
from fedgate.models.federated.protocol.algorithm import (
    MAX_SAMPLES,
    Algorithm,
    Count,
    Normalisation,
    NotNegative,
    Positive,
    Share,
    personal_tensors,
)


def fedavg(
    feature_count: Count,
    *,
    loss: linear.Loss = "one-class",
    local: LocalSolver | None = None,
    components: Annotated[int, Field(ge=0)] = 256,
    gamma: Positive | None = None,
    nu: Share = 0.1,
    decay: NotNegative = 1e-3,
    epochs: Count = 5,
    batch: Count = 32,
    learning_rate: Positive | None = None,
    mu: NotNegative = 0.0,
    share: Share | None = None,
    robust: Robust | None = None,
    liars: Liars | None = None,
    rate: Positive = 1.0,
    server_optimiser: ServerOptimiser | None = None,
    largest_change: Positive = 1e3,
    rounds: Count = 20,
    max_samples: Count = MAX_SAMPLES,
    most_rows: Count = MOST_ROWS,
    normalisation: Normalisation = "own",
) -> Algorithm:
    """Federated averaging of the linear detector.

    :param loss: `one-class` without labels, `logistic` with them. To the first belong `nu` and `most_rows`, rows that
        a gateway trains on at most, to the second `decay`.
    :param local: how a gateway trains, see `local_linear`; not given, `dual` without labels and `sgd` with them.
    :param components: size M of the random Fourier map, 0 for none.
    :param gamma: its width; not given, from the distances of rows over all gateways, in one exchange more.
    :param nu: cap on a multiplier and share of rows outside the border.
    :param batch: rows of one step of `sgd`.
    :param learning_rate: its step, not given 1 of the logistic loss, and of the other, where it is at most 1, ν over
        the mean square of a row; of `dual-sgd` η, not given and at most what no row overshoots with.
    :param mu: weight µ of the proximal term.
    :param share: of the components, whose weights are averaged, while the others stay; not given, all are.
    :param robust: which mean is taken of the changes, and `liars` the share of them that it must stand.
    :param rate: step of the server along the averaged change; 1 is plain averaging, and with more of it the duals need
        not settle, and near 2 they leave the range in which updates are admitted.
    :param server_optimiser: in place of `rate`, of `sgd` alone: momentum, or an adaptive step of the cloud.
    :param largest_change: longest change of the weights, and of the border, that one update may ask for; under the
        one-class loss with a map the bounds follow from `nu`.
    :param max_samples: most rows that one gateway counts for.
    """
    solver = solver_for(loss, local, learning_rate)
    _check(solver, components, share, robust, liars, server_optimiser)
    training: Dual | Descent = Dual(nu, epochs, most_rows, mu, solver, learning_rate)
    if solver == "sgd":
        square = 1.0 if components else float(feature_count)
        training = Descent(loss, nu, decay, epochs, batch, learning_rate, most_rows, mu, square)
    shared_count = None if share is None else max(round(share * components), 1)
    phase = averaging(
        training.improve if shared_count is None else at_home(training.improve, shared_count),
        training.judge if loss == "one-class" and components else None,
        linear.TRAINED,
        largest_change=largest_change,
        rate=rate,
        server_optimiser=server_optimiser,
        max_samples=max_samples,
        normalisation=normalisation,
        role="delta" if solver == "sgd" else "full",
    )
    start = begin(feature_count, components, gamma, loss, shared_count)
    personal = (*personal_tensors(normalisation), *(() if share is None else (linear.HOME,)))
    algorithm = Algorithm("linear", start, (phase,), rounds, personal, labels=loss == "logistic")
    if robust is not None:
        if solver != "sgd":
            algorithm = algorithm._replace(phases=(each_alone(phase),))
        algorithm = with_robust_mean(algorithm, robust.against(liars))
    return on_a_map(algorithm, gamma, components, normalisation)


def _check(
    solver: LocalSolver,
    components: int,
    share: float | None,
    robust: Robust | None,
    liars: float | None,
    server_optimiser: ServerOptimiser | None,
) -> None:
    """Raise `ValueError` for settings that do not go together."""
    if share is not None and components == 0:
        raise ValueError(f"share {share:g} given with components 0, expected a map: one feature is no copy of another")
    if liars is not None and robust is None:
        raise ValueError(f"liars {liars:g} given without 'robust', expected both or none: a plain mean stands no liar")
    if server_optimiser is not None and solver != "sgd":
        raise ValueError(
            f"server_optimiser given for local {solver!r}, expected 'sgd': gateways send whole parts of a dual, of "
            "which any other combination than their mean is no solution"
        )
