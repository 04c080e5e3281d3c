"""Defences in front of additive algorithms: the laws hold as before, and who harms the model is refused."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from fedgate.config.protocol.wire import decode, encode
from fedgate.models.arrays import FEATURES, LABELS, Arrays, equal, generator
from fedgate.models.detectors import DETECTORS
from fedgate.models.federated.defences.discriminator import ContextError, train_discriminator
from fedgate.models.federated.defences.wrapper import JUDGE, Defence, with_update_filter
from fedgate.models.federated.protocol.algorithm import Algorithm, Server, close_round
from fedgate.models.federated.protocol.composition import CompositionError
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.protocol.schema import UpdateError
from fedgate.models.testing.exchanges import SEED, Exchange, as_bytes, exchanges_of, locked
from fedgate.models.testing.fleet import FEATURE_COUNT, NAMES, SHIFT, auc, fleet
from tests.support.given_width import build

NETWORK = {"task": "classify", "units": 20, "washout": 5}
READOUT_SETTINGS: dict[str, Any] = {"network": NETWORK, "rate": 1.0, "rounds": 8}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "esn-fedavg": READOUT_SETTINGS,
    "esn-fedcurv": READOUT_SETTINGS,
    "incfed": {"network": NETWORK, "rounds": 3},
    "fedavg": {"loss": "logistic", "components": 0, "rounds": 8},
    "robust-svm-admm": {"rounds": 4},
    "federated-subspace": {"rounds": 3, "components": 1},
}
# Which algorithms each kind can judge.
KINDS = {
    "trusted": tuple(ALGORITHMS),
    "statistic": tuple(ALGORITHMS),
    "network": ("esn-fedavg", "fedavg"),
    "norm": ("esn-fedavg", "fedavg", "robust-svm-admm"),
}
CASES = [(name, kind) for name in ALGORITHMS for kind, names in KINDS.items() if name in names]
REASON = r"expected .*got"


def plain(name: str) -> Algorithm:
    return build(name, FEATURE_COUNT, ALGORITHMS[name])


def trusted() -> list[Arrays]:
    return [gateway.data for gateway in list(fleet(77, labelled=True).values())[:2]]


def behind(algorithm: Algorithm, kind: Any, **settings: Any) -> Algorithm:
    network = None
    if kind == "network":
        network = train_discriminator(algorithm, trusted(), generator(SEED, 0, "cloud"), rounds=3)
        network["layer2.bias"] = network["layer2.bias"] + 50.0  # takes everything for clean
    return with_update_filter(
        algorithm, Defence(kind=kind, **settings), trusted() if kind == "trusted" else (), network
    )


def data_of(algorithm: Algorithm) -> dict[str, Arrays]:
    return {name: gateway.data for name, gateway in fleet(SEED, labelled=algorithm.labels, rows=90).items()}


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def exchanges(request: pytest.FixtureRequest) -> list[Exchange]:
    name, kind = request.param
    algorithm = behind(plain(name), kind)
    return list(exchanges_of(algorithm, data_of(algorithm)))


def admitted(exchange: Exchange, names: tuple[str, ...] = NAMES) -> list[Arrays]:
    return [exchange.phase.admit(exchange.server, exchange.updates[name]) for name in names]


def total_of(exchange: Exchange, names: tuple[str, ...] = NAMES) -> Arrays:
    total: Arrays = {}
    for update in admitted(exchange, names):
        total = exchange.phase.reducer.merge(total, update)
    return total


@pytest.mark.soak
def test_what_is_admitted_adds_up_in_any_order(exchanges: list[Exchange]) -> None:
    for exchange in exchanges:
        merge, (a, b, c, _) = exchange.phase.reducer.merge, admitted(exchange)
        assert encode(merge({}, a)) == encode(merge(a, {})) == encode(a)
        assert equal(merge(merge(a, b), c), merge(a, merge(b, c)), 1e-12)
        assert equal(merge(a, b), merge(b, a), 1e-12)
        servers = [close_round(exchange.algorithm, exchange.server, total_of(exchange, names)) for names in orders()]
        for server in servers:
            assert equal(server.global_state, servers[0].global_state, 1e-11)
            assert equal(server.server_state, servers[0].server_state, 1e-11)


def orders() -> list[tuple[str, ...]]:
    return [tuple(order) for order in itertools.islice(itertools.permutations(NAMES), 0, None, 5)]


def test_a_total_keeps_its_size(exchanges: list[Exchange]) -> None:
    for exchange in exchanges:
        first, *_ = admitted(exchange)
        total = first
        for _ in range(200):
            total = exchange.phase.reducer.merge(total, first)
        assert {name: array.shape for name, array in total.items()} == {
            name: array.shape for name, array in first.items()
        }


def test_no_input_is_changed_and_states_survive_the_wire(exchanges: list[Exchange]) -> None:
    for exchange in exchanges:
        shared, kept = (
            decode(encode(part))[0] for part in (exchange.server.global_state, exchange.server.server_state)
        )
        loaded = exchange.server._replace(global_state=locked(shared), server_state=locked(kept))
        update = locked(decode(encode(exchange.updates[NAMES[0]]))[0])
        before = as_bytes(loaded, update)
        after = exchange.phase.admit(loaded, update)
        assert encode(after) == encode(admitted(exchange)[0])
        total = locked(total_of(exchange))
        advanced = exchange.phase.advance(loaded, total)
        assert as_bytes(advanced) == as_bytes(exchange.phase.advance(exchange.server, total))
        assert as_bytes(loaded, update) == before


def test_what_is_damaged_is_refused_as_before(exchanges: list[Exchange]) -> None:
    for exchange in exchanges:
        update = exchange.updates[NAMES[0]]
        for name in update:
            for wrong in (np.full(update[name].shape, np.nan), update[name][None], update[name].astype(str)):
                with pytest.raises(UpdateError, match=REASON):
                    exchange.phase.admit(exchange.server, {**update, name: wrong})
        for wrong_names in ({}, {**update, f"{JUDGE}count": np.ones(())}):
            with pytest.raises(UpdateError, match=REASON):
                exchange.phase.admit(exchange.server, wrong_names)


@pytest.mark.parametrize(("name", "kind"), [case for case in CASES if case[1] != "norm"])  # which first measures
def test_where_nobody_is_refused_the_model_is_the_same(name: str, kind: str) -> None:
    """But for rounding, of gateways with as many rows each; and the algorithm never sees what the judge keeps."""
    algorithm = plain(name)
    seen: set[str] = set()

    def spied(server: Server, total: Arrays) -> Server:
        seen.update(server.server_state, total)
        return algorithm.phases[0].advance(server, total)

    watched = algorithm._replace(phases=(algorithm.phases[0]._replace(advance=spied),))
    settings = {"factor": 1e9} if kind == "trusted" else {"width": 1e9}
    guarded = behind(watched, kind, **settings)
    data = data_of(algorithm)
    expected, found = run(algorithm, data, seed=SEED).server, run(guarded, data, seed=SEED).server
    assert equal(found.global_state, expected.global_state, 1e-9)
    rest = {name: array for name, array in found.server_state.items() if not name.startswith(JUDGE)}
    assert equal(rest, expected.server_state, 1e-9)
    assert not any(name.startswith(JUDGE) for name in seen)
    assert (rest != found.server_state) == (kind != "network")


# Sums that move the model by an average; the others add up over rows, and say what is kept from round to round.
AVERAGES = ("esn-fedavg", "esn-fedcurv", "fedavg", "robust-svm-admm")
CLAIMING: dict[str, dict[str, Any]] = {
    "robust-svm-admm": {"weights": "samples"},
    "robust-svm-subgradient": {"weights": "samples"},
    "recurrent-fedavg": {"network": {"hidden": 4, "dense": 4, "change": False}, "rounds": 3},
    "fedper": {"components": 32},
    "fedprox": {"loss": "logistic"},
}
CLAIMED = [case for case in CASES if case[0] in AVERAGES] + [
    (name, "statistic") for name in CLAIMING if name not in AVERAGES
]


@pytest.mark.soak
@pytest.mark.parametrize("factor", [1.0 / 64.0, 200.0])
@pytest.mark.parametrize(("name", "kind"), CLAIMED)
def test_what_a_gateway_claims_to_weigh_moves_nothing(name: str, kind: str, factor: float) -> None:
    """A liar of a usual length turned the round by saying that it has 20,000 rows."""
    algorithm = behind(build(name, FEATURE_COUNT, {**ALGORITHMS.get(name, {}), **CLAIMING.get(name, {})}), kind)
    weights, sums = {"samples", "weight_sum"}, {"gateways", "curvature", "curved_readout", "reservoir"}
    for exchange in exchanges_of(algorithm, data_of(algorithm)):
        update = exchange.updates[NAMES[0]]
        claimed = {each: array if each in sums else factor * array for each, array in update.items()}
        found, expected = (
            admitted(exchange._replace(updates={**exchange.updates, NAMES[0]: each})) for each in (claimed, update)
        )
        assert all(float(each[weight]) == 1.0 for each in found for weight in weights & each.keys())
        servers = [
            close_round(exchange.algorithm, exchange.server, added(exchange, each)) for each in (found, expected)
        ]
        assert equal(servers[0].global_state, servers[1].global_state, 1e-6)
        assert equal(servers[0].server_state, servers[1].server_state, 1e-6)


def added(exchange: Exchange, updates: list[Arrays]) -> Arrays:
    total: Arrays = {}
    for update in updates:
        total = exchange.phase.reducer.merge(total, update)
    return total


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in AVERAGES])
def test_sums_over_rows_are_left_as_they_are(name: str) -> None:
    algorithm = plain(name)
    for exchange in exchanges_of(behind(algorithm, "statistic", width=1e9), data_of(algorithm)):
        bare = exchange.server._replace(
            server_state={k: v for k, v in exchange.server.server_state.items() if not k.startswith(JUDGE)}
        )
        given = algorithm.phases[0].admit(bare, exchange.updates[NAMES[0]])
        assert all(np.array_equal(admitted(exchange)[0][each], array) for each, array in given.items())


def flipped(data: Arrays) -> Arrays:
    return {**data, LABELS: 1 - data[LABELS]}


def refusals(algorithm: Algorithm, data: dict[str, Arrays], **options: Any) -> tuple[list[str], Arrays]:
    names: list[str] = []
    outcome = run(algorithm, data, seed=SEED, on_refusal=lambda name, error: names.append(name), **options)
    return names, outcome.server.global_state


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "federated-subspace"])
def test_flipped_labels_are_refused_by_trusted_tables(name: str) -> None:
    algorithm = plain(name)
    bad = NAMES[:2]  # half of them
    data = {who: flipped(each) if who in bad else each for who, each in data_of(algorithm).items()}
    refused, shared = refusals(behind(algorithm, "trusted"), data)
    assert set(refused) == set(bad)
    gateway = fleet(SEED, labelled=True)[NAMES[2]]
    own = {"center": gateway.x[~gateway.y].mean(axis=0), "scale": gateway.x[~gateway.y].std(axis=0)}
    assert auc(DETECTORS[algorithm.detector].score({**shared, **own}, gateway.x), gateway.y) > 0.95


def test_a_model_of_faults_is_refused_where_nothing_was_labelled() -> None:
    """A gateway that watched a broken machine all along."""
    tables = [gateway.data for gateway in fleet(77, labelled=True, alike=True).values()]
    algorithm = build("federated-subspace", FEATURE_COUNT, {"normalisation": "none", "components": 1})
    data = {name: gateway.data for name, gateway in fleet(SEED, alike=True).items()}
    data["broken"] = {FEATURES: data[NAMES[0]][FEATURES] + SHIFT}
    assert refusals(with_update_filter(algorithm, Defence(kind="trusted"), tables), data)[0] == ["broken"]


def test_a_border_moved_away_is_refused_by_trusted_tables() -> None:
    algorithm = plain("fedavg")
    guarded = behind(algorithm, "trusted")
    data = data_of(algorithm)
    server = run(guarded, data, seed=SEED).server
    _, update = algorithm.phases[0].train(server.global_state, {}, data[NAMES[0]], generator(0, 0, "a"))
    guarded.phases[0].admit(server, update)
    with pytest.raises(UpdateError, match=r"expected a loss up to .* got 0\.2"):
        guarded.phases[0].admit(server, {**update, "intercept": update["intercept"] - 1e2 * update["samples"]})


@pytest.mark.soak
def test_the_trusted_judge_does_not_depend_on_the_servers_rate() -> None:
    bad = NAMES[:2]
    for rate in (1.0, 0.01):
        algorithm = build("esn-fedavg", FEATURE_COUNT, {**READOUT_SETTINGS, "rate": rate})
        data = {who: flipped(each) if who in bad else each for who, each in data_of(algorithm).items()}
        assert set(refusals(behind(algorithm, "trusted"), data)[0]) == set(bad)


@pytest.mark.soak
def test_what_the_network_rejects_is_refused() -> None:
    algorithm = plain("esn-fedavg")
    network = train_discriminator(algorithm, trusted(), generator(SEED, 0, "cloud"), rounds=3)
    network["layer2.weights"] = 0.0 * network["layer2.weights"]
    network["layer2.bias"] = np.array([-9.0])  # takes everything for noisy
    data = data_of(algorithm)
    guarded = with_update_filter(algorithm, Defence(kind="network"), network=network)
    server = algorithm.start(generator(SEED, 0, "cloud"))
    _, update = algorithm.phases[0].train(server.global_state, {}, data[NAMES[0]], generator(0, 0, NAMES[0]))
    with pytest.raises(UpdateError, match=r"expected a change .* got 0\.0001"):
        guarded.phases[0].admit(server, update)
    refused, shared = refusals(guarded, data)
    assert len(refused) == len(NAMES) * algorithm.rounds
    assert not shared["readout"].any()  # nobody was counted, so the model stays as it was


def test_behind_the_network_a_gateway_counts_once_whatever_it_claims() -> None:
    algorithm = plain("esn-fedavg")
    guarded = behind(algorithm, "network")
    server = guarded.start(generator(SEED, 0, "cloud"))
    data = data_of(algorithm)[NAMES[0]]
    _, update = algorithm.phases[0].train(server.global_state, {}, data, generator(0, 0, "a"))
    assert float(update["samples"]) > 1.0 and float(guarded.phases[0].admit(server, update)["samples"]) == 1.0


def test_a_network_of_another_seed_is_refused_at_the_start() -> None:
    algorithm = plain("esn-fedavg")
    network = train_discriminator(algorithm, trusted(), generator(SEED + 1, 0, "cloud"), rounds=2)
    guarded = with_update_filter(algorithm, Defence(kind="network"), network=network)
    with pytest.raises(ContextError, match=REASON):
        guarded.start(generator(SEED, 0, "cloud"))


@pytest.mark.parametrize(
    ("name", "defence", "tables", "reason"),
    [
        ("ensemble-svdd", {"kind": "statistic"}, (), "made of rows that are kept apart, expected a sum"),
        ("esn-fedavg", {"kind": "trusted"}, (), "without tables"),
        ("esn-fedavg", {"kind": "network"}, (), "without a network"),
        ("esn-fedavg", {"kind": "trusted"}, ({FEATURES: np.zeros((5, 3))},), "trusted table 0: expected labels"),
        (
            "esn-fedavg",
            {"kind": "trusted"},
            ({FEATURES: np.zeros((5, 3)), LABELS: np.zeros(5, dtype=np.int64)},),
            "trusted table 0: expected labels of normal rows",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(
    name: str, defence: dict[str, Any], tables: tuple[Arrays, ...], reason: str
) -> None:
    algorithm = build(name, FEATURE_COUNT, ALGORITHMS.get(name, {}))
    with pytest.raises(ValueError, match=reason):
        with_update_filter(algorithm, Defence(**defence), tables)


def test_settings_are_checked_and_one_defence_is_enough() -> None:
    for wrong in ({"kind": "luck"}, {"factor": 0.5}, {"width": 0.0}, {"facto": 2.0}):
        with pytest.raises(ValueError, match=str(next(iter(wrong)))):
            Defence(**wrong)
    once = behind(plain("esn-fedavg"), "statistic")
    assert once.traits - plain("esn-fedavg").traits == {"defence"}
    with pytest.raises(CompositionError, match="defence given for an algorithm that has it"):
        behind(once, "statistic")
