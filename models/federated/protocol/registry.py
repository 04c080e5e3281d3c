"""The list of all federated algorithms, whose modules name their papers, and how one is built from its name and its
settings (ours).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from fedgate.models.federated.averaging.esn_fedavg import esn_fedavg
from fedgate.models.federated.averaging.esn_fedcurv import esn_fedcurv
from fedgate.models.federated.averaging.fedavg import fedavg
from fedgate.models.federated.averaging.recurrent_fedavg import recurrent_fedavg
from fedgate.models.federated.closed_form.incfed import incfed
from fedgate.models.federated.closed_form.partial_incfed import partial_incfed
from fedgate.models.federated.closed_form.subspace import federated_subspace
from fedgate.models.federated.defences.robust_mean import Robust, Rule, with_robust_mean
from fedgate.models.federated.protocol.algorithm import Algorithm
from fedgate.models.federated.protocol.common_unit import in_common_unit
from fedgate.models.federated.robust_svm.admm import robust_svm_admm
from fedgate.models.federated.robust_svm.subgradient import robust_svm_subgradient
from fedgate.models.federated.support_vectors.conditional_fedavg import conditional_fedavg
from fedgate.models.federated.support_vectors.ensemble_svdd import ensemble_svdd
from fedgate.models.federated.support_vectors.support_vector_election import support_vector_election
from fedgate.models.federated.wrappers.whitening import validated, with_whitening
from fedgate.models.installed import Registry

Options = TypeVar("Options", bound=BaseModel)

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
# of the update. See `fedgate.models.federated.wrappers.whitening`, `compensated`, `robustly`, `surveyed`, `private`,
# `compressed` and `masked`.
COMMON_SETTINGS: dict[str, Any] = {
    **{"whiten": None, "whiten_residual": 1.0, "compensate": (), "compensate_prior": 100.0},
    **{"unit": "common", "robust": None, "survey": None, "privacy": None, "compression": None, "masking": None},
}


def build(name: str, feature_count: int, settings: Mapping[str, Any]) -> Algorithm:
    """Return the named algorithm for F features with its settings checked against the factory's own signature, on
    features compensated and whitened first and with updates noised, compressed or masked where the settings ask for it.

    Raises `ValueError` (pydantic's `ValidationError`) naming the setting, its value and what was expected, and
    `InstallationError` for an algorithm of another package that cannot be loaded.
    """
    factory = ALGORITHMS.get(name)
    if factory is None:
        raise ValueError(f"algorithm {name!r} is unknown; expected one of {', '.join(ALGORITHMS)}")
    known = [key for key in inspect.signature(factory).parameters if key != "feature_count"]
    known += [key for key in COMMON_SETTINGS if key not in known]
    unknown = sorted(settings.keys() - set(known))
    if unknown:
        raise ValueError(f"setting {unknown[0]!r} is unknown to {name}; expected one of {', '.join(known)}")
    own = {key: value for key, value in settings.items() if key not in COMMON_SETTINGS}
    robust = None if settings.get("robust") is None else _checked("robust", Robust, settings["robust"])
    if robust is not None and _takes_robust(factory):
        own["robust"] = robust
    mixed = [step for step in ("whiten", "compensate") if settings.get(step)]
    if mixed and (factory is recurrent_fedavg or _steps_of(own) > 1):
        raise ValueError(
            f"{mixed[0]} given for rows that are windows, expected rows without time steps: it would mix the steps"
        )
    algorithm = _on_features(factory, feature_count, own, settings)
    if _needs_unit(factory, own, settings):
        algorithm = in_common_unit(algorithm)
    if robust is not None and not _takes_robust(factory):
        algorithm = with_robust_mean(algorithm, robust)
    if settings.get("survey") is not None:
        if settings.get("privacy") is not None:
            raise ValueError(
                "survey given beside privacy, expected one of both: noise on each of its many counts hides all of them"
            )
        algorithm = _surveyed(algorithm, feature_count, settings["survey"])
    for step, wrap in (("privacy", _private), ("compression", _compressed), ("masking", _masked)):
        if settings.get(step) is not None:
            algorithm = wrap(algorithm, settings[step])
    return algorithm


def _takes_robust(factory: Callable[..., Algorithm]) -> bool:
    """Tell whether a factory makes the robust mean itself, as it knows how gateways train for one."""
    return "robust" in inspect.signature(factory).parameters


def _needs_unit(factory: Callable[..., Algorithm], own: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Tell whether settings are lengths and nothing else gives a unit: kernels follow distances, but for a width of
    each member's own, which is held against bounds; subspace and whitened features are in deviations; and who gives a
    `gamma` or a `box` knows the unit of the features. Sums of features as they are do not fit a ring of masks.
    """
    unit, known = settings.get("unit", "common"), inspect.signature(factory).parameters
    if unit not in ("common", "feature"):
        raise ValueError(f"unit: expected 'common' or 'feature', got {unit!r}")
    has_kernel = "gamma" in known and own.get("components", 1) != 0 and own.get("gamma") != "median"
    takes_deviations = settings.get("whiten") is not None or factory is federated_subspace
    is_known = takes_deviations or has_kernel or own.get("box") is not None
    is_masked = settings.get("masking") is not None and bool(takes_deviations or settings.get("compensate"))
    mode = own.get("normalisation", known["normalisation"].default if "normalisation" in known else "own")
    return unit == "common" and mode == "none" and (is_masked or not is_known)


def _steps_of(settings: Mapping[str, Any]) -> int:
    network = settings.get("network") or {}
    return int(network.get("steps") or 1) if isinstance(network, Mapping) else int(getattr(network, "steps", 1) or 1)


def _on_features(
    factory: Callable[..., Algorithm], feature_count: int, own: Mapping[str, Any], settings: Mapping[str, Any]
) -> Algorithm:
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


def _surveyed(algorithm: Algorithm, feature_count: int, options: Any) -> Algorithm:
    from fedgate.models.federated.wrappers.site_thresholds import Survey, with_site_thresholds

    return with_site_thresholds(algorithm, feature_count, _checked("survey", Survey, options))


def _private(algorithm: Algorithm, options: Any) -> Algorithm:
    from fedgate.models.federated.wrappers.differential_privacy import Privacy, with_differential_privacy

    return with_differential_privacy(algorithm, _checked("privacy", Privacy, options))


def _compressed(algorithm: Algorithm, options: Any) -> Algorithm:
    from fedgate.models.federated.wrappers.error_feedback import Compression, with_error_feedback

    return with_error_feedback(algorithm, _checked("compression", Compression, options))


def _masked(algorithm: Algorithm, options: Any) -> Algorithm:
    from fedgate.models.federated.secure_aggregation.wrapper import Masking, with_secure_aggregation

    return with_secure_aggregation(algorithm, _checked("masking", Masking, options))


def _checked(key: str, kind: type[Options], options: Any) -> Options:
    """Return the options of a step; an error names the key as it stands in the settings."""
    try:
        return kind.model_validate(options)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join([key, *(str(part) for part in problem["loc"])])
        raise ValueError(f"{where}: {problem['msg']}, got {str(problem['input'])[:80]!r}") from None
