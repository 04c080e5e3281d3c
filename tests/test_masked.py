"""Secure aggregation of every additive algorithm: the masked sum is the plain sum within the quantum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from models.arrays import FEATURES, WEIGHT, Arrays, equal, generator
from models.federated import ALGORITHMS
from models.federated.algorithm import Algorithm, Server, close_round
from models.federated.defended import Defence, defended
from models.federated.masked import Masking, masked
from models.federated.masking import split
from models.federated.masking_gateway import STEPS
from models.federated.run import run
from tests.exchanges import SEED, exchanges_of
from tests.given_width import build
from tests.law_settings import SETTINGS
from tests.masked_rounds import (
    INPUT,
    QUANTUM,
    SUMMED,
    adding,
    expected_sum,
    masked_adding,
    names_of,
    rows_of,
    took_part,
)
from tests.masked_rounds import SEED as ROUND_SEED
from tests.test_tidy import loaded_by
from tests.toy import FEATURE_COUNT, NAMES, fleet

# A gateway draws other numbers in the third of four exchanges than in the only one, and some algorithms use them.
DRAWS = {"esn-fedavg", "esn-fedcurv", "recurrent-fedavg"}


def plain(name: str) -> Algorithm:
    settings = {key: value for key, value in SETTINGS.get(name, [{}])[0].items() if key != "masking"}
    return build(name, FEATURE_COUNT, settings)


ADDITIVE = [name for name in ALGORITHMS if all(phase.tally.additive for phase in plain(name).phases)]


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
    for exchange in exchanges_of(masked(algorithm, Masking()), data):
        if exchange.server.phase % STEPS != INPUT:
            continue
        phase = algorithm.phases[exchange.server.phase // STEPS]
        server = Server(split(exchange.server.shared)[0], {})
        total = Arrays()
        for name in NAMES:
            own = split(exchange.own[name])[0]
            _, update = phase.train(server.shared, own, exchange.data[name], exchange.rng(name))
            total = phase.tally.merge(total, phase.admit(server, update)) if update else total
        yield total


@pytest.mark.parametrize("name", ADDITIVE)
def test_the_masked_sum_is_the_plain_sum_within_the_quantum(name: str) -> None:
    algorithm, heard = plain(name), list[Arrays]()
    data = data_of(algorithm)
    for _ in exchanges_of(masked(listening(algorithm, heard), Masking()), data):
        pass
    expected = list(plain_sums(algorithm, data))
    assert len(heard) == len(expected) > 0
    for found, wanted in zip(heard, expected, strict=True):
        assert found.keys() == wanted.keys()
        for key, array in wanted.items():
            assert found[key].shape == array.shape
            error = np.abs(found[key] - array)
            assert (error <= len(NAMES) * QUANTUM / 2.0 + 1e-12 * np.abs(array)).all()


@pytest.mark.parametrize("name", [name for name in ADDITIVE if name not in DRAWS])
def test_the_masked_training_ends_in_the_plain_model(name: str) -> None:
    algorithm = plain(name)
    data = data_of(algorithm)
    rounds = min(algorithm.rounds, 5)
    expected = run(algorithm, data, seed=SEED, rounds=rounds).server
    found = run(masked(algorithm, Masking()), data, seed=SEED, rounds=rounds).server
    assert found.phase == STEPS * expected.phase
    # What a system of equations amplifies is told by its condition.
    tolerance = 1e-4 * max(1.0, float(expected.shared.get("condition", 1.0)) * 1e-3)
    assert equal(found.shared, expected.shared, tolerance)
    assert equal(split(found.kept)[0], expected.kept, 1e-4)


def test_whitening_runs_masked_too() -> None:
    settings: dict[str, Any] = {"components": 16, "whiten": 2, "rounds": 3}
    data = data_of(build("fedavg", FEATURE_COUNT, settings))
    algorithms = [build("fedavg", FEATURE_COUNT, chosen) for chosen in (settings, settings | {"masking": {}})]
    assert algorithms[1].setup == STEPS * algorithms[0].setup == STEPS
    models = [run(algorithm, data, seed=SEED).server.shared for algorithm in algorithms]
    assert equal(models[0], models[1], 1e-4)


def test_a_round_that_fails_in_the_setup_begins_the_setup_anew() -> None:
    algorithm = build("fedavg", FEATURE_COUNT, {"components": 16, "whiten": 2, "masking": {}})
    exchanges = exchanges_of(algorithm, data_of(algorithm))
    assert [close_round(algorithm, exchange.server, {}).phase for exchange in exchanges] == [0] * 4 + [4] * 8


def test_who_leaves_takes_its_rows_back_under_masks() -> None:
    algorithm = build("incfed", FEATURE_COUNT, {"ridge": 1.0, "masking": {}})
    data = data_of(algorithm)
    first = took_part(algorithm, data)
    nothing = {FEATURES: data[NAMES[0]][FEATURES][:0], WEIGHT: np.array(0.0)}
    second = took_part(algorithm, data | {NAMES[0]: nothing}, server=first.server, own=first.own)
    others = {name: data[name] for name in NAMES[1:]}
    expected = run(build("incfed", FEATURE_COUNT, {"ridge": 1.0}), others, seed=ROUND_SEED).server
    assert equal(split(second.server.kept)[0], expected.kept, 1e-4)


def test_rows_that_are_exchanged_for_others_are_exchanged_under_masks() -> None:
    algorithm = build("incfed", FEATURE_COUNT, {"ridge": 1.0, "masking": {}})
    data, later = data_of(algorithm), {name: gateway.data for name, gateway in fleet(SEED + 1).items()}
    first = took_part(algorithm, data)
    units = {name: {key: own[key] for key in ("center", "scale")} for name, own in first.own.items()}
    second = took_part(algorithm, data | {NAMES[0]: later[NAMES[0]]}, server=first.server, own=first.own)
    anew = took_part(algorithm, data | {NAMES[0]: later[NAMES[0]]}, own=units)
    assert equal(split(second.server.kept)[0], split(anew.server.kept)[0], 1e-4)


@pytest.mark.parametrize(
    ("algorithm", "reason"),
    [
        (lambda: build("support-vector-election", 3, {}), "exchange 0 has the tally 'stack', expected a sum in each"),
        (lambda: build("conditional-fedavg", 3, {}), "exchange 0 has the tally 'stack'"),
        (lambda: masked(adding(3), Masking()), "expected one without masks"),
        (lambda: defended(build("fedavg", 3, {}), Defence(kind="statistic")), "a judge looks at single updates"),
        (lambda: build("fedavg", 3, {"compression": {"number": "int8"}}), "expected one that is not"),
    ],
)
def test_what_cannot_be_masked_is_refused_with_a_reason(algorithm: Callable[[], Algorithm], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        masked(algorithm(), Masking())


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
        {"threshold": 0.03},
        {"fewest": 26},
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
    error = np.abs(made.server.shared[SUMMED] - expected_sum(data, data)).max()
    assert error <= 7 * quantum / 2.0 + 1e-12
    assert quantum < 1e-9 or error > quantum / 100.0  # it is rounded to quanta, indeed


def test_between_rounds_the_model_alone_is_shared_and_within_them_it_travels_once() -> None:
    made = took_part(masked_adding(5), rows_of(names_of(4), size=5))
    assert [set(split(server.shared)[0]) for server in made.servers] == [{SUMMED, "rounds"}, set()] * 2 + [
        {SUMMED, "rounds"}
    ]
    assert made.server.kept == {}
    assert not split(made.server.shared)[1]
    assert all(not {"secret", "agreement", "channel"} & split(own)[1].keys() for own in made.own.values())


def test_data_without_a_secret_is_an_error() -> None:
    algorithm = masked_adding(2)
    server = algorithm.start(generator(0, 0, "cloud"))
    with pytest.raises(ValueError, match="secret: expected 32 bytes"):
        algorithm.phases[0].train(server.shared, {}, {FEATURES: np.ones((1, 2))}, generator(0, 0, "x"))


def test_masks_load_no_cipher_before_they_are_needed() -> None:
    modules = "models.federated.masked, models.federated.registry"
    assert "cryptography" not in loaded_by(modules)
