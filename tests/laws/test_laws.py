"""Every algorithm x every law of `fedgate.models.testing`, and the way of its arrays over the wire.

A newly registered algorithm is covered by its defaults without a line here; other settings of it go into `SETTINGS`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from _pytest.mark import ParameterSet

from fedgate.config.protocol.wire import HEADER_BYTES_MAX, decode, encode
from fedgate.models.arrays import FEATURES, Arrays
from fedgate.models.federated import ALGORITHMS, build
from fedgate.models.federated.averaging.fedavg import fedavg
from fedgate.models.federated.protocol.algorithm import MAX_SAMPLES, Algorithm, Server
from fedgate.models.federated.protocol.composition import FLOAT32, OWN_COLUMNS
from fedgate.models.federated.protocol.schema import BESIDE, WIDEST, Field, has_any_length, largest_body
from fedgate.models.options import Listed
from fedgate.models.testing import check_laws
from fedgate.models.testing.exchanges import Trained, as_bytes
from fedgate.models.testing.fleet import fleet
from fedgate.models.testing.laws import (
    LAWS,
    faults_of,
    name_of,
    rows_that_a_gateway_only_claims_are_refused_or_capped,
    sums_over_rows_grow_with_the_rows,
    train,
    units_are_those_of_normal_rows,
    what_moves_the_model_is_sent_times_the_weight,
)
from tests.packages.example.fedgate_example.mean_distance import mean_distance
from tests.support.law_settings import SETTINGS, names_of

CASES = [(name, settings) for name in ALGORITHMS for settings in SETTINGS.get(name, [{}])]
SECONDS = {"masking", "multiclass"}


def _each_name_once(cases: list[tuple[str, dict[str, Any]]]) -> list[ParameterSet]:
    """Return the cases: each algorithm and each setting, by its name, in every run, what combines them in soak, as
    what takes seconds: masks, and a machine for each pair of classes.
    """
    seen, found = set[str](), list[ParameterSet]()
    for name, settings in cases:
        is_new = not {name, *settings} <= seen and settings.keys().isdisjoint(SECONDS)
        seen |= {name, *settings}
        found.append(pytest.param(name, settings, marks=() if is_new else pytest.mark.soak))
    return found


def _built(name: str, feature_count: int, **settings: Any) -> Algorithm:
    return build(name, feature_count, settings)


@pytest.mark.parametrize(("name", "settings"), _each_name_once(CASES), ids=str)
def test_the_algorithm_keeps_every_law(name: str, settings: dict[str, Any]) -> None:
    trained = train(partial(_built, name), settings, names=names_of(name, settings))
    broken = {name_of(law): faults for law in (*LAWS, *OF_THE_WIRE) if (faults := faults_of(law, trained))}
    assert broken == {}


def an_update_survives_the_wire(trained: Trained) -> Iterator[str]:
    for exchange in trained.exchanges:
        for name, update in exchange.updates.items():
            if as_bytes(decode(encode(update))[0]) != as_bytes(update):
                yield f"exchange {exchange.server.round_index}: the update of {name} arrives as another"


def an_update_is_as_large_as_its_schema_says(trained: Trained) -> Iterator[str]:
    for exchange in trained.exchanges:
        is_open = trained.algorithm.traits & {"compression", FLOAT32, OWN_COLUMNS} or has_any_length(
            exchange.phase.schema
        )
        predicted, place = (
            largest_body(exchange.phase.schema, exchange.server.global_state),
            exchange.server.round_index,
        )
        if predicted is None:
            yield f"exchange {place}: the size of an update is not known"
            continue
        for update in exchange.sent:
            body, wire = sum(array.nbytes for array in update.values()), len(encode(update))
            beside = sum(WIDEST * (array.ndim + BESIDE) for array in update.values())
            if body > predicted or wire > HEADER_BYTES_MAX + predicted or (not is_open and body < predicted - beside):
                yield f"exchange {place}: {body} bytes, {wire} on the wire, where {predicted} are the most"


OF_THE_WIRE = (an_update_survives_the_wire, an_update_is_as_large_as_its_schema_says)
LINEAR: dict[str, Any] = {"loss": "logistic", "components": 0, "rounds": 2}


def broken(**changes: Any) -> Any:
    """Return a factory of an algorithm of which a part is another one."""

    def factory(feature_count: int, **settings: Any) -> Algorithm:
        algorithm = fedavg(feature_count, **LINEAR, **settings)
        (phase,) = algorithm.phases
        parts = {key: change(getattr(phase, key)) for key, change in changes.items()}
        return algorithm._replace(phases=(phase._replace(**parts),))

    return factory


def into_the_data(train: Any) -> Any:
    def changed(shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> Any:
        data["x"] += 0.0
        return train(shared, own, data, rng)

    return changed


def counting_calls(train: Any) -> Any:
    calls = []

    def changed(shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> Any:
        calls.append(1)
        own, update = train(shared, own, data, rng)
        return own, update and {**update, "samples": np.array(float(len(calls)))}

    return changed


def means_alone(train: Any) -> Any:
    def changed(shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> Any:
        own, update = train(shared, own, data, rng)
        count = update.get("samples", 1.0)
        return own, {name: array if name == "samples" else np.asarray(array / count) for name, array in update.items()}

    return changed


def forgetting(name: str) -> Any:
    """Return the example of an algorithm that adds up moments, of which one is of a row and not of all."""

    def factory(feature_count: int) -> Algorithm:
        algorithm = mean_distance(feature_count)
        (phase,) = algorithm.phases

        def learn(shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> Any:
            own, update = phase.learn(shared, own, data, rng)
            return own, update and {**update, name: np.asarray(update[name] / update["samples"])}

        return algorithm._replace(phases=(phase._replace(learn=learn),), detector="linear")  # which is not asked

    return factory


def bare_numbers(train: Any) -> Any:
    def changed(shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> Any:
        own, update = train(shared, own, data, rng)
        return own, update and {**update, "samples": 60.0}

    return changed


def moving_nothing(schema: Any) -> Any:
    return {name: field._replace(moves=False) for name, field in schema.items()}


def without_most(schema: Any) -> Any:
    return {name: field._replace(largest=1e15) for name, field in schema.items()}


def counting_as_a_sum(schema: Any) -> Any:
    return {**schema, "samples": Field((), "sum", least=1.0)}


def measuring(train: Any) -> Any:
    def changed(shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> Any:
        own, update = train(shared, own, data, rng)
        return own, update and {**update, "loss": np.asarray(0.5 * update["samples"])}

    return changed


def with_a_metric(schema: Any) -> Any:
    return {**schema, "loss": Field((), "metric", least=0.0)}


def whole_numbers(train: Any) -> Any:
    def changed(shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> Any:
        own, update = train(shared, own, data, rng)
        return own, update and {**update, "samples": update["samples"].astype(np.int64)}

    return changed


def counting_beside_bounded_sums(schema: Any) -> Any:
    bounded = {name: field._replace(largest=1e3) for name, field in schema.items()}
    return counting_as_a_sum(bounded)


def capping(_: Any) -> Any:
    def counted(server: Server, update: Arrays) -> Arrays:
        share = min(1.0, MAX_SAMPLES / float(update["samples"]))
        return {name: np.asarray(share * array) for name, array in update.items()}

    return counted


def with_zeros(_: Any) -> Any:
    def unpacked(server: Server, update: Arrays) -> Arrays:
        lost = {name for name, array in update.items() if array.dtype.kind == "f" and np.isnan(array).any()}
        return {name: np.zeros(array.shape) if name in lost else array for name, array in update.items()}

    return unpacked


def without_a_centre(_: Any) -> Any:
    def unpacked(server: Server, update: Arrays) -> Arrays:
        return {name: array for name, array in update.items() if name != "center"}

    return unpacked


@pytest.mark.soak
@pytest.mark.parametrize(
    ("changes", "law"),
    [
        ({"unpacked": with_zeros}, "a damaged array is refused with a reason"),
        ({"schema": without_most}, "no gateway weighs more than it may"),
        ({"schema": counting_as_a_sum}, "rows that a gateway only claims are refused or capped"),
        (
            {"schema": counting_as_a_sum, "learn": whole_numbers},
            "rows that a gateway only claims are refused or capped",
        ),
        (
            {"schema": with_a_metric, "learn": measuring},
            "rows that a gateway only claims are refused or capped",
        ),
        ({"schema": counting_beside_bounded_sums}, "rows that a gateway only claims are refused or capped"),
        ({"unpacked": without_a_centre}, "wrong names are refused with a reason"),
        ({"learn": counting_calls}, "the same generator gives the same bytes"),
        ({"schema": moving_nothing}, "roles are what arrays are"),
        ({"learn": bare_numbers}, "every state is a flat mapping of arrays"),
        ({"learn": means_alone}, "what moves the model is sent times the weight"),
    ],
)
def test_a_broken_law_is_named(changes: dict[str, Any], law: str) -> None:
    with pytest.raises(AssertionError, match=f"{law}: exchange 0 "):
        check_laws(broken(**changes))


@pytest.mark.parametrize("name", ["sum", "squares"])
def test_a_sum_that_forgets_the_weight_of_its_rows_breaks_a_law(name: str) -> None:
    faults = faults_of(sums_over_rows_grow_with_the_rows, train(forgetting(name), {}))
    assert faults and all(f": {name} of rows twice over is no larger than of once" in fault for fault in faults)


def test_a_mean_of_many_steps_breaks_a_law_though_it_grows_with_the_steps() -> None:
    trained = train(broken(learn=means_alone), {"batch": 4})
    assert faults_of(what_moves_the_model_is_sent_times_the_weight, trained)


def test_a_count_of_rows_may_be_capped_instead_of_refused() -> None:
    capped = broken(schema=counting_as_a_sum, counted=capping)
    assert faults_of(rows_that_a_gateway_only_claims_are_refused_or_capped, train(capped, {})) == []


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"personal": ()}, r"gateways keep: harbour keeps \['center', 'scale'\], .*expected personal to name them"),
        ({"detector": "unseen"}, "scores as the detector does: no detector 'unseen'; expected one of"),
    ],
)
def test_what_an_algorithm_forgot_is_named(part: dict[str, Any], words: str) -> None:
    def factory(feature_count: int, **settings: Any) -> Algorithm:
        return fedavg(feature_count, **LINEAR, **settings)._replace(**part)

    with pytest.raises(AssertionError, match=words):
        check_laws(factory)


def units_of_all_rows(train: Any) -> Any:
    def changed(shared: Arrays, own: Arrays, data: Arrays, rng: np.random.Generator) -> Any:
        if "center" not in own:
            own = {**own, "center": data[FEATURES].mean(axis=0), "scale": data[FEATURES].std(axis=0)}
        return train(shared, own, data, rng)

    return changed


def test_units_that_faults_have_a_part_in_break_a_law() -> None:
    trained = train(broken(learn=units_of_all_rows), {})
    (fault,) = faults_of(units_are_those_of_normal_rows, trained)
    assert fault == (
        "exchange 0 (phase 0): ['center', 'scale'] change with rows labelled as faults, expected those of healthy_rows"
    )


def with_a_pair(feature_count: int, edges: tuple[float, float] = (0.0, 1.0)) -> Algorithm:
    return fedavg(feature_count, **LINEAR)


def with_a_listed_pair(feature_count: int, edges: Listed[tuple[float, float]] = (0.0, 1.0)) -> Algorithm:
    return fedavg(feature_count, **LINEAR)


@pytest.mark.parametrize("settings", [{}, {"edges": (0.0, 2.0)}])
def test_a_setting_that_no_file_can_give_is_named(settings: dict[str, Any]) -> None:
    train(with_a_listed_pair, settings)
    with pytest.raises(AssertionError, match=r"from a file: edges: .*tuple, got \[0\.0, .*expected .* Listed\[tuple"):
        check_laws(with_a_pair, settings)


@pytest.mark.parametrize("phase", [-1, 1, 7])
@pytest.mark.parametrize("part", ["start", "advance"])
def test_an_exchange_that_there_is_not_is_named(part: str, phase: int) -> None:
    def factory(feature_count: int) -> Algorithm:
        algorithm = fedavg(feature_count, **LINEAR)
        (only,) = algorithm.phases

        def lead_astray(go: Any) -> Any:
            return lambda *given: go(*given)._replace(phase=phase)

        if part == "start":
            return algorithm._replace(start=lead_astray(algorithm.start))
        return algorithm._replace(phases=(only._replace(advance=lead_astray(only.advance)),))

    with pytest.raises(ValueError, match=rf"server\.phase: expected 0 to 0, one of the phases, got {phase}; see what"):
        check_laws(factory)


def test_an_error_of_the_algorithm_goes_on_with_the_name_of_the_law() -> None:
    with pytest.raises(ValueError, match="read-only") as raised:
        check_laws(broken(learn=into_the_data))
    assert raised.value.__notes__ == ["raised while this law was asked: no input is changed"]


def test_laws_are_asked_on_data_of_ones_own() -> None:
    gateways = fleet(5, labelled=True, rows=40, names=("a", "b", "c", "d"))
    check_laws(fedavg, {**LINEAR, "rounds": 30}, gateways=gateways)
    with pytest.raises(AssertionError, match=r"anomalies score above what is normal: a: .* expected above 1"):
        check_laws(fedavg, {**LINEAR, "rounds": 30}, gateways=gateways, auc_least=1.0)
    with pytest.raises(ValueError, match="expected 4 or more, got 1"):
        check_laws(fedavg, LINEAR, gateways={"a": gateways["a"]})
