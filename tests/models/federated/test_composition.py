"""The table of what goes around an algorithm: each pair composes, or is refused with the reason that stands in it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from fedgate.models.federated import COMMON_SETTINGS, build
from fedgate.models.federated.defences.wrapper import Defence, with_update_filter
from fedgate.models.federated.protocol.algorithm import Algorithm
from fedgate.models.federated.protocol.composition import (
    CLOUD_NOISE,
    FACTS,
    OWN_COLUMNS,
    STEPS,
    WINDOWS,
    CompositionError,
    check_composition,
    having,
)
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
REASONS = {reason for step in STEPS for reason in step.excludes.values()}


def composed(name: str, settings: dict[str, Any], keys: tuple[str, ...]) -> Algorithm:
    chosen = {key: CHOSEN[key] for key in keys if key in CHOSEN}
    algorithm = build(name, FEATURE_COUNT, {**settings, **chosen})
    return with_update_filter(algorithm, Defence(kind="statistic")) if "defence" in keys else algorithm


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
