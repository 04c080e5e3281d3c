"""The laws that every federated algorithm keeps, of `fedgate.models.federated.protocol.algorithm` (ours).

A law is a function of a training that yields what breaks it; its name says what holds. `check_laws` asks all of them
of one algorithm. It draws everything from fixed seeds: what breaks a law today breaks it tomorrow.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from fedgate.models.arrays import DTYPES, EPOCHS, FEATURES, LABELS, SECRET, Array, Arrays, equal, generator
from fedgate.models.detectors import DETECTORS
from fedgate.models.federated.protocol.algorithm import MAX_SAMPLES, NORMALISATION, Algorithm, close_round
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.protocol.schema import ONE, Field, UpdateError, moving, named
from fedgate.models.testing.building import build_as_a_file
from fedgate.models.testing.detectors import refusals
from fedgate.models.testing.exchanges import (
    ROUNDS,
    SEED,
    Exchange,
    Trained,
    as_bytes,
    carried,
    exchanges_of,
    locked,
    same,
)
from fedgate.models.testing.fleet import FEATURE_COUNT, NAMES, Gateway, auc, fleet, onnx_scores

Faults = Iterator[str]
Law = Callable[[Trained], Faults]
GATEWAYS_LEAST = 4  # of whom three are merged in any order, and one may have nothing to say
MERGES = 1_000
GROWTH_LEAST = 1.4  # of what a gateway sends that weighs twice as much; what it learns of more steps differs
LEFT_OUT = 5  # of a gateway's rows, so that the others have a mean in its own units
REASON = re.compile(r"expected .*got", re.DOTALL)
CLAIMS = (2.0**15, 2.0**16)  # times as many rows as there are: one row is more than MAX_SAMPLES, and no bit is lost
COUNTS = (MAX_SAMPLES + 1.0, 1e12, 0.0, -3.0)  # as much as no gateway counts

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


def check_laws(
    factory: Callable[..., Algorithm],
    settings: Mapping[str, Any] | None = None,
    *,
    gateways: Mapping[str, Gateway] | None = None,
    auc_least: float = 0.95,
) -> None:
    """Ask every law of the algorithm that `factory(feature_count, **settings)` returns.

    It is trained on made-up gateways with three features, or on `gateways`: four or more of any number of features F,
    the first of them with an anomaly and a normal row to be judged by. Their models must put at least `auc_least` of
    all pairs of an anomaly and a normal row in the right order. It takes one training to the end and some exchanges
    more.

    Raises `AssertionError` that names every law that was broken and by what, and `ValueError` for fewer gateways, or
    for a `server.phase` that is none of the phases. What the algorithm itself raises goes on, with a note that names
    the law.
    """
    trained = train(factory, settings or {}, gateways=gateways, auc_least=auc_least)
    faults = [f"{name_of(law)}: {fault}" for law in LAWS for fault in faults_of(law, trained)]
    if faults:
        raise AssertionError("\n".join(faults))


def train(
    factory: Callable[..., Algorithm],
    settings: Mapping[str, Any],
    *,
    names: tuple[str, ...] = NAMES,
    gateways: Mapping[str, Gateway] | None = None,
    auc_least: float = 0.95,
) -> Trained:
    """Return the algorithm of a factory after a training on `gateways`, or on made-up ones of these names.

    Raises `ValueError` for fewer gateways than the laws need, and `AssertionError` where no training can be looked at.
    """
    if gateways is None:
        labelled = factory(FEATURE_COUNT, **settings).labels
        gateways = fleet(SEED, labelled=labelled, alike=settings.get("normalisation") == "none", names=names)
    if len(gateways) < GATEWAYS_LEAST:
        raise ValueError(f"gateways: expected {GATEWAYS_LEAST} or more, got {len(gateways)}")
    data = {name: gateway.data for name, gateway in gateways.items()}
    algorithm = build_as_a_file(factory, next(iter(data.values()))[FEATURES].shape[1], settings)
    if algorithm.detector not in DETECTORS:
        law = name_of(the_exported_model_scores_as_the_detector_does)
        raise AssertionError(f"{law}: no detector {algorithm.detector!r}; expected one of {', '.join(DETECTORS)}")
    exchanges = list(exchanges_of(algorithm, data))
    return Trained(algorithm, gateways, run(algorithm, data, seed=SEED), exchanges, auc_least)


def faults_of(law: Law, trained: Trained) -> list[str]:
    """Return what breaks a law. What is raised meanwhile goes on, with a note that names the law."""
    try:
        return list(law(trained))
    except BaseException as error:
        error.add_note(f"raised while this law was asked: {name_of(law)}")
        raise


def name_of(law: Callable[..., Any]) -> str:
    """Return what a law says, in words."""
    return law.__name__.replace("_", " ")


def every_state_is_a_flat_mapping_of_arrays(trained: Trained) -> Faults:
    """Arrays of the types that the wire and the stores carry, and nothing else."""
    for exchange in trained.exchanges:
        total = exchange.total(exchange.data)
        after = close_round(exchange.algorithm, exchange.server, total)
        parts = [*exchange.own_after.values(), *exchange.updates.values(), total]
        for part in (*parts, after.global_state, after.server_state):
            for name, array in part.items():
                if type(array) is not np.ndarray or array.dtype.newbyteorder("<").str not in DTYPES:
                    yield f"{_place(exchange)}: {name} is {type(array).__name__} of {getattr(array, 'dtype', None)}"


def nothing_is_the_identity_of_merge(trained: Trained) -> Faults:
    """`{}` merged with anything is that, from both sides."""
    for exchange in trained.with_updates:
        merge = exchange.phase.reducer.merge
        total = merge({}, exchange.sent[0])
        if merge({}, {}) != {}:
            yield f"{_place(exchange)}: nothing merged with nothing is not nothing"
        if not as_bytes(merge(total, {})) == as_bytes(merge({}, total)) == as_bytes(total):
            yield f"{_place(exchange)}: a total changed when nothing was merged with it"


def merge_is_associative_and_commutative(trained: Trained) -> Faults:
    """Exactly for a stack, to 1e-12 for a sum."""
    for exchange in trained.exchanges:
        reducer = exchange.phase.reducer
        merge = reducer.merge
        a, b, c, *_ = (exchange.admit(update) if update else Arrays() for update in exchange.updates.values())
        if not same(reducer, merge(merge(a, b), c), merge(a, merge(b, c))):
            yield f"{_place(exchange)}: (a + b) + c differs from a + (b + c)"
        if not same(reducer, merge(a, b), merge(b, a)):
            yield f"{_place(exchange)}: a + b differs from b + a"


def the_order_of_gateways_does_not_matter(trained: Trained) -> Faults:
    """The server after an exchange is the same whoever was counted first."""
    names = tuple(trained.gateways)
    orders = (names, names[::-1], (*names[2:], *names[:2]), (*names[1::2], *names[::2]))
    for exchange in trained.exchanges:
        tolerance = 1e-12 if exchange.phase.reducer.additive else 0.0
        first, *others = (close_round(trained.algorithm, exchange.server, exchange.total(order)) for order in orders)
        for order, server in zip(orders[1:], others, strict=True):
            alike = equal(server.global_state, first.global_state, tolerance)
            alike &= equal(server.server_state, first.server_state, tolerance)
            if not alike or server[2:] != first[2:]:
                yield f"{_place(exchange)}: {', '.join(order)} make another server than {', '.join(names)}"


def a_sum_keeps_its_size(trained: Trained) -> Faults:
    """Over a thousand merges."""
    for exchange in trained.with_updates:
        reducer, total = exchange.phase.reducer, exchange.sent[0]
        shapes = _shapes(total)
        for count in range(MERGES if reducer.additive else 0):
            total = reducer.merge(total, exchange.sent[count % len(exchange.sent)])
        if _shapes(total) != shapes:
            yield f"{_place(exchange)}: {shapes} became {_shapes(total)} in {MERGES} merges"


def no_input_is_changed(trained: Trained) -> Faults:
    """Neither by a gateway's training nor by the cloud: inputs that are written to raise here."""
    for exchange in trained.exchanges:
        phase, name = exchange.phase, trained.first
        server = exchange.server._replace(
            global_state=locked(exchange.server.global_state), server_state=locked(exchange.server.server_state)
        )
        own, data = locked(exchange.own[name]), locked(exchange.data[name])
        updates = [locked(update) for update in exchange.sent]  # all of them: of fewer masks tell nothing
        before = as_bytes(server, own, data, *updates)
        exchange.train(name, server, own, data)
        total = Arrays()
        for update in updates:
            total = locked(phase.reducer.merge(total, phase.admit(server, update)))
        total_before = as_bytes(total)
        close_round(trained.algorithm, server, total)
        if as_bytes(server, own, data, *updates) != before or as_bytes(total) != total_before:
            yield f"{_place(exchange)}: an input has other arrays than before"


def the_same_generator_gives_the_same_bytes(trained: Trained) -> Faults:
    """In the cloud and on every gateway."""
    starts = [as_bytes(trained.algorithm.start(generator(SEED, 0, "cloud"))) for _ in range(2)]
    if starts[0] != starts[1]:
        yield "two starts from one generator differ"
    for exchange in trained.exchanges:
        for name in trained.gateways:
            again = exchange.train(name, exchange.server, exchange.own[name], exchange.data[name])
            if as_bytes(*again) != as_bytes(exchange.own_after[name], exchange.updates[name]):
                yield f"{_place(exchange)}: {name} trained again made something else"


def the_same_seed_gives_the_same_training(trained: Trained) -> Faults:
    """The exchanges are a walk of their own through the first rounds, with everybody in another order."""
    data = {name: trained.gateways[name].data for name in reversed(tuple(trained.gateways))}
    again = run(trained.algorithm, data, seed=SEED, rounds=ROUNDS)
    last = trained.exchanges[-1]
    if as_bytes(again.server) != as_bytes(close_round(trained.algorithm, last.server, last.total(last.data))):
        yield f"{ROUNDS} rounds trained again end in another server"
    for name in trained.gateways:
        if as_bytes(again.local_states[name]) != as_bytes(last.own_after[name]):
            yield f"{ROUNDS} rounds trained again leave {name} with something else"


def an_update_survives_the_way(trained: Trained) -> Faults:
    """What is counted depends on the bytes of an update alone, not on its place in memory or the order of its names."""
    for exchange in trained.exchanges:
        for name, update in exchange.updates.items():
            if update and as_bytes(exchange.admit(carried(update))) != as_bytes(exchange.admit(update)):
                yield f"{_place(exchange)}: the update of {name} is counted as another when it has arrived"


def a_server_that_was_saved_and_loaded_goes_on_as_if_nothing_had_happened(trained: Trained) -> Faults:
    """And so does a gateway."""
    for exchange in trained.exchanges:
        server = exchange.server
        loaded = server._replace(global_state=carried(server.global_state), server_state=carried(server.server_state))
        for name in trained.gateways:
            after = exchange.train(name, loaded, carried(exchange.own[name]), exchange.data[name])
            if as_bytes(*after) != as_bytes(exchange.own_after[name], exchange.updates[name]):
                yield f"{_place(exchange)}: {name} trains another update"
        total = exchange.total(exchange.data)
        ends = [as_bytes(close_round(trained.algorithm, one, total)) for one in (server, loaded)]
        if ends[0] != ends[1]:
            yield f"{_place(exchange)}: the server ends in another state"


def an_empty_exchange_only_begins_the_round_anew(trained: Trained) -> Faults:
    """No parameter changes, and the training goes on: gateways that vanish half way through a round stall nothing."""
    algorithm = trained.algorithm
    for exchange in trained.exchanges:
        server = exchange.server
        restarted = close_round(algorithm, server, {})
        phase = min(server.phase - server.phase % algorithm.stride, algorithm.setup)
        expected = algorithm.restore(server)._replace(round_index=server.round_index + 1, phase=phase)
        if as_bytes(restarted) != as_bytes(expected) or restarted.cohort_index != restarted.round_index:
            yield f"{_place(exchange)}: the server is another one"
        again = exchange._replace(server=restarted)
        for name in trained.gateways:
            _, update = again.train(name, restarted, exchange.own_after[name], exchange.data[name])
            if update:
                again.admit(update)  # which raises where the update of an honest gateway does not count


def an_empty_data_set_sends_nothing_and_keeps_what_it_had(trained: Trained) -> Faults:
    """Also where a gateway takes part for the first time."""
    for exchange in trained.exchanges:
        rows, name = exchange.data[trained.first], trained.first
        empty = {key: array[:0] if array.ndim else array for key, array in rows.items()}
        for data in (empty, {FEATURES: rows[FEATURES][:0]}):
            for own in (exchange.own[name], {}):
                after, update = exchange.train(name, exchange.server, own, data)
                if update != {} or as_bytes(after) != as_bytes(own):
                    yield f"{_place(exchange)}: of no rows came {sorted(update)}, kept is {sorted(after)}"


def labels_matter_where_the_algorithm_declares_it_and_nowhere_else(trained: Trained) -> Faults:
    """At most, rows labelled as faults are left out by an algorithm that does not learn from labels."""
    algorithm, name = trained.algorithm, trained.first
    # Of the second round; of exchanges that belong together it is the middle one that trains.
    exchange = trained.exchanges[len(algorithm.phases) + algorithm.stride // 2]
    x = exchange.data[name][FEATURES]

    def answer(data: Arrays) -> list[bytes]:
        given = {SECRET: exchange.data[name][SECRET], **data}
        return as_bytes(*exchange.train(name, exchange.server, exchange.own[name], given))

    classes = (np.arange(len(x)) % 4 == 0).astype(np.int64)
    answers = [answer({FEATURES: x, LABELS: labels}) for labels in (classes, 1 - classes)]
    if algorithm.labels:
        if answers[0] == answers[1]:
            yield f"{_place(exchange)}: labels=True, but other labels give the same update"
        return
    is_deaf = answers == [answer({FEATURES: x})] * 2
    if not is_deaf and answers != [answer({FEATURES: x[labels == 0]}) for labels in (classes, 1 - classes)]:
        yield f"{_place(exchange)}: labels=False, but labels change the update by more than leaving faults out"


def units_are_those_of_normal_rows(trained: Trained) -> Faults:
    """Of an algorithm that learns from labels: a gateway's own centre and scale do not change with rows that are
    labelled as faults (`fedgate.models.federated.protocol.algorithm.healthy_rows`).
    """
    name = trained.first
    for exchange in trained.exchanges if trained.algorithm.labels else ():
        before, after, data = exchange.own[name], exchange.own_after[name], exchange.data[name]
        units = sorted((after.keys() - before.keys()) & set(NORMALISATION))
        if not units:
            continue
        is_fault, rows = data[LABELS] != 0, data[FEATURES].copy()
        rows[is_fault] = np.resize(rows[~is_fault], rows[is_fault].shape)  # as good as any: what is normal
        own, _ = exchange.train(name, exchange.server, before, data | {FEATURES: rows})
        if wrong := [unit for unit in units if as_bytes({unit: own[unit]}) != as_bytes({unit: after[unit]})]:
            yield f"{_place(exchange)}: {wrong} change with rows labelled as faults, expected those of healthy_rows"


def roles_are_what_arrays_are(trained: Trained) -> Faults:
    """At most one weight; a gateway counts as one; the cloud knows what identifies; what moves is a delta or full. That
    updates have the form of their schema is asked wherever one is admitted.
    """
    for exchange in trained.with_updates:
        schema = exchange.phase.schema
        if len(named(schema, "weight")) > 1:
            yield f"{_place(exchange)}: expected one weight at most, got {named(schema, 'weight')}"
        if still := [name for name in named(schema, "delta") if _is_like_the_model(schema[name])]:
            yield f"{_place(exchange)}: {still} are deltas of arrays of the model and move none; expected moves=True"
        wrong = [name for name in moving(schema) if schema[name].role not in ("delta", "full")]
        wrong += [name for name in named(schema, "count") if schema[name] != ONE]
        wrong += [name for name in named(schema, "identity") if schema[name].of is None]
        if wrong:
            yield f"{_place(exchange)}: the fields {wrong} are not what their roles say"


def _is_like_the_model(field: Field) -> bool:
    return isinstance(field.shape, str) and not field.moves


def a_total_of_twice_the_weight_makes_the_same_model(trained: Trained) -> Faults:
    """So a weight is one, and all that is no sum is n times something; powers of two are exact."""
    for exchange in trained.with_updates:
        schema, advance = exchange.phase.schema, exchange.phase.advance
        is_sum = not exchange.phase.reducer.additive or named(schema, "sum", "bytes", "ring")
        if is_sum or "privacy" in trained.algorithm.traits:
            continue
        total = exchange.total(exchange.data)
        once = set(named(schema, "count"))
        twice = {name: array if name in once else np.asarray(2.0 * array) for name, array in total.items()}
        if as_bytes(advance(exchange.server, total)) != as_bytes(advance(exchange.server, twice)):
            yield f"{_place(exchange)}: twice the total makes another server"


def what_moves_the_model_is_sent_times_the_weight(trained: Trained) -> Faults:
    """Asked of the first exchange of each phase with steps of a model, before there is next to nothing left to learn: a
    gateway that has its rows twice over, and weighs twice as much for it, sends about twice as much. One that sends the
    mean alone sends as much as before, and where the weights are summed a large gateway counts for too little.
    """
    if "privacy" in trained.algorithm.traits:  # which clips an update to a length
        return
    firsts = {exchange.server.phase: exchange for exchange in reversed(trained.with_updates)}
    for exchange in firsts.values():
        steps = named(exchange.phase.schema, "delta", "full")
        updates = _weighing_twice(trained, exchange) if steps else ({}, {})
        once, doubled = (
            np.sqrt(sum(np.square(update[name]).sum() for name in update.keys() & steps)) for update in updates
        )
        if doubled < GROWTH_LEAST * once:
            text = f"rows twice over send {doubled:.3g} where once they send {once:.3g}, expected n times the step"
            yield f"{_place(exchange)}: {text} of a gateway that weighs n"


def sums_over_rows_grow_with_the_rows(trained: Trained) -> Faults:
    """What else is added up beside a weight: a gateway that has its rows twice over sends about twice as much of it, as
    two gateways with these rows would. One that forgets of how many rows a sum is sends as much as before.

    Beside what moves the model only metrics are of the rows alone: a sum there is of what the gateway has learned.
    """
    for exchange in trained.with_updates:
        schema = exchange.phase.schema
        of_rows = named(schema, "metric") if moving(schema) else named(schema, "sum", "metric")
        once, doubled = _weighing_twice(trained, exchange) if of_rows else ({}, {})
        for name in once.keys() & of_rows:
            if once[name].any() and not _has_grown(once[name], doubled[name]):
                yield f"{_place(exchange)}: {name} of rows twice over is no larger than of once, expected a sum of them"


def _weighing_twice(trained: Trained, exchange: Exchange) -> tuple[Arrays, Arrays]:
    """Return what is counted of the first gateway and of one that has its rows twice over; nothing of both where that
    one weighs less than twice as much, as where all weigh alike.

    Both have the first one's units, but not the last of its rows: the mean of all of them is zero in its own units.
    Nothing of either is in the sums so far.
    """
    weights, kept = named(exchange.phase.schema, "weight"), trained.exchanges[-1].own_after[trained.first]
    if not weights:
        return {}, {}
    own = {} if trained.algorithm.remembers else exchange.own[trained.first]
    own = own | {name: kept[name] for name in NORMALISATION if name in kept}
    updates = _of_rows_once_and_twice(exchange, trained.first, own, left_out=LEFT_OUT)
    if not all(updates):
        return {}, {}
    once, doubled = map(exchange.admit, updates)
    is_twice = all(doubled[name] >= 2.0 * once[name] for name in weights)
    return (once, doubled) if is_twice else ({}, {})


def _of_rows_once_and_twice(exchange: Exchange, name: str, own: Arrays, left_out: int = 0) -> list[Arrays]:
    """Return the update of a gateway without its last rows, and the one that it would send if it had the others twice
    over, in half as many epochs: as many steps of the same size.
    """
    data = exchange.data[name]
    rows = len(data[FEATURES])
    of_rows = {key: array for key, array in data.items() if array.shape[:1] == (rows,) and key != SECRET}
    once = data | {key: array[: rows - left_out] for key, array in of_rows.items()} | {EPOCHS: np.array(4)}
    twice = data | {key: np.concatenate([once[key], once[key]]) for key in of_rows} | {EPOCHS: np.array(2)}
    return [exchange.train(name, exchange.server, own, each)[1] for each in (once, twice)]


def what_stays_with_a_gateway_is_never_sent(trained: Trained) -> Faults:
    """No name of a local state is one of an update."""
    for exchange in trained.exchanges:
        for name, update in exchange.updates.items():
            if both := exchange.own_after[name].keys() & update.keys():
                yield f"{_place(exchange)}: {name} keeps and sends {sorted(both)}"


def personal_tensors_are_what_gateways_keep(trained: Trained) -> Faults:
    """Whatever `personal` names is in every local state at the end, and `personal` names a gateway's own units."""
    for name, own in trained.outcome.local_states.items():
        if lost := set(trained.algorithm.personal) - own.keys():
            yield f"{name} does not keep {sorted(lost)}, which are named as personal"
        if unsaid := set(NORMALISATION) & own.keys() - set(trained.algorithm.personal):
            yield f"{name} keeps {sorted(unsaid)}, which the exported model needs; expected personal to name them"


def the_exported_model_scores_as_the_detector_does(trained: Trained) -> Faults:
    """To 1e-4 of the largest score: with a gateway's own tensors as inputs, and with their neutral defaults; and
    gateways run it.
    """
    detector, shared = DETECTORS[trained.algorithm.detector], trained.outcome.server.global_state
    model = detector.graph(shared, trained.algorithm.personal)
    yield from refusals(model)
    for name, gateway in trained.gateways.items():
        # As a gateway feeds them: what float32 loses of a row fifty deviations from zero is not the graph's fault, and
        # a logarithm of a small residual shows it.
        own = {key: _single(array) for key, array in trained.outcome.local_states[name].items()}
        x = _single(gateway.x)
        z = _single((x - own.get("center", 0.0)) / own.get("scale", 1.0))
        for found, expected in (
            (onnx_scores(model, x, own), detector.score({**shared, **own}, x)),
            (onnx_scores(model, z), detector.score(shared, z)),
        ):
            if not found.shape == expected.shape == (len(x),):
                yield f"{name}: expected scores ({len(x)},), got {found.shape} and {expected.shape}"
            elif not np.allclose(found, expected, rtol=0.0, atol=1e-4 * np.abs(expected).max()):
                yield f"{name}: the graph scores up to {np.abs(found - expected).max():.3g} away from the detector"


def _single(array: Array) -> Array:
    """Return floats rounded to float32, as float64; other arrays as they are."""
    return array.astype(np.float32).astype(np.float64) if array.dtype.kind == "f" else array


def anomalies_score_above_what_is_normal(trained: Trained) -> Faults:
    """On every gateway."""
    detector = DETECTORS[trained.algorithm.detector]
    for name, gateway in trained.gateways.items():
        params = {**trained.outcome.server.global_state, **trained.outcome.local_states[name]}
        reached = auc(detector.score(params, gateway.x), gateway.y)
        if not reached > trained.auc_least:
            yield f"{name}: {reached:.3f} of the pairs are in the right order, expected above {trained.auc_least:g}"


def a_damaged_array_is_refused_with_a_reason(trained: Trained) -> Faults:
    """Whatever array of an update it is, and however it is damaged."""
    for exchange in trained.with_updates:
        update = exchange.sent[0]
        for name, (damage, harm) in itertools.product(update, DAMAGES.items()):
            yield from _unrefused(exchange, {**update, name: harm(update[name])}, f"{name} as {damage}")


def wrong_names_are_refused_with_a_reason(trained: Trained) -> Faults:
    """None at all, one too few, one too many, one renamed."""
    for exchange in trained.with_updates:
        update = exchange.sent[0]
        first, *others = update
        fewer = {name: update[name] for name in others}
        yield from _unrefused(exchange, {}, "an update without arrays")
        yield from _unrefused(exchange, fewer, f"an update without {first}")
        yield from _unrefused(exchange, {**update, "center": np.zeros(FEATURE_COUNT)}, "an update with a centre")
        yield from _unrefused(exchange, {**fewer, "renamed": update[first]}, f"an update with {first} renamed")


def no_gateway_weighs_more_than_it_may(trained: Trained) -> Faults:
    """Neither by a count that it gives nor by rows that it repeats."""
    for exchange in trained.with_updates:
        update = exchange.sent[0]
        for name, count in itertools.product(named(exchange.phase.schema, "weight", "count"), COUNTS):
            # Of one that says what has changed, nothing may well be the truth.
            if count != float(update[name].item()):  # of one gateway: a number, or a row of one
                heavy = {**update, name: np.full(update[name].shape, count)}
                yield from _unrefused(exchange, heavy, f"{name} of {count:g}")
        for times in () if exchange.phase.reducer.additive else (0, 10_000):
            repeated = {name: np.repeat(array, times, 0) for name, array in update.items()}
            yield from _unrefused(exchange, repeated, f"an update with its rows {times} times")


def rows_that_a_gateway_only_claims_are_refused_or_capped(trained: Trained) -> Faults:
    """Whatever role an array has: what grows where a gateway has its rows twice over is sent as if it had them more
    often than anybody may, all of it together, and each count of rows and each metric alone.
    """
    for exchange in trained.with_updates:
        if not exchange.phase.reducer.additive:  # rows are kept apart, and counted there
            continue
        once, twice = _of_rows_once_and_twice(exchange, trained.first, exchange.own[trained.first])
        growing = [name for name in once if _has_grown(once[name], twice.get(name))]
        metrics = named(exchange.phase.schema, "metric")
        if set(growing) - set(moving(exchange.phase.schema)):
            for names in (growing, *([name] for name in growing if name in metrics or _is_a_count(once[name]))):
                yield from _uncapped(exchange, once, names)


def _has_grown(once: Array, twice: Array | None) -> bool:
    """Tell whether numbers are larger in all where they are of twice as many rows."""
    if twice is None or once.shape != twice.shape or once.dtype.kind not in "fi":  # keys and masked numbers
        return False
    return bool(np.linalg.norm(twice) > GROWTH_LEAST * np.linalg.norm(once))


def _is_a_count(array: Array) -> bool:
    return bool((array >= 0.0).all() and (array % 1.0 == 0.0).all())


def _uncapped(exchange: Exchange, update: Arrays, names: list[str]) -> Faults:
    """Yield a fault where arrays of an update count for more the larger they are, above what a gateway may claim."""
    claims = [update | {name: np.asarray(times * update[name]) for name in names} for times in CLAIMS]
    try:
        less, more = map(exchange.admit, claims)
    except UpdateError:
        return
    if any(_has_grown(less[name], more[name]) for name in less):
        text = f"{', '.join(names)} of rows {CLAIMS[0]:g} times over count as many"
        yield f"{_place(exchange)}: {text}, expected a bound: counting(MAX_SAMPLES) in the schema"


def _unrefused(exchange: Exchange, update: Arrays, what: str) -> Faults:
    """Yield a fault where an update is admitted, or refused without saying what was expected and what it got."""
    try:
        exchange.admit(update)
    except UpdateError as error:
        if not REASON.search(str(error)):
            yield f"{_place(exchange)}: {what}: the reason is {str(error)!r}, without 'expected ... got ...'"
    else:
        yield f"{_place(exchange)}: {what} is admitted"


def _place(exchange: Exchange) -> str:
    return f"exchange {exchange.server.round_index} (phase {exchange.server.phase})"


def _shapes(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in arrays.items()}


LAWS: tuple[Law, ...] = (
    every_state_is_a_flat_mapping_of_arrays,
    nothing_is_the_identity_of_merge,
    merge_is_associative_and_commutative,
    the_order_of_gateways_does_not_matter,
    a_sum_keeps_its_size,
    no_input_is_changed,
    the_same_generator_gives_the_same_bytes,
    the_same_seed_gives_the_same_training,
    an_update_survives_the_way,
    a_server_that_was_saved_and_loaded_goes_on_as_if_nothing_had_happened,
    an_empty_exchange_only_begins_the_round_anew,
    an_empty_data_set_sends_nothing_and_keeps_what_it_had,
    labels_matter_where_the_algorithm_declares_it_and_nowhere_else,
    units_are_those_of_normal_rows,
    roles_are_what_arrays_are,
    a_total_of_twice_the_weight_makes_the_same_model,
    what_moves_the_model_is_sent_times_the_weight,
    sums_over_rows_grow_with_the_rows,
    what_stays_with_a_gateway_is_never_sent,
    personal_tensors_are_what_gateways_keep,
    the_exported_model_scores_as_the_detector_does,
    anomalies_score_above_what_is_normal,
    a_damaged_array_is_refused_with_a_reason,
    wrong_names_are_refused_with_a_reason,
    no_gateway_weighs_more_than_it_may,
    rows_that_a_gateway_only_claims_are_refused_or_capped,
)
