"""From a gateway's rows to regressors and targets: units, labels, gaps, and the identity of the reservoir."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.models.arrays import FEATURES, LABELS, MISSING, NEW_SERIES, Arrays, Floats
from fedgate.models.detectors.base.checks import DataError
from fedgate.models.detectors.esn import esn, ridge_readout
from fedgate.models.detectors.esn.network import EchoStateWarning, Network
from fedgate.models.detectors.esn.reservoir import DIGEST, IDENTITY, SEED, identity
from fedgate.models.federated.closed_form.series import OF_RESERVOIR, STEP, Lesson, lesson, without_gaps
from fedgate.models.federated.protocol.schema import Field, UpdateError, fitted

COUNT = 4
SMALL: dict[str, Any] = {"units": 8, "washout": 5}
SCHEMA = {"gram": Field((3,), "sum"), IDENTITY: OF_RESERVOIR}


def rows(seed: int, count: int = 40) -> Floats:
    return np.asarray(np.random.default_rng(seed).normal(3.0, 2.0, size=(count, COUNT)))


def made(**settings: Any) -> tuple[Network, Arrays]:
    network = Network.model_validate({**SMALL, **settings})
    return network, esn.initial(np.random.default_rng(0), network, COUNT)


def taught(data: Arrays, own: Arrays | None = None, mode: str = "own", **settings: Any) -> Lesson:
    network, shared = made(**settings)
    return lesson(network, shared, own or {}, data, mode)


def test_rows_are_taught_in_the_gateways_own_units() -> None:
    x = rows(1)
    found = taught({FEATURES: x})
    z = (x - x.mean(axis=0)) / x.std(axis=0)
    np.testing.assert_allclose(found.targets, z[5:])
    np.testing.assert_allclose(found.regressors[:, 8:-1], z[4:-1], rtol=1e-5, atol=1e-6)
    assert found.rows.tolist() == list(range(5, 40))
    assert found.regressors.dtype == np.float32
    np.testing.assert_array_equal(found.local_state["scale"], x.std(axis=0))
    later = taught({FEATURES: x + 100.0}, found.local_state)
    assert later.local_state == found.local_state  # the first units stay


def test_without_normalisation_rows_are_taken_as_they_are() -> None:
    x = rows(2)
    found = taught({FEATURES: x}, mode="none")
    assert found.local_state == {}
    np.testing.assert_array_equal(found.targets, x[5:].clip(-8.0, 8.0))


def test_what_is_wild_teaches_no_more_than_the_clip() -> None:
    x = rows(3)
    x[20] = 1e9
    found = taught({FEATURES: x}, {"center": np.zeros(COUNT), "scale": np.ones(COUNT)}, clip=4.0)
    assert np.abs(found.targets).max() == np.abs(found.regressors).max() == 4.0


@pytest.mark.parametrize("settings", [{}, {"task": "reconstruct", "targets": (2,)}])
def test_only_classes_need_labels_and_only_they_look_at_them(settings: dict[str, Any]) -> None:
    x, labels = rows(4), np.arange(40) % 2
    plain, labelled = taught({FEATURES: x}, **settings), taught({FEATURES: x, LABELS: labels}, **settings)
    for one, other in zip(plain[1:], labelled[1:], strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(plain.local_state["center"], labelled.local_state["center"])
    with pytest.raises(ValueError, match="task 'classify' needs labels in the data and found none"):
        taught({FEATURES: x}, task="classify")


def test_reconstruction_is_taught_by_the_columns_named() -> None:
    x = rows(5)
    found = taught({FEATURES: x}, mode="none", task="reconstruct", targets=(2, 0))
    np.testing.assert_array_equal(found.targets, x[5:, [2, 0]].clip(-8.0, 8.0))
    np.testing.assert_array_equal(found.regressors[:, 8:-1], x[5:, [1, 3]].clip(-8.0, 8.0).astype(np.float32))


def test_classes_are_one_hot_and_normal_rows_give_the_scale() -> None:
    x, labels = rows(6), np.arange(40) % 3
    found = taught({FEATURES: x, LABELS: labels}, task="classify", classes=3)
    np.testing.assert_array_equal(found.classes, labels[5:])
    np.testing.assert_array_equal(found.targets, np.eye(3)[labels[5:]])
    np.testing.assert_array_equal(found.local_state["center"], x[labels == 0].mean(axis=0))


def test_a_row_without_a_label_is_heard_and_teaches_nothing() -> None:
    x, labels = rows(7), np.arange(40) % 2
    unsure = np.where(np.arange(40) % 5 == 3, -1, labels)
    all_rows = taught({FEATURES: x, LABELS: labels}, mode="none", task="classify")
    some = taught({FEATURES: x, LABELS: unsure}, mode="none", task="classify")
    kept = np.flatnonzero(unsure[5:] >= 0)
    np.testing.assert_array_equal(some.regressors, all_rows.regressors[kept])
    np.testing.assert_array_equal(some.rows, all_rows.rows[kept])


@pytest.mark.parametrize("label", [2, 0.5])
def test_a_label_that_is_no_class_is_refused(label: float) -> None:
    labels = np.where(np.arange(40) == 20, label, 0)
    with pytest.raises(DataError, match=f"class {label:g}.* given, expected whole numbers from 0 to 1"):
        taught({FEATURES: rows(8), LABELS: labels}, task="classify")


def test_every_step_of_a_row_is_taught_its_class() -> None:
    labels = np.arange(40) % 2
    found = taught({FEATURES: rows(9), LABELS: labels}, task="classify", steps=2)
    assert found.rows.tolist() == [row for row in range(40) for _ in range(2)][5:]
    np.testing.assert_array_equal(found.classes, labels[found.rows])


@pytest.mark.soak
@given(lengths=st.lists(st.integers(1, 15), min_size=1, max_size=5), gap=st.sampled_from([NEW_SERIES, 3, 100]))
@settings(deadline=None, max_examples=25)
def test_the_sums_of_many_series_are_those_of_one_with_resets(lengths: list[int], gap: int) -> None:
    x = rows(10, sum(lengths))
    missing = np.zeros(len(x) + 1, dtype=np.int64)
    missing[np.cumsum(lengths)] = gap
    whole = taught({FEATURES: x, MISSING: missing[:-1]}, mode="none")
    parts = [taught({FEATURES: part}, mode="none") for part in np.split(x, np.cumsum(lengths)[:-1])]
    joined = ridge_readout.sums(*(np.concatenate([getattr(each, name) for each in parts]) for name in NAMES))
    for name, array in ridge_readout.sums(whole.regressors, whole.targets).items():
        np.testing.assert_allclose(array, joined[name], rtol=1e-5, atol=1e-4)
    assert len(whole.rows) == sum(max(length - 5, 0) for length in lengths)


NAMES = ("regressors", "targets")


def test_no_rows_teach_nothing_and_change_nothing() -> None:
    assert len(taught({FEATURES: rows(11, 5)}).regressors) == 0  # no longer than the washout


def test_rows_that_are_no_numbers_are_refused() -> None:
    x = rows(12)
    x[7, 1] = np.nan
    with pytest.raises(DataError, match="row 7, column 1 is nan, expected finite values"):
        taught({FEATURES: x})


def test_an_update_of_the_same_reservoir_goes_on_without_its_identity() -> None:
    _, shared = made()
    update = {"gram": np.ones(3), IDENTITY: identity(shared)}
    assert fitted(SCHEMA, shared, update).keys() == {"gram"}
    assert update.keys() == {"gram", IDENTITY}


def test_an_update_of_another_reservoir_is_refused_with_both_identities() -> None:
    (_, shared), network = made(), Network(**SMALL)
    other = esn.initial(np.random.default_rng(5), network, COUNT)
    with pytest.raises(UpdateError, match=r"reservoir: expected .*, got .* have no meaning here") as caught:
        fitted(SCHEMA, shared, {"gram": np.ones(3), IDENTITY: identity(other)})
    for params in (shared, other):
        for name in (SEED, DIGEST):
            assert params[name].tobytes().hex() in str(caught.value)


def test_an_update_without_a_reservoir_is_refused() -> None:
    _, shared = made()
    with pytest.raises(UpdateError, match=r"expected arrays \['gram', 'reservoir'\], got \['gram'\]"):
        fitted(SCHEMA, shared, {"gram": np.ones(3)})
    for wrong in (identity(shared)[:40], identity(shared).astype(float), identity(shared)[None]):
        with pytest.raises(UpdateError, match=r"reservoir: expected (shape \(64,\)|uint8), got"):
            fitted(SCHEMA, shared, {"gram": np.ones(3), IDENTITY: wrong})


def test_a_network_that_does_not_forget_says_so_in_the_first_round_only() -> None:
    network, shared = made(spectral_radius=3.0, leak=0.9, input_scaling=0.01)
    with pytest.warns(EchoStateWarning, match=r"still differ by [0-9.]+, expected at most 1e-06"):
        lesson(network, shared, {}, {FEATURES: rows(4)}, "own")
    lesson(network, {**shared, STEP: np.array(1)}, {}, {FEATURES: rows(4)}, "own")


def test_rows_that_are_no_numbers_become_gaps_that_are_bridged_or_not() -> None:
    x = rows(6, 60)
    holed = x.copy()
    holed[[20, 21, 40, 41, 42], 1] = np.nan
    whole, missing = without_gaps(holed)
    assert len(whole) == 55 and missing[0] == NEW_SERIES
    assert {int(at): int(missing[at]) for at in np.flatnonzero(missing > 0)} == {20: 2, 38: 3}
    found = taught({FEATURES: whole, MISSING: missing})  # two rows are bridged, after three the state begins anew
    assert 20 not in found.rows and 21 in found.rows
    assert set(range(38, 43)).isdisjoint(found.rows) and 43 in found.rows
    assert without_gaps(np.full((3, 2), np.nan))[0].shape == (0, 2)
