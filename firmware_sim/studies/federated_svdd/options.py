"""What the study of Ensemble SVDD and Support Vector Election may be told: grids, forms, and the paper's figures."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedgate.config.settings import settings
from fedgate.firmware_sim.studies.engine.study import StudyOptions
from fedgate.models.arrays import Array, Arrays, Floats, generator
from fedgate.models.detectors.svm import svdd

SVE, ESVDD = "support-vector-election", "ensemble-svdd"
FEDERATED = (SVE, ESVDD)
DISTANCE = "distance"
CENTRAL = ("ocsvm", "svdd", DISTANCE)

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, le=1)]
# The figures of one set: OC-SVM, SVDD, SVE best, ESVDD best, SVE worst, ESVDD worst.
Printed = Annotated[list[float], Field(min_length=6, max_length=6)]


class Form(settings.Table):
    """One way to train: which setting takes the values, between which bounds they are drawn, and on which rows."""

    caps: Literal["c", "nu"]
    low: Share
    high: Share
    train_on: Literal["all", "normal"]


class Options(StudyOptions):
    """The keys of an experiment file of this study.

    :param table: `plasticity` trains and scores on all rows (Table 1), `generalisation` is nested cross-validation
        (Table 2), `membership` attacks what is sent.
    :param sets: file in the folder `tabular` of each set.
    :param values: how many values of C or ν are drawn.
    :param taus: for SVE alone, at all clients, iid: how much hangs on τ.
    :param paper: the figures of the paper's table by set, in the order of its columns.
    :param within: how far the best configuration may lie below the paper's.
    """

    table: Literal["plasticity", "generalisation", "membership"]
    sets: dict[str, str]
    forms: dict[str, Form]
    clients: list[Count]
    fractions: list[Share]
    splits: list[Literal["iid", "biased"]]
    anonymise: list[bool]
    values: Count = 10
    gamma: Annotated[float, Field(gt=0)] = 1.0
    sigma: Annotated[float, Field(gt=0)] = 1.0
    tau: Annotated[float, Field(gt=0)] = 1e-3
    taus: list[Annotated[float, Field(gt=0)]] = Field(default_factory=list)
    folds: Annotated[int, Field(ge=2)] = 3
    repeats: Count = 1
    paper: dict[str, Printed] = Field(default_factory=dict)
    within: float = 0.02


def drawn_values(options: Options, form: Form) -> Floats:
    """Return the values of C or ν, uniform between the form's bounds and the same for every cell."""
    return generator(options.seed, 0, "values").uniform(form.low, form.high, options.values)


def settings_of(options: Options, form: Form, method: str, value: float, *, anonymise: bool) -> dict[str, object]:
    """Return the settings of a federated method in a form; nothing is thinned, as the paper thins nothing."""
    many = 100_000
    common: dict[str, object] = {
        form.caps: value,
        "gamma": options.gamma,
        "anonymise": anonymise,
        "normalisation": "none",
        "max_rows": many,
        "max_vectors": many,
    }
    if method == SVE:
        return common | {"sigma": options.sigma, "tau": options.tau, "max_total": many}
    return common | {"max_model_vectors": many}


def fitted_sphere(options: Options, form: Form, value: float, z: Array) -> Arrays:
    """Return the SVDD of rows z (n, F), n >= 2, in a form, fitted to all of them."""
    cap = value if form.caps == "c" else None
    return svdd.fit(z, nu=value, c=cap, gamma=options.gamma, most_rows=max(len(z), 2))
