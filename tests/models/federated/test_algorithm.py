"""What all algorithms share: judging an update, normalising features, building from settings."""

from __future__ import annotations

from inspect import Parameter, signature
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as any_array

from fedgate.config.settings.settings import Baseline
from fedgate.models.arrays import FEATURES, LABELS, Array, Arrays
from fedgate.models.detectors.esn.network import Network
from fedgate.models.federated import ALGORITHMS, build
from fedgate.models.federated.protocol.algorithm import MAX_SAMPLES, normalise
from fedgate.models.federated.protocol.schema import LARGEST, Field, UpdateError, fitted
from fedgate.models.units import scales

# Units from nanostrain to pascals of a bearing: what a feature is measured in must not matter.
MAGNITUDES = st.integers(-12, 9).map(lambda power: 10.0**power)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.int32, np.uint64])
def test_numbers_of_any_type_are_admitted_as_float64(dtype: type[np.generic]) -> None:
    admitted = fitted({"w": Field((2,), "sum")}, {}, {"w": np.array([1, 2], dtype=dtype)})
    assert admitted["w"].dtype == np.float64
    assert admitted["w"].tolist() == [1.0, 2.0]


def test_admitted_updates_cannot_overflow_their_sum() -> None:
    most = fitted({"w": Field((2,), "sum")}, {}, {"w": np.array([LARGEST, -LARGEST])})
    with np.errstate(over="raise", invalid="raise"):
        assert np.isfinite(np.float32(np.square(most["w"]) * 100_000)).all()
    with pytest.raises(UpdateError, match=r"w: expected values up to 1e\+15, got 2e\+15"):
        fitted({"w": Field((2,), "sum")}, {}, {"w": np.array([0.0, -2.0 * LARGEST])})


def test_a_wider_bound_may_be_asked_for() -> None:
    most = {"w": np.array([50.0 * LARGEST])}
    assert fitted({"w": Field((1,), "sum", largest=100.0 * LARGEST)}, {}, most)["w"].tolist() == most["w"].tolist()
    with pytest.raises(UpdateError, match=r"w: expected values up to 3, got 4"):
        fitted({"w": Field((1,), "sum", largest=3.0)}, {}, {"w": np.array([4.0])})


@pytest.mark.parametrize(
    "name", [name for name in ALGORITHMS if "max_samples" in signature(ALGORITHMS[name]).parameters]
)
def test_by_default_no_gateway_counts_for_more_than_the_longest_baseline(name: str) -> None:
    longest = next(each.le for each in Baseline.model_fields["windows"].metadata if hasattr(each, "le"))
    assert signature(ALGORITHMS[name]).parameters["max_samples"].default == longest == MAX_SAMPLES


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        ({}, r"expected arrays \['n', 'w'\], got \[\]"),
        ({"w": np.zeros((1, 2))}, r"expected arrays \['n', 'w'\], got \['w'\]"),
        ({"w": np.zeros((1, 3)), "n": np.array(1)}, r"w: expected shape \(0 to 8, 2\), got \(1, 3\)"),
        ({"w": np.zeros(2), "n": np.array(1)}, r"w: expected shape \(0 to 8, 2\), got \(2,\)"),
        ({"w": np.zeros((1, 2)), "n": np.array("1")}, "n: expected numbers, got <U1"),
        ({"w": np.zeros((1, 2)), "n": np.array(np.nan)}, "expected finite values, got NaN"),
    ],
)
def test_a_refusal_says_what_was_found_and_what_was_expected(update: Arrays, reason: str) -> None:
    with pytest.raises(UpdateError, match=reason):
        fitted({"w": Field((range(9), 2), "sum"), "n": Field((), "weight")}, {}, update)


def test_units_are_those_of_healthy_rows() -> None:
    x = np.array([[1.0], [3.0], [90.0]])
    own, z = normalise({}, {FEATURES: x, LABELS: np.array([0, 0, 2])}, "own")
    assert (own["center"].tolist(), own["scale"].tolist(), z.tolist()) == ([2.0], [1.0], [[-1.0], [1.0], [88.0]])
    with pytest.raises(ValueError, match="every row is labelled as a fault; expected normal rows"):
        normalise({}, {FEATURES: x, LABELS: np.ones(3)}, "own")


@given(
    any_array(np.float64, (12, 2), elements=st.integers(-50, 50).map(float)),
    any_array(np.float64, (2,), elements=MAGNITUDES),
    any_array(np.float64, (2,), elements=st.integers(-50, 50).map(float)),
)
def test_normalised_features_do_not_depend_on_unit_and_origin(x: Array, unit: Array, origin: Array) -> None:
    _, z = normalise({}, {FEATURES: x}, "own")
    _, same = normalise({}, {FEATURES: (x + origin) * unit}, "own")
    np.testing.assert_allclose(same, z, atol=1e-9)
    moved = x.std(axis=0) > 0
    np.testing.assert_allclose(z.mean(axis=0), 0.0, atol=1e-9)
    np.testing.assert_allclose(z.std(axis=0), np.where(moved, 1.0, 0.0), atol=1e-9)


@given(st.floats(-1e6, 1e6))
def test_a_feature_that_moves_by_rounding_alone_is_constant(level: float) -> None:
    """Features are float32: its last digit flickers, and a flicker must not be blown up to unit size."""
    exact = np.float32(level)
    x = np.array([[exact], [np.nextafter(exact, np.float32(np.inf))], [exact]], dtype=np.float32)
    own, z = normalise({}, {FEATURES: x}, "own")
    if abs(level) > 1e-30:  # nearer to zero a step of float32 is no share of the level
        assert own["scale"] == pytest.approx(abs(float(np.mean(x, dtype=np.float64))) * 2.0**-18)
        assert np.abs(z).max() < 1.0 / 16.0


@pytest.mark.parametrize("level", [2.0**-30, 1.0, 3e5])
def test_the_scale_of_a_feature_makes_no_jump(level: float) -> None:
    """A thousandth more of movement once made a scale a thousandth of what it was."""
    deviation = level * np.geomspace(1e-9, 1e-3, 5_000)
    found = scales(np.full(5_000, level), deviation)
    assert (np.diff(found) >= 0.0).all() and (found[1:] / found[:-1] < 1.01).all()
    assert (found >= deviation).all() and found[-1] == deviation[-1] and found[0] == level * 2.0**-18
    np.testing.assert_array_equal(scales(np.full(5_000, level * 2.0**40), deviation * 2.0**40), found * 2.0**40)


@pytest.mark.parametrize("level", [1e8, 1e10])
def test_a_flicker_of_a_large_constant_is_not_large(level: float) -> None:
    exact = np.float32(level)
    x = np.array([[exact], [np.nextafter(exact, np.float32(np.inf))]] * 5, dtype=np.float32)
    _, z = normalise({}, {FEATURES: x}, "own")
    assert np.abs(z).max() < 1.0


@pytest.mark.parametrize("unit", [2.0**-40, 2.0**-20, 1.0, 2.0**20])
@pytest.mark.parametrize(("level", "moved", "least"), [(0.0, 50.0, 1e3), (20.0, 20.1, 40.0)])
def test_what_stood_still_and_moves_is_far_away_in_any_unit(
    unit: float, level: float, moved: float, least: float
) -> None:
    """With a scale of one the same event was fifty deviations in micrometres, and nothing in metres."""
    own, _ = normalise({}, {FEATURES: np.full((50, 1), level * unit, dtype=np.float32)}, "own")
    _, z = normalise(own, {FEATURES: np.array([[level * unit], [moved * unit]], dtype=np.float32)}, "own")
    assert z[0, 0] == 0.0 and least < z[1, 0] + 1.0 and z[1, 0] <= 1e3


def test_centre_and_scale_are_kept_from_the_first_time() -> None:
    first, _ = normalise({"head": np.ones(1)}, {FEATURES: np.array([[1.0], [3.0]])}, "own")
    assert {name: array.tolist() for name, array in first.items()} == {"head": [1.0], "center": [2.0], "scale": [1.0]}
    again, z = normalise(first, {FEATURES: np.array([[5.0], [7.0], [9.0]])}, "own")
    assert again is first
    assert z.tolist() == [[3.0], [5.0], [7.0]]


def test_without_normalisation_features_stay_as_they_are() -> None:
    own, z = normalise({}, {FEATURES: np.array([[1, 3]], dtype=np.float32)}, "none")
    assert own == {}
    assert z.tolist() == [[1.0, 3.0]]
    assert z.dtype == np.float64


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_builds_from_nothing_and_from_its_own_defaults(name: str) -> None:
    parameters = signature(ALGORITHMS[name]).parameters.values()
    defaults = {each.name: each.default for each in parameters if each.default is not Parameter.empty}
    assert build(name, 3, {}).detector == build(name, 3, defaults).detector
    assert len(defaults) == len(parameters) - 1


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("fedavgg", {}, "'fedavgg' is unknown; expected one of fedavg,"),
        ("fedavg", {"epoch": 3}, "'epoch' is unknown to fedavg; expected one of loss, local, "),
        ("fedavg", {"feature_count": 3}, "'feature_count' is unknown"),
        ("fedavg", {"epochs": 0}, r"(?s)epochs.*greater than or equal to 1.*0"),
        ("fedavg", {"epochs": "many"}, r"(?s)epochs.*valid integer.*many"),
        ("fedavg", {"batch": -1}, r"(?s)batch.*greater than or equal to 1"),
        ("fedavg", {"loss": "hinge"}, r"(?s)loss.*'one-class' or 'logistic'"),
        ("fedavg", {"nu": 0.0}, r"(?s)nu.*greater than 0"),
        ("fedavg", {"gamma": float("inf")}, r"(?s)gamma.*finite"),
        ("fedavg", {"learning_rate": float("nan")}, r"(?s)learning_rate.*finite"),
        ("support-vector-election", {"nu": 1.5}, r"(?s)nu.*less than or equal to 1"),
        ("support-vector-election", {"c": 0.0}, r"(?s)c.*greater than 0"),
        ("support-vector-election", {"sigma": 0.0}, r"(?s)sigma.*greater than 0"),
        ("support-vector-election", {"tau": 0.0}, r"(?s)tau.*greater than 0"),
        ("support-vector-election", {"epsilon": 1.0}, r"(?s)epsilon.*less than 1"),
        ("support-vector-election", {"max_vectors": 0}, r"(?s)max_vectors.*greater than or equal to 2"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(name: str, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        build(name, 3, settings)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("robust-svm-admm", {"kappa": True}),
        ("robust-svm-admm", {"radius": True}),
        ("robust-svm-admm", {"radius": {"confidence": 0.9, "c2": True}}),
        ("robust-svm-subgradient", {"box": [0, True]}),
        ("incfed", {"network": {"units": True}}),
        ("incfed", {"network": {"task": "reconstruct", "targets": [True]}}),
        ("fedavg", {"whiten": True}),
        ("fedavg", {"whiten": 1, "whiten_residual": True}),
        ("fedavg", {"compensate": [True]}),
        ("fedavg", {"survey": {"profile": {"least": True}}}),
        ("fedavg", {"masking": {"fewest": True}}),
        ("fedavg", {"nu": "0.2"}),
    ],
)
def test_what_is_no_number_is_not_taken_for_one(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"should be a valid (number|integer)"):
        build(name, 3, settings)


def test_settings_may_be_numbers_of_numpy_and_lists() -> None:
    assert build("fedavg", 3, {"rounds": np.int64(3), "nu": np.float32(0.5), "compensate": [0]}).rounds == 3
    assert build("esn-fedavg", 3, {"network": {"task": "classify"}, "class_weights": [1, 2.5]}).labels
    network = {"units": np.int64(20), "targets": [np.int64(0)], "task": "reconstruct"}
    assert build("incfed", 6, {"network": network}).detector == "esn"
    assert Network(units=np.int64(20)).units == 20  # type: ignore[arg-type]  # as a grid of numpy gives it
    assert build("fedavg", 3, {"compensate": tuple(np.flatnonzero([True, False, False]))}).traits
