"""IncFed: whatever the split, the order, who comes late, leaves or is lost on the way, it is the pooled ridge."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.config.protocol.wire import encode
from fedgate.models.arrays import COUNTED, FEATURES, LABELS, MISSING, WEIGHT, Arrays, Floats, equal, generator
from fedgate.models.detectors.base.moments import triangle
from fedgate.models.detectors.esn import esn, ridge_readout
from fedgate.models.detectors.esn.network import Network
from fedgate.models.federated.closed_form.incfed import DEFAULT_RIDGE, incfed
from fedgate.models.federated.protocol.algorithm import Algorithm, close_round
from fedgate.models.federated.protocol.contributions import SetBackError, settled
from fedgate.models.federated.protocol.run import run
from tests.support.given_width import build

FEATURE_COUNT = 3
NETWORK = Network(units=9, washout=4, leak=0.5, input_scaling=0.5)
CLASSES = Network(task="classify", classes=3, units=9, washout=4, leak=0.5, input_scaling=0.5)
PLAIN: dict[str, Any] = {"network": NETWORK, "normalisation": "none"}
RNG = generator(0, 0, "unused")


def series(who: int, rows: int, classes: int = 0) -> Arrays:
    """Return the first rows of what one gateway measures, an autoregressive series of a pace of its own."""
    rng = np.random.default_rng(who)
    x = rng.normal(size=(80, FEATURE_COUNT))
    for row in range(1, len(x)):
        x[row] += (0.3 + 0.2 * (who % 3)) * x[row - 1]
    y = (np.arange(80) // 7 + who) % max(classes, 1)
    return {FEATURES: x[:rows], **({LABELS: y[:rows]} if classes else {})}


def lesson_of(shared: Arrays, data: Arrays, network: Network) -> tuple[Floats, Floats]:
    """Return regressors and targets of one data set, by the detector alone."""
    way = esn.taught(shared, data[FEATURES], data.get(MISSING))
    if network.task == "classify":
        targets = np.eye(network.classes)[data[LABELS]]
    else:
        targets = np.clip(way.inputs[:, shared["targets"]], -network.clip, network.clip)
    return way.regressors[way.usable].astype(np.float64), targets[way.usable]


def pooled(shared: Arrays, parts: list[Arrays], network: Network, ridge: float) -> Floats:
    """Return the ridge readout of all rows together, each as often as its gateway weighs."""
    rows = [lesson_of(shared, data, network) for data in parts]
    roots = [
        np.full((len(s), 1), np.sqrt(float(data.get(WEIGHT, 1.0)))) for (s, _), data in zip(rows, parts, strict=True)
    ]
    s = np.concatenate([root * s for (s, _), root in zip(rows, roots, strict=True)])
    y = np.concatenate([root * y for (_, y), root in zip(rows, roots, strict=True)])
    beta = ridge * np.trace(s.T @ s) / s.shape[1]
    return np.asarray(np.linalg.solve(s.T @ s + beta * np.eye(s.shape[1]), s.T @ y).T)


def close(found: Floats, expected: Floats, relative: float = 1e-10) -> bool:
    return bool(np.abs(found - expected).max() <= relative * np.abs(expected).max())


@pytest.mark.soak
@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(10, 80), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_any_split_in_any_order_is_the_pooled_ridge(rows: list[int], random: Any) -> None:
    parts = [series(index, count) for index, count in enumerate(rows)]
    names = [f"gateway-{index}" for index in range(len(parts))]
    random.shuffle(names)
    shared = run(incfed(FEATURE_COUNT, **PLAIN), dict(zip(names, parts, strict=True))).server.global_state
    assert close(shared["readout"], pooled(shared, parts, NETWORK, DEFAULT_RIDGE))
    whole = {FEATURES: np.concatenate([part[FEATURES] for part in parts])}
    whole[MISSING] = np.concatenate([np.where(np.arange(count) == 0, -1, 0) for count in rows])
    alone = run(incfed(FEATURE_COUNT, **PLAIN), {"all": whole}).server.global_state
    assert close(shared["readout"], alone["readout"])
    assert close(shared["variance"], alone["variance"])


class Visit(NamedTuple):
    """What one gateway does in an exchange: stays away (no rows), or sends, and whether that is counted."""

    rows: int
    weight: float
    is_counted: bool


class Fleet:
    """Gateways and a cloud between which updates are lost or refused, and beside them who was counted with what."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm, self.server = algorithm, algorithm.start(generator(1, 0, "cloud"))
        self.own: dict[str, Arrays] = {}
        self.told: dict[str, bool] = {}
        self.counted: dict[str, Arrays] = {}
        self.pending: dict[str, Arrays] = {}

    def sent_by(self, name: str, data: Arrays) -> Arrays:
        told = {**data, COUNTED: np.array(self.told.get(name, True))}
        self.own[name], update = self.algorithm.phases[0].train(
            self.server.global_state, self.own.get(name, {}), told, RNG
        )
        return update

    def exchange(self, visits: dict[str, tuple[Arrays, bool]], *, is_merged: bool = True) -> None:
        phase, total = self.algorithm.phases[0], Arrays()
        for name, (data, is_counted) in visits.items():
            update = self.sent_by(name, data)
            if is_counted and update:
                total = phase.reducer.merge(total, phase.admit(self.server, update))
                if is_merged:
                    self.counted[name] = data
            self.told[name] = is_counted
        self.server = close_round(self.algorithm, self.server, total if is_merged else {})

    def expected(self) -> Arrays:
        """Return the sums of what every gateway was counted with last."""
        size = self.server.global_state["readout"].shape[1]
        total = {
            "gram": np.zeros(triangle(size)),
            "cross": np.zeros((3, size)),
            "squares": np.zeros(3),
            "samples": np.zeros(()),
        }
        for data in self.counted.values():
            part = ridge_readout.sums(*lesson_of(self.server.global_state, data, NETWORK))
            total = {name: total[name] + float(data[WEIGHT]) * part[name] for name in total}
        return total


VISITS = st.builds(
    Visit, st.sampled_from([0, 12, 30, 55, 80]), st.sampled_from([0.0, 1.0, 1.0, 0.5, 2.0]), st.booleans()
)
EXCHANGES = st.lists(
    st.tuples(st.fixed_dictionaries(dict.fromkeys(("a", "b", "c"), VISITS)), st.sampled_from([True, True, False])),
    min_size=1,
    max_size=8,
)


@pytest.mark.soak
@settings(max_examples=60, deadline=None)
@given(EXCHANGES)
def test_the_sum_is_that_of_what_was_counted_last_of_each(exchanges: list[tuple[dict[str, Visit], bool]]) -> None:
    """Gateways grow, shrink, weigh otherwise, come late and leave; updates are lost, and whole exchanges with them."""
    fleet = Fleet(incfed(FEATURE_COUNT, **PLAIN))
    for visits, is_merged in exchanges:
        asked = {
            name: ({**series(ord(name), visit.rows), WEIGHT: np.array(visit.weight)}, visit.is_counted)
            for name, visit in visits.items()
            if visit.rows
        }
        fleet.exchange(asked, is_merged=is_merged)
        if not fleet.server.server_state:
            assert not fleet.counted
            continue
        expected = fleet.expected()
        assert fleet.server.server_state.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_allclose(fleet.server.server_state[name], array, rtol=0.0, atol=1e-10 * 80)
        left = [data for data in fleet.counted.values() if float(data[WEIGHT]) > 0.0]
        if left:
            assert close(
                fleet.server.global_state["readout"],
                pooled(fleet.server.global_state, left, NETWORK, DEFAULT_RIDGE),
                1e-9,
            )
        else:
            assert not fleet.server.global_state["readout"].any()


def started(**changes: Any) -> Fleet:
    """Return a fleet of two that was counted once."""
    fleet = Fleet(incfed(FEATURE_COUNT, **(PLAIN | changes)))
    fleet.exchange({name: (weighing(series(ord(name), 60), 1.0), True) for name in ("a", "b")})
    return fleet


def weighing(data: Arrays, weight: float) -> Arrays:
    return {**data, WEIGHT: np.array(weight)}


def test_who_has_nothing_new_sends_zeros_and_moves_nothing() -> None:
    fleet = started()
    before = fleet.server
    update = fleet.sent_by("a", series(ord("a"), 60))
    assert all(not update[name].any() for name in ("gram", "cross", "squares", "samples"))
    fleet.exchange({"a": (weighing(series(ord("a"), 60), 1.0), True)})
    assert equal(fleet.server.server_state, before.server_state)
    assert int(fleet.server.global_state["step"]) == int(before.global_state["step"]) + 1


def test_who_leaves_was_never_there() -> None:
    fleet = started()
    only = run(incfed(FEATURE_COUNT, **PLAIN), {"b": series(ord("b"), 60)}, seed=1).server
    assert fleet.sent_by("a", weighing({FEATURES: np.zeros((0, FEATURE_COUNT))}, 0.0))["samples"] < 0.0  # without rows
    fleet.exchange({"a": (weighing(series(ord("a"), 60), 0.0), True)})
    assert close(fleet.server.server_state["gram"], only.server_state["gram"])
    assert close(fleet.server.global_state["readout"], only.global_state["readout"])
    fleet.exchange({"b": (weighing(series(ord("b"), 60), 0.0), True)})
    assert not any(array.any() for array in fleet.server.server_state.values())
    assert not fleet.server.global_state["readout"].any() and (fleet.server.global_state["variance"] == 1.0).all()


def test_a_restored_cloud_is_told_to_begin_anew() -> None:
    fleet = started()
    older = fleet.server._replace(global_state={**fleet.server.global_state, "step": np.array(0)})
    fleet.sent_by("a", series(ord("a"), 70))
    fleet.server = older
    with pytest.raises(SetBackError, match=r"step 0, expected 1 or more.* start a new training with another seed"):
        fleet.sent_by("a", series(ord("a"), 70))


def test_what_was_sent_at_this_very_step_is_not_counted_whatever_is_said() -> None:
    own = {"sent.step": np.array(4), "sent.samples": np.array(7.0)}
    assert settled(own, {COUNTED: np.array(True)}, 4) == own
    assert settled(own, {COUNTED: np.array(False)}, 5) == {}
    moved = settled(own, {}, 5)
    assert {name: float(array) for name, array in moved.items()} == {"counted.step": 5.0, "counted.samples": 7.0}


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf, [1.0]])
def test_what_is_no_weight_is_said(weight: Any) -> None:
    with pytest.raises(ValueError, match="weight: expected one number of at least 0, got"):
        started().sent_by("a", {**series(1, 60), WEIGHT: np.array(weight)})


def test_balanced_classes_count_alike_over_all_gateways_together() -> None:
    algorithm = incfed(FEATURE_COUNT, network=CLASSES, normalisation="none", class_weight="balanced")
    parts = [series(0, 80, 3), series(1, 40, 3), series(2, 15, 3)]
    shared = run(algorithm, {str(index): part for index, part in enumerate(parts)}).server.global_state
    rows = [lesson_of(shared, data, CLASSES) for data in parts]
    s, y = (np.concatenate(each) for each in zip(*rows, strict=True))
    weights = y @ (len(y) / 3 / y.sum(axis=0))
    gram = (s * weights[:, None]).T @ s
    beta = DEFAULT_RIDGE * np.trace(gram) / len(gram)
    expected = np.linalg.solve(gram + beta * np.eye(len(gram)), (s * weights[:, None]).T @ y).T
    assert close(shared["readout"], expected)
    assert not close(shared["readout"], pooled(shared, parts, CLASSES, DEFAULT_RIDGE), 1e-3)


def test_many_rows_count_as_many_as_may_and_too_few_send_nothing() -> None:
    whole = Fleet(incfed(FEATURE_COUNT, **PLAIN)).sent_by("a", series(1, 80))
    capped = Fleet(incfed(FEATURE_COUNT, **PLAIN, max_samples=20)).sent_by("a", series(1, 80))
    assert (float(whole["samples"]), float(capped["samples"])) == (76.0, 20.0)
    for name in ("gram", "cross", "squares"):
        np.testing.assert_allclose(capped[name] * 76.0 / 20.0, whole[name], rtol=1e-12)
    silent = Fleet(incfed(FEATURE_COUNT, **PLAIN, fewest_rows=57))
    assert silent.sent_by("a", series(1, 60)) == {}
    assert float(silent.sent_by("a", series(1, 61))["samples"]) == 57.0


def test_a_silent_gateway_still_takes_in_that_it_was_counted() -> None:
    """Else the word that it was counted would be lost, and with it what the cloud holds."""
    fleet = started(fewest_rows=30)
    assert fleet.sent_by("a", series(ord("a"), 20)) == {}
    fleet.told["a"] = False  # of what it did not send
    fleet.exchange({"a": (weighing(series(ord("a"), 70), 1.0), True)})
    np.testing.assert_allclose(fleet.server.server_state["gram"], fleet.expected()["gram"], atol=1e-10)


def test_a_sum_in_units_of_fixed_point_is_the_sum() -> None:
    algorithm = incfed(FEATURE_COUNT, **PLAIN)
    server, total = algorithm.start(generator(1, 0, "cloud")), Arrays()
    for who in range(3):
        _, update = algorithm.phases[0].train(server.global_state, {}, series(who, 80), RNG)
        total = algorithm.phases[0].reducer.merge(total, algorithm.phases[0].admit(server, update))
    rounded = {name: np.round(array * 2**20) / 2**20 for name, array in total.items()}
    exact, found = (close_round(algorithm, server, each).global_state for each in (total, rounded))
    scores = [esn.ESN.score(shared, series(5, 80)[FEATURES]) for shared in (exact, found)]
    assert np.abs(scores[0] - scores[1]).max() < 1e-5


@pytest.mark.soak
@pytest.mark.parametrize(("units", "most_bytes"), [(200, 0.17e6), (500, 1.02e6)])
def test_the_upload_is_a_triangle(units: int, most_bytes: float) -> None:
    network = {"units": units, "direct": False, "washout": 0, "task": "classify", "classes": 3}
    algorithm = build("incfed", FEATURE_COUNT, {"network": network})
    server = algorithm.start(generator(1, 0, "cloud"))
    _, update = algorithm.phases[0].train(server.global_state, {}, series(1, 20, 3), RNG)
    assert len(encode(update)) <= most_bytes


def test_what_does_not_go_together_is_said() -> None:
    with pytest.raises(ValueError, match="class_weight 'balanced' given for task 'predict'"):
        incfed(FEATURE_COUNT, class_weight="balanced")
    with pytest.raises(ValueError, match=r"network.unit"):
        build("incfed", FEATURE_COUNT, {"network": {"unit": 3}})
