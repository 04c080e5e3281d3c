"""The table of what goes around an algorithm: each pair composes, or is refused with the reason that stands in it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from fedgate.config.protocol.wire import encode
from fedgate.models.arrays import FEATURES, LABELS
from fedgate.models.federated import COMMON_SETTINGS, build
from fedgate.models.federated.defences.robust_mean import Robust, with_robust_mean
from fedgate.models.federated.defences.wrapper import Defence, with_update_filter
from fedgate.models.federated.protocol.algorithm import Algorithm
from fedgate.models.federated.protocol.common_unit import in_common_unit
from fedgate.models.federated.protocol.composition import (
    CLOUD_NOISE,
    EXCLUDES,
    FACTS,
    KEYS,
    OWN_COLUMNS,
    STEPS,
    WINDOWS,
    CompositionError,
    check_composition,
    having,
)
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.protocol.schema import Field
from fedgate.models.federated.secure_aggregation.options import Masking
from fedgate.models.federated.secure_aggregation.wrapper import with_secure_aggregation
from fedgate.models.federated.wrappers.compensation import with_compensation
from fedgate.models.federated.wrappers.differential_privacy import Privacy, with_differential_privacy
from fedgate.models.federated.wrappers.error_feedback import Compression, with_error_feedback
from fedgate.models.federated.wrappers.site_thresholds import Survey, with_site_thresholds
from fedgate.models.federated.wrappers.whitening import with_whitening
from fedgate.models.testing.fleet import FEATURE_COUNT

LOGISTIC = {"loss": "logistic", "components": 0}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("fedavg", LOGISTIC),
    ("fedavg", {}),
    ("incfed", {}),
    ("partial-incfed", {"select": "importance", "network": {"task": "classify"}}),
    ("recurrent-fedavg", {}),
    ("support-vector-election", {}),
    ("esn-fedavg", {"network": {"task": "classify", "steps": 3}}),
]
CHOSEN: dict[str, Any] = {
    "whiten": 1,
    "compensate": (1,),
    "unit": "common",
    "robust": {"rule": "median"},
    "survey": {},
    "privacy": {"clip": 1.0, "noise_multiplier": 1.0, "epsilon": 1e6},
    "compression": {"number": "int8"},
    "masking": {"fewest": 3},
}
# Steps that exclude each other also in the order of the table.
EXCLUSIVE = {
    **dict.fromkeys(("whiten", "compensate", "unit"), ("privacy",)),
    "robust": ("privacy", "compression", "masking", "defence"),
    "survey": ("privacy",),
    "compression": ("masking",),
    "masking": ("defence",),
}
REASONS = {reason for step in STEPS for reason in step.excludes.values()}


def composed(name: str, settings: dict[str, Any], keys: tuple[str, ...]) -> Algorithm:
    chosen = {key: CHOSEN[key] for key in keys if key in CHOSEN}
    algorithm = build(name, FEATURE_COUNT, {**settings, **chosen})
    return with_update_filter(algorithm, Defence(kind="statistic")) if "defence" in keys else algorithm


@pytest.mark.soak
@pytest.mark.parametrize("pair", list(itertools.combinations([step.key for step in STEPS], 2)), ids="-".join)
@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_a_pair_composes_or_is_refused_with_the_reason_of_the_table(
    name: str, settings: dict[str, Any], pair: tuple[str, str]
) -> None:
    try:
        algorithm = composed(name, settings, pair)
    except CompositionError as error:
        assert str(error) in REASONS
    else:
        assert {key for key in pair if key != "unit"} <= algorithm.traits


def wrapped(algorithm: Algorithm, key: str) -> Algorithm:
    """Return an algorithm with a step around it by hand, whatever is around it already."""
    match key:
        case "whiten":
            return with_whitening(lambda feature_count: algorithm, FEATURE_COUNT + 1, {}, whiten=FEATURE_COUNT - 1)
        case "compensate":
            return with_compensation(lambda feature_count: algorithm, FEATURE_COUNT + 1, {}, compensate=(0,))
        case "unit":
            return in_common_unit(algorithm)
        case "robust":
            return with_robust_mean(algorithm, Robust(rule="median"))
        case "survey":
            return with_site_thresholds(algorithm, Survey(), FEATURE_COUNT)
        case "privacy":
            return with_differential_privacy(algorithm, Privacy(**CHOSEN["privacy"]))
        case "compression":
            return with_error_feedback(algorithm, Compression(number="int8"))
        case "masking":
            return with_secure_aggregation(algorithm, Masking(fewest=3))
    return with_update_filter(algorithm, Defence(kind="statistic"))


@pytest.mark.parametrize("pair", list(itertools.permutations(KEYS, 2)), ids="-".join)
def test_by_hand_a_step_goes_around_what_stands_before_it_and_around_nothing_else(pair: tuple[str, str]) -> None:
    (inner, outer), plain = pair, build("fedavg", FEATURE_COUNT, {**LOGISTIC, "unit": "feature"})
    (step,) = (step for step in STEPS if step.key == inner)
    is_in_order = KEYS.index(inner) < KEYS.index(outer)
    once = wrapped(plain, inner)
    if outer in EXCLUSIVE.get(inner, ()):
        reasons = set(EXCLUDES[outer].values())
    elif is_in_order or inner == "robust":
        assert set(pair) <= wrapped(once, outer).traits
        return
    else:
        reasons = {
            *EXCLUDES[outer].values(),
            f"{outer} given around {inner}, expected {outer} inside of it: {step.outside}",
        }
    with pytest.raises(CompositionError) as caught:
        wrapped(once, outer)
    assert str(caught.value) in reasons


@pytest.mark.parametrize("before", ["whiten", "compensate", "unit"])
def test_a_robust_mean_and_what_is_done_to_features_give_the_same_in_either_order(before: str) -> None:
    plain = build("fedavg", FEATURE_COUNT, {**LOGISTIC, "unit": "feature", "rounds": 2})
    rng = np.random.default_rng(0)
    data = {
        name: {FEATURES: rng.normal(size=(40, FEATURE_COUNT + (before != "unit"))), LABELS: np.arange(40) % 2}
        for name in "abcd"
    }
    found = [
        encode(run(wrapped(wrapped(plain, first), second), data).server.global_state)
        for first, second in ((before, "robust"), ("robust", before))
    ]
    assert found[0] == found[1]


def test_a_sum_of_any_length_is_neither_masked_nor_compressed() -> None:
    plain = build("fedavg", FEATURE_COUNT, LOGISTIC)
    (phase,) = plain.phases
    opened = phase._replace(schema={**phase.schema, "weights": Field((range(9),), "delta")})
    for key in ("masking", "compression"):
        with pytest.raises(CompositionError, match=f"^{key} given for an algorithm that sends arrays of any length"):
            wrapped(plain._replace(phases=(opened,)), key)


def test_every_step_has_a_place_in_the_table() -> None:
    keys = [step.key for step in STEPS]
    assert set(COMMON_SETTINGS) - {"whiten_residual", "compensate_prior"} == set(keys) - {"defence"}
    assert keys == [*(key for key in CHOSEN), "defence"]
    known = {*keys, *FACTS, WINDOWS, CLOUD_NOISE, OWN_COLUMNS}
    assert all(trait in known for step in STEPS for trait in step.excludes)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.key)
def test_nothing_goes_around_an_algorithm_twice_or_where_its_reason_holds(step: Any) -> None:
    plain = build("fedavg", FEATURE_COUNT, LOGISTIC)
    check_composition(plain, step.key)
    with pytest.raises(CompositionError, match=f"^{step.key} given for an algorithm that has it, expected one without"):
        check_composition(having(plain, step.key), step.key)
    for trait, reason in step.excludes.items():
        if trait not in FACTS:
            with pytest.raises(CompositionError) as caught:
                check_composition(having(plain, trait), step.key)
            assert str(caught.value) == reason


def test_a_defence_stands_before_an_exchange_that_makes_a_model() -> None:
    """The search for a width ends with votes, so that a filter would never see a vector."""
    for rounds, reason in ((1, "made of rows that are kept"), (3, "last exchange only counts or votes")):
        algorithm = build("support-vector-election", 3, {"rounds": rounds})
        with pytest.raises(CompositionError, match=reason):
            with_update_filter(algorithm, Defence(kind="statistic"))
