"""Any algorithm on whitened features: kernels see directions of unit variance instead of correlated bins (ours).

One exchange more comes first, once in a training: gateways send count, sum and second moments of their features, as for
the federated subspace, and the cloud finds the pooled mean, deviation and k principal directions. From then on every
gateway trains the inner algorithm on k whitened coordinates and, beside them, the logarithm of the residual
(`fedgate.models.detectors.base.pca`). The tensors of the step travel within the shared model under `whitening.` and
are part of its graph. On bridge spectra the residual is the part that tells damage; the coordinates alone hardly do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, cast

import numpy as np
from pydantic import validate_call

from fedgate.models.arrays import FEATURES, Arrays, under
from fedgate.models.detectors.base.moments import origin, subspace
from fedgate.models.detectors.base.pca import WHITENING
from fedgate.models.detectors.base.pca import whitened as whiten_features
from fedgate.models.federated.closed_form.subspace import gathering
from fedgate.models.federated.protocol.algorithm import (
    MAX_SAMPLES,
    Algorithm,
    Count,
    Normalisation,
    NotNegative,
    Phase,
    Server,
    Trained,
    normalise,
    personal_tensors,
)
from fedgate.models.federated.protocol.composition import MOMENTS, UNIT_FREE, check_composition, having
from fedgate.models.federated.protocol.feature_step import begin_with
from fedgate.models.federated.protocol.namespace import hidden
from fedgate.models.options import STRICT


@lru_cache(maxsize=64)
def validated(factory: Callable[..., Algorithm]) -> Callable[..., Algorithm]:
    """Return a factory whose arguments are checked against its signature; making the schema for that costs
    milliseconds, so it is kept.
    """
    return validate_call(config=STRICT)(factory)


def with_whitening(
    factory: Callable[..., Algorithm],
    feature_count: int,
    settings: Mapping[str, Any],
    *,
    whiten: Count,
    whiten_residual: NotNegative = 1.0,
) -> Algorithm:
    """Return the algorithm of `factory` on features whitened by moments that its gateways gather first.

    :param settings: of the inner algorithm; its `normalisation` decides on the units in which moments are taken.
    :param whiten: principal directions k, fewer than F so that a residual is left.
    :param whiten_residual: weight of the logarithm of the residual as one feature more: with 1 its variance on healthy
        data is that of all k coordinates together, with 0 there is no such feature.

    Raises `ValueError` where k is not below F, or for a wrong setting of the inner algorithm.
    """
    if whiten >= feature_count:
        raise ValueError(f"whiten: expected fewer directions than the {feature_count} features, got {whiten}")
    mode, settings = without_units(factory, settings)
    width = whiten + (whiten_residual > 0)
    inner = validated(factory)(width, **settings)
    check_composition(inner, "whiten")

    def advance(server: Server, total: Arrays) -> Server:
        step = subspace(total, whiten, origin(feature_count, own_units=mode == "own"))
        if whiten_residual > 0:  # the logarithm of χ²(h) / h has a variance of about 2 / h
            step["weight"] = np.asarray(whiten_residual * np.sqrt(whiten * step["freedom"] / 2.0))
        named = {WHITENING + name: array for name, array in step.items()}
        return server._replace(global_state={**server.global_state, **named}, phase=1)

    own_units = "set normalisation to 'own', which takes features in the units of each gateway"
    gather = gathering(feature_count, advance, normalisation=mode, max_samples=MAX_SAMPLES, remedy=own_units)
    personal = tuple(dict.fromkeys((*personal_tensors(mode), *inner.personal)))
    phases = [_on_whitened(phase, mode, width) for phase in inner.phases]
    whitened = having(inner, "whiten", UNIT_FREE, MOMENTS, personal=personal)
    return begin_with(gather, whitened, phases)


def without_units(
    factory: Callable[..., Algorithm], settings: Mapping[str, Any]
) -> tuple[Normalisation, dict[str, Any]]:
    """Return how features are normalised before a step, and the settings that keep them as the step made them."""
    known = inspect.signature(factory).parameters
    if "normalisation" not in known:
        return "none", dict(settings)
    mode = settings.get("normalisation", known["normalisation"].default)
    validate_call(_checked)(mode)
    return cast(Normalisation, mode), {**settings, "normalisation": "none"}


def _checked(_normalisation: Normalisation) -> None:
    """Take nothing but a known mode."""


def _on_whitened(phase: Phase, mode: Normalisation, width: int) -> Phase:
    """Return a phase of the inner algorithm as one that sees whitened features (n, width) and keeps the step in
    `global_state`.
    """
    inner = hidden(phase, WHITENING)

    def learn(global_state: Arrays, local_state: Arrays, data: Arrays, rng: np.random.Generator) -> Trained:
        if len(data[FEATURES]) == 0:  # of a gateway that leaves: what it once gave must be taken back
            z = np.zeros((0, width))
        else:
            local_state, z = normalise(local_state, data, mode)
            z = whiten_features(under(WHITENING, global_state), z)
        return inner.learn(global_state, local_state, {**data, FEATURES: z}, rng)

    return inner._replace(learn=learn)
