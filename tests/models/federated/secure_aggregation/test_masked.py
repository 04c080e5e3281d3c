"""Secure aggregation of every additive algorithm: the masked sum is the plain sum within the quantum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from fedgate.config.protocol import wire
from fedgate.models.arrays import FEATURES, SECRET, WEIGHT, Arrays, equal, generator, joined, parted
from fedgate.models.federated import ALGORITHMS
from fedgate.models.federated.defences.wrapper import Defence, with_update_filter
from fedgate.models.federated.protocol.algorithm import Algorithm, Phase, Server, close_round
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.secure_aggregation.client import LEAVES, STAYS, STEPS
from fedgate.models.federated.secure_aggregation.options import RosterError, split
from fedgate.models.federated.secure_aggregation.wrapper import Masking, with_secure_aggregation
from fedgate.models.testing.exchanges import SEED, exchanges_of
from fedgate.models.testing.fleet import FEATURE_COUNT, NAMES, fleet
from tests.project.test_tidy import loaded_by
from tests.support.given_width import build
from tests.support.law_settings import SETTINGS
from tests.support.masked_rounds import (
    INPUT,
    KEYS,
    QUANTUM,
    SHARES,
    SUMMED,
    adding,
    expected_sum,
    failed,
    masked_adding,
    names_of,
    rows_of,
    secret_of,
    took_part,
)
from tests.support.masked_rounds import SEED as ROUND_SEED
from tests.support.soak import some

# A gateway draws other numbers in the third of five exchanges than in the only one, and some algorithms use them.
DRAWS = {"esn-fedavg", "esn-fedcurv", "recurrent-fedavg"}


def plain(name: str) -> Algorithm:
    settings = {key: value for key, value in SETTINGS.get(name, [{}])[0].items() if key != "masking"}
    return build(name, FEATURE_COUNT, settings)


ADDITIVE = [name for name in ALGORITHMS if all(phase.reducer.additive for phase in plain(name).phases)]


def data_of(algorithm: Algorithm) -> dict[str, Arrays]:
    return {name: gateway.data for name, gateway in fleet(SEED, labelled=algorithm.labels).items()}


def listening(algorithm: Algorithm, heard: list[Arrays]) -> Algorithm:
    """Return the algorithm so that the sums it advances with are heard."""

    def heard_by(advance: Any) -> Any:
        def listen(server: Server, total: Arrays) -> Server:
            heard.append(total)
            return advance(server, total)  # type: ignore[no-any-return]  # it is the algorithm's own

        return listen

    phases = tuple(phase._replace(advance=heard_by(phase.advance)) for phase in algorithm.phases)
    return algorithm._replace(phases=phases)


def plain_sums(algorithm: Algorithm, data: dict[str, Arrays]) -> Iterator[Arrays]:
    """Yield for every group of a masked training what the plain exchange sums up in its place."""
    for exchange in exchanges_of(with_secure_aggregation(algorithm, Masking(fewest=3)), data):
        if exchange.server.phase % STEPS != INPUT:
            continue
        phase = algorithm.phases[exchange.server.phase // STEPS]
        server = Server(split(exchange.server.global_state)[0], {})
        total = Arrays()
        for name in NAMES:
            own = split(exchange.own[name])[0]
            _, update = phase.train(server.global_state, own, exchange.data[name], exchange.rng(name))
            total = phase.reducer.merge(total, phase.admit(server, update)) if update else total
        yield total


@pytest.mark.soak
@pytest.mark.parametrize("name", ADDITIVE)
def test_the_masked_sum_is_the_plain_sum_within_the_quantum(name: str) -> None:
    algorithm, heard = plain(name), list[Arrays]()
    data = data_of(algorithm)
    for _ in exchanges_of(with_secure_aggregation(listening(algorithm, heard), Masking(fewest=3)), data):
        pass
    # Where nobody has anything new, nothing is opened.
    expected = [sums for sums in plain_sums(algorithm, data) if any(array.any() for array in sums.values())]
    assert len(heard) == len(expected) > 0
    for found, wanted in zip(heard, expected, strict=True):
        assert found.keys() == wanted.keys()
        for key, array in wanted.items():
            assert found[key].shape == array.shape
            error = np.abs(found[key] - array)
            assert (error <= len(NAMES) * QUANTUM / 2.0 + 1e-12 * np.abs(array)).all()


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in ADDITIVE if name not in DRAWS])
def test_the_masked_training_ends_in_the_plain_model(name: str) -> None:
    algorithm = plain(name)
    data = data_of(algorithm)
    rounds = min(algorithm.rounds, 5)
    expected = run(algorithm, data, seed=SEED, rounds=rounds).server
    found = run(with_secure_aggregation(algorithm, Masking(fewest=3)), data, seed=SEED, rounds=rounds).server
    assert found.phase == STEPS * expected.phase
    # What a system of equations amplifies is told by its condition.
    tolerance = 1e-4 * max(1.0, float(expected.global_state.get("condition", 1.0)) * 1e-3)
    assert equal(found.global_state, expected.global_state, tolerance)
    assert equal(split(found.server_state)[0], expected.server_state, 1e-4)


@pytest.mark.soak
def test_whitening_runs_masked_too() -> None:
    settings: dict[str, Any] = {"components": 16, "whiten": 2, "rounds": 3}
    data = data_of(build("fedavg", FEATURE_COUNT, settings))
    algorithms = [
        build("fedavg", FEATURE_COUNT, chosen) for chosen in (settings, settings | {"masking": {"fewest": 3}})
    ]
    assert algorithms[1].setup == STEPS * algorithms[0].setup == STEPS
    models = [run(algorithm, data, seed=SEED).server.global_state for algorithm in algorithms]
    assert equal(models[0], models[1], 1e-4)


def test_a_round_that_fails_in_the_setup_begins_the_setup_anew() -> None:
    algorithm = build("fedavg", FEATURE_COUNT, {"components": 16, "whiten": 2, "masking": {"fewest": 3}})
    exchanges = exchanges_of(algorithm, data_of(algorithm))
    assert [close_round(algorithm, exchange.server, {}).phase for exchange in exchanges] == [0] * STEPS + [
        STEPS
    ] * 2 * STEPS


def restarted(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm in a cloud that starts anew from its store before it closes an exchange."""

    def closing(phase: Phase) -> Phase:
        def advance(server: Server, total: Arrays) -> Server:
            parts = {"shared": server.global_state, "kept": server.server_state, "total": total}
            stored = parted(wire.decode(wire.encode(joined(parts)))[0])
            again = server._replace(global_state=stored.get("shared", {}), server_state=stored.get("kept", {}))
            return phase.advance(again, stored["total"])

        return phase._replace(advance=advance)

    return algorithm._replace(phases=tuple(map(closing, algorithm.phases)))


@pytest.mark.soak
@pytest.mark.parametrize("name", ["fedavg", "incfed"])
def test_a_cloud_that_starts_anew_in_every_exchange_ends_in_the_same_model(name: str) -> None:
    algorithm = plain(name)
    data, masked = data_of(algorithm), with_secure_aggregation(algorithm, Masking(fewest=3))
    found, expected = (run(each, data, seed=SEED, rounds=2) for each in (restarted(masked), masked))
    assert wire.encode(found.server.global_state) == wire.encode(expected.server.global_state)
    assert wire.encode(found.server.server_state) == wire.encode(expected.server.server_state)


@pytest.mark.parametrize("step", range(STEPS))
def test_what_the_algorithm_puts_back_after_a_round_that_failed_it_puts_back_under_masks_too(step: int) -> None:
    def put_back(server: Server) -> Server:
        return server._replace(global_state={**server.global_state, "back": np.array(server.phase)})

    inner = adding(3)
    masked = with_secure_aggregation(inner._replace(restore=put_back), Masking(fewest=3))
    server = took_part(masked, rows_of(names_of(4), 3)).servers[step]
    assert server.phase == step
    model = inner.start(generator(SEED, 0, "cloud")).global_state
    assert equal(failed(masked, server).global_state, {**model, "back": np.array(0)})


LEAVE = {FEATURES: np.zeros((0, FEATURE_COUNT)), WEIGHT: np.array(0.0)}
SUMS = build("incfed", FEATURE_COUNT, {"ridge": 1.0})
SUMS_MASKED = with_secure_aggregation(SUMS, Masking(fewest=3))


def eight() -> dict[str, Arrays]:
    return {f"{name}-{part}": rows for part in range(2) for name, rows in rows_of_fleet(part).items()}


def rows_of_fleet(part: int) -> dict[str, Arrays]:
    return {name: gateway.data for name, gateway in fleet(SEED + part).items()}


def holds_all_of(server: Server, data: dict[str, Arrays]) -> bool:
    return equal(split(server.server_state)[0], run(SUMS, data, seed=ROUND_SEED).server.server_state, 1e-4)


@pytest.mark.soak
def test_those_who_leave_together_take_their_rows_back_under_masks() -> None:
    data = eight()
    first = took_part(SUMS_MASKED, data)
    gone, others = list(data)[:4], {name: data[name] for name in list(data)[4:]}
    second = took_part(SUMS_MASKED, data | dict.fromkeys(gone, LEAVE), server=first.server, own=first.own)
    assert holds_all_of(second.server, others)
    third = took_part(SUMS_MASKED, dict.fromkeys(data, LEAVE), server=second.server, own=second.own)
    assert not third.updates[INPUT] and holds_all_of(third.server, others)  # the last ones stay


@pytest.mark.soak
def test_who_leaves_alone_waits_for_others_and_so_does_what_one_has_new() -> None:
    """Else the change of the sum is what that one gateway had sent, or has new."""
    data, later = eight(), rows_of_fleet(2)
    names = list(data)
    first = took_part(SUMS_MASKED, data)
    alone = data | {names[0]: LEAVE, names[1]: later[NAMES[1]]}
    second = took_part(SUMS_MASKED, alone, server=first.server, own=first.own, goes_on=True)
    assert len(second.updates) == INPUT + 1 and holds_all_of(second.server, data)
    more = alone | {names[2]: LEAVE}
    third = took_part(SUMS_MASKED, more, server=second.server, own=second.own)
    anew = {name: {key: first.own[name][key] for key in ("center", "scale")} for name in names}
    left = {name: rows for name, rows in more.items() if rows is not LEAVE}
    again = took_part(SUMS_MASKED, left, own=anew).server.server_state
    assert equal(split(third.server.server_state)[0], split(again)[0], 1e-4)


@pytest.mark.soak
@pytest.mark.parametrize("leavers", some([6, 8, 7], 2))
def test_nobody_leaves_where_too_few_would_be_left(leavers: int) -> None:
    """The sum of one or two who are left would be in the open."""
    data = eight()
    first = took_part(SUMS_MASKED, data)
    left = data | dict.fromkeys(list(data)[:leavers], LEAVE)
    second = took_part(SUMS_MASKED, left, server=first.server, own=first.own)
    assert not second.updates[INPUT] and holds_all_of(second.server, data)


@pytest.mark.soak
def test_what_the_cloud_says_of_who_stays_must_be_signed_by_these() -> None:
    """A cloud that says that more stay would have all others leave, and be left with the rows of one."""
    data = eight()
    first = took_part(SUMS_MASKED, data)
    left = data | dict.fromkeys(list(data)[:6], LEAVE)
    second = took_part(SUMS_MASKED, left, server=first.server, own=first.own)
    shared = second.servers[INPUT].global_state
    parts = shared["masking.part"]
    assert sorted(parts.tolist()) == [STAYS] * 2 + [LEAVES] * 6
    one = next(iter(data))
    own: Arrays = dict(first.own[one])
    for step in (KEYS, SHARES):
        told = {**LEAVE, SECRET: secret_of(one, second.servers[step].round_index)}
        own, _ = SUMS_MASKED.phases[step].train(second.servers[step].global_state, own, told, generator(3, step, "x"))
    for lie in (np.full(8, STAYS, np.uint8), np.roll(parts, 1), parts.astype(np.int64), parts[1:]):
        with pytest.raises(RosterError, match=r"signature: expected one of this round|part: expected 8 of one byte"):
            SUMS_MASKED.phases[INPUT].train({**shared, "masking.part": lie}, own, LEAVE, generator(3, 9, "x"))


@pytest.mark.soak
def test_rows_that_are_exchanged_for_others_are_exchanged_under_masks() -> None:
    algorithm = build("incfed", FEATURE_COUNT, {"ridge": 1.0, "masking": {"fewest": 3}})
    data, later = data_of(algorithm), {name: gateway.data for name, gateway in fleet(SEED + 1).items()}
    first = took_part(algorithm, data)
    units = {name: {key: own[key] for key in ("center", "scale")} for name, own in first.own.items()}
    changed = data | {name: later[name] for name in NAMES[:3]}
    second = took_part(algorithm, changed, server=first.server, own=first.own)
    anew = took_part(algorithm, changed, own=units)
    assert equal(split(second.server.server_state)[0], split(anew.server.server_state)[0], 1e-4)


@pytest.mark.parametrize(
    ("algorithm", "reason"),
    [
        (lambda: build("support-vector-election", 3, {}), "keeps rows apart, expected a sum in each"),
        (lambda: build("conditional-fedavg", 3, {}), "keeps rows apart"),
        (lambda: with_secure_aggregation(adding(3), Masking(fewest=3)), "algorithm that has it, expected one without"),
        (
            lambda: with_update_filter(build("fedavg", 3, {}), Defence(kind="statistic")),
            "a filter looks at single updates",
        ),
        (lambda: build("fedavg", 3, {"compression": {"number": "int8"}}), "expected one that is not"),
    ],
)
def test_what_cannot_be_masked_is_refused_with_a_reason(algorithm: Callable[[], Algorithm], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        with_secure_aggregation(algorithm(), Masking(fewest=3))


@pytest.mark.parametrize(
    "options",
    [
        {"quantum": 0.0},
        {"quantum": float("nan")},
        {"range": -1.0},
        {"range": float("inf")},
        {"fewest": 2},
        {"neighbours": 3},
        {"neighbours": 0},
        {"threshold": 0.0},
        {"threshold": 1.5},
        {"threshold": 0.5},
        {"fewest": 38},
        {"bits": 32},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(options))):
        Masking.model_validate(options)
    with pytest.raises(ValueError, match=f"masking.*{next(iter(options))}"):
        build("fedavg", FEATURE_COUNT, {"masking": options})


@pytest.mark.parametrize("quantum", [2.0**-40, 2.0**-20, 2.0**-8, 0.1])
def test_the_error_of_the_sum_is_at_most_half_a_quantum_for_each_gateway(quantum: float) -> None:
    data = {name: {FEATURES: 100.0 * rows[FEATURES]} for name, rows in rows_of(names_of(7), size=50).items()}
    made = took_part(masked_adding(50, quantum=quantum), data)
    error = np.abs(made.server.global_state[SUMMED] - expected_sum(data, data)).max()
    assert error <= 7 * quantum / 2.0 + 1e-12
    assert quantum < 1e-9 or error > quantum / 100.0  # it is rounded to quanta, indeed


def test_between_rounds_the_model_alone_is_shared_and_within_them_it_travels_once() -> None:
    made = took_part(masked_adding(5), rows_of(names_of(4), size=5))
    assert [set(split(server.global_state)[0]) for server in made.servers] == [
        *[{SUMMED, "rounds"}, set()] * 2,
        set(),
        {SUMMED, "rounds"},
    ]
    assert made.server.server_state == {}
    assert not split(made.server.global_state)[1]
    assert all(not {"secret", "agreement", "channel"} & split(own)[1].keys() for own in made.own.values())


def test_data_without_a_secret_is_an_error() -> None:
    algorithm = masked_adding(2)
    server = algorithm.start(generator(0, 0, "cloud"))
    with pytest.raises(ValueError, match="secret: expected 32 bytes"):
        algorithm.phases[0].train(server.global_state, {}, {FEATURES: np.ones((1, 2))}, generator(0, 0, "x"))


@pytest.mark.soak
def test_masks_load_no_cipher_before_they_are_needed() -> None:
    modules = "fedgate.models.federated.secure_aggregation.wrapper, fedgate.models.federated.registry"
    assert "cryptography" not in loaded_by(modules)
