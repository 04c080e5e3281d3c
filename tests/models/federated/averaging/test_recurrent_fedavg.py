"""FedAvg of the recurrent network against training in one place, and what is sent, kept and refused."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from fedgate.config.protocol.wire import encode
from fedgate.gateway_agent.deployment.session import Scorer
from fedgate.models.arrays import FEATURES, LABELS, Array, Arrays, Floats, equal, generator
from fedgate.models.detectors import DETECTORS
from fedgate.models.detectors.recurrent import recurrent
from fedgate.models.detectors.recurrent.recurrent_network import Descent, Recurrent
from fedgate.models.federated.averaging.averaging import SAMPLES, STEP
from fedgate.models.federated.averaging.recurrent_fedavg import (
    CLASS_COUNTS,
    CLASS_SHARES,
    LARGEST_SQUARE,
    PAPER,
    SQUARES,
)
from fedgate.models.federated.protocol.algorithm import Algorithm
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.protocol.schema import UpdateError
from fedgate.models.federated.wrappers.differential_privacy import Privacy
from fedgate.models.federated.wrappers.privacy_ledger import EPSILON
from tests.support.given_width import build

# Looked for and not imported: each process that collects tests would wait for it.
pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is in the extra [lstm] only")

CHANNELS, STEPS = 2, 5
FEATURE_COUNT = CHANNELS * STEPS
SMALL = {"hidden": 4, "dense": 3, "steps": STEPS}
CLASSES = {**SMALL, "task": "classify"}
PLAIN: dict[str, Any] = {"network": SMALL, "normalisation": "none", "rounds": 2, "epochs": 1}
# One full step a round, so that the order of rows does not matter.
ONE_STEP: dict[str, Any] = {**PLAIN, "optimiser": "sgd", "batch": 1000, "learning_rate": 0.3, "largest_gradient": 1e9}


def table(seed: int, count: int = 40) -> Arrays:
    """Return windows that rise along their steps where their class is 1."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, count)
    slope = np.where(y == 1, 0.6, 0.0)[:, None, None] * np.arange(STEPS)
    cube = rng.normal(size=(count, CHANNELS, STEPS)) + slope
    return {FEATURES: cube.reshape(count, FEATURE_COUNT), LABELS: y}


FLEET = {name: table(seed, rows) for seed, (name, rows) in enumerate([("north", 20), ("south", 50), ("west", 33)])}
HEALTHY = {name: {FEATURES: table[FEATURES]} for name, table in FLEET.items()}
NETWORKS = [SMALL, CLASSES, {"cell": "linear", "steps": STEPS}, {**CLASSES, "cell": "gru", "class_weights": True}]


def fleet_of(network: dict[str, Any]) -> dict[str, Arrays]:
    return FLEET if network.get("task") == "classify" else HEALTHY


def made(settings: dict[str, Any]) -> Algorithm:
    return build("recurrent-fedavg", FEATURE_COUNT, settings)


def trained_part(shared: Arrays) -> Arrays:
    return {name: shared[name] for name in recurrent.trained_names(shared)}


def answer(algorithm: Algorithm, data: Arrays, own: Arrays | None = None, seed: int = 0) -> tuple[Arrays, Arrays]:
    shared = algorithm.start(generator(seed, 0, "cloud")).global_state
    return algorithm.phases[0].train(shared, own or {}, data, generator(seed, 0, "a"))


@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_one_gateway_alone_is_central_training(network: dict[str, Any]) -> None:
    data = fleet_of(network)["south"]
    settings = {**PLAIN, "network": network, "rounds": 1, "epochs": 3, "batch": 16, "learning_rate": 0.01}
    found = run(made(settings), {"alone": data}, seed=9).server.global_state
    settled = Recurrent.model_validate(network)
    central = recurrent.descended(
        recurrent.initial(generator(9, 0, "cloud"), settled, FEATURE_COUNT),
        data[FEATURES],
        data.get(LABELS),
        generator(9, 0, "alone"),
        settled,
        Descent(epochs=3, batch=16, learning_rate=0.01),
    )
    assert equal(trained_part(found), trained_part(central), 1e-6)


@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_a_full_batch_step_of_all_is_the_central_step(network: dict[str, Any]) -> None:
    data = fleet_of(network)
    pooled = {key: np.concatenate([part[key] for part in data.values()]) for key in data["north"]}
    settings = {**ONE_STEP, "network": {**network, "class_weights": False} if "class_weights" in network else network}
    found, expected = (run(made(settings), parts, rounds=4).server.global_state for parts in (data, {"all": pooled}))
    assert equal(trained_part(found), trained_part(expected), 1e-5)
    begun = made(settings).start(generator(0, 0, "cloud")).global_state
    assert not equal(trained_part(found), trained_part(begun), 1e-3)


def test_it_is_the_weighted_mean_of_the_gateways_weights() -> None:
    """Algorithm 1, line 5: w = Σ N_k w_k / N."""
    algorithm = made({**PLAIN, "rounds": 1, "epochs": 2, "batch": 8})
    server, total = algorithm.start(generator(0, 0, "cloud")), sum(len(part[FEATURES]) for part in HEALTHY.values())
    mean = {name: np.zeros(array.shape) for name, array in trained_part(server.global_state).items()}
    for name, part in HEALTHY.items():
        rng = generator(0, 0, name)
        after = recurrent.descended(
            server.global_state, part[FEATURES], None, rng, Recurrent.model_validate(SMALL), Descent(epochs=2, batch=8)
        )
        mean = {key: array + len(part[FEATURES]) / total * after[key] for key, array in mean.items()}
    assert equal(trained_part(run(algorithm, HEALTHY).server.global_state), mean, 1e-6)


def test_without_a_proximal_term_it_is_fedavg_to_the_byte_and_with_one_it_goes_less_far() -> None:
    plain, none, some = (
        run(made({**PLAIN, "epochs": 5, **more}), HEALTHY).server.global_state
        for more in ({}, {"mu": 0.0}, {"mu": 30.0})
    )
    assert encode(plain) == encode(none)
    begun = made(PLAIN).start(generator(0, 0, "cloud")).global_state
    far = [sum(float(np.square(part[n] - begun[n]).sum()) for n in trained_part(begun)) for part in (plain, some)]
    assert far[1] < 0.8 * far[0]


def test_the_variance_is_that_of_the_model_received_over_all_rows() -> None:
    algorithm = made(PLAIN)
    first = run(algorithm, HEALTHY, rounds=1).server.global_state
    second = run(algorithm, HEALTHY, rounds=2).server.global_state
    x = np.concatenate([part[FEATURES] for part in HEALTHY.values()])
    for shared, received in ((first, algorithm.start(generator(0, 0, "cloud")).global_state), (second, first)):
        np.testing.assert_allclose(shared["variance"], recurrent.squares(received, x).mean(axis=0), rtol=1e-6)


def test_errors_are_weighed_by_the_classes_of_the_whole_fleet() -> None:
    network = {**CLASSES, "class_weights": True}
    algorithm = made({**ONE_STEP, "network": network})
    shared = run(algorithm, FLEET, rounds=1).server.global_state
    counts = sum(np.bincount(part[LABELS], minlength=2) for part in FLEET.values())
    np.testing.assert_allclose(shared[CLASS_SHARES], counts / np.sum(counts))
    part = FLEET["north"]
    expected = recurrent.descended(
        shared,
        part[FEATURES],
        part[LABELS],
        generator(0, 0, "a"),
        Recurrent.model_validate(network),
        Descent(1, 1000, "sgd", 0.3, 1e9),
        shares=shared[CLASS_SHARES],
    )
    _, update = algorithm.phases[0].train(shared, {}, part, generator(0, 0, "a"))
    change = np.asarray(update["output.bias"] / update[SAMPLES])
    np.testing.assert_allclose(change, expected["output.bias"] - shared["output.bias"], atol=1e-6)
    assert update[CLASS_COUNTS].tolist() == np.bincount(part[LABELS], minlength=2).tolist()


@pytest.mark.parametrize("network", [SMALL, CLASSES], ids=str)
def test_a_head_at_home_is_never_sent_and_fed_to_the_model(network: dict[str, Any]) -> None:
    algorithm = made({**PLAIN, "network": network, "home": "head", "rounds": 3, "epochs": 4})
    data, sent = fleet_of(network), dict[str, Arrays]()
    outcome = run(algorithm, data, on_update=lambda name, update: sent.update({name: update}))
    begun = algorithm.start(generator(0, 0, "cloud")).global_state
    head = set(recurrent.trained_names(begun, recurrent.HEAD)) | ({"variance"} & begun.keys())
    assert set(algorithm.personal) == head
    assert all(update.keys() == {*recurrent.trained_names(begun, ("cell.",)), SAMPLES} for update in sent.values())
    model = DETECTORS["recurrent"].graph(outcome.server.global_state, algorithm.personal)
    x = table(99, 12)[FEATURES]
    scores = []
    for name, own in outcome.local_states.items():
        assert own.keys() == head
        scores.append(recurrent.score({**outcome.server.global_state, **own}, x))
        np.testing.assert_allclose(Scorer(model, own)(x), scores[-1], atol=1e-5, err_msg=name)
    assert np.abs(scores[0] - scores[1]).min() > 1e-4
    newcomer = recurrent.score(outcome.server.global_state, x)  # who has no head of its own takes the untrained one
    np.testing.assert_allclose(Scorer(model, {})(x), newcomer, atol=1e-5)


def test_what_is_measured_for_itself_is_not_sent() -> None:
    algorithm, sent = made({**PLAIN, "measure": "own", "rounds": 1}), dict[str, Arrays]()
    outcome = run(algorithm, HEALTHY, on_update=lambda name, update: sent.update({name: update}))
    begun = algorithm.start(generator(0, 0, "cloud")).global_state
    assert algorithm.personal == ("variance",)
    for name, part in HEALTHY.items():
        assert sent[name].keys() == {*recurrent.trained_names(begun), SAMPLES}
        mean = recurrent.squares(begun, part[FEATURES]).mean(axis=0)
        np.testing.assert_allclose(outcome.local_states[name]["variance"], mean, rtol=1e-6)
    assert equal(
        trained_part(outcome.server.global_state), trained_part(run(made(PLAIN), HEALTHY, rounds=1).server.global_state)
    )
    alone = made({**PLAIN, "network": {**CLASSES, "class_weights": True}, "measure": "own"})
    assert answer(alone, FLEET["north"])[1].keys() == {*recurrent.trained_names(begun), SAMPLES}
    assert CLASS_SHARES not in alone.start(generator(0, 0, "cloud")).global_state


@pytest.mark.parametrize("clip", [0.05, 0.5, 50.0])
def test_under_privacy_the_whole_bound_is_of_the_change_and_epsilon_of_all_that_is_sent(clip: float) -> None:
    """Squared residuals beside it were once nine tenths of the length."""
    chosen = {**PLAIN, "rounds": 1, "epochs": 3, "measure": "own", "learning_rate": 0.02}
    privacy = {"clip": clip, "noise_multiplier": 2.0, "epsilon": 1e6, "where": "cloud"}
    part = HEALTHY["south"]
    _, plain = answer(made(chosen), part)
    own, update = answer(made({**chosen, "privacy": privacy}), part)
    change = {name: plain[name] / plain[SAMPLES] for name in plain if name != SAMPLES}
    length = np.sqrt(sum(float(np.square(array).sum()) for array in change.values()))
    assert 0.1 < length < 10.0 and update.keys() == {*change, SAMPLES} and float(update[SAMPLES]) == 1.0
    for name, array in change.items():
        np.testing.assert_allclose(update[name], min(1.0, clip / length) * array, rtol=1e-5, atol=1e-8)
    one = Privacy.model_validate(privacy).epsilon_of(2.0**-2)  # of one release: there is no other
    assert float(own[EPSILON]) == pytest.approx(one)


def test_labelled_faults_do_not_teach_what_is_normal() -> None:
    algorithm, part = made(PLAIN), FLEET["south"]
    healthy = {FEATURES: part[FEATURES][part[LABELS] == 0]}
    assert encode(answer(algorithm, part)[1]) == encode(answer(algorithm, healthy)[1])
    assert answer(algorithm, {**part, LABELS: np.ones(50, dtype=np.int64)}) == ({}, {})


def test_windows_of_unknown_class_do_not_teach() -> None:
    algorithm, part = made({**PLAIN, "network": CLASSES}), FLEET["south"]
    known = np.arange(50) % 3 > 0
    _, update = answer(algorithm, {**part, LABELS: np.where(known, part[LABELS], -1)})
    assert encode(update) == encode(answer(algorithm, {name: array[known] for name, array in part.items()})[1])
    with pytest.raises(ValueError, match="needs labels and found none; without labels take 'predict'"):
        answer(algorithm, {FEATURES: part[FEATURES]})


def test_windows_must_be_numbers() -> None:
    x = HEALTHY["north"][FEATURES].copy()
    x[4, 1] = np.inf
    with pytest.raises(ValueError, match="row 4, column 1 is inf, expected finite values"):
        answer(made(PLAIN), {FEATURES: x})


def test_the_paper_is_one_epoch_of_slow_sgd_on_its_own_network() -> None:
    algorithm = made({"paper": True, "network": {"hidden": 4, "steps": STEPS}, "normalisation": "none"})
    shared = algorithm.start(generator(0, 0, "cloud")).global_state
    assert shared["dense.weight"].shape == (100, 4)
    assert float(shared["change"]) == 0.0 and "cell.2.state" in shared
    network = Recurrent.model_validate({"paper": True, "hidden": 4, "steps": STEPS})
    x = HEALTHY["south"][FEATURES]
    expected = recurrent.descended(shared, x, None, generator(0, 0, "a"), network, PAPER)
    _, update = answer(algorithm, HEALTHY["south"])
    change = update["output.bias"] / update[SAMPLES]
    np.testing.assert_allclose(change, expected["output.bias"] - shared["output.bias"], atol=1e-7)
    faster = made({"paper": True, "network": {"hidden": 4, "steps": STEPS}, "normalisation": "none", "epochs": 9})
    assert np.abs(answer(faster, HEALTHY["south"])[1]["output.bias"]).sum() > 3 * np.abs(update["output.bias"]).sum()


Damage = dict[str, Array]


@pytest.mark.parametrize("network", [SMALL, {**CLASSES, "class_weights": True}], ids=str)
def test_an_update_that_no_honest_gateway_sends_is_refused(network: dict[str, Any]) -> None:
    algorithm = made({**PLAIN, "network": network, "largest_change": 2.0})
    server = algorithm.start(generator(0, 0, "cloud"))
    _, update = answer(algorithm, fleet_of(network)["south"])
    admit = partial(algorithm.phases[0].admit, server)
    assert admit(update)["cell.0.state"].dtype == np.float64
    unit = update["cell.0.state"] / np.linalg.norm(update["cell.0.state"])
    admit({**update, "cell.0.state": 1.99 * update[SAMPLES] * unit})
    measured = SQUARES if SQUARES in update else CLASS_COUNTS
    wrong: list[tuple[Damage, str]] = [
        ({"cell.0.state": 2.01 * update[SAMPLES] * unit}, "'largest_change'.*expected a size up to 2, got 2.01"),
        ({measured: -update[measured]}, rf"{measured}: expected 0 to 1e\+15, got -"),
        ({measured: 40.0 * update[SAMPLES] * np.eye(2)[0]}, f"{measured}.*: expected a size up to 1?[16], got 40"),
        ({"steps": np.array(5)}, "expected arrays .* got"),
    ]
    for damage, reason in wrong:
        with pytest.raises(UpdateError, match=reason):
            admit({**update, **damage})


def test_one_gateway_cannot_decide_the_scale_of_the_others_scores() -> None:
    """One that says the most it may moves the variance by 16 times its share of the rows. More than that is refused,
    and an honest gateway on which the model is far off says that much and is counted.
    """
    algorithm = made(PLAIN)
    server = algorithm.start(generator(0, 0, "cloud"))
    far = {FEATURES: 1e3 * HEALTHY["north"][FEATURES]}
    _, update = algorithm.phases[0].train(server.global_state, {}, far, generator(0, 0, "north"))
    assert update[SQUARES].tolist() == [LARGEST_SQUARE * len(far[FEATURES])] * CHANNELS
    algorithm.phases[0].admit(server, update)
    with pytest.raises(UpdateError, match="squares of a row: expected a size up to 16, got 32"):
        algorithm.phases[0].admit(server, {**update, SQUARES: 2.0 * update[SQUARES]})
    fleet = {name: rows for name, rows in HEALTHY.items() if name != "north"}
    alone, beside = (run(algorithm, part, rounds=1).server.global_state for part in (fleet, {**fleet, "far": far}))
    share = len(far[FEATURES]) / sum(len(part[FEATURES]) for part in HEALTHY.values())
    expected = share * LARGEST_SQUARE + (1.0 - share) * alone["variance"]
    np.testing.assert_allclose(beside["variance"], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"network": {"cell": "linear"}, "home": "head"}, "home 'head' given for cell 'linear', expected 'none'"),
        ({"network": {"steps": 3}}, "steps 3 given for 10 features"),
        ({"rate": 0.5, "server_optimiser": {"kind": "adam"}}, "rate 0.5 given beside server_optimiser"),
        ({"optimiser": "newton"}, "'adam' or 'sgd'"),
        ({"precision": "float16"}, "'float32' or 'bfloat16'"),
        ({"mu": -1.0}, "greater than or equal to 0"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        made(wrong)


@pytest.mark.soak
def test_weights_travel_as_float32_and_the_fleet_learns() -> None:
    algorithm = made({"network": CLASSES, "rounds": 15, "learning_rate": 0.02, "server_optimiser": {"momentum": 0.3}})
    sizes: list[int] = []
    outcome = run(algorithm, FLEET, on_update=lambda _, update: sizes.append(len(encode(update))))
    assert int(outcome.server.global_state[STEP]) == 15
    count = sum(array.size for array in trained_part(outcome.server.global_state).values())
    assert max(sizes) < 4 * count + 2000
    unseen = table(77, 300)
    found: Floats = recurrent.score({**outcome.server.global_state, **outcome.local_states["south"]}, unseen[FEATURES])
    balanced = np.mean([np.mean((found > 0.0)[unseen[LABELS] == each] == each) for each in (0, 1)])
    assert balanced > 0.8
    assert algorithm.libraries == ("torch",) and algorithm.labels and not made(PLAIN).labels
