"""The training that the laws look at: an algorithm built as an aggregator builds it, on made-up gateways or given ones.

What keeps it from being looked at is named as the laws name what breaks them (ours).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from fedgate.models.arrays import FEATURES
from fedgate.models.detectors import DETECTORS
from fedgate.models.federated.protocol.algorithm import Algorithm
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.wrappers.whitening import validated
from fedgate.models.testing.exchanges import SEED, Trained, exchanges_of
from fedgate.models.testing.fleet import FEATURE_COUNT, NAMES, Gateway, fleet

GATEWAYS_LEAST = 4  # of whom three are merged in any order, and one may have nothing to say


def train(
    factory: Callable[..., Algorithm],
    settings: Mapping[str, Any],
    *,
    names: tuple[str, ...] = NAMES,
    gateways: Mapping[str, Gateway] | None = None,
    auc_least: float = 0.95,
) -> Trained:
    """Return the algorithm of a factory after a training on `gateways`, or on made-up ones of these names.

    Raises `ValueError` for fewer gateways than the laws need, and `AssertionError` where no training can be looked at.
    """
    if gateways is None:
        labelled = factory(FEATURE_COUNT, **settings).labels
        gateways = fleet(SEED, labelled=labelled, alike=settings.get("normalisation") == "none", names=names)
    if len(gateways) < GATEWAYS_LEAST:
        raise ValueError(f"gateways: expected {GATEWAYS_LEAST} or more, got {len(gateways)}")
    data = {name: gateway.data for name, gateway in gateways.items()}
    algorithm = _build(factory, next(iter(data.values()))[FEATURES].shape[1], settings)
    if algorithm.detector not in DETECTORS:
        raise AssertionError(
            f"the exported model scores as the detector does: no detector {algorithm.detector!r}; expected one of "
            f"{', '.join(DETECTORS)}"
        )
    exchanges = list(exchanges_of(algorithm, data))
    return Trained(algorithm, gateways, run(algorithm, data, seed=SEED), exchanges, auc_least)


def _build(factory: Callable[..., Algorithm], feature_count: int, settings: Mapping[str, Any]) -> Algorithm:
    """Return the algorithm of a factory with settings as a file gives them, where a tuple is a list; so are defaults.

    Raises `AssertionError` where one of them is refused.
    """
    parameters = inspect.signature(factory).parameters.values()
    given = {one.name: one.default for one in parameters if isinstance(one.default, tuple)} | dict(settings)
    try:
        return validated(factory)(feature_count, **_as_lists(given))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise AssertionError(
            f"settings are taken from a file: {where}: {problem['msg']}, got {problem['input']!r:.80}; expected "
            "an annotation that takes it, of a tuple Listed[tuple[...]] (fedgate.models.options)"
        ) from None


def _as_lists(given: Any) -> Any:
    """Return settings with lists in place of tuples."""
    if isinstance(given, Mapping):
        return {key: _as_lists(value) for key, value in given.items()}
    return list(map(_as_lists, given)) if isinstance(given, list | tuple) else given
