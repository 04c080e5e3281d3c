"""Federated subspace: the principal subspace of all gateways' healthy data in one round (ours).

A gateway sends count, sum and the upper triangle of the second moments of its features; they add up, so the cloud's one
eigen-decomposition gives what the pooled rows would give (Pearson 1901), the sums may travel masked, and no row leaves
a gateway. Centre and scale stay where features are normalised by `own`; with `none` the pooled mean and deviation are
learned too, which is needed where each gateway has seen one narrow condition only: its own units would hide from it how
far healthy data of the others lies.

Later rounds add to what was gathered: total = forget * total + Σ of the round. A row that is sent again counts again,
so a gateway that takes part in more rounds weighs more; with all taking part alike the directions do not change. With
`forget` < 1 a round weighs forget^age, with 0 only the last one counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from models.arrays import FEATURES, Array, Arrays, Floats
from models.detectors.subspace import Which, bordered
from models.federated.algorithm import (
    Algorithm,
    Count,
    Phase,
    Server,
    UpdateError,
    checked,
    normalise,
    personal_tensors,
)
from models.federated.tally import SUM
from models.moments import (
    PRODUCTS,
    SAMPLES,
    SUM_OF_ROWS,
    Reference,
    moments,
    origin,
    reference_of,
    subspace,
    symmetric,
    triangle,
)

SQUARES = "squares"
POINT, UNIT, SKETCH = "reference.point", "reference.unit", "sketch"
# In a gateway's own deviations; beyond this a feature would only spoil the covariance of all.
FARTHEST = 1e3
# Rounding leaves moments this far from positive, beside a diagonal of one.
NEGATIVE = 1e-8

Normalisation = Literal["own", "none"]


def gathering(
    feature_count: int,
    advance: Callable[[Server, Arrays], Server],
    *,
    normalisation: Normalisation,
    max_samples: int,
    sketch_size: int | None = None,
) -> Phase:
    """Return the phase in which gateways send moments, of (z - reference) / unit where `shared` holds a reference.

    Of a gateway with more than `max_samples` rows the moments are scaled down to that count.
    """
    size = feature_count if sketch_size is None else sketch_size

    def train(shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> tuple[Arrays, Arrays]:
        del rng
        if len(data[FEATURES]) == 0:
            return own, {}
        own, z = normalise(own, data, normalisation)
        if POINT in shared:
            z = (z - shared[POINT]) / shared[UNIT]
        return own, capped(moments(z @ shared[SKETCH] if SKETCH in shared else z), max_samples)

    def admit(server: Server, update: Arrays) -> Arrays:
        del server
        shapes = {SAMPLES: (), SUM_OF_ROWS: (size,), PRODUCTS: (triangle(size),)}
        wide = checked(update, shapes)
        check_count(wide, max_samples)
        check_positive(wide)
        if normalisation == "own":
            # A sketch keeps lengths, so one bound on the length serves both.
            count = float(wide[SAMPLES])
            check_distance(np.trace(symmetric(wide[PRODUCTS], size)) / count / feature_count)
        return wide

    return Phase(train, SUM, advance, admit)


def capped(update: Arrays, max_samples: int) -> Arrays:
    """Return moments with the weight of at most `max_samples` rows."""
    share = min(1.0, max_samples / float(update[SAMPLES]))
    return {name: np.asarray(share * array) for name, array in update.items()}


def check_count(update: Arrays, max_samples: int) -> None:
    """Raise `UpdateError` for an absurd number of rows."""
    count = float(update[SAMPLES])
    if not 1 <= count <= max_samples:
        raise UpdateError(f"{SAMPLES}: expected 1 to {max_samples}, got {count:g}")


def check_distance(mean_square: float) -> None:
    """Raise `UpdateError` for rows that lie absurdly far out, in a gateway's own units."""
    if mean_square > FARTHEST**2:
        raise UpdateError(f"expected features within {FARTHEST:g} deviations, got {np.sqrt(mean_square):g} on average")


def check_positive(update: Arrays) -> None:
    """Raise `UpdateError` where no rows could have these moments: [[n, Σz], [Σz, Σzzᵀ]] has a negative eigenvalue."""
    sums = update[SUM_OF_ROWS]
    whole = np.block([[np.reshape(update[SAMPLES], (1, 1)), sums[None]], [sums[:, None], _square(update)]])
    diagonal = np.diag(whole)
    if (diagonal < 0.0).any():
        raise UpdateError(f"{PRODUCTS}: expected sums of squares, got {diagonal.min():g}")
    unit = np.where(diagonal > 0.0, np.sqrt(diagonal), 1.0)
    try:  # far cheaper than the eigenvalues, which are only needed for the message
        np.linalg.cholesky(whole / np.outer(unit, unit) + NEGATIVE * np.eye(len(whole)))
    except np.linalg.LinAlgError:
        least = np.linalg.eigvalsh(whole / np.outer(unit, unit))[0]
        raise UpdateError(f"expected moments of rows, so no negative eigenvalue, got {least:.3g}") from None


def _square(update: Arrays) -> Floats:
    return symmetric(update[PRODUCTS], len(update[SUM_OF_ROWS]))


def referring(feature_count: int, *, normalisation: Normalisation, max_samples: int) -> Phase:
    """Return the exchange that finds the reference: gateways send count, Σx and Σx², `shared` gets mean and
    deviation.
    """

    def train(shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> tuple[Arrays, Arrays]:
        del shared, rng
        if len(data[FEATURES]) == 0:
            return own, {}
        own, z = normalise(own, data, normalisation)
        sums = {SAMPLES: np.array(float(len(z))), SUM_OF_ROWS: z.sum(axis=0), SQUARES: np.square(z).sum(axis=0)}
        return own, capped(sums, max_samples)

    def advance(server: Server, total: Arrays) -> Server:
        if not total:
            return server
        mean = total[SUM_OF_ROWS] / total[SAMPLES]
        found = reference_of(mean, total[SQUARES] / total[SAMPLES] - np.square(mean))
        return server._replace(shared={**server.shared, POINT: found.point, UNIT: found.unit}, phase=1)

    def admit(server: Server, update: Arrays) -> Arrays:
        del server
        wide = checked(update, {SAMPLES: (), SUM_OF_ROWS: (feature_count,), SQUARES: (feature_count,)})
        check_count(wide, max_samples)
        slack = wide[SQUARES] * (1.0 + NEGATIVE) - np.square(wide[SUM_OF_ROWS]) / wide[SAMPLES]
        if (slack < 0.0).any():
            raise UpdateError(f"{SQUARES}: expected at least {SUM_OF_ROWS}² / {SAMPLES}, got {slack.min():.3g} less")
        if normalisation == "own":
            check_distance(float(wide[SQUARES].max() / wide[SAMPLES]))
        return wide

    return Phase(train, SUM, advance, admit)


def orthonormal(rng: np.random.Generator, rows: int, columns: int) -> Floats:
    """Return a random projection (rows, columns) that keeps lengths: QᵀQ = I, the same for all that draw the same."""
    q, r = np.linalg.qr(rng.normal(size=(rows, columns)))
    return np.asarray(q * np.sign(np.diag(r)))


def federated_subspace(
    feature_count: Annotated[int, Field(ge=2)],
    *,
    components: Count = 10,
    which: Which = "both",
    outside: Annotated[float, Field(gt=0, lt=1)] = 0.05,
    sketch: Annotated[int, Field(ge=2)] | None = None,
    reference: Literal["zero", "pooled"] = "zero",
    forget: Annotated[float, Field(ge=0, le=1)] = 1.0,
    rounds: Count = 1,
    max_samples: Count = 100_000,
    normalisation: Normalisation = "own",
) -> Algorithm:
    """Federated principal subspace over F >= 2 features.

    :param components: directions kept; at most F - 1, or sketch - 1, so that a residual is left.
    :param which: what the score measures: `residual`, `distance` inside the subspace, or `both`.
    :param outside: share of normally distributed healthy data past the border.
    :param sketch: gather moments of a random projection on so many numbers: m² instead of F² travel and directions are
        those inside the sketch; `components` + 10 or more keep most of what F would give.
    :param reference: where rows are taken from before they are squared. `zero` is right in own units; with
        normalisation `none` and levels beyond 1e4 deviations, or a sketch, take `pooled`: one exchange more.
    :param forget: weight of all earlier rounds beside a new one.
    """
    if sketch is not None and sketch >= feature_count:
        raise ValueError(f"sketch: expected fewer than the {feature_count} features, got {sketch}; leave it out")

    def start(rng: np.random.Generator) -> Server:
        return Server({} if sketch is None else {SKETCH: orthonormal(rng, feature_count, sketch)}, {})

    def place(shared: Arrays) -> Reference:
        zero = origin(feature_count, own_units=normalisation == "own")
        return zero._replace(point=shared[POINT], unit=shared[UNIT]) if POINT in shared else zero

    def advance(server: Server, total: Arrays) -> Server:
        if not total:
            return server
        kept = {name: np.asarray(forget * server.kept.get(name, 0.0) + array) for name, array in total.items()}
        projection: Array | None = server.shared.get(SKETCH)
        found = bordered(subspace(kept, components, place(server.shared), projection), which, outside)
        constants = {name: server.shared[name] for name in (POINT, UNIT) if name in server.shared}
        return server._replace(shared={**constants, **found}, kept=kept, phase=len(setup))

    setup = (referring(feature_count, normalisation=normalisation, max_samples=max_samples),) * (reference == "pooled")
    gather = gathering(feature_count, advance, normalisation=normalisation, max_samples=max_samples, sketch_size=sketch)
    personal = personal_tensors(normalisation)
    return Algorithm("subspace", start, (*setup, gather), rounds, personal, setup=len(setup))
