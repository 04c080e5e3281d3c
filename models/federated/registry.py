"""The list of all federated algorithms, and how one is built from its name and its settings (ours)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from fedgate.models.detectors import DETECTORS
from fedgate.models.federated.averaging.esn_fedavg import esn_fedavg
from fedgate.models.federated.averaging.esn_fedcurv import esn_fedcurv
from fedgate.models.federated.averaging.fedavg import fedavg
from fedgate.models.federated.averaging.recurrent_fedavg import recurrent_fedavg
from fedgate.models.federated.closed_form.incfed import incfed
from fedgate.models.federated.closed_form.partial_incfed import partial_incfed
from fedgate.models.federated.closed_form.subspace import federated_subspace
from fedgate.models.federated.defences.robust_mean import Robust, Rule
from fedgate.models.federated.protocol.algorithm import NORMALISATION, Algorithm
from fedgate.models.federated.protocol.common_unit import in_common_unit
from fedgate.models.federated.protocol.composition import MOMENTS, STEPS, UNIT_FREE, Step, check_composition
from fedgate.models.federated.robust_svm.admm import robust_svm_admm
from fedgate.models.federated.robust_svm.subgradient import robust_svm_subgradient
from fedgate.models.federated.support_vectors.conditional_fedavg import conditional_fedavg
from fedgate.models.federated.support_vectors.ensemble_svdd import ensemble_svdd
from fedgate.models.federated.support_vectors.support_vector_election import support_vector_election
from fedgate.models.federated.wrappers.whitening import validated, with_whitening
from fedgate.models.installed import InstallationError, Registry
from fedgate.models.options import Options, plain

Table = TypeVar("Table", bound=Options)

OURS: dict[str, Callable[..., Algorithm]] = {
    "fedavg": fedavg,
    **{f"fedavg-{rule}": partial(fedavg, robust=Robust(rule=rule)) for rule in get_args(Rule)},
    "esn-fedavg": esn_fedavg,
    "esn-fedcurv": esn_fedcurv,
    "ensemble-svdd": ensemble_svdd,
    "federated-subspace": federated_subspace,
    "fedper": partial(fedavg, share=0.5),
    "incfed": incfed,
    "partial-incfed": partial_incfed,
    "fedprox": partial(fedavg, mu=0.1),
    "conditional-fedavg": conditional_fedavg,
    "recurrent-fedavg": recurrent_fedavg,
    "robust-svm-admm": robust_svm_admm,
    "robust-svm-subgradient": robust_svm_subgradient,
    "support-vector-election": support_vector_election,
}
ALGORITHMS = Registry("algorithm", OURS, Callable)

# What every algorithm takes besides its own settings: steps before it, on the features, and steps behind it, on the way
# of the update, as `composition.STEPS` has them.
COMMON_SETTINGS: dict[str, Any] = {
    **{"whiten": None, "whiten_residual": 1.0, "compensate": (), "compensate_prior": 100.0},
    **{"unit": "common", "robust": None, "survey": None, "privacy": None, "compression": None, "masking": None},
}


NONE = "none"  # of compression, as if it stood in no settings; it says so where it would be there by default


def build(name: str, feature_count: int, settings: Mapping[str, Any]) -> Algorithm:
    """Return the named algorithm for F features with its settings checked against the factory's own signature, on
    features compensated and whitened first and with updates noised, compressed or masked where the settings ask for it.

    Raises `ValueError` (pydantic's `ValidationError`) naming the setting, its value and what was expected, and
    `InstallationError` for an algorithm of another package that cannot be loaded.
    """
    factory = ALGORITHMS.get(name)
    if factory is None:
        what = "is a detector; an algorithm must name it" if name in DETECTORS else "is unknown"
        raise ValueError(f"algorithm {name!r} {what}; expected one of {', '.join(ALGORITHMS)}")
    if "feature_count" not in known_by(factory):
        raise InstallationError(f"{ALGORITHMS.described(name)}: expected a factory with a parameter feature_count")
    known = [key for key in known_by(factory) if key != "feature_count"]
    known += [key for key in COMMON_SETTINGS if key not in known]
    unknown = sorted(settings.keys() - set(known))
    if unknown:
        raise ValueError(f"setting {unknown[0]!r} is unknown to {name}; expected one of {', '.join(known)}")
    settings = {key: value for key, value in plain(settings).items() if (key, value) != ("compression", NONE)}
    if isinstance(given := settings.get("compression"), str | bool):
        raise ValueError(f'compression: {given!r} given, expected "{NONE}" or a table such as {{ number = "int8" }}')
    own = {key: value for key, value in settings.items() if key not in COMMON_SETTINGS}
    if settings.get("robust") is not None and "robust" in known_by(factory):  # which knows how gateways train for one
        own["robust"] = _checked("robust", Robust, settings["robust"])
    algorithm = _on_features(factory, feature_count, own, settings, ALGORITHMS.described(name))
    if _needs_unit(algorithm, settings):
        algorithm = in_common_unit(algorithm)
    for step in STEPS:
        if step.module and settings.get(step.key) is not None and step.key not in own:
            algorithm = _wrapped(algorithm, step, settings[step.key], feature_count)
    return algorithm


def known_by(factory: Callable[..., Algorithm]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a factory by name."""
    return inspect.signature(factory).parameters


def _needs_unit(algorithm: Algorithm, settings: Mapping[str, Any]) -> bool:
    """Tell whether settings are lengths and nothing else gives a unit: kernels follow distances, but for a width of
    each member's own, which is held against bounds; subspace and whitened features are in deviations; and who gives a
    `gamma` or a `box` knows the unit of the features. Sums of features as they are do not fit a ring of masks.
    """
    unit = settings.get("unit", "common")
    if unit not in ("common", "feature"):
        raise ValueError(f"unit: expected 'common' or 'feature', got {unit!r}")
    is_masked = settings.get("masking") is not None and MOMENTS in algorithm.traits
    is_as_measured = not set(NORMALISATION) & set(algorithm.personal)
    return unit == "common" and is_as_measured and (is_masked or UNIT_FREE not in algorithm.traits)


def _on_features(
    factory: Callable[..., Algorithm],
    feature_count: int,
    own: Mapping[str, Any],
    settings: Mapping[str, Any],
    place: str,
) -> Algorithm:
    bare = validated(factory)(feature_count, **own)
    if not isinstance(bare, Algorithm):
        raise InstallationError(f"{place}: expected a factory that returns an Algorithm, got {type(bare).__name__}")
    for key in ("whiten", "compensate"):
        if settings.get(key):
            check_composition(bare, key)
    if settings.get("whiten") is None and not settings.get("compensate"):
        return bare

    def stepped(count: int, **inner: Any) -> Algorithm:
        if settings.get("whiten") is None:
            return validated(factory)(count, **inner)
        step = {key: settings[key] for key in ("whiten", "whiten_residual") if key in settings}
        return validated(with_whitening)(factory, count, inner, **step)

    if not settings.get("compensate"):
        return stepped(feature_count, **own)
    # Late: most fleets need none of these, and a gateway's training child should load what it needs.
    from fedgate.models.federated.wrappers.compensation import with_compensation

    stepped.__signature__ = inspect.signature(factory)  # type: ignore[attr-defined]  # which steps look into
    step = {key: settings[key] for key in ("compensate", "compensate_prior") if key in settings}
    return validated(with_compensation)(stepped, feature_count, own, **step)


def _wrapped(algorithm: Algorithm, step: Step, options: Any, feature_count: int) -> Algorithm:
    """Return the algorithm in a step of the table; a survey alone must know how many features there are."""
    module = import_module(step.module)
    wrap = getattr(module, step.function)
    chosen = _checked(step.key, getattr(module, step.options), options)
    wrapped: Algorithm = wrap(algorithm, chosen, feature_count) if step.key == "survey" else wrap(algorithm, chosen)
    return wrapped


def _checked(key: str, kind: type[Table], options: Any) -> Table:
    """Return the options of a step; an error names the key as it stands in the settings."""
    try:
        return kind.model_validate(options)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join([key, *(str(part) for part in problem["loc"])])
        raise ValueError(f"{where}: {problem['msg']}, got {str(problem['input'])[:80]!r}") from None
