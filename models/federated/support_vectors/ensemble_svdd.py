"""Ensemble SVDD (Frasson and Malchiodi, "Support Vector Based Anomaly Detection in Federated Learning", Algorithm 1).

A gateway fits an SVDD, draws synthetic rows from a mixture of a normal fitted to its rows and small normals at the
support vectors, keeps those inside the sphere, fits a second SVDD to them and sends that: vectors, coefficients and
width. What stays is the first sphere and all rows. The cloud puts the members side by side
(`fedgate.models.detectors.svm.ensemble` has the rule by which they judge together).

How the text is read: sizes and weights of the mixture are not stated; as many rows as the gateway has, half from each
part, small is 0.1 of a feature's deviation. `nu` is the default and `c` the paper's form, as in Support Vector
Election. The radius does not travel: the cloud takes it from the vectors, and never below the mean kernel sum of the
vectors themselves, βᵀKβ >= 1 / S. So a sphere reaches as far as kernels of the one width around S vectors do and no
gateway can call everything normal; it can call normal the places it puts its vectors at. With `gamma` median a lying
gateway may take kernels a thousand times as wide as 1 / F and with them cover all that lies near.

The synthetic rows hide more than the stand-ins of Support Vector Election, but not all: on the four sets of the paper
45 to 91 % of the vectors sent lie nearest to the very row they were drawn around, and on average an update betrays one
row in eight at one false claim in a hundred (one in three without anonymisation; experiment `svdd-membership`).

The model grows with the fleet, so it is bounded. Dropping coefficients of mass d and scaling up the rest changes the
kernel sum f nowhere by more than d: with g the kernel sum of what was dropped, f = (1 - d) f' + d g, so |f - f'| = d |g
- f'| <= d, as both are means of kernels in [0, 1]. Each member's d is `dropped` in the shared model, the number of
members for which there was no room at all is `left_out`; who that is hangs on the tags of all, so on no one's choice.

The paper leaves it to others to filter the members or to let clients choose their settings. With `covered` a member is
left out that says next to nothing new: members are taken in that same order, and one is not if of its free vectors,
which mark its border, at least this share lies inside two or more members that were taken before it. Two, so that no
gateway can push out another by itself; two that lie together can. So where gateways are alike the model stops growing
with the fleet, and where they are not everybody stays.
"""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field as Setting

from fedgate.models.arrays import FEATURES, GAMMA, Array, Arrays, Booleans, Floats, at_most, number_of
from fedgate.models.detectors.base.checks import ON_BORDER, border_for, map_width, spread
from fedgate.models.detectors.svm import ensemble, kernel, svdd
from fedgate.models.federated.protocol.algorithm import (
    Algorithm,
    Count,
    Normalisation,
    Phase,
    Positive,
    Server,
    Share,
    Trained,
    normalise,
    personal_tensors,
)
from fedgate.models.federated.protocol.kernel_width import with_width
from fedgate.models.federated.protocol.reducer import STACK
from fedgate.models.federated.protocol.schema import Field, UpdateError
from fedgate.models.federated.support_vectors.support_vector_election import (
    FEWEST_ROWS,
    WIDTH,
    are_one_point,
    check_distance,
    end_of,
    of_this_gateway,
    width_of,
    without_model,
)
from fedgate.models.federated.support_vectors.width_search import NEXT_WIDTH, Fit

MEMBER, DROPPED = "member", "dropped"
PER_MEMBER = ("gamma", MEMBER, DROPPED)  # repeated in each row, since stacked rows are sorted and must find together
SUM_TOLERANCE = 1e-6
NO_ORIGIN = np.nan
WITNESSES = 2  # members inside which a vector must lie to count as covered
PROBES = 64  # free vectors of a member that are looked at, evenly chosen
WIDEST = 1e3  # times 1 / F, or a thousandth of it: of rows in units of about one deviation no median is farther off


class Mixture(NamedTuple):
    """What synthetic rows are drawn from: so many (None: as many as there are rows), the share that comes from the
    fitted normal, the deviation of the small normals in deviations of each feature, and how far from zero features end.
    """

    rows: int | None
    fitted_share: float
    spread: float
    farthest: float = np.inf


def synthetic(params: Arrays, z: Array, rng: np.random.Generator, mixture: Mixture) -> tuple[Floats, Floats]:
    """Return synthetic rows (m, F) for a sphere fitted to rows z (n, F), and beside each the support vector it was
    drawn around, NaN where it came from the fitted normal.
    """
    count = len(z) if mixture.rows is None else mixture.rows
    fitted = round(mixture.fitted_share * count)
    covariance = np.atleast_2d(np.cov(z, rowvar=False))
    wide = rng.multivariate_normal(z.mean(axis=0), covariance, fitted, check_valid="ignore", method="eigh")
    origins = params["vectors"][rng.integers(len(params["vectors"]), size=count - fitted)]
    near = rng.normal(origins, mixture.spread * z.std(axis=0))
    rows = np.clip(np.concatenate([wide, near]), -mixture.farthest, mixture.farthest)
    return rows, np.concatenate([np.full_like(wide, NO_ORIGIN), origins])


def described(
    z: Array, rng: np.random.Generator, *, fit: Fit, mixture: Mixture | None, max_vectors: int
) -> tuple[Arrays, Floats]:
    """Return the member that a gateway with rows z (n, F) sends, and the row of z behind each of its vectors.

    Without a mixture it is the plain sphere. It is `{}` where there is nothing that could be described or sent: fewer
    than two rows, rows that are all alike, fewer than two synthetic rows inside.
    """
    if are_one_point(z):
        return {}, z[:0]
    params = fit(z)
    origins = params["vectors"]
    if mixture is not None:
        rows, sources = synthetic(params, z, rng, mixture)
        real = {row.tobytes() for row in z}  # which rounding may give back where features barely move
        sent = (svdd.SVDD.score(params, rows) <= 0.0) & np.array([row.tobytes() not in real for row in rows])
        rows, sources = rows[sent], sources[sent]
        if len(rows) < FEWEST_ROWS:
            return {}, z[:0]
        params = fit(rows)
        places = {row.tobytes(): place for place, row in enumerate(rows)}
        origins = sources[[places[vector.tobytes()] for vector in params["vectors"]]]
    indices = largest(params["coefficients"], max_vectors)
    return shortened(params, indices), origins[indices]


def largest(coefficients: Array, most: int) -> Array:
    """Return the places (k,) of the largest coefficients (m,), no more than `most`, in their old order."""
    return np.sort(np.argsort(-coefficients, kind="stable")[:most])


def shortened(params: Arrays, indices: Array) -> Arrays:
    """Return a member with only the vectors at the places `kept` (k,), its coefficients scaled to a sum of one and the
    mass of the others as `dropped`, on top of what was dropped before.
    """
    beta, before = params["coefficients"][indices], float(params.get(DROPPED, np.array(0.0)))
    lost = float(np.delete(params["coefficients"], indices).sum())
    return {
        "vectors": params["vectors"][indices],
        "coefficients": beta / beta.sum(),
        "gamma": params["gamma"],
        DROPPED: np.array(before + (1.0 - before) * lost),
    }


def log_border(params: Arrays) -> float:
    """Return log f on the sphere: on the vectors whose coefficient is below the cap, as `svdd.fit` takes it.

    The cap is the largest coefficient. Where none is at the cap, all vectors lie on the sphere and any will do. Of all
    vectors of a sphere the free have the highest f, so no less than the mean βᵀKβ; coefficients that say otherwise are
    made to fit none.
    """
    beta, free = params["coefficients"], are_free(params)
    log_f = kernel.log_expansion(params["vectors"], beta, float(params["gamma"]), params["vectors"])
    border = log_f[free].mean() if free.any() else log_f.max()
    return float(max(border, np.log(beta @ np.exp(log_f))))


def are_free(params: Arrays) -> Booleans:
    """Tell which of a member's vectors (S,) are below the cap, and so on its sphere."""
    beta = params["coefficients"]
    return np.asarray(beta < kernel.AT_CAP * beta.max())


def not_covered(members: list[Arrays], share: float, most: int) -> list[Arrays]:
    """Return the first `most` of the members, in their order, without those of whose free vectors at least a share lies
    inside `WITNESSES` of those before that stay. Where none is free, all vectors count.
    """
    taken: list[Arrays] = []
    for member in members:
        if len(taken) == most:
            break
        free = are_free(member)
        probes = spread(member["vectors"][free] if free.any() else member["vectors"], PROBES)
        inside = np.array([svdd.SVDD.score(each, probes) <= ON_BORDER for each in taken])  # (M, P)
        if len(taken) < WITNESSES or (inside.sum(axis=0) >= WITNESSES).mean() < share:
            taken.append(member | {"offset": np.array(-log_border(member))})
    return taken


def as_rows(member: Arrays, tag: float) -> Arrays:
    """Return a member as rows that find together again, however they are stacked and sorted."""
    count = len(member["coefficients"])
    per_member = {"gamma": float(member["gamma"]), DROPPED: float(member[DROPPED]), MEMBER: tag}
    return {**member, **{name: np.full(count, value) for name, value in per_member.items()}}


def members_of(total: Arrays) -> list[Arrays]:
    """Return the members in a total of stacked rows, in an order that nobody can choose a place in: each by the hash of
    its tag and those of all others, which it does not know.
    """
    tags, of_row = np.unique(total[MEMBER], return_inverse=True)
    members = []
    for index in range(len(tags)):
        rows = of_row == index
        member = {name: total[name][rows] for name in ("vectors", "coefficients")}
        members.append(member | {name: np.array(total[name][rows][0]) for name in ("gamma", DROPPED)})
    salt = hashlib.sha256(tags.tobytes()).digest()
    places = [hashlib.sha256(salt + tag.tobytes()).digest() for tag in tags]
    return [members[index] for index in sorted(range(len(tags)), key=places.__getitem__)]


def side_by_side(members: list[Arrays], most: int, *, covered: float | None = None) -> Arrays:
    """Return one model of at most so many vectors, and with it what that cost: `dropped` (M,) and `left_out`."""
    taken = (members if covered is None else not_covered(members, covered, most))[:most]
    taken = [shortened(each, largest(each["coefficients"], most // len(taken))) for each in taken]
    bordered = [each | {"offset": np.array(-log_border(each))} for each in taken]
    return ensemble.joined_members(bordered) | {
        DROPPED: np.array([float(each[DROPPED]) for each in taken]),
        "left_out": np.array(float(len(members) - len(taken))),
    }


def ensemble_svdd(
    feature_count: Count,
    *,
    nu: Share = 0.1,
    c: Positive | None = None,
    gamma: Positive | Literal["median"] | None = None,
    anonymise: bool = True,
    synthetic_rows: Annotated[int, Setting(ge=2)] | None = None,
    fitted_share: Annotated[float, Setting(ge=0, le=1)] = 0.5,
    spread: Positive = 0.1,
    max_rows: Annotated[int, Setting(ge=FEWEST_ROWS)] = 2_000,
    max_vectors: Count = 500,
    max_model_vectors: Count = 5_000,
    covered: Share | None = None,
    own_width: Annotated[float, Setting(ge=1, le=WIDEST)] = 1.0,
    normalisation: Normalisation = "own",
) -> Algorithm:
    """Ensemble SVDD over F features.

    :param nu: share of rows outside a sphere; in (0, 1].
    :param c: the paper's cap on a multiplier; overrides `nu` where given.
    :param gamma: width of the RBF kernel; not given, from the distances of rows over all gateways, in one
        exchange more; `median` takes each member's own from the median
        distance of its rows, up to a thousand times 1 / F either way.
    :param anonymise: send a sphere of synthetic rows; without it the gateway's own support vectors travel.
    :param synthetic_rows: rows drawn from the mixture, as many as the gateway trains on where not given.
    :param fitted_share: share of them from the normal fitted to the rows; the others come from around the vectors.
    :param spread: deviation of the normals around the vectors, in deviations of each feature.
    :param max_rows: most rows a gateway trains on; of more, a random choice.
    :param max_vectors: most vectors of one member; those of the largest coefficients stay.
    :param max_model_vectors: most vectors of the model, shared equally by its members; of more members than that, a
        choice by the hash of their tags.
    :param covered: share of a member's border inside others from which on it is left out; not given, none is.
    :param own_width: how many times wider or narrower than the common one a gateway's own `gamma` may be.
    """
    widths_of = partial(widths_between, gamma=gamma, own_width=own_width, feature_count=feature_count)
    fit = partial(svdd.fit, nu=nu, c=c, most_rows=max_rows, border=border_for(gamma, None))
    mixture = Mixture(synthetic_rows, fitted_share, spread, end_of(normalisation)) if anonymise else None

    def learn(global_state: Arrays, local_state: Arrays, data: Arrays, rng: np.random.Generator) -> Trained:
        if len(data[FEATURES]) < FEWEST_ROWS:
            return local_state, {}
        local_state, z = normalise(local_state, data, normalisation)
        check_width(data, widths_of(global_state))
        common = "median" if gamma == "median" else width_of(global_state, gamma)
        sphere = of_this_gateway(partial(fit, gamma=common), data)
        member, _ = described(at_most(z, max_rows, rng), rng, fit=sphere, mixture=mixture, max_vectors=max_vectors)
        return local_state, as_rows(member, rng.random()) if member else {}

    def advance(server: Server, total: Arrays) -> Server:
        members = side_by_side(members_of(total), max_model_vectors, covered=covered)
        if gamma is None and own_width > 1.0:
            members[NEXT_WIDTH] = np.array(width_of(server.global_state, gamma))
        return server._replace(global_state=members)

    def check(server: Server, update: Arrays) -> None:
        check_member(update, widths_of(server.global_state))
        if normalisation == "own":
            check_distance(update["vectors"])

    phase = Phase(learn, STACK, advance, schema_of_member(max_vectors, feature_count), check)
    algorithm = Algorithm("ensemble", without_model, (phase,), personal=personal_tensors(normalisation))
    return with_width(algorithm, gamma, WIDTH, map_width, normalisation)


def widths_between(
    global_state: Arrays, gamma: float | str | None, own_width: float, feature_count: int
) -> tuple[float, float]:
    """Return the least and the largest width that a member may have."""
    if isinstance(gamma, str):
        return 1.0 / feature_count / WIDEST, WIDEST / feature_count
    common = width_of(global_state, gamma)
    return common / own_width, common * own_width


def schema_of_member(max_vectors: int, feature_count: int) -> dict[str, Field]:
    """Return the form of a member of so many vectors at most."""
    counts = range(1, max_vectors + 1)
    of_each = Field((counts,), "full")
    schema = dict.fromkeys(("coefficients", MEMBER, DROPPED), of_each)
    schema["gamma"] = of_each._replace(largest=np.inf)  # held against that of all, or against that of rows
    return schema | {"vectors": Field((counts, feature_count), "full")}


def check_width(data: Arrays, widths: tuple[float, float]) -> None:
    """Raise `ValueError` where a gateway's own width is none that the cloud admits."""
    own = number_of(data, GAMMA, widths[0])
    if not widths[0] <= own <= widths[1]:
        raise ValueError(
            f"{GAMMA}: expected {widths[0]:g} to {widths[1]:g}, got {own:g}; the cloud admits no other width, so "
            "change it, or let the operator raise the algorithm's setting 'own_width'"
        )


def check_member(update: Arrays, widths: tuple[float, float]) -> None:
    """Raise `UpdateError` where arrays of an update are no single member of a width from the first to the second."""
    if len(counts := sorted({len(array) for array in update.values()})) != 1:
        raise UpdateError(f"expected arrays of one length, got {counts}")
    for name in PER_MEMBER:
        if (update[name] != update[name][0]).any():
            raise UpdateError(f"{name}: expected one member, so one value, got {len(np.unique(update[name]))}")
    beta, found = update["coefficients"], {name: float(update[name][0]) for name in PER_MEMBER}
    if beta.min() <= 0.0 or abs(float(beta.sum()) - 1.0) > SUM_TOLERANCE:
        raise UpdateError(f"coefficients: expected positive ones of sum 1, got {beta.min():g} and sum {beta.sum():g}")
    if not widths[0] <= found["gamma"] <= widths[1]:
        raise UpdateError(f"gamma: expected {widths[0]:g} to {widths[1]:g}, got {found['gamma']:g}")
    for name in (MEMBER, DROPPED):
        if not 0.0 <= found[name] < 1.0:
            raise UpdateError(f"{name}: expected a number from 0 to below 1, got {found[name]:g}")
