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
from pydantic import Field as Setting

from fedgate.models.arrays import Array, Arrays, Floats
from fedgate.models.detectors.base.moments import (
    PRODUCTS,
    SAMPLES,
    SUM_OF_ROWS,
    Reference,
    deviations,
    moments,
    origin,
    reference_of,
    subspace,
    symmetric,
    triangle,
)
from fedgate.models.detectors.base.subspace import Which, bordered
from fedgate.models.federated.closed_form.readout_sums import NEGATIVE, root_of
from fedgate.models.federated.protocol.algorithm import (
    MAX_SAMPLES,
    Algorithm,
    Count,
    Normalisation,
    Phase,
    Server,
    Train,
    Trained,
    healthy_rows,
    normalise,
    personal_tensors,
)
from fedgate.models.federated.protocol.composition import MOMENTS, UNIT_FREE
from fedgate.models.federated.protocol.reducer import SUM
from fedgate.models.federated.protocol.schema import Field, Shape, UpdateError, counting

SQUARES = "squares"
POINT, UNIT, SKETCH = "reference.point", "reference.unit", "sketch"
# In a gateway's own units healthy features have a mean of about zero and a mean square of one; what drifts within a
# training may reach these.
LARGEST_MEAN = 2.0
LARGEST_MEAN_SQUARE = 4.0
# Share of the fleet that must move in a feature, where a sketch hides which feature it is.
RAREST = 1e-3
# Of one feature in units as it is measured: an elastic modulus is 2e11 Pa. Moments hold its square times the rows.
LARGEST_FEATURE = 1e12
# In deviations: of a level beyond this the variance keeps fewer than eight of its sixteen digits.
FARTHEST_LEVEL = 1e4


Sums = Callable[[Arrays, Array], Arrays]  # (shared, healthy rows (n, F) in normalised units) -> what adds up


def gathering(
    feature_count: int,
    advance: Callable[[Server, Arrays], Server],
    *,
    normalisation: Normalisation,
    max_samples: int,
    remedy: str,
    sketch_size: int | None = None,
) -> Phase:
    """Return the phase in which gateways send moments, of (z - reference) / unit where `global_state` holds a
    reference.

    Rows labelled as faults are left out. Of a gateway with more than `max_samples` rows the moments are scaled down to
    that count. `remedy` says what to set where features as they are lie too far from zero to be squared.
    """
    size, largest = feature_count if sketch_size is None else sketch_size, max_samples * LARGEST_FEATURE**2

    def sums(global_state: Arrays, z: Array) -> Arrays:
        if POINT in global_state:
            z = (z - global_state[POINT]) / global_state[UNIT]
        elif normalisation == "none":
            check_levels(z, remedy)
        return moments(z @ global_state[SKETCH] if SKETCH in global_state else z)

    def check(server: Server, update: Arrays) -> None:
        check_positive(update)
        if normalisation == "own":
            # A feature that moves on few gateways has a small unit in the reference, and is large in it on those few.
            unit, means = server.global_state.get(UNIT, np.ones(feature_count)), update[SUM_OF_ROWS] / update[SAMPLES]
            squares = np.diag(symmetric(update[PRODUCTS], size)) / update[SAMPLES]
            if sketch_size is None:
                check_own_units(float(np.mean(np.square(unit) * squares)), unit * means)
            else:  # which makes no row longer, so that the mean square bounds the means too
                check_own_units(max(float(unit.min()) ** 2, RAREST) * float(squares.sum()) / feature_count, means[:0])

    shapes: dict[str, Shape] = {SUM_OF_ROWS: (size,), PRODUCTS: (triangle(size),)}
    schema = {name: Field(shape, "sum", largest=largest) for name, shape in shapes.items()}
    learn = summing(sums, normalisation, max_samples)
    return Phase(learn, SUM, advance, {**schema, SAMPLES: counting(max_samples)}, check)


def capped(update: Arrays, max_samples: int) -> Arrays:
    """Return moments with the weight of at most `max_samples` rows."""
    count = min(float(update[SAMPLES]), float(max_samples))
    scaled = {name: np.asarray(count / float(update[SAMPLES]) * array) for name, array in update.items()}
    return scaled | {SAMPLES: np.array(count)}  # exactly, whatever the division rounds to


def summing(sums: Sums, normalisation: Normalisation, max_samples: int) -> Train:
    """Return how a gateway sends sums over its healthy rows, of so many at most, and nothing where it has none."""

    def learn(global_state: Arrays, local_state: Arrays, data: Arrays, _rng: np.random.Generator) -> Trained:
        local_state, z = normalise(local_state, data, normalisation)
        z = healthy_rows(data, z)
        return local_state, capped(sums(global_state, z), max_samples) if len(z) else {}

    return learn


def check_levels(z: Array, remedy: str) -> None:
    """Raise `ValueError` for a feature of rows z (n, F) that moves, but so far from zero that its squares forget it."""
    mean = z.mean(axis=0)
    deviation = deviations(mean, z.var(axis=0), 0.0)
    lost = np.flatnonzero((deviation > 0.0) & (np.abs(mean) > FARTHEST_LEVEL * deviation))
    if len(lost):
        level = abs(float(mean[lost[0]] / deviation[lost[0]]))
        raise ValueError(
            f"feature {lost[0]} lies {level:.3g} of its deviations from zero, expected up to {FARTHEST_LEVEL:g}: in "
            f"its squares the variance would lose its digits; {remedy}"
        )


def check_own_units(mean_square: float, means: Array) -> None:
    """Raise `UpdateError` for a mean square over all features, or means (F,) of each, that no healthy rows have in a
    gateway's own units.
    """
    advice = "does the gateway still measure in the units of its commissioning?"
    if mean_square > LARGEST_MEAN_SQUARE:
        raise UpdateError(
            f"expected a mean square up to {LARGEST_MEAN_SQUARE:g} in own deviations, got {mean_square:g}; {advice}"
        )
    farthest = float(np.abs(means).max(initial=0.0))
    if farthest > LARGEST_MEAN:
        raise UpdateError(f"expected means up to {LARGEST_MEAN:g} own deviations, got {farthest:g}; {advice}")


def check_positive(update: Arrays) -> None:
    """Raise `UpdateError` where no rows could have these moments: [[n, Σz], [Σz, Σzzᵀ]] has a negative eigenvalue."""
    sums = update[SUM_OF_ROWS]
    corner, products = np.reshape(update[SAMPLES], (1, 1)), symmetric(update[PRODUCTS], len(sums))
    whole = np.block([[corner, sums[None]], [sums[:, None], products]])
    diagonal = np.diag(whole)
    if (diagonal < 0.0).any():
        raise UpdateError(f"{PRODUCTS}: expected sums of squares, got {diagonal.min():g}")
    unit = np.where(diagonal > 0.0, np.sqrt(diagonal), 1.0)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # of a row of next to nothing
        scaled = whole / np.outer(unit, unit)
    if not np.isfinite(scaled).all():
        raise UpdateError(f"{PRODUCTS}: expected sums of products that the sums of squares allow, got larger ones")
    root_of(scaled, "expected moments of rows")


def referring(feature_count: int, *, normalisation: Normalisation, max_samples: int) -> Phase:
    """Return the exchange that finds the reference: gateways send count, Σx and Σx², `global_state` gets mean and
    deviation.
    """

    def sums(_global_state: Arrays, z: Array) -> Arrays:
        return {SAMPLES: np.array(float(len(z))), SUM_OF_ROWS: z.sum(axis=0), SQUARES: np.square(z).sum(axis=0)}

    def advance(server: Server, total: Arrays) -> Server:
        mean = total[SUM_OF_ROWS] / total[SAMPLES]
        found = reference_of(mean, total[SQUARES] / total[SAMPLES] - np.square(mean))
        return server._replace(global_state={**server.global_state, POINT: found.point, UNIT: found.unit}, phase=1)

    def check(_server: Server, update: Arrays) -> None:
        slack = update[SQUARES] * (1.0 + NEGATIVE) - np.square(update[SUM_OF_ROWS]) / update[SAMPLES]
        if (slack < 0.0).any():
            raise UpdateError(f"{SQUARES}: expected at least {SUM_OF_ROWS}² / {SAMPLES}, got {slack.min():.3g} less")
        if normalisation == "own":
            check_own_units(float(update[SQUARES].mean() / update[SAMPLES]), update[SUM_OF_ROWS] / update[SAMPLES])

    field = Field((feature_count,), "sum", largest=max_samples * LARGEST_FEATURE**2)
    schema = {SAMPLES: counting(max_samples), SUM_OF_ROWS: field, SQUARES: field}
    return Phase(summing(sums, normalisation, max_samples), SUM, advance, schema, check)


def orthonormal(rng: np.random.Generator, rows: int, columns: int) -> Floats:
    """Return a random projection (rows, columns) that keeps lengths: QᵀQ = I, the same for all that draw the same."""
    q, r = np.linalg.qr(rng.normal(size=(rows, columns)))
    return np.asarray(q * np.sign(np.diag(r)))


def federated_subspace(
    feature_count: Annotated[int, Setting(ge=2)],
    *,
    components: Count = 10,
    which: Which = "both",
    outside: Annotated[float, Setting(gt=0, lt=1)] = 0.05,
    sketch: Annotated[int, Setting(ge=2)] | None = None,
    reference: Literal["zero", "pooled"] = "zero",
    forget: Annotated[float, Setting(ge=0, le=1)] = 1.0,
    rounds: Count = 1,
    max_samples: Count = MAX_SAMPLES,
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
    :param max_samples: most rows that one gateway counts for.
    :param forget: weight of all earlier rounds beside a new one.

    Raises `ValueError` for a sketch that is no smaller than the features.
    """
    if sketch is not None and sketch >= feature_count:
        raise ValueError(f"sketch: expected fewer than the {feature_count} features, got {sketch}; leave it out")

    def start(rng: np.random.Generator) -> Server:
        return Server({} if sketch is None else {SKETCH: orthonormal(rng, feature_count, sketch)}, {})

    def place(global_state: Arrays) -> Reference:
        zero = origin(feature_count, own_units=normalisation == "own")
        return zero._replace(point=global_state[POINT], unit=global_state[UNIT]) if POINT in global_state else zero

    def advance(server: Server, total: Arrays) -> Server:
        sums = {name: np.asarray(forget * server.server_state.get(name, 0.0) + array) for name, array in total.items()}
        projection: Array | None = server.global_state.get(SKETCH)
        found = bordered(subspace(sums, components, place(server.global_state), projection), which, outside)
        constants = {name: server.global_state[name] for name in (POINT, UNIT) if name in server.global_state}
        return server._replace(global_state={**constants, **found}, server_state=sums, phase=len(setup))

    setup = (referring(feature_count, normalisation=normalisation, max_samples=max_samples),) * (reference == "pooled")
    gather = gathering(
        feature_count,
        advance,
        normalisation=normalisation,
        max_samples=max_samples,
        remedy="set reference to 'pooled'",
        sketch_size=sketch,
    )
    personal = personal_tensors(normalisation)
    traits = frozenset({UNIT_FREE, MOMENTS})
    return Algorithm("subspace", start, (*setup, gather), rounds, personal, setup=len(setup), traits=traits)
