"""Differential privacy: ε from its definition, noise that is what it says, bounds that hold, a budget that is kept."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as any_array
from pydantic import ValidationError

from fedgate.models.arrays import FEATURES, SECRET, Arrays, Floats, exchange_secret, generator
from fedgate.models.federated import ALGORITHMS
from fedgate.models.federated.protocol.algorithm import Algorithm
from fedgate.models.federated.protocol.run import Outcome, run
from fedgate.models.federated.protocol.schema import Field, UpdateError
from fedgate.models.federated.wrappers.differential_privacy import (
    Privacy,
    PrivacyWarning,
    bounded,
    with_differential_privacy,
    with_noise,
)
from fedgate.models.federated.wrappers.privacy_ledger import EPSILON, NOISE_SECRET, RELEASES, SPENT
from fedgate.models.testing.fleet import FEATURE_COUNT, fleet
from tests.support.given_width import build
from tests.support.law_settings import SETTINGS

AVERAGE = {"loss": "logistic", "components": 0}
MILD: dict[str, Any] = {"clip": 1.0, "noise_multiplier": 0.5, "epsilon": 1e3}
SECRETS = [exchange_secret(b"s", "run", index, "a") for index in range(4_000)]

WRAPS = ("privacy", "compression", "masking", "robust", "survey")


def bears_noise(name: str, chosen: dict[str, Any]) -> bool:
    """Tell whether an algorithm with such settings may be private and is not yet wrapped in anything."""
    try:
        build(name, FEATURE_COUNT, {**chosen, "privacy": MILD})
    except ValueError:
        return False
    return not any(chosen.get(key) for key in WRAPS)


SCHEMA = {"weights": Field((3,), "delta"), "border": Field((), "delta"), "samples": Field((), "weight")}
NAMES = ["border", "weights"]

changes = st.fixed_dictionaries(
    {
        "weights": any_array(np.float64, (5,), elements=st.floats(-1e6, 1e6)),
        "border": any_array(np.float64, (), elements=st.floats(-1e6, 1e6)),
        "samples": st.integers(1, 20_000).map(lambda count: np.array(float(count))),
    }
)


def algorithm_of(**chosen: Any) -> Algorithm:
    return build("fedavg", FEATURE_COUNT, {**AVERAGE, "rounds": 3, "privacy": {**MILD, **chosen}})


def data_of(rows: int = 60) -> dict[str, Arrays]:
    return {name: each.data for name, each in fleet(2, labelled=True, rows=rows).items()}


def trained(**chosen: Any) -> tuple[Outcome, list[Arrays]]:
    sent: list[Arrays] = []
    return run(algorithm_of(**chosen), data_of(), on_update=lambda _, update: sent.append(update)), sent


def length(update: Arrays) -> float:
    return math.sqrt(sum(float(np.square(a).sum()) for name, a in update.items() if name != "samples"))


def delta_of(epsilon: float, sigma: float) -> float:
    """Balle and Wang (2018), Theorem 8, for sensitivity 1: Φ(1/2σ - εσ) - e^ε Φ(-1/2σ - εσ)."""

    def phi(t: float) -> float:
        return 0.5 * math.erfc(-t / math.sqrt(2.0))

    return phi(0.5 / sigma - epsilon * sigma) - math.exp(epsilon) * phi(-0.5 / sigma - epsilon * sigma)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.7, 20.0])
@pytest.mark.parametrize("releases", [1, 7, 100])
def test_epsilon_is_that_of_the_definition(sigma: float, releases: int) -> None:
    """Of k releases the multiplier is σ / √k; so it must be of two that differ, by their inverse squares."""
    for delta in (1e-5, 1e-3):
        privacy = Privacy(clip=1.0, noise_multiplier=sigma, epsilon=1.0, delta=delta)
        epsilon = privacy.epsilon_of(releases / sigma**2)
        together = sigma / math.sqrt(releases)
        if epsilon == 0.0:
            assert delta_of(0.0, together) <= delta
        else:
            assert delta_of(epsilon, together) == pytest.approx(delta, rel=1e-6)
            assert delta_of(epsilon * 0.99, together) > delta
    mixed = Privacy(**MILD).epsilon_of(1.0 / 3.0**2 + 1.0 / 4.0**2)
    assert mixed == pytest.approx(Privacy(**MILD).epsilon_of(1.0 / 2.4**2))


@pytest.mark.soak
def test_epsilon_agrees_with_the_accountants_of_the_library() -> None:
    """They compose numerically, and know nothing of our sum of inverse squares."""
    from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant().compose(SelfComposedDpEvent(GaussianDpEvent(4.0), 10)).compose(GaussianDpEvent(2.0))
    found = Privacy(**{**MILD, "delta": 1e-5}).epsilon_of(10 / 4.0**2 + 1 / 2.0**2)
    assert found == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)


@given(changes, st.floats(1e-3, 1e3))
def test_no_update_is_longer_than_the_bound(update: Arrays, clip: float) -> None:
    found = bounded(SCHEMA, update, clip)
    assert length(found) <= clip * (1 + 1e-12) and found["samples"] == 1.0
    mean = {name: array / float(update["samples"]) for name, array in update.items() if name != "samples"}
    if length(mean) <= clip:
        assert all(np.array_equal(found[name], mean[name]) for name in mean)
    else:  # as long as it may be, and in the same direction
        assert length(found) == pytest.approx(clip)
        assert np.allclose(found["weights"] * length(mean), mean["weights"] * clip)


BROKEN = {
    "one is no number": lambda array: np.where(np.arange(array.size).reshape(array.shape) == 0, np.nan, array),
    "one is infinite": lambda array: np.where(np.arange(array.size).reshape(array.shape) == 0, -np.inf, array),
    "squares overflow": lambda array: np.where(np.arange(array.size).reshape(array.shape) == 0, 1e200, array),
}


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("name", ["weights", "intercept", "samples"])
def test_a_change_without_a_length_is_refused_and_not_sent_as_it_is(name: str, broken: str) -> None:
    """Beside a NaN the other numbers passed as long as they were, beside an infinity all became zero."""
    update = {"weights": np.array([1e6, -2e6, 3e6]), "intercept": np.array(0.5), "samples": np.array(100.0)}
    if (name, broken) in (("samples", "one is infinite"), ("samples", "squares overflow")):
        update["weights"] = np.full(3, np.inf)  # what so large a weight would leave of finite ones is nothing
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="privacy: expected a change of finite length"):
            bounded(build("fedavg", 3, AVERAGE).phases[0].schema, {**update, name: BROKEN[broken](update[name])}, 1.0)


MAY_BE_PRIVATE = [
    (name, {**chosen, "normalisation": "own"})
    for name in ALGORITHMS
    for chosen in [*SETTINGS.get(name, [{}]), AVERAGE]
    if bears_noise(name, {**chosen, "normalisation": "own"})
]


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize(("name", "chosen"), MAY_BE_PRIVATE)
def test_no_algorithm_that_may_be_private_sends_what_is_not_finite(
    name: str, chosen: dict[str, Any], broken: str
) -> None:
    """Whichever of its arrays it stands in, the training fails, and what failed is not in the ledger."""
    plain = build(name, FEATURE_COUNT, chosen)
    gateway = fleet(2, labelled=plain.labels)["north"].data | {SECRET: SECRETS[0]}
    server = plain.start(generator(0, 0, "cloud"))
    phase = plain.phases[0]
    _, update = phase.train(server.global_state, {}, gateway, generator(0, 0, "north"))
    for array in [each for each in update if update[each].dtype.kind == "f" and each not in ("samples", "weight_sum")]:
        value = {**update, array: BROKEN[broken](update[array].astype(np.float64))}
        lost = plain._replace(phases=(phase._replace(learn=lambda *_, value=value: ({}, value)),))
        guarded = with_differential_privacy(lost, Privacy(**MILD))
        with pytest.raises(ValueError, match="privacy: expected a change of finite length"):
            guarded.phases[0].train(server.global_state, {}, gateway, generator(0, 0, "north"))
    assert len(MAY_BE_PRIVATE) >= 8 and {name for name, _ in MAY_BE_PRIVATE} >= {
        *("fedavg", "fedprox", "esn-fedavg", "recurrent-fedavg", "robust-svm-subgradient")
    }


def test_a_training_that_runs_away_sends_nothing() -> None:
    algorithm = algorithm_of(clip=0.01, epsilon=1e6)
    server, rows = algorithm.start(generator(0, 0, "cloud")), data_of()["north"]
    for value in (np.nan, np.inf, 1.7e308):
        x = rows[FEATURES].copy()
        x[5, 2] = value
        told = rows | {FEATURES: x, SECRET: SECRETS[0]}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _, update = algorithm.phases[0].train(server.global_state, {}, told, generator(0, 0, "north"))
        except ValueError as error:
            assert "finite" in str(error)
        else:
            assert all(np.isfinite(array).all() for array in update.values())


def test_a_ledger_that_is_no_number_has_no_budget_left(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = algorithm_of()
    server, rows = algorithm.start(generator(0, 0, "cloud")), data_of()["north"] | {SECRET: SECRETS[0]}
    for spent in (np.nan, np.inf):
        with pytest.warns(PrivacyWarning):
            own, update = algorithm.phases[0].train(
                server.global_state, {SPENT: np.array(spent)}, rows, generator(0, 0, "north")
            )
        assert not update and RELEASES not in own
    monkeypatch.setattr(Privacy, "epsilon_of", lambda privacy, spent: math.nan)
    with pytest.warns(PrivacyWarning):
        assert not algorithm.phases[0].train(server.global_state, {}, rows, generator(0, 0, "north"))[1]


def test_noise_depends_on_no_unit_and_no_order() -> None:
    update = {"weights": np.array([0.3, -0.2, 0.1]), "border": np.array(0.7), "samples": np.array(1.0)}
    found = with_noise(update, NAMES, 0.5, SECRETS[0], "a")
    turned = with_noise(dict(reversed(update.items())), NAMES, 0.5, SECRETS[0], "a")
    for factor in (2.0**-40, 2.0**40):
        scaled = {name: array if name == "samples" else factor * array for name, array in update.items()}
        noisy = with_noise(scaled, NAMES, factor * 0.5, SECRETS[0], "a")
        assert all(np.array_equal(noisy[name], factor * found[name]) for name in ("weights", "border"))
    assert all(np.array_equal(turned[name], found[name]) for name in found)


@pytest.mark.soak
@settings(max_examples=50)
@given(st.lists(changes, min_size=1, max_size=5), changes, st.floats(1e-2, 1e2))
def test_neighbours_differ_by_no_more_than_the_sensitivity(others: list[Arrays], one: Arrays, clip: float) -> None:
    """Of one gateway removed `clip`; of one exchanged for another twice that."""

    def total(updates: list[Arrays]) -> Floats:
        parts = [bounded(SCHEMA, update, clip) for update in updates]
        return np.asarray(np.sum([np.append(part["weights"], part["border"]) for part in parts], axis=0))

    slack = 1e-9 * clip * len(others)
    assert np.linalg.norm(total([*others, one]) - total(others)) <= clip + slack
    assert np.linalg.norm(total([*others, one]) - total([*others, others[0]])) <= 2 * clip + slack


@pytest.mark.soak
def test_an_attacker_does_no_better_than_epsilon_allows() -> None:
    """The best test of one who knows all but one update, over 4,000 draws; with half the noise it does better."""
    privacy = Privacy(clip=2.0, noise_multiplier=1.5, epsilon=9.0, delta=1e-2)
    epsilon, there, nothing = privacy.epsilon_of(1.5**-2), {"w": np.array([2.0])}, {"w": np.zeros(1)}

    def advantage(deviation: float) -> float:
        seen = [
            np.array([with_noise(each, ["w"], deviation, secret, "a")["w"][0] for secret in part])
            for each, part in ((there, SECRETS[:2_000]), (nothing, SECRETS[2_000:]))
        ]
        level = deviation**2 * epsilon / privacy.clip + privacy.clip / 2.0  # above it e^epsilon times as likely
        hits, alarms = (float((each > level).mean()) for each in seen)
        return hits - math.exp(epsilon) * alarms

    assert advantage(privacy.deviation) <= privacy.delta + 0.01
    assert advantage(privacy.deviation / 2.0) > privacy.delta + 0.05


def test_a_gateway_adds_the_noise_before_it_sends() -> None:
    update = {"weights": np.full(50_000, 3.0), "samples": np.array(4.0)}
    clean = bounded({"weights": SCHEMA["weights"], "samples": SCHEMA["samples"]}, update, 0.5)
    found = with_noise(clean, ["weights"], 0.25 * 0.5, SECRETS[0], "a")
    noise = found["weights"] - clean["weights"]
    assert noise.std() == pytest.approx(0.125, rel=0.02) and abs(noise.mean()) < 0.003
    assert found["samples"] == 1.0


def test_the_cloud_adds_it_once() -> None:
    algorithm, data = algorithm_of(where="cloud"), data_of()
    plain = build("fedavg", FEATURE_COUNT, AVERAGE | {"rounds": 1})
    server = algorithm.start(generator(0, 0, "cloud"))
    assert server.global_state.keys() == plain.start(generator(0, 0, "cloud")).global_state.keys()
    phase, total = algorithm.phases[0], Arrays()
    for name, rows in data.items():
        own, update = phase.train(server.global_state, {}, rows, generator(0, 0, name))
        assert length(update) <= 1.0 + 1e-9 and own[RELEASES] == 1
        total = phase.reducer.merge(total, phase.admit(server, update))
    apart = []
    for secret in SECRETS[:500]:
        noisy = phase.advance(server._replace(server_state={NOISE_SECRET: secret}), total)
        assert noisy.server_state.keys() == {NOISE_SECRET} and NOISE_SECRET not in noisy.global_state
        mean = server.global_state["weights"] + total["weights"] / total["samples"]
        apart.append(noisy.global_state["weights"] - mean)
    assert np.std(apart) == pytest.approx(0.5 / len(data), rel=0.1)  # of the mean over all, once
    again = phase.advance(server._replace(round_index=7), total).global_state["weights"]
    assert not np.allclose(again, phase.advance(server, total).global_state["weights"])


def test_no_size_shows_in_an_update() -> None:
    for where in ("gateway", "cloud"):
        for update in trained(where=where)[1]:
            assert update["samples"] == 1.0


def test_a_gateway_falls_silent_at_its_budget_and_says_so() -> None:
    privacy = Privacy(**MILD)
    budget = privacy.epsilon_of(2 / 0.5**2) + 1e-6
    with pytest.warns(PrivacyWarning, match=r"epsilon .* after 2 updates, and the next one would make it"):
        outcome, sent = trained(epsilon=budget)
    assert [bool(update) for update in sent] == [True] * 8 + [False] * 4
    for own in outcome.local_states.values():
        assert own[RELEASES] == 2 and own[SPENT] == pytest.approx(8.0)
        assert budget - 1e-6 == pytest.approx(float(own[EPSILON]))
    assert float(outcome.server.global_state["step"]) == 2


def test_the_ledger_goes_on_in_another_training_with_other_noise() -> None:
    ledger = {name: array for name, array in trained()[0].local_states["north"].items() if name.startswith("privacy.")}
    algorithm = algorithm_of(noise_multiplier=2.0)
    server, rows = algorithm.start(generator(0, 0, "cloud")), data_of()["north"] | {SECRET: SECRETS[0]}
    own, _ = algorithm.phases[0].train(server.global_state, ledger, rows, generator(0, 0, "north"))
    assert own[RELEASES] == 4 and own[SPENT] == pytest.approx(3 / 0.5**2 + 1 / 2.0**2)
    assert float(own[EPSILON]) == pytest.approx(Privacy(**MILD).epsilon_of(12.25))


@pytest.mark.soak
def test_less_noise_is_nearer_to_none() -> None:
    exact = run(build("fedavg", FEATURE_COUNT, AVERAGE | {"rounds": 3}), data_of()).server.global_state["weights"]
    apart = [
        float(
            np.linalg.norm(
                trained(clip=1e3, noise_multiplier=noise, epsilon=1e15)[0].server.global_state["weights"] - exact
            )
        )
        for noise in (1e-3, 1e-6)
    ]
    assert apart[1] < 1e-2 < apart[0]


@pytest.mark.parametrize(
    ("name", "chosen", "words"),
    [
        ("fedavg", {}, "sends other sums than changes, expected changes in each"),
        ("fedper", {}, "other sums than changes"),
        ("incfed", {}, "other sums than changes"),
        ("robust-svm-admm", {}, "other sums than changes"),
        ("conditional-fedavg", {"gamma": 0.3}, "means beside its changes"),
        ("recurrent-fedavg", {}, "means beside its changes, expected changes alone.*set measure = 'own'"),
        ("fedavg", {**AVERAGE, "whiten": 2}, "other sums than changes"),
        ("fedavg", {**AVERAGE, "privacy": {"clip": 1.0, "epsilon": 1.0}}, r"privacy\.noise_multiplier: "),
        ("fedavg", {**AVERAGE, "privacy": {**MILD, "delta": 0.5}}, r"privacy\.delta: .*less than 0\.1"),
    ],
)
def test_what_would_leak_is_refused(name: str, chosen: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build(name, FEATURE_COUNT, {"privacy": MILD, **chosen})
    with pytest.raises(ValueError, match="expected one without"):
        with_differential_privacy(algorithm_of(), Privacy(**MILD))


def test_without_a_secret_nothing_is_sent() -> None:
    algorithm = algorithm_of()
    server = algorithm.start(generator(0, 0, "cloud"))
    with pytest.raises(ValueError, match="expected 'secret' in the data"):
        algorithm.phases[0].train(server.global_state, {}, data_of()["north"], generator(0, 0, "north"))


def test_the_cloud_refuses_what_breaks_the_promise() -> None:
    algorithm = algorithm_of(where="cloud")
    server = algorithm.start(generator(0, 0, "cloud"))
    _, update = algorithm.phases[0].train(server.global_state, {}, data_of()["north"], generator(0, 0, "north"))
    with pytest.raises(UpdateError, match="samples: expected 1, got 3"):
        algorithm.phases[0].admit(server, {**update, "samples": np.array(3.0)})
    with pytest.raises(UpdateError, match=r"expected a finite length up to 1 \(setting 'privacy\.clip'\), got 9"):
        algorithm.phases[0].admit(server, {**update, "weights": np.array([9.0, 0.0, 0.0]), "intercept": np.zeros(())})


@pytest.mark.parametrize("where", ["gateway", "cloud"])
def test_noise_beyond_the_bound_of_the_inner_algorithm_is_not_refused(where: str) -> None:
    """Of 256 numbers with a clip of 100 it is 1,600 long, above `largest_change`; refused, epsilon would be lost."""
    privacy = {"clip": 100.0, "noise_multiplier": 1.0, "epsilon": 1e6, "where": where}
    algorithm = build("fedavg", FEATURE_COUNT, {"loss": "logistic", "rounds": 3, "privacy": privacy})
    refused: list[UpdateError] = []
    outcome = run(
        algorithm, data_of(), secrets=dict.fromkeys(data_of(), b"s" * 32), on_refusal=lambda _, e: refused.append(e)
    )
    assert not refused and float(outcome.server.global_state["step"]) == 3


def test_an_update_longer_than_its_noise_can_be_is_refused() -> None:
    algorithm, privacy = algorithm_of(), Privacy(**MILD)
    server = algorithm.start(generator(0, 0, "cloud"))
    rows = data_of()["north"] | {SECRET: SECRETS[0]}
    _, update = algorithm.phases[0].train(server.global_state, {}, rows, generator(0, 0, "north"))
    size = update["weights"].size + 1
    longest = 1.0 + 0.5 * (math.sqrt(size) + 6.0)
    assert privacy.longest(size) == pytest.approx(longest)
    one = np.eye(3)[0]
    algorithm.phases[0].admit(server, {**update, "weights": 0.999 * longest * one, "intercept": np.zeros(())})
    for wrong in (1.001 * longest * one, 1e200 * one, np.full(3, np.nan), np.full(3, np.inf)):
        with pytest.raises(
            UpdateError,
            match=r"expected finite values|expected a finite length up to .* \(of 'privacy\.clip' and its n",
        ):
            algorithm.phases[0].admit(server, {**update, "weights": wrong, "intercept": np.zeros(())})


def test_a_gateway_without_rows_spends_nothing() -> None:
    algorithm = algorithm_of(epsilon=1e-9)
    server, rows = algorithm.start(generator(0, 0, "cloud")), data_of()["north"]
    empty = {name: array[:0] for name, array in rows.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert algorithm.phases[0].train(server.global_state, {}, empty, generator(0, 0, "north")) == ({}, {})


@pytest.mark.parametrize(
    "odd", [{"noise_multiplier": 1e-200}, {"noise_multiplier": 1e300}, {"clip": 5e-324}, {"clip": 1e308}]
)
def test_settings_beyond_what_numbers_bear_are_refused_by_name(odd: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(odd))):
        Privacy.model_validate(MILD | odd)
