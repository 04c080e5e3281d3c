"""Partial IncFed: a shared choice is the exact ridge of a smaller network, everyone's own is what the paper prints."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.config.protocol.wire import encode
from fedgate.models.arrays import WEIGHT, Arrays, Floats, generator
from fedgate.models.detectors.esn.network import Network
from fedgate.models.federated.closed_form.incfed import CONDITION, UNDETERMINED, RankWarning, incfed
from fedgate.models.federated.closed_form.partial_incfed import COLUMN_RIDGE, partial_incfed
from fedgate.models.federated.closed_form.partial_phases import solved_columns
from fedgate.models.federated.closed_form.reservoir_directions import driven_directions, noise
from fedgate.models.federated.protocol.algorithm import Algorithm, Server
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.protocol.schema import UpdateError
from tests.models.federated.closed_form.test_incfed import CLASSES, FEATURE_COUNT, close, lesson_of, series
from tests.support.given_width import build

UNITS = CLASSES.units
SIZE = CLASSES.readout_size(FEATURE_COUNT)
PARTS = [series(who, rows, 3) for who, rows in enumerate((80, 60, 40))]
DATA = {f"gateway-{who}": part for who, part in enumerate(PARTS)}
PLAIN: dict[str, Any] = {"network": CLASSES, "normalisation": "none"}


def sums_of(shared: Arrays, part: Arrays) -> tuple[Floats, Floats]:
    """Return A and B of one gateway."""
    s, y = lesson_of(shared, part, CLASSES)
    return y.T @ s, s.T @ s


def ridge(cross: Floats, gram: Floats, beta: float) -> Floats:
    """Return W of W (B + β I) = A, which need not be symmetric."""
    return np.asarray(np.linalg.solve((gram + beta * np.eye(len(gram))).T, cross.T).T)


def first_update(algorithm: Algorithm, part: Arrays, phase: int = 0) -> tuple[Server, Arrays]:
    server = algorithm.start(generator(1, 0, "cloud"))
    return server, algorithm.phases[phase].train(server.global_state, {}, part, generator(3, 0, "a"))[1]


@pytest.mark.parametrize("neurons", [1, 4, UNITS])
def test_the_shared_choice_is_the_ridge_of_the_units_with_the_largest_states(neurons: int) -> None:
    shared = run(partial_incfed(FEATURE_COUNT, **PLAIN, neurons=neurons), DATA).server.global_state
    cross, gram = (sum(each) for each in zip(*(sums_of(shared, part) for part in PARTS), strict=True))
    kept = np.r_[np.sort(np.argsort(-np.diag(gram)[:UNITS])[:neurons]), UNITS:SIZE]
    expected = np.zeros((3, SIZE))
    beta = 0.01 * np.trace(gram[np.ix_(kept, kept)]) / len(kept)
    expected[:, kept] = ridge(cross[:, kept], gram[np.ix_(kept, kept)], beta)
    assert close(shared["readout"], expected)


def test_all_units_chosen_is_incfed() -> None:
    whole = run(incfed(FEATURE_COUNT, **PLAIN, ridge=1.0), DATA).server.global_state["readout"]
    for select in ("shared", "importance", "random"):
        chosen: Any = {"select": select, "neurons": UNITS, "ridge": 1.0}
        assert close(run(partial_incfed(FEATURE_COUNT, **PLAIN, **chosen), DATA).server.global_state["readout"], whole)
    turned = run(partial_incfed(FEATURE_COUNT, **PLAIN, select="principal", neurons=UNITS, ridge=1.0), DATA)
    assert close(turned.server.global_state["readout"], whole, 1e-5)  # directions are float32


@pytest.mark.soak
@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(["importance", "random"]),
    st.integers(1, UNITS),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.integers(0, 9),
)
def test_columns_of_ones_own_are_masked_added_and_solved_as_printed(
    select: Any, neurons: int, alpha: float, seed: int
) -> None:
    algorithm = partial_incfed(FEATURE_COUNT, **PLAIN, select=select, neurons=neurons, alpha=alpha)
    sent: dict[str, Arrays] = {}
    shared = run(algorithm, DATA, seed=seed, on_update=sent.__setitem__).server.global_state
    cross, gram, trace = np.zeros((3, SIZE)), np.zeros((SIZE, SIZE)), 0.0
    chosen: set[int] = set(range(UNITS, SIZE))
    for name, part in DATA.items():
        a, b = sums_of(shared, part)
        columns = sent[name]["columns"].tolist()
        assert len(set(columns)) == neurons
        best = np.argsort(-b[:UNITS, :UNITS].sum(axis=1))[: round((alpha if select == "importance" else 0.0) * neurons)]
        assert set(best.tolist()) <= set(columns)
        mask = np.isin(np.arange(SIZE), [*columns, *range(UNITS, SIZE)])
        cross, gram, trace = cross + a * mask, gram + b * mask, trace + np.trace(b)
        chosen |= set(columns)
    assert close(shared["readout"], ridge(cross, gram, COLUMN_RIDGE * trace / SIZE))
    assert not shared["readout"][:, [unit for unit in range(UNITS) if unit not in chosen]].any()


@pytest.mark.parametrize("select", ["shared", "principal", "importance", "random"])
def test_a_round_is_that_of_those_who_took_part(select: Any) -> None:
    algorithm = partial_incfed(FEATURE_COUNT, **PLAIN, select=select, neurons=4)
    server = run(algorithm, DATA, rounds=2).server
    last = algorithm.phases[server.phase]
    update = last.train(server.global_state, {}, PARTS[0], generator(5, 0, "a"))[1]
    alone = last.advance(server, last.admit(server, update))
    again = last.advance(alone, last.admit(alone, update))
    assert alone.server_state == again.server_state == {}
    assert close(alone.global_state["readout"], again.global_state["readout"])
    assert not close(alone.global_state["readout"], server.global_state["readout"], 1e-3)


def test_a_weight_scales_and_weight_zero_stays_away() -> None:
    algorithm = partial_incfed(FEATURE_COUNT, **PLAIN, neurons=4)
    heavy = {**DATA, "gateway-0": {**PARTS[0], WEIGHT: np.array(2.0)}}
    doubled = {**DATA, "twin": PARTS[0]}
    found, expected = (run(algorithm, data).server.global_state["readout"] for data in (heavy, doubled))
    assert close(found, expected)
    assert first_update(algorithm, {**PARTS[0], WEIGHT: np.array(0.0)})[1] == {}


def test_a_reservoir_is_driven_the_way_data_drives_it() -> None:
    """Directions found without data hold more of what the states really do than as many units, or random ones."""
    network = Network(units=60, leak=1.0, spectral_radius=0.9, input_scaling=0.5)
    shared = incfed(FEATURE_COUNT, network=network).start(generator(1, 0, "cloud")).global_state
    directions = driven_directions(shared, 6, 8.0, np.random.default_rng(0))
    np.testing.assert_allclose(directions.T @ directions, np.eye(6), atol=1e-5)
    states, _ = lesson_of(shared, series(3, 80), network)
    centred = states[:, :60] - states[:, :60].mean(axis=0)
    random, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(60, 6)))
    captured, by_chance = (np.square(centred @ each).sum() / np.square(centred).sum() for each in (directions, random))
    largest = np.sort(np.square(centred).sum(axis=0))[-6:].sum() / np.square(centred).sum()
    assert captured > 0.6 and captured > 2.0 * max(by_chance, largest)


def test_made_up_input_has_a_variance_of_one() -> None:
    drawn = noise(np.random.default_rng(0), 40)
    assert 0.7 < np.square(drawn).mean() < 1.3
    slowness = np.array([np.corrcoef(channel[1:], channel[:-1])[0, 1] for channel in drawn.T])
    assert slowness.min() < 0.4 and slowness.max() > 0.98


@pytest.mark.soak
@pytest.mark.parametrize(("cohort", "neurons"), [(1, 40), (2, 30), (3, 20), (8, 8), (100, 1), (None, 10)])
def test_the_papers_rule_shares_the_units_among_gateways(cohort: int | None, neurons: int) -> None:
    algorithm = partial_incfed(2, network=Network(units=40, washout=0), select="principal", cohort=cohort)
    shared = algorithm.start(generator(1, 0, "cloud")).global_state
    assert shared["directions"].shape == (40, neurons)


@pytest.mark.soak
def test_what_is_uploaded_is_the_share_of_the_square_that_was_promised() -> None:
    network = {"units": 500, "direct": False, "washout": 0, "task": "classify", "classes": 3}
    square, rows = 8 * (501 * 501 + 3 * 501), series(1, 20, 3)
    shares = {"importance": 0.2, "random": 0.2, "principal": 0.03}
    for select, most in shares.items():
        _, update = first_update(build("partial-incfed", 3, {"network": network, "select": select, "cohort": 8}), rows)
        assert len(encode(update)) < most * square
    algorithm, sent = build("partial-incfed", 3, {"network": network, "cohort": 8}), []
    run(algorithm, {"a": rows}, on_update=lambda _, update: sent.append(len(encode(update))))
    assert len(sent) == 2 and sum(sent) < 0.04 * square


def wrong_columns(update: Arrays) -> dict[str, tuple[Arrays, str]]:
    columns, gram = update["columns"], update["gram"]
    skew, loud = gram.copy(), gram.copy()
    skew[columns[0], 1] += 1.0
    loud[np.setdiff1d(np.arange(UNITS), columns)[0]] = 80.0
    return {
        "twice": ({**update, "columns": np.repeat(columns[:1], len(columns))}, "columns: expected different"),
        "beyond": ({**update, "columns": columns + UNITS}, "columns: expected different whole numbers below 9"),
        "between": ({**update, "columns": columns + 0.5}, "columns: expected different whole numbers"),
        "skew": ({**update, "gram": skew}, "gram: expected the same between two columns"),
        "loud": ({**update, "gram": loud}, "gram: expected sizes that the rows allow"),
        "trace": ({**update, "trace": update["trace"] * 100.0}, "trace: expected"),
        "less": ({**update, "trace": np.array(0.0)}, "trace: expected"),
        "nobody": ({**update, "samples": np.array(0.0)}, "samples: expected above 0"),
    }


def test_columns_that_no_rows_make_are_refused() -> None:
    algorithm = partial_incfed(FEATURE_COUNT, **PLAIN, select="importance", neurons=4)
    server, update = first_update(algorithm, PARTS[0])
    total = algorithm.phases[0].admit(server, update)
    assert total["gram"].shape == (SIZE, SIZE) and total.keys() == {"gram", "cross", "squares", "samples", "trace"}
    for wrong, words in wrong_columns(update).values():
        with pytest.raises(UpdateError, match=words):
            algorithm.phases[0].admit(server, wrong)


def test_an_importance_that_no_states_have_is_refused() -> None:
    algorithm = partial_incfed(FEATURE_COUNT, **PLAIN, neurons=4)
    server, update = first_update(algorithm, PARTS[0])
    for wrong in (-update["importance"], update["importance"] + 100.0):
        with pytest.raises(UpdateError, match="importance: expected 0 to 76 of as many rows, got"):
            algorithm.phases[0].admit(server, {**update, "importance": wrong})


def test_a_singular_sum_leaves_the_readout_before_and_says_so() -> None:
    algorithm = partial_incfed(FEATURE_COUNT, **PLAIN, select="importance", neurons=4)
    server, update = first_update(algorithm, PARTS[0])  # the units that nobody sent have columns of zeros
    with pytest.warns(RankWarning, match="the masked sum is singular"):
        after = solved_columns(server.global_state, algorithm.phases[0].admit(server, update), 0.0)
    assert not after["readout"].any() and float(after[CONDITION]) == UNDETERMINED


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"select": "importance", "ridge": 0.1}, "ridge 0.1 given, expected at least 0.3"),
        ({"select": "random", "network": Network()}, "select 'random' given for task 'predict'"),
        ({"neurons": 3, "cohort": 3}, "neurons 3 and cohort 3 given, expected one of them"),
        ({"neurons": 10}, "neurons 10 given, expected at most the 9 units"),
    ],
)
def test_what_does_not_go_together_is_said(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        partial_incfed(FEATURE_COUNT, **{**PLAIN, **wrong})
