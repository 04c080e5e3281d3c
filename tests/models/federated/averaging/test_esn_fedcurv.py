"""FedCurv of the readout: what it has in common with FedAvg, whose share is taken off, and what its penalty does."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from fedgate.config.protocol.wire import encode
from fedgate.models.arrays import COUNTED, FEATURES, LABELS, Array, Arrays, Floats, generator
from fedgate.models.detectors.esn import esn
from fedgate.models.detectors.esn.gradient_readout import fisher
from fedgate.models.federated.averaging.averaging import SAMPLES, STEP
from fedgate.models.federated.averaging.esn_fedavg import READOUT
from fedgate.models.federated.averaging.esn_fedcurv import (
    ALL_CURVATURE,
    ALL_CURVED,
    CURVATURE,
    CURVED,
    share_of,
)
from fedgate.models.federated.protocol.algorithm import Algorithm, Server, close_round
from fedgate.models.federated.protocol.run import run
from fedgate.models.federated.protocol.schema import UpdateError
from tests.models.federated.averaging.test_esn_fedavg import FEATURE_COUNT, FLEET, PLAIN, table
from tests.support.given_width import build


def curv(**settings: Any) -> Algorithm:
    return build("esn-fedcurv", FEATURE_COUNT, {**PLAIN, **settings})


def trained(algorithm: Algorithm, **options: Any) -> Server:
    return run(algorithm, FLEET, **options).server


@pytest.mark.parametrize("settings", [{}, {"optimiser": "sgd", "rate": 0.3, "epochs": 3}])
def test_without_a_penalty_it_is_fedavg_bit_for_bit(settings: dict[str, Any]) -> None:
    plain = trained(build("esn-fedavg", FEATURE_COUNT, {**PLAIN, **settings}), rounds=5, fraction=0.7)
    found = trained(curv(penalty=0.0, **settings), rounds=5, fraction=0.7)
    assert encode({READOUT: found.global_state[READOUT]}) == encode({READOUT: plain.global_state[READOUT]})
    assert np.abs(found.global_state[ALL_CURVATURE]).max() > 0.0  # the sums are there, and weigh nothing


def test_with_one_it_is_not() -> None:
    first, second = (trained(curv(**settings)).global_state[READOUT] for settings in ({"penalty": 0.0}, {}))
    assert np.abs(first - second).max() > 1e-6


@pytest.mark.soak
def test_the_sums_are_those_of_the_last_round_and_do_not_grow() -> None:
    sent: list[Arrays] = []
    algorithm, sums = curv(rate=0.1), []
    for rounds in (1, 10, 40):
        sent.clear()
        server = trained(algorithm, rounds=rounds, on_update=lambda name, update: sent.append(update))
        last = sent[-len(FLEET) :]
        for all_of, part in ((ALL_CURVATURE, CURVATURE), (ALL_CURVED, CURVED)):
            np.testing.assert_allclose(server.global_state[all_of], sum(each[part] for each in last), rtol=1e-12)
        assert server.global_state[ALL_CURVATURE].min() >= 0.0
        sums.append(server.global_state[ALL_CURVATURE].max())
    assert max(sums) <= 0.25 * len(FLEET) * float(server.global_state["clip"]) ** 2
    assert sums[2] <= 2.0 * sums[0]


def test_a_gateway_sends_the_fisher_information_of_the_readout_it_ends_with() -> None:
    server = curv().start(generator(0, 0, "cloud"))
    _, update = curv().phases[0].train(server.global_state, {}, FLEET["north"], generator(0, 0, "a"))
    states, usable = esn.states_of(server.global_state, FLEET["north"][FEATURES])
    ended = server.global_state[READOUT] + update[READOUT] / update[SAMPLES]
    expected = fisher(ended, np.asarray(states[usable], dtype=np.float64))
    np.testing.assert_allclose(update[CURVATURE], expected, rtol=1e-9)
    np.testing.assert_allclose(update[CURVED], expected * ended, rtol=1e-9, atol=1e-12)


def naive_penalty_slope(W: Floats, U: Floats, V: Floats) -> Floats:
    """Return the slope of Σ U W² - 2 V W by differences."""
    slope, small = np.zeros_like(W), 1e-6
    for at in np.ndindex(W.shape):
        ends = []
        for sign in (1.0, -1.0):
            moved = W.copy()
            moved[at] += sign * small
            ends.append(float((U * moved**2 - 2.0 * V * moved).sum()))
        slope[at] = (ends[0] - ends[1]) / (2.0 * small)
    return slope


def test_a_step_is_that_of_the_loss_and_the_penalty_of_the_others() -> None:
    settings: dict[str, Any] = {"optimiser": "sgd", "batch": 200, "learning_rate": 0.1, "penalty": 0.7}
    algorithm = curv(**settings)
    outcome = run(algorithm, FLEET, rounds=1)
    shared, data, own = outcome.server.global_state, FLEET["south"], outcome.local_states["south"]
    _, update = algorithm.phases[0].train(shared, own, data, generator(0, 1, "south"))
    common = {name: value for name, value in settings.items() if name != "penalty"}
    free = build("esn-fedavg", FEATURE_COUNT, {**PLAIN, **common})
    _, plain = free.phases[0].train(shared, {}, data, generator(0, 1, "south"))
    others = shared[ALL_CURVATURE] - own["sent.curvature"], shared[ALL_CURVED] - own["sent.curved_readout"]
    pulled = (plain[READOUT] - update[READOUT]) / update[SAMPLES]
    np.testing.assert_allclose(pulled, 0.1 * 0.7 * naive_penalty_slope(shared[READOUT], *others), rtol=1e-5, atol=1e-9)


def test_alone_there_is_nobody_to_stay_close_to() -> None:
    plain = run(build("esn-fedavg", FEATURE_COUNT, PLAIN), {"a": FLEET["north"]}).server.global_state[READOUT]
    found = run(curv(penalty=100.0), {"a": FLEET["north"]}).server.global_state[READOUT]
    np.testing.assert_allclose(found, plain, rtol=1e-9)


class Share:
    """The own share a gateway takes off, as a game of rounds: (counted, merged) after each of its updates."""

    def __init__(self) -> None:
        self.algorithm = curv()
        self.server = self.algorithm.start(generator(0, 0, "cloud"))
        self.own: Arrays = {}
        self.data: Arrays = FLEET["north"]
        self.sent: list[Array] = []

    def taken_off(self) -> Array:
        return share_of(self.server.global_state, self.own, self.data).curvature

    def round(self, *, counted: bool, others: bool = True) -> None:
        phase, index = self.algorithm.phases[0], self.server.round_index
        self.own, update = phase.train(self.server.global_state, self.own, self.data, generator(0, index, "north"))
        self.sent.append(update[CURVATURE])
        total = phase.admit(self.server, update) if counted else {}
        if others:
            _, other = phase.train(self.server.global_state, {}, FLEET["south"], generator(0, index, "south"))
            total = phase.reducer.merge(total, phase.admit(self.server, other))
        self.server = close_round(self.algorithm, self.server, total)
        self.data = {**FLEET["north"], COUNTED: np.array(counted)}

    def miss(self) -> None:
        phase, index = self.algorithm.phases[0], self.server.round_index
        _, other = phase.train(self.server.global_state, {}, FLEET["south"], generator(0, index, "south"))
        self.server = close_round(self.algorithm, self.server, phase.admit(self.server, other))


def test_what_is_taken_off_is_what_is_in_the_sums() -> None:
    game = Share()
    assert not game.taken_off().any()  # nothing sent yet
    game.round(counted=True)
    assert np.array_equal(game.taken_off(), game.sent[0])
    game.round(counted=False)
    assert not game.taken_off().any()  # refused, while others were counted: the sums hold theirs alone
    game.round(counted=True)
    assert np.array_equal(game.taken_off(), game.sent[2])
    game.round(counted=False, others=False)
    assert np.array_equal(game.taken_off(), game.sent[2])  # nobody was counted: the sums are the old ones
    game.round(counted=False, others=False)
    assert np.array_equal(game.taken_off(), game.sent[2])
    game.round(counted=True)
    assert np.array_equal(game.taken_off(), game.sent[5])
    game.miss()
    assert not game.taken_off().any()  # the last round went without this gateway


def test_a_repeated_exchange_repeats_the_same_bytes() -> None:
    game = Share()
    game.round(counted=True)
    train, shared = game.algorithm.phases[0].train, game.server.global_state
    own, first = train(shared, game.own, game.data, generator(0, 9, "north"))
    _, again = train(shared, own, game.data, generator(0, 9, "north"))
    assert encode(first) == encode(again)


def test_the_share_is_clamped_so_that_a_penalty_never_pushes_away() -> None:
    game = Share()
    game.round(counted=True, others=False)
    own = {**game.own, "sent.curvature": 2.0 * game.own["sent.curvature"]}  # more than the sums hold
    free = curv(penalty=0.0).phases[0].train(game.server.global_state, own, game.data, generator(0, 1, "a"))[1]
    held = {**own, "sent.curved_readout": game.server.global_state[ALL_CURVED]}
    found = game.algorithm.phases[0].train(game.server.global_state, held, game.data, generator(0, 1, "a"))[1]
    np.testing.assert_array_equal(found[READOUT], free[READOUT])


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda update: {**update, CURVATURE: -update[CURVATURE]}, r"expected 0 to [0-9.]+ in column \d+, got -"),
        (lambda update: {**update, CURVATURE: update[CURVATURE] + 0.3}, "expected 0 to 0.25 in column"),
        (
            lambda update: {**update, CURVED: update[CURVED] + 1.0},
            "expected curvature times the readout, got numbers up to 1",
        ),
        (lambda update: {**update, READOUT: -update[READOUT]}, "expected curvature times the readout"),
    ],
)
def test_curvature_that_no_rows_give_is_refused(wrong: Any, reason: str) -> None:
    algorithm = curv()
    server = algorithm.start(generator(0, 0, "cloud"))
    _, update = algorithm.phases[0].train(server.global_state, {}, FLEET["north"], generator(0, 0, "a"))
    algorithm.phases[0].admit(server, update)
    with pytest.raises(UpdateError, match=reason):
        algorithm.phases[0].admit(server, wrong(update))


def test_a_strong_penalty_keeps_gateways_together() -> None:
    """Gateways with labels of opposite meaning drift apart less the more the penalty weighs."""
    data = {"a": table(1), "b": {**table(2), LABELS: 1 - table(2)[LABELS]}}
    apart = []
    for penalty in (0.0, 0.1, 1.0):
        changes: list[Array] = []
        keep = partial(lambda kept, name, update: kept.append(update[READOUT] / update[SAMPLES]), changes)
        run(curv(penalty=penalty, rounds=10, optimiser="sgd", epochs=10, learning_rate=0.05), data, on_update=keep)
        apart.append(float(np.linalg.norm(changes[-1] - changes[-2])))
    assert apart[0] > apart[1] > apart[2]


def test_its_recipe_tells_it_from_fedavg() -> None:
    shared = curv(penalty=0.3).start(generator(0, 0, "cloud")).global_state
    assert (float(shared["recipe.penalty"]), int(shared[STEP])) == (0.3, 0)
