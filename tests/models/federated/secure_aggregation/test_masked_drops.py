"""Gateways that drop out of a masked round, at every step of it, or come to it too late."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from fedgate.models.arrays import COUNTED, WEIGHT, Arrays, generator
from fedgate.models.federated import build
from fedgate.models.federated.protocol.algorithm import Algorithm, RoundFailedError, Server
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.secure_aggregation.client import STEPS
from fedgate.models.federated.secure_aggregation.options import split
from fedgate.models.federated.secure_aggregation.server import LOST_MOST
from tests.support.masked_rounds import (
    CONFIRM,
    INPUT,
    KEYS,
    QUANTUM,
    SHARES,
    SUMMED,
    UNMASK,
    Round,
    expected_sum,
    failed,
    masked_adding,
    names_of,
    rows_of,
    secret_of,
    took_part,
)
from tests.support.soak import some

SIZE = 40


def skipping(step: int) -> Callable[[int, str], bool]:
    return lambda at, name: at != step


def from_step(step: int, newcomer: str) -> Callable[[int, str], bool]:
    return lambda at, name: name != newcomer or at >= step


def is_sum(made: Round, data: dict[str, Arrays], names: list[str]) -> bool:
    error = np.abs(made.server.global_state[SUMMED] - expected_sum(data, names)).max()
    return bool(error <= len(names) * QUANTUM / 2.0 + 1e-12)


@pytest.mark.soak
def test_many_of_all_drop_out_at_each_of_the_five_steps() -> None:
    """Of those with shares more than one half is left at the end, as few as may be."""
    names, order = names_of(100), generator(1, 0, "drops").permutation(100)
    data = rows_of(names, SIZE)
    missed = {names[at]: rank // 9 for rank, at in enumerate(order)}  # of those behind the fifth nine none
    algorithm = masked_adding(SIZE, threshold=0.51, neighbours=100)
    made = took_part(algorithm, data, comes=lambda step, name: step < missed[name])
    assert [len(updates) for updates in made.updates] == [91, 82, 73, 64, 55]
    assert is_sum(made, data, sorted(made.updates[INPUT]))


@pytest.mark.soak
def test_a_tenth_of_those_who_are_left_drops_out_at_each_step() -> None:
    names = names_of(100)
    data, rng = rows_of(names, SIZE), generator(2, 0, "drops")
    left, came = names, list[set[str]]()
    for _ in range(STEPS):
        left = sorted(rng.permutation(left)[: round(0.9 * len(left))])
        came.append(set(left))
    made = took_part(masked_adding(SIZE, neighbours=100), data, comes=lambda step, name: name in came[step])
    assert [len(updates) for updates in made.updates] == [90, 81, 73, 66, 59]
    assert is_sum(made, data, sorted(came[INPUT]))


@pytest.mark.soak
@pytest.mark.parametrize("step", some(range(STEPS)))
def test_a_fifth_that_misses_one_step_only_is_survived(step: int) -> None:
    names = names_of(100)
    data, gone = rows_of(names, SIZE), set(names_of(100)[::5])
    algorithm = masked_adding(SIZE, neighbours=20)
    made = took_part(algorithm, data, comes=lambda at, name: at != step or name not in gone)
    stayed = [name for name in names if name not in gone or step >= CONFIRM]
    assert sorted(made.updates[INPUT]) == stayed
    assert is_sum(made, data, stayed)
    # Whoever missed a step is not asked again in this round, and does not answer.
    assert all(name not in updates for updates in made.updates[step:] for name in gone)


@pytest.mark.soak
@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, STEPS + 1), min_size=3, max_size=9),
    st.sampled_from([(2, 0.8), (4, 0.6), (4, 0.9), (60, 0.51), (60, 0.6), (60, 0.8)]),
)
def test_a_round_ends_in_the_sum_of_its_inputs_or_fails_and_changes_nothing(
    missed: list[int], graph: tuple[int, float]
) -> None:
    """Gateway k misses step missed[k], where there is one, and comes to the others."""
    names = names_of(len(missed))
    data, algorithm = rows_of(names, 3), masked_adding(3, neighbours=graph[0], threshold=graph[1])
    misses = dict(zip(names, missed, strict=True))
    seen: list[Server] = []
    try:
        made = took_part(algorithm, data, comes=lambda step, name: step != misses[name], watch=seen.append)
    except RoundFailedError:  # and no gateway ever has to refuse
        server = failed(algorithm, seen[-1])
        assert server.phase == 0
        made = took_part(algorithm, data, server=server)
        assert is_sum(made, data, names)
        assert made.server.global_state["rounds"] == 1.0
        return
    if made.server.phase == 0 and SUMMED in made.server.global_state and made.server.global_state["rounds"] == 1.0:
        assert is_sum(made, data, sorted(made.updates[INPUT]))


@pytest.mark.parametrize("step", some(list(range(STEPS)), 2))
def test_too_few_at_any_step_fail_the_round_and_the_next_one_has_new_keys(step: int) -> None:
    data = rows_of(names_of(5), SIZE)
    algorithm = masked_adding(SIZE, threshold=0.6)
    begun: list[Server] = []
    few = names_of(2)
    with pytest.raises(RoundFailedError, match=r"expected .*got"):
        took_part(algorithm, data, comes=lambda at, name: at < step or name in few, watch=begun.append)
    server = failed(algorithm, begun[-1])
    assert (server.phase, begun[-1].phase) == (0, step)
    assert (split(server.server_state)[1].keys() == {"lost"}) == (
        step >= INPUT
    )  # from there on inputs were acknowledged
    made = took_part(algorithm, data, server=server)
    assert is_sum(made, data, list(data))
    assert made.server.global_state["rounds"] == 1.0


@pytest.mark.soak
def test_an_exchange_in_which_nobody_answers_begins_the_round_anew() -> None:
    data, algorithm = rows_of(names_of(4), SIZE), masked_adding(SIZE)
    for step in range(1, STEPS):
        made = took_part(algorithm, data, comes=skipping(step))
        assert made.server.phase == 0
        again = took_part(algorithm, data, server=made.server, own=made.own)
        assert is_sum(again, data, list(data))


@pytest.mark.soak
def test_a_gateway_that_appears_in_the_middle_waits_for_the_next_round() -> None:
    data, algorithm = rows_of(names_of(6), SIZE), masked_adding(SIZE)
    newcomer = "gateway-000"
    for step in (SHARES, INPUT, CONFIRM, UNMASK):
        made = took_part(algorithm, data, comes=from_step(step, newcomer))
        assert all(newcomer not in updates for updates in made.updates)
        assert made.own[newcomer] == {}
        assert is_sum(made, data, names_of(6)[1:])
        following = took_part(algorithm, data, server=made.server, own=made.own)
        assert is_sum(following, data, names_of(6))


def test_a_gateway_without_anything_to_say_is_a_drop_out() -> None:
    data, algorithm = rows_of(names_of(5), SIZE), masked_adding(SIZE)
    silent = {name: array[:0] for name, array in data["gateway-001"].items()}
    made = took_part(algorithm, data | {"gateway-001": silent})
    assert all("gateway-001" not in updates for updates in made.updates)
    # One that leaves, with nothing of its own in the sum: it has keys, then no input, and helps to unmask.
    made = took_part(algorithm, data | {"gateway-001": silent | {"weight": np.array(0.0)}})
    assert ["gateway-001" in updates for updates in made.updates] == [True, True, False, True, True]
    assert is_sum(made, data, [name for name in data if name != "gateway-001"])


@pytest.mark.soak
@pytest.mark.parametrize(
    ("step", "few"), some([(0, 2), (1, 0), (2, 2), (3, 0), (4, 2), (1, 2), (2, 0), (3, 2), (4, 0)], 3)
)
def test_sums_of_changes_stay_right_wherever_a_round_is_lost(step: int, few: int) -> None:
    """So few answered in a step. The gateways may have been told that their inputs were counted, and some of them are
    away when the round is repeated.
    """
    algorithm = build("incfed", 3, {"ridge": 1.0, "masking": {"fewest": 3, "threshold": 0.51}})
    rng, left = generator(4, 0, "rows"), names_of(7)[:few]
    data: dict[str, Arrays] = {name: {"x": rng.normal(size=(80, 3))} for name in names_of(7)}
    away = names_of(3)
    lost = took_part(algorithm, data, comes=lambda at, name: at != step or name in left, goes_on=True)
    assert (lost.server.phase, len(lost.updates)) == (KEYS, step + 1)
    second = took_part(algorithm, data, server=lost.server, own=lost.own, comes=lambda at, name: name not in away)
    third = took_part(algorithm, data, server=second.server, own=second.own)
    expected = run(build("incfed", 3, {"ridge": 1.0}), data, seed=3).server.server_state
    found = split(third.server.server_state)[0]
    assert found["samples"] == expected["samples"]
    np.testing.assert_allclose(found["gram"], expected["gram"], atol=20 * QUANTUM)


@pytest.mark.soak
def test_the_list_of_lost_rounds_has_an_end() -> None:
    data, algorithm = rows_of(names_of(3), 2), masked_adding(2)
    server, digests = algorithm.start(generator(0, 0, "cloud")), []
    for _ in range(LOST_MOST + 3):
        made = took_part(algorithm, data, server=server, comes=skipping(UNMASK))
        server = made.server
        digests.append(made.servers[UNMASK].global_state["masking.round"].tobytes())
    lost = server.server_state["masking.lost"]
    assert [row.tobytes() for row in lost] == digests[-LOST_MOST:]
    told = took_part(algorithm, data, server=server).servers[INPUT]
    np.testing.assert_array_equal(told.global_state["masking.lost"], lost)


@pytest.mark.soak
def test_a_gateway_is_told_apart_whose_input_was_not_counted() -> None:
    """Refused in the third exchange, it drops out; its next input says so to the inner algorithm."""
    algorithm = build("incfed", 3, {"ridge": 1.0, "masking": {"fewest": 3, "threshold": 0.51}})
    rng = generator(4, 0, "rows")
    data: dict[str, Arrays] = {name: {"x": rng.normal(size=(80, 3))} for name in names_of(7)}
    refused = names_of(3)
    first = took_part(algorithm, data, loses=lambda step, name: step == INPUT and name in refused)
    data |= {name: {**data[name], COUNTED: np.array(False)} for name in refused}
    second = took_part(algorithm, data, server=first.server, own=first.own)
    expected = run(build("incfed", 3, {"ridge": 1.0}), data, seed=3).server.server_state
    assert split(second.server.server_state)[0]["samples"] == expected["samples"]


def test_a_second_call_of_a_step_says_nothing_new() -> None:
    """In all but the first: that begins a round of its own."""
    data, algorithm = rows_of(names_of(4), SIZE), masked_adding(SIZE)
    made = took_part(algorithm, data)
    name = "gateway-003"
    own: Arrays = {}
    for step, server in enumerate(made.servers[:STEPS]):
        told = {**data[name], "secret": secret_of(name, server.round_index)}
        rng = generator(3, server.round_index, name)
        own, update = algorithm.phases[step].train(server.global_state, own, told, rng)
        assert update.keys() == made.updates[step][name].keys()
        again, second = algorithm.phases[step].train(server.global_state, own, told, rng)
        assert second.keys() == (update.keys() if step == KEYS else set())
        own = again


def failing(algorithm: Algorithm, fails: Callable[[int], bool]) -> Algorithm:
    """Return the algorithm in which the exchange of inputs fails in rounds of these numbers, from 0."""
    tried, phase = itertools.count(), algorithm.phases[INPUT]

    def advance(server: Server, total: Arrays) -> Server:
        if fails(next(tried)):
            raise RoundFailedError("too few, as it happens")
        return phase.advance(server, total)

    phases = (*algorithm.phases[:INPUT], phase._replace(advance=advance), *algorithm.phases[INPUT + 1 :])
    return algorithm._replace(phases=phases)


def test_the_loop_repeats_rounds_that_fail_and_ends_with_a_model() -> None:
    data, algorithm = rows_of(names_of(4), SIZE), masked_adding(SIZE)
    outcome = run(failing(algorithm, lambda number: number in (0, 2)), data, rounds=2)
    assert (outcome.server.phase, outcome.server.round_index) == (0, 2 * (INPUT + 1 + STEPS))
    assert outcome.server.global_state["rounds"] == 2.0
    np.testing.assert_allclose(outcome.server.global_state[SUMMED], expected_sum(data, data), atol=4 * QUANTUM)


@pytest.mark.soak
def test_the_loop_gives_up_where_every_round_fails_and_says_why() -> None:
    data, algorithm = rows_of(names_of(4), SIZE), masked_adding(SIZE)
    with pytest.raises(RoundFailedError, match=r"0 of 10 exchanges .*, the last failed: too few, as it happens"):
        run(failing(algorithm, lambda number: True), data, rounds=2)


def test_a_round_in_which_nobody_has_an_input_goes_by_as_one_without_masks() -> None:
    """Gateways of no weight have keys, and then no input."""
    data = {name: {**rows, WEIGHT: np.array(0.0)} for name, rows in rows_of(names_of(4), SIZE).items()}
    outcome = run(masked_adding(SIZE), data, rounds=3)
    assert (outcome.server.phase, outcome.server.round_index) == (0, 3 * (INPUT + 1))
    assert outcome.server.global_state["rounds"] == 0.0
