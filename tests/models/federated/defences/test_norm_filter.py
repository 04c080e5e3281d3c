"""The judge by length: what it learns, whom it refuses, and that the first round moves nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgate.config.protocol.wire import encode
from fedgate.models.arrays import Arrays, generator
from fedgate.models.federated import build
from fedgate.models.federated.defences.norm_filter import BINS, KNOWN, LENGTHS, median_length, norm_filter
from fedgate.models.federated.defences.wrapper import JUDGE, Defence, DefenceError, with_update_filter
from fedgate.models.federated.protocol.algorithm import Algorithm, Server, close_round
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.protocol.schema import UpdateError
from fedgate.models.testing.exchanges import SEED
from fedgate.models.testing.fleet import FEATURE_COUNT, NAMES, fleet

LOGISTIC: dict[str, Any] = {"loss": "logistic", "components": 0, "rounds": 6}


def guarded(extra: dict[str, Any] | None = None, factor: float = 4.0) -> Algorithm:
    algorithm = build("fedavg", FEATURE_COUNT, {**LOGISTIC, **(extra or {})})
    return with_update_filter(algorithm, Defence(kind="norm", norm_factor=factor))


def data_of(labelled: bool = True) -> dict[str, Arrays]:
    return {name: gateway.data for name, gateway in fleet(SEED, labelled=labelled).items()}


def closed(algorithm: Algorithm, server: Server, scales: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)) -> Server:
    """Return the server after one round in which the gateways' changes are scaled; raises `UpdateError`."""
    phase, total = algorithm.phases[server.phase], Arrays()
    for (name, data), scale in zip(data_of().items(), scales, strict=True):
        _, update = phase.train(server.global_state, {}, data, generator(SEED, server.round_index, name))
        update = {each: scale * array if each != "samples" else array for each, array in update.items()}
        total = phase.reducer.merge(total, phase.admit(server, update))
    return close_round(algorithm, server, total)


def noted(lengths: list[float]) -> Arrays:
    """Return what a judge remembers of one round of changes of such lengths."""
    judge, total = norm_filter(4.0), np.zeros(BINS)
    phase, server = build("fedavg", 1, LOGISTIC).phases[0], Server({"weights": np.zeros(1)}, {})
    for length in lengths:
        update = {"weights": np.array([length]), "intercept": np.zeros(()), "samples": np.array(1.0)}
        total = total + judge.notes(phase, server, {}, update)[LENGTHS]
    return judge.remembered({}, {LENGTHS: total})


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1e-9, 1e9), min_size=3, max_size=15))
def test_the_median_length_is_the_median_within_a_bin(lengths: list[float]) -> None:
    lower_median = sorted(lengths)[(len(lengths) - 1) // 2]
    found = median_length(noted(lengths))
    assert lower_median * (1 - 1e-12) <= found <= lower_median * 2**0.25 * (1 + 1e-12)


def test_a_minority_that_shouts_does_not_widen_the_bound() -> None:
    honest = [1.0, 1.1, 0.9, 1.0, 1.2, 0.8, 1.0]
    quiet, loud = median_length(noted(honest)), median_length(noted([*honest, 1e9, 1e9, 1e9]))
    assert loud <= 1.3 * quiet


def admitted(rounds: list[list[float]], factor: float = 4.0) -> list[list[float]]:
    """Return the lengths that are admitted in each round."""
    judge, memory = norm_filter(factor), Arrays()
    found: list[list[float]] = []
    phase, server = build("fedavg", 1, LOGISTIC).phases[0], Server({"weights": np.zeros(1)}, {})
    for lengths in rounds:
        total, taken = np.zeros(BINS), list[float]()
        for length in lengths:
            update = {"weights": np.array([length]), "intercept": np.zeros(()), "samples": np.array(1.0)}
            try:
                notes = judge.notes(phase, server, memory, update)
            except UpdateError:
                continue
            total, taken = total + notes[LENGTHS], [*taken, length]
        if taken:
            memory = judge.remembered(memory, {LENGTHS: total})
        found.append(taken)
    return found


QUIET = 1e-6


def spread_fleet(seed: int, liars: int, deviation: float = 1.0, count: int = 40) -> list[float]:
    """Return lengths of honest gateways, log-normal, and of liars who ask for next to nothing."""
    rng = np.random.default_rng(seed)
    return [*np.exp(deviation * rng.normal(size=count - liars)).tolist(), *[QUIET] * liars]


@pytest.mark.parametrize("seed", range(6))
def test_quiet_liars_do_not_pull_the_bound_down_round_by_round(seed: int) -> None:
    """16 of 40 do it once, as far as short honest gateways; without them at that length it would go on from there."""
    rounds = admitted([spread_fleet(seed, 16)] * 40)
    assert all(taken == rounds[1] for taken in rounds[1:])
    honest = sorted(length for length in rounds[0] if length > QUIET)
    assert max(rounds[-1]) >= honest[len(honest) // 2]  # at least half of the honest ones are admitted


@pytest.mark.soak
@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=12), st.data())
def test_a_quiet_minority_never_has_all_honest_gateways_refused(honest: list[float], data: st.DataObject) -> None:
    liars = data.draw(st.integers(0, len(honest) - 1))
    rounds = admitted([[*honest, *[QUIET * 1e-6] * liars]] * 12)
    assert all(min(honest) in taken for taken in rounds)


def test_gateways_that_stay_away_move_the_bound_neither_way() -> None:
    usual = [1.0] * 7
    full, some = admitted([usual, usual, [3.9, 4.9]]), admitted([usual, *[usual[:3]] * 9, [3.9, 4.9]])
    assert full[-1] == some[-1] == [3.9]


def test_the_bound_follows_the_others_down_where_a_few_are_refused_for_good() -> None:
    """Those who are missing stand for what is usual so far, and are too few to hold it there."""
    shrinking = [[0.5**index] * 8 + [1e3] * 3 for index in range(12)]
    assert admitted([*shrinking, [0.5**11, 1.0]])[-1] == [0.5**11]


def test_the_first_round_moves_nothing_and_is_no_model() -> None:
    algorithm = guarded()
    assert algorithm.rounds == LOGISTIC["rounds"] + 1
    begun = algorithm.start(generator(SEED, 0, "cloud"))
    measured = closed(algorithm, begun, (1.0, 1.0, 1.0, 1e2))  # nobody is refused yet
    assert encode(measured.global_state) == encode(begun.global_state)
    assert (measured.phase, measured.round_index) == (0, 1)
    assert guarded().lacking(measured) == "its defence has only measured so far"
    moved = closed(algorithm, measured)
    assert encode(moved.global_state) != encode(begun.global_state)
    assert guarded().lacking(moved) == ""


def test_a_change_beyond_the_bound_is_refused_with_both_numbers() -> None:
    algorithm = guarded()
    server = closed(algorithm, algorithm.start(generator(SEED, 0, "cloud")), (1.0, 1.0, 1.0, 1e2))
    closed(algorithm, server)
    with pytest.raises(UpdateError, match=r"expected a change up to \S+ long, 4 times the usual, got"):
        closed(algorithm, server, (1.0, 1.0, 1.0, 30.0))


def test_it_goes_on_measuring_until_three_lengths_are_known() -> None:
    algorithm = guarded()
    data = {name: data_of()[name] for name in NAMES[:1]}
    known = [float(run(algorithm, data, rounds=rounds).server.server_state[JUDGE + KNOWN]) for rounds in (1, 2, 3, 4)]
    assert known == [1.0, 2.0, 3.0, 4.0]
    begun = algorithm.start(generator(0, 0, "cloud")).global_state
    moved = [encode(run(algorithm, data, rounds=rounds).server.global_state) != encode(begun) for rounds in (3, 4)]
    assert moved == [False, True]


def test_its_memory_does_not_grow_with_the_fleet_or_the_rounds() -> None:
    algorithm = guarded()
    many = {f"{name}{index}": data for name, data in data_of().items() for index in range(4)}
    kept = [run(algorithm, data, rounds=rounds).server.server_state for data, rounds in ((data_of(), 2), (many, 5))]
    assert len({tuple((name, array.shape) for name, array in sorted(each.items())) for each in kept}) == 1


def test_the_bound_follows_changes_that_become_smaller() -> None:
    algorithm = guarded()
    server = closed(algorithm, algorithm.start(generator(SEED, 0, "cloud")))
    first = median_length({LENGTHS: server.server_state[JUDGE + LENGTHS]})
    for _ in range(4):
        server = closed(algorithm, server, (0.01,) * 4)
    assert median_length({LENGTHS: server.server_state[JUDGE + LENGTHS]}) < 0.05 * first


def test_who_asks_for_nothing_is_admitted_and_no_example() -> None:
    algorithm = guarded()
    server = closed(algorithm, algorithm.start(generator(SEED, 0, "cloud")))
    after = closed(algorithm, server, (0.0,) * 4)
    assert encode({"a": after.server_state[JUDGE + LENGTHS]}) == encode({"a": server.server_state[JUDGE + LENGTHS]})


@pytest.mark.parametrize("settings", [{}, {"whiten": 1}, {"survey": {}}])
def test_it_stands_before_the_sum_that_makes_the_model(settings: dict[str, Any]) -> None:
    """Not before the exchange that whitens, nor before the survey, which makes no model."""
    algorithm, shout = guarded(settings), "shout"
    judged = algorithm.phases[algorithm.setup]

    def learn(shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> tuple[Arrays, Arrays]:
        factor = 1e2 if shout in data else 1.0
        own, update = judged.train(shared, own, data, rng)
        return own, {name: array if name == "samples" else factor * array for name, array in update.items()}

    phases = list(algorithm.phases)
    phases[algorithm.setup] = judged._replace(learn=learn)
    data = {**data_of(), "loud": {**data_of()[NAMES[0]], shout: np.ones(60)}}
    refused: list[str] = []
    many = algorithm._replace(phases=tuple(phases))
    outcome = run(many, data, seed=SEED, on_refusal=lambda name, error: refused.append(name))
    assert refused == ["loud"] * (algorithm.rounds - 1)
    assert guarded().lacking(outcome.server) == ""


@pytest.mark.parametrize("name", ["incfed", "federated-subspace", "esn-fedcurv"])
def test_sums_that_are_kept_have_no_round_to_measure_in(name: str) -> None:
    network = {} if name == "federated-subspace" else {"network": {"task": "classify", "units": 12, "washout": 4}}
    with pytest.raises(DefenceError, match="expected one of changes or of all that gateways have to say: its first"):
        with_update_filter(build(name, FEATURE_COUNT, network), Defence(kind="norm"))


def test_what_is_measured_by_one_class_gateways_is_sent_again() -> None:
    """They remember what they gave, and the model that did not move tells them that it was not taken."""
    settings = {"components": 64, "rounds": 5}
    plain = build("fedavg", FEATURE_COUNT, settings)
    judged = with_update_filter(plain, Defence(kind="norm", norm_factor=1e6))
    expected = run(plain, data_of(labelled=False), seed=SEED).server.global_state
    found = run(judged, data_of(labelled=False), seed=SEED).server.global_state
    np.testing.assert_allclose(found["weights"], expected["weights"], atol=1e-9)
