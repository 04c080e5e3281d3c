"""Goal: `fedgate.models.Federated` keeps scikit-learn's conventions, and says what the algorithms beneath it say.

Method: scikit-learn's own checks; and the loop over data sets, scores, graphs and bytes called by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.utils import check_random_state
from sklearn.utils.estimator_checks import estimator_checks_generator

from fedgate.config.protocol.wire import encode
from fedgate.firmware_sim.evaluate import training
from fedgate.models import Federated
from fedgate.models.arrays import FEATURES, LABELS, Arrays, Floats
from fedgate.models.detectors import DETECTORS
from fedgate.models.federated import ALGORITHMS, build
from fedgate.models.federated.protocol.run import run
from fedgate.models.testing.fleet import fleet, onnx_scores
from tests.support.law_settings import SETTINGS, names_of
from tests.support.syntax import ROOT

PAGE = ROOT / "docs" / "reference" / "library.md"
SERIES: dict[str, Any] = {"network": {"units": 20, "leak": 1.0, "washout": 0}}
EVERYWHERE = {"check_array_api_input": "score is a number for each row, as everywhere in fedgate"}
EDGES = {"check_methods_subset_invariance": "of few rows many lie on the border itself, where the last bit decides"}
MEMORY = "rows are a series: what came before a row is part of its score"
ORDER = {"check_methods_subset_invariance": MEMORY, "check_methods_sample_order_invariance": MEMORY}
# They need pandas, or a setting of scipy for the whole process.
NOT_RUN = {"check_dataframe_column_names_consistency", "check_classifier_data_not_an_array", *EVERYWHERE}
FAILS = {"conditional-fedavg": EDGES, "incfed": ORDER, "partial-incfed": ORDER}
PASS = ("ensemble-svdd", "fedavg", "federated-subspace", "fedper", "fedprox", "support-vector-election")
SMALL = {"components": 60, "rounds": 2}


def cases(*estimators: Federated) -> list[Any]:
    """Return scikit-learn's checks of estimators, those that fail marked so. Whatever fails by the last bit may pass on
    another processor.
    """
    made = []
    for estimator in estimators:
        failing = FAILS.get(estimator.algorithm, {})
        for each, check in estimator_checks_generator(estimator):
            name = check.func.__name__
            if name not in NOT_RUN:
                is_strict = failing.get(name) != EDGES.get(name)
                mark = [pytest.mark.xfail(reason=failing[name], strict=is_strict)] if name in failing else []
                made.append(pytest.param(each, check, id=f"{estimator.algorithm}-{name}", marks=mark))
    return made


@pytest.mark.parametrize(("estimator", "check"), cases(Federated(rounds=1)))
@pytest.mark.filterwarnings("ignore")  # those checks look at warnings themselves
def test_scikit_learns_checks(estimator: Federated, check: Callable[[Federated], None]) -> None:
    check(estimator)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("estimator", "check"),
    cases(
        *(Federated(name, rounds=1) for name in PASS if name != Federated().algorithm),
        *(Federated(name, **SERIES) for name in ("incfed", "partial-incfed")),
        Federated("conditional-fedavg", rounds=1),
    ),
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_checks_of_every_algorithm(estimator: Federated, check: Callable[[Federated], None]) -> None:
    check(estimator)


def test_the_page_names_the_checks_that_fail() -> None:
    rows = [line.split(" | ") for line in PAGE.read_text("utf-8").splitlines() if " | `check_" in line]
    named = {(name, row[1].split("`")[1]) for row in rows for name in re.findall(r"[a-z-]{3,}", row[0])}
    assert named == {(name, check) for name, checks in {"all": EVERYWHERE, **FAILS}.items() for check in checks}


@pytest.fixture(scope="module")
def tables() -> dict[str, Floats]:
    return {name: gateway.data[FEATURES] for name, gateway in fleet(3).items()}


@pytest.fixture(scope="module")
def model(tables: dict[str, Floats]) -> Federated:
    return Federated("fedavg", random_state=7, **SMALL).fit(tables)


def as_one(tables: dict[str, Any]) -> tuple[Any, np.ndarray]:
    """Return the rows of all gateways, those of each apart from one another, and whose they are."""
    names = np.concatenate([np.full(len(rows), name) for name, rows in tables.items()])
    order = np.argsort(np.arange(len(names)) % len(next(iter(tables.values()))), kind="stable")
    return np.concatenate(list(tables.values()))[order], names[order]


def test_it_is_the_loop_over_data_sets_and_counts_what_that_sends(tables: dict[str, Floats], model: Federated) -> None:
    sent = dict.fromkeys(tables, 0)

    def weigh(name: str, update: Arrays) -> None:
        sent[name] += len(encode(update))

    algorithm = build("fedavg", 3, {"components": 60})
    data = {name: {FEATURES: x} for name, x in tables.items()}
    outcome = run(algorithm, data, seed=7, rounds=2, on_update=weigh)
    for name, x in tables.items():
        own = {**outcome.server.global_state, **outcome.local_states[name]}
        np.testing.assert_array_equal(model.score(x, groups=name), DETECTORS["linear"].score(own, x))
    assert model.communication.bytes_up == sent
    assert model.communication.exchanges == algorithm.exchanges(2)


def test_down_is_counted_what_is_shared_in_each_exchange_and_in_the_end(tables: dict[str, Floats]) -> None:
    """Spheres are in the model only when the training is over, so nobody receives them with an exchange of it."""
    model = Federated("ensemble-svdd", gamma=0.5).fit(tables)
    start = build("ensemble-svdd", 3, {"gamma": 0.5}).start(np.random.default_rng(0)).global_state
    assert model.communication.exchanges == 1
    size = len(encode(start)) + len(encode(model.global_state_))
    assert model.communication.bytes_down == dict.fromkeys(tables, size)
    assert len(encode(start)) < len(encode(model.global_state_))


def test_a_table_with_groups_is_the_mapping_of_their_names(tables: dict[str, Floats], model: Federated) -> None:
    x, names = as_one(tables)
    other = clone(model).fit(x, groups=names)
    assert other.gateways_ == sorted(tables) == model.gateways_
    np.testing.assert_array_equal(other.score(x, groups=names), model.score(x, groups=names))
    np.testing.assert_array_equal(
        model.score(x, groups=names)[names == "west"], model.score(tables["west"], groups="west")
    )
    np.testing.assert_array_equal(other.fit_predict(x, groups=names), model.predict(x, groups=names))


def test_the_two_signs(model: Federated, tables: dict[str, Floats]) -> None:
    damaged = fleet(3)["west"]
    scores = model.score(damaged.x, groups="west")
    assert roc_auc_score(damaged.y, scores) > 0.95
    np.testing.assert_array_equal(model.decision_function(damaged.x, groups="west"), -scores)
    np.testing.assert_array_equal(model.score_samples(damaged.x, groups="west") - model.offset_, -scores)
    np.testing.assert_array_equal(model.predict(damaged.x, groups="west"), np.where(scores > 0, -1, 1))


@pytest.mark.parametrize("settings", [SMALL, {**SMALL, "share": 0.5}], ids=["shared", "personal"])
def test_the_exported_model_scores_the_same(settings: dict[str, Any], tables: dict[str, Floats]) -> None:
    model = Federated("fedavg", **settings).fit(tables)
    x = tables["south"]
    expected = model.score(x, groups="south")
    np.testing.assert_allclose(onnx_scores(model.to_onnx("south"), x), expected, rtol=1e-4, atol=1e-4)
    fed = {name: model.local_states_["south"][name] for name in model.personal_}
    np.testing.assert_allclose(onnx_scores(model.to_onnx(), x, fed), expected, rtol=1e-4, atol=1e-4)
    alone = clone(model).fit(x)
    np.testing.assert_allclose(onnx_scores(alone.to_onnx(), x), alone.score(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "recurrent-fedavg"])
def test_every_algorithm_is_trained_scored_and_exported(name: str) -> None:
    settings = SETTINGS[name][0]
    gateways = fleet(6, labelled=True, names=names_of(name, settings))
    x = {place: gateway.x for place, gateway in gateways.items()}
    y = {place: gateway.y for place, gateway in gateways.items()}
    model = Federated(name, **settings).fit(x, y)
    scores = model.score(x["north"], groups="north")
    assert np.isfinite(scores).all()
    np.testing.assert_allclose(onnx_scores(model.to_onnx("north"), x["north"]), scores, rtol=1e-3, atol=1e-3)
    assert sum(model.communication.bytes_up.values()) > 0


def test_masks_open_to_the_same_model(tables: dict[str, Floats]) -> None:
    plain, masked = (Federated(components=1, masking=masking).fit(tables) for masking in (None, {"fewest": 3}))
    west, masked_west = (model.score(tables["west"], groups="west") for model in (plain, masked))
    np.testing.assert_allclose(masked_west, west, atol=1e-3)
    assert masked.communication.exchanges > plain.communication.exchanges


def test_a_gateway_that_was_not_drawn_sends_nothing_and_is_scored(tables: dict[str, Floats]) -> None:
    model = Federated(fraction=0.5, normalisation="own", components=1).fit(tables)
    silent = [name for name, size in model.communication.bytes_up.items() if not size]
    assert len(silent) == 2
    assert np.isfinite(model.score(tables[silent[0]], groups=silent[0])).all()


def test_a_new_gateway_is_commissioned_with_rows_of_its_own(tables: dict[str, Floats]) -> None:
    known = {name: tables[name] for name in ("harbour", "north", "south")}
    model = Federated("fedavg", **SMALL).fit(known)
    for wanted in (model.score, model.predict, lambda x, groups: model.to_onnx(groups)):
        with pytest.raises(ValueError, match=r"'west' is unknown, .* give normal rows of it to commission\(\)"):
            wanted(tables["west"], groups="west")
    with pytest.raises(ValueError, match=r"by groups= whose rows these are, one of \['harbour', 'north', 'south'\]"):
        model.score(tables["north"])
    assert model.commission({"west": tables["west"]}) is model
    damaged = fleet(3)["west"]
    assert roc_auc_score(damaged.y, model.score(damaged.x, groups="west")) > 0.95
    with pytest.raises(ValueError, match="gateway 'west' has its units already"):
        model.commission({"west": tables["west"]})


def test_a_new_gateway_trains_the_part_of_the_model_that_stays_at_home(tables: dict[str, Floats]) -> None:
    known = {name: tables[name] for name in ("harbour", "north", "south")}
    model = Federated("fedper", gamma=0.1, components=8, rounds=2).fit(known).commission({"west": tables["west"]})
    assert model.local_states_["west"].keys() >= {*model.personal_}
    assert (model.predict(tables["west"], groups="west") == 1).mean() > 0.5
    model.set_params(normalisation="none")  # of the next training, not of this one
    model.commission({"east": tables["north"]})
    assert model.local_states_["east"].keys() >= {*model.personal_}


def test_labels_of_a_gateway_are_as_many_as_its_rows(tables: dict[str, Floats]) -> None:
    names = ("north", "south")
    x = {name: tables[name] for name in names}
    y = {"north": np.zeros(len(x["north"]) - 1, dtype=int), "south": np.zeros(len(x["south"]) + 1, dtype=int)}
    with pytest.raises(ValueError, match=r"north: \d+ labels given for \d+ rows, expected one for each"):
        Federated("fedavg", loss="logistic", components=0).fit(x, y)
    with pytest.raises(ValueError, match="same as words"):
        Federated("fedavg", **SMALL).fit({1: x["north"], "1": x["south"]})  # type: ignore[dict-item]  # as a user may


def test_where_nothing_is_personal_any_gateway_is_scored(tables: dict[str, Floats]) -> None:
    model = Federated("fedavg", normalisation="none", **SMALL).fit(tables)
    np.testing.assert_array_equal(model.score(tables["west"], groups="elsewhere"), model.score(tables["west"]))


def test_labels_are_for_algorithms_that_learn_from_them() -> None:
    gateways = fleet(4, labelled=True)
    x = {name: gateway.x for name, gateway in gateways.items()}
    y = {name: gateway.y.astype(int) for name, gateway in gateways.items()}
    logistic = Federated("fedavg", loss="logistic", components=0).fit(x, y)
    assert roc_auc_score(y["west"], logistic.score(x["west"], groups="west")) > 0.95
    rows, names = as_one(x)
    labels, _ = as_one(y)
    np.testing.assert_array_equal(
        clone(logistic).fit(rows, labels, groups=names).score(rows, groups=names), logistic.score(rows, groups=names)
    )
    data = {name: {FEATURES: x[name], LABELS: y[name]} for name in x}
    outcome = run(build("fedavg", 3, {"loss": "logistic", "components": 0}), data)
    np.testing.assert_array_equal(logistic.global_state_["weights"], outcome.server.global_state["weights"])
    plain = Federated(components=1).fit(x)
    np.testing.assert_array_equal(clone(plain).fit(x, y).score(rows, groups=names), plain.score(rows, groups=names))


def test_settings_are_parameters(tables: dict[str, Floats]) -> None:
    model = Federated("fedavg", components=6)
    assert model.get_params()["components"] == 6
    assert model.set_params(nu=0.3, rounds=1) is model
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert copy.get_params()["nu"] == 0.3
    assert "components=6" in repr(model)
    with pytest.raises(ValueError, match="setting 'nuu' is unknown to fedavg; expected one of"):
        model.set_params(nuu=0.3).fit(tables)


@pytest.mark.soak
def test_scikit_learn_chooses_settings_and_splits_by_gateway() -> None:
    gateways = fleet(5, alike=True)
    x = np.concatenate([gateway.x for gateway in gateways.values()])
    y = np.where(np.concatenate([gateway.y for gateway in gateways.values()]), -1, 1)
    groups = np.repeat(list(gateways), len(next(iter(gateways.values())).x))
    model = Federated("fedavg", components=50, normalisation="none", nu=0.3)
    values = cross_val_score(model, x, y, groups=groups, cv=GroupKFold(4), scoring="roc_auc")
    assert (values > 0.8).all()
    search = GridSearchCV(model, {"nu": [0.1, 0.3]}, scoring="roc_auc", cv=2).fit(x, y)
    assert search.best_params_["nu"] in (0.1, 0.3)
    assert search.best_score_ > 0.8


def test_what_is_drawn_follows_from_the_random_state(tables: dict[str, Floats]) -> None:
    def weights(random_state: Any) -> Floats:
        fitted = Federated("fedavg", random_state=random_state, **SMALL).fit(tables)
        return np.asarray(fitted.global_state_["weights"])

    np.testing.assert_array_equal(weights(check_random_state(1)), weights(check_random_state(1)))
    assert not np.array_equal(weights(check_random_state(1)), weights(1))
    assert not np.array_equal(weights(1), weights(2))


def test_long_work_says_how_far_it_is(tables: dict[str, Floats], capsys: pytest.CaptureFixture[str]) -> None:
    model = Federated(components=1).fit(tables)
    assert capsys.readouterr().out == ""
    model.set_params(verbose=1).fit(tables)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"[Federated] {name} sends {size} bytes" for name, size in model.communication.bytes_up.items()]


def test_before_fit_there_is_nothing() -> None:
    model = Federated()
    for wanted in (model.to_onnx, partial(model.score, [[0.0]]), partial(model.commission, [[0.0]])):
        with pytest.raises(NotFittedError):
            wanted()
    with pytest.raises(NotFittedError):
        _ = model.communication


X = np.arange(12.0).reshape(4, 3)
LOGISTIC = {"algorithm": "fedavg", "loss": "logistic", "components": 0}
TIGHT = {"clip": 1.0, "noise_multiplier": 1.0, "epsilon": 0.1}


@pytest.mark.parametrize(
    ("parameters", "given", "said"),
    [
        ({}, {"X": {"a": X}, "groups": [1]}, "groups given beside a mapping"),
        ({}, {"X": {}}, "a mapping without gateways"),
        ({}, {"X": {"a": X, "b": X[:, :2]}}, "b: X has 2 features, but Federated is expecting 3 features"),
        ({}, {"X": {"a": X, "b": X * np.nan}}, "b: Input X contains NaN"),
        (
            {},
            {"X": {"a": X}, "y": {"b": [0]}},
            r"of other gateways than the rows, expected a mapping of \['a'\]",
        ),
        ({}, {"X": X, "groups": ["a", "b"]}, "2 groups given for 4 rows"),
        ({}, {"X": X, "groups": ["a", "b", "b", "b"]}, "gateway 'a': 1 sample given, expected 2 or more"),
        ({"algorithm": "fedaverage"}, {"X": X}, "algorithm 'fedaverage' is unknown; expected one of fedavg"),
        ({"fraction": 1.5}, {"X": X}, "fraction: 1.5 given, expected above 0 and at most 1"),
        ({"rounds": 0}, {"X": X}, "rounds: 0 given, expected 1 or more"),
        ({"components": 0}, {"X": X}, "federated-subspace of n_features=3: components: expected "),
        (LOGISTIC, {"X": X}, "trains on labels with these settings and got none; expected y with 4 whole numbers"),
        (LOGISTIC, {"X": X, "y": [1, 1, -1, 1]}, "Of scikit-learn's .1 and -1 make y < 0"),
        (LOGISTIC, {"X": X, "y": [0, 1]}, "labels: 2 of values"),
        ({"algorithm": "fedavg-krum"}, {"X": X}, "expected 3 updates or more, got 1"),
        (
            {"masking": {"fewest": 3}, "fraction": 0.7},
            {"X": {"a": X, "b": X, "c": X}},
            r"2 of 3 gateways take part in a round \(fraction 0\.7\).* expected 3 gateways or more "
            r"\(masking\.fewest\), got 2; ask more gateways, or set a smaller masking\.fewest",
        ),
        (
            {"algorithm": "fedavg", "components": 0, "local": "sgd", "gamma": 0.2, "privacy": TIGHT},
            {"X": X},
            r"privacy\.epsilon: 0\.1 given, a budget that is spent before anything is sent, .* take a larger "
            r"privacy\.epsilon or privacy\.noise_multiplier",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(
    parameters: dict[str, Any], given: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "run", None)  # before anything is trained
    with pytest.raises(ValueError, match=said):
        Federated(**parameters).fit(**given)
