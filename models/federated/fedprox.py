"""FedProx (Li et al. 2020, "Federated Optimization in Heterogeneous Networks", Eq. 2) of the linear detector.

FedAvg with µ/2 |w - w_t|² added to what every gateway minimises: it may train long and still not run away from the
shared model w_t. The term is inside the solver: one more pull in the descent along the logistic loss, and in the
one-class SVM, where each coordinate has its optimum in closed form, the 1 + µ of `dual_ascent.ascend_in_map`. What is
sent and what stays is as in FedAvg; with µ = 0 so is every byte.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from models.detectors import linear
from models.detectors.training import MOST_ROWS
from models.federated.algorithm import Algorithm, Count, Positive, Share, personal_tensors
from models.federated.fedavg import Logistic, NotNegative, OneClass, averaging, begin


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
    rounds: Count = 20,
    max_samples: Count = 100_000,
    most_rows: Count = MOST_ROWS,
    normalisation: Literal["own", "none"] = "own",
) -> Algorithm:
    """FedProx of the linear detector; all settings but `mu` are those of `fedavg`.

    :param mu: weight µ of the proximal term.
    """
    one_class = OneClass(nu, epochs, most_rows, mu)
    logistic = Logistic(decay, epochs, batch, learning_rate, mu)
    improve = one_class.improve if loss == "one-class" else logistic.improve
    phase = averaging(improve, linear.TRAINED, rate=rate, max_samples=max_samples, normalisation=normalisation)
    start, personal = begin(feature_count, components, gamma, loss), personal_tensors(normalisation)
    return Algorithm("linear", start, (phase,), rounds, personal, labels=loss == "logistic")
