"""Any algorithm on compensated features: what temperature, or any declared covariate, explains is taken off first.

Weather moves features more than damage does, and alike on all gateways of a kind (Sohn 2007, Phil. Trans. R. Soc. A
365:539; Cross et al. 2013, Mech. Syst. Signal Process. 35:16). One exchange more comes first, once in a training. With
z a row of features and c its covariate columns, gateways send n, Σz, Σz² and Σczᵀ, which are sums and may travel
masked. The cloud regresses the pooled rows on c (least squares, `compensation.*` in `global_state`). Each gateway then
fits slopes of its own, drawn towards the fleet's as if so many rows of it had been seen with them (`compensate_prior`):

    B = (n C + prior C') ⁺ (n D + prior C' B')         C = cov(c), D = cov(c, x), the fleet's with a prime

A gateway that saw one season borrows the others from those that saw more. Own slopes and deviations stay with it and
are inputs of the graph, the fleet's are their defaults. The inner algorithm sees (x - (c - mean) B) / deviation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field as Setting

from fedgate.models.arrays import FEATURES, Array, Arrays, under
from fedgate.models.detectors.base.compensation import (
    COMPENSATION,
    DEVIATION,
    SLOPES,
)
from fedgate.models.detectors.base.compensation import compensated as apart_from_weather
from fedgate.models.detectors.base.moments import PRODUCTS, SAMPLES, SUM_OF_ROWS
from fedgate.models.features.covariates import SQUARES, Covariates
from fedgate.models.federated.closed_form.readout_sums import NEGATIVE, root_of
from fedgate.models.federated.closed_form.subspace import (
    LARGEST_FEATURE,
    check_levels,
    check_own_units,
    summing,
)
from fedgate.models.federated.protocol.algorithm import (
    MAX_SAMPLES,
    Algorithm,
    Normalisation,
    NotNegative,
    Phase,
    Server,
    Trained,
    healthy_rows,
    normalise,
    personal_tensors,
)
from fedgate.models.federated.protocol.composition import MOMENTS, check_composition, having
from fedgate.models.federated.protocol.feature_step import begin_with
from fedgate.models.federated.protocol.namespace import hidden, prefixed
from fedgate.models.federated.protocol.reducer import SUM
from fedgate.models.federated.protocol.schema import Field, UpdateError, counting
from fedgate.models.federated.wrappers.whitening import without_units
from fedgate.models.options import Listed

PERSONAL = (COMPENSATION + SLOPES, COMPENSATION + DEVIATION)

Column = Annotated[int, Setting(ge=0)]


def with_compensation(
    factory: Callable[..., Algorithm],
    feature_count: int,
    settings: Mapping[str, Any],
    *,
    compensate: Listed[tuple[Column, ...]],
    compensate_prior: NotNegative = 100.0,
) -> Algorithm:
    """Return the algorithm of `factory` on features without what their covariates explain.

    :param settings: of the inner algorithm; its `normalisation` decides on the units in which sums are taken. With
        `own` features are put into deviations again after compensation, with `none` they keep their units.
    :param compensate: columns of the covariates, from 0; the inner algorithm does not see them.
    :param compensate_prior: rows for which the fleet's regression counts beside the rows of a gateway.

    Raises `ValueError` for a column that does not exist or is given twice, or where no feature is left.
    """
    columns = _columns(compensate, feature_count)
    mode, settings = without_units(factory, settings)
    inner = factory(feature_count - len(columns), **settings)
    check_composition(inner, "compensate")
    covariates = Covariates(columns, np.setdiff1d(np.arange(feature_count), columns), mode == "own", compensate_prior)
    personal = tuple(dict.fromkeys((*personal_tensors(mode), *PERSONAL, *inner.personal)))
    phases = [_on_compensated(phase, covariates) for phase in inner.phases]
    compensated = having(inner, "compensate", MOMENTS, personal=personal)
    return begin_with(_gathering(covariates), compensated, phases)


def _columns(columns: tuple[int, ...], feature_count: int) -> Array:
    unknown = [column for column in columns if not 0 <= column < feature_count]
    if unknown:
        raise ValueError(f"compensate: expected columns from 0 to {feature_count - 1}, got {unknown[0]}")
    if len(set(columns)) < len(columns):
        raise ValueError(f"compensate: expected every column once, got {list(columns)}")
    if not 0 < len(columns) < feature_count:
        raise ValueError(
            f"compensate: expected one column or more, and fewer than the {feature_count} features, of which one at "
            f"least is left to be judged; got {list(columns)}"
        )
    return np.array(sorted(columns), dtype=np.int64)


def _gathering(covariates: Covariates) -> Phase:
    """Return the exchange in which gateways send the sums of the regression."""
    features = len(covariates.columns) + len(covariates.others)
    largest = MAX_SAMPLES * LARGEST_FEATURE**2
    schema = {
        SAMPLES: counting(MAX_SAMPLES),
        SUM_OF_ROWS: Field((features,), "sum", largest=largest),
        SQUARES: Field((features,), "sum", least=0.0, largest=largest),
        PRODUCTS: Field((len(covariates.columns), features), "sum", largest=largest),
    }

    def sums(_global_state: Arrays, z: Array) -> Arrays:
        if not covariates.own_units:
            check_levels(z, "set normalisation to 'own', which takes features in the units of each gateway")
        return covariates.sums(z)

    def advance(server: Server, total: Arrays) -> Server:
        step = prefixed(COMPENSATION, covariates.of_fleet(total))
        return server._replace(global_state={**server.global_state, **step}, phase=1)

    def check(_server: Server, update: Arrays) -> None:
        _check_possible(covariates, update)
        if covariates.own_units:
            check_own_units(float(update[SQUARES].mean() / update[SAMPLES]), update[SUM_OF_ROWS] / update[SAMPLES])

    return Phase(summing(sums, _mode(covariates), MAX_SAMPLES), SUM, advance, schema, check)


def _check_possible(covariates: Covariates, update: Arrays) -> None:
    """Raise `UpdateError` where no rows could have these sums: what 1 and c explain of a column is more than it has."""
    squares, sums = update[SQUARES], update[SUM_OF_ROWS][None]
    products = np.concatenate([sums, update[PRODUCTS]])  # (1 + q, F) of 1 and c with every column
    ones = np.concatenate([update[SAMPLES][None, None], sums[:, covariates.columns].T])  # (1 + q, 1)
    gram = np.concatenate([ones, products[:, covariates.columns]], axis=1)
    unit = np.sqrt(np.concatenate([update[SAMPLES][None], squares[covariates.columns]]))
    unit, deviation = np.where(unit > 0.0, unit, 1.0), np.sqrt(np.where(squares > 0.0, squares, np.inf))
    shares, gram = products / np.outer(unit, deviation), gram / np.outer(unit, unit)
    if (products[:, squares == 0.0] != 0.0).any() or not np.allclose(gram, gram.T, rtol=0.0, atol=NEGATIVE):
        raise UpdateError(f"{PRODUCTS}: expected symmetric ones, and none of a column of zeros, got others")
    root = root_of(gram, "expected products of covariates")
    explained = float(np.square(np.linalg.solve(root, shares)).sum(axis=0).max())
    if explained > 1.0 + 2.0 * NEGATIVE:
        raise UpdateError(f"{PRODUCTS}: expected to explain at most 1 of what {SQUARES} say, got {explained:.3g}")


def _on_compensated(phase: Phase, covariates: Covariates) -> Phase:
    """Return a phase of the inner algorithm as one that sees compensated features and keeps the step in
    `global_state`."""

    inner = hidden(phase, COMPENSATION)

    def learn(global_state: Arrays, local_state: Arrays, data: Arrays, rng: np.random.Generator) -> Trained:
        if len(data[FEATURES]) == 0:  # of a gateway that leaves: what it once gave must be taken back
            z = np.zeros((0, len(covariates.others)))
        else:
            local_state, z = normalise(local_state, data, _mode(covariates))
            z = np.where(np.abs(z) <= covariates.noise, 0.0, z)  # whose rounding a later step could take for something
            fleet = under(COMPENSATION, global_state)
            if not under(COMPENSATION, local_state):
                local_state = {
                    **local_state,
                    **prefixed(COMPENSATION, covariates.of_gateway(fleet, healthy_rows(data, z))),
                }
            z = apart_from_weather({**fleet, **under(COMPENSATION, local_state)}, z)
        return inner.learn(global_state, local_state, {**data, FEATURES: z}, rng)

    return inner._replace(learn=learn)


def _mode(covariates: Covariates) -> Normalisation:
    return "own" if covariates.own_units else "none"
