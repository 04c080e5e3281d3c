"""Every algorithm x every law of `fedgate.models.federated.protocol.algorithm`.

A newly registered algorithm is covered by its defaults without a line here; other settings of it go into `SETTINGS`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedgate.config.protocol.wire import decode, encode
from fedgate.models.arrays import FEATURES, LABELS, SECRET, Array, Arrays, equal, generator
from fedgate.models.detectors import DETECTORS
from fedgate.models.federated import ALGORITHMS, build
from fedgate.models.federated.protocol.algorithm import MAX_SAMPLES, close_round
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.protocol.schema import EXACT, Field, UpdateError, fitted, moving, named
from tests.support.exchanges import ROUNDS, SEED, Trained, as_bytes, exchanges_of, locked, same, total_of
from tests.support.law_settings import SETTINGS, names_of
from tests.support.toy import FEATURE_COUNT, NAMES, auc, fleet, onnx_scores

REASON = r"expected .*got"

CASES = [(name, settings) for name in ALGORITHMS for settings in SETTINGS.get(name, [{}])]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def trained(request: pytest.FixtureRequest) -> Trained:
    return trained_with(*request.param)


def trained_with(name: str, settings: dict[str, Any]) -> Trained:
    algorithm = build(name, FEATURE_COUNT, settings)
    alike = settings.get("normalisation") == "none"
    gateways = fleet(SEED, labelled=algorithm.labels, alike=alike, names=names_of(name, settings))
    data = {name: gateway.data for name, gateway in gateways.items()}
    return Trained(algorithm, gateways, run(algorithm, data, seed=SEED), list(exchanges_of(algorithm, data)))


def test_every_state_is_a_flat_mapping_of_arrays(trained: Trained) -> None:
    for exchange in trained.exchanges:
        total = total_of(exchange, tuple(exchange.data))
        after = close_round(exchange.algorithm, exchange.server, total)
        parts = [
            *exchange.own_after.values(),
            *exchange.updates.values(),
            total,
            after.global_state,
            after.server_state,
        ]
        assert all(type(array) is np.ndarray for part in parts for array in part.values())


def test_nothing_is_the_identity_of_merge(trained: Trained) -> None:
    for exchange in trained.heard:
        merge = exchange.phase.reducer.merge
        total = merge({}, exchange.sent[0])
        assert merge({}, {}) == {}
        assert encode(merge(total, {})) == encode(merge({}, total)) == encode(total)


def test_merge_is_associative_and_commutative(trained: Trained) -> None:
    for exchange in trained.exchanges:
        sent = exchange.updates.values()  # one may have nothing to say
        merge, admit = exchange.phase.reducer.merge, exchange.phase.admit
        a, b, c, *_ = (admit(exchange.server, update) if update else Arrays() for update in sent)
        assert same(exchange.phase.reducer, merge(merge(a, b), c), merge(a, merge(b, c)))
        assert same(exchange.phase.reducer, merge(a, b), merge(b, a))


def test_the_order_of_gateways_does_not_matter(trained: Trained) -> None:
    names = tuple(trained.gateways)
    orders = (names, names[::-1], (*names[2:], *names[:2]), (names[2], names[0], names[3], names[1], *names[4:]))
    for exchange in trained.exchanges:
        servers = [close_round(trained.algorithm, exchange.server, total_of(exchange, order)) for order in orders]
        exact = not exchange.phase.reducer.additive
        for server in servers:
            assert equal(server.global_state, servers[0].global_state, 0.0 if exact else 1e-12)
            assert equal(server.server_state, servers[0].server_state, 0.0 if exact else 1e-12)
            assert server[2:] == servers[0][2:]


def test_a_bounded_tally_keeps_its_size(trained: Trained) -> None:
    for exchange in trained.heard:
        reducer, total = exchange.phase.reducer, exchange.sent[0]
        shapes = {name: array.shape for name, array in total.items()}
        for count in range(1_000 if reducer.bounded else 0):
            total = reducer.merge(total, exchange.sent[count % len(exchange.sent)])
        assert {name: array.shape for name, array in total.items()} == shapes


def test_no_input_is_changed(trained: Trained) -> None:
    for exchange in trained.exchanges:
        phase, name = exchange.phase, NAMES[0]
        server = exchange.server._replace(
            global_state=locked(exchange.server.global_state), server_state=locked(exchange.server.server_state)
        )
        own, data = locked(exchange.own[name]), locked(exchange.data[name])
        updates = [locked(update) for update in exchange.sent]  # all of them: of fewer masks tell nothing
        before = as_bytes(server, own, data, *updates)
        phase.train(server.global_state, own, data, exchange.rng(name))
        total = Arrays()
        for update in updates:
            total = locked(phase.reducer.merge(total, phase.admit(server, update)))
        total_before = encode(total)
        if total:
            phase.advance(server, phase.reducer.closed(total))
        assert as_bytes(server, own, data, *updates) == before
        assert encode(total) == total_before


def test_the_same_generator_gives_the_same_bytes(trained: Trained) -> None:
    starts = [trained.algorithm.start(generator(SEED, 0, "cloud")) for _ in range(2)]
    assert as_bytes(starts[0]) == as_bytes(starts[1])
    for exchange in trained.exchanges:
        for name in trained.gateways:
            again = exchange.phase.train(
                exchange.server.global_state, exchange.own[name], exchange.data[name], exchange.rng(name)
            )
            assert as_bytes(*again) == as_bytes(exchange.own_after[name], exchange.updates[name])


def test_the_same_seed_gives_the_same_training(trained: Trained) -> None:
    """The exchanges are a walk of their own through the first rounds, with everybody in another order."""
    data = {name: trained.gateways[name].data for name in reversed(trained.gateways)}
    again = run(trained.algorithm, data, seed=SEED, rounds=ROUNDS)
    last = trained.exchanges[-1]
    assert as_bytes(again.server) == as_bytes(
        close_round(trained.algorithm, last.server, total_of(last, tuple(last.data)))
    )
    assert all(as_bytes(again.local_states[name]) == as_bytes(last.own_after[name]) for name in trained.gateways)


def test_an_update_survives_the_wire(trained: Trained) -> None:
    for exchange in trained.exchanges:
        for update in exchange.sent:
            received, _ = decode(encode(update))
            assert encode(received) == encode(update)
            admitted = [exchange.phase.admit(exchange.server, each) for each in (received, update)]
            assert as_bytes(admitted[0]) == as_bytes(admitted[1])


def test_a_server_that_was_saved_and_loaded_goes_on_as_if_nothing_had_happened(trained: Trained) -> None:
    for exchange in trained.exchanges:
        shared, kept = (
            decode(encode(part))[0] for part in (exchange.server.global_state, exchange.server.server_state)
        )
        loaded = exchange.server._replace(global_state=shared, server_state=kept)
        for name in trained.gateways:
            own, _ = decode(encode(exchange.own[name]))
            after = exchange.phase.train(loaded.global_state, own, exchange.data[name], exchange.rng(name))
            assert as_bytes(*after) == as_bytes(exchange.own_after[name], exchange.updates[name])
        total = total_of(exchange, tuple(exchange.data))
        went_on = close_round(trained.algorithm, exchange.server, total)
        assert as_bytes(close_round(trained.algorithm, loaded, total)) == as_bytes(went_on)


def test_an_empty_exchange_only_begins_the_round_anew(trained: Trained) -> None:
    for server in [*(exchange.server for exchange in trained.exchanges), trained.outcome.server]:
        closed = close_round(trained.algorithm, server, {})
        begun = server.phase - server.phase % trained.algorithm.stride
        following, phase = server.round_index + 1, min(begun, trained.algorithm.setup)
        whole = trained.algorithm.restored(server)
        assert as_bytes(closed) == as_bytes(whole._replace(round_index=following, phase=phase))
        assert closed.cohort_index == following


def test_an_empty_data_set_sends_nothing_and_keeps_what_it_had(trained: Trained) -> None:
    for exchange in trained.exchanges:
        empty = {name: array[:0] for name, array in exchange.data[NAMES[0]].items()}
        for data in (empty, {FEATURES: np.zeros((0, FEATURE_COUNT))}):
            for own in (exchange.own[NAMES[0]], {}):
                after, update = exchange.phase.train(exchange.server.global_state, own, data, exchange.rng(NAMES[0]))
                assert update == {}
                assert encode(after) == encode(own)


def test_labels_matter_where_the_algorithm_says_so_and_nowhere_else(trained: Trained) -> None:
    """At most, rows labelled as faults are left out by an algorithm that does not learn from labels."""
    # Of the second round; of exchanges that belong together it is the middle one that trains.
    exchange, name = trained.exchanges[len(trained.algorithm.phases) + trained.algorithm.stride // 2], NAMES[0]
    x = exchange.data[name][FEATURES]

    def answer(data: Arrays) -> list[bytes]:
        told = {SECRET: exchange.data[name][SECRET], **data}
        return as_bytes(
            *exchange.phase.train(exchange.server.global_state, exchange.own[name], told, exchange.rng(name))
        )

    classes = (np.arange(len(x)) % 4 == 0).astype(np.int64)
    answers = [answer({FEATURES: x, LABELS: labels}) for labels in (classes, 1 - classes)]
    if trained.algorithm.labels:
        assert answers[0] != answers[1]
    elif answers != [answer({FEATURES: x})] * 2:
        assert answers == [answer({FEATURES: x[labels == 0]}) for labels in (classes, 1 - classes)]


def test_what_is_sent_has_the_form_of_its_schema(trained: Trained) -> None:
    for exchange in trained.heard:
        phase, schema = exchange.phase, exchange.phase.schema
        expected = schema.keys() - set(named(schema, "identity"))
        for update in exchange.sent:
            wide = fitted(schema, exchange.server.global_state, phase.unpacked(exchange.server, update))
            assert wide.keys() == expected
            for name in expected - set(named(schema, *EXACT)):
                assert wide[name].dtype == np.float64 and schema[name].least <= wide[name].min(initial=np.inf)


def test_roles_say_what_arrays_mean(trained: Trained) -> None:
    """At most one weight and all gateways alike in what identifies; what moves is beside the array that it moves."""
    for exchange in trained.heard:
        schema, shared = exchange.phase.schema, exchange.server.global_state
        assert len(named(schema, "weight")) <= 1
        assert {schema[name].role for name in moving(schema)} <= {"delta", "full"}
        for update in exchange.sent:
            arrays = exchange.phase.unpacked(exchange.server, update)
            assert all(arrays[name].shape == shared[str(schema[name].shape)].shape for name in moving(schema))
            assert all(arrays[name] == 1.0 for name in named(schema, "count"))
            for name in named(schema, "identity"):
                assert np.array_equal(arrays[name], found_in(schema[name], shared))


def found_in(field: Field, shared: Arrays) -> Array:
    assert field.of is not None
    return field.of(shared)


def test_a_total_of_twice_the_weight_makes_the_same_model(trained: Trained) -> None:
    """So a weight is one, and all that is no sum is n times something; powers of two are exact."""
    for exchange in trained.heard:
        schema, reducer = exchange.phase.schema, exchange.phase.reducer
        if not reducer.additive or named(schema, "sum", "bytes", "ring") or "privacy" in trained.algorithm.traits:
            continue
        total = total_of(exchange, tuple(exchange.data))
        scaled = {
            name: array if schema[name].role == "count" else np.asarray(2.0 * array) for name, array in total.items()
        }
        servers = [exchange.phase.advance(exchange.server, each) for each in (total, scaled)]
        assert as_bytes(servers[0]) == as_bytes(servers[1])


def test_what_stays_with_a_gateway_is_never_sent(trained: Trained) -> None:
    for exchange in trained.exchanges:
        for name, update in exchange.updates.items():
            assert not exchange.own_after[name].keys() & update.keys()


def test_personal_tensors_are_what_gateways_keep(trained: Trained) -> None:
    for own in trained.outcome.local_states.values():
        assert set(trained.algorithm.personal) <= own.keys()


def test_the_exported_model_scores_as_the_detector_does(trained: Trained) -> None:
    detector, shared = DETECTORS[trained.algorithm.detector], trained.outcome.server.global_state
    model = detector.graph(shared, trained.algorithm.personal)
    for name, gateway in trained.gateways.items():
        own = trained.outcome.local_states[name]
        z = (gateway.x - own.get("center", 0.0)) / own.get("scale", 1.0)
        for found, expected in (
            (onnx_scores(model, gateway.x, own), detector.score({**shared, **own}, gateway.x)),
            (onnx_scores(model, z), detector.score(shared, z)),
        ):
            assert found.shape == expected.shape == (len(gateway.x),)
            np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-4 * np.abs(expected).max())


def test_anomalies_score_above_what_is_normal(trained: Trained) -> None:
    detector = DETECTORS[trained.algorithm.detector]
    for name, gateway in trained.gateways.items():
        params = {**trained.outcome.server.global_state, **trained.outcome.local_states[name]}
        assert auc(detector.score(params, gateway.x), gateway.y) > 0.95


Damage = Callable[[Array], Array]
DAMAGES: dict[str, Damage] = {
    "not a number": lambda array: np.full(array.shape, np.nan),
    "one infinity": lambda array: np.where(np.arange(array.size).reshape(array.shape) == 0, -np.inf, array),
    "one dimension more": lambda array: array[None],
    "one dimension less": lambda array: array.reshape(-1) if array.ndim > 1 else np.zeros((0, 0)),
    "one column more": lambda array: np.concatenate([array, array[..., :1]], axis=-1) if array.ndim else array[None],
    "no column": lambda array: array[..., :0] if array.ndim else np.zeros(0),
    "objects": lambda array: array.astype(object),
    "truth values": lambda array: array.astype(bool),
    "texts": lambda array: array.astype(str),
    "complex numbers": lambda array: array.astype(complex),
    "absurd values": lambda array: array + np.float64(1e30),  # of a width that holds it
    "values whose sum would overflow": lambda array: array + np.float64(1.7e308),
}


def test_a_damaged_array_is_refused_with_a_reason(trained: Trained) -> None:
    for exchange, damage in itertools.product(trained.heard, DAMAGES):
        update = exchange.sent[0]
        for name in update:
            print(damage, name)  # the last of these is the one that was taken
            with pytest.raises(UpdateError, match=REASON):
                exchange.phase.admit(exchange.server, {**update, name: DAMAGES[damage](update[name])})


def test_wrong_names_are_refused_with_a_reason(trained: Trained) -> None:
    for exchange in trained.heard:
        update = exchange.sent[0]
        first, *others = update
        fewer = {name: update[name] for name in others}
        for wrong in ({}, fewer, {**update, "center": np.zeros(FEATURE_COUNT)}, {**fewer, "renamed": update[first]}):
            with pytest.raises(UpdateError, match=REASON):
                exchange.phase.admit(exchange.server, wrong)


def test_no_gateway_weighs_more_than_it_may(trained: Trained) -> None:
    for exchange in trained.heard:
        update = exchange.sent[0]
        counts = itertools.product(
            named(exchange.phase.schema, "weight", "count"), (MAX_SAMPLES + 1.0, 1e12, 0.0, -3.0)
        )
        # Of one that says what has changed, nothing may well be the truth.
        heavy = [
            {**update, name: np.full(update[name].shape, count)}
            for name, count in counts
            if count != float(update[name].item())  # of one gateway: a number, or a row of one
        ]
        if not exchange.phase.reducer.bounded:
            heavy += [{name: np.repeat(array, times, 0) for name, array in update.items()} for times in (0, 10_000)]
        for wrong in heavy:
            with pytest.raises(UpdateError, match=REASON):
                exchange.phase.admit(exchange.server, wrong)
