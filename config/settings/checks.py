"""Whether an algorithm, its settings, the rounds and the features go together: asked before anything starts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pydantic import ValidationError

from fedgate.config.protocol.messages import find_first_problem
from fedgate.config.settings.training import AlgorithmChoice, Rounds
from fedgate.models.features.spec import FeatureSpec, feature_names

if TYPE_CHECKING:
    from fedgate.models.federated.protocol.algorithm import Algorithm


def check_algorithm(choice: AlgorithmChoice, rounds: Rounds, features: FeatureSpec) -> None:
    """Raise `ValueError` naming the setting, its value and what was expected."""
    from fedgate.models.detectors import DETECTORS  # late: a gateway reads settings too, and trains in a child
    from fedgate.models.federated import ALGORITHMS, build
    from fedgate.models.installed import InstallationError

    try:
        algorithm = build(choice.name, len(feature_names(features)), choice.settings)
    except ValidationError as error:
        raise ValueError(f"algorithm.settings.{find_first_problem(error)}") from None
    except InstallationError as error:
        raise ValueError(f"algorithm.name: {error}") from None
    except ValueError as error:
        unknown = re.match(r"setting '(\w+)' is unknown", str(error))
        key = f"settings.{unknown[1]}" if unknown else "settings"
        raise ValueError(f"algorithm.{key if choice.name in ALGORITHMS else 'name'}: {error}") from None
    if algorithm.detector not in DETECTORS:
        raise ValueError(f"algorithm.name: {choice.name} needs the detector {algorithm.detector!r}, not installed here")
    _check_quorum(algorithm, rounds)
    _check_series(choice, features, is_one_stream=algorithm.detector == "esn")


def _check_quorum(algorithm: Algorithm, rounds: Rounds) -> None:
    try:
        algorithm.check_cohort(rounds.quorum)
    except ValueError as error:
        raise ValueError(
            f"rounds.quorum: {rounds.quorum} given, with which a round comes to nothing: {error}"
        ) from None


def check_budget(choice: AlgorithmChoice, rounds: Rounds, features: FeatureSpec) -> None:
    """Raise `ValueError` where gateways would spend their privacy for nothing: the rounds of a release must fit into
    the budget. Asked where an aggregator starts, as it needs the accountant.
    """
    if choice.settings.get("privacy") is None:
        return
    from fedgate.models.federated import build
    from fedgate.models.federated.wrappers.differential_privacy import Privacy

    privacy = Privacy.model_validate(choice.settings["privacy"])
    algorithm = build(choice.name, len(feature_names(features)), choice.settings)
    wanted = algorithm.exchanges(rounds.per_release) // algorithm.stride
    if (epsilon := privacy.epsilon_after(wanted)) <= privacy.epsilon:
        return
    possible = 0
    while privacy.epsilon_after(possible + 1) <= privacy.epsilon:
        possible += 1
    raise ValueError(
        f"algorithm.settings.privacy: epsilon {privacy.epsilon:g} is spent after {possible} updates of a gateway, and "
        f"a release takes {wanted} (epsilon {epsilon:.4g}): take fewer rounds, a larger noise_multiplier or a larger "
        "epsilon"
    )


def _check_series(choice: AlgorithmChoice, features: FeatureSpec, *, is_one_stream: bool) -> None:
    """Where a row holds time steps, each feature must have one for each of them; and where the rows of a gateway are
    one stream, no step may come twice.
    """
    steps = choice.settings.get("network", {}).get("steps") or 1
    if steps == 1:
        return
    kinds = {step.kind for step in features.steps}
    is_series = "samples" in kinds <= {"samples", "calendar"}
    is_series &= {len(step.labels(features)) for step in features.steps} == {steps}
    if not is_series or (is_one_stream and features.hop_samples != features.samples):
        overlap = ", and from windows that do not overlap (hop_s = window_s)" if is_one_stream else ""
        raise ValueError(
            f"algorithm.settings.network.steps: {steps} time steps in a row come from features of kind 'samples' (and "
            f"'calendar') alone, as many values of each{overlap}; got {sorted(kinds)}, hop_s = {features.hop_s:g}"
        )
