"""FedProx (Li et al. 2020, "Federated Optimization in Heterogeneous Networks", Eq. 2) of the linear detector.

FedAvg with µ/2 |w - w_t|² added to what every gateway minimises: it may train long and still not run away from the
shared model w_t. The term is inside the solver: one more pull in the descent along the logistic loss, and in the
one-class SVM, where each coordinate has its optimum in closed form, the 1 + µ of `dual_ascent.ascend_in_map`. What is
sent and what stays is as in FedAvg; with µ = 0 so is every byte.

Of the one-class loss a gateway that has no part in w_t (new, left out, or with other rows) starts afresh and solves its
own rows without the term: what it sends is a whole contribution and no step from w_t (`local_dual`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedgate.models.detectors import linear
from fedgate.models.detectors.training import MOST_ROWS
from fedgate.models.federated.algorithm import MAX_SAMPLES, Algorithm, Count, Positive, Share, personal_tensors
from fedgate.models.federated.fedavg import (
    Logistic,
    NotNegative,
    OneClass,
    averaging,
    begin,
    on_a_map,
    tally_of,
    trainer,
)


def fedprox(
    feature_count: Count,
    *,
    mu: NotNegative = 0.1,
    loss: linear.Loss = "one-class",
    components: Annotated[int, Field(ge=0)] = 256,
    gamma: Positive | None = None,
    nu: Share = 0.1,
    decay: NotNegative = 1e-3,
    epochs: Count = 5,
    batch: Count = 32,
    learning_rate: Positive = 1.0,
    rate: Positive = 1.0,
    largest_change: Positive = 1e3,
    rounds: Count = 20,
    max_samples: Count = MAX_SAMPLES,
    most_rows: Count = MOST_ROWS,
    normalisation: Literal["own", "none"] = "own",
) -> Algorithm:
    """FedProx of the linear detector; all settings but `mu` are those of `fedavg`.

    :param mu: weight µ of the proximal term.
    """
    one_class = OneClass(nu, epochs, most_rows, mu)
    logistic = Logistic(decay, epochs, batch, learning_rate, largest_change, mu)
    improve, judge = trainer(loss, components, one_class, logistic)
    phase = averaging(
        improve,
        judge,
        linear.TRAINED,
        rate=rate,
        max_samples=max_samples,
        normalisation=normalisation,
        tally=tally_of(loss),
    )
    start, personal = begin(feature_count, components, gamma, loss), personal_tensors(normalisation)
    algorithm = Algorithm("linear", start, (phase,), rounds, personal, labels=loss == "logistic")
    return on_a_map(algorithm, gamma, components, normalisation)
