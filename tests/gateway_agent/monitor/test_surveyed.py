"""A survey: what the site's scores look like, and a gateway that watches by them before it has a baseline."""

from __future__ import annotations

import numpy as np
import pytest

from fedgate.models.alarms.profile import cell_count
from fedgate.models.alarms.profile_spec import ProfileSpec
from fedgate.models.alarms.site_thresholds import levels_of, sketch
from fedgate.models.alarms.threshold import AlarmSpec
from fedgate.models.arrays import CALIBRATION, END_NS, FEATURES, Array, Arrays, generator
from fedgate.models.detectors import DETECTORS
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.protocol.schema import UpdateError
from fedgate.models.federated.wrappers.site_thresholds import site_of
from fedgate.models.testing.fleet import FEATURE_COUNT, NAMES, Gateway, fleet
from tests.support.given_width import build

PROFILE = {"block_h": 6, "days": "same"}


@pytest.fixture
def gateways() -> dict[str, Gateway]:
    return fleet(5, rows=400)


def trained(
    gateways: dict[str, Gateway], name: str = "federated-subspace", **settings: object
) -> tuple[Arrays, Arrays]:
    """Return what the cloud holds for all after a training, and what one gateway keeps."""
    data = {name: gateway.data for name, gateway in gateways.items()}
    outcome = run(build(name, FEATURE_COUNT, {"survey": {}, **settings}), data, seed=5)
    return outcome.server.global_state, outcome.local_states[NAMES[0]]


def test_the_survey_is_the_histogram_of_all_held_out_scores(gateways: dict[str, Gateway]) -> None:
    data = {name: gateway.data for name, gateway in gateways.items()}
    algorithm = build("federated-subspace", FEATURE_COUNT, {"survey": {}})
    outcome = run(algorithm, data, seed=5)
    score = DETECTORS[algorithm.detector].score
    expected = sum(
        sketch(score({**outcome.server.global_state, **outcome.local_states[name]}, rows[CALIBRATION]))
        for name, rows in data.items()
    )
    assert np.array_equal(site_of(outcome.server.global_state)["scores"], expected)
    assert float(site_of(outcome.server.global_state)["scores"].sum()) == sum(
        len(rows[CALIBRATION]) for rows in data.values()
    )


def test_the_model_is_as_without_a_survey(gateways: dict[str, Gateway]) -> None:
    shared, _ = trained(gateways)
    data = {name: gateway.data for name, gateway in gateways.items()}
    plain = run(build("federated-subspace", FEATURE_COUNT, {}), data, seed=5).server.global_state
    assert all(np.array_equal(shared[name], array) for name, array in plain.items())


def test_a_stranger_keeps_the_promise_by_the_level_of_the_site() -> None:
    """A gateway that took no part: its own units, the site's level, and about as many false alarms as promised."""
    shared, _ = trained(fleet(5, rows=4_000))
    windows_per_day, promised = 1_000.0, 20.0
    spec = AlarmSpec(false_alarms_per_day=promised)
    levels = levels_of(spec, site_of(shared)["scores"], windows_per_day)
    stranger = np.random.default_rng(9).normal(50.0, 3.0, size=(20_000, FEATURE_COUNT))
    units = {"center": stranger[:200].mean(axis=0), "scale": stranger[:200].std(axis=0)}
    scores = DETECTORS["subspace"].score({**shared, **units}, stranger[200:])
    rate = float((scores >= levels.raise_level).mean()) * windows_per_day
    assert promised / 1.5 < rate < promised * 1.5
    assert levels.samples == 4 * 2_000


def test_a_profile_is_the_sum_over_gateways_by_cell(gateways: dict[str, Gateway]) -> None:
    shared, _ = trained(gateways, survey={"profile": PROFILE})
    site, count = site_of(shared), cell_count(ProfileSpec.model_validate(PROFILE))
    assert site["count"].shape == (count,) and site["sum"].shape == (count, FEATURE_COUNT)
    assert float(site["count"].sum()) == sum(len(gateway.data[FEATURES]) for gateway in gateways.values())
    assert float(site["square"].sum()) == pytest.approx(float(site["count"].sum()) * FEATURE_COUNT)  # own units


@pytest.mark.parametrize(
    ("scores", "reason"),
    [
        (np.zeros(3), "expected shape"),
        (sketch(np.zeros(0)), "1 to"),
        (sketch(np.zeros(5)) - sketch(np.ones(1)), "expected 0 to 20000, got -1"),
        (1e9 * sketch(np.zeros(1)), "expected 0 to 20000"),
    ],
)
def test_a_histogram_that_no_rows_make_is_refused(scores: Array, reason: str) -> None:
    algorithm = build("federated-subspace", FEATURE_COUNT, {"survey": {}})
    with pytest.raises(UpdateError, match=reason):
        algorithm.phases[-1].admit(algorithm.start(generator(0, 0, "cloud")), {"scores": scores})


@pytest.mark.parametrize("missing", [CALIBRATION, END_NS])
def test_data_without_what_a_survey_needs_says_so(gateways: dict[str, Gateway], missing: str) -> None:
    data = {name: {key: array for key, array in g.data.items() if key != missing} for name, g in gateways.items()}
    with pytest.raises(ValueError, match=missing):
        run(build("federated-subspace", FEATURE_COUNT, {"survey": {"profile": PROFILE}}), data, seed=5)


def test_a_profile_too_large_for_a_manifest_is_refused() -> None:
    with pytest.raises(ValueError, match="take longer blocks"):
        build("federated-subspace", 300, {"survey": {"profile": {"block_h": 1, "days": "weekday"}}})
