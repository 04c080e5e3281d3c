"""The loop that defines a training: who takes part, in what order, and that the records hold more than one phase.

The algorithm of two phases here elects gateways by the median of their losses and averages the data of the elected: a
STACK of losses, then a SUM, with state on both sides that must survive from the one to the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedgate.models.arrays import FEATURES, WEIGHT, Arrays, Floats, equal, generator, select
from fedgate.models.federated.protocol.algorithm import Algorithm, Phase, RoundFailedError, Server, close_round
from fedgate.models.federated.protocol.reducer import STACK, SUM
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.protocol.schema import Field
from fedgate.models.testing.fleet import FEATURE_COUNT, fleet
from tests.support.given_width import build

Pair = tuple[Arrays, Arrays]


def lose(shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> Pair:
    loss = np.abs(data[FEATURES] - shared["mean"]).mean()
    return {**own, "loss": np.array(loss)}, {"losses": np.array([loss])}


def elect(server: Server, total: Arrays) -> Server:
    return server._replace(
        global_state={**server.global_state, "median": np.asarray(np.median(total["losses"]))}, phase=1
    )


def contribute(shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> Pair:
    if "loss" not in own or own["loss"] > shared["median"]:
        return own, {}
    return own, {"sum": data[FEATURES].sum(axis=0), "samples": np.array(float(len(data[FEATURES])))}


def average(server: Server, total: Arrays) -> Server:
    counted = server.server_state["counted"] + total["samples"]
    return server._replace(
        global_state={"mean": total["sum"] / total["samples"]}, server_state={"counted": np.asarray(counted)}, phase=0
    )


MEDIAN_ELECTION = Algorithm(
    detector="none",
    start=lambda rng: Server(global_state={"mean": np.zeros(1)}, server_state={"counted": np.array(0.0)}),
    phases=(
        Phase(lose, STACK, elect, {"losses": Field((range(9),), "metric")}),
        Phase(contribute, SUM, average, {"sum": Field((1,), "sum"), "samples": Field((), "weight")}),
    ),
    rounds=2,
)


def rows(*values: float) -> Arrays:
    return {FEATURES: np.array(values).reshape(-1, 1)}


FLEET = {"a": rows(1, 1, 1), "b": rows(2), "c": rows(-3, -3), "d": rows(10), "e": rows()}


def test_an_election_of_two_phases_by_hand() -> None:
    # Round 1, from mean 0: losses 1 2 3 10, median 2.5, elected a and b: mean (3 + 2) / 4 = 1.25.
    first = run(MEDIAN_ELECTION, FLEET, rounds=1)
    assert first.server.global_state["mean"].tolist() == [1.25]
    assert {name: float(own["loss"]) for name, own in first.local_states.items() if own} == {
        "a": 1,
        "b": 2,
        "c": 3,
        "d": 10,
    }
    # Round 2, from mean 1.25: losses 0.25 0.75 4.25 8.75, median 2.5: a and b again.
    second = run(MEDIAN_ELECTION, FLEET)
    assert second.server.global_state["mean"].tolist() == [1.25]
    assert float(second.server.server_state["counted"]) == 8
    assert (second.server.phase, second.server.round_index) == (0, 4)
    assert {name: float(own["loss"]) for name, own in second.local_states.items() if own} == {
        "a": 0.25,
        "b": 0.75,
        "c": 4.25,
        "d": 8.75,
    }


def test_every_phase_sees_what_gateways_would_send() -> None:
    seen: list[tuple[str, list[str]]] = []
    run(MEDIAN_ELECTION, FLEET, rounds=1, on_update=lambda name, update: seen.append((name, sorted(update))))
    losses = [(name, ["losses"]) for name in "abcd"] + [("e", [])]
    assert seen == [*losses, ("a", ["samples", "sum"]), ("b", ["samples", "sum"]), ("c", []), ("d", []), ("e", [])]


def test_a_round_without_data_goes_by_and_the_next_one_draws_others() -> None:
    """A fraction that meets only gateways without data must not meet the same ones for ever."""
    names = list("abcdefgh")
    (first,) = select(0, 0, names, 0.1)
    data = {name: rows() if name == first else rows(4.0) for name in names}
    assert run(MEDIAN_ELECTION, data, rounds=1, fraction=0.1).server.round_index == 2
    assert run(MEDIAN_ELECTION, data, rounds=3, fraction=0.1).server.global_state["mean"].tolist() == [4.0]


def test_all_phases_of_a_round_ask_the_same_gateways() -> None:
    """Who is elected, or holds half of a key, must be there in the next phase."""
    asked: list[str] = []
    data = {name: rows(index) for index, name in enumerate("abcdefgh", start=1)}
    run(MEDIAN_ELECTION, data, rounds=10, fraction=0.25, on_update=lambda name, _: asked.append(name))
    cohorts = [asked[start : start + 2] for start in range(0, len(asked), 2)]
    assert cohorts[0::2] == cohorts[1::2]
    assert len(set(map(tuple, cohorts))) > 5


def test_a_fleet_without_data_leaves_the_model_as_it_started() -> None:
    outcome = run(MEDIAN_ELECTION, {"a": rows(), "b": rows()}, rounds=3)
    assert outcome.server.global_state["mean"].tolist() == [0.0]
    assert (outcome.server.phase, outcome.local_states) == (0, {"a": {}, "b": {}})


@pytest.mark.parametrize(("fraction", "count"), [(0.2, 1), (0.4, 2), (0.6, 3), (1.0, 5)])
def test_a_fraction_of_the_gateways_takes_part(fraction: float, count: int) -> None:
    algorithm = build("fedavg", 1, {"components": 4, "rounds": 6})
    data = {name: rows(1, 2, 3) for name in "abcde"}
    drawn: list[str] = []
    run(algorithm, data, seed=4, fraction=fraction, on_update=lambda name, _: drawn.append(name))
    assert drawn == [name for index in range(6) for name in select(4, index, data, fraction)]
    assert len(drawn) == 6 * count


def test_the_generator_of_a_gateway_is_that_of_its_name_and_round() -> None:
    numbers: list[tuple[str, float]] = []

    def draw(shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> Pair:
        return own, {"sum": np.array([rng.random()]), "samples": np.array(1.0)}

    phase = MEDIAN_ELECTION.phases[1]._replace(learn=draw, advance=lambda server, total: server)
    algorithm = MEDIAN_ELECTION._replace(phases=(phase,))
    fleet = {name: rows(0) for name in "abcd"}
    run(algorithm, fleet, seed=7, rounds=2, on_update=lambda name, update: numbers.append((name, update["sum"][0])))
    assert numbers == [(name, generator(7, index, name).random()) for index in range(2) for name in "abcd"]


def test_a_gateway_more_does_not_change_what_the_others_send() -> None:
    algorithm = build("fedavg", 1, {"components": 4, "rounds": 1})
    sent: dict[str, list[bytes]] = {}
    for names in ("ab", "abc"):
        run(
            algorithm,
            {name: rows(1, 2, 3) for name in names},
            on_update=lambda name, update: sent.setdefault(name, []).append(update["weights"].tobytes()),
        )
    assert {name: (len(each), len(set(each))) for name, each in sent.items()} == {"a": (2, 1), "b": (2, 1), "c": (1, 1)}


def test_a_round_whose_gateways_vanish_half_way_begins_anew() -> None:
    server = close_round(MEDIAN_ELECTION, MEDIAN_ELECTION.start(generator(0, 0, "cloud")), {"losses": np.ones(2)})
    assert (server.phase, server.round_index, server.cohort_index) == (1, 1, 0)
    server = close_round(MEDIAN_ELECTION, server, {})  # nobody who was elected is there any more
    assert (server.phase, server.round_index, server.cohort_index) == (0, 2, 2)
    assert server.global_state["mean"].tolist() == [0.0]


def test_phases_of_the_setup_run_once() -> None:
    def measure(shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> Pair:
        return own, {"rows": np.array(float(len(data[FEATURES])))}

    def begin(server: Server, total: Arrays) -> Server:
        return server._replace(server_state={**server.server_state, "rows": total["rows"]}, phase=1)

    def shifted(phase: Phase) -> Phase:
        def advance(server: Server, total: Arrays) -> Server:
            after = phase.advance(server, total)
            return after._replace(server_state={**server.server_state, **after.server_state}, phase=after.phase + 1)

        return phase._replace(advance=advance)

    setup = Phase(measure, SUM, begin, {"rows": Field((), "sum")})
    later = map(shifted, MEDIAN_ELECTION.phases)
    algorithm = MEDIAN_ELECTION._replace(phases=(setup, *later), setup=1)
    assert [algorithm.exchanges(rounds) for rounds in (1, 2, None)] == [3, 5, 5]
    server = run(algorithm, FLEET).server
    assert (server.phase, server.round_index) == (1, 5)
    assert server.global_state["mean"].tolist() == [1.25] and float(server.server_state["rows"]) == 7
    emptied = close_round(algorithm, server._replace(phase=2), {})
    assert (emptied.phase, emptied.cohort_index) == (1, 6)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["fedavg", "federated-subspace", "support-vector-election", "incfed"])
def test_a_gateway_of_no_weight_is_as_if_it_were_not_there(name: str) -> None:
    settings = {"network": {"washout": 5}, "ridge": 1.0} if name == "incfed" else {}
    algorithm = build(name, FEATURE_COUNT, settings)
    data = {who: gateway.data for who, gateway in fleet(3, alike=True).items()}
    first, *others = data
    leaving = {**data, first: {**data[first], WEIGHT: np.array(0.0)}}
    with_it = run(algorithm, leaving, seed=1).server.global_state
    without = run(algorithm, {who: data[who] for who in others}, seed=1).server.global_state
    assert equal(with_it, without, 1e-12)


@pytest.mark.parametrize(
    ("name", "rows", "settings"),
    [
        ("incfed", np.zeros((40, 3)), {"normalisation": "none", "unit": "common"}),
        ("support-vector-election", np.ones((40, 3)), {"gamma": None}),
    ],
)
def test_a_training_that_nobody_can_begin_ends_with_what_to_do(
    name: str, rows: Floats, settings: dict[str, Any]
) -> None:
    """Neither zeros have a unit nor equal rows a distance."""
    algorithm = build(name, 3, settings)
    with pytest.raises(
        RoundFailedError, match=r"never began: each of 2 .* all zero; expected .* sensors are connected"
    ):
        run(algorithm, {"north": {FEATURES: rows}, "south": {FEATURES: rows}})
    with_one = run(algorithm, {"north": {FEATURES: rows}, "south": {FEATURES: rows + np.eye(40, 3)}})
    assert with_one.server.phase >= algorithm.setup
