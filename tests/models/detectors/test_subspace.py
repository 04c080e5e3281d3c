"""The subspace detector: its border, its order, and what each of its three scores sees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from fedgate.models.arrays import Arrays, Floats
from fedgate.models.detectors import DETECTORS
from fedgate.models.detectors.base.checks import DataError, FitError, SettingError
from fedgate.models.detectors.base.pca import measured, principal
from fedgate.models.detectors.base.subspace import Which, bordered, fit, score
from fedgate.models.testing.fleet import onnx_scores

WHICH: tuple[Which, ...] = ("residual", "distance", "both")


def healthy(seed: int, count: int = 4_000, features: int = 12) -> Floats:
    """Normal rows: three strong directions, the rest weak, in units that differ by features."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(features, features)))[0]
    spread = np.r_[5.0, 4.0, 3.0, np.full(features - 3, 0.5)]
    return np.asarray((rng.normal(size=(count, features)) * spread) @ turn.T * np.linspace(1.0, 9.0, features) + 20.0)


@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("outside", [0.01, 0.05, 0.3])
def test_the_stated_share_of_healthy_rows_is_past_the_border(which: Which, outside: float) -> None:
    params = fit(healthy(1), components=3, which=which, outside=outside)
    assert outside / 2.0 < (score(params, healthy(2)) > 0.0).mean() < outside * 2.0


@given(rest=st.integers(3, 200), outside=st.floats(0.005, 0.5))
def test_the_border_is_the_quantile_of_chi_square(rest: int, outside: float) -> None:
    params: Arrays = {"components": np.zeros((rest + 4, 4)), "freedom": np.array(float(rest))}
    freedoms: dict[Which, int] = {"residual": rest, "distance": 4, "both": rest + 4}
    for which, freedom in freedoms.items():
        border = float(bordered(params, which, outside)["border"])
        assert border == pytest.approx(chi2.ppf(1.0 - outside, freedom) / freedom, abs=0.02, rel=0.03)


@pytest.mark.parametrize("which", WHICH)
def test_the_score_grows_with_the_distance(which: Which) -> None:
    params = fit(healthy(1), components=3, which=which)
    rng = np.random.default_rng(3)
    for direction in rng.normal(size=(10, 12)):
        probes = params["mean"] + 10.0 ** np.arange(-3, 6)[:, None] * direction
        assert (np.diff(score(params, probes)) > 0.0).all()


def test_each_score_sees_its_own_side() -> None:
    x, probes = healthy(1), healthy(2, 200)
    params = fit(x, components=3)
    deviation, components = params["deviation"], params["components"]
    along = deviation * components[:, 0] * 30.0
    across = deviation * np.linalg.svd(components)[0][:, 3] * 30.0
    sees: dict[Which, tuple[bool, bool]] = {"residual": (False, True), "distance": (True, False), "both": (True, True)}
    for which in WHICH:
        model = fit(x, components=3, which=which)
        for shift, seen in zip((along, across), sees[which], strict=True):
            moved, still = score(model, probes + shift), score(model, probes)
            assert (moved.min() > still.max()) if seen else np.allclose(moved, still, atol=1e-9)


def test_both_is_the_likelihood_of_probabilistic_principal_components() -> None:
    """Tipping and Bishop 1999, Eq. 7: C = WWᵀ + σ²I, whose inverse needs no subspace at all."""
    x, probes = healthy(1, 300), healthy(2, 50)
    params = fit(x, components=3)
    v = (probes - x.mean(axis=0)) / x.std(axis=0)
    values, vectors = np.linalg.eigh(np.corrcoef(x.T))
    values[:-3] = values[:-3].mean()
    mahalanobis = np.einsum("ni,ij,nj->n", v, vectors @ np.diag(1.0 / values) @ vectors.T, v)
    expected = np.log(mahalanobis / 12.0 + 1e-6) - np.log(float(params["border"]) + 1e-6)
    np.testing.assert_allclose(score(params, probes), expected, atol=1e-9)


def test_a_small_residual_keeps_its_digits_in_float32() -> None:
    """|v|² - |Pv|² of rows far along the subspace would leave nothing of a small residual."""
    x = healthy(1)
    params = fit(x, components=3, which="residual")
    far = params["mean"] + params["deviation"] * (params["components"][:, 0] * 300.0)
    across = params["deviation"] * np.linalg.svd(params["components"])[0][:, 3]
    probes = np.asarray(far + np.linspace(0.2, 3.0, 20)[:, None] * across, dtype=np.float32)
    found = onnx_scores(DETECTORS["subspace"].graph(params, ()), probes)
    np.testing.assert_allclose(found, score(params, probes), atol=1e-2)
    assert (np.diff(found) > 0.0).all()


def test_directions_do_not_depend_on_signs_and_are_finite_where_nothing_moves() -> None:
    covariance = np.cov(healthy(1).T)
    found, again = principal(covariance, 3), principal(covariance.copy(), 3)
    assert all(np.array_equal(found[name], again[name]) for name in found)
    assert (found["components"][np.abs(found["components"]).argmax(axis=0), range(3)] > 0.0).all()
    still = principal(np.zeros((4, 4)), 2)
    assert all(np.isfinite(array).all() for array in still.values())
    assert (still["eigenvalues"] > 0.0).all()
    assert still["freedom"] == pytest.approx(2.0)


def test_more_components_than_features_leave_one_for_the_residual() -> None:
    params = fit(healthy(1), components=50)
    assert params["components"].shape == (12, 11)
    assert np.isfinite(measured(params, healthy(2))[1]).all()


@pytest.mark.parametrize(
    ("x", "settings", "error", "reason"),
    [
        (np.ones((50, 4)), {}, DataError, "all 50 rows are the same"),
        (np.eye(4)[:1], {}, DataError, "1 rows given, expected at least 2"),
        (np.full((9, 4), np.nan), {}, DataError, "row 0, column 0 is nan"),
        (np.eye(9, 1), {}, DataError, "1 feature given, expected at least 2"),
        (np.eye(9, 4), {"components": 0}, SettingError, "components 0 given"),
        (np.eye(9, 4), {"which": "foo"}, SettingError, "which 'foo' given, expected one of residual"),
        (np.eye(9, 4), {"outside": 2.0}, SettingError, "outside 2 given, expected a share"),
    ],
)
def test_what_cannot_be_fitted_is_explained(
    x: Floats, settings: dict[str, Any], error: type[FitError], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        fit(x, **settings)
