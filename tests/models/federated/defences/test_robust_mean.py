"""A robust mean in place of a sum: who counts how much, when a round comes to nothing, and what does not go with it."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgate.models.arrays import FEATURES, Arrays, generator
from fedgate.models.federated import ALGORITHMS
from fedgate.models.federated.defences.robust_mean import Robust
from fedgate.models.federated.defences.robust_rules import TooFewRowsError
from fedgate.models.federated.protocol.algorithm import Algorithm, RoundFailedError, Server
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.protocol.schema import UpdateError
from fedgate.models.testing.exchanges import SEED
from fedgate.models.testing.fleet import FEATURE_COUNT, NAMES, fleet
from tests.support.given_width import build
from tests.support.sites import aggregator_settings

LOGISTIC: dict[str, Any] = {"loss": "logistic", "components": 0}
READOUT: dict[str, Any] = {"network": {"task": "classify", "units": 12, "washout": 4}, "rate": 1.0}
ROBUST = ("fedavg-median", "fedavg-trimmed-mean", "fedavg-krum", "fedavg-multi-krum", "fedavg-clipped")


def sent(algorithm: Algorithm, count: int = 4) -> tuple[Server, list[Arrays]]:
    """Return the server at the beginning, and what so many gateways send."""
    server = algorithm.start(generator(SEED, 0, "cloud"))
    data = [each.data for each in fleet(SEED, labelled=algorithm.labels).values()]
    phase = algorithm.phases[0]
    rows = [data[index % len(data)] for index in range(count)]
    return server, [
        phase.train(server.global_state, {}, each, generator(0, 0, f"{n}"))[1] for n, each in enumerate(rows)
    ]


def closed(algorithm: Algorithm, server: Server, updates: list[Arrays]) -> Arrays:
    phase, total = algorithm.phases[0], Arrays()
    for update in updates:
        total = phase.reducer.merge(total, phase.admit(server, update))
    return phase.advance(server, phase.reducer.closed(total)).global_state


@pytest.mark.parametrize("name", ROBUST)
def test_everybody_counts_alike_whatever_he_claims(name: str) -> None:
    """As often as he claims the most there is, the change that he asks for is one among others."""
    algorithm = build(name, FEATURE_COUNT, LOGISTIC)
    server, updates = sent(algorithm, 7)
    rows = float(updates[0]["samples"].item())
    claimed = [{each: array * (20_000.0 / rows) for each, array in updates[0].items()}, *updates[1:]]
    for key, array in closed(algorithm, server, updates).items():
        np.testing.assert_allclose(closed(algorithm, server, claimed)[key], array, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ROBUST)
def test_where_all_ask_for_the_same_it_is_fedavg(name: str) -> None:
    data = {who: fleet(SEED, labelled=True)[NAMES[0]].data for who in "abcdefg"}
    settings = {**LOGISTIC, "batch": 1_000}  # one batch: nothing is drawn
    expected, found = (
        run(build(each, FEATURE_COUNT, settings), data, rounds=3).server.global_state for each in ("fedavg", name)
    )
    for key, array in expected.items():
        np.testing.assert_allclose(found[key], array, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ROBUST)
def test_two_updates_make_no_robust_mean(name: str) -> None:
    algorithm = build(name, FEATURE_COUNT, LOGISTIC)
    server, updates = sent(algorithm, 5)
    closed(algorithm, server, updates)
    with pytest.raises(RoundFailedError, match="expected 3 updates or more, got 2; ask more gateways"):
        closed(algorithm, server, updates[:2])


@pytest.mark.parametrize(
    ("liars", "words"),
    [
        (0.2, "krum: a share of 0.2 is nobody of 4 updates, .*; expected 5 updates or more"),
        (0.34, "krum: a share of 0.34 is 1 of 4 updates, which it cannot leave out; expected 10 updates or more"),
    ],
)
def test_krum_says_how_many_it_needs(liars: float, words: str) -> None:
    algorithm = build("fedavg-krum", FEATURE_COUNT, {**LOGISTIC, "liars": liars})
    server, updates = sent(algorithm)
    with pytest.raises(RoundFailedError, match=words):
        closed(algorithm, server, updates)


@given(st.sampled_from(["trimmed-mean", "krum", "multi-krum"]), st.floats(0.001, 0.499), st.integers(3, 2_000))
def test_the_number_that_is_asked_for_is_enough_and_so_is_any_above(rule: Any, liars: float, count: int) -> None:
    robust = Robust(rule=rule, liars=liars)
    try:
        robust.check(count)
    except TooFewRowsError as error:
        enough = int(str(error).partition("; expected ")[2].partition(" ")[0])
        assert enough > count
        for more in range(50):
            robust.check(enough + more)
    else:
        assert robust.liars_of(count) >= 1


def test_more_than_one_row_is_refused() -> None:
    algorithm = build("fedavg-median", FEATURE_COUNT, LOGISTIC)
    server, (update, *_) = sent(algorithm)
    many = {name: np.repeat(array, 2, axis=0) for name, array in update.items()}
    for wrong in (many, {name: array[0] for name, array in update.items()}):
        with pytest.raises(UpdateError, match="expected one row, got"):
            algorithm.phases[0].admit(server, wrong)


def test_without_labels_a_gateway_sends_the_solution_of_its_own_rows() -> None:
    """Nothing of the others is in it, and so nothing that a liar among them put there."""
    algorithm = build("fedavg-median", FEATURE_COUNT, {})
    data = fleet(SEED)[NAMES[0]].data
    phase, server = algorithm.phases[0], algorithm.start(generator(SEED, 0, "cloud"))
    elsewhere = {**server.global_state, "weights": server.global_state["weights"] + 0.3, "step": np.array(4)}
    own, first = phase.train(server.global_state, {}, data, generator(0, 0, "a"))
    assert not [name for name in own if name.startswith("multipliers")]
    _, later = phase.train(elsewhere, own, data, generator(0, 0, "a"))
    count = float(first["samples"].item())
    for shared, update in ((server.global_state, first), (elsewhere, later)):
        given = update["weights"][0] / count + shared["weights"]
        np.testing.assert_allclose(given, first["weights"][0] / count, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("fedavg-median", {"liars": 0.2}, "liars 0.2 given for rule 'median', expected none"),
        ("fedavg", {"liars": 0.2}, "liars 0.2 given without 'robust', expected both or none"),
        ("fedper", {"share": 0.5, "components": 0}, "share 0.5 given with components 0, expected a map"),
        ("fedavg-krum", {"liars": 0.5}, r"(?s)liars.*less than 0.5"),
        ("fedavg-median", {"nu": 2.0}, r"(?s)nu.*less than or equal to 1"),
        (
            "fedavg-median",
            {"masking": {"fewest": 3}},
            "keeps rows apart, expected a sum in each exchange",
        ),
        (
            "fedavg-median",
            {"compression": {}},
            "around a robust mean, expected one of both: .* made good by the next",
        ),
        (
            "fedavg-median",
            {**LOGISTIC, "privacy": {"clip": 1.0, "noise_multiplier": 1.0, "epsilon": 1.0}},
            "sends other sums than changes",
        ),
        ("conditional-fedavg", {"robust": {"rule": "median"}}, "made by other sums, expected one of changes"),
        ("incfed", {"robust": {"rule": "median"}}, "made by other sums, expected one of changes"),
        ("esn-fedavg", {**READOUT, "robust": {"rule": "mode"}}, "robust.rule: .*'median', 'trimmed-mean'"),
        ("esn-fedavg", {**READOUT, "robust": {"rule": "clipped", "liars": 0.1}}, "liars 0.1 given for rule 'clipped'"),
    ],
)
def test_what_does_not_go_together_is_refused(name: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build(name, FEATURE_COUNT, settings)


@pytest.mark.parametrize("name", ROBUST)
def test_its_settings_are_listed_and_checked_as_those_of_fedavg(name: str) -> None:
    shown, plain = (inspect.signature(ALGORITHMS[each]).parameters for each in (name, "fedavg"))
    assert set(shown) == set(plain)
    assert [each for each in plain if shown[each].default != plain[each].default] == ["robust"]
    with pytest.raises(ValueError, match="'epoch' is unknown"):
        build(name, FEATURE_COUNT, {"epoch": 3})


def test_a_wild_gateway_spoils_a_network_that_is_averaged_and_not_one_by_the_median() -> None:
    """The same setting serves every average of changes."""
    data = {name: gateway.data for name, gateway in fleet(SEED, labelled=True).items()}
    wild = {**data, NAMES[0]: {**data[NAMES[0]], FEATURES: -data[NAMES[0]][FEATURES]}}
    moved = {}
    for how, extra in (("mean", {}), ("median", {"robust": {"rule": "median"}})):
        algorithm = build("esn-fedavg", FEATURE_COUNT, {**READOUT, **extra, "normalisation": "none"})
        readouts = [run(algorithm, each, rounds=3).server.global_state["readout"] for each in (data, wild)]
        moved[how] = float(np.linalg.norm(readouts[0] - readouts[1]) / np.linalg.norm(readouts[0]))
    assert moved["median"] < moved["mean"]


@pytest.mark.parametrize(
    ("choice", "quorum", "words"),
    [
        ({"name": "fedavg-median"}, 3, "a robust mean: expected 3 updates or more, got 2"),
        ({"name": "fedavg-clipped", "settings": {"survey": {}}}, 3, "expected 3 updates or more, got 2"),
        ({"name": "fedavg-trimmed-mean"}, 5, "a share of 0.2 is nobody of 4 updates, .*; expected 5 updates or more"),
        ({"name": "fedprox", "settings": {**LOGISTIC, "robust": {"rule": "krum"}}}, 5, "krum: a share of 0.2 is"),
        ({"name": "federated-subspace", "settings": {"masking": {}}}, 5, "masked sums: expected 5 gateways or more"),
    ],
)
def test_an_aggregator_with_too_small_a_quorum_is_refused_before_it_starts(
    choice: dict[str, Any], quorum: int, words: str
) -> None:
    aggregator_settings(algorithm=choice, rounds={"quorum": quorum})
    with pytest.raises(ValueError, match=rf"rounds.quorum: {quorum - 1} given, with which a .* nothing: .*{words}"):
        aggregator_settings(algorithm=choice, rounds={"quorum": quorum - 1})
