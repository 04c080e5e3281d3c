"""No decision hangs on the last bit of a sum: another processor, library or order of arrival has another one.

Method: what is decided is given the same numbers once more, off by what rounding leaves, and must be as before; off by
more than that, it must not.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper

from fedgate.cloud_aggregator.events import Log
from fedgate.cloud_aggregator.releases.releases import ModelRelease, dump, restore
from fedgate.config.protocol.transfer import describe
from fedgate.models.arrays import FEATURES, Arrays, Floats, alike, generator
from fedgate.models.detectors.base import subspace
from fedgate.models.detectors.base.graph import is_alike
from fedgate.models.detectors.esn import ridge_readout
from fedgate.models.federated.averaging.local_dual import AFTER, ROWS, fingerprint, holds
from fedgate.models.federated.defences.norm_filter import _bin_of
from fedgate.models.federated.protocol.contributions import BEFORE, STEP, difference
from fedgate.models.federated.protocol.kernel_width import counted, quantile
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.support_vectors.median_election import LOSS, MEDIAN, PENDING
from fedgate.models.units import COMMON
from tests.cloud_aggregator.releases.test_staged_release import fleet
from tests.gateway_agent.deployment.test_gateway_models import signed
from tests.support.given_width import build
from tests.support.sites import receive_model, stop_rollout, with_record
from tests.support.watchers import CALM, SENSITIVE

LAST_BIT, REAL = 2.0**-52, 1e-4


def nudged(body: bytes, share: float) -> bytes:
    """Return a model whose constants, but for zeros, are larger by so much of themselves and by one float32."""
    model = ModelProto.FromString(body)
    for one in model.graph.initializer:
        array = numpy_helper.to_array(one)
        if array.dtype == np.float32:
            far = np.where(array == 0.0, array, np.nextafter(array * np.float32(1.0 + share), np.float32(np.inf)))
            one.CopyFrom(numpy_helper.from_array(far, one.name))
    return bytes(model.SerializeToString(deterministic=True))


def again(one: ModelRelease, share: float) -> ModelRelease:
    """Return a model that the training has made again, under the next version."""
    body = nudged(one.body, share)
    made = signed(one.manifest, version=one.manifest.version + 1, model=describe(body, 122_880))
    assert made.model.digest != one.manifest.model.digest
    return ModelRelease(made, body)


@pytest.mark.parametrize("other", [1.0 + LAST_BIT, 1.0 + 2e-7])
def test_arrays_are_alike_up_to_rounding_and_no_further(other: float) -> None:
    rows = np.array([[1.0, -300.0], [0.0, 2.5]])
    one = {"x": rows, "count": np.array([3, 4])}
    assert alike(one, {**one, "x": rows * other})
    assert alike(one, {**one, "x": rows + 1e-5})  # of 300
    endless = np.full_like(rows, np.inf)
    for wrong in (
        rows * (1.0 + 1e-5),
        rows + 1e-3,
        rows[:1],
        rows.astype(np.int64),
        np.full_like(rows, np.nan),
        endless,
    ):
        assert not alike(one, {**one, "x": wrong})
    assert not alike(one, {**one, "count": np.array([3, 5])}) and not alike(one, {"x": rows})
    assert not alike({"x": endless}, {"x": -endless})


def test_a_model_is_alike_whose_constants_are_and_whose_nodes_are_the_same() -> None:
    body = CALM[1]
    assert is_alike(body, nudged(body, 0.0)) and body != nudged(body, 0.0)
    assert not is_alike(body, nudged(body, REAL))
    other = ModelProto.FromString(body)
    other.graph.node[0].name = "another"
    assert not is_alike(body, other.SerializeToString())


def moved(body: bytes, **by: Floats) -> bytes:
    """Return a model with so much added to the constants of these names, in float32 as they travel."""
    model, left = ModelProto.FromString(body), set(by)
    for one in model.graph.initializer:
        if one.name in by:
            array = np.asarray(numpy_helper.to_array(one) + by[one.name], dtype=np.float32)
            one.CopyFrom(numpy_helper.from_array(array, one.name))
            left.discard(one.name)
    assert not left
    return bytes(model.SerializeToString(deterministic=True))


UNITS = np.array([100.0, 1e-6, 1.0])  # a pressure, a displacement, and a third beside them


def test_a_model_is_another_where_a_feature_of_a_small_unit_has_moved() -> None:
    """Beside a pressure of 101 325 Pa, five deviations of a displacement were rounding."""
    rows = np.array([101_325.0, 1e-6, 0.0]) + np.random.default_rng(4).normal(size=(200, 3)) * UNITS
    body = subspace.SUBSPACE.graph(subspace.fit(rows, components=1), ())
    for name in ("subspace.mean", "subspace.deviation"):
        for place in range(3):
            step = np.where(np.arange(3) == place, UNITS, 0.0)
            assert not is_alike(body, moved(body, **{name: 0.1 * step}))
        assert is_alike(body, moved(body, **{name: 2e-7 * UNITS}))  # of a deviation, where the mean itself may be zero
    assert is_alike(body, nudged(body, 0.0))


def test_a_model_is_another_where_a_covariate_of_a_large_unit_counts_otherwise() -> None:
    step = {
        "compensation.columns": np.array([0, 1]),
        "compensation.others": np.array([2, 3]),
        "compensation.mean": np.array([101_325.0, 1e-3]),
        "compensation.slopes": np.array([[1e-5, 1e-11], [10.0, 1e-5]]),
        "compensation.deviation": np.array([1.0, 1e-6]),
    }
    inside = subspace.fit(np.random.default_rng(4).normal(size=(200, 2)), components=1)
    body = subspace.SUBSPACE.graph({**step, **inside}, ())
    for name in ("compensation.mean", "compensation.slopes", "compensation.deviation"):
        for place in np.ndindex(step[name].shape):
            by = np.zeros(step[name].shape)
            by[place] = 0.1 * step[name][place]
            assert not is_alike(body, moved(body, **{name: by})), (name, place)
    assert is_alike(body, nudged(body, 0.0))


@pytest.mark.parametrize(("share", "is_new"), [(0.0, False), (REAL, True)])
def test_a_model_that_differs_by_rounding_is_not_released_again(share: float, is_new: bool) -> None:
    cloud = fleet("east").cloud
    assert cloud.releases.everywhere is not None
    new = again(cloud.releases.everywhere, share)
    state, effects = receive_model(cloud, new)
    said = [effect.text for effect in effects if isinstance(effect, Log)]
    assert (said == ["model 1 is as it was, nothing to release"]) is not is_new
    assert (state.releases.waiting is not None) is is_new


@pytest.mark.soak
def test_a_model_that_was_stopped_is_known_again_after_a_restart() -> None:
    made = fleet()
    made.order("release", SENSITIVE, gateways=["south"])
    made.told()
    assert made.order("stop")[1] == ""
    made.told()
    made.restart("cloud")
    candidate = made.cloud.releases.candidate
    assert candidate is not None and candidate.body == SENSITIVE[1]
    for share, is_known in ((0.0, True), (REAL, False)):
        state, effects = receive_model(made.cloud, again(candidate, share))
        assert (state == made.cloud) is is_known
        assert (
            any("whose release was stopped" in effect.text for effect in effects if isinstance(effect, Log)) is is_known
        )


@pytest.mark.soak
def test_what_waits_is_dropped_where_it_is_what_was_stopped() -> None:
    made = fleet()
    made.order("release", SENSITIVE, gateways=["south"])
    candidate = made.cloud.releases.candidate
    assert candidate is not None
    for share, waits in ((0.0, False), (REAL, True)):
        state = with_record(made.cloud, "releases", waiting=again(candidate, share))
        state, _ = stop_rollout(state, "it was bad")
        assert (state.releases.waiting is not None) is waits


def test_rows_that_give_the_same_but_for_rounding_have_not_changed() -> None:
    sums = {"gram": np.array([400.0, 3.0, 0.2]), "samples": np.array(400.0)}
    own = {f"{BEFORE}.{name}": array for name, array in {**sums, STEP: np.array(3)}.items()}
    after, change = difference(own, {name: array * (1.0 + 1e-9) for name, array in sums.items()}, 4, {})
    assert not any(array.any() for array in change.values())
    assert after["sent.gram"].tolist() == sums["gram"].tolist()  # or the sums would drift, a bit a round
    _, change = difference(own, {**sums, "gram": sums["gram"] + [1.0, 0.0, 0.0]}, 4, {})
    assert change["gram"].tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("classes", [0, 2])
def test_rows_have_changed_where_only_a_feature_of_a_small_unit_has(classes: int) -> None:
    """Pascals beside metres: beside the squares of the former all of the latter is rounding."""
    rng, units = np.random.default_rng(2), np.array([1e5, 1e-6, 1.0])
    states, targets = rng.normal(size=(50, 3)) * units, rng.normal(size=(50, 2)) * units[:2]
    shifted = states + np.array([0.0, 1e-7, 0.0])

    def summed(rows: Floats) -> Arrays:
        found = ridge_readout.sums(rows, targets)
        return found | ({"gram": np.array([found["gram"]] * classes)} if classes else {})

    before = summed(states)
    own = {f"{BEFORE}.{name}": array for name, array in {**before, STEP: np.array(3)}.items()}
    for rows, is_new in ((states * (1.0 + 1e-9), False), (shifted, True)):
        present = summed(rows)
        _, change = difference(own, present, 4, ridge_readout.sizes(present))
        assert any(array.any() for array in change.values()) is is_new


def test_a_gateway_knows_its_rows_again_and_no_others() -> None:
    phi = np.random.default_rng(0).normal(size=(200, 16))
    own = {ROWS: fingerprint(phi), AFTER: np.zeros(200)}
    assert holds(own, phi) and holds(own, phi * (1.0 + 4 * LAST_BIT))
    for wrong in (phi[:-1], phi[::-1], np.concatenate([phi[1:], phi[:1]]), phi[:, :8]):
        assert not holds(own, wrong)
    swapped = phi.copy()
    swapped[[7, 8]] = phi[[8, 7]]
    assert not holds(own, swapped)
    assert not holds({ROWS: np.array(17), AFTER: np.zeros(200)}, phi)  # a digest, as an older agent left it


@pytest.mark.parametrize(("share", "is_elected"), [(1.0 - LAST_BIT, True), (1.0 - 1e-6, False)])
def test_gateways_with_the_same_loss_are_elected_together(share: float, is_elected: bool) -> None:
    algorithm = build("conditional-fedavg", 3, {"components": 8})
    data = {FEATURES: np.random.default_rng(1).normal(size=(40, 3))}
    server = algorithm.start(generator(0, 0, "cloud"))
    own, _ = algorithm.phases[0].train(server.global_state, Arrays(), data, generator(0, 0, "a"))
    shared = {**server.global_state, MEDIAN: own[f"{PENDING}{LOSS}"] * share}
    assert bool(algorithm.phases[1].train(shared, own, data, generator(0, 1, "a"))[1]) is is_elected


@pytest.mark.parametrize("length", [0.5, 1.0, 2.0**0.25, 1024.0])
def test_a_length_on_the_edge_of_a_bin_is_in_the_one_above(length: float) -> None:
    assert len({_bin_of(length * share) for share in (1.0 - 1e-13, 1.0, 1.0 + 1e-13)}) == 1
    assert _bin_of(length * (1.0 - 1e-6)) == _bin_of(length) - 1


@pytest.mark.soak
def test_what_was_stopped_lies_in_the_store_with_the_release() -> None:
    made = fleet()
    made.order("release", SENSITIVE, gateways=["south"])
    made.order("stop")
    body, models = dump(made.cloud.releases), made.staged.models
    found = restore(body, models.get, None)
    assert found.candidate == made.cloud.releases.candidate is not None


def unit_of(rows: Floats) -> float:
    """Return the common unit of one gateway with rows (n, F)."""
    algorithm = build("incfed", rows.shape[1], {"normalisation": "none", "unit": "common"})
    return float(run(algorithm, {"west": {FEATURES: rows}}, rounds=1).server.global_state[COMMON])


@pytest.mark.soak
@pytest.mark.parametrize("bits", [np.float64, np.float32])
def test_a_common_unit_is_the_same_for_rows_on_the_edge_between_two(bits: type) -> None:
    """Rows of length 1 with eight features have a mean square of 1 / 8: half way, in octaves, from 1 / 4 to 1 / 2."""
    rows = np.random.default_rng(3).normal(size=(64, 8))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(bits).astype(np.float64)
    squares = np.square(rows).mean(axis=1)
    assert (squares < 0.125).any() and (squares >= 0.125).any()
    units = [unit_of(rows * (1.0 + many * float(np.finfo(bits).eps))) for many in range(-3, 4)]
    assert units == [0.5] * len(units) and unit_of(rows * (1.0 - REAL)) == 0.25


@pytest.mark.parametrize("bits", [np.float64, np.float32])
def test_a_kernel_width_is_the_same_for_distances_on_the_edge_of_a_bin(bits: type) -> None:
    nearly = np.asarray(2.0 * (1.0 + np.arange(-4, 5) * float(np.finfo(bits).eps)), dtype=np.float64)
    np.testing.assert_array_equal(counted(nearly), counted(np.full(9, 2.0)))
    assert quantile(counted(np.full(9, 2.0 - REAL)), 0.5) < 2.0 <= quantile(counted(nearly), 0.5)
