"""What detectors check before they fit: rows, ν and widths, each refusal with its reason."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgate.config.protocol.wire import encode
from fedgate.models.arrays import Arrays, Floats
from fedgate.models.detectors.base import linear
from fedgate.models.detectors.base.checks import (
    MOST_ROWS,
    NARROW,
    PARTNERS,
    DataError,
    FitError,
    SettingError,
    kernel_width,
    median_distance,
    quantile_of,
    spread,
    squared_pair_distances,
)
from fedgate.models.detectors.svm import ocsvm, svdd
from fedgate.models.detectors.svm.ocsvm import OCSVM
from fedgate.models.detectors.svm.svdd import SVDD

FITS = {"ocsvm": OCSVM.fit, "svdd": SVDD.fit}


def mapped(x: Floats) -> Arrays:
    return linear.fit(x, None, np.random.default_rng(0), loss="one-class", components=32)


def noise(seed: int, rows: int = 60, features: int = 3) -> Floats:
    return np.random.default_rng(seed).normal(size=(rows, features))


def with_value(value: float) -> Floats:
    x = noise(1)
    x[17, 2] = value
    return x


BAD: list[tuple[Any, dict[str, Any], type[FitError], str]] = [
    (noise(1), {"nu": 0.0}, SettingError, "nu 0 given, expected above 0 and up to 1"),
    (noise(1), {"nu": 1.5}, SettingError, "nu 1.5 given"),
    (noise(1), {"nu": float("nan")}, SettingError, "nu nan given"),
    (noise(1), {"most_rows": 1}, SettingError, "most_rows 1 given, expected at least 2"),
    (noise(1), {"gamma": -1.0}, SettingError, "gamma -1 given, expected a positive number"),
    (noise(1), {"gamma": float("inf")}, SettingError, "gamma inf given"),
    (noise(1)[:1], {}, DataError, "1 rows given, expected at least 2"),
    (noise(1)[:0], {}, DataError, "0 rows given"),
    (noise(1)[0], {}, DataError, r"features of shape \(3,\) given, expected rows and columns"),
    (noise(1)[:, :0], {}, DataError, r"features of shape \(60, 0\) given"),
    (with_value(np.nan), {}, DataError, "row 17, column 2 is nan, expected finite values"),
    (with_value(-np.inf), {}, DataError, "row 17, column 2 is -inf"),
    (np.ones((9, 3)), {}, DataError, "all 9 rows are the same, expected rows that differ"),
    (noise(1), {"kernel": "poly"}, SettingError, "kernel 'poly' given, expected one of rbf, linear"),
    (noise(1), {"solver": "smo"}, SettingError, "solver 'smo' given, expected one of libsvm, sgd"),
    (noise(1), {"gamma": "Median"}, SettingError, "gamma 'Median' given, expected a positive number, 'median'"),
]


@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize(("x", "settings", "error", "reason"), BAD)
def test_what_cannot_be_fitted_is_explained(
    name: str, x: Floats, settings: dict[str, Any], error: type[FitError], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        FITS[name](x, **settings)


@pytest.mark.parametrize("name", FITS)
@pytest.mark.parametrize("solver", ["libsvm", "sgd"])
def test_repeated_rows_and_constant_features_are_no_trouble_with_a_width_given(name: str, solver: str) -> None:
    x = np.repeat(noise(2, 20), 3, axis=0)
    x[:, 1] = 4.0
    params = FITS[name](x, solver=solver)
    assert params["coefficients"].sum() == pytest.approx(1.0)


@given(count=st.integers(1, 300), most=st.integers(2, 100))
def test_the_rows_fitted_are_spread_over_all_of_them(count: int, most: int) -> None:
    x = np.arange(float(count))[:, None]
    rows = spread(x, most)[:, 0]
    assert len(rows) == min(count, most)
    assert (rows[0], rows[-1]) == (0.0, count - 1.0)
    gaps = np.diff(rows)
    assert len(gaps) == 0 or (gaps.min() >= 1.0 and gaps.max() - gaps.min() <= 1.0)


@pytest.mark.parametrize("name", FITS)
def test_of_many_rows_an_even_spread_is_fitted_and_always_the_same(name: str) -> None:
    x = noise(3, 400)
    bytes_of = {encode(FITS[name](x, most_rows=50)) for _ in range(3)}
    assert bytes_of == {encode(FITS[name](spread(x, 50)))}


def test_the_median_width_is_close_to_that_of_all_pairs_of_different_rows() -> None:
    x = noise(4, 50)
    distances = [float(np.linalg.norm(x[i] - x[j])) for i in range(50) for j in range(i)]
    sigma = median_distance(x)
    assert sigma == pytest.approx(float(np.median(distances)), rel=0.02)
    assert median_distance(x + 1e6) == pytest.approx(sigma, rel=1e-6)
    assert kernel_width("median", x) == 1.0 / (2.0 * sigma**2)
    assert kernel_width(None, x) == pytest.approx(NARROW / (2.0 * sigma**2), rel=1e-12)
    assert kernel_width(0.7, x) == 0.7
    assert float(OCSVM.fit(x, gamma="median")["gamma"]) == 1.0 / (2.0 * sigma**2)
    coarse = np.repeat(np.eye(2), [90, 10], axis=0)  # most pairs are equal, and have no distance
    assert median_distance(coarse) == pytest.approx(2.0**0.5)


@pytest.mark.parametrize(("count", "period"), [(768, 24), (384, 12), (384, 24), (1_008, 144)])
def test_quantiles_of_rows_that_come_back_every_day_are_those_of_all_pairs(count: int, period: int) -> None:
    """At a fixed step the partners of a row were of its own hour, and its distances those of the noise."""
    angles = 2.0 * np.pi * np.arange(count) / period
    x = np.stack([np.cos(angles), np.sin(angles)], axis=1) + 0.1 * noise(6, count)[:, :2]
    every = np.square(x[:, None] - x).sum(axis=2)[np.triu_indices(count, 1)]
    for share in (0.25, 0.5, 0.75):
        assert quantile_of(x)(share) == pytest.approx(float(np.quantile(every, share)), rel=0.1)
    assert np.array_equal(squared_pair_distances(x * 2.0**-20), squared_pair_distances(x) * 2.0**-40)


@pytest.mark.parametrize("count", [2, 3, 8, 33])
def test_few_rows_are_each_compared_with_every_other(count: int) -> None:
    x = noise(7, count)
    every = np.square(x[:, None] - x).sum(axis=2)[np.triu_indices(count, 1)]
    assert set(squared_pair_distances(x).round(9)) == set(every.round(9))


def test_of_many_rows_no_more_than_are_fitted_are_compared() -> None:
    assert len(squared_pair_distances(noise(8, 3 * MOST_ROWS))) == MOST_ROWS * PARTNERS


def test_the_median_of_many_rows_is_close_to_that_of_all() -> None:
    x = noise(5, 3_000)
    assert median_distance(x) == pytest.approx(median_distance(x[:500]), rel=0.1)


@pytest.mark.parametrize("unit", [1e-300, 1e-160, 1e-155, 1e155, 1e300])
@pytest.mark.parametrize("fit", [ocsvm.fit, svdd.fit, partial(svdd.fit, kernel="linear"), mapped])
def test_a_unit_whose_squares_are_no_numbers_is_explained(fit: Callable[..., Arrays], unit: float) -> None:
    """The solver said that gamma was infinite, that dual coefficients were, or that all rows were the same."""
    x = np.random.default_rng(1).normal(size=(60, 3))
    assert fit(x * 1e-140) and fit(x * 1e140)
    if unit > 1.0 or "linear" not in str(fit):  # which needs no width, and has no squares that could be zero
        with pytest.raises(DataError, match=r"(apart in the median|values up to).*, expected .*(another|larger) unit"):
            fit(x * unit)
